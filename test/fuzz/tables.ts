/** The tables that bodies are about: every affinity, odd names, and each way in which a row can be refused. */

export interface FuzzTable {
  readonly name: string;
  /** As declared; all but `id` and `updated_at`. */
  readonly columns: readonly string[];
  /** `id`, as this table spells it. */
  readonly id: string;
  readonly generated: readonly string[];
  /** Columns of BLOB affinity: a foreign sender's `\x…` becomes bytes there. */
  readonly untyped: readonly string[];
  /** A row may be refused for what it holds. */
  readonly isStrict: boolean;
}

export const TABLES: readonly FuzzTable[] = [
  {
    name: "items",
    id: "id",
    columns: ["name", "n", "r", "x", "d", "b"],
    generated: [],
    untyped: ["x", "b"],
    isStrict: false,
  },
  {
    name: "Other things",
    id: "ID",
    columns: ["a b", "__proto__", "constructor"],
    generated: ["total"],
    untyped: ["__proto__"],
    isStrict: false,
  },
  {
    name: "strict",
    id: "id",
    columns: ["n", "r", "t", "y", "z"],
    generated: [],
    untyped: ["y", "z"],
    isStrict: true,
  },
  {
    name: "guarded",
    id: "id",
    columns: ["name"],
    generated: [],
    untyped: [],
    isStrict: true,
  },
  {
    name: "uniq",
    id: "id",
    columns: ["email", "name"],
    generated: [],
    untyped: [],
    isStrict: false,
  },
];

/** What `guarded` refuses: alone, and with the whole transaction. */
export const REFUSED_NAME = "worse";
export const ROLLED_BACK_NAME = "worst";

const GUARD = (event: string) => `
  CREATE TRIGGER guard_${event} BEFORE ${event} ON guarded BEGIN
    SELECT RAISE(ABORT, 'not this name') WHERE NEW.name = '${REFUSED_NAME}';
    SELECT RAISE(ROLLBACK, 'not at all') WHERE NEW.name = '${ROLLED_BACK_NAME}';
  END;`;

export const SCHEMA = `
  CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT COLLATE NOCASE, n INTEGER, r REAL, x, d NUMERIC, b BLOB,
    updated_at INTEGER);
  CREATE TABLE "Other things"(ID TEXT PRIMARY KEY, "a b" TEXT, "__proto__", "constructor" INTEGER,
    updated_at INTEGER, total AS (length("a b"))) WITHOUT ROWID;
  CREATE TABLE strict(id TEXT PRIMARY KEY, n INTEGER NOT NULL DEFAULT 7, r REAL, t TEXT CHECK (t <> 'bad'), y ANY,
    z BLOB, updated_at INTEGER) STRICT;
  CREATE TABLE guarded(id TEXT PRIMARY KEY, name TEXT, updated_at INTEGER);
  CREATE TABLE uniq(id TEXT PRIMARY KEY, email TEXT UNIQUE, name TEXT, updated_at INTEGER);
  CREATE TABLE secrets(id TEXT PRIMARY KEY, token TEXT, updated_at INTEGER);
  ${GUARD("INSERT")} ${GUARD("UPDATE")}`;

/** As `--tables` would name them: `secrets` is left out. */
export const SYNCED = TABLES.map(({ name }) => name);

export function tableNamed(name: string): FuzzTable | undefined {
  return TABLES.find((table) => sameName(table.name, name));
}

/** As SQLite compares names. */
export function foldName(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

export function sameName(left: string, right: string): boolean {
  return foldName(left) === foldName(right);
}
