// All settings of the page in one flat object. Those that differ from their defaults stand in the address, which can be shared.
"use strict";
window.Explorer ??= {};
{
  const defaults = {}, values = {}, rules = {}, listeners = [];
  let writing = null;

  function define(entries) { Object.assign(defaults, entries); Object.assign(values, entries); }
  function rule(key, valid) { rules[key] = valid; }  // an address may say anything: the nearest value that makes sense
  function onChange(prefix, act) { listeners.push({prefix, act, due: false}); }

  function announce(key) {  // at most one redraw a frame
    for (const listener of listeners) {
      if (listener.due || !(key === null || key.startsWith(listener.prefix))) continue;
      listener.due = true;
      requestAnimationFrame(() => { listener.due = false; listener.act(); });
    }
  }
  function set(key, value) {
    if (!(key in defaults)) throw new Error(`no setting is called ${key}`);
    values[key] = value;
    announce(key);
    clearTimeout(writing);
    writing = setTimeout(write, 150);  // browsers refuse more than some hundred changes of the address in half a minute
  }
  function reset(prefix) {
    for (const key of Object.keys(defaults)) if (key.startsWith(prefix)) set(key, defaults[key]);
  }

  const isState = hash => hash.includes("=");  // an anchor of the page has no equals sign, and changes nothing here
  addEventListener("hashchange", () => { if (isState(location.hash)) read(); });
  function write() {
    const changed = Object.keys(defaults).filter(key => values[key] !== defaults[key]);
    const hash = new URLSearchParams(changed.map(key => [key, values[key] ?? ""])).toString();
    if (hash || isState(location.hash)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }
  function typed(key, text) {  // text of the address as a value of the default's type; null stands for "as the ladder has it"
    const like = defaults[key];
    if (like === null || typeof like === "number") return text === "" || !isFinite(text) ? like : Number(text);
    return typeof like === "boolean" ? text === "true" : text;
  }
  function read() {
    const given = isState(location.hash) ? new URLSearchParams(location.hash.slice(1)) : new URLSearchParams();
    for (const key of Object.keys(defaults)) {
      const value = given.has(key) ? typed(key, given.get(key)) : defaults[key];
      values[key] = rules[key] && value !== null ? rules[key](value) : value;
    }
    announce(null);
    return Object.keys(defaults).find(key => given.has(key))?.split(".")[0];
  }

  Explorer.store = {define, rule, onChange, set, reset, read, refresh: () => announce(null), defaults, values};
}
