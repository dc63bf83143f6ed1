import assert from "node:assert/strict";
import test from "node:test";

import { KEPT_S, Series } from "../../../static/js/lib/series.js";

const NOW = 1_000_000;
const dot = (t, ttftMs, route = "split") => ({ type: "ttft", t, request_id: `r${t}`, ttft_ms: ttftMs, route });
const gaps = (t, points, more = {}) => ({
  type: "gaps", t, server: "chat-3", role: "decode", count: points.length, p50_ms: 20, p99_ms: 30, max_ms: 30,
  stalled_ms: 0, tokens: points.length, points: points.map((ms) => [t, ms]), ...more,
});
const finished = (t, outcome = "ok", e2eMs = 0) => ({ type: "request", request: { t, outcome, e2e_ms: e2eMs } });
const filled = (...events) => {
  const series = new Series();
  events.forEach((event) => series.add(event));
  return series;
};

test("dots are kept in the order of time, however they come", () => {
  const series = filled(dot(NOW - 1, 10), dot(NOW - 3, 30), dot(NOW - 2, 20));
  assert.deepEqual(series.dots.map(({ ttft_ms: ms }) => ms), [30, 20, 10]);
});

test("a window without events has no numbers, rather than zeros", () => {
  const numbers = new Series().numbers(NOW - 120, NOW);
  assert.equal(numbers.ttft_p50, null);
  assert.equal(numbers.worst_gap, null);
  assert.equal(numbers.stalled, null);
  assert.equal(numbers.rate, null);
});

test("numbers are of the window alone", () => {
  const series = filled(dot(NOW - 200, 9000), dot(NOW - 10, 100), finished(NOW - 200, "failed"), finished(NOW - 10));
  const numbers = series.numbers(NOW - 120, NOW);
  assert.ok(numbers.ttft_p99 <= 100);
  assert.equal(numbers.failed, 0);
  assert.equal(numbers.finished, 1);
});

test("the worst gap and the stalled time are exact", () => {
  const series = filled(gaps(NOW - 5, [20, 30], { stalled_ms: 0 }), gaps(NOW - 4, [412], { stalled_ms: 212 }));
  const numbers = series.numbers(NOW - 120, NOW);
  assert.equal(numbers.worst_gap, 412);
  assert.equal(numbers.stalled, 212);
});

test("gaps that a batch does not list count as its median", () => {
  const series = filled(gaps(NOW - 5, [400], { count: 200, p50_ms: 16 }));
  const { gap_p50: p50, gap_p99: p99, worst_gap: worst } = series.numbers(NOW - 120, NOW);
  assert.ok(Math.abs(p50 - 16) < 0.2 && Math.abs(p99 - 16) < 0.2);
  assert.equal(worst, 400);
});

test("the worst gap of a second is told apart for decode and plain servers", () => {
  const series = filled(gaps(NOW, [30]), gaps(NOW, [410], { role: "plain", server: "chat-5" }));
  const [[, second]] = series.secondsIn(NOW - 1, NOW);
  assert.equal(second.worst.decode.ms, 30);
  assert.equal(second.worst.plain.server, "chat-5");
});

test("a request counts when it ended, not when it came", () => {
  const series = filled(finished(NOW - 130, "ok", 60_000));
  assert.equal(series.numbers(NOW - 120, NOW).finished, 1);
});

test("a client that left is not a failure", () => {
  const series = filled(finished(NOW - 1, "cancelled"), finished(NOW - 1, "refused"), finished(NOW - 1, "failed"));
  assert.equal(series.numbers(NOW - 120, NOW).failed, 1);
});

test("what is older than the window is let go", () => {
  const old = NOW - KEPT_S - 1;
  const series = filled(dot(old, 10), gaps(old, [10]), finished(old), { type: "long_prompt", t: old, prompt_tokens: 9000 });
  series.moves.set(1, { id: 1, finished_at: old });
  series.moves.set(2, { id: 2, finished_at: null });
  series.trim(NOW);
  assert.deepEqual([series.dots.length, series.seconds.size, series.finished.length, series.prompts.length], [0, 0, 0, 0]);
  assert.deepEqual([...series.moves.keys()], [2]);
});

test("a snapshot takes the place of all that was there", () => {
  const series = filled(dot(NOW - 1, 10), gaps(NOW - 1, [10]));
  series.load({ ttft: [dot(NOW, 20)], gaps: [], long_prompts: [], moves: [], requests: [{ t: NOW, outcome: "ok", e2e_ms: null }] });
  assert.equal(series.dots.length, 1);
  assert.equal(series.seconds.size, 0);
  assert.equal(series.finished.length, 1);
});
