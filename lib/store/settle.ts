/**
 * Settling: triggers only record, the node decides (DESIGN.md, "Settling" and "Versions").
 *
 * Other programs write to the file with whatever stamps they like, and change its schema. The first
 * thing in every write transaction is to settle what they logged since `settled_through`: the row
 * gets a version above the one it replaced, its entries become one, rows that REPLACE threw out
 * without a trace become DELETEs. The shipper never reads past `settled_through`, so nothing leaves
 * with a wrong version or under a wrong name. BEGIN IMMEDIATE keeps everyone else out meanwhile.
 *
 * Invariants:
 *   S1  every entry at or below settled_through has its final version, and each row at most one entry
 *       per pass.
 *   S2  a pass that finds only single inserts and updates with good stamps writes nothing but the
 *       position, however long it is.
 *   S3  a table whose triggers were missing has every row announced again, and the interval is named.
 */
import type { Database, Statement } from "bun:sqlite";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import {
  installTriggers,
  type KnownTable,
  readKnown,
  readSelection,
  removeTriggers,
  type Selection,
  type Survey,
  survey,
  triggerState,
  writeKnown,
} from "./catalog.ts";
import { followColumns, followTableRenames } from "./follow-schema.ts";
import { setSetting, setting } from "./migrations.ts";
import { jsonPath, rowJsonSql } from "./row-json.ts";
import { columnList, type SyncedTable } from "./schema.ts";
import { nameKey, quoteName, quoteText } from "./sql.ts";
import type { Tombstones } from "./tombstones.ts";
import { judgeVersion, type Stamp, type Trace } from "./versions.ts";

/** Something an operator should know about the capture of a table. */
export interface SettleEvent {
  readonly kind:
    | "registered"
    | "lost"
    | "renamed"
    | "rebuilt"
    | "gap"
    | "lift-refused"
    | "flag-restored"
    | "log-restarted";
  readonly table: string;
  readonly text: string;
}

export interface SettlerOptions {
  readonly db: Database;
  readonly tombstones: Tombstones;
  readonly selection: Selection;
  readonly onEvent: (event: SettleEvent) => void;
  /** The synced tables changed: statements and parked changes that depend on them must follow. */
  readonly onSurvey: (survey: Survey) => void;
}

export class Settler {
  readonly #db: Database;
  readonly #options: SettlerOptions;
  readonly #dataVersion: Statement<{ data_version: number }, []>;
  readonly #schemaVersion: Statement<{ schema_version: number }, []>;
  readonly #newest: Statement<{ id: number | null }, []>;
  readonly #flag: Statement<{ value: number | null }, []>;
  readonly #position: Statement<unknown, [number]>;
  readonly #liftsRefused = new Set<string>();
  #selection: Selection;
  #survey: Survey;
  #settledThrough: number;
  #seenData: number | undefined;
  #seenSchema: number | undefined;
  #checkedMs = 0;
  /** What this transaction did that a rollback undoes. */
  #isDirty = false;
  #isRewritten = false;

  /** The tables of ours must exist. `survey` is taken, and triggers are made, by the first pass. */
  constructor(options: SettlerOptions) {
    this.#db = options.db;
    this.#options = options;
    this.#selection = options.selection;
    this.#survey = { synced: new Map(), notSynced: [], notAsked: [], foreignKeys: false };
    this.#dataVersion = this.#db.prepare("PRAGMA data_version");
    this.#schemaVersion = this.#db.prepare("PRAGMA schema_version");
    this.#newest = this.#db.prepare("SELECT max(change_id) AS id FROM _changes");
    this.#flag = this.#db.prepare("SELECT value FROM _meta WHERE key = 'syncing'");
    this.#position = this.#db.prepare(
      "UPDATE _hooksync SET value = ? WHERE key = 'settled_through'",
    );
    this.#settledThrough = Number(setting(this.#db, "settled_through") ?? 0);
  }

  get survey(): Survey {
    return this.#survey;
  }

  get settledThrough(): number {
    return this.#settledThrough;
  }

  /** Cheap: whether another program committed since the last pass. */
  get isBehind(): boolean {
    return this.#dataVersion.get()!.data_version !== this.#seenData;
  }

  /** After a rollback nothing that was cached about the file is trusted. */
  forget(): void {
    this.#settledThrough = Number(setting(this.#db, "settled_through") ?? 0);
    this.#isRewritten = false;
    if (!this.#isDirty) return;
    this.#isDirty = false;
    this.#seenData = undefined;
    this.#seenSchema = undefined;
  }

  /** After a commit: whether entries that were settled before have been rewritten since the last one. */
  takeRewritten(): boolean {
    this.#isDirty = false;
    const rewritten = this.#isRewritten;
    this.#isRewritten = false;
    return rewritten;
  }

  /** First in every write transaction: settles what other programs wrote since the last one. */
  settle(nowMs: number): void {
    const dataVersion = this.#dataVersion.get()!.data_version;
    if (dataVersion === this.#seenData) return;
    this.#isDirty = true;
    this.#restoreFlag();
    this.#renumberRestarted();
    const schemaVersion = this.#schemaVersion.get()!.schema_version;
    if (schemaVersion !== this.#seenSchema) {
      this.#followSchema(nowMs);
      this.#seenSchema = this.#schemaVersion.get()!.schema_version;
    }
    this.#pass(nowMs);
    this.#seenData = dataVersion;
    this.#checkedMs = nowMs;
  }

  /**
   * Last in every write transaction. `logged` entries were made by our own writes, with their final
   * versions; any more came from cascades and the user's triggers and are settled like those of
   * another program.
   */
  finish(nowMs: number, logged: number): void {
    const newest = this.#newest.get()!.id ?? 0;
    const made = newest - this.#newestBefore(newest);
    if (made === 0) return;
    if (made === logged) this.#moveTo(newest);
    else this.#pass(nowMs);
  }

  #newestBefore(newest: number): number {
    return Math.min(this.#settledThrough, newest);
  }

  /** Says that entries up to the newest are final already: announcements, and what apply wrote. */
  skipTo(changeId: number): void {
    if (changeId > this.#settledThrough) this.#moveTo(changeId);
  }

  #moveTo(changeId: number): void {
    this.#position.run(changeId);
    this.#settledThrough = changeId;
  }

  /** DL11: without this row, or with the flag left at 1, nothing is captured. */
  #restoreFlag(): void {
    if (this.#flag.get()?.value === 0) return;
    this.#db.run(
      "INSERT INTO _meta(key, value) VALUES ('syncing', 0) ON CONFLICT(key) DO UPDATE SET value = 0",
    );
    this.#options.onEvent({
      kind: "flag-restored",
      table: "_meta",
      text: "another program changed the syncing flag of _meta, which turned capture off; it is on again, every row is announced",
    });
    for (const table of this.#survey.synced.values()) this.#announceAll(table);
  }

  /**
   * DL28, DL29: a log whose ids began again (a restored backup, an emptied sqlite_sequence) would
   * never be read past the old position. Its entries are numbered on from there.
   */
  #renumberRestarted(): void {
    const acked = this.#db
      .query<{ id: number | null }, []>("SELECT max(last_acked) AS id FROM _peer_state")
      .get()!.id;
    const floor = Math.max(this.#settledThrough, acked ?? 0);
    const sequence = this.#db
      .query<{ seq: number }, []>("SELECT seq FROM sqlite_sequence WHERE name = '_changes'")
      .get()?.seq;
    if ((sequence ?? 0) >= floor) return;
    this.#db.query("UPDATE _changes SET change_id = change_id + ?").run(floor);
    const newest = Math.max(this.#newest.get()!.id ?? 0, floor);
    if (sequence === undefined)
      this.#db.query("INSERT INTO sqlite_sequence(name, seq) VALUES ('_changes', ?)").run(newest);
    else this.#db.query("UPDATE sqlite_sequence SET seq = ? WHERE name = '_changes'").run(newest);
    this.#moveTo(floor);
    this.#options.onEvent({
      kind: "log-restarted",
      table: "_changes",
      text: `its numbering began again below ${floor} (a restored backup?); its entries are sent under new numbers`,
    });
  }

  // ── Schema ──────────────────────────────────────────────────────────────────────────────────

  #followSchema(nowMs: number): void {
    const known = readKnown(this.#db);
    this.#followTableRenames(known);
    this.#selection = readSelection(this.#db) ?? this.#selection;
    const next = survey(this.#db, this.#selection);
    for (const table of next.synced.values()) this.#followTable(table, known.get(table.key), nowMs);
    for (const [key, table] of known) {
      if (next.synced.has(key)) continue;
      const why = next.notSynced.find((other) => nameKey(other.name) === key);
      removeTriggers(this.#db, key);
      this.#options.onEvent({
        kind: "lost",
        table: table.name,
        text: why ? `${why.reason}. ${why.remedy}` : "it is not there any more",
      });
    }
    writeKnown(this.#db, next.synced.values());
    this.#survey = next;
    this.#options.onSurvey(next);
  }

  #followTableRenames(known: Map<string, KnownTable>): void {
    for (const { from, to } of followTableRenames(this.#db, known, this.#settledThrough)) {
      this.#options.onEvent({
        kind: "renamed",
        table: to,
        text: `it was called ${from} until now; peers know it by that name until they rename it, too`,
      });
    }
  }

  #followTable(
    table: SyncedTable,
    known: { columns: readonly string[] } | undefined,
    nowMs: number,
  ): void {
    const state = triggerState(this.#db, table);
    if (state === "fine") {
      // `hook-sync alter` put everything right; bodies made before are not what the log says now.
      if (this.#hasOtherColumns(table)) this.#isRewritten = true;
      return;
    }
    installTriggers(this.#db, table);
    if (known === undefined) {
      const isRunning = this.#checkedMs > 0;
      if (isRunning) this.#announceAll(table);
      this.#options.onEvent({
        kind: "registered",
        table: table.name,
        text: isRunning
          ? "it is synced from now on; the rows in it are announced"
          : "it is synced from now on",
      });
      return;
    }
    if (state === "missing") {
      const since =
        this.#checkedMs > 0 ? this.#checkedMs : Number(setting(this.#db, "checked_at") ?? 0);
      this.#announceAll(table);
      this.#options.onEvent({
        kind: "gap",
        table: table.name,
        text: `its capture triggers were missing some time between ${new Date(since).toISOString()} and ${new Date(nowMs).toISOString()}; every row is announced, rows deleted meanwhile are not known`,
      });
      return;
    }
    if (followColumns(this.#db, table, known.columns, this.#settledThrough))
      this.#isRewritten = true;
    this.#options.onEvent({
      kind: "rebuilt",
      table: table.name,
      text: "its columns or keys changed, its triggers follow",
    });
  }

  #hasOtherColumns(table: SyncedTable): boolean {
    const before = this.#survey.synced.get(table.key);
    return before !== undefined && columnList(before.columns) !== columnList(table.columns);
  }

  /** Done in slices by announce.ts, so that a large table does not hold the lock. */
  #announceAll(table: SyncedTable): void {
    setSetting(this.#db, `announce:${table.key}`, "");
  }

  // ── Versions ────────────────────────────────────────────────────────────────────────────────

  #pass(nowMs: number): void {
    const through = this.#newest.get()!.id ?? 0;
    const from = Math.min(this.#settledThrough, through);
    const hasNotes = this.#db.query("SELECT 1 FROM _hooksync_noted LIMIT 1").get() !== null;
    if (through === from && !hasNotes) return;
    this.#db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
    let isIrregular = false;
    for (const name of this.#tablesInPass(from)) {
      const table = this.#survey.synced.get(nameKey(name));
      if (table && this.#settleTable(table, from, nowMs)) isIrregular = true;
    }
    if (hasNotes) this.#db.run("DELETE FROM _hooksync_noted");
    if (isIrregular) this.#putDeletesFirst(from);
    this.#db.run("UPDATE _meta SET value = 0 WHERE key = 'syncing'");
    this.#moveTo(Math.max(this.#newest.get()!.id ?? 0, through));
  }

  #tablesInPass(from: number): Set<string> {
    const rows = this.#db
      .query<{ name: string }, [number]>(
        `SELECT DISTINCT table_name AS name FROM _changes WHERE change_id > ? AND table_name IS NOT NULL
         UNION SELECT DISTINCT tbl FROM _hooksync_noted`,
      )
      .all(from);
    return new Set(rows.map((row) => row.name));
  }

  /** Whether anything had to be rewritten. */
  #settleTable(table: SyncedTable, from: number, nowMs: number): boolean {
    const db = this.#db;
    const t = quoteName(table.name);
    const id = `t.${quoteName(table.id.name)}`;
    const stamp = `t.${quoteName(table.version.name)}`;
    const aheadMs = nowMs + VERSION_AHEAD_MS_MAX;
    // S2: one indexed look at each row; what is regular is not touched.
    const irregular = db
      .query<{ id: string }, { from: number; name: string; key: string; ahead: number }>(
        `SELECT c.row_id AS id FROM _changes AS c LEFT JOIN ${t} AS t ON ${id} = c.row_id
         WHERE c.change_id > :from AND c.table_name = :name
         GROUP BY c.row_id
         HAVING count(*) > 1 OR max(c.op = 'DELETE') OR ${id} IS NULL
             OR typeof(${stamp}) <> 'integer' OR ${stamp} > :ahead OR ${stamp} <= max(c.was)
             OR ${stamp} <= (SELECT s.version FROM _hooksync_tombstones AS s WHERE s.tbl = :key AND s.id = c.row_id)
         UNION SELECT id FROM _hooksync_noted WHERE tbl = :name`,
      )
      .all({ from, name: table.name, key: table.key, ahead: aheadMs });
    if (irregular.length === 0) return false;
    const histories = this.#readHistories(
      table,
      from,
      irregular.map((row) => row.id),
    );
    for (const [rowId, history] of histories) this.#settleRow(table, rowId, history, nowMs);
    return true;
  }

  #readHistories(
    table: SyncedTable,
    from: number,
    ids: readonly string[],
  ): Map<string, RecordedRow> {
    const db = this.#db;
    const wanted = JSON.stringify(ids);
    const versionPath = quoteText(jsonPath(table.version.name));
    const rows = db
      .query<EntryRow, [number, string, string]>(
        `SELECT change_id, op, row_id, was, typeof(was) AS was_type,
                json_extract(row_data, ${versionPath}) AS wrote, json_type(row_data, ${versionPath}) AS wrote_type
         FROM _changes
         WHERE change_id > ? AND table_name = ? AND row_id IN (SELECT value FROM json_each(?))
         ORDER BY change_id`,
      )
      .all(from, table.name, wanted);
    const histories = new Map<string, RecordedRow>();
    for (const row of rows) {
      const history = histories.get(row.row_id) ?? { entries: [], note: undefined };
      history.entries.push(row);
      histories.set(row.row_id, history);
    }
    const notes = db
      .query<NoteRow, [string]>(
        "SELECT id, version, typeof(version) AS version_type, row, at FROM _hooksync_noted WHERE tbl = ?",
      )
      .all(table.name);
    for (const note of notes) {
      const history = histories.get(note.id) ?? { entries: [], note: undefined };
      history.note = note;
      histories.set(note.id, history);
    }
    return histories;
  }

  #settleRow(table: SyncedTable, rowId: string, recorded: RecordedRow, nowMs: number): void {
    const db = this.#db;
    const t = quoteName(table.name);
    const id = quoteName(table.id.name);
    const version = quoteName(table.version.name);
    const found = db
      .query<{ stamp: number | null; kind: string }, [string]>(
        `SELECT ${version} AS stamp, typeof(${version}) AS kind FROM ${t} WHERE ${id} = ?`,
      )
      .get(rowId);
    // A row that was noted as in the way, and is as it was: REPLACE did not happen.
    if (found && recorded.entries.length === 0) return;
    const verdict = judgeVersion(
      {
        traces: tracesOf(recorded),
        stored: found ? stampOf(found.stamp, found.kind) : undefined,
        tombstone: this.#options.tombstones.versionOf(table.key, rowId),
      },
      nowMs,
    );
    if (verdict.kind === "gone") {
      this.#writeDelete(table, rowId, recorded, verdict.version, nowMs);
      return;
    }
    if (verdict.kind === "lift") this.#lift(table, rowId, verdict.version);
    const last = recorded.entries.at(-1)!;
    db.query(
      `UPDATE _changes SET op = ?, row_data = (SELECT ${rowJsonSql("t", table.columns)} FROM ${t} AS t WHERE t.${id} = ?2)
       WHERE change_id = ?3`,
    ).run(verdict.isNew ? "INSERT" : "UPDATE", rowId, last.change_id);
    this.#dropEntries(recorded.entries.slice(0, -1));
  }

  /** A user's trigger may forbid any update of the row; then it stays as it is, and that is said. */
  #lift(table: SyncedTable, rowId: string, version: number): void {
    if (this.#liftsRefused.has(table.key)) return;
    try {
      this.#db
        .query(
          `UPDATE ${quoteName(table.name)} SET ${quoteName(table.version.name)} = ? WHERE ${quoteName(table.id.name)} = ?`,
        )
        .run(version, rowId);
    } catch (error) {
      if (!isRefusal(error)) throw error;
      this.#liftsRefused.add(table.key);
      this.#options.onEvent({
        kind: "lift-refused",
        table: table.name,
        text: `a trigger forbids setting its updated_at (${(error as Error).message}): such rows are sent with the stamp they have, and lose against newer ones`,
      });
      // RAISE(ROLLBACK) took the transaction with it: the queue runs it again, now without lifts.
      if (!this.#db.inTransaction) throw error;
    }
  }

  #writeDelete(
    table: SyncedTable,
    rowId: string,
    recorded: RecordedRow,
    version: number,
    nowMs: number,
  ): void {
    const db = this.#db;
    const deleted = recorded.entries.findLast((entry) => entry.op === "DELETE");
    const path = jsonPath(table.version.name);
    if (deleted) {
      this.#dropEntries(recorded.entries.filter((entry) => entry !== deleted));
      db.query("UPDATE _changes SET row_data = json_set(row_data, ?, ?) WHERE change_id = ?").run(
        path,
        version,
        deleted.change_id,
      );
    } else {
      // Thrown out by REPLACE, and perhaps written before that in the same pass.
      const row = recorded.note?.row ?? null;
      const last = recorded.entries.at(-1);
      const source =
        row ??
        (last
          ? db
              .query<{ d: string }, [number]>(
                "SELECT row_data AS d FROM _changes WHERE change_id = ?",
              )
              .get(last.change_id)!.d
          : null);
      this.#dropEntries(recorded.entries);
      if (source === null) return;
      db.query(
        "INSERT INTO _changes(op, table_name, row_id, row_data, was) VALUES ('DELETE', ?, ?, json_set(?, ?, ?), ?5)",
      ).run(table.name, rowId, source, path, version);
    }
    this.#options.tombstones.put(table.key, rowId, version, nowMs);
  }

  #dropEntries(entries: readonly EntryRow[]): void {
    const drop = this.#db.query("DELETE FROM _changes WHERE change_id = ?");
    for (const entry of entries) drop.run(entry.change_id);
  }

  /** So that a unique value is given up before another row takes it. */
  #putDeletesFirst(from: number): void {
    const mixed = this.#db
      .query<{ mixed: number | null }, [number, number]>(
        `SELECT (SELECT min(change_id) FROM _changes WHERE change_id > ? AND op <> 'DELETE')
              < (SELECT max(change_id) FROM _changes WHERE change_id > ? AND op = 'DELETE') AS mixed`,
      )
      .get(from, from);
    if (mixed?.mixed !== 1) return;
    const end = this.#newest.get()!.id!;
    this.#db
      .query(
        `INSERT INTO _changes(op, table_name, row_id, row_data, was)
         SELECT op, table_name, row_id, row_data, was FROM _changes
         WHERE change_id > ? AND change_id <= ? ORDER BY op <> 'DELETE', change_id`,
      )
      .run(from, end);
    this.#db.query("DELETE FROM _changes WHERE change_id > ? AND change_id <= ?").run(from, end);
  }
}

interface EntryRow {
  readonly change_id: number;
  readonly op: string;
  readonly row_id: string;
  readonly was: number | null;
  readonly was_type: string;
  readonly wrote: number | null;
  readonly wrote_type: string | null;
}

interface NoteRow {
  readonly id: string;
  readonly version: number | null;
  readonly version_type: string;
  readonly row: string | null;
  readonly at: number;
}

interface RecordedRow {
  readonly entries: EntryRow[];
  note: NoteRow | undefined;
}

function tracesOf(recorded: RecordedRow): Trace[] {
  const traces: Trace[] = [];
  const { note } = recorded;
  let isNotePlaced = note === undefined;
  for (const entry of recorded.entries) {
    if (!isNotePlaced && entry.change_id > note!.at) {
      traces.push({ kind: "note", was: stampOf(note!.version, note!.version_type) });
      isNotePlaced = true;
    }
    const was = stampOf(entry.was, entry.was_type);
    const wrote = stampOf(entry.wrote, entry.wrote_type ?? "null");
    // An UPDATE without `was` gave the row its id (it had another), or replaced a stamp of NULL.
    const replacedNothing =
      entry.op === "INSERT" || (entry.op === "UPDATE" && entry.was_type === "null");
    if (replacedNothing) traces.push({ kind: "insert", wrote });
    else if (entry.op === "DELETE") traces.push({ kind: "delete", was });
    else traces.push({ kind: "update", was, wrote });
  }
  if (!isNotePlaced) traces.push({ kind: "note", was: stampOf(note!.version, note!.version_type) });
  return traces;
}

function stampOf(value: number | null, kind: string): Stamp {
  return kind === "integer" && value !== null ? value : "odd";
}

function isRefusal(error: unknown): boolean {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return code.startsWith("SQLITE_CONSTRAINT") || code === "SQLITE_ERROR";
}
