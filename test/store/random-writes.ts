/**
 * Statements that other programs might run against a synced table, at random: every conflict policy,
 * UPSERT, many rows at once, INSERT … SELECT, changes of ids and unique keys, savepoints, and stamps of
 * any kind. Ids and unique values come from small sets, so that rows get in each other's way.
 */

import { T } from "../support/open-store.ts";
import type { Seeded } from "../support/seeded.ts";

/** What may be written to a column, as SQL literals. */
type Domain = readonly string[];

export interface WrittenTable {
  readonly name: string;
  readonly columns: Readonly<Record<string, Domain>>;
  /** Columns of unique keys, besides id. */
  readonly unique: readonly string[];
}

export interface WrittenSchema {
  readonly name: string;
  readonly sql: string;
  readonly tables: readonly WrittenTable[];
  /** What is not synced, although it is there. */
  readonly asked: readonly string[];
  /** Run at the end: raises where an index of the application does not fit its table. */
  readonly integrity?: string;
}

const IDS: Domain = ["'a'", "'b'", "'c'", "'d'", "'e'", "'é'", "'it''s'"];
const STAMPS: Domain = [
  "NULL",
  "0",
  "-5",
  "7",
  `${T}`,
  `${T + 1}`,
  `${T + 1}`,
  "1800000000000",
  "1800000000001",
  "1800000060000",
  "99999999999999",
  "9223372036854775807",
  "'2024-01-01'",
  "1.5",
  "x'00'",
];
const VALUES: Domain = [
  "NULL",
  "1",
  "0.1 + 0.2",
  "1.0",
  "9223372036854775807",
  "-9223372036854775808",
  "9e999",
  "-9e999",
  "5e-324",
  "'x'",
  "''",
  "x''",
  "x'00ff'",
  "'\\x00ff'",
  "char(0) || 'nul'",
  "CAST(x'61ff' AS TEXT)",
  "json('{\"a\": [1, 2]}')",
  "json_array(1, 'z')",
  "'😀'",
];
const MAILS: Domain = ["NULL", "'m1'", "'M1'", "'m2'", "'m3'"];
const NUMBERS: Domain = ["1", "2", "3", "'2'", "NULL"];

const POLICIES = [
  "",
  "",
  "OR ABORT",
  "OR FAIL",
  "OR IGNORE",
  "OR REPLACE",
  "OR REPLACE",
  "OR ROLLBACK",
];

const COLUMNS = { id: IDS, v: VALUES, updated_at: STAMPS };
const TOUCH = "WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0";

export const SCHEMAS: readonly WrittenSchema[] = [
  {
    name: "a unique column",
    sql: "CREATE TABLE t(id TEXT PRIMARY KEY, mail TEXT UNIQUE, v, updated_at INTEGER)",
    tables: [{ name: "t", columns: { ...COLUMNS, mail: MAILS }, unique: ["mail"] }],
    asked: ["t"],
  },
  {
    name: "WITHOUT ROWID, a key of two columns, NOCASE, a key that ignores",
    sql: `CREATE TABLE t(updated_at INTEGER, a, b TEXT COLLATE NOCASE, v REAL, w TEXT UNIQUE ON CONFLICT REPLACE,
            id TEXT PRIMARY KEY NOT NULL, UNIQUE(a, b)) WITHOUT ROWID`,
    tables: [
      {
        name: "t",
        columns: { ...COLUMNS, a: NUMBERS, b: MAILS, w: MAILS },
        unique: ["a", "b", "w"],
      },
    ],
    asked: ["t"],
  },
  {
    name: "partial, expression and generated keys",
    sql: `CREATE TABLE "t ""1"(id TEXT PRIMARY KEY, "end" TEXT, gone INTEGER DEFAULT 0, v, updated_at INTEGER,
            low TEXT AS (lower("end")) VIRTUAL);
          CREATE UNIQUE INDEX "i 1" ON "t ""1"("end") WHERE gone = 0 -- only living ones
          ;
          CREATE UNIQUE INDEX i2 ON "t ""1"(CASE WHEN gone = 1 THEN "end" || '/' ELSE id END /* odd */ DESC);
          CREATE UNIQUE INDEX i3 ON "t ""1"(low, v) WHERE v IS NOT NULL AND low > 'm1'`,
    tables: [
      {
        name: 't "1',
        columns: { ...COLUMNS, end: MAILS, gone: ["0", "1", "2"] },
        unique: ["end", "gone", "v"],
      },
    ],
    asked: ['t "1'],
  },
  {
    name: "defaults for NULL under REPLACE",
    sql: `CREATE TABLE t(id TEXT PRIMARY KEY NOT NULL DEFAULT a, k TEXT NOT NULL DEFAULT m2 UNIQUE,
            n INTEGER NOT NULL DEFAULT (1 + 1 -- two
            ), v, updated_at INTEGER, UNIQUE(n, v))`,
    tables: [
      {
        name: "t",
        columns: { ...COLUMNS, id: [...IDS, "NULL"], k: MAILS, n: ["1", "2", "3", "NULL"] },
        unique: ["k", "n", "v"],
      },
    ],
    asked: ["t"],
  },
  {
    name: "foreign keys with cascades",
    sql: `CREATE TABLE p(id TEXT PRIMARY KEY, code TEXT UNIQUE, v, updated_at INTEGER);
          CREATE TABLE c(id TEXT PRIMARY KEY, p TEXT REFERENCES p(id) ON DELETE CASCADE ON UPDATE CASCADE,
            code TEXT REFERENCES p(code) ON DELETE SET NULL ON UPDATE SET NULL, v, updated_at INTEGER)`,
    tables: [
      { name: "p", columns: { ...COLUMNS, code: MAILS }, unique: ["code"] },
      { name: "c", columns: { ...COLUMNS, p: IDS, code: MAILS }, unique: ["p"] },
    ],
    asked: ["p", "c"],
  },
  {
    name: "touch triggers and a search index",
    sql: `CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER);
          INSERT INTO _meta VALUES('syncing', 0);
          CREATE TABLE t(id TEXT PRIMARY KEY, mail TEXT UNIQUE, v, updated_at INTEGER);
          CREATE VIRTUAL TABLE f USING fts5(mail, content = 't', content_rowid = 'rowid');
          CREATE TRIGGER t_ai AFTER INSERT ON t BEGIN INSERT INTO f(rowid, mail) VALUES(new.rowid, new.mail); END;
          CREATE TRIGGER t_ad AFTER DELETE ON t BEGIN INSERT INTO f(f, rowid, mail) VALUES('delete', old.rowid, old.mail); END;
          CREATE TRIGGER t_au AFTER UPDATE ON t BEGIN
            INSERT INTO f(f, rowid, mail) VALUES('delete', old.rowid, old.mail);
            INSERT INTO f(rowid, mail) VALUES(new.rowid, new.mail);
          END;
          CREATE TRIGGER t_touch AFTER UPDATE OF v ON t ${TOUCH}
          BEGIN UPDATE t SET updated_at = ${T + 9} WHERE id = NEW.id; END;
          CREATE TRIGGER t_born AFTER INSERT ON t ${TOUCH} AND NEW.updated_at IS NULL
          BEGIN UPDATE t SET updated_at = ${T + 8} WHERE id = NEW.id; END`,
    tables: [{ name: "t", columns: { ...COLUMNS, mail: MAILS }, unique: ["mail"] }],
    asked: ["t"],
  },
  {
    name: "a trigger that writes another synced table",
    sql: `CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER);
          INSERT INTO _meta VALUES('syncing', 0);
          CREATE TABLE t(id TEXT PRIMARY KEY, mail TEXT UNIQUE, v, updated_at INTEGER);
          CREATE TABLE s(id TEXT PRIMARY KEY, v, updated_at INTEGER);
          CREATE TRIGGER t_count AFTER INSERT ON t ${TOUCH}
          BEGIN INSERT OR REPLACE INTO s(id, v, updated_at) VALUES(NEW.mail, NEW.id, NULL); END;
          CREATE TRIGGER t_uncount AFTER DELETE ON t ${TOUCH}
          BEGIN DELETE FROM s WHERE id = OLD.mail; END;
          CREATE TRIGGER t_moved BEFORE UPDATE OF mail ON t ${TOUCH}
          BEGIN UPDATE OR REPLACE s SET id = NEW.mail WHERE id = OLD.mail; END`,
    tables: [
      { name: "t", columns: { ...COLUMNS, mail: MAILS }, unique: ["mail"] },
      { name: "s", columns: COLUMNS, unique: [] },
    ],
    asked: ["t", "s"],
  },
  {
    name: "STRICT",
    sql: `CREATE TABLE t(id TEXT PRIMARY KEY, n INT UNIQUE, v ANY, x BLOB, updated_at INTEGER) STRICT;
          CREATE UNIQUE INDEX i ON t(v, n)`,
    tables: [
      {
        name: "t",
        columns: { ...COLUMNS, n: ["1", "2", "3", "NULL"], x: ["x'01'", "NULL", "x''"] },
        unique: ["n", "v"],
      },
    ],
    asked: ["t"],
  },
];

/** Rows that no statement here reaches, of every table. */
export function quietRows(schema: WrittenSchema): string[] {
  return schema.tables.map(({ name, columns }) => {
    const names = Object.keys(columns).filter((column) => column !== "p" && column !== "code");
    const values = names.map((column) =>
      column === "id"
        ? "'quiet'"
        : column === "updated_at"
          ? `${T - 1}`
          : column === "n"
            ? "77"
            : column === "x"
              ? "NULL"
              : "'quiet'",
    );
    return `INSERT OR IGNORE INTO ${quote(name)}(${names.map(quote).join(", ")}) VALUES(${values.join(", ")})`;
  });
}

/** One connection's work: switches, transactions, some of them given up. */
export function randomSession(schema: WrittenSchema, random: Seeded): string[] {
  const statements = [
    `PRAGMA recursive_triggers = ${random.pick(["ON", "OFF"])}`,
    `PRAGMA foreign_keys = ${random.pick(["ON", "OFF"])}`,
  ];
  for (let i = random.below(2); i >= 0; i--) statements.push(...randomTransaction(schema, random));
  return statements;
}

function randomTransaction(schema: WrittenSchema, random: Seeded): string[] {
  if (random.chance(0.2)) return [randomStatement(schema, random)];
  const statements = ["BEGIN"];
  for (let i = random.below(5); i >= 0; i--) {
    if (random.chance(0.15)) {
      const undone = [randomStatement(schema, random), randomStatement(schema, random)];
      const end = random.chance(0.6) ? ["ROLLBACK TO s", "RELEASE s"] : ["RELEASE s"];
      statements.push("SAVEPOINT s", ...undone, ...end);
    } else statements.push(randomStatement(schema, random));
  }
  return [...statements, random.chance(0.1) ? "ROLLBACK" : "COMMIT"];
}

function randomStatement(schema: WrittenSchema, random: Seeded): string {
  const table = random.pick(schema.tables);
  return random.pick([insert, insert, upsert, insertSelect, update, update, remove])(table, random);
}

function insert(table: WrittenTable, random: Seeded): string {
  const columns = someColumns(table, random);
  const rows = Array.from({ length: 1 + random.below(3) }, () => valuesFor(table, columns, random));
  return `INSERT ${random.pick(POLICIES)} INTO ${into(table, columns)} VALUES ${rows.join(", ")}`;
}

function upsert(table: WrittenTable, random: Seeded): string {
  const columns = someColumns(table, random);
  const rows = Array.from({ length: 1 + random.below(2) }, () => valuesFor(table, columns, random));
  const sets = columns
    .filter(() => random.chance(0.6))
    .map((column) => `${quote(column)} = excluded.${quote(column)}`);
  const action = sets.length === 0 ? "DO NOTHING" : `DO UPDATE SET ${sets.join(", ")}`;
  const target = random.chance(0.8) ? "(id)" : "";
  return `INSERT INTO ${into(table, columns)} VALUES ${rows.join(", ")} ON CONFLICT${target} ${target === "" ? "DO NOTHING" : action}`;
}

function insertSelect(table: WrittenTable, random: Seeded): string {
  const columns = Object.keys(table.columns);
  const taken = columns.map((column) =>
    random.chance(0.5) || column === "id" ? random.pick(table.columns[column]!) : quote(column),
  );
  return `INSERT ${random.pick(POLICIES)} INTO ${into(table, columns)} SELECT ${taken.join(", ")} FROM ${quote(table.name)} WHERE ${where(table, random)} LIMIT 2`;
}

function update(table: WrittenTable, random: Seeded): string {
  const names = Object.keys(table.columns).filter((column) => column !== "id");
  const picked = new Set([random.pick(names)]);
  if (random.chance(0.3)) picked.add("id");
  if (random.chance(0.3)) picked.add("updated_at");
  if (table.unique.length > 0 && random.chance(0.4)) picked.add(random.pick(table.unique));
  const sets = [...picked].map(
    (column) => `${quote(column)} = ${random.pick(table.columns[column]!)}`,
  );
  return `UPDATE ${random.pick(POLICIES)} ${quote(table.name)} SET ${sets.join(", ")} WHERE ${where(table, random)}`;
}

function remove(table: WrittenTable, random: Seeded): string {
  return `DELETE FROM ${quote(table.name)} WHERE ${where(table, random)}`;
}

function where(table: WrittenTable, random: Seeded): string {
  if (random.chance(0.15)) return "id <> 'quiet'";
  const ids = Array.from({ length: 1 + random.below(3) }, () => random.pick(table.columns["id"]!));
  return `id IN (${ids.join(", ")})`;
}

function someColumns(table: WrittenTable, random: Seeded): string[] {
  return Object.keys(table.columns).filter((column) => column === "id" || random.chance(0.85));
}

function valuesFor(table: WrittenTable, columns: readonly string[], random: Seeded): string {
  return `(${columns.map((column) => random.pick(table.columns[column]!)).join(", ")})`;
}

function into(table: WrittenTable, columns: readonly string[]): string {
  return `${quote(table.name)}(${columns.map(quote).join(", ")})`;
}

function quote(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
