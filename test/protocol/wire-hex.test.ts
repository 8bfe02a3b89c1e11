/** Bytes as they travel: `\x` and an even number of hex digits. */
import { expect, test } from "bun:test";
import { wireHex } from "../../lib/protocol/values.ts";

test.each([
  ["\\x", ""],
  ["\\x00ff", "00ff"],
  ["\\xABcd", "ABcd"],
  ["\\X00", "00"],
  ["\\x0", undefined],
  ["\\x0g", undefined],
  ["\\x00 ", undefined],
  ["\\x00\n", undefined],
  ["x00", undefined],
  [" \\x00", undefined],
  ["", undefined],
])("%j", (text, hex) => expect(wireHex(text)).toBe(hex));

test("a large BLOB does not hold up everything else", () => {
  const text = `\\x${"0f".repeat(8 * 1024 * 1024)}`;
  const beganMs = performance.now();
  expect(wireHex(text)).toHaveLength(16 * 1024 * 1024);
  // Some 20 ms; pair by pair it took 6 s.
  expect(performance.now() - beganMs).toBeLessThan(1_500);
});
