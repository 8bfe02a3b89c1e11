/**
 * The first look at a file: which tables are asked for, and what has to be put right before the node
 * runs. What can be refused is refused here, before anything is written.
 */
import type { Database } from "bun:sqlite";
import { HookSyncError } from "../base/errors.ts";
import { capturedTables, readSelection, type Selection, surveyAll } from "./catalog.ts";
import type { ChangeLog } from "./change-log.ts";
import { migrate, refuseOtherShapes, setSetting, setting, wasSynced } from "./migrations.ts";
import { readTables, type SyncedTable } from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";
import type { Tombstones } from "./tombstones.ts";

/** `--tables`: names, everything that qualifies, or nothing said. */
export type AskedTables = readonly string[] | "*" | undefined;

export const DEFAULT_TABLE_SQL = `
  CREATE TABLE items(
    id TEXT PRIMARY KEY, name TEXT, value INTEGER,
    created_at INTEGER, updated_at INTEGER, node_id TEXT)`;

/**
 * What the user asked for, now or before. Undefined: the file has no user tables yet. Throws where an
 * application's file was never synced and nobody said which tables to sync.
 */
export function decideSelection(db: Database, asked: AskedTables): Selection | undefined {
  refuseOtherShapes(db);
  if (asked === "*") return { all: true, names: [] };
  if (asked !== undefined) return { all: false, names: asked.map(nameKey) };
  const isOurs = db.prepare("SELECT 1 FROM sqlite_master WHERE name = '_hooksync'").get() !== null;
  const before = isOurs ? readSelection(db) : undefined;
  if (before) return before;
  const tables = readTables(db);
  if (tables.size === 0) return undefined;
  const captured = capturedTables(db);
  if (captured.size > 0) return { all: false, names: [...captured] };
  if (wasSynced(db) && tables.has("items")) return { all: false, names: ["items"] };
  const { synced, notSynced } = surveyAll(db);
  const fit = [...synced.values()].map((table) => table.name);
  const unfit = notSynced.map((table) => `${table.name} (${table.reason})`);
  throw new HookSyncError(
    "tables-not-chosen",
    `the file holds an application's tables and was never synced; say which to sync with --tables. ` +
      `Fit: ${fit.join(", ") || "none"}. Not fit: ${unfit.join("; ") || "none"}`,
    fit.length > 0
      ? `For example: --tables ${fit.join(",")} (or --tables '*' for all that qualify, also later ones).`
      : "hook-sync check --db FILE says what each table needs.",
  );
}

export interface AdoptOptions {
  readonly asked: AskedTables;
  /** Text of `--schema`; run when it is new to this file. */
  readonly schemaSql: string | undefined;
}

/**
 * Runs the schema file, makes the default table in an empty file, and brings our tables up to date.
 * Returns the selection to sync by.
 */
export function prepareFile(db: Database, options: AdoptOptions): Selection {
  const selection = decideSelection(db, options.asked);
  const isEmpty = readTables(db).size === 0;
  runSchema(db, options.schemaSql);
  db.run("BEGIN IMMEDIATE");
  try {
    if (readTables(db).size === 0) db.run(DEFAULT_TABLE_SQL);
    migrate(db);
    const names = isEmpty && selection === undefined ? [...readTables(db).keys()] : [];
    const chosen = selection ?? { all: false, names };
    setSetting(db, "tables", JSON.stringify(chosen));
    if (options.schemaSql !== undefined) setSetting(db, "schema_file", hashText(options.schemaSql));
    db.run("COMMIT");
    return chosen;
  } catch (error) {
    if (db.inTransaction) db.run("ROLLBACK");
    throw error;
  }
}

/** A schema file that was run before is not run again: most say CREATE TABLE without IF NOT EXISTS. */
function runSchema(db: Database, sql: string | undefined): void {
  if (sql === undefined) return;
  const isKnown = db.prepare("SELECT 1 FROM sqlite_master WHERE name = '_hooksync'").get() !== null;
  if (isKnown && setting(db, "schema_file") === hashText(sql)) return;
  try {
    db.run(sql);
  } catch (error) {
    if (db.inTransaction) db.run("ROLLBACK");
    throw new HookSyncError(
      "store-failed",
      `the file given by --schema failed: ${(error as Error).message}`,
      "Correct it; for tables that may be there already, write CREATE TABLE IF NOT EXISTS.",
      error,
    );
  }
}

function hashText(text: string): string {
  return new Bun.CryptoHasher("sha256").update(text).digest("hex");
}

/** Rows per transaction while NULL stamps become 0. */
const STAMP_SLICE_ROWS = 5_000;

/**
 * At first adoption rows without a stamp get version 0, the same on every node, uncaptured. A trigger
 * that forbids it leaves the row as it is, which is read as version 0 all the same. Returns how many.
 */
export function zeroNullStamps(db: Database, table: SyncedTable): number {
  const t = quoteName(table.name);
  const version = quoteName(table.version.name);
  const id = quoteName(table.id.name);
  const slice = db.prepare<{ id: string }, [string]>(
    `UPDATE ${t} SET ${version} = 0 WHERE ${id} IN (
       SELECT ${id} FROM ${t} WHERE ${id} > ? AND ${version} IS NULL ORDER BY ${id} LIMIT ${STAMP_SLICE_ROWS})
     RETURNING ${id} AS id`,
  );
  let after = "";
  let count = 0;
  for (;;) {
    db.run("BEGIN IMMEDIATE");
    try {
      db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
      const rows = slice.all(after);
      db.run("UPDATE _meta SET value = 0 WHERE key = 'syncing'");
      db.run("COMMIT");
      count += rows.length;
      if (rows.length < STAMP_SLICE_ROWS) break;
      for (const { id } of rows) if (id > after) after = id;
    } catch {
      // A trigger of the application forbids it; NULL is read as 0 anyway.
      if (db.inTransaction) db.run("ROLLBACK");
      break;
    }
  }
  slice.finalize();
  return count;
}

/** Rows whose id is NULL or a BLOB: they stay out of syncing and are counted. */
export function countOddIds(db: Database, table: SyncedTable): number {
  const id = quoteName(table.id.name);
  return db
    .query<{ n: number }, []>(
      `SELECT (SELECT count(*) FROM ${quoteName(table.name)} WHERE ${id} IS NULL)
            + (SELECT count(*) FROM ${quoteName(table.name)} WHERE ${id} >= x'') AS n`,
    )
    .get()!.n;
}

/**
 * A node of another make that used this file knew nothing of our tombstones: a row that lives at or
 * below its own was brought back there. It gets a version above and is announced. Inside the caller's
 * transaction, with the syncing flag up.
 */
export function liftRevived(
  db: Database,
  tables: Iterable<SyncedTable>,
  log: ChangeLog,
  tombstones: Tombstones,
  nowMs: number,
): number {
  let lifted = 0;
  for (const table of tables) {
    const version = quoteName(table.version.name);
    const id = quoteName(table.id.name);
    const t = quoteName(table.name);
    const revived = db
      .query<{ id: string }, [string]>(
        `SELECT s.id AS id FROM _hooksync_tombstones AS s CROSS JOIN ${t} AS t ON t.${id} = s.id
         WHERE s.tbl = ? AND (typeof(t.${version}) <> 'integer' OR t.${version} <= s.version)`,
      )
      .all(table.key);
    for (const row of revived) {
      const above = Math.max(nowMs, (tombstones.versionOf(table.key, row.id) ?? 0) + 1);
      db.query(`UPDATE ${t} SET ${version} = ? WHERE ${id} = ?`).run(above, row.id);
      log.announceRow(table, row.id);
      lifted++;
    }
  }
  return lifted;
}
