/** `check` as a process: what it says of a file, its exit codes, and that it leaves no trace. */
import { Database } from "bun:sqlite";
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import {
  copyFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run, start } from "./run.ts";

/** Several processes each, one after the other, on a machine that has other things to do. */
const TEST_MS_MAX = 30_000;
setDefaultTimeout(TEST_MS_MAX);

const SCRATCH = mkdtempSync(join(tmpdir(), "hook-sync-check-"));
afterAll(() => rmSync(SCRATCH, { recursive: true, force: true }));

const folder = () => mkdtempSync(join(SCRATCH, "app-"));

const APPLICATION = `
  CREATE TABLE customers(id TEXT PRIMARY KEY, email TEXT UNIQUE, updated_at INTEGER);
  CREATE TABLE orders(
    id TEXT PRIMARY KEY, customer TEXT REFERENCES customers ON DELETE CASCADE, total REAL,
    twice GENERATED ALWAYS AS (total * 2), updated_at INTEGER);
  CREATE TABLE docs(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
  CREATE VIRTUAL TABLE docs_fts USING fts5(body, content = 'docs', content_rowid = 'rowid');
  CREATE TRIGGER docs_ai AFTER INSERT ON docs
  BEGIN INSERT INTO docs_fts(rowid, body) VALUES (NEW.rowid, NEW.body); END;
  CREATE TABLE notes(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
  CREATE TRIGGER notes_touch AFTER UPDATE ON notes
  BEGIN UPDATE notes SET updated_at = 1 WHERE id = NEW.id; END;
  CREATE TABLE audit(n INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT);
  CREATE TRIGGER orders_log AFTER UPDATE ON orders
  BEGIN INSERT INTO audit(what) VALUES (NEW.id); END;
  CREATE TABLE micro(id TEXT PRIMARY KEY, updated_at INTEGER);
  CREATE VIEW recent AS SELECT * FROM docs;
  INSERT INTO customers VALUES
    ('a', 'a@x', NULL), ('b', 'b@x', NULL), ('c', 'c@x', 1700000000),
    (NULL, 'd@x', 1700000000000), (x'00', 'e@x', 1700000000000), ('f', 'f@x', 99999999999999);
  INSERT INTO micro VALUES ('x', 1700000000000000);`;

/** A file in its folder, closed, in the journal mode asked for. */
function application(mode: "wal" | "delete" = "delete", sql = APPLICATION): string {
  const cwd = folder();
  const db = new Database(join(cwd, "app.db"));
  db.run(`PRAGMA journal_mode = ${mode}`);
  db.run(sql);
  db.close(true);
  return cwd;
}

const check = (cwd: string, ...argv: string[]) =>
  run(["check", "--db", "app.db", ...argv], { cwd, msMax: TEST_MS_MAX });

/** Every file of the folder, byte for byte. */
function contents(cwd: string): Record<string, string> {
  const entries = readdirSync(cwd).map((name) => [name, readFileSync(join(cwd, name), "latin1")]);
  return Object.fromEntries(entries);
}

test("it says of every table what speaks for and against it, and leaves no trace", async () => {
  const cwd = application("wal");
  const before = contents(cwd);
  expect(Object.keys(before)).toEqual(["app.db"]);
  const { code, out, err } = await check(cwd);
  expect(err).toBe("");
  for (const line of [
    "file app.db: never used by a node; 6 tables, 3 fit",
    "customers: fits",
    "  6 rows, 3 columns",
    "  2 rows without updated_at: version 0, they lose against anything stamped",
    "  1 row whose updated_at looks like seconds: milliseconds are expected, writes by REST outweigh them",
    "  1 row stamped more than an hour ahead: other nodes keep them until they are due",
    "  2 rows whose id is NULL or a BLOB: they stay out",
    "orders: fits",
    "  0 rows, 5 columns (1 generated: not sent)",
    "  trigger orders_log writes audit: fine, it runs for received rows, too",
    "  foreign key customer to customers ON DELETE CASCADE: fine, what it causes is sent as changes",
    "  trigger docs_ai writes docs_fts: fine, it runs for received rows, too; it keeps its name",
    "  trigger notes_touch writes notes: runs for received rows, too, and must not",
    "      WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0",
    "never synced, as they hold no rows of their own: docs_fts (virtual), recent (view)",
    "a start needs --tables, for example --tables customers,orders,docs (or '*': all that qualify, also later ones)",
  ]) {
    expect(out.split("\n")).toContain(line);
  }
  expect(out).toContain("\naudit: cannot be synced: it has no column id\n");
  expect(out).toContain("\nmicro: cannot be synced: its updated_at holds microseconds");
  expect(code).toBe(0);
  expect(contents(cwd)).toEqual(before);
});

test.each([
  ["all that were asked for fit", ["--tables", "customers,DOCS"], 0],
  ["one does not", ["--tables", "customers", "--tables", "micro"], 1],
  ["one is not there", ["--tables", "customers,nothing"], 1],
  ["one is a view", ["--tables", "recent"], 1],
  ["whatever fits", ["--tables", "*"], 0],
] as const)("exit code where %s", async (_, argv, expected) => {
  const { code, out } = await check(application(), ...argv);
  expect(out).toContain("a start with these tables would\n");
  expect(code).toBe(expected);
});

test("a start changes what was foretold, and the next would change nothing", async () => {
  const cwd = application();
  const asked = ["--tables", "customers,orders,docs"];
  const told = JSON.parse((await check(cwd, "--json", ...asked)).out);
  expect(told).toMatchObject({ ok: true, used_by: null, asked: ["customers", "orders", "docs"] });
  const schema = () => {
    const db = new Database(join(cwd, "app.db"));
    const rows = db
      .query<{ type: string; name: string; tbl_name: string }, []>(
        "SELECT type, name, tbl_name FROM sqlite_master",
      )
      .all();
    const zeroed = db.query<{ n: number }, []>(
      "SELECT count(*) AS n FROM customers WHERE updated_at = 0",
    );
    const found = { rows, zeroed: zeroed.get()!.n };
    db.close(true);
    return found;
  };
  const before = schema();
  const argv = ["--id", "a", "--db", "app.db", "--listen", "127.0.0.1:0", ...asked];
  const node = start(argv, { cwd, msMax: TEST_MS_MAX });
  await node.printed("out", "peers");
  const during = await check(cwd, ...asked);
  expect(during.out).toContain("used by hook-sync as a");
  node.kill("SIGTERM");
  expect((await node.ended()).code).toBe(0);

  const known = new Set(before.rows.map(({ name }) => name));
  const added = schema().rows.filter(({ name }) => !known.has(name));
  const tables = added.filter(({ type, name }) => type === "table" && !name.startsWith("sqlite_"));
  expect(tables.map(({ name }) => name).sort()).toEqual(told.adoption.tables_added.toSorted());
  const triggers = Map.groupBy(
    added.filter(({ type }) => type === "trigger"),
    ({ tbl_name }) => tbl_name,
  );
  expect([...triggers].map(([name, list]) => [name, list.length]).sort()).toEqual(
    told.adoption.tables_captured.toSorted().map((name: string) => [name, 5]),
  );
  expect(told.adoption.rows_zeroed).toEqual([{ table: "customers", rows: 2 }]);
  expect([before.zeroed, schema().zeroed]).toEqual([0, 2]);
  expect(told.adoption.to_wal).toBe(true);

  const after = await check(cwd);
  expect(after.out).toContain("\na start changes nothing in this file\n");
  expect([after.code, readdirSync(cwd).filter((name) => /-wal|-shm/.test(name))]).toEqual([0, []]);
});

test("it counts all rows, where a start looks at a sample of the stamps", async () => {
  const cwd = application(
    "wal",
    `CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER);
     WITH RECURSIVE n(i) AS (VALUES (1000) UNION ALL SELECT i + 1 FROM n WHERE i < 4999)
     INSERT INTO t SELECT 'id' || i, 1700000000000 FROM n;
     UPDATE t SET updated_at = 'soon' WHERE id IN ('id2500', 'id2501');
     UPDATE t SET updated_at = 1700000000000000 WHERE id = 'id2502';`,
  );
  const { out, code } = await check(cwd, "--tables", "t");
  expect(out).toContain("t: fits\n  4000 rows, 2 columns; asked for\n");
  expect(out).toContain(
    "  2 rows whose updated_at is no integer: they get a new one when they change\n",
  );
  expect(out).toContain("  1 row whose updated_at is not in milliseconds\n");
  expect(code).toBe(0);
});

test("while a node runs it sees what is only in the -wal, and the node goes on", async () => {
  const cwd = folder();
  const node = start(["--id", "a", "--db", "app.db", "--listen", "127.0.0.1:0"], {
    cwd,
    msMax: TEST_MS_MAX,
  });
  const url = /http:\/\/127\.0\.0\.1:\d+/.exec(await node.printed("out", "peers"))![0];
  const post = () =>
    fetch(`${url}/api/items`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: '{"name":"n"}',
    });
  expect((await post()).status).toBe(201);
  const { out, code } = await check(cwd, "--json");
  expect(JSON.parse(out).tables).toMatchObject([
    { name: "items", rows: 1, captured_by: "hook-sync" },
  ]);
  expect([code, (await post()).status]).toEqual([0, 201]);
  node.kill("SIGTERM");
  expect((await node.ended()).code).toBe(0);
  expect(readdirSync(cwd).sort()).toEqual(["app.db", "app.db.hook-sync-lock"]);
});

test("what kill -9 left behind is read whole and stays as it is", async () => {
  const cwd = folder();
  const live = new Database(join(cwd, "live.db"));
  live.run("PRAGMA journal_mode = WAL");
  live.run(APPLICATION);
  for (const suffix of ["", "-wal", "-shm"])
    copyFileSync(join(cwd, `live.db${suffix}`), join(cwd, `app.db${suffix}`));
  live.close();
  const before = contents(cwd);
  expect(before["app.db-wal"]!.length).toBeGreaterThan(0);
  const { out, code } = await check(cwd);
  expect(out).toContain("6 tables, 3 fit");
  const after = contents(cwd);
  expect([
    after["app.db"] === before["app.db"],
    after["app.db-wal"] === before["app.db-wal"],
  ]).toEqual([true, true]);
  expect([Object.keys(after).sort(), code]).toEqual([Object.keys(before).sort(), 0]);
});

test("a file of another make: its triggers are replaced, what it logged is carried on", async () => {
  const cwd = application(
    "wal",
    `CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, updated_at INTEGER);
     CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER);
     INSERT INTO _meta VALUES ('syncing', 0);
     CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT);
     CREATE TRIGGER items_ai AFTER INSERT ON items
     WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
     BEGIN INSERT INTO _changes(op, row_id, row_data)
       VALUES ('INSERT', NEW.id, json_object('id', NEW.id, 'updated_at', NEW.updated_at)); END;
     INSERT INTO items VALUES ('a', 'n', 1), ('b', 'n', 2);`,
  );
  const { out, code } = await check(cwd);
  expect(out).toContain("file app.db: used by a node of another make; 1 table, 1 fit");
  expect(out).toContain("add the columns _changes.table_name, _changes.was");
  expect(out).toContain("replace the capture triggers of items");
  expect(out).toContain("carry on with 2 logged changes");
  expect(out).not.toContain("add 5 capture triggers");
  expect(code).toBe(0);
});

test("tables of our names that are somebody else's: no node starts, exit 1", async () => {
  const cwd = application("wal", "CREATE TABLE _changes(x); CREATE TABLE t(id TEXT PRIMARY KEY)");
  const { out, code } = await check(cwd);
  expect(out).toContain("no node starts on this file: the file has a table _changes without");
  expect(out).toContain("t: cannot be synced: it has no column updated_at");
  expect(code).toBe(1);
});

test.each([
  ["is not there", undefined, "there is no file app.db"],
  [
    "is no database",
    "just text, long enough to be more than a header would be",
    "is not an SQLite",
  ],
  ["is damaged", `SQLite format 3\0${"x".repeat(4_080)}`, "app.db"],
])("a file that %s: one line, exit 1, nothing made", async (_, text, said) => {
  const cwd = folder();
  if (text !== undefined) writeFileSync(join(cwd, "app.db"), text);
  const before = contents(cwd);
  const { code, out, err } = await check(cwd);
  expect(err).toMatch(/^hook-sync: .*\n$/);
  expect(err).toContain(said);
  expect([out, code]).toEqual(["", 1]);
  expect(contents(cwd)).toEqual(before);
});

test("an empty file, and a name with characters of an address in it", async () => {
  const cwd = folder();
  writeFileSync(join(cwd, "app.db"), "");
  expect((await check(cwd)).out).toContain("a start makes the table items");
  const db = new Database(join(cwd, "ä ?#%&.db"));
  db.run("PRAGMA journal_mode = WAL");
  db.run("CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER)");
  db.close(true);
  const { out, code } = await run(["check", "--db", "ä ?#%&.db"], { cwd, msMax: TEST_MS_MAX });
  expect(out).toContain("t: fits");
  expect([code, readdirSync(cwd).sort()]).toEqual([0, ["app.db", "ä ?#%&.db"]]);
});

test.each([
  [["--tabels", "a"], "--tabels: no such flag; did you mean --tables?"],
  [[], "--db: missing"],
  [["--db", "app.db", "more"], 'argument "more": expected no such word here'],
  [["--db", "app.db", "--tables", "a,,b"], '--tables "a,,b": expected names of tables'],
  [["--db", "app.db", "--tables", "*,b"], '--tables "*,b": expected names of tables'],
])("%p is refused with what would be right", async (argv, said) => {
  const { code, out, err } = await run(["check", ...argv]);
  expect(err).toContain(`hook-sync: ${said}`);
  expect(err).toEndWith("Try: hook-sync help check\n");
  expect([out, code]).toEqual(["", 2]);
});
