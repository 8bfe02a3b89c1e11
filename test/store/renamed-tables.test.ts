/** A table that is renamed on one node after the other: what comes under its old name is its, meanwhile. */
import { afterAll, expect, test } from "bun:test";
import { type Alteration, alterTable, parseAlteration } from "../../lib/store/alter-table.ts";
import { removeNodeFiles, T, type TestChange, TestNode } from "../support/receive-fixture.ts";

afterAll(removeNodeFiles);

const SCHEMA = "CREATE TABLE old(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER);";
const change = (table: string, id: string, version: number): TestChange => ({
  op: "UPDATE",
  table,
  row: { id, n: version - T, updated_at: version },
  old_id: null,
});
const ids = (node: TestNode, table: string) =>
  node.db
    .query<{ id: string }, []>(`SELECT id FROM ${table} ORDER BY id`)
    .all()
    .map(({ id }) => id);

test.each([
  ["by another program", (node: TestNode) => node.write("ALTER TABLE old RENAME TO new")],
  [
    "by hook-sync alter",
    async (node: TestNode) => {
      alterTable(node.path, parseAlteration("ALTER TABLE old RENAME TO new") as Alteration);
    },
  ],
])("%s", async (_, rename) => {
  const node = new TestNode({ schema: SCHEMA, tables: ["old"] });
  await node.sync([change("old", "a", T)]);
  await rename(node);
  await node.sync([change("Old", "b", T + 1), change("new", "c", T + 2)]);
  expect([ids(node, "new"), node.parked()]).toEqual([["a", "b", "c"], []]);
  await node.write("ALTER TABLE new RENAME TO newer");
  await node.sync([change("old", "d", T + 3), change("new", "e", T + 4)]);
  expect([ids(node, "newer"), node.parked()]).toEqual([["a", "b", "c", "d", "e"], []]);
  // A table of that name is another one, or the old one come back.
  await node.write("CREATE TABLE old(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER)");
  await node.sync([change("old", "f", T + 5)]);
  expect(ids(node, "newer")).toEqual(["a", "b", "c", "d", "e"]);
  await node.close();
});
