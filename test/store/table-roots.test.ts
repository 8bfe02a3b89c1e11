import { expect, test } from "bun:test";
import { TestNode } from "../support/receive-fixture.ts";

const T = 1_700_000_000_000;

/** SQLite's own advice for larger changes, with the triggers copied over as they are. */
function rebuild(node: TestNode, select: string): string {
  const triggers = node.store.db
    .query<{ sql: string }, []>(
      "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'items'",
    )
    .all()
    .map(({ sql }) => sql);
  const { sql } = node.store.db
    .query<{ sql: string }, []>("SELECT sql FROM sqlite_master WHERE name = 'items'")
    .get()!;
  return `BEGIN; ${sql.replace(/\bitems\b/, "items_new")}; INSERT INTO items_new ${select};
    DROP TABLE items; ALTER TABLE items_new RENAME TO items; ${triggers.join(";\n")}; COMMIT`;
}

test("a table made anew with our triggers copied over is announced, one version up", async () => {
  const node = new TestNode();
  await node.write(`INSERT INTO items(id, name, updated_at) VALUES ('a', 'before', ${T})`);
  const { settledThrough } = node.store;
  const columns = node.store.table("items")!.columns.map(({ name }) => name);
  const select = columns.map((name) => (name === "name" ? "'after'" : name)).join(", ");
  await node.write(rebuild(node, `SELECT ${select} FROM items`));
  await node.tick();
  const log = node.store.db
    .query<{ row_data: string }, [number]>("SELECT row_data FROM _changes WHERE change_id > ?")
    .all(settledThrough);
  expect(log.map(({ row_data }) => JSON.parse(row_data))).toEqual([
    expect.objectContaining({ id: "a", name: "after", updated_at: T + 1 }),
  ]);
});

test("VACUUM moves every table and announces none", async () => {
  const node = new TestNode();
  await node.write(`INSERT INTO items(id, name, updated_at) VALUES ('a', 'x', ${T})`);
  await node.write(
    "CREATE TABLE other(x); INSERT INTO other VALUES (zeroblob(100000)); DROP TABLE other",
  );
  const { settledThrough } = node.store;
  await node.write("VACUUM");
  await node.tick();
  expect(node.store.log.newest()).toBe(settledThrough);
});
