// Panel 2: one head's curve, where its attention lies, and the ladder of all heads.
"use strict";
window.Explorer ??= {};
{
  const {el, control, controls, store, math, number, chart, colorOf, ENCODINGS, chosen, parameters, pick, lengths} = Explorer;
  const at = "heads";
  const get = name => store.values[`${at}.${name}`];
  const hasLadder = {alibi: "h", sandwich: "ratio", smoothed_sandwich: "ratio", learned_sandwich: "ratio"};
  const own = () => hasLadder[get("enc")];                       // the parameter that differs from head to head
  const head = () => Math.min(get("head"), get("count"));
  const rungs = () => get("enc") === "alibi" ? math.alibiExponents(get("count"), get("recipe")) : math.compressionRatios(get("count"));
  function values() {                                           // that parameter for every head; the picked head may be dragged away
    const dragged = get(own()), all = rungs();
    if (get("enc") === "alibi" && get("same")) return all.map(() => dragged ?? all[head() - 1]);
    return all.map((value, i) => i === head() - 1 && dragged !== null ? dragged : value);
  }
  function settings(i) {                                        // the parameters of head i, as its curve takes them
    const p = parameters(at), name = own();
    if (name) p[name] = values()[i];
    if (get("enc") === "alibi") p.h += get("shift");
    return p;
  }

  function mount(root) {
    const ladderOnly = () => Boolean(own()), alibi = () => get("enc") === "alibi";
    store.define({"heads.count": 8, "heads.head": 4, "heads.shift": 0, "heads.recipe": "paper", "heads.same": false, "heads.span": 128});
    const dragged = name => ({start: null, read: () => own() === name ? values()[head() - 1] : 1});
    const sliders = pick(at, Object.keys(ENCODINGS).filter(name => ENCODINGS[name].curve), "alibi",
      {h: {...dragged("h"), step: .01, label: "h of the head", show: h => `${number(h)}, slope ${number(2**-(h + get("shift")), 2)}`},
        ratio: {...dragged("ratio"), step: .01, label: "ratio h of the head"}, w: {start: 40}});
    const follow = () => { store.set("heads.h", null); store.set("heads.ratio", null); };
    const back = control.button("Back on the ladder", follow);
    const ui = controls([...sliders,
      control.range({key: "heads.count", label: "heads H", min: 1, max: 64, step: 1, when: ladderOnly}),
      control.range({key: "heads.head", label: "head n", min: 1, max: 64, step: 1, limit: () => get("count"), when: ladderOnly}),
      control.range({key: "heads.shift", label: "shift Δ", min: -3, max: 8, step: .5, when: alibi}),
      control.select({key: "heads.recipe", label: "ladder", options: () => [["paper", "paper: 2^(−8n/H)"], ["official", "official ALiBi code"]], when: alibi}),
      control.check({key: "heads.same", label: "this h for all heads", when: alibi}),
      control.range({key: "heads.span", label: "distances shown", values: lengths.filter(n => n >= 16)})],
    [back, control.button("Reset", () => store.reset(`${at}.`))]);
    const bias = chart("heads.bias", "Bias over distance"), weight = chart("heads.weight", "Attention at equal logits"), rung = chart("heads.ladder", "Ladder", 200);
    const said = el("p", {class: "ex-said", "aria-live": "polite"});
    root.append(ui.node, el("div", {class: "ex-two"}, bias.node, weight.node), said, rung.node);

    function render() {
      ui.sync();
      back.hidden = !own();
      const name = get("enc"), {title, curve} = chosen(at), color = colorOf(name), span = get("span"), x = math.curve(span, d => d);
      const n = own() ? get("count") : 1, i = own() ? head() - 1 : 0, mine = curve(span, settings(i));
      const others = n > 1 && n <= 16 ? math.curve(n, j => j).filter(j => j !== i) : [];
      const finite = mine.filter(isFinite), low = Math.min(...finite, -.5), high = Math.max(...finite, 0);
      const label = own() ? `${title}, head ${i + 1} of ${n}` : title;
      bias.draw({x, xLabel: "distance (tokens)", yLabel: "bias (nats)", yRange: [low*1.08, high + .04*(high - low)],
        series: [...[...others].map((j, order) => ({label: order ? "" : "the other heads", y: curve(span, settings(j)), color: colorOf("none"), width: 1, dash: "dotted"})), {label, y: mine, color}],
        marks: name === "window" ? [{x: get("w") - .5, label: "−∞ from here on", low: true}] : []});
      const weights = Float64Array.from(math.softmax(mine)), reach = math.tokensHolding(1 - 1/Math.E, weights), most = math.tokensHolding(.99, weights);
      weight.draw({x, xLabel: "distance (tokens)", yLabel: "weight", yRange: [0, Math.max(...weights)*1.08],
        series: [{label: `weight, ${span} keys`, y: weights, color}], marks: [{x: reach - 1, label: `63 % within ${reach}`, low: name === "window"}, {x: most - 1, label: `99 % within ${most}`, low: name === "window"}]});
      const slope = 2**-settings(i).h;
      said.textContent = `At equal logits the nearest ${reach} of ${span} tokens hold 63 % of this head's attention, its effective window; the nearest ${most} hold 99 %.`
        + (name === "alibi" ? ` Its slope is ${number(slope)}, and 1/slope is ${number(1/slope)}.` : own() ? "" : name === "window" ? " All heads have the same window." : " Every head learns such a curve of its own: there is no ladder.");
      rung.node.hidden = !own();
      if (own()) ladder(rung, name, i, color);
    }
    function ladder(drawn, name, i, color) {
      const all = values(), x = all.map((_, j) => j + 1), slopes = name === "alibi";
      const exact = all.map((h, j) => slopes ? -(settings(j).h) : h);
      const dot = exact.map((y, j) => j === i ? y : NaN);
      drawn.draw({x, xLabel: "head", yLabel: slopes ? "log₂ slope" : "ratio h", xRange: [.5, all.length + .5], yWhole: true, xTicks: x.filter(j => (j - 1) % Math.ceil(x.length/16) === 0),
        series: [{label: "all heads", y: exact, color: colorOf("none"), dash: "dashed", width: 1, points: true}, {label: `head ${i + 1}`, y: dot, color, points: true}]},
        slopes ? "Ladder of slopes: each head's slope as a power of two" : "Ladder of compression ratios");
    }
    store.onChange(`${at}.`, render);
  }
  Explorer.panels = {...Explorer.panels, heads: {title: "Drag a head", mount}};
}
