// The charts of the yard: first tokens, gaps, stalled time. One time axis, one cursor.
import uPlot from "../../vendor/uplot/uPlot.esm.js";
import { clock, milliseconds } from "./format.js";
import { moveMarks, objectiveLabel, objectiveLine, promptTicks } from "./marks.js";

const AXIS_WIDTH = 62;
const NEAR_PX = 12;
export const ROUTES = [
  ["split", "--sy-route-split"],
  ["short prompt", "--sy-route-short"],
  ["plain", "--sy-route-plain"],
  ["fallback", "--sy-route-fallback"],
  ["direct", "--sy-route-direct"],
];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Down or up to 1, 2 or 5 times a power of ten, so that the axis does not jump with every dot.
const roundTo = (value, up) => {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = up ? [1, 2, 5, 10] : [5, 2, 1];
  return power * steps.find((step) => (up ? step * power >= value : step * power <= value));
};

const roundSteps = (_, __, min, max) => {
  const steps = [];
  for (let power = 10 ** Math.floor(Math.log10(min)); power <= max; power *= 10) {
    steps.push(...[1, 2, 5].map((step) => step * power).filter((value) => value >= min && value <= max));
  }
  return steps;
};

const logRange = (lowest, highest) => (_, min, max) => {
  if (min == null || max == null || min <= 0) return [lowest, highest];
  return [Math.min(roundTo(min, false), lowest), Math.max(roundTo(max, true), highest)];
};

const shortMs = (value) => (value >= 1000 ? `${value / 1000} s` : `${value} ms`);

const timeAxis = (shown) => ({
  show: true, size: shown ? 26 : 6, stroke: () => colour("--sy-chart-axis"), font: "11px system-ui",
  grid: { stroke: () => colour("--sy-chart-grid"), width: 1 }, ticks: { show: false }, space: 90,
  values: (_, splits) => splits.map((t) => (shown ? clock(t) : "")),
});

const valueAxis = (log) => ({
  size: AXIS_WIDTH, stroke: () => colour("--sy-chart-axis"), font: "11px system-ui", ticks: { show: false }, gap: 6,
  grid: { stroke: () => colour("--sy-chart-grid"), width: 1 },
  space: log ? 18 : 26, ...(log ? { splits: roundSteps, filter: (_, splits) => splits } : {}),
  values: (_, splits) => splits.map(shortMs),
});

const common = (view, { height, last = false, log = true, lowest = 10, highest = 1000 }) => ({
  width: 600, height, legend: { show: false }, padding: [8, 26, 0, 0],
  cursor: { sync: { key: "yard", scales: ["x", null] }, drag: { x: false, y: false }, points: { show: false } },
  scales: {
    x: { time: true, range: () => [view.now - view.windowS, view.now] },
    y: log ? { distr: 3, log: 10, range: logRange(lowest, highest) } : { range: (_, __, max) => [0, Math.max(max ?? 0, highest)] },
  },
  axes: [timeAxis(last), valueAxis(log)],
});

const dotSeries = (name, size, shape = {}) => ({
  stroke: () => colour(name), paths: () => null,
  points: { show: true, size, width: 0, fill: () => colour(name), ...shape },
});
const lineSeries = (name, width = 1.5) => ({
  stroke: () => colour(name), width, points: { show: false }, spanGaps: false,
});

const marks = (view, series, number, labelled) => {
  const limit = () => view.limits[number];
  return [
    objectiveLine(colour, limit), promptTicks(colour, series), moveMarks(colour, series, view, labelled), objectiveLabel(colour, limit),
  ];
};

const ttftChart = (view, series) => ({
  options: {
    ...common(view, { height: 208, lowest: 20, highest: 1000 }),
    series: [{}, ...ROUTES.map(([, name]) => dotSeries(name, 5))],
    hooks: { draw: marks(view, series, "ttft", true) },
  },
  data: () => {
    const from = view.now - view.windowS;
    const dots = series.dots.filter(({ t }) => t >= from);
    return [dots.map(({ t }) => t), ...ROUTES.map(([route]) => dots.map((dot) => (dot.route === route ? dot.ttft_ms : null)))];
  },
});

// A line must not cross seconds without any gap as if it had been measured there.
const withHoles = (rows) => rows.flatMap((row, at) => {
  const follows = at === 0 || rows[at - 1][0] === row[0] - 1;
  return follows ? [row] : [[rows[at - 1][0] + 1, null], row];
});

const gapChart = (view, series) => ({
  options: {
    ...common(view, { height: 208, lowest: 10, highest: 200 }),
    series: [
      {}, lineSeries("--sy-chart-p50"), lineSeries("--sy-chart-p99"),
      dotSeries("--sy-decode", 4), dotSeries("--sy-plain", 4),
    ],
    hooks: { draw: marks(view, series, "gap", false) },
  },
  data: () => {
    const rows = withHoles(view.seconds);
    const column = (read) => rows.map(([, second]) => (second ? read(second) : null));
    return [
      rows.map(([key]) => key + 0.5), column(({ gaps }) => gaps.quantile(0.5)), column(({ gaps }) => gaps.quantile(0.99)),
      column(({ worst }) => worst.decode?.ms ?? null), column(({ worst }) => worst.plain?.ms ?? null),
    ];
  },
});

const stallChart = (view) => ({
  options: {
    ...common(view, { height: 96, last: true, log: false, highest: 100 }),
    series: [{}, {
      stroke: () => colour("--sy-chart-stall"), fill: () => colour("--sy-chart-stall"), width: 0,
      paths: uPlot.paths.bars({ size: [0.7, 12], align: 0 }), points: { show: false },
    }],
  },
  data: () => [view.seconds.map(([key]) => key + 0.5), view.seconds.map(([, s]) => s.stalledMs || null)],
});

export class Charts {
  // `root` holds elements [data-chart="ttft|gaps|stalled"]; `view` says now, windowS and the limits.
  constructor(root, series, view) {
    Object.assign(this, { root, series, view });
    view.seconds = [];
    const make = { ttft: ttftChart, gaps: gapChart, stalled: stallChart };
    this.charts = Object.entries(make).map(([name, build]) => this.#build(name, build(view, series)));
    new ResizeObserver(() => this.#fit()).observe(root);
    document.addEventListener("theme", () => this.redraw());
    this.#watchDots();
    this.#fit();
  }

  #build(name, { options, data }) {
    const home = this.root.querySelector(`[data-chart="${name}"]`);
    const hooks = { ...options.hooks, setCursor: [() => this.#readout()] };
    const plot = new uPlot({ ...options, hooks }, data(), home);
    return { name, home, plot, data };
  }

  #fit() {
    for (const { home, plot } of this.charts) {
      if (home.clientWidth) plot.setSize({ width: home.clientWidth, height: plot.height });
    }
  }

  redraw() {
    const { view, series } = this;
    view.seconds = series.secondsIn(view.now - view.windowS - 1, view.now);
    for (const { plot, data, home } of this.charts) {
      plot.setData(data());
      home.querySelector(".chart-none").hidden = !series.isLoaded || plot.data[0].length > 0;
    }
  }

  // What stands under the cursor, in words, on the head of the gap chart.
  #readout() {
    const { plot } = this.charts[1];
    const line = this.root.querySelector("[data-readout]");
    const left = plot.cursor.left;
    const t = left >= 0 ? plot.posToVal(left, "x") : null;
    const second = t == null ? null : this.series.seconds.get(Math.floor(t));
    line.textContent = t == null ? "" : second ? this.#secondInWords(t, second) : `${clock(t)} UTC · no stream`;
  }

  #secondInWords(t, { gaps, worst, stalledMs, tokens }) {
    const [side] = [worst.decode, worst.plain].filter(Boolean).sort((a, b) => b.ms - a.ms);
    return `${clock(t)} UTC · p50 ${milliseconds(gaps.quantile(0.5))} · p99 ${milliseconds(gaps.quantile(0.99))} · ` +
      `worst ${milliseconds(gaps.max)}${side ? ` on ${side.server}` : ""} · stalled ${milliseconds(stalledMs)} · ${tokens} tokens`;
  }

  #nearestDot(event) {
    const { plot } = this.charts[0];
    const box = plot.over.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    for (const dot of this.series.dots) {
      const far = Math.hypot(plot.valToPos(dot.t, "x") - x, plot.valToPos(dot.ttft_ms, "y") - y);
      if (far <= NEAR_PX && (!best || far < best.far)) best = { dot, far, x, y };
    }
    return best;
  }

  #watchDots() {
    const { home, plot } = this.charts[0];
    const tip = home.querySelector(".chart-tip");
    let shown = null; // the dot that the tip tells of; the chart moves on, a click still means this one
    plot.over.addEventListener("mousemove", (event) => {
      const found = this.#nearestDot(event);
      home.classList.toggle("has-target", Boolean(found));
      tip.hidden = !found;
      shown = found?.dot ?? null;
      if (!found) return;
      const { dot } = found;
      tip.textContent = `${clock(dot.t)} UTC · ${milliseconds(dot.ttft_ms)} · ${dot.route}\n` +
        `${[dot.prefill, dot.decode].filter(Boolean).join(" → ")} · ${dot.prompt_tokens} prompt tokens`;
      const left = found.x + AXIS_WIDTH + 14;
      tip.style.left = `${Math.min(left, home.clientWidth - tip.offsetWidth - 4)}px`;
      tip.style.top = `${Math.max(found.y - 8, 0)}px`;
    });
    plot.over.addEventListener("mouseleave", () => {
      tip.hidden = true;
      shown = null;
    });
    plot.over.addEventListener("click", () => {
      if (shown) location.href = `/requests/${encodeURIComponent(shown.request_id)}/`;
    });
  }
}
