import { expect, test } from "bun:test";
import { AssertionError, assert } from "../../lib/base/assert.ts";

test("what holds passes, what does not names the assumption", () => {
  expect(() => assert(1 + 1 === 2, "sums")).not.toThrow();
  expect(() => assert(undefined, "a row is there")).toThrow(AssertionError);
  expect(() => assert(0, "a row is there")).toThrow("a row is there");
});
