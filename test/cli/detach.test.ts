/** `detach` as a process: the file is as it was before it was a node's, with the data it has now. */
import { Database } from "bun:sqlite";
import { afterAll, afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run, type Started, start } from "./run.ts";

/** Several processes each, one after the other, on a machine that has other things to do. */
const TEST_MS_MAX = 30_000;
setDefaultTimeout(TEST_MS_MAX);

const SCRATCH = mkdtempSync(join(tmpdir(), "hook-sync-detach-"));
afterAll(() => rmSync(SCRATCH, { recursive: true, force: true }));

const running: Started[] = [];
afterEach(async () => {
  for (const node of running.splice(0)) {
    node.kill("SIGKILL");
    await node.exited;
  }
});

/** AUTOINCREMENT: SQLite keeps a table for it that nothing can take out again. */
const SCHEMA = `
  CREATE TABLE docs(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
  CREATE TABLE audit(n INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT);
  CREATE INDEX docs_by_body ON docs(body);
  CREATE VIRTUAL TABLE docs_fts USING fts5(body, content = 'docs', content_rowid = 'rowid');
  CREATE TRIGGER docs_ai AFTER INSERT ON docs
  BEGIN INSERT INTO docs_fts(rowid, body) VALUES (NEW.rowid, NEW.body); END;
  CREATE TRIGGER docs_log AFTER UPDATE ON docs BEGIN INSERT INTO audit(what) VALUES (OLD.body); END;
  CREATE VIEW recent AS SELECT * FROM docs;
  INSERT INTO docs VALUES ('old', 'from before', 1);`;

function file(sql = SCHEMA) {
  const cwd = mkdtempSync(join(SCRATCH, "app-"));
  const sqlIn = <T>(work: (db: Database) => T): T => {
    const db = new Database(join(cwd, "app.db"));
    try {
      return work(db);
    } finally {
      db.close(true);
    }
  };
  sqlIn((db) => db.run(sql));
  return {
    cwd,
    path: join(cwd, "app.db"),
    exec: (text: string) => sqlIn((db) => db.run(text)),
    rows: (text: string) => sqlIn((db) => db.query(text).values()),
    schema: () =>
      sqlIn((db) =>
        db
          .query("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
          .values(),
      ),
    detach: (...argv: string[]) =>
      run(["detach", "--db", "app.db", ...argv], { cwd, msMax: TEST_MS_MAX }),
  };
}

async function node(cwd: string, ...argv: string[]) {
  const started = start(["--id", "a", "--db", "app.db", "--listen", "127.0.0.1:0", ...argv], {
    cwd,
    msMax: TEST_MS_MAX,
  });
  running.push(started);
  const out = await started.printed("out", "peers");
  const stop = async () => {
    started.kill("SIGTERM");
    expect((await started.ended()).code).toBe(0);
  };
  return { stop, url: /http:\/\/127\.0\.0\.1:\d+/.exec(out)![0] };
}

const insert = (url: string, body: string) =>
  fetch(`${url}/api/docs`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ body }),
  });

test("everything of ours goes, everything of the application stays", async () => {
  const app = file();
  const before = app.schema();
  const a = await node(app.cwd, "--tables", "docs");
  expect((await insert(a.url, "by REST")).status).toBe(201);
  await a.stop();
  app.exec("UPDATE docs SET body = 'changed' WHERE id = 'old'");
  expect(app.schema()).not.toEqual(before);
  const data = app.rows("SELECT rowid, * FROM docs ORDER BY id");

  const { code, out, err } = await app.detach("--force");
  expect(err).toBe("");
  expect(out).toStartWith("app.db: detached; no longer captured: docs\n");
  expect(out).toContain("lost with the log: 2 unsent changes (no peer has been set)\n");
  expect(code).toBe(0);
  expect(app.schema()).toEqual(before);
  expect(app.rows("SELECT rowid, * FROM docs ORDER BY id")).toEqual(data);
  expect(readdirSync(app.cwd).filter((name) => /-wal|-shm/.test(name))).toEqual([]);

  // The application goes on, its index and its log with it.
  app.exec("INSERT INTO docs VALUES ('new', 'written afterwards', 3)");
  app.exec("UPDATE docs SET body = 'again' WHERE id = 'old'");
  expect(app.rows("SELECT rowid FROM docs_fts WHERE docs_fts MATCH 'afterwards'")).toHaveLength(1);
  expect(app.rows("SELECT what FROM audit")).toEqual([["from before"], ["changed"]]);
  expect(app.rows("PRAGMA integrity_check")).toEqual([["ok"]]);
});

test("what would be lost is counted and needs --force; nothing was changed until then", async () => {
  const app = file();
  const peers = ["--peer", "http://127.0.0.1:9", "--peer", "http://127.0.0.1:10"];
  const a = await node(app.cwd, "--tables", "docs", ...peers);
  for (const body of ["x", "y"]) await insert(a.url, body);
  const parked = { op: "INSERT", table: "none", row: { id: "i", updated_at: 1 }, old_id: null };
  const sync = await fetch(`${a.url}/sync`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Node-Id": "c" },
    body: JSON.stringify({ batch_id: 1, changes: [{ ...parked, table: "docs", row: { id: 5 } }] }),
  });
  expect(sync.status).toBe(200);
  await a.stop();
  app.exec("UPDATE _peer_state SET last_acked = 1 WHERE peer_url LIKE '%:10'");
  app.exec("INSERT INTO _dead_letter(op, row_id, direction) VALUES ('UPDATE', 'z', 'sent')");

  const before = readFileSync(app.path);
  const { code, out, err } = await app.detach();
  expect(err).toBe(
    "hook-sync: app.db holds what would be lost: " +
      "2 unsent changes (http://127.0.0.1:10 lacks 1, http://127.0.0.1:9 lacks 2), " +
      "1 dead letter that could not be applied here, 1 dead letter that a peer refused. " +
      "Start the node and let it send, or add --force.\n",
  );
  expect([out, code]).toEqual(["", 1]);
  expect(readFileSync(app.path).equals(before)).toBe(true);
  expect((await app.detach("--force")).code).toBe(0);
  expect(app.rows("SELECT body FROM docs ORDER BY 1")).toEqual([["from before"], ["x"], ["y"]]);
});

test("with nothing to lose it needs no --force, and a second time finds nothing", async () => {
  const app = file();
  const before = app.schema();
  await (await node(app.cwd, "--tables", "docs")).stop();
  const { code, out } = await app.detach();
  expect(out).toContain("lost with the log: nothing\n");
  expect([code, app.schema()]).toEqual([0, before]);
  const again = await app.detach();
  expect([again.out, again.code]).toEqual(["app.db: nothing of hook-sync is in it\n", 0]);
  expect(app.schema()).toEqual(before);
});

test("while a node uses the file it refuses, and the node goes on", async () => {
  const app = file();
  const a = await node(app.cwd, "--tables", "docs");
  const { code, out, err } = await app.detach("--force");
  expect(err).toMatch(/^hook-sync: .*app\.db is in use by another hook-sync node\. .*\n$/);
  expect([out, code]).toEqual(["", 1]);
  expect((await insert(a.url, "still")).status).toBe(201);
  await a.stop();
  expect(app.rows("SELECT count(*) FROM _changes")).toEqual([[1]]);
});

test("a guarded trigger of the application keeps the table that it reads, and goes on working", async () => {
  const app = file(
    `CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER);
     INSERT INTO _meta VALUES ('syncing', 0);
     CREATE TABLE docs(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
     CREATE TRIGGER docs_touch AFTER UPDATE ON docs
     WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
     BEGIN UPDATE docs SET updated_at = 7 WHERE id = NEW.id; END;
     CREATE TABLE other(n INTEGER PRIMARY KEY AUTOINCREMENT);`,
  );
  const before = app.schema();
  await (await node(app.cwd, "--tables", "docs")).stop();
  const { code, out } = await app.detach();
  expect(out).toContain(
    "_meta stays, because your trigger docs_touch reads it; once that is gone: DROP TABLE _meta;\n",
  );
  expect([code, app.schema()]).toEqual([0, before]);
  app.exec("INSERT INTO docs VALUES ('a', 'x', 1); UPDATE docs SET body = 'y'");
  expect(app.rows("SELECT * FROM docs")).toEqual([["a", "y", 7]]);
});

test("a file of another make is taken out of syncing as well", async () => {
  const app = file(
    `CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, updated_at INTEGER);
     CREATE TABLE other(n INTEGER PRIMARY KEY AUTOINCREMENT);`,
  );
  const before = app.schema();
  app.exec(`
    CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER);
    INSERT INTO _meta VALUES ('syncing', 0);
    CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT);
    CREATE TABLE _dead_letter(dead_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT);
    INSERT INTO _dead_letter(op) VALUES ('INSERT');
    CREATE TRIGGER items_ai AFTER INSERT ON items
    WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
    BEGIN INSERT INTO _changes(op, row_id, row_data)
      VALUES ('INSERT', NEW.id, json_object('id', NEW.id, 'updated_at', NEW.updated_at)); END;
    INSERT INTO items VALUES ('a', 'n', 1);`);
  const refused = await app.detach();
  expect(refused.err).toContain(
    "1 unsent change (no peer has been set), 1 dead letter that a peer refused",
  );
  const { code, out } = await app.detach("--force");
  expect(out).toContain("no longer captured: items\n");
  expect([code, app.schema()]).toEqual([0, before]);
  expect(app.rows("SELECT * FROM items")).toEqual([["a", "n", 1]]);
});

test("tables of our names that are somebody else's are left alone: exit 1", async () => {
  const app = file("CREATE TABLE _changes(theirs TEXT); INSERT INTO _changes VALUES ('x')");
  const before = readFileSync(app.path);
  const { code, err } = await app.detach("--force");
  expect(err).toContain("it belongs to another program");
  expect([code, readFileSync(app.path).equals(before)]).toEqual([1, true]);
});

test("no file is made, and no file that is not a database is touched", async () => {
  const cwd = mkdtempSync(join(SCRATCH, "app-"));
  copyFileSync(import.meta.path, join(cwd, "text.db"));
  const none = await run(["detach", "--db", "none.db"], { cwd, msMax: TEST_MS_MAX });
  expect([none.err, none.code]).toEqual([
    "hook-sync: there is no file none.db. Give the path of an SQLite database.\n",
    1,
  ]);
  const text = await run(["detach", "--db", "text.db"], { cwd, msMax: TEST_MS_MAX });
  expect(text.err).toContain("text.db is not an SQLite database");
  expect([text.code, readdirSync(cwd)]).toEqual([1, ["text.db"]]);
});

test.each([
  [["detach"], "--db: missing"],
  [["detach", "--db", "a.db", "--forced"], "--forced: no such flag; did you mean --force?"],
  [["detach", "--db", "a.db", "b.db"], 'argument "b.db": expected no such word here'],
])("%p: exit 2", async (argv, said) => {
  const { code, out, err } = await run(argv);
  expect(err).toContain(`hook-sync: ${said}`);
  expect(err).toEndWith("Try: hook-sync help detach\n");
  expect([out, code]).toEqual(["", 2]);
});
