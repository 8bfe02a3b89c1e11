/**
 * Applying received changes (DESIGN.md, "Apply", "Winner", "Unknown columns", "UNIQUE"). Every change
 * ends in one of four ways: applied, stale, parked with its reason, or counted as left out.
 *
 * Two paths with one meaning. The row path decides each change alone and is the reference. The chunk
 * path takes runs of whole rows of one table and shape, hands a hundred at a time to one statement
 * whose WHERE is the rule "the higher version wins", and gives whatever is not plainly newer or plainly
 * equal to the row path.
 *
 * Invariants:
 *   A1  nothing applied is captured: the syncing flag is up, inside the transaction only.
 *   A2  one change that fails leaves no trace but its parking; its neighbours apply.
 *   A3  a repeat of any change, in any order, changes nothing.
 */
import type { Database } from "bun:sqlite";
import { isObject, member, parseChange, type ReceivedChange } from "../protocol/batch.ts";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import {
  compareReduced,
  compareRichness,
  formatValue,
  reduce,
  sameValue,
  type Value,
} from "../protocol/values.ts";
import { judgeTie, judgeTieByColumn } from "../protocol/winner.ts";
import { type Run, readRun } from "./apply-run.ts";
import type { Survey } from "./catalog.ts";
import type { ChangeLog } from "./change-log.ts";
import type { ColumnNotes } from "./column-notes.ts";
import type { DeadLetters, Parked } from "./dead-letters.ts";
import type { Healing, Origin } from "./healing.ts";
import {
  type Delete,
  type ParkCode,
  type Parking,
  readChange,
  type Upsert,
} from "./read-change.ts";
import { isRowFault, parkCodeOf } from "./row-fault.ts";
import type { SyncedTable } from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";
import { TableWriter } from "./table-writer.ts";
import type { Tombstones } from "./tombstones.ts";
import { clashingIds, compareRivals } from "./unique-clash.ts";
import type { Stamp } from "./versions.ts";

/** Who sent a batch. */
export interface Sender {
  /** X-Node-Id, or the address. For people and for parking. */
  readonly name: string;
  readonly isOurs: boolean;
  /** Per change: through a hub each is an origin of its own. */
  readonly originOf: (index: number) => Origin;
  /** Changes that a later one of the same batch replaced at the same version (receive.ts). */
  readonly superseded?: ReadonlySet<number>;
}

export interface ApplyTally {
  applied: number;
  parked: number;
  leftOut: number;
  /** Entries of the log made besides: answers to foreign peers, deletes put behind. */
  logged: number;
}

export interface ApplyEvent {
  readonly kind: "parked" | "left-out" | "trigger";
  readonly peer: string;
  readonly table: string;
  readonly reason: string;
}

export interface ApplierOptions {
  readonly db: Database;
  readonly survey: () => Survey;
  readonly tombstones: Tombstones;
  readonly columnNotes: ColumnNotes;
  readonly deadLetters: DeadLetters;
  readonly healing: Healing;
  readonly log: ChangeLog;
  readonly onEvent: (event: ApplyEvent) => void;
}

type Outcome = "applied" | "stale" | "parked" | "left-out";

/** How long a change that clashes on another unique key waits for the other to move (DESIGN.md, "UNIQUE"). */
const UNIQUE_WAIT_MS = 60_000;

/** Changes that took the whole transaction with them (RAISE(ROLLBACK)), by their place in the batch. */
export type Guilty = Map<number, string>;

export class Applier {
  readonly #options: ApplierOptions;
  readonly #db: Database;
  #writers = new WeakMap<SyncedTable, TableWriter>();

  constructor(options: ApplierOptions) {
    this.#options = options;
    this.#db = options.db;
  }

  writerFor(table: SyncedTable): TableWriter {
    let writer = this.#writers.get(table);
    if (!writer) {
      writer = new TableWriter(this.#db, table);
      this.#writers.set(table, writer);
    }
    return writer;
  }

  /** Applies `changes[from..to)` inside the caller's transaction. */
  apply(
    batch: readonly ReceivedChange[],
    from: number,
    to: number,
    sender: Sender,
    nowMs: number,
    tally: ApplyTally,
    guilty: Guilty,
  ): void {
    this.#raiseFlag();
    let at = from;
    while (at < to) {
      const run = this.#isPlainTime(guilty)
        ? readRun(batch, at, to, { survey: this.#options.survey(), nowMs, isOurs: sender.isOurs })
        : undefined;
      if (run) {
        this.#applyRun(run, batch, at, sender, nowMs, tally, guilty);
        at += run.count;
        continue;
      }
      this.#applyOne(batch[at]!, at, sender, nowMs, tally, guilty);
      at++;
    }
    this.#lowerFlag();
  }

  #raiseFlag(): void {
    this.#db.query("UPDATE _meta SET value = 1 WHERE key = 'syncing'").run();
  }

  #lowerFlag(): void {
    this.#db.query("UPDATE _meta SET value = 0 WHERE key = 'syncing'").run();
  }

  // ── Runs ────────────────────────────────────────────────────────────────────────────────────

  /** Runs know nothing of column notes, of foreign peers' answers, and of changes to leave out. */
  #isPlainTime(guilty: Guilty): boolean {
    const { columnNotes, healing } = this.#options;
    return guilty.size === 0 && columnNotes.isEmpty && !healing.isActive;
  }

  #applyRun(
    run: Run,
    batch: readonly ReceivedChange[],
    from: number,
    sender: Sender,
    nowMs: number,
    tally: ApplyTally,
    guilty: Guilty,
  ): void {
    const { tombstones } = this.#options;
    const writer = this.writerFor(run.shape.table);
    const width = run.shape.table.columns.length;
    const size = writer.chunkRows;
    const alone = (start: number, end: number) => {
      for (let i = start; i < end; i++)
        this.#applyOne(batch[from + i]!, from + i, sender, nowMs, tally, guilty);
    };
    const hasTombstones = tombstones.any(run.shape.table.key);
    for (let start = 0; start < run.count; start += size) {
      const end = Math.min(start + size, run.count);
      if (
        end - start < size ||
        (hasTombstones && tombstones.anyOf(run.shape.table.key, run.ids.slice(start, end)))
      ) {
        alone(start, end);
        continue;
      }
      const bindings = run.bindings.slice(start * width, end * width);
      let written: number;
      try {
        written = writer.upsertChunk(bindings);
      } catch (error) {
        if (!isRowFault(error) || !this.#db.inTransaction) throw error;
        alone(start, end);
        continue;
      }
      if (written === size || writer.countEqual(bindings) === size) tally.applied += size;
      else alone(start, end);
    }
  }

  // ── Single changes ──────────────────────────────────────────────────────────────────────────

  #applyOne(
    change: ReceivedChange,
    index: number,
    sender: Sender,
    nowMs: number,
    tally: ApplyTally,
    guilty: Guilty,
  ): void {
    if (sender.superseded?.has(index)) {
      tally.applied++;
      return;
    }
    const reason = guilty.get(index);
    const outcome =
      reason === undefined
        ? this.#tryOne(change, index, sender, nowMs, tally, guilty)
        : this.#park(change, describeParking(change, "trigger", reason), sender, nowMs);
    if (outcome === "applied") tally.applied++;
    if (outcome === "parked") tally.parked++;
    if (outcome === "left-out") tally.leftOut++;
  }

  #tryOne(
    change: ReceivedChange,
    index: number,
    sender: Sender,
    nowMs: number,
    tally: ApplyTally,
    guilty: Guilty,
  ): Outcome {
    const read = readChange(change, {
      survey: this.#options.survey(),
      nowMs,
      isOurs: sender.isOurs,
    });
    if (read.kind === "park") return this.#park(change, read, sender, nowMs);
    if (read.kind === "left-out") {
      this.#leaveOut(read.table, sender);
      return "left-out";
    }
    const failure = this.#write(
      read,
      change,
      sender.originOf(index),
      sender.isOurs,
      nowMs,
      tally,
      (text) => guilty.set(index, text),
    );
    if (typeof failure === "string") return failure;
    return this.#park(change, describeParking(change, failure.code, failure.reason), sender, nowMs);
  }

  /** Carries out one change; a constraint or a trigger that forbids it undoes it alone (A2). */
  #write(
    read: Upsert | Delete,
    change: ReceivedChange,
    origin: Origin,
    isOurs: boolean,
    nowMs: number,
    tally: ApplyTally,
    onRollback: (reason: string) => void,
  ): Outcome | { code: ParkCode; reason: string } {
    const watched = read.table.userTriggers.length > 0;
    const loggedBefore = tally.logged;
    const before = watched ? this.writerFor(read.table).stamp(read.id) : undefined;
    if (watched) this.#db.run("SAVEPOINT hooksync_change");
    try {
      const outcome =
        read.kind === "delete"
          ? this.#writeDelete(read, change, origin, isOurs, nowMs, tally)
          : this.#writeUpsert(read, change, origin, isOurs, nowMs, tally);
      if (watched) {
        const isAnswered = outcome !== "applied" || tally.logged > loggedBefore;
        const complaint = isAnswered ? undefined : this.#checkStored(read, before);
        if (complaint) {
          this.#db.run("ROLLBACK TO hooksync_change");
          this.#db.run("RELEASE hooksync_change");
          tally.logged = loggedBefore;
          this.#options.onEvent({
            kind: "trigger",
            peer: "",
            table: read.table.name,
            reason: complaint,
          });
          return { code: "trigger", reason: complaint };
        }
        this.#db.run("RELEASE hooksync_change");
      }
      return outcome;
    } catch (error) {
      if (!isRowFault(error)) throw error;
      const text = (error as Error).message;
      if (!this.#db.inTransaction) {
        // RAISE(ROLLBACK) took the group with it: the queue runs it again, without this change.
        onRollback(`a trigger refused it: ${text}`);
        throw error;
      }
      if (watched) {
        this.#db.run("ROLLBACK TO hooksync_change");
        this.#db.run("RELEASE hooksync_change");
      }
      tally.logged = loggedBefore;
      return { code: parkCodeOf(error), reason: text };
    }
  }

  /** Whether a user's trigger changed what was written: then nodes would differ. */
  #checkStored(read: Upsert | Delete, before: Stamp | undefined): string | undefined {
    const stored = this.writerFor(read.table).stamp(read.id);
    const names = read.table.userTriggers.map((trigger) => trigger.name).join(", ");
    if (read.kind === "delete") {
      return stored === undefined ? undefined : `a trigger (${names}) brought the row back`;
    }
    if (stored === undefined) return `a trigger (${names}) removed the row`;
    const expected =
      before === undefined || before === "odd" ? read.version : Math.max(before, read.version);
    return stored === expected ? undefined : `a trigger (${names}) changed its updated_at`;
  }

  #writeUpsert(
    read: Upsert,
    change: ReceivedChange,
    origin: Origin,
    isOurs: boolean,
    nowMs: number,
    tally: ApplyTally,
  ): Outcome {
    const { tombstones, healing, columnNotes } = this.#options;
    const { table, id, version } = read;
    const writer = this.writerFor(table);
    const tombstone = tombstones.versionOf(table.key, id);
    const stored = writer.stamp(id);
    if (tombstone !== undefined && version <= tombstone) {
      if (!isOurs) {
        tally.logged +=
          stored === undefined
            ? healing.answerWithDelete(table, id, tombstone, rowForLog(read, change), nowMs)
            : healing.answerWithRow(table, id, nowMs);
      }
      return "stale";
    }
    if (stored === undefined) {
      writer.insert(withVersion(read));
      this.#noteMissing(read, writer, () => 0);
      this.#noteUnknown(read);
      healing.note(table, id, origin, false, nowMs);
      return "applied";
    }
    if (stored === "odd" || version > stored) {
      this.#noteMissing(read, writer, () => (stored === "odd" ? 0 : stored));
      writer.update(id, withVersion(read));
      for (const key of read.cells.keys()) columnNotes.drop(table.key, id, key);
      this.#noteUnknown(read);
      healing.note(table, id, origin, false, nowMs);
      return "applied";
    }
    if (version < stored) {
      const took = this.#takeNewerColumns(read, writer);
      if (!isOurs) tally.logged += healing.answerWithRow(table, id, nowMs);
      if (took) healing.note(table, id, origin, false, nowMs);
      return took ? "applied" : "stale";
    }
    return this.#writeTie(read, writer, origin, nowMs, tally);
  }

  /** Columns of ours that the change lacks keep the version they had. */
  #noteMissing(read: Upsert, writer: TableWriter, versionBefore: () => number): void {
    const { columnNotes } = this.#options;
    const { table, id } = read;
    const missing = table.columns.filter(
      (column) => !read.cells.has(column.key) && column.key !== table.version.key,
    );
    if (missing.length === 0) return;
    const notes = columnNotes.of(table.key, id);
    const content = writer.content(id);
    for (const column of missing) {
      if (notes.has(column.key)) continue;
      columnNotes.put(
        table.key,
        id,
        column.key,
        versionBefore(),
        content?.get(column.key) ?? { kind: "null" },
      );
    }
  }

  #noteUnknown(read: Upsert): void {
    for (const [column, value] of read.unknown) {
      this.#options.columnNotes.put(read.table.key, read.id, column, read.version, value);
    }
  }

  /** The row is newer, but a column of the change may be newer than what that column holds. */
  #takeNewerColumns(read: Upsert, writer: TableWriter): boolean {
    const { columnNotes } = this.#options;
    if (columnNotes.isEmpty && read.unknown.size === 0) return false;
    const { table, id, version } = read;
    const notes = columnNotes.of(table.key, id);
    const newer = new Map<string, Value>();
    for (const [column, value] of [...read.cells, ...read.unknown]) {
      if (column === table.id.key || column === table.version.key) continue;
      const note = notes.get(column);
      const isNewer = note
        ? version > note.version || (version === note.version && isLarger(value, note.value))
        : read.unknown.has(column);
      if (!isNewer) continue;
      if (read.cells.has(column)) newer.set(column, value);
      columnNotes.put(table.key, id, column, version, value);
    }
    writer.update(id, newer);
    return (
      newer.size > 0 ||
      [...read.unknown.keys()].some(
        (column) => columnNotes.of(table.key, id).get(column)?.version === version,
      )
    );
  }

  #writeTie(
    read: Upsert,
    writer: TableWriter,
    origin: Origin,
    nowMs: number,
    tally: ApplyTally,
  ): Outcome {
    const { columnNotes, healing } = this.#options;
    const { table, id, version } = read;
    const content = writer.content(id)!;
    const notes = columnNotes.of(table.key, id);
    // What is stored stays what it is under its column's affinity. Repeats are the rule where nodes
    // are killed or replies get lost, and must not cost more than the first time.
    const whole = withVersion(read);
    const isRepeat = [...whole].every(([column, value]) => {
      const stored = content.get(column);
      return stored !== undefined && sameValue(value, stored);
    });
    if (isRepeat && notes.size === 0 && read.unknown.size === 0) return "applied";
    const cells = writer.afterAffinity(whole);
    const lower = new Map<string, Value>();
    const incoming = new Map<string, Value>();
    for (const [column, value] of cells) {
      const note = notes.get(column);
      if (note && note.version < version) lower.set(column, value);
      else incoming.set(column, value);
    }
    for (const [column, value] of read.unknown) {
      const note = notes.get(column);
      if (note === undefined || note.version < version) lower.set(column, value);
      else if (note.version === version) incoming.set(column, value);
    }
    const stored = new Map(content);
    for (const [column, note] of notes) {
      if (note.version === version) stored.set(column, note.value);
      else if (note.version < version) stored.delete(column);
    }
    const sameColumns = lower.size === 0 && incoming.size === stored.size;
    const verdict = sameColumns ? judgeTie(stored, incoming) : judgeTieByColumn(stored, incoming);
    const taken = new Map([...lower, ...(verdict.kind === "take" ? verdict.values : [])]);
    const known = new Map([...taken].filter(([column]) => table.columnByKey.has(column)));
    known.delete(table.id.key);
    known.delete(table.version.key);
    writer.update(id, known);
    for (const [column, value] of taken) {
      if (!table.columnByKey.has(column)) columnNotes.put(table.key, id, column, version, value);
      else columnNotes.drop(table.key, id, column);
    }
    if (verdict.kind !== "same" && verdict.contested) {
      tally.logged += healing.answerTie(writer, id, version, nowMs);
      healing.note(table, id, origin, false, nowMs);
    } else if (taken.size > 0) healing.note(table, id, origin, false, nowMs);
    return verdict.kind === "keep" && taken.size === 0 ? "stale" : "applied";
  }

  #writeDelete(
    read: Delete,
    change: ReceivedChange,
    origin: Origin,
    isOurs: boolean,
    nowMs: number,
    tally: ApplyTally,
  ): Outcome {
    const { tombstones, healing, columnNotes, log } = this.#options;
    const { table, id } = read;
    const writer = this.writerFor(table);
    const stored = writer.stamp(id);
    if (read.version === undefined)
      return this.#writeLocalDelete(read, writer, stored, nowMs, tally);
    const version = read.version;
    if (stored !== undefined && stored !== "odd" && version < stored) {
      const tombstone = tombstones.versionOf(table.key, id);
      if (tombstone === undefined || version > tombstone) {
        tombstones.put(table.key, id, version, nowMs);
        this.#resetColumns(table, id, version, writer);
      }
      if (!isOurs) tally.logged += healing.answerWithRow(table, id, nowMs);
      return "stale";
    }
    const tombstone = tombstones.versionOf(table.key, id);
    if (stored === undefined && tombstone !== undefined && version < tombstone) {
      if (!isOurs)
        tally.logged += healing.answerWithDelete(
          table,
          id,
          tombstone,
          rowForLog(read, change),
          nowMs,
        );
      return "stale";
    }
    const isRepeat = stored === undefined && tombstone === version;
    if (isRepeat) return "applied";
    // An entry of this row that is still on its way would bring it back where deletes are forgotten.
    if (stored !== undefined && log.holds(table, id)) {
      log.announceDelete(table, id, rowForLog(read, change));
      tally.logged++;
    }
    if (stored !== undefined) writer.delete(id);
    columnNotes.dropRow(table.key, id);
    tombstones.put(table.key, id, version, nowMs);
    healing.note(table, id, origin, true, nowMs);
    return "applied";
  }

  /** A DELETE without a row: applied as ours, captured and shipped with the row found. */
  #writeLocalDelete(
    read: Delete,
    writer: TableWriter,
    stored: Stamp | undefined,
    nowMs: number,
    tally: ApplyTally,
  ): Outcome {
    const { tombstones, log, columnNotes } = this.#options;
    const { table, id } = read;
    if (stored === undefined)
      return tombstones.versionOf(table.key, id) === undefined ? "stale" : "applied";
    const version = stored === "odd" ? 0 : stored;
    log.announceRowAsDelete(table, id);
    tally.logged++;
    writer.delete(id);
    columnNotes.dropRow(table.key, id);
    tombstones.put(table.key, id, version, nowMs);
    return "applied";
  }

  /** A delete below a live row: columns that were last carried at or below it hold nothing any more. */
  #resetColumns(table: SyncedTable, id: string, version: number, writer: TableWriter): void {
    const { columnNotes } = this.#options;
    if (columnNotes.isEmpty) return;
    const reset = new Map<string, Value>();
    for (const [column, note] of columnNotes.of(table.key, id)) {
      if (note.version > version) continue;
      if (!table.columnByKey.has(column)) columnNotes.drop(table.key, id, column);
      else reset.set(column, { kind: "null" });
    }
    for (const column of reset.keys()) {
      const { name, defaultSql } = table.columnByKey.get(column)!;
      this.#db
        .query(
          `UPDATE ${quoteName(table.name)} SET ${quoteName(name)} = ${defaultSql === null ? "NULL" : `(${defaultSql})`} WHERE ${quoteName(table.id.name)} = ?`,
        )
        .run(id);
      columnNotes.put(
        table.key,
        id,
        column,
        0,
        writer.content(id)?.get(column) ?? { kind: "null" },
      );
    }
  }

  // ── Parking ─────────────────────────────────────────────────────────────────────────────────

  #park(change: ReceivedChange, parking: Parking, sender: Sender, nowMs: number): Outcome {
    const retryAtMs = {
      malformed: null,
      "unknown-table": null,
      ahead: (parking.version ?? 0) - VERSION_AHEAD_MS_MAX,
      unique: nowMs,
      constraint: nowMs,
      trigger: null,
    }[parking.code];
    this.#options.deadLetters.park(parking, sender.name, change.source(), nowMs, retryAtMs);
    this.#options.onEvent({
      kind: "parked",
      peer: sender.name,
      table: parking.table ?? "",
      reason: parking.reason,
    });
    return "parked";
  }

  #leaveOut(table: string, sender: Sender): void {
    this.#db
      .query(
        `INSERT INTO _hooksync_left_out(peer, tbl, changes) VALUES (?, ?, 1)
         ON CONFLICT(peer, tbl) DO UPDATE SET changes = changes + 1`,
      )
      .run(sender.name, nameKey(table));
    this.#options.onEvent({
      kind: "left-out",
      peer: sender.name,
      table,
      reason: "--tables leaves it out",
    });
  }

  /** After a batch: constraints that other rows may have lifted meanwhile, and what has come due. */
  retryParked(nowMs: number, tally: ApplyTally): void {
    const { deadLetters } = this.#options;
    const waiting = deadLetters.waitingOnUnique();
    const due = deadLetters.due(nowMs);
    if (waiting.length === 0 && due.length === 0) return;
    this.#raiseFlag();
    for (const parked of waiting) this.#retry(parked, nowMs, tally);
    for (const parked of due) this.#retry(parked, nowMs, tally);
    this.#lowerFlag();
  }

  #retry(parked: Parked, nowMs: number, tally: ApplyTally): void {
    const { deadLetters } = this.#options;
    const change = parseChange(parked.change);
    const read = readChange(change, { survey: this.#options.survey(), nowMs, isOurs: false });
    if (read.kind === "left-out") {
      deadLetters.remove(parked.deadId);
      return;
    }
    if (read.kind === "park") {
      deadLetters.postpone(parked, read.reason, read.code, nowMs);
      return;
    }
    // Whose it was is not kept: where a foreign node is about, it may have been a foreign one's.
    const isOurs = !this.#options.healing.isActive;
    const origin: Origin = { name: parked.peer, isForeign: !isOurs };
    const outcome = this.#write(read, change, origin, isOurs, nowMs, tally, () =>
      deadLetters.postpone(parked, "a trigger rolled the transaction back", "trigger", nowMs),
    );
    if (typeof outcome === "string") {
      // Foreign peers had it when it came, and were told otherwise while it waited here.
      if (outcome === "applied") this.#options.healing.contest(read.table, read.id, nowMs);
      deadLetters.remove(parked.deadId);
      return;
    }
    if (
      outcome.code === "unique" &&
      nowMs - parked.parkedAtMs >= UNIQUE_WAIT_MS &&
      read.kind === "upsert"
    ) {
      this.#decideUnique(read, parked, nowMs, tally);
      return;
    }
    deadLetters.postpone(parked, outcome.reason, outcome.code, nowMs);
  }

  /**
   * It waited long enough: against the highest of the rows it clashes with, the lower (version,
   * content, id) is deleted as a local delete, at its own version and with its own content, so that
   * every node of ours decides the same.
   */
  #decideUnique(read: Upsert, parked: Parked, nowMs: number, tally: ApplyTally): void {
    const { deadLetters, tombstones, log } = this.#options;
    const { table } = read;
    const writer = this.writerFor(table);
    const rivals = clashingIds(this.#db, read, writer.content(read.id)).map((id) => ({
      id,
      content: writer.content(id)!,
      version: writer.stamp(id)!,
    }));
    if (rivals.length === 0) {
      deadLetters.postpone(parked, "it clashes on a unique key", "unique", nowMs);
      return;
    }
    const own = {
      id: read.id,
      content: writer.afterAffinity(withVersion(read)),
      version: read.version as number | "odd",
    };
    const highest = rivals.reduce((best, rival) => (compareRivals(rival, best) > 0 ? rival : best));
    const losers = compareRivals(own, highest) > 0 ? rivals : [own];
    for (const loser of losers) {
      const version = loser.version === "odd" ? 0 : loser.version;
      const row = formatRow(table, loser.content);
      log.announceDelete(table, loser.id, row);
      tally.logged++;
      if (writer.stamp(loser.id) !== undefined) writer.delete(loser.id);
      tombstones.put(table.key, loser.id, version, nowMs);
      deadLetters.keepLoser(
        {
          op: "DELETE",
          table: table.name,
          id: loser.id,
          version,
          change: `{"op":"DELETE","table":${JSON.stringify(table.name)},"row":${row},"old_id":${JSON.stringify(loser.id)}}`,
          reason: `it clashed on a unique key with ${loser === own ? highest.id : own.id}, whose version is higher`,
        },
        nowMs,
      );
    }
    if (!losers.includes(own)) {
      const change = parseChange(parked.change);
      this.#write(
        read,
        change,
        { name: parked.peer, isForeign: false },
        true,
        nowMs,
        tally,
        () => {},
      );
    }
    deadLetters.remove(parked.deadId);
  }
}

// ── Helpers ───────────────────────────────────────────────────────────────────────────────────

/** The change's cells with its version as the stamp: NULL and a missing one are version 0. */
function withVersion(read: Upsert): Map<string, Value> {
  return new Map([
    ...read.cells,
    [read.table.version.key, { kind: "integer", value: BigInt(read.version) } satisfies Value],
  ]);
}

/** The change's row as the log holds rows: digits kept, BLOBs marked. */
function rowForLog(read: Upsert | Delete, change: ReceivedChange): string {
  const cells = read.kind === "upsert" ? withVersion(read) : read.cells;
  return cells.size === 0 ? (change.rowSource() ?? "null") : formatRow(read.table, cells);
}

function formatRow(table: SyncedTable, cells: ReadonlyMap<string, Value>): string {
  const members = [...cells].map(
    ([column, value]) =>
      `${JSON.stringify(table.columnByKey.get(column)!.name)}:${formatValue(value)}`,
  );
  return `{${members.join(",")}}`;
}

function describeParking(change: ReceivedChange, code: ParkCode, reason: string): Parking {
  const { value } = change;
  const text = (name: string) => {
    const found = isObject(value) ? member(value, name) : undefined;
    return typeof found === "string" ? found : null;
  };
  const row = isObject(value) ? member(value, "row") : undefined;
  const own = (key: string) =>
    isObject(row) ? Object.entries(row).find(([name]) => nameKey(name) === key)?.[1] : undefined;
  const id = own("id");
  const version = own("updated_at");
  return {
    kind: "park",
    code,
    reason,
    op: text("op"),
    table: text("table"),
    id: typeof id === "string" ? id : text("old_id"),
    version: typeof version === "number" && Number.isInteger(version) ? version : null,
  };
}

function isLarger(left: Value, right: Value): boolean {
  const order = compareReduced(reduce(left), reduce(right));
  return order > 0 || (order === 0 && compareRichness(left, right) > 0);
}
