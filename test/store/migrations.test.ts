/** Our tables beside those of the contract: made, added to, and never forced on somebody else's. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import {
  dropOwnTables,
  dropSetting,
  migrate,
  refuseOtherShapes,
  setSetting,
  setting,
  wasOurs,
  wasSynced,
} from "../../lib/store/migrations.ts";

/** As nodes of other makes lay them out, and the oldest of them. */
const CONTRACT = `
  CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER); INSERT INTO _meta VALUES('syncing', 0);
  CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, table_name TEXT, row_id TEXT, row_data TEXT);
  CREATE TABLE _dead_letter(dead_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT, failed_at INTEGER, retry_count INTEGER DEFAULT 0);
  CREATE TABLE _peer_state(peer_url TEXT PRIMARY KEY, last_acked INTEGER DEFAULT 0)`;
const OLDEST = CONTRACT.replace("table_name TEXT, ", "");

function database(sql = ""): Database {
  const db = new Database(":memory:", { strict: true });
  db.run(sql || "SELECT 1");
  return db;
}

function columns(db: Database, table: string): unknown[] {
  return db.query("SELECT name FROM pragma_table_info(?)").values(table).flat();
}

function schema(db: Database): unknown[][] {
  return db
    .query("SELECT type, name, sql FROM sqlite_master ORDER BY name")
    .values() as unknown[][];
}

test.each([
  ["an empty file", ""],
  ["a file of another node", CONTRACT],
  ["a file of the oldest layout", OLDEST],
])("%s gets what it lacks; a repeat changes nothing", (_, sql) => {
  const db = database(sql);
  expect([wasSynced(db), wasOurs(db)]).toEqual([sql !== "", false]);
  refuseOtherShapes(db);
  migrate(db);
  const made = schema(db);
  expect([wasSynced(db), wasOurs(db)]).toEqual([true, true]);
  expect(columns(db, "_changes")).toEqual(
    expect.arrayContaining(["change_id", "op", "table_name", "row_id", "row_data", "was"]),
  );
  expect(columns(db, "_peer_state").slice(0, 2)).toEqual(["peer_url", "last_acked"]);
  expect(db.query("SELECT key, value FROM _meta").values()).toEqual([["syncing", 0]]);
  refuseOtherShapes(db);
  migrate(db);
  expect(schema(db)).toEqual(made);
});

test("a schema may bring _meta along without its row: the flag is put in, and nothing counts as unseen", () => {
  const db = database("CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER)");
  migrate(db);
  expect(db.query("SELECT key, value FROM _meta").values()).toEqual([["syncing", 0]]);
  // Where a node used the file, its triggers captured nothing without the row: settling must see that.
  db.run("DELETE FROM _meta");
  migrate(db);
  expect(db.query("SELECT * FROM _meta").values()).toEqual([]);
  db.close();
});

test("what the oldest nodes log, before and after, is of items", () => {
  const db = database(`${OLDEST}; INSERT INTO _changes(op, row_id) VALUES('INSERT', 'a')`);
  migrate(db);
  db.run("INSERT INTO _changes(op, row_id) VALUES('INSERT', 'b')");
  expect(db.query("SELECT table_name FROM _changes").values()).toEqual([["items"], ["items"]]);
});

test("what other nodes insert still goes in", () => {
  const db = database();
  migrate(db);
  db.run(`INSERT INTO _changes(op, table_name, row_id, row_data) VALUES('INSERT', 'items', 'a', '{}');
    INSERT INTO _dead_letter(op, row_id, row_data, failed_at) VALUES('INSERT', 'a', '{}', 5);
    INSERT OR IGNORE INTO _peer_state(peer_url) VALUES('http://b');
    INSERT OR IGNORE INTO _meta(key, value) VALUES('syncing', 0)`);
  expect(db.query("SELECT retry_count FROM _dead_letter").values()).toEqual([[0]]);
  expect(db.query("SELECT last_acked FROM _peer_state").values()).toEqual([[0]]);
});

test("a flag that is gone, or up, is left for settling to see", () => {
  for (const spoil of ["DELETE FROM _meta", "UPDATE _meta SET value = 1"]) {
    const db = database(`${CONTRACT}; ${spoil}`);
    const before = db.query("SELECT * FROM _meta").values();
    migrate(db);
    expect(db.query("SELECT * FROM _meta").values()).toEqual(before);
  }
});

test.each([
  [
    "a _meta without our columns",
    "CREATE TABLE _meta(name TEXT, setting TEXT)",
    "_meta without the column key, value",
  ],
  [
    "a _meta without a key",
    "CREATE TABLE _meta(key TEXT, value INTEGER)",
    "_meta whose key is not key",
  ],
  ["a view", "CREATE VIEW _Meta AS SELECT 1 AS key, 2 AS value", "view _meta"],
  ["an index", "CREATE TABLE t(a); CREATE INDEX _changes ON t(a)", "index _changes"],
  [
    "a _changes without rows",
    "CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT)",
    "_changes without the column row_id, row_data",
  ],
  [
    "a _changes that is not numbered on",
    "CREATE TABLE _changes(change_id INTEGER PRIMARY KEY, op, row_id, row_data, note DEFAULT 'AUTOINCREMENT')",
    "_changes without AUTOINCREMENT",
  ],
  [
    "a _changes of another key",
    "CREATE TABLE _changes(n INTEGER PRIMARY KEY AUTOINCREMENT, change_id, op, row_id, row_data)",
    "_changes whose key is not change_id",
  ],
  [
    "a _changes that demands more",
    "CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op, row_id, row_data, who TEXT NOT NULL)",
    "_changes that demands a who",
  ],
  [
    "a _dead_letter of another program",
    "CREATE TABLE _dead_letter(dead_id INTEGER PRIMARY KEY AUTOINCREMENT, op, row_id)",
    "_dead_letter without the column row_data",
  ],
  [
    "a _peer_state of another program",
    "CREATE TABLE _peer_state(peer TEXT PRIMARY KEY)",
    "_peer_state without the column peer_url, last_acked",
  ],
])("%s is refused and stays as it is", (_, sql, reason) => {
  const db = database(sql);
  const before = schema(db);
  expect(() => refuseOtherShapes(db)).toThrow(reason);
  expect(schema(db)).toEqual(before);
});

test("columns and demands that do no harm are not refused", () => {
  const db = database(
    "CREATE TABLE _Changes(CHANGE_ID INTEGER PRIMARY KEY AUTOINCREMENT, Op TEXT NOT NULL, row_id, row_data NOT NULL, at INTEGER NOT NULL DEFAULT 0)",
  );
  refuseOtherShapes(db);
  migrate(db);
  expect(columns(db, "_changes")).toContain("was");
});

test("a file of a newer hook-sync is refused", () => {
  const db = database();
  migrate(db);
  setSetting(db, "level", 99);
  expect(() => refuseOtherShapes(db)).toThrow("newer hook-sync");
});

test("settings are kept, replaced and dropped", () => {
  const db = database();
  migrate(db);
  expect(setting(db, "x")).toBeNull();
  setSetting(db, "x", 5);
  setSetting(db, "x", "five");
  expect(setting(db, "x")).toBe("five");
  dropSetting(db, "x");
  expect(setting(db, "x")).toBeNull();
});

test("all of ours and of the contract can be taken out, and nothing else", () => {
  const db = database("CREATE TABLE items(id); CREATE TABLE _hook(a); CREATE TABLE hooksync(a)");
  const before = schema(db);
  migrate(db);
  dropOwnTables(db);
  expect(schema(db).filter(([, name]) => name !== "sqlite_sequence")).toEqual(before);
});
