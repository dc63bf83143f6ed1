// What is drawn over the charts: the objective, the long prompts, the moves. Each returns a uPlot `draw` hook.
const clipped = (plot, paint) => {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  paint(ctx, bbox, devicePixelRatio);
  ctx.restore();
};

const line = (ctx, x1, y1, x2, y2) => {
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
};

// Words on a plate, so that no curve crosses them.
const label = (ctx, ratio, words, left, baseline, { colour, size }) => {
  ctx.font = `${size * ratio}px system-ui`;
  ctx.textAlign = "left";
  const ink = ctx.fillStyle;
  ctx.globalAlpha = 0.9;
  ctx.fillStyle = colour("--sy-surface");
  ctx.fillRect(left - 2 * ratio, baseline - size * ratio, ctx.measureText(words).width + 4 * ratio, (size + 4) * ratio);
  ctx.globalAlpha = 1;
  ctx.fillStyle = ink;
  ctx.fillText(words, left, baseline);
};

export const objectiveLine = (colour, limit) => (plot) => clipped(plot, (ctx, bbox, ratio) => {
  if (limit() == null) return;
  const y = plot.valToPos(limit(), "y", true);
  ctx.strokeStyle = colour("--sy-chart-limit");
  ctx.setLineDash([6 * ratio, 4 * ratio]);
  ctx.lineWidth = ratio;
  line(ctx, bbox.left, y, bbox.left + bbox.width, y);
});

// Apart from its line, because it comes last. Under the line where there is no room above.
export const objectiveLabel = (colour, limit) => (plot) => clipped(plot, (ctx, bbox, ratio) => {
  if (limit() == null) return;
  const y = plot.valToPos(limit(), "y", true);
  ctx.fillStyle = colour("--sy-chart-limit");
  const baseline = y - bbox.top < 18 * ratio ? y + 13 * ratio : y - 5 * ratio;
  label(ctx, ratio, "limit", bbox.left + 4 * ratio, baseline, { colour, size: 10.5 });
});

// Ticks from the bottom: the longer the prompt, the taller (32 k tokens and more fill a third of the chart).
export const promptTicks = (colour, series) => (plot) => clipped(plot, (ctx, bbox, ratio) => {
  ctx.strokeStyle = colour("--sy-chart-prompt");
  ctx.lineWidth = 1.5 * ratio;
  const bottom = bbox.top + bbox.height;
  for (const { t, prompt_tokens: tokens } of series.prompts) {
    const x = plot.valToPos(t, "x", true);
    const share = 0.06 + 0.27 * Math.min(Math.log2(Math.max(tokens / 512, 1)) / 6, 1);
    line(ctx, x, bottom, x, bottom - bbox.height * share);
  }
});

export const moveMarks = (colour, series, view, labelled) => (plot) => clipped(plot, (ctx, bbox, ratio) => {
  const moves = [...series.moves.values()].sort((a, b) => a.requested_at - b.requested_at);
  moves.forEach((move, place) => drawMove(plot, ctx, bbox, ratio, move, { colour, view, labelled, place }));
});

const drawMove = (plot, ctx, bbox, ratio, move, { colour, view, labelled, place }) => {
  const x1 = plot.valToPos(move.requested_at, "x", true);
  const x2 = plot.valToPos(move.finished_at ?? view.now, "x", true);
  if (x2 < bbox.left) return;
  ctx.fillStyle = ctx.strokeStyle = colour(move.status === "failed" ? "--sy-bad" : "--sy-chart-move");
  ctx.globalAlpha = 0.08;
  ctx.fillRect(x1, bbox.top, x2 - x1, bbox.height);
  ctx.globalAlpha = 1;
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  line(ctx, x1, bbox.top, x1, bbox.top + bbox.height);
  if (move.finished_at) line(ctx, x2, bbox.top, x2, bbox.top + bbox.height);
  if (!labelled) return;
  ctx.font = `${11 * ratio}px system-ui`;
  const words = `${move.server_name}: ${move.from_role} → ${move.to_role}`;
  const left = Math.min(Math.max(x1, bbox.left), bbox.left + bbox.width - ctx.measureText(words).width - 8 * ratio);
  const top = bbox.top + (12 + 15 * (place % 3)) * ratio;
  label(ctx, ratio, words, left + 4 * ratio, top, { colour, size: 11 });
};
