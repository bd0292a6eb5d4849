// Labelled controls over the store, and small helpers that make elements.
"use strict";
window.Explorer ??= {};
{
  const {store} = Explorer;
  let serial = 0;

  function el(tag, attributes = {}, ...children) {
    const node = document.createElementNS(["svg", "path", "circle", "line"].includes(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  function number(x, digits = 3) {
    if (!isFinite(x)) return x > 0 ? "∞" : x < 0 ? "−∞" : "–";
    const text = Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-4) ? x.toExponential(digits - 1) : String(Number(x.toPrecision(digits + 1)));
    return text.replace("-", "−");
  }
  const fixed = (x, digits = 2) => isFinite(x) ? x.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−") : number(x);

  function box(spec, input, shown) {
    const label = el("label", {for: input.id}, typeof spec.label === "function" ? "" : spec.label);
    const node = el("div", {class: `ex-control ex-${spec.kind ?? "range"}`}, label, shown ?? "", input);
    return {node, label, sync() {
      node.hidden = spec.when ? !spec.when() : false;
      if (typeof spec.label === "function") label.textContent = spec.label();
    }};
  }

  function range(spec) {  // spec.values lists the steps of an uneven scale; otherwise min, max, step
    const {key, values} = spec;
    const input = el("input", {type: "range", id: `ex-${++serial}`, name: key, min: values ? 0 : spec.min, max: values ? values.length - 1 : spec.max, step: values ? 1 : spec.step});
    const shown = el("span", {class: "ex-value", "aria-hidden": "true"});
    const nearest = value => values.reduce((best, v, i) => Math.abs(v - value) < Math.abs(values[best] - value) ? i : best, 0);
    input.addEventListener("input", () => store.set(key, values ? values[input.value] : Number(input.value)));
    const part = box(spec, input, shown), sync = part.sync;
    const valid = value => values ? values[nearest(value)] : Math.min(Math.max(value, spec.min), spec.max);
    store.rule(key, valid);
    part.sync = () => {
      sync();
      if (spec.limit) input.max = spec.limit();
      const value = Math.min(spec.read ? spec.read() : store.values[key], spec.limit?.() ?? Infinity);
      input.value = values ? nearest(value) : value;
      shown.textContent = spec.show ? spec.show(value) : number(value);
      input.setAttribute("aria-valuetext", shown.textContent);
    };
    return part;
  }

  function select(spec) {  // spec.options() gives [value, text] or [value, text, group]
    const input = el("select", {id: `ex-${++serial}`, name: spec.key});
    let drawn = "";
    input.addEventListener("change", () => store.set(spec.key, input.value));
    const part = box({...spec, kind: "select"}, input), sync = part.sync;
    store.rule(spec.key, given => spec.options().some(([value]) => value === given) ? given : store.defaults[spec.key]);
    part.sync = () => {
      sync();
      const options = spec.options();
      if (drawn !== (drawn = JSON.stringify(options))) {
        const groups = [...new Set(options.map(option => option[2]))];
        input.replaceChildren(...groups.flatMap(group => {
          const found = options.filter(option => option[2] === group).map(([value, text]) => el("option", {value}, text));
          return group ? [el("optgroup", {label: group}, ...found)] : found;
        }));
      }
      input.value = spec.read ? spec.read() : store.values[spec.key];
    };
    return part;
  }

  function check(spec) {
    const input = el("input", {type: "checkbox", id: `ex-${++serial}`, name: spec.key});
    input.addEventListener("change", () => store.set(spec.key, input.checked));
    const part = box({...spec, kind: "check"}, input), sync = part.sync;
    part.sync = () => { sync(); input.checked = store.values[spec.key]; };
    return part;
  }

  function text(spec) {
    const input = el("input", {type: "text", id: `ex-${++serial}`, name: spec.key, autocomplete: "off", spellcheck: "false", maxlength: 80});
    input.addEventListener("input", () => store.set(spec.key, input.value));
    const part = box({...spec, kind: "text"}, input), sync = part.sync;
    part.sync = () => { sync(); if (input.value !== store.values[spec.key]) input.value = store.values[spec.key]; };
    return part;
  }

  function button(label, onclick) {
    return el("button", {type: "button", class: "ex-button", onclick}, label);
  }

  function controls(parts, buttons) {  // rows of controls, a row of buttons, and one function that shows the store in all of them
    const node = el("div", {class: "ex-controls"}, ...parts.map(part => part.node), el("div", {class: "ex-buttons"}, ...buttons));
    return {node, sync: () => parts.forEach(part => part.sync())};
  }

  Object.assign(Explorer, {el, number, fixed, controls, control: {range, select, check, text, button}});
}
