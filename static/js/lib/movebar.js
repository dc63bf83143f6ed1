// The open move of the deployment, step by step, and for a while what became of the last one.
import { seconds } from "./format.js";

const STEPS = ["draining", "stopping", "starting", "verifying", "done"];
const SHOWN_AFTER_END_S = 60;

const isOpen = (move) => move.finished_at == null;

const current = (moves, now) => {
  const list = [...moves].sort((a, b) => b.id - a.id);
  return list.find(isOpen) ?? list.find((move) => now - move.finished_at < SHOWN_AFTER_END_S) ?? null;
};

const tellSteps = (bar, move) => {
  const at = STEPS.indexOf(move.status);
  for (const step of bar.querySelectorAll("[data-step]")) {
    const place = STEPS.indexOf(step.dataset.step);
    step.dataset.done = String(at >= 0 && (place < at || move.status === "done"));
    if (place === at && isOpen(move)) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
  }
};

const outcome = (move, now) => {
  if (isOpen(move)) return `${seconds(now - move.requested_at)} so far`;
  if (move.status === "done") return `Done: ${seconds(move.out_of_service_s)} out of service.`;
  if (move.status === "cancelled") return "Cancelled: the server keeps its role.";
  return `Failed: ${move.error}`;
};

export const showMove = (moves, now) => {
  const bar = document.getElementById("move-bar");
  const move = current(moves, now);
  bar.hidden = !move;
  if (!move) return;
  bar.querySelector("[data-f=title]").textContent = `${move.server_name}: ${move.from_role} → ${move.to_role}`;
  bar.querySelector("[data-f=by]").textContent = `asked for by ${move.requested_by}`;
  bar.querySelector("[data-f=outcome]").textContent = outcome(move, now);
  bar.querySelector("[data-f=link]").href = `/moves/${move.id}/`;
  const cancel = bar.querySelector("form");
  if (cancel) {
    cancel.hidden = move.status !== "draining";
    if (cancel.dataset.move !== String(move.id)) {
      cancel.dataset.move = move.id;
      cancel.action = `/moves/${move.id}/cancel/`;
      cancel.setAttribute("hx-post", cancel.getAttribute("action"));
      htmx.process(cancel);
    }
  }
  tellSteps(bar, move);
};
