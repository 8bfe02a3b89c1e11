import { expect, test } from "bun:test";
import { systemRandom } from "../../lib/base/random.ts";

test("ids are UUIDv7 and rise, also within a millisecond", () => {
  const ids = Array.from({ length: 10_000 }, () => systemRandom.uuid());
  const form = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
  expect(ids.filter((id) => !form.test(id))).toEqual([]);
  expect(ids.filter((id, at) => at > 0 && id <= ids[at - 1]!)).toEqual([]);
});

test("hex has two digits a byte and does not repeat", () => {
  const texts = Array.from({ length: 100 }, () => systemRandom.hex(8));
  expect(texts.filter((text) => !/^[0-9a-f]{16}$/.test(text))).toEqual([]);
  expect(new Set(texts).size).toBe(100);
});

test("chance is at least 0 and below 1", () => {
  const draws = Array.from({ length: 1_000 }, () => systemRandom.next());
  expect(draws.filter((draw) => draw < 0 || draw >= 1)).toEqual([]);
  expect(new Set(draws).size).toBeGreaterThan(900);
});
