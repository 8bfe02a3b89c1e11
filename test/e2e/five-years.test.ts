/**
 * The database of an application that has grown for five years, made and used by a program with an old
 * SQLite: numbers as keys, full-text indexes with their customary triggers, triggers that touch and
 * that log, cascades, microseconds, 70 columns, views, sessions. `check` says what is so, its remedies
 * work, adoption harms nothing, two nodes sync what qualifies, and detaching leaves no trace.
 */
import { expect, test } from "bun:test";
import { copyFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import {
  content,
  ENVIRONMENT,
  type NodeProcess,
  Nodes,
  until,
  withFile,
} from "./support/node-process.ts";
import { OLD_SQLITE, Program } from "./support/old-sqlite.ts";

const TEST_MS_MAX = 90_000;
const SERVER = join(import.meta.dir, "..", "..", "server.ts");

const WIDE = Array.from({ length: 68 }, (_, i) => `c${i + 1}`);
const NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";

/** Each line one statement, as the application's own migrations ran over the years. */
const SCHEMA: readonly string[] = [
  `CREATE TABLE customers(
     id TEXT PRIMARY KEY, email TEXT UNIQUE COLLATE NOCASE, name TEXT NOT NULL DEFAULT '',
     label TEXT GENERATED ALWAYS AS (name || ' <' || email || '>') VIRTUAL,
     photo BLOB, updated_at INTEGER)`,
  `CREATE INDEX customers_by_name ON customers(lower(name)) WHERE name <> ''`,
  `CREATE TABLE orders(
     id TEXT PRIMARY KEY, customer TEXT NOT NULL REFERENCES customers ON DELETE CASCADE,
     total REAL CHECK (total >= 0), updated_at INTEGER)`,
  `CREATE TABLE order_lines(
     id TEXT PRIMARY KEY, order_id TEXT REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE,
     product INTEGER REFERENCES products ON DELETE SET NULL, amount, updated_at INTEGER) WITHOUT ROWID`,
  `CREATE TABLE products(id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT, updated_at INTEGER)`,
  `CREATE TABLE documents(id TEXT PRIMARY KEY, title TEXT, body TEXT, updated_at INTEGER)`,
  `CREATE VIRTUAL TABLE documents_fts USING fts5(title, body, content = 'documents', content_rowid = 'rowid')`,
  `CREATE TRIGGER documents_ai AFTER INSERT ON documents BEGIN
     INSERT INTO documents_fts(rowid, title, body) VALUES (new.rowid, new.title, new.body);
   END`,
  `CREATE TRIGGER documents_ad AFTER DELETE ON documents BEGIN
     INSERT INTO documents_fts(documents_fts, rowid, title, body) VALUES ('delete', old.rowid, old.title, old.body);
   END`,
  `CREATE TRIGGER documents_au AFTER UPDATE ON documents BEGIN
     INSERT INTO documents_fts(documents_fts, rowid, title, body) VALUES ('delete', old.rowid, old.title, old.body);
     INSERT INTO documents_fts(rowid, title, body) VALUES (new.rowid, new.title, new.body);
   END`,
  `CREATE TABLE audit(n INTEGER PRIMARY KEY AUTOINCREMENT, tbl TEXT, row TEXT, what TEXT)`,
  `CREATE TRIGGER orders_audit AFTER UPDATE ON orders BEGIN
     INSERT INTO audit(tbl, row, what) VALUES ('orders', new.id, old.total || ' -> ' || new.total);
   END`,
  `CREATE TABLE notes(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER)`,
  `CREATE TRIGGER notes_touch AFTER UPDATE ON notes WHEN new.updated_at IS old.updated_at BEGIN
     UPDATE notes SET updated_at = ${NOW} WHERE id = new.id;
   END`,
  `CREATE TABLE accounts(id TEXT PRIMARY KEY, balance INTEGER, updated_at INTEGER)`,
  `CREATE TABLE bookings(id TEXT PRIMARY KEY, account TEXT, delta INTEGER, updated_at INTEGER)`,
  `CREATE TRIGGER accounts_booking AFTER UPDATE OF balance ON accounts BEGIN
     INSERT INTO bookings VALUES (lower(hex(randomblob(16))), new.id, new.balance - old.balance, ${NOW});
   END`,
  `CREATE TABLE readings(id TEXT PRIMARY KEY, value REAL, updated_at INTEGER)`,
  `CREATE TABLE wide(id TEXT PRIMARY KEY, ${WIDE.join(", ")}, updated_at INTEGER)`,
  `CREATE TABLE sessions(token TEXT PRIMARY KEY, data BLOB, expires INTEGER)`,
  `CREATE TABLE settings(key TEXT PRIMARY KEY, value) WITHOUT ROWID`,
  `CREATE VIEW totals AS
     SELECT c.name, sum(o.total) AS total FROM customers AS c JOIN orders AS o ON o.customer = c.id GROUP BY c.id`,
  `CREATE TRIGGER totals_insert INSTEAD OF INSERT ON totals BEGIN
     INSERT INTO customers(id, name, updated_at) VALUES (lower(hex(randomblob(16))), new.name, ${NOW});
   END`,
];

/** Rows of the first five years. */
const HISTORY: readonly string[] = [
  series(
    60,
    `INSERT INTO customers(id, email, name, photo, updated_at)
     SELECT 'c' || i, 'c' || i || '@x', 'Name ' || i, CASE WHEN i % 3 = 0 THEN randomblob(40) END,
            CASE WHEN i % 7 = 0 THEN NULL ELSE 1600000000000 + i END FROM n`,
  ),
  series(
    100,
    "INSERT INTO orders SELECT 'o' || i, 'c' || (i % 60 + 1), i / 8.0, 1600000000000 + i FROM n",
  ),
  series(20, "INSERT INTO products(title, updated_at) SELECT 'P' || i, 1600000000 + i FROM n"),
  series(
    200,
    `INSERT INTO order_lines SELECT 'l' || i, 'o' || (i % 100 + 1), i % 20 + 1,
       CASE i % 4 WHEN 0 THEN i WHEN 1 THEN i / 4.0 WHEN 2 THEN 'about ' || i END, 1600000000000 + i FROM n`,
  ),
  series(
    80,
    "INSERT INTO documents SELECT 'd' || i, 'Title ' || i, 'word' || i || ' common', 1600000000000 + i FROM n",
  ),
  series(30, "INSERT INTO notes SELECT 'n' || i, 'note ' || i, 1600000000000 + i FROM n"),
  series(10, "INSERT INTO accounts SELECT 'a' || i, 100 * i, 1600000000000 + i FROM n"),
  series(25, "INSERT INTO readings SELECT 'r' || i, i / 3.0, 1600000000000000 + i FROM n"),
  series(
    15,
    `INSERT INTO wide SELECT 'w' || i, ${WIDE.map((_, c) => (c % 3 === 0 ? `i * ${c}` : c % 3 === 1 ? `'text' || i` : "NULL")).join(", ")}, 1600000000000 + i FROM n`,
  ),
  series(12, "INSERT INTO sessions SELECT 't' || i, randomblob(16), 1900000000 + i FROM n"),
  "INSERT INTO settings VALUES ('theme', 'dark')",
  "DELETE FROM documents WHERE id = 'd80'",
];

function series(count: number, insert: string): string {
  const numbers = `WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ${count})`;
  return `${numbers} ${insert}`;
}

/** What the application does all day; `who` keeps what two of them make apart. */
function day(who: string): readonly string[] {
  return [
    "BEGIN IMMEDIATE",
    `INSERT INTO customers(id, email, name, photo, updated_at) VALUES ('${who}-c', '${who}@y', 'New 😀', x'00ff', ${NOW})`,
    `INSERT INTO orders VALUES ('${who}-o', '${who}-c', 1.0, ${NOW}), ('${who}-o2', '${who}-c', 0.1, NULL)`,
    `INSERT INTO order_lines VALUES ('${who}-l', '${who}-o', 1, 9007199254740993, ${NOW})`,
    "COMMIT",
    `UPDATE orders SET id = '${who}-o3' WHERE id = '${who}-o'`,
    `UPDATE orders SET total = total + 1 WHERE customer = '${who}-c'`,
    `INSERT INTO documents VALUES ('${who}-d', 'Fresh', 'needle${who} common', ${NOW})`,
    `UPDATE documents SET body = 'needle${who} changed' WHERE id = '${who}-d'`,
    `REPLACE INTO documents VALUES ('${who}-d2', 'Replaced', 'once', ${NOW})`,
    `REPLACE INTO documents VALUES ('${who}-d2', 'Replaced', 'twice${who}', 5)`,
    `INSERT INTO documents VALUES ('${who}-d', 'x', 'y', 1) ON CONFLICT(id) DO UPDATE SET title = 'Upserted'`,
    `INSERT INTO notes VALUES ('${who}-n', 'first', ${NOW})`,
    `UPDATE notes SET body = 'second' WHERE id = '${who}-n'`,
    `UPDATE accounts SET balance = balance + 5 WHERE id = '${who === "a" ? "a1" : "a2"}'`,
    `UPDATE readings SET value = value + 1, updated_at = ${NOW} WHERE id = '${who === "a" ? "r1" : "r2"}'`,
    `UPDATE wide SET c1 = '${who}', c68 = 0.5, c34 = x'ab' WHERE id = '${who === "a" ? "w1" : "w2"}'`,
    `INSERT INTO totals(name) VALUES ('by the view ${who}')`,
    `INSERT INTO sessions VALUES ('${who}-session', NULL, 1)`,
    `UPDATE products SET title = 'renamed by ${who}' WHERE id = 3`,
    `INSERT OR REPLACE INTO settings VALUES ('theme', '${who}')`,
    `DELETE FROM customers WHERE id = '${who === "a" ? "c1" : "c2"}'`,
    `DELETE FROM documents WHERE id = '${who === "a" ? "d1" : "d2"}'`,
  ];
}

const SYNCED = [
  "customers",
  "orders",
  "order_lines",
  "documents",
  "notes",
  "accounts",
  "bookings",
  "readings",
  "wide",
];

interface CheckedTable {
  readonly name: string;
  readonly fits: boolean;
  readonly reason: string | null;
  readonly remedy: string | null;
  readonly columns: number;
  readonly rows: number;
  readonly rows_without_stamp: number;
  readonly triggers: readonly { readonly name: string; readonly fine: boolean }[];
}

function command(...argv: string[]) {
  const { exitCode, stdout, stderr } = Bun.spawnSync([process.execPath, SERVER, ...argv], {
    env: ENVIRONMENT,
  });
  return { code: exitCode, out: stdout.toString(), err: stderr.toString() };
}

function checked(
  path: string,
  ...argv: string[]
): { code: number; tables: Map<string, CheckedTable> } {
  const before = readFileSync(path);
  const { code, out, err } = command("check", "--db", path, "--json", ...argv);
  expect(err).toBe("");
  expect(readFileSync(path).equals(before)).toBe(true);
  const { tables } = JSON.parse(out) as { tables: CheckedTable[] };
  return { code, tables: new Map(tables.map((table) => [table.name, table])) };
}

function schemaOf(path: string): unknown[] {
  return withFile(path, (db) =>
    db.query("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").values(),
  );
}

/** The old SQLite finds nothing wrong with file, references and full-text index. */
async function isSound(program: Program): Promise<void> {
  expect(await program.sql("PRAGMA integrity_check")).toEqual([["ok"]]);
  expect(await program.sql("PRAGMA foreign_key_check")).toEqual([]);
  await program.sql("INSERT INTO documents_fts(documents_fts) VALUES ('integrity-check')");
}

const found = async (program: Program, words: string) =>
  (
    await program.sql(
      `SELECT d.id FROM documents_fts AS f JOIN documents AS d ON d.rowid = f.rowid
     WHERE documents_fts MATCH '${words}' ORDER BY d.id`,
    )
  ).flat();

async function areQuiet(nodes: readonly NodeProcess[]): Promise<boolean> {
  const healths = await Promise.all(nodes.map((node) => node.health()));
  return healths.every(({ ok, pending_changes }) => ok && pending_changes === 0);
}

function areEqual([a, b]: readonly [NodeProcess, NodeProcess]): void {
  for (const table of SYNCED) {
    expect([table, content(b.dbPath, table)]).toEqual([table, content(a.dbPath, table)]);
  }
}

test(
  `five years of an application, made and used by SQLite ${OLD_SQLITE ?? "as Bun has it"}`,
  async () => {
    await using team = new Nodes();
    const a = team.make({ id: "a" });
    const b = team.make({ id: "b", peers: [a.url] });
    a.peers = [b.url];
    await Bun.write(a.dbPath, "");
    {
      await using application = new Program(a.dbPath);
      for (const sql of [...SCHEMA, ...HISTORY]) await application.sql(sql);
    }

    // What check says of it, and what its remedies do.
    const first = checked(a.dbPath, "--tables", SYNCED.join(","));
    expect(first.code).toBe(1);
    const verdicts = new Map<string, unknown>(
      [...first.tables.values()].map(({ name, reason }) => [name, reason]),
    );
    expect(verdicts).toEqual(
      new Map<string, unknown>([
        ["customers", null],
        ["orders", null],
        ["order_lines", null],
        ["products", expect.stringContaining("its id is INTEGER")],
        ["documents", null],
        ["audit", "it has no column id"],
        ["notes", expect.stringContaining("its trigger notes_touch writes notes")],
        ["accounts", expect.stringContaining("its trigger accounts_booking writes bookings")],
        ["bookings", null],
        ["readings", expect.stringContaining("its updated_at holds microseconds (16000000000000")],
        ["wide", null],
        ["sessions", "it has no column id"],
        ["settings", "it has no column id"],
      ]),
    );
    expect(first.tables.get("wide")?.columns).toBe(70);
    expect(first.tables.get("customers")).toMatchObject({ rows: 60, rows_without_stamp: 8 });
    expect(first.tables.get("documents")?.triggers).toMatchObject([
      { name: "documents_ad", fine: true },
      { name: "documents_ai", fine: true },
      { name: "documents_au", fine: true },
    ]);
    for (const name of ["notes", "accounts", "readings"]) {
      const remedy = first.tables.get(name)!.remedy!;
      // By a shell, which takes several statements at once.
      withFile(a.dbPath, (db) => db.run(remedy));
    }
    const second = checked(a.dbPath, "--tables", SYNCED.join(","));
    expect(second.code).toBe(0);
    expect(second.tables.get("notes")?.triggers).toMatchObject([
      { name: "notes_touch", fine: true },
    ]);

    // The application goes on before a node ever looked at the file.
    {
      await using application = new Program(a.dbPath);
      await application.sql("UPDATE notes SET body = 'touched' WHERE id = 'n1'");
      expect(
        await application.sql("SELECT updated_at > 1700000000000 FROM notes WHERE id = 'n1'"),
      ).toEqual([[1]]);
      await application.sql("UPDATE accounts SET balance = 1 WHERE id = 'a10'");
      await isSound(application);
    }
    const before = schemaOf(a.dbPath);
    const untouched = ["products", "audit", "sessions", "settings"].map((table) => dump(a, table));
    copyFileSync(a.dbPath, b.dbPath);

    // Two nodes on it, the application beside each of them.
    for (const node of [a, b]) node.flags = ["--tables", SYNCED.join(",")];
    await Promise.all([a.start(), b.start()]);
    expect(a.said).toContain("customers: 8 rows without a stamp got version 0");
    expect(["products", "audit", "sessions", "settings"].map((table) => dump(a, table))).toEqual(
      untouched,
    );
    {
      await using atA = new Program(a.dbPath);
      await using atB = new Program(b.dbPath);
      for (const sql of day("a")) await atA.sql(sql);
      for (const sql of day("b")) await atB.sql(sql);
      // The application's own errors stay its own.
      expect(await atA.attempt("INSERT INTO orders VALUES ('x', 'nobody', 1, 1)")).toEqual({
        error: "FOREIGN KEY constraint failed",
      });
      expect(await atB.attempt("UPDATE orders SET total = -1 WHERE id = 'o5'")).toHaveProperty(
        "error",
      );
      await until("both have all", () => areQuiet([a, b]));
      areEqual([a, b]);
      for (const program of [atA, atB]) {
        await isSound(program);
        expect(await found(program, "changed")).toEqual(["a-d", "b-d"]);
        expect(await found(program, "twicea OR twiceb")).toEqual(["a-d2", "b-d2"]);
        expect(await found(program, "word1 OR word2 OR once")).toEqual([]);
        expect(
          await program.sql("SELECT id, title FROM documents WHERE id LIKE '%-d' ORDER BY id"),
        ).toEqual([
          ["a-d", "Upserted"],
          ["b-d", "Upserted"],
        ]);
        // One booking for one change of a balance, wherever it was made; the log counts what came, too.
        expect(await program.sql("SELECT account, delta FROM bookings ORDER BY 1, 2")).toEqual([
          ["a1", 5],
          ["a10", -999],
          ["a2", 5],
        ]);
        expect(
          await program.sql("SELECT count(*) FROM order_lines WHERE order_id LIKE '%-o3'"),
        ).toEqual([[2]]);
        expect(
          await program.sql("SELECT count(*) FROM orders WHERE customer IN ('c1', 'c2')"),
        ).toEqual([[0]]);
        expect(await program.sql("SELECT name FROM totals WHERE name = 'New 😀'")).toHaveLength(2);
      }
      // What is not synced is each one's own.
      expect(await atB.sql("SELECT token FROM sessions WHERE token LIKE '%-session'")).toEqual([
        ["b-session"],
      ]);
      expect(await atB.sql("SELECT title FROM products WHERE id = 3")).toEqual([["renamed by b"]]);
      expect(await atA.sql("SELECT value FROM settings")).toEqual([["a"]]);
    }
    for (const { dead_letter, parked, warnings } of await Promise.all([a.health(), b.health()])) {
      expect([dead_letter, parked, warnings]).toEqual([0, 0, []]);
    }

    // While the nodes are down the application goes on; what it writes is sent afterwards.
    expect(await Promise.all([a.stop(), b.stop()])).toEqual([0, 0]);
    {
      await using application = new Program(a.dbPath);
      for (const sql of day("night")) await application.sql(sql);
      await isSound(application);
    }
    await Promise.all([a.start(), b.start()]);
    await until("the night has arrived", () => areQuiet([a, b]));
    areEqual([a, b]);
    expect(await Promise.all([a.stop(), b.stop()])).toEqual([0, 0]);

    // And out again.
    const data = [...SYNCED, "products", "audit", "sessions", "settings"].map((table) =>
      dump(a, table),
    );
    for (const node of [a, b]) {
      const { code, out, err } = command("detach", "--db", node.dbPath);
      expect(err).toBe("");
      expect(out).toContain("lost with the log: nothing");
      expect([code, node.leftovers()]).toEqual([0, []]);
      expect(schemaOf(node.dbPath)).toEqual(before);
    }
    expect(
      [...SYNCED, "products", "audit", "sessions", "settings"].map((table) => dump(a, table)),
    ).toEqual(data);
    await using application = new Program(b.dbPath);
    await isSound(application);
    for (const sql of day("afterwards")) await application.sql(sql);
    expect(await found(application, "needleafterwards")).toEqual(["afterwards-d"]);
    await isSound(application);
  },
  TEST_MS_MAX,
);

/** A table whole, in the order of its rows. */
function dump(node: NodeProcess, table: string): unknown[] {
  return node.file((db) => db.query(`SELECT * FROM ${table}`).values());
}
