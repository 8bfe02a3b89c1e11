/**
 * Announcing a whole table: its triggers were missing for a while, or it is synced from now on. In
 * slices by id, with the cursor in the file, so that a large table neither holds the lock nor starts
 * over after a restart.
 */
import type { Database } from "bun:sqlite";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName } from "./sql.ts";
import { rowJsonOf } from "./table-writer.ts";

const SLICE_ROWS = 2_000;

export class Announcer {
  readonly #db: Database;

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
    const done = this.#db.query("DELETE FROM _hooksync WHERE key = ?");
    if (table === undefined) {
      done.run(next.key);
      return 0;
    }
    const t = quoteName(table.name);
    const id = quoteName(table.id.name);
    const version = quoteName(table.version.name);
    const slice = `SELECT ${id} FROM ${t} WHERE ${id} > ?1 AND typeof(${id}) = 'text' ORDER BY ${id} LIMIT ${SLICE_ROWS}`;
    const last = this.#db
      .query<{ id: string | null; rows: number }, [string]>(
        `SELECT max(${id}) AS id, count(*) AS rows FROM (${slice})`,
      )
      .get(next.value)!;
    if (last.id === null) {
      done.run(next.key);
      return 0;
    }
    this.#db.query("UPDATE _meta SET value = 1 WHERE key = 'syncing'").run();
    this.#db
      .query(
        `UPDATE ${t} SET ${version} = ?3
         WHERE ${id} > ?1 AND ${id} <= ?2 AND (typeof(${version}) <> 'integer' OR ${version} > ?3 + ${VERSION_AHEAD_MS_MAX})`,
      )
      .run(next.value, last.id, nowMs);
    const { changes } = this.#db
      .query(
        `INSERT INTO _changes(op, table_name, row_id, row_data)
         SELECT 'UPDATE', ?3, t.${id}, ${rowJsonOf(table)} FROM ${t} AS t
         WHERE t.${id} > ?1 AND t.${id} <= ?2 AND typeof(t.${id}) = 'text' ORDER BY t.${id}`,
      )
      .run(next.value, last.id, table.name);
    this.#db.query("UPDATE _meta SET value = 0 WHERE key = 'syncing'").run();
    this.#db.query("UPDATE _hooksync SET value = ? WHERE key = ?").run(last.id, next.key);
    return changes;
  }
}
