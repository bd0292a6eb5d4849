// Every encoding of the library with the numbers one can turn, and attention over a few words under any of them.
"use strict";
window.Explorer ??= {};
{
  const {math, control, store, number} = Explorer;
  const even = [2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512];
  const lengths = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 100, 120, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 3072, 4096];
  const fits = [2, 3, 4, 6, 8, 12, 16, 24, 32, 50, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192];

  const PARAMETERS = {
    h: {start: 2, label: "exponent h", min: -4, max: 16, step: .5, show: h => `${number(h)}: slope ${number(2**-h)}`},
    w: {start: 4, label: "window w", values: lengths, show: w => `${w} tokens, the query counted`},
    ratio: {start: 2, label: "compression ratio h", min: .25, max: 8, step: .25},
    dbar: {start: 128, label: "sinusoid width d̄", values: even},
    fit: {start: 50, label: "points fitted", values: fits},
    r1: {start: 1, label: "r₁", min: .01, max: 4, step: .01},
    r2: {start: .5, label: "r₂", min: .01, max: 2, step: .01},
    buckets: {start: 32, label: "buckets", values: [2, 4, 8, 16, 32, 64]},
    far: {start: 128, label: "last bucket from distance", values: lengths.filter(n => n >= 48)},
    fall: {start: .25, label: "made-up fall per bucket", min: 0, max: 1, step: .05, show: x => `${number(x)} nats`},
  };

  const {alibiBias, windowBias, sandwichBias, smoothedSandwichBias, kerpleLog, kerplePower, t5Bias} = math;
  const ENCODINGS = {
    none: {title: "none (NoPE)", needs: []},
    sinusoidal: {title: "sinusoidal", needs: []},
    rotary: {title: "rotary", needs: []},
    alibi: {title: "ALiBi", needs: ["h"], curve: (n, p) => alibiBias(n, 2**-p.h)},
    window: {title: "window", needs: ["w"], curve: (n, p) => windowBias(n, p.w)},
    sandwich: {title: "Sandwich", needs: ["ratio", "dbar"], curve: (n, p) => sandwichBias(n, p.ratio, p.dbar)},
    smoothed_sandwich: {title: "smoothed Sandwich", needs: ["ratio", "dbar", "fit"], curve: (n, p) => smoothedSandwichBias(n, p.ratio, p.dbar, p.fit)},
    kerple_log: {title: "KERPLE-log", needs: ["r1", "r2"], curve: (n, p) => kerpleLog(n, p.r1, p.r2)},
    kerple_power: {title: "KERPLE-power", needs: ["r1", "r2"], curve: (n, p) => kerplePower(n, p.r1, p.r2)},
    t5: {title: "T5", needs: ["buckets", "far", "fall"], curve: (n, p) => t5Bias(n, p.buckets, p.far, bucket => -p.fall*bucket)},
    learned_sandwich: {title: "Sandwich, ratio learned", needs: ["ratio", "dbar"], curve: (n, p) => sandwichBias(n, p.ratio, p.dbar)},
  };

  const parameters = at => Object.fromEntries(Object.keys(PARAMETERS).map(name => [name, store.values[`${at}.${name}`]]));
  function pick(at, names, start, special = {}) {  // a choice of encoding, and sliders for what the chosen one needs
    const specs = Object.entries(PARAMETERS).map(([name, spec]) => [name, {...spec, ...special[name], key: `${at}.${name}`, when: () => chosen(at).needs.includes(name)}]);
    store.define({[`${at}.enc`]: start, ...Object.fromEntries(specs.map(([, spec]) => [spec.key, spec.start]))});
    const options = () => names.map(name => [name, ENCODINGS[name].title]);
    return [control.select({key: `${at}.enc`, label: "encoding", options}), ...specs.map(([, spec]) => control.range(spec))];
  }
  const chosen = at => ENCODINGS[store.values[`${at}.enc`]] ?? ENCODINGS.none;

  // Attention over a few words. `share` of the position is added: of the bias, of the sinusoid, of the angle.
  const WIDTH = 8;
  function attention(words, {encoding, curve, share = 1, causal = true, silent = false}) {
    const weightsQ = math.matrix("query", WIDTH), weightsK = math.matrix("key", WIDTH);
    const content = words.map(word => silent ? Array(WIDTH).fill(0) : math.gaussians(word, WIDTH));
    const vectors = (weights, x) => x.map(row => math.project(weights, row));
    const logits = (q, k) => q.map(a => k.map(b => math.dot(a, b)/Math.sqrt(WIDTH)));
    const placed = encoding === "sinusoidal" ? content.map((row, m) => math.sinusoidal(m, WIDTH).map((p, i) => row[i] + share*p)) : content;
    const turned = rows => encoding === "rotary" ? rows.map((row, m) => math.rotate(row, share*m)) : rows;
    const q = turned(vectors(weightsQ, placed)), k = turned(vectors(weightsK, placed));
    const plain = logits(vectors(weightsQ, content), vectors(weightsK, content));
    const bias = curve && share > 0 ? curve.map(value => share*value) : new Float64Array(words.length);
    const total = logits(q, k).map((row, m) => row.map((value, n) => value + bias[Math.abs(m - n)]));
    const added = total.map((row, m) => row.map((value, n) => value - plain[m][n]));
    const weights = total.map((row, m) => math.softmax(row.map((value, n) => causal && n > m ? -Infinity : value)));
    return {q, k, plain, added, total, weights};
  }

  Object.assign(Explorer, {ENCODINGS, PARAMETERS, attention, chosen, parameters, pick, lengths, fits});
}
