import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { Tombstones } from "../../lib/store/tombstones.ts";
import { removeNodeFiles, TestNode } from "../support/receive-fixture.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);
afterAll(removeNodeFiles);

test("the higher version stays, alone and among many, and each table has its own", async () => {
  const node = new TestNode();
  const tombstones = new Tombstones(node.db);
  tombstones.put("items", "a", 5, 100);
  tombstones.put("items", "a", 4, 200);
  expect(tombstones.versionOf("items", "a")).toBe(5);
  tombstones.putMany(
    "items",
    [
      { id: "a", version: 3 },
      { id: "b", version: -7 },
      { id: "c\0d", version: 2 ** 52 },
    ],
    300,
  );
  tombstones.putMany("items", [{ id: "b", version: 9 }], 400);
  expect([...tombstones.versionsOf("items", ["a", "b", "c\0d", "e"])].sort()).toEqual([
    ["a", 5],
    ["b", 9],
    ["c\0d", 2 ** 52],
  ]);
  expect([
    tombstones.versionOf("other", "a"),
    tombstones.any("other"),
    tombstones.any("items"),
  ]).toEqual([undefined, false, true]);
  expect(tombstones.versionsOf("other", ["a"]).size).toBe(0);
  await node.close();
});

test("those made before a moment are forgotten, a few at a time", async () => {
  const node = new TestNode();
  const tombstones = new Tombstones(node.db);
  for (let i = 0; i < 10; i++) tombstones.put("items", `r${i}`, 1, i);
  expect([tombstones.forget(6, 4), tombstones.forget(6, 4), tombstones.forget(6, 4)]).toEqual([
    4, 2, 0,
  ]);
  expect(node.tombstones()).toEqual(["items/r6@1", "items/r7@1", "items/r8@1", "items/r9@1"]);
  // A later delete of the row makes it young again.
  tombstones.put("items", "r6", 2, 50);
  expect(tombstones.forget(20, 10)).toBe(3);
  expect(tombstones.versionOf("items", "r6")).toBe(2);
  await node.close();
});
