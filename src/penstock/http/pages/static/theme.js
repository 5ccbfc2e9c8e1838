// Sets the theme before the page is painted.
(() => {
  const kept = localStorage.getItem("penstock-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
