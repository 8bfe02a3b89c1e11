/**
 * What is known of deleted rows. Without it a late INSERT would bring a deleted row back. A
 * tombstone may stand below a live row (an edit that the deleter had not seen won): it is kept, since
 * changes at or below it stay stale.
 */
import type { Database, Statement } from "bun:sqlite";

export class Tombstones {
  readonly #version: Statement<{ version: number }, [string, string]>;
  readonly #put: Statement<unknown, [string, string, number, number]>;
  readonly #any: Statement<unknown, [string]>;
  readonly #anyOf: Statement<unknown, [string, string]>;
  readonly #forget: Statement<unknown, [number, number]>;
  readonly #remove: Statement<unknown, [string, string]>;

  constructor(db: Database) {
    this.#version = db.prepare("SELECT version FROM _hooksync_tombstones WHERE tbl = ? AND id = ?");
    this.#put = db.prepare(
      `INSERT INTO _hooksync_tombstones(tbl, id, version, deleted_at) VALUES (?, ?, ?, ?)
       ON CONFLICT(tbl, id) DO UPDATE SET version = excluded.version, deleted_at = excluded.deleted_at
       WHERE excluded.version >= version`,
    );
    this.#any = db.prepare("SELECT 1 FROM _hooksync_tombstones WHERE tbl = ? LIMIT 1");
    this.#anyOf = db.prepare(
      `SELECT 1 FROM json_each(?2) AS e CROSS JOIN _hooksync_tombstones AS s
       ON s.tbl = ?1 AND s.id = e.value LIMIT 1`,
    );
    this.#forget = db.prepare(
      `DELETE FROM _hooksync_tombstones WHERE (tbl, id) IN (
         SELECT tbl, id FROM _hooksync_tombstones WHERE deleted_at < ? LIMIT ?)`,
    );
    this.#remove = db.prepare("DELETE FROM _hooksync_tombstones WHERE tbl = ? AND id = ?");
  }

  /** The version of the row that was deleted, or undefined. `tableKey` is the table's nameKey. */
  versionOf(tableKey: string, id: string): number | undefined {
    return this.#version.get(tableKey, id)?.version;
  }

  /** Whether the table has any at all: most have none, and then nothing need be looked up. */
  any(tableKey: string): boolean {
    return this.#any.get(tableKey) !== null;
  }

  anyOf(tableKey: string, ids: readonly string[]): boolean {
    return this.#anyOf.get(tableKey, JSON.stringify(ids)) !== null;
  }

  /** Keeps the higher version where there is one already. */
  put(tableKey: string, id: string, version: number, nowMs: number): void {
    this.#put.run(tableKey, id, version, nowMs);
  }

  remove(tableKey: string, id: string): void {
    this.#remove.run(tableKey, id);
  }

  /** Forgets up to `rowsMax` of those made before `beforeMs`; returns how many. */
  forget(beforeMs: number, rowsMax: number): number {
    return this.#forget.run(beforeMs, rowsMax).changes;
  }
}
