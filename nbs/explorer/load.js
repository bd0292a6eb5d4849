// The one script a page needs: it fetches the others from its own folder, in order, and starts the explorer.
"use strict";
{
  const here = document.currentScript.src;
  const files = ["uPlot.iife.min.js", "data.js", "math.js", "store.js", "controls.js", "chart.js", "encodings.js", "product.js", "heads.js", "lengths.js", "runs.js", "logcurve.js", "explorer.js"];
  const loaded = (tag, attributes) => new Promise((done, failed) => {
    const node = Object.assign(document.createElement(tag), attributes, {onload: done, onerror: () => failed(new Error(`${attributes.src ?? attributes.href} is missing`))});
    document.head.append(node);
  });
  const styles = ["uPlot.min.css", "explorer.css"].map(name => loaded("link", {rel: "stylesheet", href: new URL(name, here)}));
  const scripts = files.map(name => loaded("script", {src: new URL(name, here), async: false}));
  Promise.all([...styles, ...scripts]).then(() => Explorer.start());
}
