/**
 * The tables a node keeps, in numbered steps. Four of them belong to the contract (PROTOCOL.md,
 * "Tables every node has"): nodes of other makes open the same file, so those keep their columns and
 * only gain some of ours. Everything else is ours and starts with `_hooksync`.
 */
import type { Database } from "bun:sqlite";
import { HookSyncError } from "../base/errors.ts";
import { isWord, nameKey, tokenize } from "./sql.ts";

interface ContractTable {
  readonly name: string;
  readonly key: string;
  /** Every layout has these. */
  readonly columns: readonly string[];
  /** Given out by SQLite, and never twice: a watermark must not meet an old number again. */
  readonly isNumbered: boolean;
}

const CONTRACT_TABLES: readonly ContractTable[] = [
  { name: "_meta", key: "key", columns: ["value"], isNumbered: false },
  {
    name: "_changes",
    key: "change_id",
    columns: ["op", "row_id", "row_data"],
    isNumbered: true,
  },
  { name: "_dead_letter", key: "dead_id", columns: ["op", "row_id", "row_data"], isNumbered: true },
  { name: "_peer_state", key: "peer_url", columns: ["last_acked"], isNumbered: false },
];

const CREATE_CONTRACT_SQL = `
  CREATE TABLE IF NOT EXISTS _meta(key TEXT PRIMARY KEY, value INTEGER);
  CREATE TABLE IF NOT EXISTS _changes(
    change_id INTEGER PRIMARY KEY AUTOINCREMENT,
    op TEXT, table_name TEXT, row_id TEXT, row_data TEXT);
  CREATE TABLE IF NOT EXISTS _dead_letter(
    dead_id INTEGER PRIMARY KEY AUTOINCREMENT,
    op TEXT, row_id TEXT, row_data TEXT, failed_at INTEGER, retry_count INTEGER DEFAULT 0);
  CREATE TABLE IF NOT EXISTS _peer_state(peer_url TEXT PRIMARY KEY, last_acked INTEGER DEFAULT 0);
  CREATE TABLE IF NOT EXISTS _hooksync(key TEXT PRIMARY KEY, value) WITHOUT ROWID;`;

/** Columns of ours beside those of the contract, and those that older layouts lack. */
const ADDED_COLUMNS: readonly (readonly [table: string, column: string, type: string])[] = [
  // Single-table nodes log no table name: everything is items.
  ["_changes", "table_name", "TEXT DEFAULT 'items'"],
  // The version the write replaced, as the trigger saw it; without a type, it is kept as it was.
  ["_changes", "was", ""],
  // Set on entries that only one peer gets, while it is filled (filler.ts).
  ["_changes", "only_for", "TEXT"],
  ["_dead_letter", "failed_at", "INTEGER"],
  ["_dead_letter", "retry_count", "INTEGER DEFAULT 0"],
  ["_dead_letter", "direction", "TEXT"],
  ["_dead_letter", "peer", "TEXT"],
  ["_dead_letter", "origin", "TEXT"],
  ["_dead_letter", "is_foreign", "INTEGER"],
  ["_dead_letter", "table_name", "TEXT"],
  ["_dead_letter", "reason", "TEXT"],
  ["_dead_letter", "code", "TEXT"],
  ["_dead_letter", "version", "INTEGER"],
  ["_dead_letter", "change", "TEXT"],
  ["_dead_letter", "parked_at", "INTEGER"],
  ["_dead_letter", "retry_at", "INTEGER"],
  ["_peer_state", "prev", "INTEGER DEFAULT 0"],
  ["_peer_state", "node_id", "TEXT"],
  ["_peer_state", "db_id", "TEXT"],
  ["_peer_state", "make", "TEXT"],
  ["_peer_state", "fill", "TEXT"],
  // Why this peer must be filled once it answers; NULL: it need not.
  ["_peer_state", "fill_wanted", "TEXT"],
];

/** Each may be repeated: so a table that somebody dropped is made again. */
const MIGRATIONS: readonly string[] = [
  `
  CREATE TABLE IF NOT EXISTS _hooksync_noted(tbl, id, version, row, at, PRIMARY KEY(tbl, id)) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS _hooksync_tombstones(
    tbl TEXT, id TEXT, version INTEGER, deleted_at INTEGER, PRIMARY KEY(tbl, id)) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS _hooksync_columns(
    tbl TEXT, id TEXT, col TEXT, version INTEGER, value TEXT, PRIMARY KEY(tbl, id, col)) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS _hooksync_marks(db TEXT PRIMARY KEY, batch_id INTEGER, hash TEXT) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS _hooksync_origins(
    tbl TEXT, id TEXT, origin TEXT, is_foreign INTEGER, is_mixed INTEGER, seen_at INTEGER,
    PRIMARY KEY(tbl, id)) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS _hooksync_contested(
    tbl TEXT, id TEXT, step INTEGER, since INTEGER, announced_at INTEGER, due_at INTEGER,
    PRIMARY KEY(tbl, id)) WITHOUT ROWID;
  CREATE INDEX IF NOT EXISTS _hooksync_contested_due ON _hooksync_contested(due_at);
  CREATE TABLE IF NOT EXISTS _hooksync_left_out(peer TEXT, tbl TEXT, changes INTEGER, PRIMARY KEY(peer, tbl)) WITHOUT ROWID;
  CREATE INDEX IF NOT EXISTS _hooksync_parked ON _dead_letter(direction, table_name, row_id);
  CREATE INDEX IF NOT EXISTS _hooksync_parked_due ON _dead_letter(retry_at) WHERE retry_at IS NOT NULL;
  CREATE INDEX IF NOT EXISTS _hooksync_parked_unique ON _dead_letter(failed_at) WHERE code = 'unique';
  `,
];

/** Refuses, before anything is written, a file whose tables of these names are somebody else's. */
export function refuseOtherShapes(db: Database): void {
  for (const table of CONTRACT_TABLES) {
    const fault = faultOf(db, table);
    if (fault === undefined) continue;
    throw new HookSyncError(
      "file-foreign-tables",
      `the file has a ${fault}: it belongs to another program`,
      `Rename it; hook-sync needs the name ${table.name} for itself.`,
    );
  }
  const version = migrationLevel(db);
  if (version > MIGRATIONS.length) {
    throw new HookSyncError(
      "file-newer",
      `the file was used by a newer hook-sync (its level is ${version}, this program knows ${MIGRATIONS.length})`,
      "Start it with that version or a later one.",
    );
  }
}

interface ContractColumn {
  readonly name: string;
  readonly type: string;
  readonly notnull: number;
  readonly dflt_value: string | null;
  readonly pk: number;
}

/** Why what has this name is not the table of the contract, or undefined. */
function faultOf(db: Database, { name, key, columns, isNumbered }: ContractTable) {
  const found = db
    .prepare<{ type: string; sql: string | null }, [string]>(
      "SELECT type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type <> 'trigger'",
    )
    .get(name);
  if (found === null) return undefined;
  if (found.type !== "table") return `${found.type} ${name}`;
  const present = db
    .prepare<ContractColumn, [string]>(
      'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)',
    )
    .all(name);
  const missing = [key, ...columns].filter(
    (column) => !present.some((other) => nameKey(other.name) === column),
  );
  if (missing.length > 0) return `table ${name} without the column ${missing.join(", ")}`;
  const keys = present.filter((column) => column.pk > 0);
  if (keys.length !== 1 || nameKey(keys[0]!.name) !== key)
    return `table ${name} whose key is not ${key}`;
  const isCounting = tokenize(found.sql ?? "").some((token) => isWord(token, "AUTOINCREMENT"));
  if (isNumbered && !isCounting) return `table ${name} without AUTOINCREMENT`;
  const own = ADDED_COLUMNS.filter(([table]) => table === name).map(([, column]) => column);
  const demanded = present.find(
    (column) =>
      column.notnull === 1 &&
      column.dflt_value === null &&
      ![key, ...columns, ...own].includes(nameKey(column.name)),
  );
  // A trigger that leaves it out would fail the application's own writes.
  return demanded && `table ${name} that demands a ${demanded.name}`;
}

/**
 * Brings the tables up to date. Runs inside the caller's transaction; a repeat changes nothing. Returns
 * the tables that had been there before and were dropped by somebody.
 */
export function migrate(db: Database): string[] {
  const before = migrationLevel(db) === MIGRATIONS.length ? new Set(ownTableNames(db)) : undefined;
  const hadFlag = columnNames(db, "_meta").length > 0 && wasSynced(db);
  db.run(CREATE_CONTRACT_SQL);
  // Where the flag is gone from a table that was there, nothing was captured: settling has to see that.
  // A file that no node ever used has nothing to be captured: a schema may bring the table along, empty.
  if (!hadFlag) db.run("INSERT OR IGNORE INTO _meta(key, value) VALUES ('syncing', 0)");
  for (const [table, column, type] of ADDED_COLUMNS) {
    if (columnNames(db, table).includes(column)) continue;
    db.run(`ALTER TABLE ${table} ADD COLUMN "${column}" ${type}`);
  }
  for (const sql of MIGRATIONS) db.run(sql);
  if (before === undefined) setSetting(db, "level", MIGRATIONS.length);
  return before === undefined ? [] : ownTableNames(db).filter((name) => !before.has(name));
}

function migrationLevel(db: Database): number {
  return wasOurs(db) ? Number(setting(db, "level") ?? 0) : 0;
}

function columnNames(db: Database, table: string): string[] {
  return db
    .prepare<{ name: string }, [string]>("SELECT name FROM pragma_table_info(?)")
    .all(table)
    .map((column) => nameKey(column.name));
}

/** Whether this file has been a node's before, of any make. */
export function wasSynced(db: Database): boolean {
  return columnNames(db, "_changes").length > 0;
}

/** Whether a node of ours used it. */
export function wasOurs(db: Database): boolean {
  return columnNames(db, "_hooksync").length > 0;
}

/** One value of ours that lives in the file. */
export function setting(db: Database, key: string): string | number | null {
  const row = db
    .query<{ value: string | number | null }, [string]>("SELECT value FROM _hooksync WHERE key = ?")
    .get(key);
  return row?.value ?? null;
}

/** Stored as it is: a number comes back as a number. Inside the caller's transaction, if any. */
export function setSetting(db: Database, key: string, value: string | number): void {
  db.query(
    "INSERT INTO _hooksync(key, value) VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
  ).run(key, value);
}

/** Nothing happens where there is none. */
export function dropSetting(db: Database, key: string): void {
  db.query("DELETE FROM _hooksync WHERE key = ?").run(key);
}

/** Tables of ours and of the contract that the file has. */
export function ownTableNames(db: Database): string[] {
  return db
    .prepare<{ name: string }, []>(
      `SELECT name FROM sqlite_master WHERE type = 'table'
       AND (name LIKE '\\_hooksync%' ESCAPE '\\' OR name IN ('_meta', '_changes', '_dead_letter', '_peer_state'))`,
    )
    .all()
    .map(({ name }) => name);
}

/** Takes everything of ours and of the contract out of the file; data and user triggers stay. */
export function dropOwnTables(db: Database, kept: ReadonlySet<string> = new Set()): void {
  for (const name of ownTableNames(db)) {
    if (!kept.has(name)) db.run(`DROP TABLE "${name}"`);
  }
}
