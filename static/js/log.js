// The log of a server: keeps to its end while "Follow" is on, and stays where it was read otherwise.
const region = document.querySelector("[data-log]");
const follow = document.querySelector("[data-follow]");
const log = () => region.querySelector(".log");
let kept = null;

region.addEventListener("htmx:beforeRequest", (event) => {
  if (!follow.checked && log()) event.preventDefault();
});
region.addEventListener("htmx:beforeSwap", () => {
  const shown = log();
  kept = shown ? { top: shown.scrollTop, atEnd: shown.scrollTop + shown.clientHeight >= shown.scrollHeight - 8 } : null;
});
region.addEventListener("htmx:afterSwap", () => {
  const shown = log();
  if (!shown) return;
  shown.scrollTop = !kept || kept.atEnd ? shown.scrollHeight : kept.top;
});
