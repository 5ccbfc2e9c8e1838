// What all pages share: theme, copy buttons, ages of times, and live updates.
"use strict";
(() => {
  const root = document.documentElement;

  document.getElementById("theme")?.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("penstock-theme", root.dataset.theme);
    document.dispatchEvent(new CustomEvent("penstock:theme"));
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(document.getElementById(button.dataset.copy));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  function age(seconds) {
    const steps = [[60, "s"], [60, "min"], [24, "h"], [Infinity, "d"]];
    let value = Math.abs(seconds);
    for (const [size, unit] of steps) {
      if (value < size) return seconds < 0 ? `in ${Math.round(value)} ${unit}` : `${Math.round(value)} ${unit} ago`;
      value /= size;
    }
    return "";
  }

  function showAges() {
    for (const element of document.querySelectorAll("time[datetime]")) {
      element.title = age((Date.now() - Date.parse(element.dateTime)) / 1000);
    }
  }
  showAges();
  setInterval(showAges, 30000);

  // Live updates: a poll without changes costs a 304, and the page is not touched.
  let shownTag = null;
  const open = new Set();
  let focused = null; // the place of the focused control among those of the region, which is replaced
  const controls = (region) => [...region.querySelectorAll('a[href], button, summary, [tabindex="0"]')];
  document.addEventListener("htmx:beforeRequest", (event) => {
    const isPoll = event.detail.elt.hasAttribute("data-live");
    if (isPoll && (document.hidden || getSelection().toString())) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.elt.hasAttribute("data-live")) return;
    document.getElementById("lost").hidden = true;
    const tag = event.detail.xhr.getResponseHeader("ETag");
    if (event.detail.xhr.status !== 200 || (tag && tag === shownTag)) {
      event.detail.shouldSwap = false;
      return;
    }
    shownTag = tag;
    open.clear();
    for (const element of document.querySelectorAll("details[id]")) if (element.open) open.add(element.id);
    const at = controls(event.detail.elt).indexOf(document.activeElement);
    focused = at < 0 ? null : { at, text: document.activeElement.textContent };
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const id of open) {
      const element = document.getElementById(id);
      if (element) element.open = true;
    }
    const region = focused && document.querySelector("[data-live]");
    if (region) {
      const found = controls(region);
      const same = found.filter((one) => one.textContent === focused.text);
      (same.includes(found[focused.at]) ? found[focused.at] : same[0])?.focus({ preventScroll: true });
      focused = null;
    }
    showAges();
  });
  for (const name of ["htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, () => { document.getElementById("lost").hidden = false; });
  }
  document.addEventListener("htmx:responseError", (event) => {
    if (event.detail.elt.hasAttribute("data-live")) document.getElementById("lost").hidden = false;
  });
})();
