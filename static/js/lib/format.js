// Numbers in words people read; the same forms as the server's `units` filters.
const NOTHING = "–";

export const milliseconds = (value) => {
  if (value == null || Number.isNaN(value)) return NOTHING;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${value.toFixed(0)} ms`;
  return value < 10000 ? `${(value / 1000).toFixed(2)} s` : `${(value / 1000).toFixed(1)} s`;
};

export const seconds = (value) => {
  if (value == null) return NOTHING;
  if (value < 10) return `${Math.max(value, 0).toFixed(1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 48 * 3600) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} days`;
};

export const whole = (value) => (value == null ? NOTHING : Math.round(value).toLocaleString("en").replaceAll(",", "\u202f"));
export const percent = (share) => (share == null ? NOTHING : `${(share * 100).toFixed(0)} %`);
export const clock = (t) => new Date(t * 1000).toISOString().slice(11, 19);
export const orDash = (value) => (value == null || value === "" ? NOTHING : String(value));
export const gpus = (list) => (list.length ? `${list.length === 1 ? "GPU" : "GPUs"} ${list.join(", ")}` : "no GPU");
