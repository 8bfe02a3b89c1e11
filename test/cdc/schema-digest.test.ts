/** Which schemas count as the same. */
import { Database } from "bun:sqlite";
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { digestSchema } from "../../lib/cdc/schema-digest.ts";
import { readSourceSchema } from "../../lib/cdc/source-schema.ts";
import { TursoSource } from "./support/turso-source.ts";

/** An engine is loaded, and files are written, while others work as well. */
setDefaultTimeout(60_000);

async function digestOf(sql: string): Promise<string> {
  using db = new Database(":memory:");
  db.run(sql);
  return (await readSourceSchema(db)).digest;
}

const T = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL)";

describe("the same", () => {
  test.each([
    [T, "create table T(A integer primary key,\n  B text not null) -- why"],
    [T, `${T}; CREATE TABLE _cdc_log (x); CREATE TABLE turso_cdc (y)`],
    [T, `${T}; INSERT INTO t VALUES (1, 'x')`],
    [
      "CREATE TABLE t (a, b, c, UNIQUE (a))",
      "CREATE TABLE t (a, b, UNIQUE (a)); ALTER TABLE t ADD c",
    ],
    [
      `${T}; CREATE INDEX i ON t (b) WHERE a <> 1`,
      `${T}; CREATE INDEX IF NOT EXISTS i ON "t" ("b") WHERE a != 1`,
    ],
    ["CREATE TABLE t (a VARCHAR(10), b DECIMAL (5,2))", "CREATE TABLE t (a VARCHAR, b DECIMAL)"],
    ["CREATE TABLE u (x); CREATE TABLE v (x)", "CREATE TABLE v (x); CREATE TABLE u (x)"],
  ])("%s and %s", async (left, right) => {
    expect(await digestOf(left)).toBe(await digestOf(right));
  });
});

describe("not the same", () => {
  test.each([
    [T, "SELECT 1"],
    [T, "CREATE TABLE t (a INTEGER PRIMARY KEY, c TEXT NOT NULL)"],
    [T, "CREATE TABLE t (b TEXT NOT NULL, a INTEGER PRIMARY KEY)"],
    [T, "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)"],
    [T, "CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB NOT NULL)"],
    [T, "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL COLLATE NOCASE)"],
    [T, `${T}; CREATE INDEX i ON t (b)`],
    ["CREATE TABLE t (a DEFAULT (5))", "CREATE TABLE t (a DEFAULT (6))"],
    [`${T}; CREATE INDEX i ON t (b)`, `${T}; CREATE UNIQUE INDEX i ON t (b)`],
    [`${T}; CREATE INDEX i ON t (b, a)`, `${T}; CREATE INDEX i ON t (a, b)`],
    [T, `${T}; CREATE VIEW v AS SELECT 1`],
    [T, `${T}; CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END`],
    ["CREATE TABLE t (a, b DEFAULT 'x')", "CREATE TABLE t (a, b DEFAULT 'X')"],
  ])("%s and %s", async (left, right) => {
    expect(await digestOf(left)).not.toBe(await digestOf(right));
  });
});

test("both engines give one schema the same digest, also where they write it differently", async () => {
  using source = await TursoSource.open();
  const made = [
    "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE DEFAULT 'it''s', c VARCHAR(10), CHECK (c <> 'x'))",
    'CREATE TABLE "my t" (x REAL DEFAULT -1.5, y, PRIMARY KEY (x, y))',
    "CREATE UNIQUE INDEX i ON t (c DESC, lower(b)) WHERE c IS NOT NULL",
    "ALTER TABLE t ADD COLUMN d INTEGER NOT NULL DEFAULT -7 CHECK (d <> 3)",
    'ALTER TABLE "my t" ADD z TEXT DEFAULT (5)',
  ];
  using db = new Database(":memory:");
  for (const sql of made) {
    source.writer.exec(sql);
    db.run(sql);
    expect((await readSourceSchema(source.writer)).digest).toBe(
      (await readSourceSchema(db)).digest,
    );
  }
});

test("nothing is something too", () => {
  expect(digestSchema([], new Map())).toMatch(/^[0-9a-f]{32}$/);
});
