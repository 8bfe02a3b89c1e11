/**
 * Settling the rows of one table (DESIGN.md, "Versions"): what was recorded of each row since the last
 * pass becomes one entry with a version above what it replaced, or one DELETE. Another program may
 * have written a million rows in one transaction while everyone waits, so rows that need nothing are
 * told apart by one query, and the others are worked on in sets, by way of a table in memory.
 *
 * Runs inside the caller's transaction with the syncing flag up.
 */
import type { Database } from "bun:sqlite";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import { jsonPath, rowJsonSql } from "./row-json.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName, quoteText } from "./sql.ts";
import type { Tombstones } from "./tombstones.ts";
import {
  judgeVersion,
  type RowHistory,
  type Stamp,
  stampOf,
  type Trace,
  versionOf,
} from "./versions.ts";
import { sqliteCode } from "./write-queue.ts";

export interface RowSettlerOptions {
  readonly db: Database;
  readonly tombstones: Tombstones;
  /** A trigger of the application forbade a lift; told once per table. */
  readonly onLiftRefused: (table: SyncedTable, why: string) => void;
}

/** One row that needs more than a look; `id` stays inside SQLite, since it may be no valid UTF-8. */
const CREATE_WORK_SQL = `
  CREATE TEMP TABLE IF NOT EXISTS _hooksync_work(
    n INTEGER PRIMARY KEY,
    id TEXT UNIQUE,
    entries INTEGER,
    last INTEGER,
    is_there INTEGER,
    is_noted INTEGER,
    verdict TEXT,
    version INTEGER,
    op TEXT,
    takes_note INTEGER)`;

interface WorkRow {
  readonly n: number;
  readonly is_there: number;
  readonly stamp: number | null;
  readonly kind: string;
  readonly tombstone: number | null;
  readonly noted: number | null;
  readonly noted_kind: string;
  readonly noted_at: number | null;
  readonly has_content: number;
}

interface EntryRow {
  readonly n: number;
  readonly change_id: number;
  readonly op: string;
  readonly was: number | null;
  readonly was_kind: string;
  readonly wrote: number | null;
  readonly wrote_kind: string | null;
}

/** What becomes of a row: `keep` leaves its single entry as it is, `merge` writes the row into the last. */
interface Outcome {
  readonly verdict: "keep" | "merge" | "lift" | "gone";
  readonly version: number | null;
  readonly op: string;
  /** The entry that stays; null where one has to be made. */
  readonly last: number | null;
  /** Whether a DELETE takes its content from the note. */
  readonly takesNote: boolean;
}

export class RowSettler {
  readonly #options: RowSettlerOptions;
  readonly #db: Database;
  readonly #told = new Set<string>();
  /** Tables with a trigger that ends the whole transaction when a row is lifted. */
  readonly #unliftable = new Set<string>();
  #isHindered = false;

  constructor(options: RowSettlerOptions) {
    this.#options = options;
    this.#db = options.db;
  }

  /** After an error: whether a trigger ended the transaction, which it will not do again. */
  takeHindered(): boolean {
    const isHindered = this.#isHindered;
    this.#isHindered = false;
    return isHindered;
  }

  /** Whether anything had to be rewritten among the entries after `from`. */
  settle(table: SyncedTable, from: number, nowMs: number): boolean {
    this.#db.run(CREATE_WORK_SQL);
    this.#db.query("DELETE FROM temp._hooksync_work").run();
    if (this.#collect(table, from, nowMs) === 0) return false;
    this.#judge(table, from, nowMs);
    this.#lift(table);
    this.#writeEntries(table, from, nowMs);
    return true;
  }

  /** One indexed look at each row; what is regular is not touched. Returns how many are not. */
  #collect(table: SyncedTable, from: number, nowMs: number): number {
    const { t, id, stamp } = namesOf(table);
    const noted =
      "EXISTS (SELECT 1 FROM _hooksync_noted AS o WHERE o.tbl = :name AND o.id = c.row_id)";
    const buried = this.#options.tombstones.any(table.key)
      ? `OR ${stamp} <= (SELECT s.version FROM _hooksync_tombstones AS s WHERE s.tbl = :key AND s.id = c.row_id)`
      : "";
    const { changes: recorded } = this.#db
      .query(
        `INSERT INTO temp._hooksync_work(id, entries, last, is_there, is_noted)
         SELECT c.row_id, count(*), max(c.change_id), ${id} IS NOT NULL, ${noted}
         FROM _changes AS c LEFT JOIN ${t} AS t ON ${id} = c.row_id
         WHERE c.change_id > :from AND c.table_name = :name AND c.row_id IS NOT NULL
         GROUP BY c.row_id
         HAVING count(*) > 1 OR max(c.op = 'DELETE') OR ${id} IS NULL
             OR typeof(${stamp}) <> 'integer' OR ${stamp} > :ahead OR ${stamp} <= max(c.was) ${buried}
             OR ${noted}`,
      )
      .run({
        from,
        name: table.name,
        ahead: nowMs + VERSION_AHEAD_MS_MAX,
        ...(buried === "" ? {} : { key: table.key }),
      });
    // A row that was noted as in the way and is as it was has nothing to tell: REPLACE did not happen.
    const { changes: thrownOut } = this.#db
      .query(
        `INSERT INTO temp._hooksync_work(id, entries, is_there, is_noted)
         SELECT o.id, 0, 0, 1 FROM _hooksync_noted AS o
         WHERE o.tbl = ?1 AND NOT EXISTS (SELECT 1 FROM temp._hooksync_work AS w WHERE w.id = o.id)
           AND NOT EXISTS (SELECT 1 FROM ${t} AS t WHERE ${id} = o.id)`,
      )
      .run(table.name);
    return recorded + thrownOut;
  }

  // ── Deciding ────────────────────────────────────────────────────────────────────────────────

  #judge(table: SyncedTable, from: number, nowMs: number): void {
    const entries = this.#readEntries(table, from);
    const put = this.#db.query<unknown, (string | number | null)[]>(
      "UPDATE temp._hooksync_work SET verdict = ?2, version = ?3, op = ?4, last = ?5, takes_note = ?6 WHERE n = ?1",
    );
    for (const row of this.#readRows(table)) {
      const { verdict, version, op, last, takesNote } = decide(
        row,
        entries.get(row.n) ?? [],
        nowMs,
      );
      put.run(row.n, verdict, version, op, last, takesNote ? 1 : 0);
    }
  }

  #readRows(table: SyncedTable): WorkRow[] {
    const { t, id, stamp } = namesOf(table);
    return this.#db
      .query<WorkRow, [string, string]>(
        `SELECT w.n, w.is_there, ${stamp} AS stamp, typeof(${stamp}) AS kind, s.version AS tombstone,
                o.version AS noted, typeof(o.version) AS noted_kind, o.at AS noted_at,
                o.row IS NOT NULL AS has_content
         FROM temp._hooksync_work AS w
         LEFT JOIN ${t} AS t ON ${id} = w.id
         LEFT JOIN _hooksync_tombstones AS s ON s.tbl = ?1 AND s.id = w.id
         LEFT JOIN _hooksync_noted AS o ON o.tbl = ?2 AND o.id = w.id
         ORDER BY w.n`,
      )
      .all(table.key, table.name);
  }

  #readEntries(table: SyncedTable, from: number): Map<number, EntryRow[]> {
    const path = quoteText(jsonPath(table.version.name));
    // The stamp in the row's JSON costs a parse; a lone entry of a living row can do without.
    const isAsked = "(w.entries > 1 OR w.is_noted OR NOT w.is_there)";
    const rows = this.#db
      .query<EntryRow, [number, string]>(
        `SELECT w.n, c.change_id, c.op, c.was, typeof(c.was) AS was_kind,
                CASE WHEN ${isAsked} THEN json_extract(c.row_data, ${path}) END AS wrote,
                CASE WHEN ${isAsked} THEN json_type(c.row_data, ${path}) END AS wrote_kind
         FROM _changes AS c CROSS JOIN temp._hooksync_work AS w ON w.id = c.row_id
         WHERE c.change_id > ? AND c.table_name = ?
         ORDER BY c.change_id`,
      )
      .all(from, table.name);
    const entries = new Map<number, EntryRow[]>();
    for (const row of rows) {
      const known = entries.get(row.n);
      if (known) known.push(row);
      else entries.set(row.n, [row]);
    }
    return entries;
  }

  // ── Writing ─────────────────────────────────────────────────────────────────────────────────

  /** A row that a trigger of the application does not let go stays as it is, and that is said. */
  #lift(table: SyncedTable): void {
    if (this.#unliftable.has(table.key)) return;
    const { t, id, stamp } = namesOf(table);
    const update =
      `UPDATE OR ABORT ${t} AS t SET ${quoteName(table.version.name)} = w.version ` +
      `FROM temp._hooksync_work AS w WHERE w.id = ${id} AND w.verdict = 'lift'`;
    try {
      this.#db.query(update).run();
    } catch (error) {
      this.#onRefusal(table, error);
      this.#liftOneByOne(table, `${update} AND w.n = ?`);
      return;
    }
    const untouched = this.#db
      .query(
        `SELECT 1 FROM temp._hooksync_work AS w CROSS JOIN ${t} AS t ON ${id} = w.id
         WHERE w.verdict = 'lift' AND ${stamp} IS NOT w.version LIMIT 1`,
      )
      .get();
    if (untouched !== null) this.#tell(table, "it does nothing instead of it");
  }

  #liftOneByOne(table: SyncedTable, update: string): void {
    const rows = this.#db
      .query<{ n: number }, []>("SELECT n FROM temp._hooksync_work WHERE verdict = 'lift'")
      .all();
    for (const { n } of rows) {
      try {
        this.#db.query(update).run(n);
      } catch (error) {
        this.#onRefusal(table, error);
      }
    }
  }

  #onRefusal(table: SyncedTable, error: unknown): void {
    if (!isRefusal(error)) throw error;
    this.#tell(table, (error as Error).message);
    if (this.#db.inTransaction) return;
    // RAISE(ROLLBACK) took the transaction with it: the next one leaves this table's stamps alone.
    this.#unliftable.add(table.key);
    this.#isHindered = true;
    throw error;
  }

  #tell(table: SyncedTable, why: string): void {
    if (this.#told.has(table.key)) return;
    this.#told.add(table.key);
    this.#options.onLiftRefused(table, why);
  }

  #writeEntries(table: SyncedTable, from: number, nowMs: number): void {
    const { t, id } = namesOf(table);
    const { name } = table;
    const path = quoteText(jsonPath(table.version.name));
    this.#db
      .query(
        `UPDATE _changes AS c SET op = w.op, row_data = ${rowJsonSql("t", table.columns)}
         FROM temp._hooksync_work AS w CROSS JOIN ${t} AS t ON ${id} = w.id
         WHERE c.change_id = w.last AND w.verdict IN ('merge', 'lift')`,
      )
      .run();
    this.#db
      .query(
        `UPDATE _changes AS c SET op = 'DELETE',
           row_data = json_set(CASE WHEN w.takes_note THEN o.row ELSE c.row_data END, ${path}, w.version)
         FROM temp._hooksync_work AS w LEFT JOIN _hooksync_noted AS o ON o.tbl = ? AND o.id = w.id
         WHERE c.change_id = w.last AND w.verdict = 'gone'
           AND (c.op <> 'DELETE' OR c.was IS NOT w.version)`,
      )
      .run(name);
    this.#db
      .query(
        `DELETE FROM _changes WHERE change_id > ? AND table_name = ? AND EXISTS (
           SELECT 1 FROM temp._hooksync_work AS w
           WHERE w.id = row_id AND w.entries > 1 AND w.last <> change_id)`,
      )
      .run(from, name);
    this.#db
      .query(
        `INSERT INTO _changes(op, table_name, row_id, row_data, was)
         SELECT 'DELETE', ?1, w.id,
           json_set(coalesce(o.row, json_object(${quoteText(table.id.name)}, w.id)), ${path}, w.version), w.version
         FROM temp._hooksync_work AS w LEFT JOIN _hooksync_noted AS o ON o.tbl = ?1 AND o.id = w.id
         WHERE w.last IS NULL AND w.verdict = 'gone'
         ORDER BY w.n`,
      )
      .run(name);
    this.#db
      .query(
        `INSERT INTO _hooksync_tombstones(tbl, id, version, deleted_at)
         SELECT ?, id, version, ? FROM temp._hooksync_work WHERE verdict = 'gone'
         ON CONFLICT(tbl, id) DO UPDATE SET version = excluded.version, deleted_at = excluded.deleted_at
         WHERE excluded.version >= version`,
      )
      .run(table.key, nowMs);
  }
}

function namesOf(table: SyncedTable): { t: string; id: string; stamp: string } {
  return {
    t: quoteName(table.name),
    id: `t.${quoteName(table.id.name)}`,
    stamp: `t.${quoteName(table.version.name)}`,
  };
}

function decide(row: WorkRow, entries: readonly EntryRow[], nowMs: number): Outcome {
  const verdict = judgeVersion(historyOf(row, entries), nowMs);
  const last = entries.at(-1);
  if (verdict.kind !== "gone") {
    const op = verdict.isNew ? "INSERT" : "UPDATE";
    const isAsItIs = verdict.kind === "keep" && entries.length === 1 && last!.op === op;
    const version = verdict.kind === "lift" ? verdict.version : null;
    const kind = isAsItIs ? "keep" : verdict.kind === "lift" ? "lift" : "merge";
    return { verdict: kind, version, op, last: last!.change_id, takesNote: false };
  }
  const kept = entries.findLast((entry) => entry.op === "DELETE") ?? last;
  // Thrown out by REPLACE: what it was is in the note, unless it was written again after that.
  const takesNote =
    kept !== undefined &&
    kept.op !== "DELETE" &&
    row.has_content === 1 &&
    kept.change_id <= (row.noted_at ?? 0);
  return {
    verdict: "gone",
    version: verdict.version,
    op: "DELETE",
    last: kept?.change_id ?? null,
    takesNote,
  };
}

function historyOf(row: WorkRow, entries: readonly EntryRow[]): RowHistory {
  const stored: Stamp | undefined = row.is_there ? stampOf(row.stamp, row.kind) : undefined;
  return { traces: tracesOf(row, entries), stored, tombstone: row.tombstone ?? undefined };
}

function tracesOf(row: WorkRow, entries: readonly EntryRow[]): Trace[] {
  const traces: Trace[] = [];
  let note: Trace | undefined =
    row.noted_at === null
      ? undefined
      : { kind: "note", was: versionOf(stampOf(row.noted, row.noted_kind)) };
  for (const entry of entries) {
    if (note && entry.change_id > row.noted_at!) {
      traces.push(note);
      note = undefined;
    }
    traces.push(traceOf(entry));
  }
  if (note) traces.push(note);
  return traces;
}

function traceOf(entry: EntryRow): Trace {
  const was = versionOf(stampOf(entry.was, entry.was_kind));
  const wrote = versionOf(stampOf(entry.wrote, entry.wrote_kind ?? "null"));
  const hasWas = entry.was_kind !== "null";
  // Triggers of other nodes do not say what was replaced; the row that went has its own stamp.
  if (entry.op === "DELETE") return { kind: "delete", was: hasWas ? was : wrote };
  // An UPDATE without it gave the row its id, which had another before.
  return hasWas ? { kind: "update", was, wrote } : { kind: "insert", wrote };
}

/** Whether a rule or trigger of the application, and not the world, was in the way. */
export function isRefusal(error: unknown): boolean {
  const code = sqliteCode(error);
  return code.startsWith("SQLITE_CONSTRAINT") || code === "SQLITE_ERROR";
}
