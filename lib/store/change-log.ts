/**
 * Entries of the log that no trigger makes: announcements, and deletes put behind an entry that is
 * still on its way. Also what a received delete must know: whether the log still holds an entry of its row.
 */
import type { Database } from "bun:sqlite";
import { isUtf8 } from "node:buffer";
import type { JsonValue } from "../protocol/batch.ts";
import { hashChange } from "../protocol/identity.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName } from "./sql.ts";
import { loggedRowOf, withVersionSql } from "./table-writer.ts";

/** Entries that were pruned from the log leave its mirror in lots of this many. */
const MIRROR_PRUNE_ENTRIES = 50_000;

/** Fewer entries than this are counted, in about a millisecond. */
const COUNTED_IDS_MAX = 10_000;

/** What an entry takes besides its row, about. */
const ENTRY_BYTES = 80;

/** Writes inside the caller's transaction; what it cached goes with `forget`. */
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

  /** About how many bytes the log holds, from a sample of its ends: summing it up would read all of it. */
  bytes(): number {
    const sample = this.#db
      .query<{ span: number | null; bytes: number | null }, []>(
        `SELECT (SELECT max(change_id) - min(change_id) + 1 FROM _changes) AS span,
           (SELECT avg(size) FROM (
              SELECT * FROM (SELECT octet_length(row_data) AS size FROM _changes ORDER BY change_id LIMIT 500)
              UNION ALL
              SELECT * FROM (SELECT octet_length(row_data) AS size FROM _changes ORDER BY change_id DESC LIMIT 500))) AS bytes`,
      )
      .get()!;
    return (sample.span ?? 0) * ((sample.bytes ?? 0) + ENTRY_BYTES);
  }

  /**
   * Entries that some peer still lacks, and where there are no peers, all. Many are not counted: that
   * takes 0.2 s for a million, in which nobody is answered. Their ids follow each other with few gaps.
   */
  pending(): number {
    const { oldest, newest } = this.#waiting();
    const span = newest - oldest + 1;
    if (span <= 0 || span > COUNTED_IDS_MAX) return Math.max(span, 0);
    return this.#db
      .query<{ n: number }, [number]>("SELECT count(*) AS n FROM _changes WHERE change_id >= ?")
      .get(oldest)!.n;
  }

  /** From the first entry that some peer lacks to the last one; what comes before waits to be deleted. */
  #waiting(): { oldest: number; newest: number } {
    return this.#db
      .query<{ oldest: number; newest: number }, []>(
        `SELECT max(coalesce((SELECT min(change_id) FROM _changes), 1),
                    coalesce((SELECT min(coalesce(last_acked, 0)) + 1 FROM _peer_state), 0)) AS oldest,
                coalesce((SELECT max(change_id) FROM _changes), 0) AS newest`,
      )
      .get()!;
  }

  /** The hash of the change with this id, as a receiver's mark has it; undefined where it is gone. */
  hashOf(changeId: number): string | undefined {
    const entry = this.#db
      .query<{ op: string; tbl: string; id: Uint8Array | null; version: JsonValue }, [number]>(
        `SELECT op, table_name AS tbl, CAST(row_id AS BLOB) AS id,
           (SELECT atom FROM json_each(row_data) WHERE lower(key) = 'updated_at') AS version
         FROM _changes WHERE change_id = ? AND only_for IS NULL`,
      )
      .get(changeId);
    if (entry === null) return undefined;
    return hashChange(entry.op, entry.tbl, entry.id && asSent(entry.id), entry.version);
  }

  /** The newest entry up to here that is not for one peer alone. */
  newestForAll(through: number): number | undefined {
    const find = this.#db.query<{ id: number | null }, [number]>(
      "SELECT max(change_id) AS id FROM _changes WHERE change_id <= ? AND only_for IS NULL",
    );
    return find.get(through)!.id ?? undefined;
  }

  has(changeId: number): boolean {
    return this.#db.query("SELECT 1 FROM _changes WHERE change_id = ?").get(changeId) !== null;
  }

  /** Puts the row as it stands into the log again; false where it is not there. */
  announceRow(table: SyncedTable, id: string): boolean {
    const t = quoteName(table.name);
    return (
      this.#db
        .query(
          `INSERT INTO _changes(op, table_name, row_id, row_data)
           SELECT 'UPDATE', ?, ?2, ${loggedRowOf(table)} FROM ${t} AS t WHERE t.${quoteName(table.id.name)} = ?2`,
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
         SELECT 'DELETE', ?, ?2, ${withVersionSql(table, loggedRowOf(table), "?3")} FROM ${t} AS t WHERE t.${quoteName(table.id.name)} = ?2`,
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
    const { oldest, newest } = this.#waiting();
    if (newest < oldest) return new Set();
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

/** An id that is not UTF-8 travels as the hex of its bytes. */
function asSent(id: Uint8Array): string {
  return isUtf8(id) ? Buffer.from(id).toString() : `\\x${id.toHex()}`;
}
