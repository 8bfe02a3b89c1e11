/**
 * Settling what other programs did to rows (DESIGN.md, "Versions" and "Settling"): the rules one by
 * one, where settle-fuzz.test.ts throws everything at once. What they do to the schema is in
 * settle-schema.test.ts.
 */
import { describe, expect, test } from "bun:test";
import { StoreFile, T } from "../support/open-store.ts";

const NOTES = "CREATE TABLE notes(id TEXT PRIMARY KEY, mail TEXT UNIQUE, n, updated_at INTEGER)";

async function opened(sql = NOTES, asked: readonly string[] = ["notes"]): Promise<StoreFile> {
  const file = new StoreFile(sql);
  file.open({ asked });
  await file.settle();
  return file;
}

/** The stamp of a row, and the one that its last entry says. */
function stamps(file: StoreFile, id: string) {
  const [row] = file.rows<{ u: unknown }>("SELECT updated_at AS u FROM notes WHERE id = ?", id);
  const entry = file.entries().findLast((other) => other.row_id === id)!;
  return [row?.u, (JSON.parse(entry.row_data) as Record<string, unknown>)["updated_at"]];
}

function tombstone(file: StoreFile, id: string): unknown {
  return file.rows("SELECT version FROM _hooksync_tombstones WHERE id = ?", id)[0]?.["version"];
}

test("a row without a stamp gets one, in the table and in the log", async () => {
  await using file = await opened();
  file.write("INSERT INTO notes(id) VALUES('a')");
  await file.settle();
  expect(stamps(file, "a")).toEqual([file.clock.ms, file.clock.ms]);
});

test("a stamp below all that peers take becomes one that they do, and a delete too", async () => {
  await using file = await opened();
  const values = (id: string) => `('${id}', -9007199254740992), ('${id}1', -9223372036854775808)`;
  file.write(`INSERT INTO notes(id, updated_at) VALUES${values("a")}, ('b', -9007199254740991)`);
  await file.settle();
  expect(stamps(file, "a")).toEqual([file.clock.ms, file.clock.ms]);
  expect(stamps(file, "a1")).toEqual([file.clock.ms, file.clock.ms]);
  expect(stamps(file, "b")).toEqual([-9007199254740991, -9007199254740991]);
  file.write(`UPDATE _meta SET value = 1; INSERT INTO notes(id, updated_at) VALUES${values("c")};
    UPDATE _meta SET value = 0; DELETE FROM notes WHERE id = 'c'`);
  await file.store.queue.run("local", (transaction) =>
    file.store.repository.remove(file.store.table("notes")!, "c1", transaction),
  );
  expect([...stamps(file, "c"), tombstone(file, "c")]).toEqual([undefined, 0, 0]);
  expect([...stamps(file, "c1"), tombstone(file, "c1")]).toEqual([undefined, 0, 0]);
});

test("the program that wrote sees the stamp it wrote", async () => {
  await using file = await opened();
  const returned = file.rows("INSERT INTO notes(id) VALUES('a') RETURNING updated_at");
  expect(returned).toEqual([{ updated_at: null }]);
});

test("good stamps stay, and a pass that finds only such writes nothing but the position", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, updated_at) VALUES('a', ${T}), ('b', ${T})`);
  file.write(`UPDATE notes SET n = 0.1 + 0.2, updated_at = ${T + 1} WHERE id = 'a'`);
  await file.settle();
  file.write(`UPDATE notes SET n = 1, updated_at = ${T + 2}`);
  const before = file.rows("SELECT * FROM _changes");
  const changes = () =>
    file.store.db.query<{ n: number }, []>("SELECT total_changes() AS n").get()!.n;
  const written = changes();
  await file.settle();
  expect(file.rows("SELECT * FROM _changes")).toEqual(before);
  expect(file.store.settledThrough).toBe(file.entries().at(-1)!.change_id);
  // The flag up and down again, the position, and the work table emptied.
  expect(changes() - written).toBeLessThanOrEqual(4);
});

test("several entries of a row become one, in the place of the last, with the row as it is", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, n, updated_at) VALUES('a', 1, ${T}), ('b', 1, ${T})`);
  file.write(`UPDATE notes SET n = 2, updated_at = ${T + 1} WHERE id = 'a'`);
  file.write(`UPDATE notes SET n = x'00ff', updated_at = ${T + 2} WHERE id = 'a'`);
  await file.settle();
  expect(file.log()).toEqual(["INSERT b", "INSERT a"]);
  expect(file.entries()[1]?.row_data).toBe(
    `{"id":"a","mail":null,"n":"\\u005cx00ff","updated_at":${T + 2}}`,
  );
});

test("a delete has its row's version, on the wire and in the tombstone", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, n, updated_at) VALUES('a', 5, ${T})`);
  await file.settle();
  file.write("DELETE FROM notes");
  await file.settle();
  const entry = file.entries().at(-1)!;
  expect([entry.op, JSON.parse(entry.row_data)]).toEqual([
    "DELETE",
    { id: "a", mail: null, n: 5, updated_at: T },
  ]);
  expect(tombstone(file, "a")).toBe(T);
});

test("a row made again goes above its tombstone", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, updated_at) VALUES('a', ${T})`);
  file.write("DELETE FROM notes");
  await file.settle();
  file.write(`INSERT INTO notes(id, updated_at) VALUES('a', ${T})`);
  await file.settle();
  expect(stamps(file, "a")).toEqual([file.clock.ms, file.clock.ms]);
  expect(tombstone(file, "a")).toBe(T);
});

test("rows thrown out by REPLACE become deletes, before what took their place", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, mail, n, updated_at) VALUES('a', 'm', 1.0, ${T})`);
  await file.settle();
  const settled = file.store.settledThrough;
  file.write(`INSERT OR REPLACE INTO notes(id, mail, updated_at) VALUES('b', 'm', ${T})`);
  await file.settle();
  expect(file.log(settled)).toEqual(["DELETE a", "INSERT b"]);
  expect(file.entries(settled)[0]?.row_data).toBe(
    `{"id":"a","mail":"m","n":1.0,"updated_at":${T}}`,
  );
  expect(tombstone(file, "a")).toBe(T);
});

test("a row that was written and then thrown out is deleted as it last was", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, mail, n, updated_at) VALUES('a', 'm', 1, ${T})`);
  await file.settle();
  const settled = file.store.settledThrough;
  file.write(`INSERT OR IGNORE INTO notes(id, mail) VALUES('x', 'm');
    UPDATE notes SET n = 2, updated_at = ${T + 1} WHERE id = 'a';
    INSERT OR REPLACE INTO notes(id, mail, updated_at) VALUES('b', 'm', ${T})`);
  await file.settle();
  expect(file.log(settled)).toEqual(["DELETE a", "INSERT b"]);
  const deleted = JSON.parse(file.entries(settled)[0]!.row_data);
  expect(deleted).toEqual({ id: "a", mail: "m", n: 2, updated_at: T + 1 });
});

test("the same where a trigger's own write was logged before the one that fired it", async () => {
  await using file = await opened(
    `${NOTES}; CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER); INSERT INTO _meta VALUES('syncing', 0);
     INSERT INTO notes VALUES('a', 'm', 1, ${T})`,
  );
  // Of two triggers the younger is the first to run.
  file.write(`CREATE TRIGGER touch AFTER UPDATE OF mail ON notes WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
    BEGIN UPDATE notes SET n = 'touched', updated_at = ${T + 2} WHERE id = NEW.id; END`);
  file.write(`BEGIN; UPDATE notes SET mail = 'q', updated_at = ${T + 1};
    INSERT OR REPLACE INTO notes(id, mail, updated_at) VALUES('b', 'q', ${T}); COMMIT`);
  expect(file.entries().map(({ row_data }) => JSON.parse(row_data).n)).toEqual([
    "touched",
    1,
    null,
  ]);
  await file.settle();
  expect(file.log()).toEqual(["DELETE a", "INSERT b"]);
  const deleted = JSON.parse(file.entries()[0]!.row_data);
  expect(deleted).toEqual({ id: "a", mail: "q", n: "touched", updated_at: T + 2 });
});

test("a DELETE is put before a row that takes its unique value, and rows keep their order", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, mail, updated_at) VALUES('a', 'm', ${T}), ('b', 'q', ${T})`);
  await file.settle();
  const settled = file.store.settledThrough;
  file.write(`BEGIN; UPDATE notes SET mail = 'free', updated_at = ${T + 1} WHERE id = 'b';
    INSERT INTO notes(id, mail, updated_at) VALUES('c', 'q', ${T});
    DELETE FROM notes WHERE id = 'a';
    INSERT INTO notes(id, mail, updated_at) VALUES('d', 'm', ${T}); COMMIT`);
  await file.settle();
  expect(file.log(settled)).toEqual(["DELETE a", "UPDATE b", "INSERT c", "INSERT d"]);
  expect(file.store.settledThrough).toBe(file.entries().at(-1)!.change_id);
});

test("a row that came and went in one pass is a delete", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, updated_at) VALUES('a', ${T}); DELETE FROM notes`);
  await file.settle();
  expect(file.log()).toEqual(["DELETE a"]);
  expect(tombstone(file, "a")).toBe(T);
});

test("what is in the way of INSERT OR IGNORE is not touched", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, mail, updated_at) VALUES('a', 'm', ${T})`);
  await file.settle();
  file.write("INSERT OR IGNORE INTO notes(id, mail) VALUES('b', 'm')");
  await file.settle();
  expect(file.log()).toEqual(["INSERT a"]);
  expect(file.rows("SELECT * FROM _hooksync_noted")).toEqual([]);
});

test("ids that are no valid UTF-8 are settled like others, and no other row with them", async () => {
  await using file = await opened();
  file.write(
    `INSERT INTO notes(id, mail) VALUES(CAST(x'61ff' AS TEXT), 'm'), ('a\ufffd', 'other')`,
  );
  await file.settle();
  const settled = file.store.settledThrough;
  file.write(`INSERT OR REPLACE INTO notes(id, mail) VALUES('b', 'm')`);
  await file.settle();
  expect(
    file.rows(
      `SELECT op, hex(row_id) AS id FROM _changes WHERE change_id > ? ORDER BY change_id`,
      settled,
    ),
  ).toEqual([
    { op: "DELETE", id: "61FF" },
    { op: "INSERT", id: "62" },
  ]);
  expect(file.rows("SELECT hex(id) AS id FROM _hooksync_tombstones")).toEqual([{ id: "61FF" }]);
  expect(file.rows("SELECT updated_at AS u FROM notes WHERE id = 'a\ufffd'")).toEqual([
    { u: file.clock.ms },
  ]);
});

test("rows without an id stay out, whatever happens to them", async () => {
  await using file = await opened();
  file.write("INSERT INTO notes(id, n) VALUES(NULL, 1), (NULL, 2), (x'00', 3)");
  file.write("UPDATE notes SET n = 9; DELETE FROM notes WHERE id IS NULL");
  await file.settle();
  expect(file.log()).toEqual([]);
  file.write("UPDATE notes SET id = 'named' WHERE id = x'00'");
  await file.settle();
  expect(file.log()).toEqual(["INSERT named"]);
  file.write("UPDATE notes SET id = NULL WHERE id = 'named'");
  await file.settle();
  expect(file.log()).toEqual(["INSERT named", "DELETE named"]);
});

test("a note that our own write left is not the past of a later one", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes(id, updated_at) VALUES('a', ${T})`);
  await file.settle();
  const { ms } = file.clock;
  await file.store.queue.run("local", (transaction) => {
    file.store.db.run(
      `INSERT INTO notes(id, updated_at) VALUES('a', ${ms}) ON CONFLICT(id) DO UPDATE SET updated_at = excluded.updated_at`,
    );
    transaction.logged(1);
  });
  expect(file.rows("SELECT * FROM _hooksync_noted")).toEqual([]);
  file.clock.ms -= 5_000;
  file.write(`UPDATE notes SET n = 1, updated_at = ${T + 1}`);
  await file.settle();
  expect(stamps(file, "a")).toEqual([ms + 1, ms + 1]);
});

test("what the application's trigger adds to a write of ours is settled with it", async () => {
  await using file = await opened(
    `${NOTES}; CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER); INSERT INTO _meta VALUES('syncing', 0);
     CREATE TABLE counts(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER);
     CREATE TRIGGER counting AFTER INSERT ON notes WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
     BEGIN INSERT INTO counts(id, n) VALUES('notes', 1) ON CONFLICT(id) DO UPDATE SET n = n + 1; END`,
    ["notes", "counts"],
  );
  await file.store.queue.run("local", (transaction) => {
    file.store.db.run(`INSERT INTO notes(id, updated_at) VALUES('a', ${T})`);
    transaction.logged(1);
  });
  expect(file.log().sort()).toEqual(["INSERT a", "INSERT notes"]);
  expect(file.rows("SELECT updated_at AS u FROM counts")).toEqual([{ u: file.clock.ms }]);
  expect(file.store.settledThrough).toBe(file.entries().at(-1)!.change_id);
});

test("change numbers rise, also where INSERT OR FAIL left one that SQLite forgot", async () => {
  await using file = await opened();
  expect(() =>
    file.write("INSERT OR FAIL INTO notes(id, mail) VALUES('a', 'm'), ('b', 'm')"),
  ).toThrow("UNIQUE");
  await file.settle();
  const { settledThrough } = file.store;
  expect(settledThrough).toBe(1);
  // All peers have it: pruned.
  await file.store.queue.run("apply", () => file.store.db.run("DELETE FROM _changes"));
  file.write("INSERT INTO notes(id) VALUES('c')");
  await file.settle();
  expect(file.entries().map((entry) => entry.change_id)).toEqual([settledThrough + 1]);
  expect(file.store.settledThrough).toBe(settledThrough + 1);
});

describe("the application's trigger forbids a lift", () => {
  const guardian = (verdict: string) => `${NOTES};
    INSERT INTO notes(id, n, updated_at) VALUES('held', 'x', ${T}), ('free', 'x', ${T});
    CREATE TRIGGER guardian BEFORE UPDATE OF updated_at ON notes WHEN OLD.id LIKE 'held%'
    BEGIN SELECT RAISE(${verdict}); END`;

  test.each([
    ["ABORT", "ABORT, 'append only'", "append only"],
    ["FAIL", "FAIL, 'append only'", "append only"],
    ["IGNORE", "IGNORE", "nothing"],
  ])(
    "with RAISE(%s): that row stays as it is and is said, others are lifted",
    async (_, verdict, why) => {
      await using file = await opened(guardian(verdict));
      file.write("UPDATE notes SET n = 'y'");
      await file.settle();
      expect(stamps(file, "held")).toEqual([T, T]);
      expect(stamps(file, "free")).toEqual([file.clock.ms, file.clock.ms]);
      file.write("INSERT INTO notes(id) VALUES('held too')");
      await file.settle();
      expect(stamps(file, "held too")).toEqual([null, null]);
      const said = file.events.filter((event) => event.kind === "lift-refused");
      expect(said).toHaveLength(1);
      expect(said[0]).toMatchObject({ table: "notes", text: expect.stringContaining(why) });
    },
  );

  test("a stamp that peers do not take is version 0 to them", async () => {
    await using file = await opened(guardian("ABORT, 'append only'"));
    file.write(
      "INSERT INTO notes(id, updated_at) VALUES('held low', -9007199254740992), ('held text', 'x')",
    );
    await file.settle();
    expect(stamps(file, "held low")).toEqual([-9007199254740992, 0]);
    expect(stamps(file, "held text")).toEqual(["x", 0]);
  });

  test("with RAISE(ROLLBACK): a write that comes next does not pay for it", async () => {
    await using file = await opened(guardian("ROLLBACK, 'append only'"));
    file.write("UPDATE notes SET n = 'y'");
    const written = file.store.queue.run("local", (transaction) => {
      file.store.db.run(`INSERT INTO notes(id, updated_at) VALUES('ours', ${T})`);
      transaction.logged(1);
      return "written";
    });
    expect(await written).toBe("written");
    expect(file.log()).toEqual(["UPDATE held", "UPDATE free", "INSERT ours"]);
    expect(stamps(file, "held")).toEqual([T, T]);
    expect(file.store.settledThrough).toBe(3);
    expect(file.kinds()).toContain("lift-refused");
    expect(file.rows("SELECT value FROM _meta")).toEqual([{ value: 0 }]);
  });
});

test("what the application's trigger says of a conflict counts when a stamp is lifted, too", async () => {
  await using file = await opened(`${NOTES}; CREATE TABLE seen(what TEXT PRIMARY KEY, n);
    CREATE TRIGGER seeing AFTER UPDATE ON notes BEGIN INSERT OR IGNORE INTO seen VALUES('notes', NEW.n); END`);
  file.write(`INSERT INTO notes(id, n, updated_at) VALUES('a', 1, ${T}), ('b', 1, ${T})`);
  await file.settle();
  file.write("UPDATE notes SET n = 2");
  await file.settle();
  expect([stamps(file, "a"), stamps(file, "b")]).toEqual([
    [file.clock.ms, file.clock.ms],
    [file.clock.ms, file.clock.ms],
  ]);
  expect([file.kinds(), file.rows("SELECT n FROM seen")]).toEqual([["registered"], [{ n: 2 }]]);
});

test("an FTS5 index with the customary triggers follows what settling changes", async () => {
  await using file = await opened(`${NOTES};
    CREATE VIRTUAL TABLE fts USING fts5(mail, content = 'notes', content_rowid = 'rowid');
    CREATE TRIGGER notes_ai AFTER INSERT ON notes BEGIN INSERT INTO fts(rowid, mail) VALUES(new.rowid, new.mail); END;
    CREATE TRIGGER notes_ad AFTER DELETE ON notes BEGIN INSERT INTO fts(fts, rowid, mail) VALUES('delete', old.rowid, old.mail); END;
    CREATE TRIGGER notes_au AFTER UPDATE ON notes BEGIN
      INSERT INTO fts(fts, rowid, mail) VALUES('delete', old.rowid, old.mail);
      INSERT INTO fts(rowid, mail) VALUES(new.rowid, new.mail); END`);
  file.write("INSERT INTO notes(id, mail) VALUES('a', 'whale'), ('b', 'fox')");
  await file.settle();
  file.write("UPDATE notes SET mail = 'owl' WHERE id = 'a'");
  await file.settle();
  expect(file.rows("SELECT mail FROM fts WHERE fts MATCH 'whale OR owl'")).toEqual([
    { mail: "owl" },
  ]);
  file.write("INSERT INTO fts(fts) VALUES('integrity-check')");
  expect(file.log()).toEqual(["INSERT a", "INSERT b", "UPDATE a"]);
});
