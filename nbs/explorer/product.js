// Panel 1: build QKᵀ for a short sentence, add what position adds, watch softmax.
"use strict";
window.Explorer ??= {};
{
  const {el, control, controls, store, math, fixed, chart, colorOf, fade, ENCODINGS, attention, chosen, parameters, pick} = Explorer;
  const at = "product", MOST = 8;
  const get = name => store.values[`${at}.${name}`];
  const words = () => { const given = get("text").trim().split(/\s+/).filter(Boolean).slice(0, MOST); return given.length ? given : ["…"]; };

  function grid(title) {
    const table = el("table", {class: "ex-grid"}), node = el("div", {class: "ex-gridbox", tabindex: "0", role: "group", "aria-label": title}, table);
    return {title, table, node};
  }
  function fill(view, values, list, tint, pickCell) {
    const head = el("tr", {}, el("td", {class: "ex-corner"}, "query ↓\nkey →"), ...list.map(word => el("th", {scope: "col", title: word}, word)));
    const rows = values.map((row, m) => el("tr", {class: m === get("query") ? "ex-picked" : undefined}, el("th", {scope: "row", title: list[m]}, list[m]),
      ...row.map((value, n) => value === null ? el("td", {class: "ex-future"}, "") : el("td", {"data-value": value, class: m === get("query") && n === get("key") ? "ex-cell" : undefined,
        style: `background:${tint(value)}`, onclick: () => pickCell(m, n)}, fixed(value, 2)))));
    view.table.replaceChildren(el("caption", {}, view.title), el("thead", {}, head), el("tbody", {}, ...rows));
  }

  function entry(result, list, query, key) {  // the one product in full
    const q = result.q[query], k = result.k[key], products = q.map((x, i) => x*k[i]), total = math.sum(products);
    const row = (name, values, last) => el("tr", {}, el("th", {scope: "row"}, name), ...values.map(x => el("td", {}, fixed(x))), el("td", {}, last));
    const table = el("table", {class: "ex-grid ex-entry"}, el("caption", {}, `One entry: query “${list[query]}”, key “${list[key]}”`),
      el("tbody", {}, row("q", q, ""), row("k", k, ""), row("q·k", products, `Σ ${fixed(total)}`)));
    return {table, scaled: total/Math.sqrt(q.length)};
  }

  function mount(root) {
    store.define({"product.text": "the dog that bit the cat ran", "product.share": 1, "product.causal": true, "product.silent": false, "product.query": 6, "product.key": 1});
    const last = () => words().length - 1, named = i => words()[i];
    const ui = controls([
      control.text({key: "product.text", label: `sentence, up to ${MOST} words`}),
      ...pick(at, Object.keys(ENCODINGS), "alibi"),
      control.range({key: "product.share", label: "share of the position added", min: 0, max: 1, step: .05, show: x => `${Math.round(100*x)} %`}),
      control.range({key: "product.query", label: "query", min: 0, max: MOST - 1, step: 1, limit: last, show: named}),
      control.range({key: "product.key", label: "key", min: 0, max: MOST - 1, step: 1, limit: () => get("causal") ? Math.min(get("query"), last()) : last(), show: named}),
      control.check({key: "product.causal", label: "causal mask"}),
      control.check({key: "product.silent", label: "no content: equal logits"})],
    [control.button("Play: add the position", play), control.button("Reset", () => store.reset(`${at}.`))]);
    const views = {plain: grid("QKᵀ/√d: content alone"), added: grid("what position adds"), total: grid("sum"), weights: grid("softmax: attention weights")};
    const build = el("div", {class: "ex-gridbox", tabindex: "0", role: "group", "aria-label": "one entry of the product"});
    const said = el("p", {class: "ex-said", "aria-live": "polite"});
    const bars = chart("product.weights", "The query's weights", 200);
    root.append(ui.node, el("div", {class: "ex-four"}, ...Object.values(views).map(view => view.node)), build, said, bars.node);

    function render() {
      ui.sync();
      const list = words(), name = get("enc"), options = {encoding: name, curve: chosen(at).curve?.(list.length, parameters(at)), share: get("share"), causal: get("causal"), silent: get("silent")};
      const query = Math.min(get("query"), last()), key = Math.min(get("key"), get("causal") ? query : last());
      const result = Explorer.product = attention(list, options), color = colorOf(name);
      const reach = Math.max(...["plain", "added", "total"].flatMap(part => result[part].flat().filter(isFinite).map(Math.abs)), 1e-9);
      const signed = value => fade(value < 0 ? "#0072B2" : "#D55E00", isFinite(value) ? .45*Math.abs(value)/reach : .45);
      const show = (part, tint) => fill(views[part], result[part].map((row, m) => row.map((value, n) => get("causal") && n > m ? null : value)), list, tint,
        (m, n) => { store.set("product.query", m); store.set("product.key", n); });
      for (const part of ["plain", "added", "total"]) show(part, signed);
      show("weights", value => fade(color, .5*value));
      const one = entry(result, list, query, key);
      build.replaceChildren(one.table);
      const back = attention([...list].reverse(), options).weights, n = list.length;
      const moved = Math.max(...result.weights.flatMap((row, m) => row.map((w, j) => Math.abs(w - back[n - 1 - m][n - 1 - j]))));
      Explorer.product.moved = moved;
      const bias = result.total[query][key] - one.scaled;
      said.textContent = `${fixed(one.scaled)} is Σ/√8${Math.abs(bias) > 0 ? `, ${fixed(bias)} is the bias at distance ${Math.abs(query - key)}` : ""}; `
        + `the weight is ${fixed(result.weights[query][key], 3)}. Read the sentence backwards, and the weight that one word gives another changes by up to ${fixed(moved, 3)}.`;
      const before = attention(list, {...options, share: 0}).weights[query];
      bars.draw({x: list.map((_, i) => i), xLabel: "key", yLabel: "weight", yRange: [0, 1], xTicks: list.map((_, i) => i), xWords: list,
        series: [{label: "without position", y: before, color: colorOf("none"), dash: "dashed", points: true}, {label: `with ${ENCODINGS[name].title}`, y: result.weights[query], color, points: true}]},
        `Weights of the query “${list[query]}”`);
    }

    function play() {
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) return store.set("product.share", 1);
      const from = performance.now();
      const step = now => { const share = Math.min((now - from)/2500, 1); store.set("product.share", Math.round(share*20)/20); if (share < 1) requestAnimationFrame(step); };
      requestAnimationFrame(step);
    }
    store.onChange(`${at}.`, render);
  }
  Explorer.panels = {...Explorer.panels, product: {title: "Build QKᵀ and add position", mount}};
}
