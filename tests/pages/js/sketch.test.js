import assert from "node:assert/strict";
import test from "node:test";

import { Sketch } from "../../../static/js/lib/sketch.js";

const of = (values) => {
  const sketch = new Sketch();
  values.forEach((value) => sketch.add(value));
  return sketch;
};
const near = (found, wanted) => assert.ok(Math.abs(found / wanted - 1) < 0.011, `${found} is not near ${wanted}`);

test("an empty sketch has no quantile", () => assert.equal(new Sketch().quantile(0.5), null));

test("quantiles are within one percent", () => {
  const sketch = of(Array.from({ length: 1000 }, (_, index) => index + 1));
  near(sketch.quantile(0.5), 500);
  near(sketch.quantile(0.99), 990);
});

test("no quantile is above the largest value", () => assert.equal(of([20]).quantile(1), 20));

test("a value may be counted many times at once", () => {
  const sketch = of([100]);
  sketch.add(10, 99);
  near(sketch.quantile(0.5), 10);
  near(sketch.quantile(1), 100);
});

test("two sketches merge as if they were one", () => {
  const one = of([10, 20, 30]);
  one.merge(of([40, 50]));
  assert.equal(one.count, 5);
  near(one.quantile(0.5), 30);
  assert.equal(one.max, 50);
});

test("zero is counted, not lost", () => {
  const sketch = of([0, 0, 0]);
  assert.equal(sketch.count, 3);
  assert.equal(sketch.quantile(0.5), 0);
});
