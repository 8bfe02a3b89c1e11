/**
 * Applying received changes (DESIGN.md, "Apply", "Winner", "Unknown columns", "UNIQUE"). Every change
 * ends in one of four ways: applied, stale, parked with its reason, or counted as left out.
 *
 * Two paths with one meaning. The row path (change-writer.ts) decides each change alone and is the
 * reference. The chunk path (chunk-writer.ts) takes what is usual, whole rows and plain deletes, a hundred
 * to a statement.
 *
 * Invariants:
 *   A1  nothing applied is captured: the syncing flag is up, inside the transaction only.
 *   A2  one change that fails leaves no trace but its parking; its neighbours apply.
 *   A3  a repeat of any change, in any order, changes nothing.
 */
import type { Database } from "bun:sqlite";
import { isObject, member, type ReceivedChange } from "../protocol/batch.ts";
import type { ApplyParts, ApplyTally, Failure, Guilty, Outcome, Sender } from "./apply-parts.ts";
import { RunReader } from "./apply-run.ts";
import { ChangeWriter } from "./change-writer.ts";
import { ChunkWriter } from "./chunk-writer.ts";
import { followNewColumns } from "./new-columns.ts";
import { type Delete, type Parking, readChange, type Upsert } from "./read-change.ts";
import { Retrier } from "./retry.ts";
import type { SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";
import { TableWriter } from "./table-writer.ts";

export type { ApplyEvent } from "./apply-parts.ts";

/** The parts it is given; the writers of tables it makes itself. */
export type ApplierOptions = Omit<ApplyParts, "writerFor">;

/** What of a batch is applied in one transaction, by whom it was sent. */
interface Slice {
  readonly batch: readonly ReceivedChange[];
  readonly sender: Sender;
  readonly nowMs: number;
  readonly tally: ApplyTally;
  readonly guilty: Guilty;
}

/** `ahead`: how many changes of the batch there are for each of the slice, itself included. */
type SliceInBatch = Slice & { readonly ahead: number };

/** One per writing connection. Everything runs inside the caller's transaction. */
export class Applier {
  readonly #db: Database;
  readonly #parts: ApplyParts;
  readonly #changes: ChangeWriter;
  readonly #chunks: ChunkWriter;
  readonly #retrier: Retrier;
  readonly #writers = new WeakMap<SyncedTable, TableWriter>();

  constructor(options: ApplierOptions) {
    this.#db = options.db;
    this.#parts = { ...options, writerFor: (table) => this.writerFor(table) };
    this.#changes = new ChangeWriter(this.#parts);
    this.#chunks = new ChunkWriter(this.#parts);
    this.#retrier = new Retrier(this.#parts, this.#changes);
  }

  writerFor(table: SyncedTable): TableWriter {
    let writer = this.#writers.get(table);
    if (!writer) {
      writer = new TableWriter(this.#db, table);
      this.#writers.set(table, writer);
    }
    return writer;
  }

  /**
   * Applies `changes[from..to)` inside the caller's transaction. After the last slice that is to be in
   * it, `endPart` must be called.
   */
  apply(from: number, to: number, given: Slice): void {
    const { batch, sender, nowMs, guilty } = given;
    const slice = { ...given, ahead: (batch.length - from) / (to - from) };
    this.#raiseFlag();
    const survey = this.#parts.survey();
    const reader = new RunReader({ survey, nowMs, isOurs: sender.isOurs });
    for (let at = from; at < to; at++) {
      if (sender.superseded.has(at)) continue;
      const isUnusual = guilty.changes.has(at) || sender.superseded.by(at).length > 0;
      const added = isUnusual ? "unfit" : reader.add(batch[at]!, at);
      if (added === "unfit") this.#applyOne(at, slice, reader);
      else if (added !== "added") {
        this.#writeRuns(reader, slice, added.full);
        at--;
      }
    }
    this.#writeRuns(reader, slice);
    this.#lowerFlag();
  }

  /** Puts back the triggers that writing many rows took away. */
  endPart(): void {
    this.#parts.pause.end();
  }

  /** After a batch: constraints that other rows may have lifted meanwhile, and what has come due. */
  retryParked(nowMs: number, tally: ApplyTally, guilty: Guilty): void {
    const { deadLetters } = this.#parts;
    const dueMs = deadLetters.nextDueMs();
    if (!deadLetters.hasWaiting && (dueMs === undefined || dueMs > nowMs)) return;
    this.#raiseFlag();
    this.#retrier.run({
      nowMs,
      tally,
      guilty,
    });
    this.#lowerFlag();
  }

  /** The schema changed: columns that appeared, for which values may have come before. */
  followNewColumns(nowMs: number): void {
    this.#raiseFlag();
    for (const table of this.#parts.survey().synced.values()) {
      followNewColumns(this.#parts, table, nowMs);
    }
    this.#lowerFlag();
  }

  #raiseFlag(): void {
    this.#db.query("UPDATE _meta SET value = 1 WHERE key = 'syncing'").run();
  }

  #lowerFlag(): void {
    this.#db.query("UPDATE _meta SET value = 0 WHERE key = 'syncing'").run();
  }

  #writeRuns(reader: RunReader, slice: SliceInBatch, table?: SyncedTable): void {
    const { sender, nowMs, tally, ahead } = slice;
    for (const run of reader.take(table)) {
      this.#chunks.write(run, {
        isForeign: !sender.isOurs,
        originOf: sender.originOf,
        nowMs,
        tally,
        ahead,
        alone: (at) => this.#applyOne(at, slice),
      });
    }
  }

  // ── Single changes ──────────────────────────────────────────────────────────────────────────

  #applyOne(at: number, slice: SliceInBatch, reader?: RunReader): void {
    const outcome = this.#decide(at, slice, reader);
    const [before, ...earlier] = slice.sender.superseded.by(at);
    if (before === undefined) return;
    // What it replaced is held with it; or is all there is, where it could not be written.
    if (outcome === "parked") this.#applyOne(before, slice);
    else if (outcome === "applied") slice.tally.applied += 1 + earlier.length;
  }

  #decide(at: number, slice: SliceInBatch, reader: RunReader | undefined): Outcome {
    const { tally } = slice;
    const outcome = this.#tryOne(at, slice, reader);
    if (outcome === "applied") tally.applied++;
    if (outcome === "parked") tally.parked++;
    if (outcome === "left-out") tally.leftOut++;
    return outcome;
  }

  #tryOne(at: number, slice: SliceInBatch, reader: RunReader | undefined): Outcome {
    const { batch, sender, nowMs, tally, guilty } = slice;
    const change = batch[at]!;
    const survey = this.#parts.survey();
    const read = readChange(change, { survey, nowMs, isOurs: sender.isOurs });
    if (read.kind === "park") return this.#park(at, read, slice);
    if (read.kind === "left-out") return this.#leaveOut(read.table, sender.name);
    const reason = guilty.changes.get(at);
    if (reason !== undefined) {
      return this.#park(at, parkingOf(read, change, { code: "trigger", reason }), slice);
    }
    if (reader?.overtakes(read.table, read.id)) this.#writeRuns(reader, slice, read.table);
    const outcome = this.#changes.write(read, change, {
      origin: sender.originOf(at),
      nowMs,
      tally,
      onRollback: (text) => guilty.changes.set(at, text),
    });
    if (typeof outcome === "string") return outcome;
    return this.#park(at, parkingOf(read, change, outcome), slice);
  }

  // ── Parking ─────────────────────────────────────────────────────────────────────────────────

  #park(at: number, parking: Parking, slice: Slice): Outcome {
    const { batch, sender, nowMs } = slice;
    const { deadLetters, onEvent } = this.#parts;
    const { table, reason } = parking;
    const from = { peer: sender.name, origin: sender.originOf(at) };
    deadLetters.park(parking, from, batch[at]!.source(), nowMs);
    onEvent({ kind: "parked", peer: sender.name, table: table ?? "", reason });
    return "parked";
  }

  #leaveOut(table: string, peer: string): Outcome {
    this.#db
      .query(
        `INSERT INTO _hooksync_left_out(peer, tbl, changes) VALUES (?, ?, 1)
         ON CONFLICT(peer, tbl) DO UPDATE SET changes = changes + 1`,
      )
      .run(peer, nameKey(table));
    this.#parts.onEvent({ kind: "left-out", peer, table, reason: "--tables leaves it out" });
    return "left-out";
  }
}

function parkingOf(read: Upsert | Delete, change: ReceivedChange, failure: Failure): Parking {
  const op = isObject(change.value) ? member(change.value, "op") : undefined;
  return {
    kind: "park",
    ...failure,
    op: typeof op === "string" ? op : null,
    table: read.table.name,
    id: read.id,
    version: read.version ?? null,
  };
}
