// Panel 4: any two runs of results/, side by side.
"use strict";
window.Explorer ??= {};
{
  const {el, control, controls, store, fixed, number, chart, colorOf} = Explorer;
  const at = "runs", data = () => Explorer.data?.scales ?? {};
  const get = name => store.values[`${at}.${name}`];
  const known = () => data()[get("scale")] ?? [];
  const named = run => `${run.label}, seed ${run.seed}, L_tr ${run.trainLen}, N ${run.segments}`;
  const find = side => known().find(run => run.key === get(side)) ?? known().find(run => run.label === {a: "alibi Δ=0", b: "sandwich"}[side]) ?? known()[0];

  function table(run) {
    const other = run.blocks ? run.lengths.filter(n => run.blocks[n] !== undefined).length > 0 : false;
    const head = ["L (tokens)", "perplexity", "nll − nll at L_tr", ...(other ? ["blocks of L"] : [])];
    const rows = run.lengths.map((n, i) => [n, fixed(Math.exp(run.nll[i])), `${fixed(run.rise[i][0], 3)} ± ${fixed(run.rise[i][1] ?? NaN, 3)}`, ...(other ? [run.blocks[n] === undefined ? "" : fixed(run.blocks[n])] : [])]);
    return el("table", {class: "ex-numbers"}, el("thead", {}, el("tr", {}, ...head.map(h => el("th", {scope: "col"}, h)))),
      el("tbody", {}, ...rows.map(row => el("tr", {class: row[0] === run.trainLen ? "ex-picked" : undefined}, ...row.map(cell => el("td", {}, String(cell)))))));
  }

  function side(name) {
    const curve = chart(`runs.${name}.perplexity`, "Perplexity"), gradient = chart(`runs.${name}.gradient`, "Cumulative gradient");
    const facts = el("p", {class: "ex-said", "aria-live": "polite"}), numbers = el("div", {class: "ex-gridbox", tabindex: "0", role: "group", "aria-label": "losses by length"});
    const node = el("div", {class: "ex-side"}, facts, curve.node, gradient.node, numbers);
    function draw(run, ranges) {
      const measured = run.nll.length > 0;
      const where = `${run.label} (${run.corpus}, scale ${run.scale}, seed ${run.seed}${measured ? `, ${run.segments} segments` : ""})`;
      facts.textContent = !measured ? `${where}: ${run.status}, no losses.`
        : `${where}: ${run.erf === null ? "ERF not reached" : `ERF ${run.erf} tokens at L_ex = ${run.erfLen}`}${run.erfInterval.length ? ` (95 % interval ${run.erfInterval.join("–")})` : ""}; ${run.erf === null ? "" : run.erf <= run.trainLen ? "within" : "beyond"}${run.erf === null ? "" : ` L_tr = ${run.trainLen}.`}`;
      for (const part of [curve.node, gradient.node, numbers]) part.hidden = !measured;
      if (!measured) return;
      const color = colorOf(run.encoding), exp = (values, way) => values.map((x, i) => Math.exp(x + way*(run.half[i] ?? 0)));
      const blocks = run.lengths.map(n => run.blocks[n] ?? NaN);
      curve.draw({x: run.lengths, xLog: true, xTicks: run.lengths, xLabel: "evaluation length L (tokens)", yLabel: "perplexity", yRange: ranges.perplexity,
        series: [{label: "last token", y: exp(run.nll, 0), color, points: true, band: true}, {label: "", y: exp(run.nll, 1), color, width: 0}, {label: "", y: exp(run.nll, -1), color, width: 0},
          ...(blocks.some(isFinite) ? [{label: "blocks of L, every token", y: blocks, color: colorOf("none"), dash: "dotted", points: true}] : [])],
        marks: [{x: run.trainLen, label: `L_tr ${run.trainLen}`}]}, `Perplexity: ${named(run)}`);
      const {k, share} = run.cumulative, erf = run.erf === null ? [] : [{x: run.erf, y: share[k.indexOf(run.erf)], label: `ERF ${run.erf}`, low: true, color}];
      gradient.draw({x: k, xRange: [0, ranges.tokens], xLabel: "k most recent tokens", yLabel: "share of the gradient", yRange: [0, 1.04],
        series: [{label: run.label, y: share, color}], marks: [{x: run.trainLen, label: `L_tr ${run.trainLen}`, low: true}, ...erf]}, `Cumulative gradient: ${named(run)}`);
      numbers.replaceChildren(table(run));
    }
    return {node, draw};
  }

  function mount(root) {
    const scales = Object.keys(data());
    store.define({"runs.scale": scales[0] ?? "", "runs.a": "", "runs.b": ""});
    if (!scales.length) {
      root.append(el("p", {class: "ex-said"}, "No run is stored yet. This command makes the runs of the default scale: ", el("code", {}, "sandwich-repro reproduce --scale quick --out results"), ". Build the site again afterwards."));
      return;
    }
    const options = () => known().map(run => [run.key, named(run), run.corpus]);
    const pick = (name, label) => control.select({key: `runs.${name}`, label, options, read: () => find(name)?.key});
    const ui = controls([control.select({key: "runs.scale", label: "scale", options: () => scales.map(scale => [scale, `${scale}: ${data()[scale].length} runs`])}),
      pick("a", "left run"), pick("b", "right run")],
    [control.button("Reset", () => store.reset(`${at}.`))]);
    const sides = {a: side("a"), b: side("b")};
    root.append(ui.node, el("div", {class: "ex-two"}, sides.a.node, sides.b.node));
    function render() {
      ui.sync();
      const two = [find("a"), find("b")].filter(Boolean);
      const all = two.flatMap(run => [...run.nll.flatMap((x, i) => [x - (run.half[i] ?? 0), x + (run.half[i] ?? 0)]).map(Math.exp), ...Object.values(run.blocks)]);
      const low = Math.min(...all), high = Math.max(...all), pad = .05*(high - low) || 1;
      const ranges = {perplexity: [low - pad, high + pad], tokens: Math.max(...two.flatMap(run => run.cumulative.k), 1)};
      for (const name of ["a", "b"]) sides[name].draw(find(name), ranges);
    }
    store.onChange(`${at}.`, render);
  }
  Explorer.panels = {...Explorer.panels, runs: {title: "Any two runs, side by side", mount}};
}
