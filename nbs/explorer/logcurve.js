// Panel 5: Sandwich beside its log curve; the fit range decides which curve that is.
"use strict";
window.Explorer ??= {};
{
  const {el, control, controls, store, math, fixed, number, chart, colorOf, PARAMETERS, fits} = Explorer;
  const at = "logcurve", printed = () => Explorer.data?.paper ?? [];
  const formula = (slope, intercept) => `${fixed(slope, 3)}·log(1+δ) ${intercept < 0 ? "−" : "+"} ${fixed(Math.abs(intercept), 3)}`;
  const get = name => store.values[`${at}.${name}`];

  function mount(root) {
    store.define({"logcurve.ratio": 8, "logcurve.dbar": 128, "logcurve.fit": 50, "logcurve.span": 512, "logcurve.log": true, "logcurve.printed": true});
    const ui = controls([
      control.range({key: "logcurve.fit", label: "fit range: most recent tokens", values: fits}),
      control.range({...PARAMETERS.ratio, key: "logcurve.ratio"}), control.range({...PARAMETERS.dbar, key: "logcurve.dbar"}),
      control.range({key: "logcurve.span", label: "distances shown", values: fits.filter(n => n >= 32)}),
      control.check({key: "logcurve.log", label: "logarithmic distances"}), control.check({key: "logcurve.printed", label: "the paper's curve (h = 8)"})],
    [control.button("Reset", () => store.reset(`${at}.`))]);
    const drawn = chart("logcurve.curve", "Sandwich and its log curve", 320), said = el("p", {class: "ex-said", "aria-live": "polite"});
    root.append(ui.node, drawn.node, said);

    function render() {
      ui.sync();
      const span = get("span"), n = get("fit"), profile = math.sandwichBias(Math.max(span, n), get("ratio"), get("dbar"));
      const [slope, intercept] = math.fitLogCurve(profile, n), fitted = math.logCurve(span, slope, intercept);
      const off = math.logCurve(n, slope, intercept).map((y, i) => (y - profile[i])**2), error = Math.sqrt(math.sum(off)/n);
      Explorer.logcurve = {slope, intercept, error};
      drawn.draw({x: math.curve(span, d => get("log") ? d + 1 : d), xLog: get("log"), xLabel: get("log") ? "1 + distance (tokens)" : "distance (tokens)", yLabel: "bias (nats)",
        series: [{label: `Sandwich, h = ${number(get("ratio"))}`, y: profile.subarray(0, span), color: colorOf("sandwich")},
          {label: `fit of ${n}: ${formula(slope, intercept)}`, y: fitted, color: colorOf("smoothed_sandwich"), dash: "dashed", width: 3},
          ...(get("printed") && printed().length ? [{label: `printed: ${formula(...printed())}`, y: math.logCurve(span, ...printed()), color: colorOf("none"), dash: "dotted"}] : [])],
        marks: n < span ? [{x: get("log") ? n : n - 1, label: `fitted up to ${n}`}] : []});
      said.textContent = `Least squares over the ${n} most recent tokens: slope ${fixed(slope, 3)}, intercept ${fixed(intercept, 3)}, typical error ${number(error)} nats. `
        + `As KERPLE-log this is r₂ = 1 and r₁ = ${fixed(-slope, 3)}: softmax ignores the intercept.`;
    }
    store.onChange(`${at}.`, render);
  }
  Explorer.panels = {...Explorer.panels, logcurve: {title: "Sandwich and its log curve", mount}};
}
