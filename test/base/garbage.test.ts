import { expect, spyOn, test } from "bun:test";
import { Garbage, giveBack } from "../../lib/base/garbage.ts";

test("a collection is asked for each time that bodies of so many bytes are done with", () => {
  let collections = 0;
  const garbage = new Garbage(1_000, () => collections++);
  for (const bytes of [400, 599]) garbage.left(bytes);
  expect(collections).toBe(0);
  garbage.left(1);
  expect(collections).toBe(1);
  garbage.left(5_000);
  expect(collections).toBe(2);
  garbage.left(999);
  expect(collections).toBe(2);
});

test("left to itself it collects beside the work, once the answer is made", async () => {
  const gc = spyOn(Bun, "gc");
  try {
    new Garbage(1_000).left(1_000);
    expect(gc).not.toHaveBeenCalled();
    await new Promise((resolve) => setImmediate(resolve));
    expect(gc.mock.calls).toEqual([[false]]);
  } finally {
    gc.mockRestore();
  }
});

test("the bytes of a large body are given back, unless others lie beside them", () => {
  const body = new Uint8Array(100_000).fill(1);
  giveBack(body);
  expect(body.length).toBe(0);
  const small = new Uint8Array(100).fill(1);
  const part = new Uint8Array(200_000).fill(1).subarray(100_000);
  for (const kept of [small, part]) {
    giveBack(kept);
    expect(kept.at(-1)).toBe(1);
  }
});
