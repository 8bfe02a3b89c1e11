/**
 * The first look at a file: which tables are asked for, and what has to be put right before the node
 * runs. What can be refused is refused here, before anything is written.
 */
import type { Database } from "bun:sqlite";
import { HookSyncError } from "../base/errors.ts";
import {
  capturedTables,
  readSelection,
  type Selection,
  surveyAll,
  writeSelection,
} from "./catalog.ts";
import type { ChangeLog } from "./change-log.ts";
import {
  migrate,
  refuseOtherShapes,
  setSetting,
  setting,
  wasOurs,
  wasSynced,
} from "./migrations.ts";
import { readTables, type SyncedTable } from "./schema.ts";
import { isRefusal } from "./settle-rows.ts";
import { isWord, nameKey, quoteName, textOfHexSql, tokenize } from "./sql.ts";
import { orAbort } from "./table-writer.ts";
import type { Tombstones } from "./tombstones.ts";
import { isOddSql } from "./versions.ts";

/** `--tables`: names, everything that qualifies, or nothing said. */
export type AskedTables = readonly string[] | "*" | undefined;

/** What an empty file gets; PROTOCOL.md, "Tables every node has". */
export const DEFAULT_TABLE_SQL = `
  CREATE TABLE items(
    id TEXT PRIMARY KEY, name TEXT, value INTEGER,
    created_at INTEGER, updated_at INTEGER, node_id TEXT)`;

/**
 * What the user asked for, now or before. Undefined: the file has no user tables yet. Throws where an
 * application's file was never synced and nobody said which tables to sync.
 */
export function decideSelection(db: Database, asked: AskedTables): Selection | undefined {
  refuseOtherEncodings(db);
  refuseOtherShapes(db);
  if (asked === "*") return { all: true, names: [], isChosen: true };
  if (asked !== undefined) return { all: false, names: asked.map(nameKey), isChosen: true };
  const before = wasOurs(db) ? readSelection(db) : undefined;
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

/** What is captured is read and sent as the bytes of its JSON, which have to be UTF-8. */
function refuseOtherEncodings(db: Database): void {
  const { encoding } = db.prepare<{ encoding: string }, []>("PRAGMA encoding").get()!;
  if (encoding === "UTF-8") return;
  throw new HookSyncError(
    "store-failed",
    `the file keeps its text as ${encoding}, and nodes exchange UTF-8`,
    "Make a new one from it: sqlite3 OLD .dump | sqlite3 NEW",
  );
}

/** What --tables and --schema say, and whether an empty file gets `DEFAULT_TABLE_SQL`. */
export interface AdoptOptions {
  readonly asked: AskedTables;
  /** False: whoever opens an empty file brings tables of its own. */
  readonly makesDefaultTable?: boolean;
  /** Text of `--schema`; run when it is new to this file. */
  readonly schemaSql: string | undefined;
}

/**
 * Runs the schema file, makes the default table in an empty file, and brings our tables up to date,
 * all or nothing. Returns the selection to sync by, and our tables that somebody had dropped.
 */
export function prepareFile(
  db: Database,
  options: AdoptOptions,
): { selection: Selection; restored: readonly string[] } {
  const selection = decideSelection(db, options.asked);
  const schemaSql = newSchema(db, options.schemaSql);
  const isEmpty = readTables(db).size === 0;
  const runsAlone = schemaSql !== undefined && hasOwnTransactions(schemaSql);
  if (runsAlone) runSchema(db, schemaSql);
  db.run("BEGIN IMMEDIATE");
  try {
    if (schemaSql !== undefined && !runsAlone) runSchema(db, schemaSql);
    const isBare = readTables(db).size === 0;
    if (isBare && options.makesDefaultTable !== false) db.run(DEFAULT_TABLE_SQL);
    const restored = migrate(db);
    const names = isEmpty && selection === undefined ? [...readTables(db).keys()] : [];
    const chosen = selection ?? { all: false, names };
    writeSelection(db, chosen);
    if (schemaSql !== undefined) setSetting(db, "schema_file", hashText(schemaSql));
    db.run("COMMIT");
    return { selection: chosen, restored };
  } catch (error) {
    if (db.inTransaction) db.run("ROLLBACK");
    throw error;
  }
}

/** A schema file that was run before is not run again: most say CREATE TABLE without IF NOT EXISTS. */
function newSchema(db: Database, sql: string | undefined): string | undefined {
  if (sql === undefined || !wasOurs(db)) return sql;
  return setting(db, "schema_file") === hashText(sql) ? undefined : sql;
}

/** Whether it says BEGIN itself, or something that SQLite only takes outside of a transaction. */
function hasOwnTransactions(sql: string): boolean {
  const tokens = tokenize(sql);
  return tokens.some(
    (token, i) =>
      (i === 0 || tokens[i - 1]!.value === ";") &&
      ["BEGIN", "SAVEPOINT", "PRAGMA", "VACUUM", "ATTACH"].some((word) => isWord(token, word)),
  );
}

function runSchema(db: Database, sql: string): void {
  const wasOpen = db.inTransaction;
  try {
    db.run(sql);
    if (db.inTransaction !== wasOpen) throw new Error("a transaction in it is not ended by COMMIT");
  } catch (error) {
    if (db.inTransaction && !wasOpen) db.run("ROLLBACK");
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

/** Whether the rows that had no stamp when the table was first seen have version 0 by now. */
export function isZeroed(db: Database, table: SyncedTable): boolean {
  return setting(db, `zeroed:${table.key}`) !== null;
}

/** Remembers for good that this is done, and for how many rows. */
export function markZeroed(db: Database, table: SyncedTable, rows: number): void {
  setSetting(db, `zeroed:${table.key}`, rows);
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
  const after = textOfHexSql("?1");
  const find = db.prepare<{ last: string | null; rows: number }, [string]>(
    `SELECT hex(max(${id})) AS last, count(*) AS rows FROM (
       SELECT ${id} FROM ${t} WHERE ${id} > ${after} AND typeof(${id}) = 'text' AND ${version} IS NULL
       ORDER BY ${id} LIMIT ${STAMP_SLICE_ROWS})`,
  );
  let count = 0;
  try {
    for (let from = ""; ; ) {
      const { last, rows } = find.get(from)!;
      if (last === null || rows === 0) break;
      db.run("BEGIN IMMEDIATE");
      db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
      count += db
        .query(
          `UPDATE ${orAbort(table)} ${t} SET ${version} = 0
           WHERE ${id} > ${after} AND ${id} <= ${textOfHexSql("?2")} AND ${version} IS NULL`,
        )
        .run(from, last).changes;
      db.run("UPDATE _meta SET value = 0 WHERE key = 'syncing'");
      db.run("COMMIT");
      from = last;
    }
  } catch (error) {
    if (db.inTransaction) db.run("ROLLBACK");
    if (!isRefusal(error)) throw error;
  } finally {
    find.finalize();
  }
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
 * transaction, with the syncing flag up. Returns how many.
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
    // One that ends the transaction would keep the node from starting.
    if (table.userTriggers.some(({ sql }) => mayRollBack(sql))) continue;
    const version = quoteName(table.version.name);
    const id = quoteName(table.id.name);
    const t = quoteName(table.name);
    const revived = db
      .query<{ id: string }, [string]>(
        `SELECT s.id AS id FROM _hooksync_tombstones AS s CROSS JOIN ${t} AS t ON t.${id} = s.id
         WHERE s.tbl = ? AND (${isOddSql(`t.${version}`)} OR t.${version} <= s.version)`,
      )
      .all(table.key);
    for (const row of revived) {
      const above = Math.max(nowMs, (tombstones.versionOf(table.key, row.id) ?? 0) + 1);
      if (!setStamp(db, table, row.id, above)) continue;
      log.announceRow(table, row.id);
      lifted++;
    }
  }
  return lifted;
}

function mayRollBack(triggerSql: string): boolean {
  const tokens = tokenize(triggerSql);
  return tokens.some((token, i) => isWord(token, "RAISE") && isWord(tokens[i + 2], "ROLLBACK"));
}

/** False where a trigger of the application forbids it: then the row stays behind its tombstone. */
function setStamp(db: Database, table: SyncedTable, id: string, version: number): boolean {
  try {
    const { changes } = db
      .query(
        `UPDATE ${orAbort(table)} ${quoteName(table.name)} SET ${quoteName(table.version.name)} = ? WHERE ${quoteName(table.id.name)} = ?`,
      )
      .run(version, id);
    return changes > 0;
  } catch (error) {
    if (!isRefusal(error)) throw error;
    return false;
  }
}
