// Start: fill every place on the page that asks for a panel, then show what the address says.
"use strict";
{
  const {el, panels, store} = Explorer;

  Explorer.start = () => {
    const whole = document.querySelector("[data-explorer]");  // a page of nothing but the explorer
    if (whole) whole.append(...Object.entries(panels).map(([name, panel]) => el("section", {}, el("h2", {}, panel.title), el("div", {"data-panel": name}))));
    for (const place of document.querySelectorAll("[data-panel]")) {
      const {title, mount} = panels[place.dataset.panel];
      place.classList.add("ex-panel");
      place.setAttribute("role", "group");
      place.setAttribute("aria-label", title);
      place.replaceChildren();
      mount(place);
    }
    const given = store.read();
    const show = () => document.querySelector(`[data-panel="${given}"]`)?.scrollIntoView();
    requestAnimationFrame(() => requestAnimationFrame(show));  // when all panels are drawn
    new MutationObserver(store.refresh).observe(document.documentElement, {attributeFilter: ["class"]});  // the switch between light and dark
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", store.refresh);
    Explorer.ready = true;
  };
}
