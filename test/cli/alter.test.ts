/** `alter` as a process: with a node on the file and without, and what it refuses. */
import { Database } from "bun:sqlite";
import { afterAll, afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseAlteration } from "../../lib/store/alter-table.ts";
import { run, type Started, start } from "./run.ts";

/** Several processes each, one after the other, on a machine that has other things to do. */
const TEST_MS_MAX = 30_000;
setDefaultTimeout(TEST_MS_MAX);

const SCRATCH = mkdtempSync(join(tmpdir(), "hook-sync-alter-"));
afterAll(() => rmSync(SCRATCH, { recursive: true, force: true }));

const SCHEMA = `
  CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, price REAL, updated_at INTEGER);
  CREATE INDEX items_by_name ON items(name);`;

/** A folder with the application's file, and what a test does to it. */
function file(sql = SCHEMA, copiedFrom?: string) {
  const cwd = mkdtempSync(join(SCRATCH, "app-"));
  if (copiedFrom !== undefined) copyFileSync(join(copiedFrom, "app.db"), join(cwd, "app.db"));
  const sqlIn = <T>(work: (db: Database) => T): T => {
    const db = new Database(join(cwd, "app.db"));
    db.run("PRAGMA busy_timeout = 3000");
    try {
      return work(db);
    } finally {
      db.close(true);
    }
  };
  if (copiedFrom === undefined) sqlIn((db) => db.run(sql));
  return {
    cwd,
    exec: (text: string) => sqlIn((db) => db.run(text)),
    rows: (text: string) => sqlIn((db) => db.query(text).values()),
    alter: (text: string) => run(["alter", "--db", "app.db", text], { cwd, msMax: TEST_MS_MAX }),
    schema: () =>
      sqlIn((db) =>
        db
          .query("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
          .values(),
      ),
  };
}

const running: Started[] = [];
afterEach(async () => {
  for (const node of running.splice(0)) {
    node.kill("SIGKILL");
    await node.exited;
  }
});

interface NodeOptions {
  readonly id?: string;
  readonly tables?: string;
  readonly peers?: readonly string[];
}

async function node(cwd: string, { id = "a", tables = "items", peers = [] }: NodeOptions = {}) {
  const argv = ["--id", id, "--db", "app.db", "--listen", "127.0.0.1:0", "--tables", tables];
  const started = start([...argv, ...peers.flatMap((url) => ["--peer", url])], {
    cwd,
    msMax: TEST_MS_MAX,
  });
  running.push(started);
  const out = await started.printed("out", "peers");
  const url = /http:\/\/127\.0\.0\.1:\d+/.exec(out)![0];
  const json = async (path: string, init?: RequestInit) => {
    const answer = await fetch(`${url}${path}`, {
      ...init,
      headers: { "Content-Type": "application/json" },
    });
    return { status: answer.status, body: JSON.parse(await answer.text()) };
  };
  const stop = async () => {
    started.kill("SIGTERM");
    const { code, err } = await started.ended();
    expect(code).toBe(0);
    return err;
  };
  return { url, out, json, stop };
}

const templates = new Map<string, string>();

/** A file that a node has adopted and left. */
async function adopted(sql = SCHEMA) {
  const template = templates.get(sql);
  if (template !== undefined) return file(sql, template);
  const app = file(sql);
  await (await node(app.cwd)).stop();
  templates.set(sql, app.cwd);
  return file(sql, app.cwd);
}

/** Asks again until it is so; the test's own limit ends it otherwise. */
async function until(probe: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await probe())) await Bun.sleep(10);
}

const SETTLED = "019344c0-0000-7000-8000-000000000000";
const captured = "SELECT row_data FROM _changes ORDER BY change_id";

test("DROP COLUMN, which SQLite refuses while the triggers stand", async () => {
  const app = await adopted();
  app.exec("INSERT INTO items VALUES ('a', 'tea', 1.5, 1)");
  expect(() => app.exec("ALTER TABLE items DROP COLUMN price")).toThrow(/error in trigger items_/);
  const { code, out, err } = await app.alter("ALTER TABLE items DROP COLUMN price");
  expect([err, out, code]).toEqual(["", "items: done; it is synced as before\n", 0]);
  app.exec("INSERT INTO items VALUES ('b', 'rice', 2)");
  const again = await node(app.cwd);
  expect((await again.json("/health")).body).toMatchObject({ ok: true, pending_changes: 2 });
  // No gap: what was captured before is there once, and nothing is announced again.
  expect(await again.stop()).not.toContain("missing");
  const entries = app.rows(captured).map(([text]) => JSON.parse(String(text)));
  expect(entries).toEqual([
    { id: "a", name: "tea", updated_at: expect.any(Number) },
    { id: "b", name: "rice", updated_at: 2 },
  ]);
  expect(readdirSync(app.cwd).filter((name) => /-wal|-shm/.test(name))).toEqual([]);
});

test("under a running node: DROP, ADD and RENAME COLUMN reach a peer that does the same", async () => {
  const [here, there] = [file(), file()];
  const b = await node(there.cwd, { id: "b" });
  const a = await node(here.cwd, { peers: [b.url] });
  const post = (body: unknown) =>
    a.json("/api/items", { method: "POST", body: JSON.stringify(body) });
  expect((await post({ name: "tea", price: 1.5 })).status).toBe(201);
  for (const sql of [
    "ALTER TABLE items DROP COLUMN price",
    "alter table main.[items] add column note TEXT DEFAULT 'none';",
    'ALTER TABLE "items" RENAME COLUMN name TO "the title" -- as it is called now',
  ]) {
    for (const app of [here, there]) {
      const { code, err } = await app.alter(sql);
      expect([err, code]).toEqual(["", 0]);
    }
  }
  const made = await post({ "the title": "rice", note: "brown" });
  expect(made.status).toBe(201);
  here.exec("UPDATE items SET note = 'green' WHERE \"the title\" = 'tea'");
  await until(async () => (await a.json("/health")).body.pending_changes === 0);
  const content = 'SELECT * FROM items ORDER BY "the title"';
  expect(here.rows(content)).toEqual(there.rows(content));
  expect(there.rows('SELECT "the title", note FROM items ORDER BY 1')).toEqual([
    ["rice", "brown"],
    ["tea", "green"],
  ]);
  expect((await b.json("/health")).body).toMatchObject({ ok: true, dead_letter: 0 });
});

test("RENAME COLUMN puts right what waits, also several times and with other changes between", async () => {
  const app = file();
  const a = await node(app.cwd, { peers: ["http://127.0.0.1:9"] });
  const body = JSON.stringify({ name: "sent later", price: 2 });
  await a.json("/api/items", { method: "POST", body });
  await a.stop();
  app.exec("INSERT INTO items VALUES ('x', 'captured under the old name', 1.0, 5)");
  for (const sql of [
    "ALTER TABLE items RENAME COLUMN name TO title",
    "ALTER TABLE items DROP COLUMN price",
    "ALTER TABLE items ADD COLUMN extra BLOB",
    "ALTER TABLE items RENAME title TO headline",
    "ALTER TABLE items RENAME TO goods",
  ]) {
    expect((await app.alter(sql)).code).toBe(0);
  }
  app.exec("INSERT INTO goods VALUES ('y', 'captured under the new one', 6, x'00')");
  const there = file(
    "CREATE TABLE goods(id TEXT PRIMARY KEY, headline TEXT, updated_at INTEGER, extra BLOB)",
  );
  const b = await node(there.cwd, { id: "b", tables: "goods" });
  const again = await node(app.cwd, { tables: "goods", peers: ["http://127.0.0.1:9", b.url] });
  // The third comes by filling: a peer that is new gets every row under the table's name of now.
  await until(() => there.rows("SELECT * FROM goods").length === 3);
  expect(there.rows("SELECT headline, extra IS NULL FROM goods ORDER BY updated_at")).toEqual([
    ["captured under the old name", 1],
    ["captured under the new one", 0],
    ["sent later", 1],
  ]);
  // What had been settled leaves under the table's old name, and with the column's new one.
  const settled = app.rows("SELECT table_name, row_data FROM _changes ORDER BY change_id LIMIT 1");
  expect(settled[0]![0]).toBe("items");
  expect(JSON.parse(String(settled[0]![1]))).toMatchObject({ headline: "sent later" });
  expect((await again.json("/health")).body.tables.synced).toEqual(["goods"]);
});

test("RENAME TO under a running node: it goes on under the new name", async () => {
  const app = file();
  const a = await node(app.cwd);
  const created = await a.json("/api/items", { method: "POST", body: '{"name":"tea"}' });
  const { code, out } = await app.alter("ALTER TABLE items RENAME TO 'Gute Waren'");
  expect([out, code]).toEqual(["Gute Waren: done; it is synced as before\n", 0]);
  const path = `/api/${encodeURIComponent("Gute Waren")}`;
  await until(async () => (await a.json(path)).status === 200);
  expect((await a.json(path)).body).toEqual([created.body]);
  expect((await a.json("/api/items")).status).toBe(404);
  expect((await a.json("/health")).body).toMatchObject({
    ok: true,
    tables: { synced: ["Gute Waren"] },
  });
  await a.stop();
  // The selection was carried over: a start that says nothing of tables syncs it.
  const again = await node(app.cwd, { tables: "Gute Waren" });
  expect(again.out).toContain("syncing Gute Waren\n");
});

test("a gap that nobody has looked at is not covered up", async () => {
  const app = await adopted();
  app.exec("DROP TRIGGER items_ai; INSERT INTO items VALUES ('unseen', 'n', 1, 1)");
  expect((await app.alter("ALTER TABLE items DROP COLUMN price")).code).toBe(0);
  const again = await node(app.cwd);
  await until(async () => (await again.json("/health")).body.pending_changes === 1);
  expect((await again.json("/health")).body.warnings.join()).toContain("triggers were missing");
  const entries = app.rows(captured).map(([text]) => JSON.parse(String(text)).id);
  expect(entries).toEqual(["unseen"]);
});

test("what other programs had changed before is followed first", async () => {
  const app = file();
  const a = await node(app.cwd, { peers: ["http://127.0.0.1:9"] });
  const body = JSON.stringify({ id: SETTLED, name: "settled", price: 2 });
  expect((await a.json("/api/items", { method: "POST", body })).status).toBe(201);
  await a.stop();
  app.exec("INSERT INTO items VALUES ('a', 'tea', 1.5, 1)");
  app.exec("ALTER TABLE items RENAME COLUMN name TO title");
  app.exec("ALTER TABLE items ADD COLUMN note TEXT");
  app.exec("UPDATE items SET note = 'under the old triggers', updated_at = 2 WHERE id = 'a'");
  expect((await app.alter("ALTER TABLE items DROP COLUMN price")).code).toBe(0);
  await (await node(app.cwd, { peers: ["http://127.0.0.1:9"] })).stop();
  const entries = app.rows(captured).map(([text]) => JSON.parse(String(text)));
  expect(entries).toEqual([
    { id: SETTLED, title: "settled", price: 2, updated_at: expect.any(Number) },
    { id: "a", title: "tea", note: "under the old triggers", updated_at: 2 },
  ]);
});

test.each([
  ["items DROP COLUMN updated_at", "could not be synced any more: it has no column updated_at"],
  ["items RENAME COLUMN id TO key", "could not be synced any more: it has no column id"],
  ["items DROP COLUMN name", "SQLite refuses: error in index items_by_name after drop column"],
  ["items DROP COLUMN id", "SQLite refuses: cannot drop PRIMARY KEY column"],
  ["items ADD COLUMN n NOT NULL", "SQLite refuses: Cannot add a NOT NULL column"],
  ["items RENAME TO other", "SQLite refuses: there is already another table"],
  ["items RENAME COLUMN none TO x", "SQLite refuses: no such column"],
  ["items DROP COLUMN", "SQLite refuses: "],
  ["nothing ADD COLUMN x", "there is no ordinary table nothing"],
  ["_changes ADD COLUMN x", "_changes belongs to hook-sync"],
])("ALTER TABLE %s: exit 1, and nothing was changed", async (sql, said) => {
  const app = await adopted(`${SCHEMA} CREATE TABLE other(x)`);
  app.exec("INSERT INTO items VALUES ('a', 'tea', 1.5, 1)");
  const everything = () => [
    app.schema(),
    app.rows("SELECT * FROM items"),
    app.rows("SELECT * FROM _changes"),
    app.rows("SELECT * FROM _hooksync"),
  ];
  const before = everything();
  const { code, out, err } = await app.alter(`ALTER TABLE ${sql}`);
  expect(err).toMatch(/^hook-sync: .*\n$/);
  expect(err).toContain(said);
  expect([out, code]).toEqual(["", 1]);
  expect(everything()).toEqual(before);
});

test("a table that is not synced, and a file that never was: as SQLite does it", async () => {
  const app = file(`${SCHEMA} CREATE TABLE other(x, y)`);
  const plain = await app.alter("ALTER TABLE other DROP COLUMN x");
  expect([plain.out, plain.code]).toEqual(["other: done; no capture trigger stands on it\n", 0]);
  await (await node(app.cwd)).stop();
  const { out, code } = await app.alter("ALTER TABLE other RENAME COLUMN y TO z");
  expect([out, code]).toEqual(["other: done; no capture trigger stands on it\n", 0]);
  expect(app.rows("SELECT name FROM pragma_table_info('other')")).toEqual([["z"]]);
});

test("no such file: exit 1, and none is made", async () => {
  const cwd = mkdtempSync(join(SCRATCH, "app-"));
  const argv = ["alter", "--db", "none.db", "ALTER TABLE t ADD COLUMN x"];
  const { code, err } = await run(argv, { cwd, msMax: TEST_MS_MAX });
  expect(err).toBe("hook-sync: there is no file none.db. Give the path of an SQLite database.\n");
  expect([code, readdirSync(cwd)]).toEqual([1, []]);
});

test.each([
  ["", "expected one ALTER TABLE statement"],
  ["DROP TABLE items", "expected one ALTER TABLE statement"],
  ["ALTER TABLE items ADD COLUMN x; DROP TABLE items", "and only one"],
  ["ALTER TABLE items ADD COLUMN x;;DROP TABLE items;", "and only one"],
  ["ALTER TABLE temp.items ADD COLUMN x", "expected a table of this file"],
  ["ALTER TABLE items ADD COLUMN x\0; DROP TABLE items", "expected one ALTER TABLE statement"],
  ["ALTER TABLE", "expected one ALTER TABLE statement"],
  ["ALTER VIEW v", "expected one ALTER TABLE statement"],
])("%j is not one ALTER TABLE", (sql, said) => {
  expect(parseAlteration(sql)).toEqual({ right: expect.stringContaining(said) });
});

test.each([
  ["ALTER TABLE items DROP COLUMN x;", "items", undefined],
  ['alter table Main . "it""ems" rename to \'new one\' ; -- done', 'it"ems', "new one"],
  ["ALTER TABLE items RENAME TO TO b", "items", undefined],
  ["ALTER TABLE items ADD COLUMN x DEFAULT '; DROP TABLE items' /* ; */", "items", undefined],
])("%j alters a table", (sql, table, renamedTo) => {
  expect(parseAlteration(sql)).toMatchObject({ table, renamedTo });
});

test.each([
  [["alter", "--db", "app.db"], "SQL: expected one ALTER TABLE"],
  [["alter", "ALTER TABLE t ADD COLUMN x"], "--db: missing"],
  [["alter", "--db", "a.db", "ALTER TABLE t ADD COLUMN x", "y"], 'argument "y": expected no such'],
  [["alter", "--db", "a.db", "DROP TABLE t"], 'SQL "DROP TABLE t": expected one ALTER TABLE'],
])("%p: exit 2", async (argv, said) => {
  const { code, out, err } = await run(argv);
  expect(err).toContain(`hook-sync: ${said}`);
  expect(err).toEndWith("Try: hook-sync help alter\n");
  expect([out, code]).toEqual(["", 2]);
});
