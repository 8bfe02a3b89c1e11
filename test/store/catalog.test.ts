/** Which tables are synced, and whose triggers stand in the file. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import {
  capturedTables,
  installTriggers,
  isCapturedByOthers,
  readSelection,
  removeTriggers,
  survey,
  triggerState,
  writeKnown,
  writeSelection,
} from "../../lib/store/catalog.ts";
import { migrate } from "../../lib/store/migrations.ts";

const TABLES = `CREATE TABLE notes(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
  CREATE TABLE Other(id TEXT PRIMARY KEY, updated_at INTEGER);
  CREATE TABLE unfit(n INTEGER PRIMARY KEY); CREATE VIEW v AS SELECT 1; CREATE VIRTUAL TABLE f USING fts5(x)`;

function database(sql = TABLES): Database {
  const db = new Database(":memory:");
  db.run(sql);
  migrate(db);
  return db;
}

function names(db: Database, selection: { all: boolean; names: string[] }) {
  const found = survey(db, selection);
  return {
    synced: [...found.synced.keys()],
    notSynced: found.notSynced.map(({ name, reason }) => `${name}: ${reason}`),
    notAsked: found.notAsked.map(({ name }) => name),
  };
}

function triggerNames(db: Database): unknown[] {
  return db
    .query("SELECT name FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
    .values()
    .flat();
}

function notes(db: Database) {
  return survey(db, { all: false, names: ["notes"] }).synced.get("notes")!;
}

test("tables asked for by name, and why some are not to be had", () => {
  expect(names(database(), { all: false, names: ["other", "unfit", "v", "f", "nope"] })).toEqual({
    synced: ["other"],
    notSynced: [
      "unfit: it has no column id",
      "v: it is a view",
      "f: it is a virtual table",
      "nope: there is no such table",
    ],
    notAsked: ["notes"],
  });
});

test("'*' is every table that qualifies", () => {
  expect(names(database(), { all: true, names: [] })).toEqual({
    synced: ["notes", "other"],
    notSynced: ["unfit: it has no column id"],
    notAsked: [],
  });
});

test("the selection is kept in the file", () => {
  const db = database();
  expect(readSelection(db)).toBeUndefined();
  writeSelection(db, { all: false, names: ["notes"] });
  expect(readSelection(db)).toEqual({ all: false, names: ["notes"] });
});

test("odd stamps keep a new table out, and never one that is synced already", () => {
  const db = database(`${TABLES}; INSERT INTO notes VALUES('a', 'x', 1700000000000000)`);
  expect(names(db, { all: false, names: ["notes"] }).synced).toEqual([]);
  db.run("UPDATE notes SET updated_at = 5");
  writeKnown(db, [notes(db)]);
  db.run("UPDATE notes SET updated_at = '2024-01-01'");
  expect(names(db, { all: false, names: ["notes"] }).synced).toEqual(["notes"]);
});

test("triggers that are all there and right are fine; otherwise it is said what is wrong", () => {
  const db = database();
  expect(triggerState(db, notes(db))).toBe("missing");
  installTriggers(db, notes(db));
  expect(triggerState(db, notes(db))).toBe("fine");
  db.run("ALTER TABLE notes ADD COLUMN extra");
  expect(triggerState(db, notes(db))).toBe("outdated");
  installTriggers(db, notes(db));
  expect(triggerState(db, notes(db))).toBe("fine");
  db.run("DROP TRIGGER notes_bi");
  expect(triggerState(db, notes(db))).toBe("missing");
});

const FOREIGN = ["ai", "au", "ad"]
  .map((suffix) => {
    const event = { ai: "INSERT", au: "UPDATE", ad: "DELETE" }[suffix];
    return `CREATE TRIGGER notes_${suffix} AFTER ${event} ON notes BEGIN INSERT INTO _changes(op) VALUES('${event}'); END`;
  })
  .join(";");

test("triggers of another node are replaced; those of the application that have our names stay", () => {
  const db = database();
  db.run(FOREIGN);
  db.run(`CREATE TRIGGER other_ai AFTER INSERT ON Other BEGIN INSERT INTO f(x) VALUES('index'); END;
    CREATE TRIGGER notes_bi BEFORE INSERT ON notes BEGIN SELECT 1; END`);
  expect([...capturedTables(db)]).toEqual(["notes"]);
  expect(isCapturedByOthers(db, notes(db))).toBe(true);
  for (const table of survey(db, { all: true, names: [] }).synced.values())
    installTriggers(db, table);
  expect(isCapturedByOthers(db, notes(db))).toBe(false);
  expect([...capturedTables(db)].sort()).toEqual(["notes", "other"]);
  expect(triggerNames(db)).toEqual(
    [
      "Other_ad",
      "Other_au",
      "Other_bi",
      "Other_bu",
      "_hooksync_Other_ai",
      "_hooksync_notes_bi",
      "notes_ad",
      "notes_ai",
      "notes_au",
      "notes_bi",
      "other_ai",
    ]
      .concat("notes_bu")
      .sort(),
  );
  expect(triggerState(db, notes(db))).toBe("fine");
  removeTriggers(db, "notes");
  expect([...capturedTables(db)]).toEqual(["other"]);
  removeTriggers(db);
  expect(triggerNames(db)).toEqual(["notes_bi", "other_ai"]);
});

test("a trigger of another name that writes the log is the application's own affair", () => {
  const db = database();
  db.run(
    "CREATE TRIGGER mine AFTER INSERT ON notes BEGIN INSERT INTO _changes(op) VALUES('x'); END",
  );
  expect([...capturedTables(db)]).toEqual([]);
  installTriggers(db, notes(db));
  removeTriggers(db);
  expect(triggerNames(db)).toEqual(["mine"]);
});
