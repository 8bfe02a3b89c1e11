import { expect, test } from "bun:test";
import { parseBatch } from "../../lib/protocol/batch.ts";
import { supersededIn } from "../../lib/store/superseded.ts";

/** What has a member `unsound` in its row will be parked. */
function read(changes: readonly unknown[]) {
  const text = JSON.stringify({ batch_id: 1, changes });
  const batch = parseBatch(new TextEncoder().encode(text)).changes;
  return supersededIn(batch, (at) => !batch[at]!.source().includes("unsound"));
}

const change = (
  id: string,
  version: unknown,
  more: object = {},
  op = "UPDATE",
  table = "items",
) => ({
  op,
  table,
  row: { id, updated_at: version, ...more },
});

function gone(changes: readonly unknown[]): number[] {
  const superseded = read(changes);
  return changes.flatMap((_, at) => (superseded.has(at) ? [at] : []));
}

test.each<[string, unknown[], number[]]>([
  ["an edit at the same stamp", [change("a", 1), change("a", 1)], [0]],
  ["a delete at the same stamp", [change("a", 1), change("a", 1, {}, "DELETE")], [0]],
  [
    "a row made again after its delete",
    [change("a", 1, {}, "DELETE"), change("a", 1, {}, "INSERT")],
    [0],
  ],
  [
    "several, one after the other",
    [change("a", 1), change("b", 1), change("a", 1), change("a", 1)],
    [0, 2],
  ],
  [
    "whatever the case of its table and columns",
    [
      { op: "INSERT", table: "Items", row: { ID: "a", Updated_At: 1 } },
      { op: "UPDATE", table: "items", row: { ID: "a", Updated_At: 1 } },
    ],
    [0],
  ],
  ["not another stamp", [change("a", 1), change("a", 2)], []],
  ["not another stamp between", [change("a", 1), change("a", 2), change("a", 1)], []],
  ["not another row", [change("a", 1), change("b", 1)], []],
  ["not another table", [change("a", 1), change("a", 1, {}, "UPDATE", "other")], []],
  ["not by a row that lacks columns", [change("a", 1, { name: "x" }), change("a", 1)], []],
  ["not by a row of other columns", [change("a", 1, { n: 1 }), change("a", 1, { m: 1 })], []],
  [
    "not by a delete that means another row",
    [change("a", 1), { ...change("a", 1, {}, "DELETE"), old_id: "b" }],
    [],
  ],
  ["not by what will be parked", [change("a", 1), change("a", 1, { unsound: 1 })], []],
  [
    "nor what will be parked itself",
    [change("a", 1, { unsound: 1 }), change("a", 1, { unsound: 1 }), change("a", 1)],
    [],
  ],
  [
    "what stands before and after one that will be parked",
    [
      change("a", 1),
      change("a", 1, { unsound: 1 }),
      change("a", 2, { unsound: 1 }),
      change("a", 1),
    ],
    [0],
  ],
  ["not by an unknown operation", [change("a", 1), change("a", 1, {}, "UPSERT")], []],
  [
    "not where the stamp is none",
    [change("a", "x"), change("a", "x"), change("a", null), change("a", null)],
    [],
  ],
  ["not what is no change", [null, 5, {}, { op: "UPDATE" }, change("a", 1, {}, "DELETE")], []],
])("replaced: %s", (_, changes, expected) => {
  expect(gone(changes)).toEqual(expected);
});

test("a change knows what it replaced, the latest first", () => {
  const superseded = read([change("a", 1), change("a", 1), change("b", 1), change("a", 1)]);
  expect([superseded.by(3), superseded.by(1), superseded.by(2), superseded.by(0)]).toEqual([
    [1, 0],
    [0],
    [],
    [],
  ]);
});
