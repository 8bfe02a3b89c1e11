/**
 * Random statements for a plain SQLite file by two programs: all forms of writing, with triggers,
 * foreign-key actions, savepoints and every kind of ALTER, a schema that changes within transactions,
 * and now and then a VACUUM. Two tables beside them are always changed together.
 */
import type { Database, SQLQueryBindings } from "bun:sqlite";
import { quoteName } from "../../../lib/base/sql-text.ts";
import { SqliteCommits } from "../../../lib/cdc/sqlite-commits.ts";
import type { Seeded } from "../../support/seeded.ts";

const TYPES = ["", "INTEGER", "TEXT", "REAL", "BLOB", "NUMERIC", "TEXT COLLATE NOCASE"];
const VALUES: readonly SQLQueryBindings[] = [
  null,
  0,
  1,
  2,
  -1,
  70_000,
  2n ** 53n + 1n,
  -(2n ** 63n),
  0.1,
  -2.25,
  1e300,
  Number.POSITIVE_INFINITY,
  "",
  "a",
  "A",
  "A\0z",
  "é🙂",
  "12",
  '"quoted"\\\n',
  new Uint8Array(),
  new Uint8Array([0, 255]),
];

export class SqliteWorkload {
  readonly #random: Seeded;
  readonly #connections: readonly Database[];
  readonly #ends: ReadonlyMap<Database, SqliteCommits>;
  /** Whether foreign keys change rows: a follower checks those only that do not. */
  readonly #acts: boolean;
  #names = 0;
  /** Statements that went through and were refused. */
  readonly counts = { done: 0, refused: 0 };

  /** Programs on `knowing` end their transactions in the log, as a node does. */
  constructor(random: Seeded, connections: readonly Database[], knowing: readonly Database[] = []) {
    this.#random = random;
    this.#acts = random.chance(0.7);
    this.#connections = [...connections, ...knowing];
    this.#ends = new Map(knowing.map((db) => [db, new SqliteCommits(db)]));
  }

  /** One transaction, or one statement by itself. */
  step(): void {
    const db = this.#random.pick(this.#connections);
    if (this.#random.chance(0.02)) {
      this.#attempt(db, "VACUUM");
      return;
    }
    if (this.#random.chance(0.1))
      this.#attempt(db, `PRAGMA recursive_triggers = ${this.#random.below(2)}`);
    if (this.#random.chance(0.1))
      this.#attempt(db, `PRAGMA foreign_keys = ${this.#random.below(2)}`);
    const ends = this.#ends.get(db);
    if (ends === undefined && this.#random.chance(0.2)) {
      this.#inside(db);
      return;
    }
    this.#attempt(db, ends === undefined ? "BEGIN" : "BEGIN IMMEDIATE");
    ends?.end();
    const statements = 1 + this.#random.below(6);
    for (let i = 0; i < statements; i++) this.#inside(db);
    if (this.#random.chance(0.5)) this.#pay(db);
    if (db.inTransaction) ends?.end();
    this.#attempt(db, this.#random.chance(0.15) ? "ROLLBACK" : "COMMIT");
    if (db.inTransaction) this.#attempt(db, "ROLLBACK");
  }

  #pay(db: Database): void {
    const amount = this.#random.below(100);
    if (!db.inTransaction) return;
    db.run("UPDATE paid SET amount = amount + ? WHERE k = 1", [amount]);
    db.run("INSERT INTO received VALUES (?)", [amount]);
  }

  #inside(db: Database): void {
    const dice = this.#random.next();
    if (dice < 0.1) this.#attempt(db, this.#schemaChange(db));
    else if (dice < 0.16) this.#savepoint(db);
    else this.#write(db);
  }

  #savepoint(db: Database): void {
    this.#attempt(db, "SAVEPOINT s");
    this.#write(db);
    if (this.#random.chance(0.2)) this.#attempt(db, this.#schemaChange(db));
    if (this.#random.chance(0.5)) this.#attempt(db, "ROLLBACK TO s");
    this.#attempt(db, "RELEASE s");
  }

  #attempt(db: Database, sql: string, ...values: SQLQueryBindings[]): void {
    if (sql === "") return;
    try {
      db.run(sql, values);
      this.counts.done++;
    } catch {
      this.counts.refused++;
    }
  }

  #named(db: Database, type: string, pattern: string): string[] {
    return db
      .query<{ name: string }, [string, string]>(
        "SELECT name FROM sqlite_schema WHERE type = ? AND name LIKE ? AND sql IS NOT NULL",
      )
      .all(type, pattern)
      .map(({ name }) => name);
  }

  /** None where SQLite has lost a table from its own memory, which it does now and then. */
  #columns(db: Database, table: string): string[] {
    return db
      .query<{ name: string }, []>(`PRAGMA table_info(${quoteName(table)})`)
      .all()
      .map(({ name }) => name);
  }

  #schemaChange(db: Database): string {
    const tables = this.#named(db, "table", "w%");
    const dice = this.#random.next();
    const name = `n${this.#names++}`;
    if (tables.length < 2 || (dice < 0.2 && tables.length < 6)) return this.#createTable(tables);
    const plain = this.#random.pick(tables);
    const table = quoteName(plain);
    const known = this.#columns(db, plain);
    if (known.length === 0) return "";
    const column = quoteName(this.#random.pick(known));
    const other = quoteName(this.#random.pick(tables));
    if (dice < 0.27) return `ALTER TABLE ${table} ADD COLUMN ${name} ${this.#type()}`;
    if (dice < 0.31) return `ALTER TABLE ${table} ${this.#constraint(name, column)}`;
    if (dice < 0.36) return `ALTER TABLE ${table} RENAME TO w${name}`;
    if (dice < 0.42) return `ALTER TABLE ${table} RENAME COLUMN ${column} TO ${name}`;
    if (dice < 0.48) return this.#dropColumn(db, plain, column);
    if (dice < 0.58)
      return `CREATE ${this.#random.pick(["", "UNIQUE "])}INDEX i${name} ON ${table} (${column})`;
    if (dice < 0.62) return this.#drop(db, "index", "i%");
    if (dice < 0.76) return this.#createTrigger(name, table, column, other);
    if (dice < 0.84) return this.#drop(db, "trigger", "g%");
    if (dice < 0.87) return `CREATE VIEW v${name} AS SELECT * FROM ${table}`;
    if (dice < 0.9) return this.#drop(db, "view", "v%");
    if (dice < 0.93) return `CREATE TABLE w${name} AS SELECT * FROM ${table}`;
    if (dice < 0.96) return `DROP TABLE ${table}`;
    // What is made anew under the same name, as tools for migrations do it.
    const isAlone = !db.inTransaction;
    if (isAlone) this.#attempt(db, "BEGIN");
    this.#attempt(db, `CREATE TABLE new AS SELECT * FROM ${table}`);
    this.#attempt(db, `DROP TABLE ${table}`);
    this.#attempt(db, `ALTER TABLE new RENAME TO ${table}`);
    return isAlone ? "COMMIT" : "";
  }

  #constraint(name: string, column: string): string {
    return this.#random.pick([
      `ADD CONSTRAINT c${name} CHECK (${column} IS NOT 'never')`,
      `ADD CHECK (${column} IS NOT 'never')`,
      `DROP CONSTRAINT cn${this.#random.below(this.#names)}`,
      `ALTER COLUMN ${column} SET NOT NULL`,
      `ALTER COLUMN ${column} DROP NOT NULL`,
    ]);
  }

  /** Refused while our triggers stand; a tool that knows of them takes them away first. */
  #dropColumn(db: Database, table: string, column: string): string {
    if (this.#random.chance(0.7)) {
      for (const kind of ["ai", "au", "ad"]) {
        this.#attempt(db, `DROP TRIGGER ${quoteName(`_cdc_${kind}_${table}`)}`);
      }
    }
    return `ALTER TABLE ${quoteName(table)} DROP COLUMN ${column}`;
  }

  #drop(db: Database, type: string, pattern: string): string {
    const names = this.#named(db, type, pattern);
    return names.length === 0
      ? ""
      : `DROP ${type.toUpperCase()} ${quoteName(this.#random.pick(names))}`;
  }

  #createTrigger(name: string, table: string, column: string, other: string): string {
    const event = this.#random.pick(["INSERT", "UPDATE", "DELETE"]);
    const time = this.#random.pick(["AFTER", "BEFORE"]);
    const row = event === "DELETE" ? "OLD" : "NEW";
    const body = this.#random.pick([
      // A touch trigger, one that moves rows, one that undoes, one that writes elsewhere.
      `UPDATE ${table} SET ${column} = 'touched' WHERE rowid = ${row}.rowid AND ${column} IS NOT 'touched'`,
      `UPDATE ${table} SET rowid = rowid + 1000 WHERE rowid = ${row}.rowid AND rowid < 1000`,
      `DELETE FROM ${table} WHERE rowid = ${row}.rowid AND rowid % 7 = 3`,
      `DELETE FROM ${other} WHERE rowid = ${row}.rowid + 1`,
      `UPDATE OR REPLACE ${other} SET rowid = rowid + 1 WHERE rowid = ${row}.rowid`,
      "INSERT INTO received VALUES (0)",
      `INSERT OR FAIL INTO ${other} (rowid) VALUES (${row}.rowid % 3)`,
      `SELECT RAISE(IGNORE) WHERE ${row}.rowid % 5 = 0`,
      `SELECT RAISE(FAIL, 'no') WHERE ${row}.rowid % 5 = 0`,
    ]);
    return `CREATE TRIGGER g${name} ${time} ${event} ON ${table} BEGIN ${body}; END`;
  }

  #createTable(tables: readonly string[]): string {
    const name = this.#random.chance(0.2) ? quoteName(`w "${this.#names++}`) : `w${this.#names++}`;
    const key = this.#random.pick([
      "k INTEGER PRIMARY KEY",
      "k INTEGER PRIMARY KEY AUTOINCREMENT",
      "k TEXT PRIMARY KEY",
      "k INTEGER PRIMARY KEY DESC",
      "k",
      "k TEXT COLLATE NOCASE PRIMARY KEY",
    ]);
    const columns = Array.from(
      { length: 1 + this.#random.below(3) },
      () => `c${this.#names++} ${this.#type()}`,
    );
    if (this.#random.chance(0.3)) columns.push("u UNIQUE ON CONFLICT REPLACE");
    if (this.#random.chance(0.3)) columns.push("x AS (k || '!')");
    if (tables.length > 0 && this.#random.chance(0.4)) {
      const action = this.#random.pick(["CASCADE", "SET NULL"]);
      const actions = this.#acts ? ` ON DELETE ${action} ON UPDATE CASCADE` : "";
      columns.push(`p REFERENCES ${quoteName(this.#random.pick(tables))} (k)${actions}`);
    }
    const isKeyed = /TEXT.*PRIMARY/.test(key) && this.#random.chance(0.5);
    return `CREATE TABLE ${name} (${[key, ...columns].join(", ")})${isKeyed ? " WITHOUT ROWID" : ""}`;
  }

  #type(): string {
    const fallback = this.#random.pick([
      "",
      "",
      " DEFAULT 7",
      " DEFAULT 'it''s'",
      " DEFAULT -1.5",
      " NOT NULL DEFAULT 0",
    ]);
    return `${this.#random.pick(TYPES)}${fallback}`;
  }

  #write(db: Database): void {
    const tables = this.#named(db, "table", "w%");
    if (tables.length === 0) return;
    const plain = this.#random.pick(tables);
    const table = quoteName(plain);
    const columns = this.#columns(db, plain).map(quoteName);
    if (columns.length === 0) return;
    const column = this.#random.pick(columns);
    const values: SQLQueryBindings[] = [];
    const place = () => {
      if (this.#random.chance(0.03)) return "CAST(x'61ff' AS TEXT)";
      values.push(this.#random.pick(VALUES));
      return this.#random.chance(0.1) ? "CAST(? AS REAL)" : "?";
    };
    const small = () => String(this.#random.below(25));
    const or = this.#random.pick(["", "", "OR REPLACE ", "OR IGNORE ", "OR FAIL "]);
    const where = this.#random.pick([
      `WHERE rowid = ${small()}`,
      `WHERE rowid % 5 = ${this.#random.below(5)}`,
      `WHERE ${column} = ${this.#random.below(4)}`,
      `WHERE k = ${small()}`,
    ]);
    const dice = this.#random.next();
    if (dice < 0.5) {
      const list = columns.map((each) => each);
      if (this.#random.chance(0.2)) list.push("rowid");
      const tuple = () =>
        `(${list.map((each) => (each === "rowid" || each === '"k"' ? small() : place())).join(", ")})`;
      const tuples = Array.from({ length: 1 + this.#random.below(3) }, tuple).join(", ");
      const upsert = this.#random.chance(0.2)
        ? ` ON CONFLICT DO UPDATE SET ${column} = excluded.${column}`
        : "";
      this.#attempt(
        db,
        `INSERT ${or}INTO ${table} (${list.join(", ")}) VALUES ${tuples}${upsert}`,
        ...values,
      );
    } else if (dice < 0.7) {
      this.#attempt(db, `UPDATE ${or}${table} SET ${column} = ${place()} ${where}`, ...values);
    } else if (dice < 0.82) {
      const key = this.#random.pick(["k", "rowid"]);
      this.#attempt(db, `UPDATE ${or}${table} SET ${key} = ${small()} ${where}`);
    } else {
      this.#attempt(db, `DELETE FROM ${table} ${where}`);
    }
  }
}
