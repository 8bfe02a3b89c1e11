/** Which tables qualify where triggers and odd stamps are involved, and that the remedies printed work. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { type Survey, survey, surveyAll } from "../../lib/store/catalog.ts";

function database(sql: string): Database {
  const db = new Database(":memory:");
  db.run(sql);
  return db;
}

function names({ synced }: Survey): string[] {
  return [...synced.keys()];
}

const FTS = `
  CREATE TABLE docs(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
  CREATE VIRTUAL TABLE docs_fts USING fts5(body, content = 'docs', content_rowid = 'rowid');
  CREATE TRIGGER docs_ai AFTER INSERT ON docs
  BEGIN INSERT INTO docs_fts(rowid, body) VALUES (NEW.rowid, NEW.body); END;`;

const AUDIT = `
  CREATE TABLE orders(id TEXT PRIMARY KEY, state TEXT, updated_at INTEGER);
  CREATE TRIGGER orders_log AFTER UPDATE ON orders
  BEGIN INSERT INTO audit(what) VALUES (NEW.id || ': ' || NEW.state); END;`;

test.each([
  ["an FTS5 index", FTS, ["docs"]],
  [
    "an audit table with numbers as keys",
    `${AUDIT} CREATE TABLE audit(n INTEGER PRIMARY KEY, what TEXT)`,
    ["orders"],
  ],
])("'*' takes a table whose trigger writes %s", (_, sql, expected) => {
  const found = surveyAll(database(sql));
  expect(names(found)).toEqual(expected);
  expect(found.notSynced.filter(({ reason }) => reason.includes("trigger"))).toEqual([]);
});

test("an audit table that qualifies makes the table whose trigger writes it differ", () => {
  const sql = `${AUDIT} CREATE TABLE audit(id TEXT PRIMARY KEY, what TEXT, updated_at INTEGER)`;
  const all = surveyAll(database(sql));
  expect(names(all)).toEqual(["audit"]);
  expect(all.notSynced[0]?.reason).toContain("orders_log writes audit");
  const alone = survey(database(sql), { all: false, names: ["orders"] });
  expect(names(alone)).toEqual(["orders"]);
});

test("the guarded trigger that is printed works before the file was ever a node's", () => {
  const db = database(
    `CREATE TABLE notes(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
     CREATE TRIGGER notes_touch AFTER UPDATE ON notes WHEN NEW.body <> OLD.body
     BEGIN UPDATE notes SET updated_at = 7 WHERE id = NEW.id; END;`,
  );
  const [refused] = surveyAll(db).notSynced;
  expect(refused?.reason).toContain("notes_touch writes notes");
  db.run(refused!.remedy);
  expect(names(surveyAll(db))).toEqual(["notes"]);
  db.run("INSERT INTO notes VALUES ('a', 'x', 1)");
  db.run("UPDATE notes SET body = 'y'");
  db.run("UPDATE notes SET updated_at = 9");
  db.run("UPDATE notes SET body = 'y'");
  expect(db.query("SELECT updated_at FROM notes").get()).toEqual({ updated_at: 9 });
});

test.each([
  ["microseconds", "1700000000000000", 1_700_000_000_000],
  ["nanoseconds", "1700000000000000000", 1_700_000_000_000],
  ["the least integer there is", "-9223372036854775808", -9_223_372_036_854],
])("%s are named, and the remedy leaves milliseconds as they are", (_, stamp, expected) => {
  const db = database(
    `CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER);
     INSERT INTO t VALUES ('a', ${stamp}), ('b', 1700000000001), ('c', NULL)`,
  );
  const [refused] = surveyAll(db).notSynced;
  expect(refused?.reason).toContain("versions are milliseconds");
  db.run(refused!.remedy);
  expect(names(surveyAll(db))).toEqual(["t"]);
  expect(db.query("SELECT updated_at FROM t ORDER BY id").values()).toEqual([
    [expected],
    [1_700_000_000_001],
    [null],
  ]);
});

test.each([
  ["milliseconds", "updated_at INTEGER", "1700000000123", 1_700_000_000_123],
  ["a date as text", "updated_at TEXT", "'2023-11-14 22:13:20'", 1_700_000_000_000],
])("a table that is rebuilt keeps %s", (_, column, stamp, expected) => {
  const db = database(
    `CREATE TABLE t(id INTEGER PRIMARY KEY, n REAL, ${column}); INSERT INTO t VALUES (5, 1.5, ${stamp})`,
  );
  db.run(surveyAll(db).notSynced[0]!.remedy);
  expect(names(surveyAll(db))).toEqual(["t"]);
  expect(db.query("SELECT id, n, updated_at FROM t").values()).toEqual([["5", 1.5, expected]]);
});
