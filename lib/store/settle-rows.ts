/**
 * Settling the rows of one table (DESIGN.md, "Versions"): what was recorded of each row since the last
 * pass becomes one entry with a version above what it replaced, or one DELETE. Another program may
 * have written a million rows in one transaction, and everyone waits meanwhile: rows that need
 * nothing are told apart by one query, the others are read in one go and written one by one, each by
 * its number in a table in memory. (Joins would be as fast, until ANALYZE has seen a small table that
 * then grew: then SQLite reads all of it to change a single row.)
 *
 * Runs inside the caller's transaction with the syncing flag up.
 */

import type { Database } from "bun:sqlite";
import { sqliteCode } from "../base/errors.ts";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import { jsonPath } from "./row-json.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName, quoteText } from "./sql.ts";
import { loggedRowOf, orAbort } from "./table-writer.ts";
import type { Tombstones } from "./tombstones.ts";
import {
  isOddSql,
  judgeVersion,
  type RowHistory,
  type Stamp,
  stampOf,
  type Trace,
  versionOf,
} from "./versions.ts";

/** All of the writing connection that settles. */
export interface RowSettlerOptions {
  readonly db: Database;
  readonly tombstones: Tombstones;
  /** A trigger of the application forbade a lift; told once per table. */
  readonly onLiftRefused: (table: SyncedTable, why: string) => void;
}

/**
 * Rows that need more than a look; `id` stays inside SQLite, since it may be no valid UTF-8. `op`, `was`
 * and `change_id` are of the row's last entry.
 */
const CREATE_WORK_SQL = `
  CREATE TEMP TABLE IF NOT EXISTS _hooksync_work(
    n INTEGER PRIMARY KEY,
    id TEXT UNIQUE,
    entries INTEGER,
    change_id INTEGER,
    op TEXT,
    was,
    is_there INTEGER,
    is_noted INTEGER)`;

/** What was recorded of a row does not fit into one line of the work table. */
const IS_LONG =
  "(w.entries > 1 OR w.is_noted OR (NOT w.is_there AND (w.op <> 'DELETE' OR w.was IS NULL)))";

/** Other programs can write to the log as well: a line that is no object must not stop everything. */
const JSON_OR_NULL =
  "CASE WHEN json_valid(c.row_data) THEN CASE json_type(c.row_data) WHEN 'object' THEN c.row_data END END";

interface WorkRow {
  readonly n: number;
  readonly entries: number;
  readonly change_id: number | null;
  readonly op: string | null;
  readonly was: number | null;
  readonly was_kind: string;
  readonly is_there: number;
  readonly is_long: number;
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

/** What becomes of a row that does not stay as it is. */
interface Outcome {
  /** `merge`: the row as it stands goes into the entry that is kept. */
  readonly kind: "merge" | "lift" | "gone";
  /** The new one; where rows are merged the row keeps its own. */
  readonly version: number;
  readonly op: string;
  /** The entry that stays; null where one has to be made. */
  readonly kept: number | null;
  /** Whether a DELETE takes its content from the note. */
  readonly takesNote: boolean;
  /** Whether the entry that is kept says anything else than now. */
  readonly isRewritten: boolean;
}

/** Part of the Settler; remembers which triggers stood in its way. */
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
    this.#db.run("DELETE FROM temp._hooksync_work");
    if (this.#collect(table, from, nowMs) === 0) return false;
    const rows = this.#readRows(table);
    const long = rows.some((row) => row.is_long) ? this.#readEntries(table, from) : new Map();
    const statements = statementsFor(this.#db, table);
    const buried: Numbered[] = [];
    const made: Numbered[] = [];
    for (const row of rows) {
      const entries: readonly EntryRow[] = row.is_long ? (long.get(row.n) ?? []) : [loneEntry(row)];
      const outcome = decide(row, entries, nowMs);
      if (outcome === undefined) continue;
      this.#carryOut(table, statements, row.n, outcome);
      if (outcome.kind === "gone") buried.push([row.n, outcome.version]);
      if (outcome.kept === null) made.push([row.n, outcome.version]);
      if (entries.length < 2) continue;
      for (const { change_id } of entries)
        if (change_id !== outcome.kept) statements.drop.run(change_id);
    }
    if (made.length > 0) statements.makeDeletes.run(table.name, JSON.stringify(made));
    if (buried.length > 0) statements.bury.run(table.key, JSON.stringify(buried), nowMs);
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
    // With max(), SQLite takes the other columns from the row that has the maximum.
    const { changes: recorded } = this.#db
      .query(
        `INSERT INTO temp._hooksync_work(id, entries, change_id, op, was, is_there, is_noted)
         SELECT c.row_id, count(*), max(c.change_id), c.op, c.was, ${id} IS NOT NULL, ${noted}
         FROM _changes AS c LEFT JOIN ${t} AS t ON ${id} = c.row_id
         WHERE c.change_id > :from AND c.table_name = :name AND c.row_id IS NOT NULL
         GROUP BY c.row_id
         HAVING count(*) > 1 OR c.op = 'DELETE' OR ${id} IS NULL
             OR ${isOddSql(stamp)} OR ${stamp} > :ahead OR ${stamp} <= c.was ${buried}
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

  #readRows(table: SyncedTable): WorkRow[] {
    const { t, id, stamp } = namesOf(table);
    return this.#db
      .query<WorkRow, [string, string]>(
        `SELECT w.n, w.entries, w.change_id, w.op, w.was, typeof(w.was) AS was_kind, w.is_there,
                ${IS_LONG} AS is_long, ${stamp} AS stamp, typeof(${stamp}) AS kind, s.version AS tombstone,
                o.version AS noted, typeof(o.version) AS noted_kind, o.at AS noted_at,
                o.row IS NOT NULL AS has_content
         FROM temp._hooksync_work AS w
         LEFT JOIN ${t} AS t ON ${id} = w.id
         LEFT JOIN _hooksync_tombstones AS s ON s.tbl = ?1 AND s.id = w.id
         LEFT JOIN _hooksync_noted AS o ON w.is_noted AND o.tbl = ?2 AND o.id = w.id
         ORDER BY w.n`,
      )
      .all(table.key, table.name);
  }

  /** With what each wrote, which is in the row's JSON, unless somebody put something else there. */
  #readEntries(table: SyncedTable, from: number): Map<number, EntryRow[]> {
    const path = quoteText(jsonPath(table.version.name));
    const rows = this.#db
      .query<EntryRow, [number, string]>(
        `SELECT w.n, c.change_id, c.op, c.was, typeof(c.was) AS was_kind,
                json_extract(${JSON_OR_NULL}, ${path}) AS wrote, json_type(${JSON_OR_NULL}, ${path}) AS wrote_kind
         FROM _changes AS c CROSS JOIN temp._hooksync_work AS w ON w.id = c.row_id
         WHERE c.change_id > ? AND c.table_name = ? AND ${IS_LONG}
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

  #carryOut(table: SyncedTable, statements: WriteStatements, n: number, outcome: Outcome): void {
    const { kind, version, op, kept } = outcome;
    if (kind === "lift") this.#lift(table, statements, n, version);
    if (kind !== "gone") statements.writeRow.run(op, n, kept);
    else if (kept !== null && outcome.takesNote)
      statements.writeNoted.run(table.name, n, version, kept);
    else if (kept !== null && outcome.isRewritten) statements.writeDelete.run(version, kept);
  }

  /** A row that a trigger of the application does not let go stays as it is, and that is said. */
  #lift(table: SyncedTable, { lift }: WriteStatements, n: number, version: number): void {
    if (this.#unliftable.has(table.key)) return;
    try {
      if (lift.run(version, n).changes === 0) this.#tell(table, "it does nothing instead of it");
    } catch (error) {
      if (!isRefusal(error)) throw error;
      this.#tell(table, (error as Error).message);
      if (this.#db.inTransaction) return;
      // RAISE(ROLLBACK) took the transaction with it: the next one leaves this table's stamps alone.
      this.#unliftable.add(table.key);
      this.#isHindered = true;
      throw error;
    }
  }

  #tell(table: SyncedTable, why: string): void {
    if (this.#told.has(table.key)) return;
    this.#told.add(table.key);
    this.#options.onLiftRefused(table, why);
  }
}

/** A row's number in the work table, and the version it is deleted at. */
type Numbered = readonly [n: number, version: number];

type WriteStatements = ReturnType<typeof statementsFor>;

/** All of them find a row by its number in the work table. */
function statementsFor(db: Database, table: SyncedTable) {
  const { t, id } = namesOf(table);
  const path = quoteText(jsonPath(table.version.name));
  const rowId = "(SELECT w.id FROM temp._hooksync_work AS w WHERE w.n = ?)";
  const query = (sql: string) => db.query<unknown, (string | number | null)[]>(sql);
  return {
    lift: query(
      `UPDATE ${orAbort(table)} ${t} SET ${quoteName(table.version.name)} = ?
       WHERE ${quoteName(table.id.name)} = ${rowId}`,
    ),
    /** The row as it stands goes into the entry that is kept. */
    writeRow: query(
      `UPDATE _changes
       SET op = ?, row_data = (SELECT ${loggedRowOf(table)} FROM ${t} AS t WHERE ${id} = ${rowId})
       WHERE change_id = ?`,
    ),
    /** Older nodes log a DELETE without a row, which stays one without. */
    writeDelete: query(
      `UPDATE _changes AS c SET op = 'DELETE', row_data = json_set(
         CASE WHEN row_data IS NOT NULL
         THEN coalesce(${JSON_OR_NULL}, json_object(${quoteText(table.id.name)}, row_id)) END, ${path}, ?)
       WHERE change_id = ?`,
    ),
    /** A row that REPLACE threw out: what it was is in the note. */
    writeNoted: query(
      `UPDATE _changes SET op = 'DELETE', row_data = json_set(
         (SELECT o.row FROM _hooksync_noted AS o WHERE o.tbl = ? AND o.id = ${rowId}), ${path}, ?)
       WHERE change_id = ?`,
    ),
    /** All at once: SQLite keeps the log's counter once per statement. */
    makeDeletes: query(
      `INSERT INTO _changes(op, table_name, row_id, row_data, was)
       SELECT 'DELETE', ?1, w.id,
         json_set(coalesce(o.row, json_object(${quoteText(table.id.name)}, w.id)), ${path}, j.value ->> 1), j.value ->> 1
       FROM json_each(?2) AS j CROSS JOIN temp._hooksync_work AS w ON w.n = j.value ->> 0
       LEFT JOIN _hooksync_noted AS o ON o.tbl = ?1 AND o.id = w.id
       ORDER BY w.n`,
    ),
    drop: query("DELETE FROM _changes WHERE change_id = ?"),
    bury: query(
      `INSERT INTO _hooksync_tombstones(tbl, id, version, deleted_at)
       SELECT ?1, w.id, j.value ->> 1, ?3
       FROM json_each(?2) AS j CROSS JOIN temp._hooksync_work AS w ON w.n = j.value ->> 0
       WHERE true
       ON CONFLICT(tbl, id) DO UPDATE SET version = excluded.version, deleted_at = excluded.deleted_at
       WHERE excluded.version >= version`,
    ),
  };
}

function namesOf(table: SyncedTable): { t: string; id: string; stamp: string } {
  return {
    t: quoteName(table.name),
    id: `t.${quoteName(table.id.name)}`,
    stamp: `t.${quoteName(table.version.name)}`,
  };
}

/** Undefined where the row and its entry stay as they are. */
function decide(row: WorkRow, entries: readonly EntryRow[], nowMs: number): Outcome | undefined {
  const verdict = judgeVersion(historyOf(row, entries), nowMs);
  const last = entries.at(-1);
  if (verdict.kind === "gone") return decideDelete(row, entries, verdict.version);
  const op = verdict.isNew ? "INSERT" : "UPDATE";
  if (verdict.kind === "keep" && entries.length === 1 && last!.op === op) return undefined;
  const version = verdict.kind === "lift" ? verdict.version : 0;
  const kind = verdict.kind === "lift" ? "lift" : "merge";
  return { kind, version, op, kept: last!.change_id, takesNote: false, isRewritten: true };
}

function decideDelete(row: WorkRow, entries: readonly EntryRow[], version: number): Outcome {
  const deleted = entries.findLast((entry) => entry.op === "DELETE");
  const kept = (deleted ?? entries.at(-1))?.change_id ?? null;
  // Thrown out by REPLACE: what it was is in the note, unless it was written again after that.
  const takesNote =
    deleted === undefined && row.has_content === 1 && (kept ?? 0) <= (row.noted_at ?? 0);
  const isRewritten = deleted === undefined || deleted.was !== version;
  return { kind: "gone", version, op: "DELETE", kept, takesNote, isRewritten };
}

/** A single entry of a row that is there wrote the row's own stamp; a DELETE wrote none. */
function loneEntry(row: WorkRow): EntryRow {
  return {
    n: row.n,
    change_id: row.change_id!,
    op: row.op!,
    was: row.was,
    was_kind: row.was_kind,
    wrote: row.stamp,
    wrote_kind: row.kind,
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
  return code.startsWith("SQLITE_CONSTRAINT") || code.startsWith("SQLITE_ERROR");
}
