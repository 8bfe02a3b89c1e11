import { expect, test } from "bun:test";
import {
  RETRY_PAUSE_MS_MAX,
  retryPauseMs,
  SLOW_PAUSE_MS_MAX,
  slowPauseMs,
} from "../../lib/base/backoff.ts";
import type { Random } from "../../lib/base/random.ts";

const chance = (value: number): Random => ({ next: () => value, uuid: () => "", hex: () => "" });

test("the first five pauses are the contract's, whatever chance says", () => {
  for (const value of [0, 0.5, 0.999]) {
    const pauses = [1, 2, 3, 4, 5].map((failures) => retryPauseMs(failures, chance(value)));
    expect(pauses).toEqual([50, 100, 200, 400, 800]);
  }
});

test("later pauses grow to the ceiling and never above it", () => {
  const without = [6, 7, 8, 9, 1_000, 5_000].map((failures) => retryPauseMs(failures, chance(0)));
  expect(without).toEqual([1_600, 3_200, 4_000, 4_000, 4_000, 4_000]);
  const jittered = [6, 7, 8, 9].map((failures) => retryPauseMs(failures, chance(1)));
  expect(jittered).toEqual([1_280, 2_560, 3_200, 3_200]);
  expect(retryPauseMs(400, chance(0))).toBe(RETRY_PAUSE_MS_MAX);
});

test("slow pauses start at five seconds and end at a minute", () => {
  const pauses = [1, 2, 3, 4, 5, 2_000].map((rounds) => slowPauseMs(rounds, chance(0)));
  expect(pauses).toEqual([5_000, 10_000, 20_000, 40_000, SLOW_PAUSE_MS_MAX, SLOW_PAUSE_MS_MAX]);
});

test("a pause without a failure is our own mistake", () => {
  expect(() => retryPauseMs(0, chance(0))).toThrow("broken assumption");
  expect(() => slowPauseMs(0, chance(0))).toThrow("broken assumption");
});
