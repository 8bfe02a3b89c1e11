/**
 * Entries of the log that no trigger makes: announcements, and deletes put behind an entry that is
 * still on its way. Also what a received delete must know: whether the log still holds an entry of its row.
 */
import type { Database } from "bun:sqlite";
import type { SyncedTable } from "./schema.ts";
import { quoteName } from "./sql.ts";
import { rowJsonOf, withVersionSql } from "./table-writer.ts";

/** Entries that were pruned from the log leave its mirror in lots of this many. */
const MIRROR_PRUNE_ENTRIES = 50_000;

export class ChangeLog {
  readonly #db: Database;
  #mirroredThrough: number | undefined;
  #mirroredFrom = 0;

  constructor(db: Database) {
    this.#db = db;
  }

  /** After a rollback: what was mirrored may be gone. */
  forget(): void {
    this.#mirroredThrough = undefined;
  }

  newest(): number {
    return (
      this.#db.query<{ id: number | null }, []>("SELECT max(change_id) AS id FROM _changes").get()!
        .id ?? 0
    );
  }

  pending(): number {
    return this.#db.query<{ n: number }, []>("SELECT count(*) AS n FROM _changes").get()!.n;
  }

  /** Puts the row as it stands into the log again; false where it is not there. */
  announceRow(table: SyncedTable, id: string): boolean {
    const t = quoteName(table.name);
    return (
      this.#db
        .query(
          `INSERT INTO _changes(op, table_name, row_id, row_data)
           SELECT 'UPDATE', ?, ?2, ${rowJsonOf(table)} FROM ${t} AS t WHERE t.${quoteName(table.id.name)} = ?2`,
        )
        .run(table.name, id).changes > 0
    );
  }

  /** `rowJson` is the deleted row with the delete's version in it. */
  announceDelete(table: SyncedTable, id: string, rowJson: string): void {
    this.#db
      .query("INSERT INTO _changes(op, table_name, row_id, row_data) VALUES ('DELETE', ?, ?, ?)")
      .run(table.name, id, rowJson);
  }

  /** The row as it stands, as a DELETE of this version: for deletes that came without their row. */
  announceRowAsDelete(table: SyncedTable, id: string, version: number): void {
    const t = quoteName(table.name);
    this.#db
      .query(
        `INSERT INTO _changes(op, table_name, row_id, row_data)
         SELECT 'DELETE', ?, ?2, ${withVersionSql(table, rowJsonOf(table), "?3")} FROM ${t} AS t WHERE t.${quoteName(table.id.name)} = ?2`,
      )
      .run(table.name, id, version);
  }

  /**
   * Whether an entry of this row waits for some peer. The log has no index by row (it would cost every
   * write); deletes are rare, so a mirror in memory is brought up to date when one arrives.
   */
  holds(table: SyncedTable, id: string): boolean {
    return this.heldOf(table, [id]).size > 0;
  }

  /** Which of these rows have an entry that waits for some peer. */
  heldOf(table: SyncedTable, ids: readonly string[]): Set<string> {
    const oldest = this.#db
      .query<{ id: number | null }, []>("SELECT min(change_id) AS id FROM _changes")
      .get()!.id;
    if (oldest === null) return new Set();
    this.#bringMirrorUpToDate(oldest);
    const held = this.#db
      .query<{ id: string }, [string, string, number]>(
        `SELECT e.value AS id FROM json_each(?2) AS e CROSS JOIN temp._hooksync_logged AS l
         ON l.tbl = ?1 AND l.id = e.value AND l.change_id >= ?3`,
      )
      .all(table.name, JSON.stringify(ids), oldest);
    return new Set(held.map((row) => row.id));
  }

  #bringMirrorUpToDate(oldest: number): void {
    if (this.#mirroredThrough === undefined) {
      this.#db.run(
        "CREATE TABLE IF NOT EXISTS temp._hooksync_logged(tbl TEXT, id TEXT, change_id INTEGER, PRIMARY KEY(tbl, id)) WITHOUT ROWID",
      );
      this.#db.run("DELETE FROM temp._hooksync_logged");
      this.#mirroredThrough = 0;
      this.#mirroredFrom = oldest;
    }
    const newest = this.newest();
    if (newest <= this.#mirroredThrough) return;
    this.#db
      .query(
        `INSERT INTO temp._hooksync_logged(tbl, id, change_id)
         SELECT table_name, row_id, change_id FROM _changes
         WHERE change_id > ? AND row_id IS NOT NULL AND table_name IS NOT NULL
         ON CONFLICT(tbl, id) DO UPDATE SET change_id = excluded.change_id`,
      )
      .run(this.#mirroredThrough);
    this.#mirroredThrough = newest;
    if (oldest - this.#mirroredFrom < MIRROR_PRUNE_ENTRIES) return;
    this.#db.query("DELETE FROM temp._hooksync_logged WHERE change_id < ?").run(oldest);
    this.#mirroredFrom = oldest;
  }
}
