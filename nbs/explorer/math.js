// The library's formulas in JavaScript; tests/test_explorer.py compares each of them with the Python.
// Curves are arrays over the distances 0, 1, 2, …: one number per token of distance, in nats.
"use strict";
window.Explorer ??= {};
{
  const curve = (n, f) => Float64Array.from({length: n}, (_, distance) => f(distance));
  const sum = values => values.reduce((a, b) => a + b, 0);
  const dot = (a, b) => sum(Array.from(a, (x, i) => x*b[i]));
  const frequencies = (width, base = 1e4) => Array.from({length: Math.ceil(width/2)}, (_, i) => base**(-2*i/width));

  // ---- ALiBi
  const ladder = heads => Array.from({length: heads}, (_, i) => 8*(i + 1)/heads);
  function officialLadder(heads) {
    const fits = 2**(31 - Math.clz32(heads));
    return [...ladder(fits), ...ladder(2*fits).filter((_, i) => i % 2 === 0).slice(0, heads - fits)];
  }
  const alibiExponents = (heads, recipe = "paper") => recipe === "official" ? officialLadder(heads) : ladder(heads);
  const alibiSlopes = (heads, recipe = "paper", shift = 0) => alibiExponents(heads, recipe).map(h => 2**-(h + shift));
  const alibiBias = (n, slope) => curve(n, distance => -slope*distance);

  // ---- windows
  const windowBias = (n, window) => curve(n, distance => distance < window ? 0 : -Infinity);

  // ---- Sandwich
  const kernels = new Map();
  function cosineKernel(n, dBar = 128) {  // ⟨p_m, p_n⟩ over distance
    let kernel = kernels.get(dBar);
    if (!kernel || kernel.length < n) {
      const angles = frequencies(dBar);
      kernel = curve(n, distance => sum(angles.map(angle => Math.cos(distance*angle))));
      kernels.set(dBar, kernel);
    }
    return kernel.subarray(0, n);
  }
  const compressionRatios = ladder;
  const sandwichBias = (n, ratio, dBar = 128) => cosineKernel(n, dBar).map(value => (value - dBar/2)/ratio);
  function fitLogCurve(profile, nFit = profile.length) {  // least squares: slope and intercept of slope·log(1+δ) + intercept
    const x = curve(nFit, Math.log1p), y = profile.subarray(0, nFit);
    const xMean = sum(x)/nFit, yMean = sum(y)/nFit;
    const slope = sum(x.map((v, i) => (v - xMean)*(y[i] - yMean)))/sum(x.map(v => (v - xMean)**2));
    return [slope, yMean - slope*xMean];
  }
  const logCurve = (n, slope, intercept) => curve(n, distance => slope*Math.log1p(distance) + intercept);
  function smoothedSandwichBias(n, ratio, dBar = 128, nFit = 50) {
    const [slope, intercept] = fitLogCurve(sandwichBias(nFit, 1, dBar));
    return logCurve(n, slope/ratio, intercept/ratio);
  }

  // ---- learned
  const kerpleLog = (n, r1, r2) => curve(n, distance => -r1*Math.log1p(r2*distance));
  const kerplePower = (n, r1, r2) => curve(n, distance => -r1*distance**r2);
  function t5Bucket(distance, buckets = 32, maxDistance = 128) {
    const exact = Math.floor(buckets/2);
    if (distance < exact) return distance;
    const ratio = Math.log2(distance/exact)/Math.log2(maxDistance/exact);
    return Math.min(exact + Math.floor(ratio*(buckets - exact) + 1e-9), buckets - 1);
  }
  const t5Bias = (n, buckets, maxDistance, table) => curve(n, distance => table(t5Bucket(distance, buckets, maxDistance)));

  // ---- absolute positions
  function sinusoidal(position, width) {
    const pairs = frequencies(width).flatMap(angle => [Math.sin(position*angle), Math.cos(position*angle)]);
    return pairs.slice(0, width);
  }
  function rotate(vector, position) {  // channel i turns with channel i + d/2
    const half = vector.length/2, angles = frequencies(vector.length).map(angle => position*angle);
    return vector.map((x, i) => {
      const angle = angles[i % half];
      return i < half ? x*Math.cos(angle) - vector[i + half]*Math.sin(angle) : vector[i - half]*Math.sin(angle) + x*Math.cos(angle);
    });
  }

  // ---- attention
  function softmax(logits) {
    const most = Math.max(...logits), powers = Array.from(logits, x => Math.exp(x - most)), total = sum(powers);
    return powers.map(x => x/total);
  }
  function tokensHolding(share, weights) {  // the fewest most recent tokens that hold this share; weights from distance 0 on
    let held = 0;
    for (let k = 0; k < weights.length; k++) if ((held += weights[k]) >= share - 1e-9) return k + 1;
    return weights.length;
  }

  // ---- made-up content: the same numbers for the same name, everywhere
  function gaussians(name, n) {
    let state = 2166136261;
    for (const letter of name) state = Math.imul(state ^ letter.codePointAt(0), 16777619);
    const uniform = () => {
      state = (state + 0x6D2B79F5) | 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return (((t ^ (t >>> 14)) >>> 0) + .5)/2**32;
    };
    return Array.from({length: n}, () => Math.sqrt(-2*Math.log(uniform()))*Math.cos(2*Math.PI*uniform()));
  }
  const matrix = (name, width) => Array.from({length: width}, (_, i) => gaussians(`${name}${i}`, width).map(x => x/Math.sqrt(width)));
  const project = (weights, vector) => weights.map(row => dot(row, vector));

  Explorer.math = {alibiBias, alibiExponents, alibiSlopes, compressionRatios, cosineKernel, curve, dot, fitLogCurve, frequencies, gaussians, kerpleLog,
    kerplePower, logCurve, matrix, project, rotate, sandwichBias, sinusoidal, smoothedSandwichBias, softmax, sum, t5Bias, t5Bucket, tokensHolding, windowBias};
}
