// Curves with uPlot: one look, line styles beside colours, marks with words, and a sentence for those who cannot see them.
"use strict";
window.Explorer ??= {};
{
  const {el, number} = Explorer;
  const charts = {};
  const DASHES = {solid: [], dashed: [8, 5], dotted: [2, 4]};

  const channels = color => color.match(/\w\w/g).map(pair => parseInt(pair, 16));
  const luminance = rgb => rgb.map(c => (c /= 255) <= .04045 ? c/12.92 : ((c + .055)/1.055)**2.4).reduce((total, c, i) => total + c*[.2126, .7152, .0722][i], 0);
  const isDark = () => document.documentElement.classList.contains("quarto-dark")
    || (document.documentElement.classList.contains("ex-standalone") && matchMedia("(prefers-color-scheme: dark)").matches);
  function legible(color) {  // the encoding's colour; on a dark page as much white is mixed in as three to one needs
    if (!isDark()) return color;
    let rgb = channels(color);
    while (luminance(rgb) < .13) rgb = rgb.map(c => c + (255 - c)*.1);
    return `rgb(${rgb.map(Math.round).join(" ")})`;
  }
  const fade = (color, alpha) => {
    const rgb = color.startsWith("#") ? channels(color) : color.match(/\d+/g);
    return `rgba(${rgb.join(",")},${alpha})`;
  };
  const colorOf = encoding => legible(Explorer.data?.colors?.[encoding] ?? "#666666");

  function draw(chart) {
    const {x, series, marks = [], xLabel, yLabel, xLog, xRange, yRange, xTicks, xWords, yWhole} = chart.spec;
    const style = getComputedStyle(chart.place), ink = style.getPropertyValue("--ex-muted"), line = style.getPropertyValue("--ex-line"), paper = style.getPropertyValue("--ex-paper");
    const font = "12px system-ui, sans-serif";
    const axis = {size: 32, stroke: ink, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}, font, labelFont: font, labelSize: 20, labelGap: 0};
    const words = word => (_, ticks) => ticks.map(t => t === null ? "" : word(t));
    const lines = series.map(s => ({label: s.label, stroke: s.color, width: s.width ?? 2, pxAlign: 0, dash: DASHES[s.dash ?? "solid"], alpha: s.faint ? .35 : 1,
      points: s.points ? {show: true, size: 6, fill: s.color} : {show: false}}));
    const bands = series.flatMap((s, i) => s.band ? [{series: [i + 1, i + 2], fill: fade(s.color, .18)}] : []);
    const options = {
      width: Math.max(chart.place.clientWidth, 200), height: chart.height, legend: {show: false}, bands,
      scales: {x: {time: false, ...(xLog ? {distr: 3, log: 2} : {}), ...(xRange ? {range: () => xRange} : {})}, y: yRange ? {range: () => yRange} : {}},
      axes: [{...axis, label: xLabel, values: words(t => xWords ? xWords[t] : number(t)), ...(xTicks ? {splits: () => xTicks, filter: (_, ticks) => ticks} : {})},
        {...axis, label: yLabel, size: (_, ticks) => 26 + 7*Math.max(...(ticks ?? [""]).map(t => t.length)), ...(yWhole ? {incrs: [1, 2, 4, 8]} : {}), values: words(t => number(t))}],
      series: [{}, ...lines], cursor: {drag: {x: false, y: false}, points: {size: 6}},
      hooks: {draw: [plot => drawMarks(plot, marks, ink, paper)], setCursor: [plot => readOut(chart, plot.cursor.idx)]},
    };
    chart.plot?.destroy();
    chart.plot = new uPlot(options, [x, ...series.map(s => Array.from(s.y, drawable))], chart.place);
    chart.place.setAttribute("aria-label", describe(chart));
    showKey(chart);
  }

  function drawMarks(plot, marks, ink, paper) {
    const {ctx} = plot, {left, top, width, height} = plot.bbox, r = uPlot.pxRatio;
    const placed = marks.map(mark => ({...mark, at: Math.round(plot.valToPos(mark.x, "x", true))})).filter(({at}) => at >= left - 1 && at <= left + width + 1);
    ctx.save();
    for (const {at, y, color} of placed) {
      ctx.strokeStyle = ctx.fillStyle = color ?? ink;
      ctx.lineWidth = 1.5*r;
      ctx.setLineDash(y === undefined ? [3*r, 3*r] : []);
      ctx.beginPath(); ctx.moveTo(at, top); ctx.lineTo(at, top + height); ctx.stroke();
      if (y !== undefined) { ctx.beginPath(); ctx.arc(at, plot.valToPos(y, "y", true), 5*r, 0, 7); ctx.fill(); }
    }
    ctx.font = `${12*r}px system-ui, sans-serif`;
    ctx.setLineDash([]);
    placed.forEach(({at, label, low, color}, i) => {  // words last, on a rim of paper
      const rightwards = at < left + width/2, x = at + (rightwards ? 5 : -5)*r, y = top + (low ? height - (8 + 16*i)*r : (13 + 16*i)*r);
      ctx.textAlign = rightwards ? "left" : "right";
      Object.assign(ctx, {strokeStyle: paper, lineWidth: 4*r, lineJoin: "round", fillStyle: color ?? ink});
      ctx.strokeText(label, x, y);
      ctx.fillText(label, x, y);
    });
    ctx.restore();
  }

  const drawable = value => Number.isFinite(value) ? value : null;  // a gap where a window gives −∞
  const shown = series => series.filter(s => s.label);
  function describe(chart) {
    const {x, series, marks = [], xLabel} = chart.spec;
    const curves = shown(series).map(s => {
      const there = Array.from(x, (_, i) => i).filter(i => Number.isFinite(s.y[i])), ends = [there[0], there[there.length - 1]];
      return `${s.label}: ${there.length ? ends.map(i => `${number(s.y[i])} at ${number(x[i])}`).join(", ") : "no values"}`;
    });
    return [`${chart.title}, over ${xLabel}`, ...curves, ...marks.map(mark => mark.label)].join("; ");
  }
  function showKey(chart) {
    const list = shown(chart.spec.series).map(s => {
      const dash = DASHES[s.dash ?? "solid"].join(" ");
      const sample = el("svg", {width: 28, height: 8, "aria-hidden": "true"}, el("line", {x1: 0, x2: 28, y1: 4, y2: 4, stroke: s.color, "stroke-width": s.width ?? 2, "stroke-dasharray": dash || "none"}));
      return el("li", {}, sample, el("span", {}, s.label), el("span", {class: "ex-read", "aria-hidden": "true"}));
    });
    chart.key.replaceChildren(...list);
  }
  function readOut(chart, index) {  // values under the pointer, beside their names
    const entries = [...chart.key.children];
    shown(chart.spec.series).forEach((s, i) => {
      const value = index == null ? null : s.y[index];
      entries[i].lastChild.textContent = value == null ? "" : `${number(value)} at ${number(chart.spec.x[index])}`;
    });
  }

  function chart(name, title, height = 240) {
    const place = el("div", {class: "ex-plot", role: "img"}), key = el("ul", {class: "ex-key"}), caption = el("figcaption", {}, title);
    const made = {title, height, place, key, plot: null, spec: null, node: el("figure", {class: "ex-chart"}, caption, place, key)};
    made.draw = (spec, newTitle) => {
      if (newTitle) caption.textContent = made.title = newTitle;
      made.spec = spec;
      draw(made);
    };
    new ResizeObserver(() => { if (made.plot && Math.abs(made.plot.width - place.clientWidth) > 1) draw(made); }).observe(place);
    charts[name] = made;
    return made;
  }

  Object.assign(Explorer, {chart, charts, colorOf, fade});
}
