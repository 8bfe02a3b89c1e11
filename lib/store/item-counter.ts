/**
 * Rows over all synced tables, for /health. Counting walks an index: exact and quick for a million rows,
 * too slow for a hundred million. A table whose last count took long is counted again only after a
 * pause in proportion, and the last number is given meanwhile.
 */
import type { Database } from "bun:sqlite";
import type { Clock } from "../base/clock.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName } from "./sql.ts";

/** So few are counted quickly; if it took long, the machine was busy, not the table large. */
const ROWS_QUICK_MAX = 200_000;
/** A count that takes no longer is made on every call. */
const QUICK_MS_MAX = 4;
/** Counting may take this share of the time at most: one part in … */
const PAUSE_FACTOR = 200;

interface Count {
  rows: number;
  tookMs: number;
  atMs: number;
}

export class ItemCounter {
  readonly #db: Database;
  readonly #clock: Clock;
  readonly #counts = new Map<string, Count>();

  constructor(db: Database, clock: Clock) {
    this.#db = db;
    this.#clock = clock;
  }

  count(tables: Iterable<SyncedTable>): number {
    let rows = 0;
    for (const table of tables) rows += this.#countOf(table);
    return rows;
  }

  #countOf(table: SyncedTable): number {
    const startMs = this.#clock.monotonicMs();
    const known = this.#counts.get(table.key);
    if (
      known &&
      known.rows > ROWS_QUICK_MAX &&
      known.tookMs > QUICK_MS_MAX &&
      startMs - known.atMs < known.tookMs * PAUSE_FACTOR
    )
      return known.rows;
    const { rows } = this.#db
      .query<{ rows: number }, []>(`SELECT count(*) AS rows FROM ${quoteName(table.name)}`)
      .get()!;
    const atMs = this.#clock.monotonicMs();
    this.#counts.set(table.key, { rows, tookMs: atMs - startMs, atMs });
    return rows;
  }
}
