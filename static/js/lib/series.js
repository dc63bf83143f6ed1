// What the charts show: a fixed window of dots, gaps by the second, long prompts, moves and finished requests.
import { Sketch } from "./sketch.js";

export const KEPT_S = 310;

class Second {
  gaps = new Sketch();
  worst = { decode: null, plain: null };
  stalledMs = 0;
  tokens = 0;

  addGap(t, ms, event) {
    this.gaps.add(ms);
    const side = event.role === "plain" ? "plain" : "decode";
    if (!this.worst[side] || ms > this.worst[side].ms) this.worst[side] = { t, ms, server: event.server };
  }
}

const insertByTime = (list, item) => {
  let at = list.length;
  while (at > 0 && list[at - 1].t > item.t) at -= 1;
  list.splice(at, 0, item);
};

const dropBefore = (list, t) => {
  let gone = 0;
  while (gone < list.length && list[gone].t < t) gone += 1;
  if (gone) list.splice(0, gone);
};

export class Series {
  isLoaded = false; // before, an empty chart says nothing about the traffic

  constructor() { this.clear(); }

  clear() {
    this.dots = [];
    this.seconds = new Map();
    this.prompts = [];
    this.finished = [];
    this.moves = new Map();
  }

  load(snapshot) {
    this.clear();
    this.isLoaded = true;
    for (const list of [snapshot.ttft, snapshot.gaps, snapshot.long_prompts]) list.forEach((event) => this.add(event));
    snapshot.moves.forEach((move) => this.moves.set(move.id, move));
    snapshot.requests.forEach((request) => this.add({ type: "request", request }));
  }

  add(event) {
    if (event.type === "ttft") insertByTime(this.dots, event);
    else if (event.type === "gaps") this.#addGaps(event);
    else if (event.type === "long_prompt") insertByTime(this.prompts, event);
    else if (event.type === "request") this.#addFinished(event.request);
    else if (event.type === "move") this.moves.set(event.move.id, event.move);
  }

  #addFinished({ t, e2e_ms: e2eMs, outcome }) {
    insertByTime(this.finished, { t: t + (e2eMs ?? 0) / 1000, outcome });
  }

  // `points` holds the worst gaps of the batch, all of them when there are few; the others count as its median.
  #addGaps(event) {
    for (const [t, ms] of event.points) this.#second(t).addGap(t, ms, event);
    const second = this.#second(event.t);
    const others = event.count - event.points.length;
    if (others > 0) second.gaps.add(event.p50_ms, others);
    second.stalledMs += event.stalled_ms;
    second.tokens += event.tokens;
  }

  #second(t) {
    const key = Math.floor(t);
    if (!this.seconds.has(key)) this.seconds.set(key, new Second());
    return this.seconds.get(key);
  }

  trim(now) {
    const first = now - KEPT_S;
    for (const list of [this.dots, this.prompts, this.finished]) dropBefore(list, first);
    for (const key of this.seconds.keys()) if (key < first) this.seconds.delete(key);
    for (const [id, move] of this.moves) if ((move.finished_at ?? now) < first) this.moves.delete(id);
  }

  secondsIn(from, to) {
    return [...this.seconds].filter(([key]) => key >= from && key <= to).sort(([a], [b]) => a - b);
  }

  // The headline numbers over [from, to].
  numbers(from, to) {
    const ttft = new Sketch();
    for (const dot of this.dots) if (dot.t >= from) ttft.add(dot.ttft_ms);
    const gaps = new Sketch();
    let stalledMs = 0;
    for (const [, second] of this.secondsIn(from, to)) {
      gaps.merge(second.gaps);
      stalledMs += second.stalledMs;
    }
    const finished = this.finished.filter(({ t }) => t >= from);
    const seen = Math.max(Math.min(to - from, to - this.#firstSeen(to)), 1);
    return {
      ttft_p50: ttft.quantile(0.5), ttft_p99: ttft.quantile(0.99),
      gap_p50: gaps.quantile(0.5), gap_p99: gaps.quantile(0.99), worst_gap: gaps.count ? gaps.max : null,
      stalled: gaps.count ? stalledMs : null,
      rate: finished.length ? (finished.length * 60) / seen : null,
      failed: finished.filter(({ outcome }) => outcome === "failed").length, finished: finished.length,
    };
  }

  #firstSeen(to) {
    return Math.min(this.finished[0]?.t ?? to, this.dots[0]?.t ?? to);
  }
}
