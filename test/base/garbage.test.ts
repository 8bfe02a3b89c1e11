import { expect, spyOn, test } from "bun:test";
import { Garbage } from "../../lib/base/garbage.ts";

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
