/** A table gets a column while changes that carry it, or lack it, are about. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { removeNodeFiles, T, type TestChange, TestNode } from "../support/receive-fixture.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);
afterAll(removeNodeFiles);

const SCHEMA = "CREATE TABLE t(id TEXT PRIMARY KEY, a TEXT, updated_at INTEGER);";

function row(id: string, cells: Record<string, unknown>, version = T): TestChange {
  return { op: "UPDATE", table: "t", row: { id, ...cells, updated_at: version }, old_id: null };
}

const notes = (node: TestNode) =>
  node.count("SELECT count(*) AS n FROM _hooksync_columns WHERE id > ''");
const many = (count: number, make: (id: string) => TestChange) =>
  Array.from({ length: count }, (_, i) => make(`k${i}`));

describe("what came for a column before it was there", () => {
  test.each([
    ["a text", '"x"', "text 'x'"],
    ["a large integer", "9223372036854775807", "integer 9223372036854775807"],
    ["a REAL without a fraction", "1.0", "real 1.0"],
    ["an infinity", "9.0e+999", "real 9.0e+999"],
    ["NULL", "null", "null NULL"],
    ["a BLOB", '"\\\\x00ff"', "blob X'00FF'"],
  ])("is written, uncaptured, the version unchanged: %s", async (_, json, stored) => {
    const node = new TestNode({ schema: SCHEMA });
    const named = json.includes("x00") ? ',"blobs":["c"]' : "";
    await node.sync([
      `{"op":"INSERT","table":"t","row":{"id":"r","a":"a","c":${json},"updated_at":${T}},"old_id":null${named}}`,
    ]);
    await node.write("ALTER TABLE t ADD COLUMN c");
    expect(node.value("r", "c", "t").join(" ")).toBe(stored);
    expect([node.row<{ updated_at: number }>("r", "t")?.updated_at, node.log()]).toEqual([T, []]);
    await node.close();
  });

  test("text that is not UTF-8, too", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([
      `{"op":"INSERT","table":"t","row":{"id":"r","c":"\\\\xff61","updated_at":${T}},"texts":["c"]}`,
    ]);
    await node.write("ALTER TABLE t ADD COLUMN c");
    expect(
      node.count("SELECT count(*) AS n FROM t WHERE typeof(c) = 'text' AND hex(c) = 'FF61'"),
    ).toBe(1);
    await node.close();
  });

  test("of several changes the newest that carried it", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([
      row("r", { a: "1", c: "old" }),
      row("r", { a: "2", c: "new" }, T + 1),
      row("r", { a: "3" }, T + 2),
    ]);
    await node.sync([row("r", { a: "0", c: "older" }, T - 1)]);
    await node.write("ALTER TABLE t ADD COLUMN c TEXT DEFAULT 'none'");
    expect(node.row("r", "t")).toEqual({ id: "r", a: "3", c: "new", updated_at: T + 2 });
    await node.close();
  });

  test("nothing of what was deleted meanwhile, here or elsewhere", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([row("here", { a: "1", c: "x" }), row("there", { a: "1", c: "x" })]);
    await node.write("DELETE FROM t WHERE id = 'here'");
    await node.sync([
      { op: "DELETE", table: "t", row: { id: "there", updated_at: T }, old_id: "there" },
    ]);
    expect(notes(node)).toBe(0);
    await node.write("INSERT INTO t(id, a) VALUES ('here', '2'), ('there', '2')");
    await node.write("ALTER TABLE t ADD COLUMN c TEXT");
    expect(node.db.query("SELECT c FROM t").values()).toEqual([[null], [null]]);
    await node.close();
  });

  test("also when the column was added while the node was down, and written before it started", async () => {
    const first = new TestNode({ schema: SCHEMA });
    await first.sync([row("r", { a: "1", c: "came" }), row("s", { a: "1", c: "came" })]);
    await first.close();
    first.app.run(
      "ALTER TABLE t ADD COLUMN c TEXT; UPDATE t SET c = 'written here' WHERE id = 's'",
    );
    const node = new TestNode({ path: first.path });
    expect(node.db.query("SELECT id, c FROM t ORDER BY id").values()).toEqual([
      ["r", "came"],
      ["s", "written here"],
    ]);
    expect(node.log().map(({ row_id }) => row_id)).toEqual(["s"]);
    await node.close();
    await first.close().catch(() => undefined);
  });

  test("a value that the column refuses is parked, and the node goes on", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([row("bad", { a: "1", c: -1 }), row("good", { a: "1", c: 5 })]);
    await node.write("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 0 CHECK (c >= 0)");
    expect(node.db.query("SELECT id, c FROM t ORDER BY id").values()).toEqual([
      ["bad", 0],
      ["good", 5],
    ]);
    const [entry] = node.parked();
    expect([entry?.code, entry?.row_id, JSON.parse(entry!.change).row]).toEqual([
      "constraint",
      "bad",
      { id: "bad", c: -1, updated_at: T },
    ]);
    expect(await node.sync([row("bad", { a: "2", c: 7 }, T + 1)])).toBe(1);
    // A newer change that the column takes makes it stale, and it is done with.
    expect([node.row<{ c: number }>("bad", "t")?.c, node.parked()]).toEqual([7, []]);
    await node.close();
  });
});

describe("a column that was added to a table with rows", () => {
  test("counts as never carried for them: an older change that carries it still writes it", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync(many(30, (id) => row(id, { a: "newer" }, T + 5)));
    await node.write("ALTER TABLE t ADD COLUMN c TEXT");
    expect(await node.sync(many(30, (id) => row(id, { a: "older", c: "x" }, T)))).toBe(30);
    expect(node.count("SELECT count(*) AS n FROM t WHERE a = 'newer' AND c = 'x'")).toBe(30);
    // Once carried, at that version.
    expect(await node.sync(many(30, (id) => row(id, { a: "older", c: "y" }, T - 1)))).toBe(0);
    expect(await node.sync(many(30, (id) => row(id, { a: "older", c: "z" }, T + 1)))).toBe(30);
    expect(node.count("SELECT count(*) AS n FROM t WHERE c = 'z'")).toBe(30);
    await node.close();
  });

  test("costs no entry per row, and newer whole rows none either", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync(many(300, (id) => row(id, { a: "x" })));
    await node.write("ALTER TABLE t ADD COLUMN c TEXT");
    expect(notes(node)).toBe(0);
    await node.sync(many(300, (id) => row(id, { a: "y", c: "c" }, T + 1)));
    expect(notes(node)).toBe(0);
    // Carried at T + 1 now: an older one no longer counts.
    expect(await node.sync(many(300, (id) => row(id, { a: "z", c: "d" }, T)))).toBe(0);
    await node.close();
  });

  test("was carried by what was written here since, also with an old stamp", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([row("old", { a: "x" }, T + 9)]);
    await node.write("ALTER TABLE t ADD COLUMN c TEXT");
    await node.write(`INSERT INTO t(id, a, c, updated_at) VALUES ('own', 'a', 'mine', ${T - 5})`);
    expect(await node.sync([row("own", { a: "b", c: "theirs" }, T - 6)])).toBe(0);
    expect(node.row<{ c: string }>("own", "t")?.c).toBe("mine");
    await node.close();
  });

  test("survives renames of the column and of the table", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([row("r", { a: "newer" }, T + 5)]);
    await node.write("ALTER TABLE t ADD COLUMN c TEXT");
    await node.write("ALTER TABLE t RENAME COLUMN c TO d");
    await node.write("ALTER TABLE t RENAME TO u");
    const older = {
      op: "UPDATE",
      table: "u",
      row: { id: "r", a: "older", d: "x", updated_at: T },
      old_id: null,
    };
    expect(await node.sync([older])).toBe(1);
    expect(node.row("r", "u")).toEqual({ id: "r", a: "newer", d: "x", updated_at: T + 5 });
    await node.close();
  });

  test("an empty table has nothing to remember", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.write("ALTER TABLE t ADD COLUMN c TEXT");
    expect(await node.sync([row("r", { a: "x" }, T + 5), row("r", { a: "y", c: "c" }, T)])).toBe(2);
    expect(node.row("r", "t")).toEqual({ id: "r", a: "x", c: "c", updated_at: T + 5 });
    await node.close();
  });
});

test("what is noted of a column goes when a winner carries it, on nodes with and without the column", async () => {
  for (const schema of [SCHEMA, SCHEMA.replace("a TEXT", "a TEXT, c TEXT")]) {
    const node = new TestNode({ schema });
    await node.sync([row("r", { a: "1", c: "x" }), row("r", { a: "2" }, T + 1)]);
    expect(notes(node)).toBe(1);
    await node.sync([row("r", { a: "3", c: "y" }, T + 2)]);
    // The node that lacks it keeps the value in its note.
    expect(notes(node)).toBe(schema === SCHEMA ? 1 : 0);
    await node.close();
  }
});

test("a whole fleet with one schema notes nothing at all", async () => {
  const node = new TestNode();
  await node.sync(
    many(200, (id) => ({
      op: "INSERT",
      table: "items",
      row: { id, name: "x", value: 1, created_at: 1, updated_at: T, node_id: "a" },
    })),
  );
  await node.write("UPDATE items SET value = 2");
  expect(notes(node)).toBe(0);
  await node.close();
});
