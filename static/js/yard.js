// The deployment page: one stream feeds the cards, the headline numbers, the charts and the table.
import { Charts } from "./lib/charts.js";
import { cardOf, countColumns, fill, fillLoad, tellAges } from "./lib/cards.js";
import { allowDragging } from "./lib/drag.js";
import { milliseconds, whole } from "./lib/format.js";
import { showMove } from "./lib/movebar.js";
import { Rows } from "./lib/rows.js";
import { Series } from "./lib/series.js";
import { Stream } from "./lib/stream.js";

const DRAW_EVERY_MS = 200;
const TELL_EVERY_MS = 1000;

const page = document.getElementById("yard-page");
const series = new Series();
const view = { now: Date.now() / 1000, windowS: 120, limits: { ttft: null, gap: null } };
const charts = new Charts(document.getElementById("charts"), series, view);
const rows = new Rows(document.getElementById("latest"));
let clockAheadS = 0; // how far the server's clock is ahead of the browser's
let toldMode = document.getElementById("mode").dataset.mode;

const now = () => Date.now() / 1000 + clockAheadS;

const tellNumbers = () => {
  const numbers = series.numbers(now() - view.windowS, now());
  const put = (name, text, over = false) => {
    const box = document.querySelector(`[data-number="${name}"]`);
    box.querySelector("dd").textContent = text;
    box.dataset.over = String(over);
  };
  const over = (value, limit) => value != null && limit != null && value > limit;
  put("ttft_p50", milliseconds(numbers.ttft_p50), over(numbers.ttft_p50, view.limits.ttft));
  put("ttft_p99", milliseconds(numbers.ttft_p99), over(numbers.ttft_p99, view.limits.ttft));
  put("gap_p50", milliseconds(numbers.gap_p50), over(numbers.gap_p50, view.limits.gap));
  put("gap_p99", milliseconds(numbers.gap_p99), over(numbers.gap_p99, view.limits.gap));
  put("worst_gap", milliseconds(numbers.worst_gap), over(numbers.worst_gap, view.limits.gap));
  put("stalled", milliseconds(numbers.stalled));
  put("rate", whole(numbers.rate));
  put("failed", numbers.finished ? `${numbers.failed} of ${whole(numbers.finished)}` : "–", numbers.failed > 0);
};

const MODES = {
  split: "Split", plain: "Plain", "split and plain": "Split and plain", fallback: "Fallback", refusing: "Refusing", down: "Down",
  empty: "No server yet",
};
const MODE_WHY = {
  fallback: "No verified pair is ready. Requests are served without splitting: by a plain server, else by a decode server.",
  refusing: "No verified pair is ready, and this deployment is set to refuse: requests that would be split get 503.",
  down: "No server is ready that could answer: every request gets 503.",
  empty: "Add one: until it is ready every request gets 503.",
};
const tellMode = () => {
  const mode = document.querySelector(".server") ? toldMode : "empty";
  const badge = document.getElementById("mode");
  badge.dataset.mode = mode;
  badge.textContent = MODES[mode] ?? mode;
  const why = document.getElementById("mode-why");
  why.textContent = MODE_WHY[mode] ?? "";
  why.hidden = !why.textContent;
};

const takeEvent = (event) => {
  series.add(event);
  if (event.type === "server") {
    fill(event.server);
    toldMode = event.mode;
  } else if (event.type === "server_removed") cardOf(event.id)?.remove();
  else if (event.type === "load") fillLoad(event);
  else if (event.type === "request") rows.add(event.request);
};

const takeSnapshot = (snapshot) => {
  clockAheadS = snapshot.now - Date.now() / 1000;
  view.limits = { ttft: snapshot.ttft_limit_ms, gap: snapshot.gap_limit_ms };
  series.load(snapshot);
  const known = new Set(snapshot.servers.map(({ id }) => String(id)));
  for (const card of document.querySelectorAll(".server")) if (!known.has(card.dataset.server)) card.remove();
  snapshot.servers.forEach(fill);
  rows.load(snapshot.requests);
  toldMode = snapshot.mode;
  tellMode();
  tell();
};

const LINKS = { live: "Live", lost: "Link lost", connecting: "Connecting", login: "Login ended", gone: "Deleted" };
const tellLink = (link) => {
  const badge = document.getElementById("link");
  badge.dataset.link = link;
  badge.textContent = LINKS[link];
  for (const notice of document.querySelectorAll("[data-when-link]")) notice.hidden = notice.dataset.whenLink !== link;
  page.classList.toggle("is-stale", link !== "live" && link !== "connecting");
};

const tell = () => {
  series.trim(now());
  tellNumbers();
  tellAges(now());
  countColumns();
  showMove(series.moves.values(), now());
  rows.show();
};

const draw = () => {
  if (document.hidden) return;
  view.now = now();
  charts.redraw();
};

document.querySelector("[data-windows]").addEventListener("click", (event) => {
  const button = event.target.closest("[data-window-s]");
  if (!button) return;
  view.windowS = Number(button.dataset.windowS);
  for (const other of event.currentTarget.children) other.setAttribute("aria-pressed", String(other === button));
  tellNumbers();
  draw();
});
document.addEventListener("visibilitychange", draw);

// Two changes at once may be told in the wrong order; the pairs are asked for again and again, and the mode with them.
document.getElementById("pairs-region").addEventListener("htmx:afterSwap", ({ currentTarget }) => {
  toldMode = currentTarget.querySelector("[data-told-mode]").dataset.toldMode;
  tellMode();
});

const stream = new Stream(page.dataset.socket);
stream.addEventListener("snapshot", ({ detail }) => takeSnapshot(detail));
stream.addEventListener("frame", ({ detail }) => {
  detail.events.forEach(takeEvent);
  if (detail.events.some(({ type }) => type === "server" || type === "move" || type === "server_removed")) {
    tellMode();
    countColumns();
    showMove(series.moves.values(), now());
  }
});
stream.addEventListener("link", ({ detail }) => tellLink(detail));
document.querySelector("[data-retry]").addEventListener("click", () => stream.retry());

if (page.dataset.mayOperate === "true") allowDragging();
setInterval(draw, DRAW_EVERY_MS);
setInterval(tell, TELL_EVERY_MS);
stream.open();
