// Panel 3: slide the test length past the training length.
"use strict";
window.Explorer ??= {};
{
  const {el, control, controls, store, math, number, fixed, chart, colorOf, ENCODINGS, chosen, parameters, pick} = Explorer;
  const at = "lengths", WIDTH = 16, TURN = 2*Math.PI;
  const NAMES = {sinusoidal: "Sinusoidal", rotary: "Rotary"};
  const get = name => store.values[`${at}.${name}`];
  const steps = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096];

  // Logits of the last token of n, over distance: position alone, or one fixed query and key at every position.
  const matrices = {q: math.matrix("query", WIDTH), k: math.matrix("key", WIDTH)}, fixedPair = {q: math.gaussians("query", WIDTH), k: math.gaussians("key", WIDTH)};
  const lastRow = {
    relative: n => chosen(at).curve(n, parameters(at)),
    sinusoidal: n => {
      const p = m => math.sinusoidal(m, WIDTH), query = math.project(matrices.q, p(n - 1));
      return math.curve(n, distance => math.dot(query, math.project(matrices.k, p(n - 1 - distance)))/Math.sqrt(WIDTH));
    },
    rotary: n => {
      const query = math.rotate(fixedPair.q, n - 1);
      return math.curve(n, distance => math.dot(query, math.rotate(fixedPair.k, n - 1 - distance))/Math.sqrt(WIDTH));
    },
  };
  function compare(kind, trained, tested) {
    const before = lastRow[kind](trained), after = lastRow[kind](tested), both = Math.min(trained, tested);
    const gap = i => before[i] === after[i] ? 0 : Math.abs(before[i] - after[i]);
    const weights = math.softmax(after);
    return {before, after, moved: Math.max(...math.curve(both, gap)), unseen: math.sum(weights.slice(trained))};
  }

  function dial(angle, trained, tested) {  // one pair of channels: the arc it swept in training, the arc beyond, and its hand at the last position
    const seen = Math.min((trained - 1)*angle, TURN), swept = Math.min((tested - 1)*angle, TURN), hand = (tested - 1)*angle;
    const point = (a, r = 22) => `${26 + r*Math.sin(a)} ${26 - r*Math.cos(a)}`;
    const arc = (from, to) => to - from >= TURN - 1e-9 ? `M ${point(0)} A 22 22 0 1 1 ${point(Math.PI)} A 22 22 0 1 1 ${point(0)}` : `M ${point(from)} A 22 22 0 ${to - from > Math.PI ? 1 : 0} 1 ${point(to)}`;
    const beyond = swept - seen, turn = TURN/angle;
    const svg = el("svg", {viewBox: "0 0 52 52", "aria-hidden": "true"}, el("circle", {cx: 26, cy: 26, r: 22, class: "ex-rim"}), el("path", {d: arc(0, seen), class: "ex-seen"}));
    if (beyond > 1e-9) svg.append(el("path", {d: arc(seen, swept), class: "ex-new"}));
    svg.append(el("line", {x1: 26, y1: 26, x2: point(hand, 17).split(" ")[0], y2: point(hand, 17).split(" ")[1], class: beyond > 1e-9 ? "ex-hand ex-beyond" : "ex-hand"}));
    const percent = `${Math.round(100*beyond/TURN)} %`;
    return {beyond, node: el("li", {class: beyond > 1e-9 ? "ex-unseen" : undefined}, svg, el("span", {}, `turn: ${turn < 100 ? number(turn, 1) : Math.round(turn)}`), el("span", {}, beyond > 1e-9 ? `new: ${percent}` : "all seen"))};
  }

  function mount(root) {
    store.define({"lengths.trained": 64, "lengths.tested": 256, "lengths.absolute": "sinusoidal"});
    const ui = controls([
      control.range({key: "lengths.trained", label: "training length L_tr", values: steps.filter(n => n <= 512), show: n => `${n} tokens`}),
      control.range({key: "lengths.tested", label: "test length L_ex", values: steps, show: n => `${n} tokens`}),
      ...pick(at, Object.keys(ENCODINGS).filter(name => ENCODINGS[name].curve), "alibi", {h: {start: 4}, ratio: {start: 4}, w: {start: 40}}),
      control.select({key: "lengths.absolute", label: "beside it", options: () => Object.entries(NAMES)})],
    [control.button("Reset", () => store.reset(`${at}.`))]);
    const left = chart("lengths.relative", "Relative"), right = chart("lengths.absolute", "Absolute");
    const said = el("p", {class: "ex-said", "aria-live": "polite"}), dials = el("ul", {class: "ex-dials"});
    const caption = el("p", {class: "ex-dialtext"});
    root.append(ui.node, el("div", {class: "ex-two"}, left.node, right.node), said, caption, dials);

    function view(drawn, kind, name, title) {
      const trained = get("trained"), tested = get("tested"), longest = Math.max(trained, tested), found = compare(kind, trained, tested), color = colorOf(name);
      const padded = values => math.curve(longest, i => i < values.length ? values[i] : NaN);
      drawn.draw({x: math.curve(longest, d => d), xLabel: "distance from the last token", yLabel: "logit (nats)",
        series: [{label: `text of ${trained}`, y: padded(found.before), color, width: 5, faint: true}, {label: `text of ${tested}`, y: padded(found.after), color, dash: "dashed"}],
        marks: [{x: trained, label: "never trained from here on", low: true}]}, title);
      return {moved: found.moved, unseen: found.unseen};
    }
    function render() {
      ui.sync();
      const trained = get("trained"), tested = get("tested"), absolute = get("absolute"), title = chosen(at).title;
      const a = view(left, "relative", get("enc"), `${title}: logit over distance`);
      const b = view(right, absolute, absolute, `${NAMES[absolute]}: logit over distance`);
      const made = math.frequencies(WIDTH).map(angle => dial(angle, trained, tested));
      Explorer.lengths = {relative: a, absolute: b, beyond: made.map(d => d.beyond)};
      const sentence = (name, found) => `${name}: at the distances both texts have, the curve moves by ${fixed(found.moved, 3)} nats; ${(100*found.unseen).toFixed(1)} % of the attention at ${tested} tokens falls on distances never trained.`;
      said.textContent = `${sentence(title, a)} ${sentence(NAMES[absolute], b)}`;
      const count = made.filter(d => d.beyond > 1e-9).length;
      caption.textContent = absolute === "sinusoidal" ? `The ${WIDTH/2} pairs of ${WIDTH} sinusoidal channels as hands of a clock, at position ${tested - 1}: ${count} of them pass through angles that no position of training had.`
        : `The ${WIDTH/2} pairs of ${WIDTH} rotary channels as hands of a clock, turned by ${tested - 1} tokens of distance: ${count} of them pass through angles that no distance of training had.`;
      caption.textContent += " Grey was swept in training, dashed is new; under each hand the tokens that a full turn takes.";
      dials.replaceChildren(...made.map(d => d.node));
    }
    store.onChange(`${at}.`, render);
  }
  Explorer.panels = {...Explorer.panels, lengths: {title: "Slide the test length past the training length", mount}};
}
