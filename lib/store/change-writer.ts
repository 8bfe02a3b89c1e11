/**
 * Carries out one received change: what the row becomes is decided by protocol/winner.ts, here it is
 * written, noted and answered. The write to the table comes first, since only it can be refused; what
 * follows it cannot fail but with the whole transaction (A2 of apply.ts).
 */
import type { ReceivedChange } from "../protocol/batch.ts";
import type { Value } from "../protocol/values.ts";
import {
  type ColumnNote,
  type Held,
  merge,
  type Notes,
  resetNotes,
  VERSION_NEVER,
} from "../protocol/winner.ts";
import type { ApplyParts, ApplyTally, Failure, Outcome } from "./apply-parts.ts";
import type { Origin } from "./healing.ts";
import { formatRow, integer } from "./log-row.ts";
import type { Delete, Upsert } from "./read-change.ts";
import { failureOf, isRowFault } from "./row-fault.ts";
import type { TableWriter } from "./table-writer.ts";
import { clashingIds } from "./unique-clash.ts";
import type { Stamp } from "./versions.ts";

/** What a change needs besides itself to be written. */
export interface WriteContext {
  readonly origin: Origin;
  readonly nowMs: number;
  readonly tally: ApplyTally;
  /** A trigger took the whole transaction with it; the error goes on to the queue. */
  readonly onRollback: (reason: string) => void;
}

const NO_NOTES: Notes = new Map();

/** The row path. Runs inside the caller's transaction, with the syncing flag up. */
export class ChangeWriter {
  readonly #parts: ApplyParts;

  constructor(parts: ApplyParts) {
    this.#parts = parts;
  }

  /** Undone alone where a constraint or a trigger forbids it. */
  write(read: Upsert | Delete, change: ReceivedChange, context: WriteContext): Outcome | Failure {
    const { db, log } = this.#parts;
    const { tally } = context;
    const loggedBefore = tally.logged;
    // Without a user's trigger the first statement fails alone, or none does.
    const isWatched = read.table.userTriggers.length > 0;
    if (isWatched) db.run("SAVEPOINT hooksync_change");
    const undo = () => {
      tally.logged = loggedBefore;
      if (!isWatched) return;
      db.run("ROLLBACK TO hooksync_change");
      db.run("RELEASE hooksync_change");
      log.forget();
    };
    try {
      const written =
        read.kind === "delete"
          ? this.#writeDelete(read, change, context)
          : this.#writeUpsert(read, change, context);
      const complaint = isWatched ? this.#checkStored(read, written.stamp) : undefined;
      if (complaint !== undefined) {
        undo();
        const { name } = read.table;
        this.#parts.onEvent({ kind: "trigger", peer: "", table: name, reason: complaint });
        return { code: "trigger", reason: complaint };
      }
      if (isWatched) db.run("RELEASE hooksync_change");
      return written.outcome;
    } catch (error) {
      if (!isRowFault(error)) throw error;
      if (!db.inTransaction) {
        context.onRollback(`a trigger refused it: ${error.message}`);
        throw error;
      }
      undo();
      return this.#failureOf(error, read);
    }
  }

  /** A unique key that no row stands in the way of was not this table's: a trigger met it elsewhere. */
  #failureOf(error: Error, read: Upsert | Delete): Failure {
    const failure = failureOf(error);
    if (failure.code !== "unique") return failure;
    const { db, writerFor } = this.#parts;
    const isClash =
      read.kind === "upsert" &&
      clashingIds(db, read, writerFor(read.table).content(read.id)).length > 0;
    return isClash ? failure : { ...failure, code: "constraint" };
  }

  /** Whether a user's trigger changed what was written: then nodes would differ. */
  #checkStored(read: Upsert | Delete, expected: Stamp | undefined): string | undefined {
    const stored = this.#parts.writerFor(read.table).stamp(read.id);
    if (stored === expected) return undefined;
    const names = read.table.userTriggers.map((trigger) => trigger.name).join(", ");
    if (stored === undefined) return `a trigger (${names}) removed the row`;
    if (expected === undefined) return `a trigger (${names}) kept the row from being deleted`;
    return `a trigger (${names}) changed its updated_at or kept it from being written`;
  }

  // ── Rows ────────────────────────────────────────────────────────────────────────────────────

  #writeUpsert(read: Upsert, change: ReceivedChange, context: WriteContext): Written {
    const { tombstones, healing, writerFor } = this.#parts;
    const { table, id, version } = read;
    const { origin, nowMs, tally } = context;
    const writer = writerFor(table);
    const stored = writer.stamp(id);
    const tombstone = tombstones.versionOf(table.key, id);
    if (tombstone !== undefined && version <= tombstone) {
      if (origin.isForeign) {
        tally.logged +=
          stored === undefined
            ? healing.answerWithDelete(table, id, tombstone, refusedRow(read, change), nowMs)
            : healing.answerWithRow(table, id, nowMs);
      }
      return { outcome: "stale", stamp: stored };
    }
    if (stored === undefined) {
      this.#insert(read, writer);
      healing.note(table, id, origin, false, nowMs);
      return { outcome: "applied", stamp: version };
    }
    const held = stored === "odd" ? VERSION_NEVER : stored;
    if (this.#isSimple(read)) {
      if (version > held) {
        writer.update(id, withVersion(read));
        healing.note(table, id, origin, false, nowMs);
        return { outcome: "applied", stamp: version };
      }
      if (version < held) {
        if (origin.isForeign) tally.logged += healing.answerWithRow(table, id, nowMs);
        return { outcome: "stale", stamp: stored };
      }
    }
    return this.#merge(read, writer, held, context);
  }

  /** Every column of ours, no other, and nothing noted: the version alone decides. */
  #isSimple(read: Upsert): boolean {
    const { columnNotes } = this.#parts;
    const { table, version } = read;
    return (
      read.unknown.size === 0 &&
      table.columns.every((column) => read.cells.has(column.key) || column === table.version) &&
      !columnNotes.hasNotes(table.key) &&
      columnNotes.isPlain(table.key, version)
    );
  }

  #insert(read: Upsert, writer: TableWriter): void {
    const { columnNotes } = this.#parts;
    const { table, id, version } = read;
    writer.insert(withVersion(read));
    const missing = table.columns.filter(
      (column) => !read.cells.has(column.key) && column !== table.version,
    );
    const isPlain = columnNotes.isPlain(table.key, version);
    if (missing.length === 0 && read.unknown.size === 0 && isPlain) return;
    const notes = new Map<string, ColumnNote>();
    const cells = this.#cellsOf(writer, id);
    for (const { key } of missing) {
      notes.set(key, { version: VERSION_NEVER, value: cells.get(key) ?? { kind: "null" } });
    }
    const source = contentOf(read, writer);
    for (const [key, value] of read.unknown)
      notes.set(key, { version, value, source, isOwn: true });
    columnNotes.replace(table.key, id, version, NO_NOTES, notes, cells);
  }

  #merge(read: Upsert, writer: TableWriter, version: number, context: WriteContext): Written {
    const { columnNotes, healing } = this.#parts;
    const { table, id } = read;
    const { origin, nowMs, tally } = context;
    const cells = this.#cellsOf(writer, id);
    const held: Held = { version, cells, notes: columnNotes.of(table.key, id, version, cells) };
    const merged = merge(held, { version: read.version, cells: contentOf(read, writer) });
    const written = new Map(merged.write);
    if (merged.version !== version) written.set(table.version.key, integer(merged.version));
    writer.update(id, written);
    columnNotes.replace(
      table.key,
      id,
      merged.version,
      held.notes,
      merged.notes,
      new Map([...cells, ...merged.write]),
    );
    if (merged.outcome === "took") healing.note(table, id, origin, false, nowMs);
    if (merged.isContested) {
      tally.logged += healing.answerTie(writer, id, merged.version, nowMs);
    } else if (read.version < version && origin.isForeign) {
      tally.logged += healing.answerWithRow(table, id, nowMs);
    }
    const outcome = merged.outcome === "stale" ? "stale" : "applied";
    const isLifted = merged.isContested && healing.isActive;
    return { outcome, stamp: isLifted ? merged.version + 1 : merged.version };
  }

  /** The stored row without its id and version. */
  #cellsOf(writer: TableWriter, id: string): Map<string, Value> {
    const cells = writer.content(id) ?? new Map<string, Value>();
    cells.delete(writer.table.id.key);
    cells.delete(writer.table.version.key);
    return cells;
  }

  // ── Deletes ─────────────────────────────────────────────────────────────────────────────────

  #writeDelete(read: Delete, change: ReceivedChange, context: WriteContext): Written {
    const { tombstones, healing, columnNotes, log, writerFor } = this.#parts;
    const { table, id, version } = read;
    const { origin, nowMs, tally } = context;
    const writer = writerFor(table);
    const stored = writer.stamp(id);
    const tombstone = tombstones.versionOf(table.key, id);
    if (version === undefined) return this.#writeLocalDelete(read, writer, stored, context);
    if (stored !== undefined && stored !== "odd" && version < stored) {
      if (tombstone === undefined || version > tombstone) {
        this.#resetColumns(writer, id, stored, version);
        tombstones.put(table.key, id, version, nowMs);
      }
      if (origin.isForeign) tally.logged += healing.answerWithRow(table, id, nowMs);
      return { outcome: "stale", stamp: stored };
    }
    if (stored === undefined && tombstone !== undefined && version <= tombstone) {
      if (version === tombstone) return { outcome: "applied", stamp: undefined };
      if (origin.isForeign) {
        const row = refusedRow(read, change);
        tally.logged += healing.answerWithDelete(table, id, tombstone, row, nowMs);
      }
      return { outcome: "stale", stamp: undefined };
    }
    // An entry of this row that is still on its way would bring it back where deletes are forgotten.
    const isOnItsWay = stored !== undefined && log.holds(table, id);
    if (stored !== undefined) writer.delete(id);
    if (isOnItsWay) {
      log.announceDelete(table, id, refusedRow(read, change));
      tally.logged++;
    }
    columnNotes.dropRow(table.key, id);
    tombstones.put(table.key, id, version, nowMs);
    healing.note(table, id, origin, true, nowMs);
    return { outcome: "applied", stamp: undefined };
  }

  /** A DELETE without a row: applied as ours, captured and shipped with the row found. */
  #writeLocalDelete(
    read: Delete,
    writer: TableWriter,
    stored: Stamp | undefined,
    context: WriteContext,
  ): Written {
    const { tombstones, log, columnNotes, healing } = this.#parts;
    const { table, id } = read;
    const { origin, nowMs, tally } = context;
    if (stored === undefined) {
      const isKnown = tombstones.versionOf(table.key, id) !== undefined;
      return { outcome: isKnown ? "applied" : "stale", stamp: undefined };
    }
    const version = stored === "odd" ? 0 : stored;
    log.announceRowAsDelete(table, id, version);
    tally.logged++;
    writer.delete(id);
    columnNotes.dropRow(table.key, id);
    tombstones.put(table.key, id, version, nowMs);
    healing.note(table, id, origin, true, nowMs);
    return { outcome: "applied", stamp: undefined };
  }

  /** A delete below a live row: columns that were last carried at or below it hold nothing any more. */
  #resetColumns(writer: TableWriter, id: string, stored: number, version: number): void {
    const { columnNotes } = this.#parts;
    const { table } = writer;
    if (!columnNotes.hasNotes(table.key) && columnNotes.isPlain(table.key, stored)) return;
    const cells = this.#cellsOf(writer, id);
    const notes = columnNotes.of(table.key, id, stored, cells);
    const { gone, kept } = resetNotes(notes, version);
    const known = gone.flatMap((key) => table.columnByKey.get(key) ?? []);
    writer.resetToDefault(id, known);
    const after = new Map(kept);
    const fresh = this.#cellsOf(writer, id);
    for (const { key } of known) {
      after.set(key, { version: VERSION_NEVER, value: fresh.get(key) ?? { kind: "null" } });
    }
    columnNotes.replace(table.key, id, stored, notes, after, fresh);
  }
}

/** All that the change carried, as it would be stored, without id and version. */
function contentOf(read: Upsert, writer: TableWriter): Map<string, Value> {
  const content = new Map([...writer.afterAffinity(read.cells), ...read.unknown]);
  content.delete(read.table.id.key);
  content.delete(read.table.version.key);
  return content;
}

interface Written {
  readonly outcome: Outcome;
  /** What the row's stamp must be now; undefined where it must be gone. */
  readonly stamp: Stamp | undefined;
}

/** The change's cells with its version as the stamp: NULL and a missing one are version 0. */
function withVersion(read: Upsert): Map<string, Value> {
  return new Map([...read.cells, [read.table.version.key, integer(read.version)]]);
}

/** The change's row as the log holds rows. */
function refusedRow(read: Upsert | Delete, change: ReceivedChange): string {
  if (read.cells.size === 0) return change.rowSource() ?? "null";
  return formatRow(read.table, read.cells, read.version ?? 0);
}
