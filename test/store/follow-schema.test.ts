/** What moves along when columns of a synced table are renamed while changes wait to be sent. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type Alteration, alterTable, parseAlteration } from "../../lib/store/alter-table.ts";
import { installTriggers, survey } from "../../lib/store/catalog.ts";
import { followColumns } from "../../lib/store/follow-schema.ts";
import { migrate, setSetting } from "../../lib/store/migrations.ts";
import { Settler } from "../../lib/store/settle.ts";
import { Tombstones } from "../../lib/store/tombstones.ts";
import { StoreFixture } from "../support/store-fixture.ts";

const SQL = `CREATE TABLE t(id TEXT PRIMARY KEY, "we ""ird" BLOB, n REAL, updated_at INTEGER)`;

function database(): Database {
  const db = new Database(":memory:", { strict: true });
  db.run(SQL);
  migrate(db);
  installTriggers(db, table(db));
  return db;
}

function table(db: Database) {
  return survey(db, { all: true, names: [] }).synced.get("t")!;
}

function entries(db: Database): string[] {
  return db
    .query<{ row_data: string }, []>("SELECT row_data FROM _changes ORDER BY change_id")
    .all()
    .map(({ row_data }) => row_data);
}

/** As settling finds it: all entries up to `settledThrough` are final. */
function follow(db: Database, settledThrough: number): boolean {
  const before = table(db).columns.map(({ name }) => name);
  db.run('ALTER TABLE t RENAME COLUMN "we ""ird" TO "it\'s"');
  return followColumns(db, table(db), before, settledThrough);
}

test("a renamed column's key changes in settled entries, its exact value does not", () => {
  const db = database();
  db.run("INSERT INTO t VALUES ('a', x'00ff', 9.0e+999, 1)");
  db.run("INSERT INTO t VALUES ('b', '\\x00ff' || char(0) || '😀', 1.0, 2)");
  db.run("INSERT INTO t VALUES ('c', 9223372036854775807, NULL, 3)");
  db.run("DELETE FROM t WHERE id = 'c'");
  const before = entries(db).map((text) => JSON.stringify(text).replace('we \\\\\\"ird', "it's"));
  expect(follow(db, 4)).toBe(true);
  const byMember = (text: string) => text.slice(1, -1).split(",").sort();
  expect(entries(db).map(byMember)).toEqual(
    before.map((text) => byMember(JSON.parse(text) as string)),
  );
});

test("entries that are not settled are captured again; deletes get the new key", () => {
  const db = database();
  db.run("INSERT INTO t VALUES ('a', 'old', 1.5, 1), ('b', 'gone', 2.5, 2)");
  db.run("DELETE FROM t WHERE id = 'b'");
  db.run("UPDATE _meta SET value = 1");
  db.run(`UPDATE t SET "we ""ird" = 'now'`);
  follow(db, 0);
  expect(entries(db).map((text) => JSON.parse(text)["it's"])).toEqual(["now", "gone", "gone"]);
});

test("columns renamed and added at once: the renamed ones are found by their place", () => {
  const db = database();
  db.run("INSERT INTO t VALUES ('a', 'x', 1.5, 1)");
  const before = table(db).columns.map(({ name }) => name);
  db.run("ALTER TABLE t RENAME COLUMN n TO amount");
  db.run("ALTER TABLE t ADD COLUMN extra");
  followColumns(db, table(db), before, 1);
  expect(JSON.parse(entries(db)[0]!)).toEqual({
    id: "a",
    'we "ird': "x",
    updated_at: 1,
    amount: 1.5,
  });
});

test("the version of a column moves with it; what peers sent under the new name wins if newer", () => {
  const { db } = new StoreFixture(SQL);
  const note = db.prepare("INSERT INTO _hooksync_columns VALUES ('t', ?, ?, ?, ?)");
  db.run("INSERT INTO t VALUES ('a', 1, 1, 50), ('b', 1, 1, 50), ('c', 1, 1, 50), ('d', 1, 1, 50)");
  note.run("a", 'we "ird', 10, "own");
  note.run("b", 'we "ird', 10, "own");
  note.run("b", "it's", 20, "theirs");
  note.run("c", 'we "ird', 30, "own");
  note.run("c", "it's", 20, "theirs");
  note.run("d", "it's", 20, "theirs, below the row");
  follow(db, 0);
  expect(
    db.query("SELECT id, col, version, value FROM _hooksync_columns ORDER BY id").values(),
  ).toEqual([
    ["a", "it's", 10, "own"],
    ["b", "it's", 20, "theirs"],
    ["c", "it's", 30, "own"],
  ]);
});

test("what another process put right makes the shipper forget the bodies it has made", () => {
  const path = join(mkdtempSync(join(tmpdir(), "hook-sync-follow-")), "a.db");
  const db = new Database(path, { strict: true });
  db.run("PRAGMA journal_mode = WAL");
  db.run(`${SQL}; CREATE TABLE other(x)`);
  migrate(db);
  const selection = { all: false, names: ["t"] };
  setSetting(db, "tables", JSON.stringify(selection));
  setSetting(db, "settled_through", 0);
  const events: string[] = [];
  const settler = new Settler({
    db,
    tombstones: new Tombstones(db),
    selection,
    onEvent: ({ kind }) => events.push(kind),
    onSurvey: () => {},
  });
  const settle = () => {
    db.run("BEGIN IMMEDIATE");
    settler.settle(1_800_000_000_000);
    db.run("COMMIT");
    return settler.takeRewritten();
  };
  settle();
  db.run("INSERT INTO t VALUES ('a', 'x', 1, 1)");
  expect([settle(), events]).toEqual([false, ["registered"]]);
  alterTable(path, parseAlteration("ALTER TABLE t RENAME COLUMN n TO m") as Alteration);
  expect([settle(), events]).toEqual([true, ["registered"]]);
  expect(JSON.parse(entries(db)[0]!)).toMatchObject({ m: 1 });
  alterTable(path, parseAlteration("ALTER TABLE other ADD COLUMN y") as Alteration);
  expect(settle()).toBe(false);
  db.close(true);
  rmSync(dirname(path), { recursive: true });
});
