// The gaps of one request over its time, with the long prompts that were computed on its server meanwhile.
import uPlot from "../vendor/uplot/uPlot.esm.js";
import { milliseconds } from "./lib/format.js";

const home = document.getElementById("gaps-chart");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const shadePrompts = (spans) => (plot) => {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = colour("--sy-chart-prompt");
  ctx.globalAlpha = 0.16;
  for (const [began, took] of spans) {
    const left = Math.max(plot.valToPos(began, "x", true), bbox.left);
    const right = Math.min(plot.valToPos(began + took, "x", true), bbox.left + bbox.width);
    if (right > left) ctx.fillRect(left, bbox.top, Math.max(right - left, 2 * devicePixelRatio), bbox.height);
  }
  ctx.restore();
};

const limitLine = (limit) => (plot) => {
  if (limit == null) return;
  const { ctx, bbox } = plot;
  const y = plot.valToPos(limit, "y", true);
  if (y < bbox.top) return;
  ctx.save();
  ctx.strokeStyle = colour("--sy-chart-limit");
  ctx.setLineDash([6, 4]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
};

const axis = (extra) => ({
  stroke: () => colour("--sy-chart-axis"), font: "11px system-ui", ticks: { show: false },
  grid: { stroke: () => colour("--sy-chart-grid"), width: 1 }, values: (_, splits) => splits.map((ms) => milliseconds(ms)), ...extra,
});

const draw = ({ first_ms: first, gaps_ms: gaps, limit_ms: limit, long_prompts: prompts }) => {
  let at = first ?? 0;
  const ends = gaps.map((gap) => (at += gap));
  const plot = new uPlot({
    width: home.clientWidth - 24, height: 200, legend: { show: false }, padding: [8, 12, 0, 0],
    cursor: { drag: { x: false, y: false } }, scales: { x: { time: false }, y: { range: (_, __, max) => [0, max * 1.08] } },
    axes: [axis({ size: 28, space: 70 }), axis({ size: 62 })],
    series: [{}, { stroke: () => colour("--sy-decode"), fill: () => colour("--sy-decode"), width: 0, paths: uPlot.paths.bars({ size: [0.7, 10, 2] }), points: { show: false } }],
    hooks: { drawAxes: [shadePrompts(prompts)], draw: [limitLine(limit)] },
  }, [ends, gaps], home);
  new ResizeObserver(() => plot.setSize({ width: home.clientWidth - 24, height: 200 })).observe(home);
  document.addEventListener("theme", () => plot.redraw());
};

const data = document.getElementById("gaps-data");
if (data) draw(JSON.parse(data.textContent));
