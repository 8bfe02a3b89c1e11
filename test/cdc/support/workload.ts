/**
 * Random statements for a Turso database, all that its log can express: rows of every kind and form
 * of writing, schema changes between them, savepoints, rollbacks. Two tables beside them are always
 * changed together and by the same amount, for a reader to check.
 */
import { quoteName } from "../../../lib/base/sql-text.ts";
import type { Seeded } from "../../support/seeded.ts";
import type { Turso } from "./turso-source.ts";

export const PAIR_SQL = `
  CREATE TABLE paid (k INTEGER PRIMARY KEY, amount INTEGER);
  CREATE TABLE received (amount INTEGER);
  BEGIN; INSERT INTO paid VALUES (1, 0); INSERT INTO received VALUES (0); COMMIT`;

/** 0 in every committed state. */
export const PAIR_CHECK_SQL = `
  SELECT (SELECT sum(amount) FROM paid) - (SELECT sum(amount) FROM received) AS difference`;

interface Table {
  readonly name: string;
  readonly columns: string[];
  readonly key: string | undefined;
}

const TYPES = ["", "INTEGER", "TEXT", "REAL", "BLOB", "NUMERIC"];
const VALUES: readonly (null | bigint | number | string | Uint8Array)[] = [
  null,
  0n,
  1n,
  2n,
  3n,
  -1n,
  255n,
  70_000n,
  2n ** 40n,
  2n ** 53n + 1n,
  -(2n ** 63n),
  0.5,
  1,
  -2.25,
  1e300,
  "",
  "a",
  "b",
  "A\0z",
  "é🙂",
  "12",
  "x".repeat(3000),
  new Uint8Array(),
  new Uint8Array([0, 255]),
  new Uint8Array(5000).fill(9),
];

export class Workload {
  readonly #random: Seeded;
  readonly #connections: readonly Turso[];
  #names = 0;
  /** Whether ALTERs that the log leaves out are among it: followers must then copy. */
  readonly #renames: boolean;

  constructor(random: Seeded, connections: readonly Turso[], renames: boolean) {
    this.#random = random;
    this.#connections = connections;
    this.#renames = renames;
  }

  /** One transaction, or one statement by itself. Statements that the engine refuses are part of it. */
  step(): void {
    const db = this.#random.pick(this.#connections);
    if (this.#random.chance(0.15)) {
      this.#attempt(db, this.#schemaChange(db));
      return;
    }
    this.#attempt(db, "BEGIN IMMEDIATE");
    const statements = 1 + this.#random.below(this.#random.chance(0.05) ? 300 : 6);
    for (let i = 0; i < statements; i++) this.#inside(db);
    if (this.#random.chance(0.5)) this.#pay(db);
    this.#attempt(db, this.#random.chance(0.15) ? "ROLLBACK" : "COMMIT");
    // A failure may have ended the transaction, or left it open.
    if (db.inTransaction) this.#attempt(db, "ROLLBACK");
  }

  /** One transaction that changes the pair. */
  pay(): void {
    const db = this.#connections[0]!;
    db.exec("BEGIN IMMEDIATE");
    this.#pay(db);
    db.exec("COMMIT");
  }

  #inside(db: Turso): void {
    const dice = this.#random.next();
    if (dice < 0.06) this.#attempt(db, this.#schemaChange(db));
    else if (dice < 0.12) this.#savepoint(db);
    else this.#write(db);
  }

  #savepoint(db: Turso): void {
    this.#attempt(db, "SAVEPOINT s");
    this.#write(db);
    this.#write(db);
    if (this.#random.chance(0.5)) this.#attempt(db, "ROLLBACK TO s");
    this.#attempt(db, "RELEASE s");
  }

  #pay(db: Turso): void {
    const amount = this.#random.below(100);
    this.#attempt(db, `UPDATE paid SET amount = amount + ${amount} WHERE k = 1`);
    this.#attempt(db, `INSERT INTO received VALUES (${amount})`);
  }

  #attempt(db: Turso, sql: string): void {
    if (sql === "") return;
    try {
      db.exec(sql);
    } catch {
      // Refused by the engine: then it is not in the log either.
    }
  }

  #tables(db: Turso): Table[] {
    const rows = db
      .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'w%'")
      .all() as { name: string }[];
    return rows.map(({ name }) => {
      const columns = db.prepare(`PRAGMA table_info(${quoteName(name)})`).all() as {
        name: string;
        type: string;
        pk: number;
      }[];
      const key = columns.find(({ pk, type }) => Number(pk) === 1 && type === "INTEGER");
      return { name, columns: columns.map((column) => column.name), key: key?.name };
    });
  }

  #schemaChange(db: Turso): string {
    const tables = this.#tables(db);
    const dice = this.#random.next();
    if (tables.length === 0 || (dice < 0.3 && tables.length < 5)) return this.#createTable();
    const table = this.#random.pick(tables);
    const name = quoteName(table.name);
    if (dice < 0.5) return `ALTER TABLE ${name} ADD COLUMN ${this.#column("c")}`;
    if (dice < 0.65) {
      return `ALTER TABLE ${name} DROP COLUMN ${quoteName(this.#random.pick(table.columns))}`;
    }
    if (dice < 0.8) {
      const unique = this.#random.chance(0.5) ? "UNIQUE " : "";
      const column = quoteName(this.#random.pick(table.columns));
      const exists = this.#random.chance(0.3) ? "IF NOT EXISTS " : "";
      return `CREATE ${unique}INDEX ${exists}i${this.#names++} ON ${name} (${column})`;
    }
    if (dice < 0.87) return this.#dropIndex(db);
    if (dice < 0.93 || !this.#renames) return `DROP TABLE ${name}`;
    const column = quoteName(this.#random.pick(table.columns));
    return this.#random.pick([
      `ALTER TABLE ${name} RENAME TO w${this.#names++}`,
      `ALTER TABLE ${name} RENAME COLUMN ${column} TO n${this.#names++}`,
      `CREATE TABLE w${this.#names++} AS SELECT * FROM ${name}`,
      `CREATE VIEW v${this.#names++} AS SELECT * FROM paid`,
    ]);
  }

  #dropIndex(db: Turso): string {
    const rows = db
      .prepare("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")
      .all() as { name: string }[];
    return rows.length === 0 ? "" : `DROP INDEX ${this.#random.pick(rows).name}`;
  }

  #createTable(): string {
    const name = this.#random.chance(0.2) ? quoteName(`w "${this.#names++}`) : `w${this.#names++}`;
    const key = this.#random.pick([
      "k INTEGER PRIMARY KEY",
      "k INTEGER PRIMARY KEY AUTOINCREMENT",
      "k TEXT PRIMARY KEY",
      "k",
    ]);
    const columns = Array.from({ length: 1 + this.#random.below(3) }, (_, i) =>
      this.#column(`c${i}_`),
    );
    const unique = this.#random.chance(0.3) ? ["u UNIQUE"] : [];
    return `CREATE TABLE ${name} (${[key, ...columns, ...unique].join(", ")})`;
  }

  #column(prefix: string): string {
    const fallback = this.#random.pick([
      "",
      "",
      " DEFAULT 7",
      " DEFAULT 'it''s'",
      " DEFAULT -1.5",
      " NOT NULL DEFAULT 0",
    ]);
    return `${prefix}${this.#names++} ${this.#random.pick(TYPES)}${fallback}`;
  }

  #write(db: Turso): void {
    const tables = this.#tables(db);
    if (tables.length === 0) return;
    const table = this.#random.pick(tables);
    const { sql, values } = this.#statement(table);
    try {
      const statement = db.prepare(sql);
      try {
        statement.run(...values);
      } finally {
        statement.close();
      }
    } catch {
      // A constraint.
    }
  }

  #statement(table: Table): { readonly sql: string; readonly values: unknown[] } {
    const values: unknown[] = [];
    const place = () => {
      const value = this.#random.pick(VALUES);
      values.push(value);
      return typeof value === "number" ? "CAST(? AS REAL)" : "?";
    };
    const name = quoteName(table.name);
    const columns = table.columns.map(quoteName);
    const column = this.#random.pick(columns);
    const or = this.#random.pick(["", "", "OR REPLACE ", "OR IGNORE "]);
    const small = () => String(this.#random.below(30));
    const dice = this.#random.next();
    const where = this.#random.pick([
      `WHERE rowid = ${small()}`,
      `WHERE rowid % 5 = ${this.#random.below(5)}`,
      `WHERE ${column} = ${this.#random.below(4)}`,
    ]);
    if (dice < 0.45) {
      const list = this.#random.chance(0.2)
        ? ["rowid", ...columns.filter((each) => each !== quoteName(table.key ?? ""))]
        : columns;
      const tuple = () =>
        `(${list.map((each) => (each === "rowid" || each === quoteName(table.key ?? "") ? small() : place())).join(", ")})`;
      const tuples = Array.from({ length: 1 + this.#random.below(3) }, tuple);
      const upsert =
        or === "" && table.key !== undefined && this.#random.chance(0.4)
          ? ` ON CONFLICT (${quoteName(table.key)}) DO UPDATE SET ${column} = excluded.${column}`
          : "";
      return {
        sql: `INSERT ${or}INTO ${name} (${list.join(", ")}) VALUES ${tuples.join(", ")}${upsert}`,
        values,
      };
    }
    if (dice < 0.7) {
      return { sql: `UPDATE ${or}${name} SET ${column} = ${place()} ${where}`, values };
    }
    if (dice < 0.82) {
      const key = quoteName(table.key ?? "rowid");
      return {
        sql: `UPDATE ${or}${name} SET ${table.key ? key : "rowid"} = ${small()} ${where}`,
        values,
      };
    }
    return { sql: `DELETE FROM ${name} ${where}`, values };
  }
}
