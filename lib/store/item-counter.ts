/**
 * Rows over all synced tables, for /health. Counting walks an index: a second for ten million rows, in
 * which a node would answer nobody. So only small tables are counted at every call. A large one is
 * counted in steps by the node's tick, and again after a while; meanwhile its number is the last one,
 * moved on by the rows that were stored since, or, before the first, the span of its rowids: exact
 * where nothing was ever deleted.
 */
import type { Database } from "bun:sqlite";
import type { Clock } from "../base/clock.ts";
import { isStaleSchema } from "../base/errors.ts";
import { rowidName } from "./newest-rows.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName, textOfHexSql } from "./sql.ts";

/** Tables whose rowids span no more are counted exactly every time: about a millisecond. */
const SMALL_SPAN_MAX = 200_000;
/** Rows of a large table counted in one go: about a millisecond, too. */
const STEP_ROWS = 20_000;
/** Counting ten million rows is half a second of work in all; this often that is nothing. */
const RECOUNT_PAUSE_MS = 120_000;

/** The ends of a table's own key, found without walking it. */
interface Span {
  readonly rows: number;
  readonly newest: number;
}

interface Count {
  /** The last count that came to an end, with the newest rowid there was then. */
  known?: { readonly rows: number; readonly newest: number | undefined; readonly atMs: number };
  /** How far a count has come that is under way. */
  underWay?: { readonly afterHex: string; readonly rows: number } | undefined;
}

/** Numbers live in memory alone: after a restart large tables are counted again. */
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
    for (const table of tables) rows += whileThere(() => this.#countOf(table)) ?? 0;
    return rows;
  }

  /** Goes on with a count that is under way, one step. */
  advance(tables: Iterable<SyncedTable>): void {
    for (const table of tables) {
      const count = this.#counts.get(table.key);
      if (count?.underWay === undefined) continue;
      whileThere(() => this.#step(table, count));
      return;
    }
  }

  #countOf(table: SyncedTable): number {
    const span = this.#span(table);
    if (span !== undefined && span.rows <= SMALL_SPAN_MAX) {
      this.#counts.delete(table.key);
      return this.#db
        .query<{ rows: number }, []>(`SELECT count(*) AS rows FROM ${quoteName(table.name)}`)
        .get()!.rows;
    }
    let count = this.#counts.get(table.key);
    if (count === undefined) {
      count = {};
      this.#counts.set(table.key, count);
    }
    const { known } = count;
    const isDue =
      known === undefined ||
      // All of it in one step: where there is no span, that is a small table.
      known.rows < STEP_ROWS ||
      this.#clock.monotonicMs() - known.atMs >= RECOUNT_PAUSE_MS;
    if (isDue && count.underWay === undefined) this.#step(table, count);
    return estimate(count, span);
  }

  #step(table: SyncedTable, count: Count): void {
    const [t, id] = [quoteName(table.name), quoteName(table.id.name)];
    const { afterHex = null, rows = 0 } = count.underWay ?? {};
    const where = afterHex === null ? "" : `WHERE ${id} > ${textOfHexSql("?1")}`;
    const step = this.#db
      .query<{ rows: number; last: string | null }, [string | null]>(
        `SELECT count(*) AS rows, CASE typeof(max(id)) WHEN 'text' THEN hex(max(id)) END AS last
         FROM (SELECT ${id} AS id FROM ${t} ${where} ORDER BY ${id} LIMIT ${STEP_ROWS})`,
      )
      .get(afterHex)!;
    const counted = rows + step.rows;
    // Ids that are no texts stay out of syncing, and are few.
    if (step.rows === STEP_ROWS && step.last !== null) {
      count.underWay = { afterHex: step.last, rows: counted };
      return;
    }
    count.underWay = undefined;
    const { newest } = this.#span(table) ?? {};
    count.known = { rows: counted, newest, atMs: this.#clock.monotonicMs() };
  }

  #span(table: SyncedTable): Span | undefined {
    const rowid = table.withoutRowid ? undefined : rowidName(table);
    if (rowid === undefined) return undefined;
    const t = quoteName(table.name);
    const { oldest, newest } = this.#db
      .query<{ oldest: number | null; newest: number | null }, []>(
        `SELECT (SELECT min(${rowid}) FROM ${t}) AS oldest, (SELECT max(${rowid}) FROM ${t}) AS newest`,
      )
      .get()!;
    if (oldest === null || newest === null) return { rows: 0, newest: 0 };
    return { rows: newest - oldest + 1, newest };
  }
}

/** A table that was just renamed or dropped has no rows until that is noticed; health is answered all the same. */
function whileThere<T>(look: () => T): T | undefined {
  try {
    return look();
  } catch (error) {
    if (!isStaleSchema(error)) throw error;
    return undefined;
  }
}

function estimate({ known, underWay }: Count, span: Span | undefined): number {
  if (known === undefined) return span?.rows ?? underWay?.rows ?? 0;
  const stored = span === undefined || known.newest === undefined ? 0 : span.newest - known.newest;
  return Math.max(known.rows + stored, 0);
}
