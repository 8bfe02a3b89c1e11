/** A row whose columns have versions of their own, as changes. */
import { expect, test } from "bun:test";
import type { Value } from "../../lib/protocol/values.ts";
import type { ColumnNote } from "../../lib/protocol/winner.ts";
import { rowsByVersion } from "../../lib/store/noted-row.ts";

const NAMES = { id: "id", version: "updated_at" };
const text = (value: string): Value => ({ kind: "text", value });
const values = new Map([["name", { name: "name", value: text("x") }]]);
const loser = new Map([
  ["name", text("b")],
  ["size", text("5")],
]);

function changes(note: ColumnNote): unknown[] {
  const row = { id: "r", version: 7, values, notes: new Map([["size", note]]) };
  return rowsByVersion(row, NAMES).map((json) => JSON.parse(new TextDecoder().decode(json)));
}

test("what is the row's own goes with it, whichever change of that version brought it", () => {
  const note = { version: 7, value: text("5"), isOwn: true, source: loser };
  expect(changes(note)).toEqual([{ id: "r", updated_at: 7, name: "x", size: "5" }]);
});

test("what is older, or another change's, goes as the change it came with", () => {
  const own = { id: "r", updated_at: 7, name: "x" };
  const other = { id: "r", name: "b", size: "5" };
  const older = { version: 6, value: text("5"), isOwn: true, source: loser };
  expect(changes(older)).toEqual([{ ...other, updated_at: 6 }, own]);
  const tied = { version: 7, value: text("5"), source: loser };
  expect(changes(tied)).toEqual([own, { ...other, updated_at: 7 }]);
});
