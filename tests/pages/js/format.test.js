import assert from "node:assert/strict";
import test from "node:test";

import { gpus, milliseconds, percent, seconds, whole } from "../../../static/js/lib/format.js";

test("milliseconds become seconds when they are many", () => {
  assert.deepEqual([0.44, 9.96, 38.4, 999, 1240, 12400].map(milliseconds), ["0.4 ms", "10.0 ms", "38 ms", "999 ms", "1.24 s", "12.4 s"]);
});

test("what is not known is a dash", () => {
  assert.deepEqual([milliseconds(null), seconds(undefined), whole(null), percent(null)], ["–", "–", "–", "–"]);
});

test("seconds grow into minutes, hours and days", () => {
  assert.deepEqual([0.8, 12, 250, 11100, 200000].map(seconds), ["0.8 s", "12 s", "4 min 10 s", "3 h 5 min", "2 days"]);
});

test("counts and shares", () => {
  assert.deepEqual([whole(12345), percent(0.425)], ["12\u202f345", "43 %"]);
  assert.deepEqual([gpus([]), gpus([2]), gpus([0, 1])], ["no GPU", "GPU 2", "GPUs 0, 1"]);
});
