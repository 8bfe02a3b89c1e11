/**
 * Announcing a whole table: its triggers were missing for a while, or it is synced from now on. In
 * slices by id, with the cursor in the file, so that a large table neither holds the lock nor starts
 * over after a restart.
 *
 * Nothing tells which rows were written meanwhile, so versions stay as they are, but for those that no
 * peer would take: they are lifted as settling would have done it. A table seen for the first time is
 * adopted on the way: rows without a stamp get version 0, as everywhere.
 */
import type { Database } from "bun:sqlite";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import { isZeroed, markZeroed } from "./adopt.ts";
import { dropSetting, setSetting, setting } from "./migrations.ts";
import type { SyncedTable } from "./schema.ts";
import { isRefusal } from "./settle-rows.ts";
import { quoteName, textOfHexSql } from "./sql.ts";
import { loggedRowOf, orAbort } from "./table-writer.ts";
import { isOddSql } from "./versions.ts";

const SLICE_ROWS = 2_000;

/** Works off what `announceLater` and `announceUnseen` left in the file. */
export class Announcer {
  readonly #db: Database;
  /** Tables with a trigger of the application that forbids setting a stamp. */
  readonly #unliftable = new Set<string>();

  constructor(db: Database) {
    this.#db = db;
  }

  get isPending(): boolean {
    return this.#next() !== null;
  }

  #next(): { key: string; value: string } | null {
    return this.#db
      .query<{ key: string; value: string }, []>(
        "SELECT key, value FROM _hooksync WHERE key >= 'announce:' AND key < 'announce;' LIMIT 1",
      )
      .get();
  }

  /** Announces the next slice inside the caller's transaction; returns the entries made. */
  runSlice(tables: ReadonlyMap<string, SyncedTable>, nowMs: number): number {
    const next = this.#next();
    if (next === null) return 0;
    const table = tables.get(next.key.slice("announce:".length));
    const last = table === undefined ? null : this.#endOfSlice(table, next.value);
    if (table === undefined || last === null) {
      dropSetting(this.#db, next.key);
      dropSetting(this.#db, next.key.replace("announce:", "unseen:"));
      if (table !== undefined && !isZeroed(this.#db, table)) markZeroed(this.#db, table, 0);
      return 0;
    }
    this.#db.query("UPDATE _meta SET value = 1 WHERE key = 'syncing'").run();
    this.#lift(table, next.value, last, nowMs);
    const t = quoteName(table.name);
    const id = `t.${quoteName(table.id.name)}`;
    const { changes } = this.#db
      .query(
        `INSERT INTO _changes(op, table_name, row_id, row_data)
         SELECT 'UPDATE', ?3, ${id}, ${loggedRowOf(table)} FROM ${t} AS t
         WHERE ${id} > ${textOfHexSql("?1")} AND ${id} <= ${textOfHexSql("?2")} AND typeof(${id}) = 'text' ORDER BY ${id}`,
      )
      .run(next.value, last, table.name);
    this.#db.query("UPDATE _meta SET value = 0 WHERE key = 'syncing'").run();
    setSetting(this.#db, next.key, last);
    return changes;
  }

  /** The id, as hex, of the last row of the slice that begins after `after`; null at the end. */
  #endOfSlice(table: SyncedTable, after: string): string | null {
    const id = quoteName(table.id.name);
    return this.#db
      .query<{ id: string | null }, [string]>(
        `SELECT CASE WHEN count(*) > 0 THEN hex(max(${id})) END AS id FROM (
           SELECT ${id} FROM ${quoteName(table.name)}
           WHERE ${id} > ${textOfHexSql("?")} AND typeof(${id}) = 'text' ORDER BY ${id} LIMIT ${SLICE_ROWS})`,
      )
      .get(after)!.id;
  }

  #lift(table: SyncedTable, after: string, last: string, nowMs: number): void {
    if (this.#unliftable.has(table.key)) return;
    const id = `t.${quoteName(table.id.name)}`;
    const version = quoteName(table.version.name);
    const tombstone = `(SELECT s.version FROM _hooksync_tombstones AS s WHERE s.tbl = :key AND s.id = ${id})`;
    const zero = isZeroed(this.#db, table)
      ? ""
      : `WHEN t.${version} IS NULL AND ${tombstone} IS NULL THEN 0 `;
    try {
      if (setting(this.#db, `unseen:${table.key}`) !== null)
        this.#liftByOne(table, after, last, nowMs);
      this.#db
        .query(
          `UPDATE ${orAbort(table)} ${quoteName(table.name)} AS t
           SET ${version} = CASE ${zero}WHEN 1 THEN max(:now, coalesce(${tombstone} + 1, 0)) END
           WHERE ${id} > ${textOfHexSql(":after")} AND ${id} <= ${textOfHexSql(":last")} AND typeof(${id}) = 'text'
             AND (${isOddSql(`t.${version}`)} OR t.${version} > :now + ${VERSION_AHEAD_MS_MAX}
               OR t.${version} <= ${tombstone})`,
        )
        .run({ key: table.key, now: nowMs, after, last });
    } catch (error) {
      if (!isRefusal(error)) throw error;
      this.#unliftable.add(table.key);
      // RAISE(ROLLBACK) took the transaction with it; the slice comes again, as its rows are.
      if (!this.#db.inTransaction) throw error;
    }
  }

  /** schema-watch.ts, announceUnseen. Odd stamps are lifted higher than that. */
  #liftByOne(table: SyncedTable, after: string, last: string, nowMs: number): void {
    const id = quoteName(table.id.name);
    const version = quoteName(table.version.name);
    this.#db
      .query(
        `UPDATE ${orAbort(table)} ${quoteName(table.name)} SET ${version} = ${version} + 1
         WHERE ${id} > ${textOfHexSql(":after")} AND ${id} <= ${textOfHexSql(":last")} AND typeof(${id}) = 'text'
           AND typeof(${version}) = 'integer' AND ${version} <= :ahead`,
      )
      .run({ after, last, ahead: nowMs + VERSION_AHEAD_MS_MAX });
  }
}
