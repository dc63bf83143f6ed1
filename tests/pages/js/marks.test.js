// What is drawn over the charts: words stand on plates, over whatever else is drawn.
import assert from "node:assert/strict";
import { test } from "node:test";
import { moveMarks, objectiveLabel, objectiveLine } from "../../../static/js/lib/marks.js";

globalThis.devicePixelRatio = 2;
const BOX = { left: 100, top: 50, width: 800, height: 400 };

// A canvas that notes what is filled, and in which colour.
const canvas = () => {
  const calls = [];
  const nothing = () => {};
  const ctx = {
    calls, globalAlpha: 1, fillStyle: "", save: nothing, restore: nothing, beginPath: nothing, rect: nothing, clip: nothing,
    moveTo: nothing, lineTo: nothing, stroke: nothing, setLineDash: nothing, measureText: (words) => ({ width: 10 * words.length }),
    fillRect: (x, y, width, height) => calls.push({ x, y, width, height, colour: ctx.fillStyle, alpha: ctx.globalAlpha }),
    fillText: (words, x, y) => calls.push({ words, x, y, colour: ctx.fillStyle, alpha: ctx.globalAlpha }),
  };
  return ctx;
};

const plotAt = (y) => ({ ctx: canvas(), bbox: BOX, valToPos: () => y });
const colour = (name) => name;

const covers = (plate, text) =>
  plate.x < text.x && plate.x + plate.width > text.x + 10 * text.words.length && plate.y < text.y && plate.y + plate.height > text.y;

test("the word for the limit stands on a plate of the surface's colour", () => {
  const plot = plotAt(200);
  objectiveLabel(colour, () => 50)(plot);
  const [plate, text] = plot.ctx.calls;
  assert.equal(text.words, "limit");
  assert.deepEqual([plate.colour, text.colour], ["--sy-surface", "--sy-chart-limit"]);
  assert.ok(plate.alpha >= 0.9);
  assert.ok(covers(plate, text));
  assert.ok(text.y < 200);
});

test("it stands under a line that leaves no room above, and so inside the chart", () => {
  const plot = plotAt(BOX.top + 4);
  objectiveLabel(colour, () => 50)(plot);
  const [plate, text] = plot.ctx.calls;
  assert.ok(plate.y >= BOX.top + 4 - 1);
  assert.ok(text.y > BOX.top + 4);
});

test("without a limit nothing is drawn", () => {
  const plot = plotAt(200);
  for (const mark of [objectiveLine, objectiveLabel]) mark(colour, () => null)(plot);
  assert.deepEqual(plot.ctx.calls, []);
});

test("a move's words stand on a plate too", () => {
  const plot = { ...plotAt(0), valToPos: (t) => 100 + t };
  const move = { server_name: "chat-1", from_role: "plain", to_role: "decode", requested_at: 20, finished_at: 60, status: "done" };
  moveMarks(colour, { moves: new Map([[1, move]]) }, { now: 100 }, true)(plot);
  const [, plate, text] = plot.ctx.calls;
  assert.equal(text.words, "chat-1: plain → decode");
  assert.ok(covers(plate, text));
});
