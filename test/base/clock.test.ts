import { expect, test } from "bun:test";
import { systemClock, systemTimers } from "../../lib/base/clock.ts";

test("the wall clock is the machine's, in whole milliseconds", () => {
  const before = Date.now();
  const now = systemClock.nowMs();
  expect(now).toBeGreaterThanOrEqual(before);
  expect(now).toBeLessThanOrEqual(Date.now());
  expect(Number.isInteger(now)).toBe(true);
});

test("the monotonic clock never goes back", () => {
  let last = systemClock.monotonicMs();
  for (let look = 0; look < 10_000; look++) {
    const now = systemClock.monotonicMs();
    expect(now >= last).toBe(true);
    last = now;
  }
});

test("a pause lasts at least as long as asked", async () => {
  const before = systemClock.monotonicMs();
  await new Promise<void>((resolve) => void systemTimers.after(20, resolve));
  // Timers count whole milliseconds.
  expect(systemClock.monotonicMs() - before).toBeGreaterThanOrEqual(19);
});

test("what was cancelled does not run, and cancelling twice is harmless", async () => {
  const ran: string[] = [];
  const cancel = systemTimers.after(1, () => ran.push("cancelled"));
  cancel();
  cancel();
  await new Promise<void>((resolve) => void systemTimers.after(20, resolve));
  expect(ran).toEqual([]);
});

test("soon comes after promises that are ready, and before any pause", async () => {
  const order: string[] = [];
  const done = new Promise<void>((resolve) => void systemTimers.after(5, resolve));
  systemTimers.soon(() => order.push("soon"));
  void Promise.resolve().then(() => order.push("promise"));
  order.push("now");
  await done;
  expect(order).toEqual(["now", "promise", "soon"]);
});
