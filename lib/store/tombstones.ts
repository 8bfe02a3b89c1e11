/**
 * What is known of deleted rows. Without it a late INSERT would bring a deleted row back. A
 * tombstone may stand below a live row (an edit that the deleter had not seen won): it is kept, since
 * changes at or below it stay stale.
 */
import type { Database, Statement } from "bun:sqlite";

/** Rows per statement where many are deleted at once, the largest that fits first. */
const ROWS_PER_STATEMENT: readonly number[] = [100, 20, 5, 1];
const BEYOND_UTF16_ORDER = /[\ud800-\uffff]/;
const NO_VERSIONS: ReadonlyMap<string, number> = new Map();

/** Writes inside the caller's transaction and caches nothing. */
export class Tombstones {
  readonly #version: Statement<{ version: number }, [string, string]>;
  readonly #put: Statement<unknown, [string, string, number, number]>;
  readonly #any: Statement<unknown, [string]>;
  readonly #versions: Statement<{ id: string; version: number }, [string, string]>;
  readonly #putMany = new Map<number, Statement<unknown, (string | number)[]>>();
  readonly #db: Database;
  readonly #anyBetween: Statement<unknown, [string, string, string]>;
  readonly #forget: Statement<unknown, [number, number]>;
  readonly #remove: Statement<unknown, [string, string]>;

  constructor(db: Database) {
    this.#db = db;
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
    this.#anyBetween = db.prepare(
      "SELECT 1 FROM _hooksync_tombstones WHERE tbl = ? AND id BETWEEN ? AND ? LIMIT 1",
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
    if (!this.#anyAmong(tableKey, ids)) return NO_VERSIONS;
    const rows = this.#versions.all(tableKey, JSON.stringify(ids));
    return new Map(rows.map((row) => [row.id, row.version]));
  }

  /** A look at where they would stand: new rows mostly have ids above those of all deleted ones. */
  #anyAmong(tableKey: string, ids: readonly string[]): boolean {
    if (ids.length === 0) return false;
    let [least, most] = [ids[0]!, ids[0]!];
    for (const id of ids) {
      if (id < least) least = id;
      if (id > most) most = id;
    }
    // Beyond these, strings here and bytes there are not in the same order.
    if (BEYOND_UTF16_ORDER.test(ids.join(""))) return this.any(tableKey);
    return this.#anyBetween.get(tableKey, least, most) !== null;
  }

  putMany(
    tableKey: string,
    rows: readonly { readonly id: string; readonly version: number }[],
    nowMs: number,
  ): void {
    for (let at = 0; at < rows.length; ) {
      const count = ROWS_PER_STATEMENT.find((size) => size <= rows.length - at)!;
      const bindings: (string | number)[] = [tableKey, nowMs];
      for (const { id, version } of rows.slice(at, at + count)) bindings.push(id, version);
      this.#putStatement(count).run(...bindings);
      at += count;
    }
  }

  #putStatement(rows: number): Statement<unknown, (string | number)[]> {
    let statement = this.#putMany.get(rows);
    if (statement === undefined) {
      const marks = Array.from(
        { length: rows },
        (_, i) => `(?1, ?${2 * i + 3}, ?${2 * i + 4}, ?2)`,
      );
      statement = this.#db.prepare(
        `INSERT INTO _hooksync_tombstones(tbl, id, version, deleted_at) VALUES ${marks.join(", ")}
         ON CONFLICT(tbl, id) DO UPDATE SET version = excluded.version, deleted_at = excluded.deleted_at
         WHERE excluded.version >= version`,
      );
      this.#putMany.set(rows, statement);
    }
    return statement;
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
