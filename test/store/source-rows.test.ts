/** Rows of a source as a node's own: what is written, what is not, and what the node tells of it. */
import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import type { SqlValue } from "../../lib/base/sql-value.ts";
import type { SourceRows, SourceTable } from "../../lib/store/source-rows.ts";
import { StoreFile } from "../support/open-store.ts";

const NOTES =
  "CREATE TABLE notes (id TEXT PRIMARY KEY, body, mail TEXT UNIQUE, updated_at INTEGER)";
const BARE = "CREATE TABLE bare (id TEXT PRIMARY KEY, body)";

/** A source's schema, and its tables as they come. */
function shapeOf(...sql: string[]): { shape: Database; tables: SourceTable[] } {
  const shape = new Database(":memory:");
  for (const each of sql) shape.run(each);
  const tables = shape
    .query<{ name: string; sql: string }, []>(
      "SELECT name, sql FROM sqlite_schema WHERE type = 'table'",
    )
    .all()
    .map(({ name, sql: text }) => {
      const columns = shape
        .query<SourceTable["columns"][number], [string]>(
          "SELECT name, type, dflt_value AS defaultSql FROM pragma_table_info(?)",
        )
        .all(name);
      return { name, sql: text, columns };
    });
  return { shape, tables };
}

/** One transaction of a source. */
async function take<T>(file: StoreFile, rows: SourceRows, work: (nowMs: number) => T): Promise<T> {
  return file.store.queue.run("source", ({ nowMs }) => {
    rows.begin(nowMs);
    const done = work(nowMs);
    rows.end(nowMs);
    return done;
  });
}

async function follow(file: StoreFile, ...sql: string[]) {
  const rows = file.store.takeFromSource();
  const { shape, tables } = shapeOf(...sql);
  await take(file, rows, (nowMs) => rows.admit(tables, shape, nowMs));
  const [table] = tables;
  const put = (rowid: bigint, ...values: SqlValue[]) =>
    take(file, rows, () => rows.put(table!, rowid, values));
  const remove = (rowid: bigint) => take(file, rows, () => rows.remove(table!, { rowid, key: [] }));
  return { rows, table: table!, put, remove };
}

async function empty(sql?: string): Promise<StoreFile> {
  const file = new StoreFile(sql);
  file.open({ makesDefaultTable: false, asked: sql === undefined ? undefined : ["notes"] });
  return file;
}

describe("a table of the source", () => {
  test("is made, synced and captured in the transaction it comes in", async () => {
    await using file = await empty();
    const rows = file.store.takeFromSource();
    const { shape, tables } = shapeOf(NOTES);
    await take(file, rows, (nowMs) => {
      rows.admit(tables, shape, nowMs);
      rows.put(tables[0]!, 1n, ["a", 1.0, null, 7n]);
    });
    await file.runDue();
    // Once: what was captured is not announced again.
    expect(file.log()).toEqual(["INSERT a"]);
    expect(file.rows("SELECT id, typeof(body) AS t, updated_at FROM notes")).toEqual([
      { id: "a", t: "real", updated_at: 7 },
    ]);
  });

  test("without updated_at gets one, and versions are given here", async () => {
    await using file = await empty();
    const { put } = await follow(file, BARE);
    await put(1n, "a", "x");
    const at = file.clock.ms;
    expect(file.rows("SELECT updated_at FROM bare")).toEqual([{ updated_at: at }]);
    await put(1n, "a", "y");
    expect(file.rows("SELECT body, updated_at FROM bare")).toEqual([
      { body: "y", updated_at: at + 1 },
    ]);
  });

  test.each([
    ["CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at INTEGER)", "must be TEXT"],
    ["CREATE TABLE t (a TEXT, b TEXT, PRIMARY KEY (a, b))", "no column id"],
    ["CREATE TABLE _changes (id TEXT PRIMARY KEY, updated_at INTEGER)", "hook-sync's own"],
  ])("%s stays out, with the reason", async (sql, reason) => {
    await using file = await empty();
    const { rows, put } = await follow(file, sql);
    await put(1n, "1", "2");
    expect(rows.remarks).toEqual([expect.stringContaining(reason)]);
    expect(file.rows("SELECT name FROM sqlite_schema WHERE name = 't'")).toEqual([]);
  });

  test("that is here already gets the columns it lacks, and keeps its own", async () => {
    await using file = await empty(
      "CREATE TABLE notes (id TEXT PRIMARY KEY, updated_at INTEGER, own DEFAULT 'mine')",
    );
    const { put } = await follow(file, NOTES);
    await put(1n, "a", "x", "m", 5n);
    expect(file.rows("SELECT id, own, body, mail FROM notes")).toEqual([
      { id: "a", own: "mine", body: "x", mail: "m" },
    ]);
  });

  test("that gets a column with a DEFAULT has it in every row of the source, which is told", async () => {
    await using file = await empty(`${NOTES}; INSERT INTO notes VALUES ('mine', 'm', NULL, 3)`);
    const { rows, put } = await follow(file, NOTES);
    await put(1n, "a", "x", null, 1n);
    const after = file.entries().at(-1)!.change_id;
    const { shape, tables } = shapeOf(NOTES, "ALTER TABLE notes ADD COLUMN w DEFAULT 1.0");
    await take(file, rows, (nowMs) => rows.admit(tables, shape, nowMs));
    expect(file.rows("SELECT id, typeof(w) AS t FROM notes ORDER BY id")).toEqual([
      { id: "a", t: "real" },
      { id: "mine", t: "null" },
    ]);
    expect(file.log(after)).toEqual(["UPDATE a"]);
  });

  test("that is not among --tables is not taken", async () => {
    await using file = new StoreFile();
    file.open({ makesDefaultTable: false, asked: ["other"] });
    const { rows } = await follow(file, NOTES);
    expect(rows.remarks).toEqual([expect.stringContaining("--tables")]);
  });
});

describe("a row of the source", () => {
  test("is found by its rowid there, also when its id changes", async () => {
    await using file = await empty();
    const { put, remove } = await follow(file, NOTES);
    await put(1n, "a", "x", null, 1n);
    await put(2n, "b", "x", null, 1n);
    await put(1n, "c", "x", null, 2n);
    await remove(2n);
    expect(file.rows("SELECT id FROM notes")).toEqual([{ id: "c" }]);
    const told = ["INSERT a", "INSERT b", "DELETE a", "INSERT c", "DELETE b"];
    expect(file.log().toSorted()).toEqual(told.toSorted());
  });

  test("wins over what the mesh had, whatever its stamp", async () => {
    await using file = await empty(`${NOTES}; INSERT INTO notes VALUES ('a', 'mesh', NULL, 900)`);
    const { put } = await follow(file, NOTES);
    await put(1n, "a", "source", null, 5n);
    expect(file.rows("SELECT body, updated_at FROM notes")).toEqual([
      { body: "source", updated_at: file.clock.ms },
    ]);
  });

  test("that is here like this already is not written", async () => {
    await using file = await empty(`${NOTES}; INSERT INTO notes VALUES ('a', 1.0, NULL, 900)`);
    const { put } = await follow(file, NOTES);
    await put(1n, "a", 1.0, null, 900n);
    expect(file.log()).toEqual([]);
    // Of another kind it is another value.
    await put(1n, "a", 1n, null, 900n);
    expect(file.log()).toEqual(["UPDATE a"]);
  });

  test("throws out what has its unique value, which is told as a delete", async () => {
    await using file = await empty();
    const { put } = await follow(file, NOTES);
    await put(1n, "a", "x", "m", 1n);
    await put(2n, "b", "x", "m", 1n);
    expect(file.rows("SELECT id FROM notes")).toEqual([{ id: "b" }]);
    await file.settle();
    expect(file.log().toSorted()).toEqual(["DELETE a", "INSERT a", "INSERT b"]);
  });

  test("is unique here as there, also by an index that comes and goes", async () => {
    await using file = await empty(`${NOTES.replace(" UNIQUE", "")}`);
    const { rows, put } = await follow(file, NOTES);
    await put(1n, "a", "x", "m", 1n);
    await put(2n, "b", "x", "m", 1n);
    expect(file.rows("SELECT id FROM notes")).toEqual([{ id: "b" }]);
    const { shape, tables } = shapeOf(NOTES.replace(" UNIQUE", ""));
    await take(file, rows, (nowMs) => rows.admit(tables, shape, nowMs));
    await take(file, rows, () => rows.put(tables[0]!, 3n, ["c", "x", "m", 1n]));
    expect(file.rows("SELECT id FROM notes")).toEqual([{ id: "b" }, { id: "c" }]);
  });

  test("that a rule of this file forbids is counted, and the others come", async () => {
    await using file = await empty(
      "CREATE TABLE notes (id TEXT PRIMARY KEY, body CHECK (body <> 'bad'), updated_at INTEGER)",
    );
    const { rows, put } = await follow(file, NOTES);
    await put(1n, "a", "bad", null, 1n);
    await put(2n, "b", "good", null, 1n);
    await put(3n, null, "no id", null, 1n);
    expect(file.rows("SELECT id FROM notes")).toEqual([{ id: "b" }]);
    expect(rows.refused).toMatchObject([{ table: "notes", rows: 2 }]);
  });

  test("does nothing to rows of others that a cascade would reach", async () => {
    await using file = await empty();
    const child = `CREATE TABLE child (id TEXT PRIMARY KEY, note TEXT REFERENCES notes(id) ON DELETE CASCADE,
      updated_at INTEGER)`;
    const { rows, put, remove } = await follow(file, NOTES, child);
    await put(1n, "a", "x", null, 1n);
    const { tables } = shapeOf(NOTES, child);
    await take(file, rows, () => rows.put(tables[1]!, 1n, ["k", "a", 1n]));
    await remove(1n);
    expect(file.rows("SELECT id FROM child")).toEqual([{ id: "k" }]);
  });
});

describe("everything again", () => {
  async function copied() {
    const file = await empty();
    const { rows, table, put } = await follow(file, NOTES);
    for (const [n, id] of ["a", "b", "c"].entries()) await put(BigInt(n), id, "x", null, 1n);
    file.write(`INSERT INTO notes VALUES ('mine', 'own', NULL, 3);
      UPDATE notes SET body = 'edited', updated_at = 9 WHERE id = 'a'`);
    await file.settle();
    const after = file.entries().at(-1)!.change_id;
    return { file, rows, table, after };
  }

  test("writes what the source changed, deletes what it has no longer, and leaves the rest", async () => {
    const { file, rows, table, after } = await copied();
    await using _ = file;
    await take(file, rows, () => {
      rows.sweep();
      // Numbered anew: rowid 0 was a's.
      rows.put(table, 0n, ["b", "changed", null, 2n]);
      rows.put(table, 1n, ["a", "x", null, 1n]);
      while (rows.sweepOut(1));
    });
    expect(file.rows("SELECT id, body FROM notes ORDER BY id")).toEqual([
      { id: "a", body: "edited" },
      { id: "b", body: "changed" },
      { id: "mine", body: "own" },
    ]);
    expect(file.log(after).toSorted()).toEqual(["DELETE c", "UPDATE b"]);
    await take(file, rows, () => rows.remove(table, { rowid: 1n, key: [] }));
    expect(file.rows("SELECT id FROM notes")).toEqual([{ id: "b" }, { id: "mine" }]);
  });

  test("of one table leaves the others alone", async () => {
    const { file, rows } = await copied();
    await using _ = file;
    await take(file, rows, () => {
      rows.sweep("other");
      expect(rows.sweepOut(10)).toBe(false);
    });
    expect(file.rows("SELECT count(*) AS n FROM notes")).toEqual([{ n: 4 }]);
  });

  test("is undone with its transaction", async () => {
    const { file, rows, after } = await copied();
    await using _ = file;
    const failing = take(file, rows, () => {
      rows.sweep();
      rows.setPosition("far");
      while (rows.sweepOut(10));
      throw new Error("full");
    });
    await expect(failing).rejects.toThrow("full");
    rows.forget();
    expect(rows.state.position).toBeNull();
    expect(file.log(after)).toEqual([]);
    expect(file.rows("SELECT count(*) AS n FROM notes")).toEqual([{ n: 4 }]);
  });
});

test("rows that come back under the versions they got here are a circle", async () => {
  await using file = await empty(`${NOTES}; INSERT INTO notes VALUES ('a', 'mesh', NULL, 900)`);
  const { rows, put } = await follow(file, NOTES);
  for (let n = 0; n < 3; n++) {
    expect(rows.isCircle).toBe(false);
    await put(1n, "a", `older ${n}`, null, 5n);
    const [row] = file.rows<{ updated_at: number }>("SELECT updated_at FROM notes");
    // The mesh brings it to the source, and the source tells of it after something else.
    await put(1n, "a", "between", null, 6n);
    await put(1n, "a", `older ${n}`, null, BigInt(row!.updated_at));
  }
  expect(rows.isCircle).toBe(true);
});

test("a source that writes a row again and again with its own stamps is none", async () => {
  await using file = await empty(`${NOTES}; INSERT INTO notes VALUES ('a', 'mesh', NULL, 900)`);
  const { rows, put } = await follow(file, NOTES);
  for (let n = 0n; n < 20n; n++) await put(1n, "a", "x", null, 890n + n);
  for (let n = 0; n < 5; n++) {
    await put(2n, "b", "x", null, 7n);
    await put(2n, "b", "y", null, 7n);
  }
  expect(rows.isCircle).toBe(false);
});
