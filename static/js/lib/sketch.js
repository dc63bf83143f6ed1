// Counts of positive numbers in bins that grow by 2 %: quantiles within 1 %, mergeable, a few hundred numbers at most.
const GROWTH = Math.log(1.02);
const LOWEST = 0.05;

export class Sketch {
  bins = new Map();
  count = 0;
  max = 0;

  add(value, times = 1) {
    const bin = Math.ceil(Math.log(Math.max(value, LOWEST)) / GROWTH);
    this.bins.set(bin, (this.bins.get(bin) ?? 0) + times);
    this.count += times;
    if (value > this.max) this.max = value;
  }

  merge(other) {
    for (const [bin, times] of other.bins) this.bins.set(bin, (this.bins.get(bin) ?? 0) + times);
    this.count += other.count;
    this.max = Math.max(this.max, other.max);
  }

  // The value that a share `q` of all values does not exceed; null when there is none.
  quantile(q) {
    if (!this.count) return null;
    let left = Math.ceil(q * this.count);
    for (const bin of [...this.bins.keys()].sort((a, b) => a - b)) {
      left -= this.bins.get(bin);
      if (left <= 0) return Math.min(Math.exp((bin - 0.5) * GROWTH), this.max);
    }
    return this.max;
  }
}
