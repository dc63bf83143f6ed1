// The table of the latest requests: new rows once a second, and none while someone points at it.
import { clock, milliseconds, orDash, whole } from "./format.js";

const SHOWN = 20;

const cells = (request) => ({
  t: clock(request.t),
  prefill: orDash(request.prefill), decode: orDash(request.decode),
  prompt_tokens: whole(request.prompt_tokens), completion_tokens: whole(request.completion_tokens),
  ttft_ms: milliseconds(request.ttft_ms), p50_gap_ms: milliseconds(request.p50_gap_ms),
  max_gap_ms: milliseconds(request.max_gap_ms), e2e_ms: milliseconds(request.e2e_ms),
  outcome: request.outcome, route: orDash(request.route), request_id: request.request_id,
});

const makeRow = (request) => {
  const row = document.getElementById("request-template").content.firstElementChild.cloneNode(true);
  for (const [name, text] of Object.entries(cells(request))) row.querySelector(`[data-f="${name}"]`).textContent = text;
  const link = row.querySelector("a");
  link.href = `/requests/${encodeURIComponent(request.request_id)}/`;
  row.querySelector('[data-f="route"]').dataset.route = request.route;
  row.querySelector('[data-f="route"]').title = request.reason;
  row.querySelector('[data-f="outcome"]').dataset.outcome = request.outcome;
  row.querySelector('[data-f="outcome"]').title = request.error;
  row.classList.add("is-new");
  return row;
};

export class Rows {
  #waiting = [];

  constructor(table) {
    this.table = table;
    this.body = table.querySelector("tbody");
  }

  add(request) {
    this.#waiting.push(request);
    if (this.#waiting.length > SHOWN) this.#waiting.shift();
  }

  load(requests) {
    this.#waiting = [];
    const newest = [...requests].sort((a, b) => b.t - a.t).slice(0, SHOWN).map(makeRow);
    newest.forEach((row) => row.classList.remove("is-new"));
    this.body.replaceChildren(...newest);
    this.#showEmpty();
  }

  show() {
    if (!this.#waiting.length || this.table.matches(":hover, :focus-within")) return;
    this.body.prepend(...this.#waiting.splice(0).reverse().map(makeRow));
    while (this.body.rows.length > SHOWN) this.body.lastElementChild.remove();
    this.#showEmpty();
  }

  #showEmpty() {
    document.querySelector("[data-no-requests]").hidden = this.body.rows.length > 0;
    this.table.hidden = this.body.rows.length === 0;
  }
}
