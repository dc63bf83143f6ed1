// Runs before the first paint: the theme that was chosen, else the system's.
(() => {
  const KEY = "switchyard-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const show = (theme) => {
    document.documentElement.dataset.bsTheme = theme;
    document.documentElement.classList.toggle("dark-mode", theme === "dark"); // what the API's description goes by
    document.dispatchEvent(new CustomEvent("theme", { detail: theme }));
  };
  const apply = () => show(read() || (system.matches ? "dark" : "light"));
  system.addEventListener("change", apply);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-switch]")) return;
    const next = document.documentElement.dataset.bsTheme === "dark" ? "light" : "dark";
    try { localStorage.setItem(KEY, next); } catch { /* private windows: it holds for this page only */ }
    show(next);
  });
  apply();
})();
