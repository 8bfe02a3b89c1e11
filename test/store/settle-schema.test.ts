/**
 * Other programs change the schema, while the node runs and while it is down (DESIGN.md, "Settling"):
 * the triggers follow, nothing leaves under a wrong name, and what cannot be known is said.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { openPrograms, type Program } from "../support/old-sqlite.ts";
import { StoreFile, T } from "../support/open-store.ts";

const NOTES = `CREATE TABLE notes(id TEXT PRIMARY KEY, body, n REAL, updated_at INTEGER);
  INSERT INTO notes VALUES('a', x'00ff', 9e999, ${T}), ('b', '\\x00ff', 0.1 + 0.2, ${T})`;

type How = "running" | "down" | "running, by an older SQLite";
const WAYS: How[] = ["running", "down", "running, by an older SQLite"];

let programs: Program[] = [];

beforeAll(async () => {
  programs = await openPrograms();
});

afterAll(() => {
  for (const program of programs) program.close();
});

async function opened(sql = NOTES, asked: readonly string[] | "*" = ["notes"]): Promise<StoreFile> {
  const file = new StoreFile(sql);
  file.open({ asked });
  await file.settle();
  file.events.length = 0;
  return file;
}

/** What another program does, while the node runs or between two runs. */
async function change(file: StoreFile, how: How, sql: string): Promise<void> {
  if (how === "down") await file.close();
  file.clock.ms += 1_000;
  // Without an older one this build does it again; openPrograms has said so.
  const program = how === "running, by an older SQLite" ? programs.at(-1)! : programs[0]!;
  expect(await program.paste(file.path, sql)).toBe("");
  file.clock.ms += 1_000;
  if (how === "down") file.open();
  await file.runDue();
}

function row(file: StoreFile, id: string): Record<string, unknown> {
  return JSON.parse(file.entries().findLast((entry) => entry.row_id === id)!.row_data);
}

function triggers(file: StoreFile): string[] {
  return file
    .rows<{ name: string }>("SELECT name FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
    .map(({ name }) => name);
}

const OURS = ["notes_ad", "notes_ai", "notes_au", "notes_bi", "notes_bu"];

/** Whether a write is captured whole, with all columns as they are now. */
async function expectCapture(file: StoreFile, table = "notes"): Promise<void> {
  const settled = file.store.settledThrough;
  file.write(`INSERT INTO "${table}"(id) VALUES('probe')`);
  await file.settle();
  const columns = file
    .rows<{ name: string }>("SELECT name FROM pragma_table_info(?)", table)
    .map(({ name }) => name);
  const [entry] = file.entries(settled);
  expect([entry?.op, entry?.table_name, entry?.row_id]).toEqual(["INSERT", table, "probe"]);
  expect(Object.keys(JSON.parse(entry!.row_data)).sort()).toEqual(columns.sort());
}

describe.each(WAYS)("%s", (how) => {
  test("a column added and written in one transaction is sent", async () => {
    await using file = await opened();
    await change(
      file,
      how,
      `BEGIN; ALTER TABLE notes ADD COLUMN colour TEXT; UPDATE notes SET colour = 'red' WHERE id = 'a';
       INSERT INTO notes(id, colour, updated_at) VALUES('c', 'blue', 5); COMMIT`,
    );
    expect(row(file, "a")["colour"]).toBe("red");
    expect(row(file, "c")).toEqual({ id: "c", body: null, n: null, updated_at: 5, colour: "blue" });
    expect(file.kinds()).toEqual(["rebuilt"]);
    await expectCapture(file);
  });

  test("a renamed column's key is put right in what waits, values and all", async () => {
    await using file = await opened();
    file.write("UPDATE notes SET n = n");
    await file.settle();
    await change(
      file,
      how,
      `BEGIN; UPDATE notes SET body = 'x' WHERE id = 'b'; ALTER TABLE notes RENAME COLUMN body TO "it's ""it"; COMMIT`,
    );
    expect(file.entries().map((entry) => [entry.op, entry.row_id])).toEqual([
      ["UPDATE", "a"],
      ["UPDATE", "b"],
      ["UPDATE", "b"],
    ]);
    const [a, b] = file.entries();
    expect(a?.row_data).toContain(`"it's \\"it":"\\u005cx00ff"`);
    expect(a?.row_data).toContain('"n":9.0e+999');
    expect(b?.row_data).toContain(`"it's \\"it":"\\\\x00ff"`);
    expect(b?.row_data).not.toContain("body");
    if (how === "running")
      expect(file.rewritten.at(-1) || file.rewritten.includes(true)).toBe(true);
    await expectCapture(file);
  });

  test("a row thrown out before its column was renamed is deleted under the new name", async () => {
    await using file = await opened(`${NOTES}; CREATE UNIQUE INDEX u ON notes(body)`);
    await change(
      file,
      how,
      `BEGIN; INSERT OR REPLACE INTO notes(id, body, updated_at) VALUES('c', x'00ff', ${T});
       ALTER TABLE notes RENAME COLUMN n TO amount; COMMIT`,
    );
    expect(file.log()).toEqual(["DELETE a", "INSERT c"]);
    expect(Object.keys(row(file, "a")).sort()).toEqual(["amount", "body", "id", "updated_at"]);
    expect(file.entries()[0]?.row_data).toContain('"amount":9.0e+999');
  });

  test("columns that swap their names keep their values", async () => {
    await using file = await opened();
    file.write("UPDATE notes SET body = 'B', n = 5 WHERE id = 'a'");
    await file.settle();
    await change(
      file,
      how,
      `BEGIN; ALTER TABLE notes RENAME COLUMN body TO x; ALTER TABLE notes RENAME COLUMN n TO body;
       ALTER TABLE notes RENAME COLUMN x TO n; COMMIT`,
    );
    expect(row(file, "a")).toMatchObject({ n: "B", body: 5 });
    await expectCapture(file);
  });

  test("a column renamed and another added in one transaction are told apart", async () => {
    await using file = await opened();
    file.write("UPDATE notes SET body = 'B', n = 5 WHERE id = 'a'");
    await file.settle();
    const settled = file.store.settledThrough;
    await change(
      file,
      how,
      "BEGIN; ALTER TABLE notes RENAME COLUMN body TO text; ALTER TABLE notes ADD COLUMN body INTEGER DEFAULT 7; UPDATE notes SET n = 6 WHERE id = 'b'; COMMIT",
    );
    expect(JSON.parse(file.entries()[0]!.row_data)).toMatchObject({ text: "B", n: 5 });
    expect(JSON.parse(file.entries()[0]!.row_data)).not.toHaveProperty("body");
    expect(JSON.parse(file.entries(settled)[0]!.row_data)).toMatchObject({
      text: "\\x00ff",
      body: 7,
    });
    await expectCapture(file);
  });

  test("a renamed table takes along what is known of it", async () => {
    await using file = await opened();
    file.write("DELETE FROM notes WHERE id = 'b'");
    await file.settle();
    const settled = file.store.settledThrough;
    await change(
      file,
      how,
      `BEGIN; UPDATE notes SET n = 1; ALTER TABLE notes RENAME TO "Memo s"; ALTER TABLE "Memo s" ADD COLUMN k; UPDATE "Memo s" SET k = 2; COMMIT`,
    );
    expect(file.entries().map((entry) => `${entry.op} ${entry.table_name}`)).toEqual([
      "DELETE notes",
      "UPDATE Memo s",
    ]);
    expect(JSON.parse(file.entries(settled)[0]!.row_data)).toMatchObject({ n: 1, k: 2 });
    expect(file.kinds()).toEqual(["renamed", "rebuilt"]);
    expect([...file.store.survey.synced.keys()]).toEqual(["memo s"]);
    // The tombstone, too: a row made again is above it.
    file.write(`INSERT INTO "Memo s"(id, updated_at) VALUES('b', ${T})`);
    await file.settle();
    expect(row(file, "b")["updated_at"]).toBe(file.clock.ms);
    await expectCapture(file, "Memo s");
    await file.close();
    file.open();
    expect([...file.store.survey.synced.keys()]).toEqual(["memo s"]);
  });

  test("a rebuilt table is announced whole, and the interval is named", async () => {
    await using file = await opened();
    const closed = file.clock.ms;
    await change(
      file,
      how,
      `BEGIN; CREATE TABLE fresh(id TEXT PRIMARY KEY, body, n REAL, updated_at INTEGER, extra);
       INSERT INTO fresh SELECT *, 1 FROM notes; DROP TABLE notes; ALTER TABLE fresh RENAME TO notes;
       INSERT INTO notes(id, extra) VALUES('gap', 2); DELETE FROM notes WHERE id = 'b'; COMMIT`,
    );
    expect(file.log()).toEqual(["UPDATE a", "UPDATE gap"]);
    expect(row(file, "a")).toMatchObject({ extra: 1, updated_at: T + 1 });
    expect(row(file, "gap")).toMatchObject({ extra: 2, updated_at: file.clock.ms });
    expect(file.kinds()).toEqual(["gap"]);
    const said = file.events[0] as { text: string };
    expect(said.text).toContain(new Date(closed).toISOString());
    expect(said.text).toContain(new Date(file.clock.ms).toISOString());
    await expectCapture(file);
  });

  test("a table put aside under another name, and made anew under the old one", async () => {
    await using file = await opened();
    await change(
      file,
      how,
      `BEGIN; ALTER TABLE notes RENAME TO old_notes; CREATE TABLE notes(id TEXT PRIMARY KEY, body, updated_at INTEGER);
       INSERT INTO notes SELECT id, body, updated_at FROM old_notes; COMMIT`,
    );
    expect(file.kinds()).toEqual(["gap"]);
    expect(file.log()).toEqual(["UPDATE a", "UPDATE b"]);
    expect(triggers(file)).toEqual(OURS);
    await expectCapture(file);
  });

  test.each(OURS)("a dropped trigger (%s) is made again and the gap is said", async (name) => {
    await using file = await opened();
    await change(file, how, `DROP TRIGGER ${name}; UPDATE notes SET n = 3 WHERE id = 'b'`);
    expect(file.kinds()).toEqual(["gap"]);
    expect(triggers(file)).toEqual(OURS);
    expect(file.log().slice(-2)).toEqual(["UPDATE a", "UPDATE b"]);
    expect(row(file, "b")["n"]).toBe(3);
  });

  test("a dropped table is lost; one made again is announced", async () => {
    await using file = await opened();
    await change(file, how, "BEGIN; DELETE FROM notes WHERE id = 'a'; DROP TABLE notes; COMMIT");
    expect(file.kinds()).toEqual(["lost"]);
    expect(file.log()).toEqual(["DELETE a"]);
    expect(file.store.survey.notSynced[0]?.reason).toBe("there is no such table");
    file.events.length = 0;
    await change(
      file,
      how,
      `BEGIN; CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO notes VALUES('new', ${T}); COMMIT`,
    );
    expect(file.kinds()).toEqual(["registered"]);
    expect(file.log()).toEqual(["DELETE a", "UPDATE new"]);
    await expectCapture(file);
  });

  test("a UNIQUE key that comes or goes changes what is noted", async () => {
    await using file = await opened();
    await change(file, how, "CREATE UNIQUE INDEX u ON notes(body)");
    expect(file.kinds()).toEqual(["rebuilt"]);
    file.write("INSERT OR REPLACE INTO notes(id, body) VALUES('c', '\\x00ff')");
    await file.settle();
    expect(file.log()).toEqual(["DELETE b", "INSERT c"]);
    await change(file, how, "DROP INDEX u");
    file.write("INSERT OR REPLACE INTO notes(id, body) VALUES('d', '\\x00ff')");
    await file.settle();
    expect(file.log()).toEqual(["DELETE b", "INSERT c", "INSERT d"]);
  });

  test("VACUUM, ANALYZE and an index of the application change nothing", async () => {
    await using file = await opened();
    file.write("UPDATE notes SET n = 1");
    await file.settle();
    const log = file.entries();
    for (const sql of ["VACUUM", "ANALYZE", "CREATE INDEX i ON notes(n)", "REINDEX"]) {
      await change(file, how, sql);
    }
    expect(file.entries()).toEqual(log);
    expect(file.kinds()).toEqual([]);
    expect(triggers(file)).toEqual(OURS);
  });

  test.each(["DELETE FROM _meta", "UPDATE _meta SET value = 1", "UPDATE _meta SET value = NULL"])(
    "%s: capture goes on, everything is announced",
    async (sql) => {
      await using file = await opened();
      await change(file, how, `${sql}; UPDATE notes SET n = 3 WHERE id = 'b'`);
      expect(file.kinds()).toEqual(["flag-restored"]);
      expect(file.log()).toEqual(["UPDATE a", "UPDATE b"]);
      expect(row(file, "b")["n"]).toBe(3);
      await expectCapture(file);
    },
  );

  test("a table made under '*' is announced; rows without a stamp have version 0", async () => {
    await using file = await opened(NOTES, "*");
    await change(
      file,
      how,
      `BEGIN; CREATE TABLE more(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO more VALUES('x', NULL), ('y', ${T}), (NULL, 1);
       CREATE TABLE unfit(n INTEGER PRIMARY KEY); COMMIT`,
    );
    expect(file.events).toMatchObject([{ kind: "registered", table: "more" }]);
    expect(file.entries().map(({ row_data }) => JSON.parse(row_data))).toEqual([
      { id: "x", updated_at: 0 },
      { id: "y", updated_at: T },
    ]);
    expect(file.store.survey.notSynced.map(({ name }) => name)).toEqual(["unfit"]);
    await expectCapture(file, "more");
  });

  test("a table whose stamps are put right, by what was said to help, is synced from then on", async () => {
    const stamps = `('a', '2024-01-01'), ('b', 1700000000000000), ('c', NULL)`;
    await using file = await opened(
      `CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO notes VALUES ${stamps}`,
    );
    expect(file.store.survey.synced.size).toBe(0);
    await change(file, how, "INSERT INTO notes VALUES('d', NULL)");
    expect(file.kinds()).toEqual([]);
    const [unfit] = file.store.survey.notSynced;
    await change(file, how, unfit!.remedy);
    expect(file.kinds()).toEqual(["registered"]);
    expect(file.store.survey.notSynced).toEqual([]);
    expect(file.log()).toEqual(["UPDATE a", "UPDATE b", "UPDATE c", "UPDATE d"]);
    await expectCapture(file);
  });

  test("a table that stops qualifying is lost with the remedy, and comes back when it does again", async () => {
    await using file = await opened();
    await change(
      file,
      how,
      `BEGIN; UPDATE notes SET n = 1 WHERE id = 'a';
       CREATE TRIGGER touch AFTER UPDATE OF n ON notes BEGIN UPDATE notes SET updated_at = 5 WHERE id = NEW.id; END; COMMIT`,
    );
    expect(file.kinds()).toEqual(["lost"]);
    const { reason, remedy } = file.store.survey.notSynced[0]!;
    expect(reason).toContain("touch writes notes");
    expect(triggers(file)).toEqual(["touch"]);
    if (how !== "down") {
      // Its last entries still got their versions.
      expect(row(file, "a")["updated_at"]).toBe(file.clock.ms);
    }
    file.events.length = 0;
    await change(file, how, `${remedy}; DELETE FROM notes WHERE id = 'b'; UPDATE notes SET n = 2`);
    expect(file.kinds()).toEqual(["registered"]);
    expect(row(file, "a")["n"]).toBe(2);
    await expectCapture(file);
  });

  test("odd stamps written along with a schema change are lifted, not held against the table", async () => {
    await using file = await opened();
    await change(
      file,
      how,
      `BEGIN; ALTER TABLE notes ADD COLUMN k; INSERT INTO notes(id, updated_at) VALUES('m', 1700000000000000), ('t', '2024-01-01'); COMMIT`,
    );
    expect(file.kinds()).toEqual(["rebuilt"]);
    expect(row(file, "m")["updated_at"]).toBe(file.clock.ms);
    expect(row(file, "t")["updated_at"]).toBe(file.clock.ms);
  });

  test("another node that makes its own triggers meanwhile leaves no gap", async () => {
    await using file = await opened();
    const capture = (suffix: string, op: string, side: string) =>
      `DROP TRIGGER notes_${suffix}; CREATE TRIGGER notes_${suffix} AFTER ${op} ON notes
       WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
       BEGIN INSERT INTO _changes(op, table_name, row_id, row_data) VALUES('${op}', 'notes', ${side}.id,
         json_object('id', ${side}.id, 'n', ${side}.n, 'updated_at', ${side}.updated_at)); END;`;
    await change(
      file,
      how,
      `${capture("ai", "INSERT", "NEW")}${capture("au", "UPDATE", "NEW")}${capture("ad", "DELETE", "OLD")}
       UPDATE notes SET n = 0.1 + 0.2, updated_at = ${T + 1} WHERE id = 'a'; DELETE FROM notes WHERE id = 'b'`,
    );
    expect(file.kinds()).toEqual(["rebuilt"]);
    expect(file.log()).toEqual(["DELETE b", "UPDATE a"]);
    expect(file.entries()[1]?.row_data).toContain('"body":"\\u005cx00ff"');
    expect(row(file, "b")["updated_at"]).toBe(T);
    await expectCapture(file);
  });

  test("a log that begins again is sent under new numbers", async () => {
    await using file = await opened();
    file.write("UPDATE notes SET n = 1");
    file.write("UPDATE notes SET n = 2");
    await file.settle();
    const { settledThrough } = file.store;
    await change(
      file,
      how,
      "BEGIN; DELETE FROM _changes; DELETE FROM sqlite_sequence WHERE name = '_changes'; UPDATE notes SET n = 3 WHERE id = 'a'; COMMIT",
    );
    expect(file.kinds()).toEqual(["log-restarted"]);
    expect(file.entries().map((entry) => entry.change_id)).toEqual([settledThrough + 1]);
    expect(row(file, "a")["n"]).toBe(3);
    expect(file.store.settledThrough).toBe(settledThrough + 1);
  });

  test("an emptied sqlite_sequence alone changes no number", async () => {
    await using file = await opened();
    file.write("UPDATE notes SET n = 1");
    await file.settle();
    const log = file.entries();
    await change(file, how, "DELETE FROM sqlite_sequence");
    expect(file.entries()).toEqual(log);
    expect(file.kinds()).toEqual([]);
    await file.store.queue.run("apply", () => file.store.db.run("DELETE FROM _changes"));
    file.write("UPDATE notes SET n = 2 WHERE id = 'a'");
    await file.settle();
    expect(file.entries()[0]!.change_id).toBeGreaterThan(log.at(-1)!.change_id);
  });

  test.each(["9007199254740991", "9223372036854775807"])(
    "a log whose numbers leap to %s goes on from where it was",
    async (leap) => {
      await using file = await opened();
      file.write("UPDATE notes SET n = 1");
      await file.settle();
      await change(
        file,
        how,
        `UPDATE notes SET n = 2 WHERE id = 'a';
         INSERT INTO _changes SELECT value, op, table_name, 'b', row_data, was, NULL
           FROM (SELECT * FROM _changes LIMIT 1), json_each('[4503599627370500, 4503599627370502, 9007199254740993]');
         UPDATE sqlite_sequence SET seq = ${leap} WHERE name = '_changes'`,
      );
      expect(file.kinds()).toContain("log-restarted");
      file.write("UPDATE notes SET n = 3 WHERE id = 'a'");
      await file.settle();
      const ids = file.entries().map((entry) => entry.change_id);
      expect(ids.every((id) => id > 0 && id < 2 ** 52)).toBe(true);
      expect(file.store.settledThrough).toBe(ids.at(-1)!);
    },
  );

  test("a log whose numbers are used up still takes writes", async () => {
    await using file = await opened();
    await change(
      file,
      how,
      `INSERT INTO _changes SELECT value, op, table_name, 'b', row_data, was, NULL
         FROM (SELECT 'INSERT' AS op, 'notes' AS table_name, '{"id":"b"}' AS row_data, NULL AS was),
           json_each('[4503599627370496, 4503599627370497, 4503599627370498]')`,
    );
    file.write("UPDATE notes SET n = 3 WHERE id = 'a'");
    await file.settle();
    expect(file.entries().map((entry) => entry.row_id)).toContain("a");
  });

  test("what is no row in the log stops nothing", async () => {
    await using file = await opened();
    const bad = ["'{bad'", "x'ff00'", "'[1]'", "'5'"];
    await change(
      file,
      how,
      bad
        .flatMap((data) => [`'none', ${data}`, `'a', ${data}`])
        .map(
          (values) =>
            `INSERT INTO _changes(op, table_name, row_id, row_data) VALUES('INSERT', 'notes', ${values});`,
        )
        .join("\n"),
    );
    await expectCapture(file);
    const rows = file.entries().map((entry) => JSON.parse(entry.row_data));
    expect(rows.every((content) => typeof content.id === "string")).toBe(true);
  });

  test("a watermark above the log numbers new entries above it", async () => {
    await using file = await opened();
    await change(
      file,
      how,
      "INSERT INTO _peer_state(peer_url, last_acked) VALUES('http://b', 5000), ('http://c', 9223372036854775807); UPDATE notes SET n = 1 WHERE id = 'a'",
    );
    expect(file.entries().map((entry) => entry.change_id)).toEqual([5001]);
  });
});

test("two tables renamed into each other's names lose nothing", async () => {
  await using file = await opened(
    `${NOTES}; CREATE TABLE other(id TEXT PRIMARY KEY, k, updated_at INTEGER); INSERT INTO other VALUES('o', 1, ${T})`,
    ["notes", "other"],
  );
  await change(
    file,
    "running",
    "BEGIN; ALTER TABLE notes RENAME TO x; ALTER TABLE other RENAME TO notes; ALTER TABLE x RENAME TO other; COMMIT",
  );
  expect(triggers(file)).toHaveLength(10);
  await expectCapture(file, "notes");
  await expectCapture(file, "other");
});

test("a file synced by name, opened with one more table, announces that one", async () => {
  await using file = await opened(
    `${NOTES}; CREATE TABLE other(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO other VALUES('o', ${T})`,
  );
  await file.close();
  file.open({ asked: ["notes", "other"] });
  await file.runDue();
  expect(file.log()).toEqual(["UPDATE o"]);
});

test("rows of a file that is seen for the first time are not announced", async () => {
  await using file = new StoreFile(NOTES);
  file.open({ asked: ["notes"] });
  await file.runDue();
  expect(file.log()).toEqual([]);
});
