/**
 * What is known of deleted rows. Without it a late INSERT would bring a deleted row back. A
 * tombstone may stand below a live row (an edit that the deleter had not seen won): it is kept, since
 * changes at or below it stay stale.
 */
import type { Database, Statement } from "bun:sqlite";

const NO_VERSIONS: ReadonlyMap<string, number> = new Map();

export class Tombstones {
  readonly #version: Statement<{ version: number }, [string, string]>;
  readonly #put: Statement<unknown, [string, string, number, number]>;
  readonly #any: Statement<unknown, [string]>;
  readonly #versions: Statement<{ id: string; version: number }, [string, string]>;
  readonly #putMany: Statement<unknown, [string, string, number]>;
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
    this.#versions = db.prepare(
      `SELECT s.id, s.version FROM json_each(?2) AS e CROSS JOIN _hooksync_tombstones AS s
       ON s.tbl = ?1 AND s.id = e.value`,
    );
    this.#putMany = db.prepare(
      `INSERT INTO _hooksync_tombstones(tbl, id, version, deleted_at)
       SELECT ?1, value ->> 0, value ->> 1, ?3 FROM json_each(?2) WHERE true
       ON CONFLICT(tbl, id) DO UPDATE SET version = excluded.version, deleted_at = excluded.deleted_at
       WHERE excluded.version >= version`,
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

  /** Of these rows, the versions of those that were deleted. */
  versionsOf(tableKey: string, ids: readonly string[]): ReadonlyMap<string, number> {
    if (!this.any(tableKey)) return NO_VERSIONS;
    const rows = this.#versions.all(tableKey, JSON.stringify(ids));
    return new Map(rows.map((row) => [row.id, row.version]));
  }

  putMany(
    tableKey: string,
    rows: readonly { readonly id: string; readonly version: number }[],
    nowMs: number,
  ): void {
    const pairs = JSON.stringify(rows.map(({ id, version }) => [id, version]));
    this.#putMany.run(tableKey, pairs, nowMs);
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
