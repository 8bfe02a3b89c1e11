/**
 * Parked changes tried again, and the decision between rows that clash on a unique key (DESIGN.md,
 * "UNIQUE"). A change that clashes waits: other rows may be on their way that make room. After a minute
 * the lower of the two is deleted like a row deleted here, so that every node hears of it and all of ours
 * decide the same.
 */
import { parseChange } from "../protocol/batch.ts";
import type { ApplyParts, ApplyTally, Failure, Guilty, Outcome } from "./apply-parts.ts";
import type { ChangeWriter } from "./change-writer.ts";
import type { Parked } from "./dead-letters.ts";
import { formatRow } from "./log-row.ts";
import { readChange, type Upsert } from "./read-change.ts";
import { failureOf, isRowFault } from "./row-fault.ts";
import { clashingIds, compareRivals, type Rival } from "./unique-clash.ts";

/** How long a change that clashes on another unique key waits for the other to move. */
const UNIQUE_WAIT_MS = 60_000;
const OUTSIDER_REASON =
  "a row that stays out of syncing, since its id is no text, has the same value of a unique key";
/** Rows that trade places on a unique key in one go; a chain this long is nobody's transaction. */
const TRADE_ROWS_MAX = 100;

interface RetryContext {
  readonly nowMs: number;
  readonly tally: ApplyTally;
  readonly guilty: Guilty;
}

/** Part of the Applier; holds nothing between two rounds. */
export class Retrier {
  readonly #parts: ApplyParts;
  readonly #changes: ChangeWriter;

  constructor(parts: ApplyParts, changes: ChangeWriter) {
    this.#parts = parts;
    this.#changes = changes;
  }

  /** With the syncing flag up: what waits for another row, and what has come due. */
  run(context: RetryContext): void {
    const { deadLetters } = this.#parts;
    for (const parked of deadLetters.due(context.nowMs)) this.#settleOne(parked, context);
    let waiting = deadLetters.waitingOnUnique();
    // One that found its place may have made room for the next.
    for (let before = Number.POSITIVE_INFINITY; waiting.length > 0 && waiting.length < before; ) {
      before = waiting.length;
      waiting = waiting.filter((parked) => !this.#settleOne(parked, context));
    }
    if (waiting.length === 0) return;
    const traded = new Set<number>();
    for (const parked of waiting) {
      if (!traded.has(parked.deadId)) for (const id of this.#trade(parked, context)) traded.add(id);
    }
    for (const parked of waiting) {
      const isOver = context.nowMs - parked.parkedAtMs >= UNIQUE_WAIT_MS;
      if (!isOver || traded.has(parked.deadId)) continue;
      // The decision before may have made room for it.
      if (!this.#settleOne(parked, context)) this.#decide(parked, context);
    }
  }

  /** Whether it is parked no more. */
  #settleOne(parked: Parked, context: RetryContext): boolean {
    const { deadLetters } = this.#parts;
    const outcome = this.#tryOne(parked, context);
    if (typeof outcome === "string") deadLetters.remove(parked.deadId);
    else deadLetters.postpone(parked, outcome, context.nowMs);
    return typeof outcome === "string";
  }

  #tryOne(parked: Parked, context: RetryContext): Outcome | Failure {
    const reason = context.guilty.retries.get(parked.deadId);
    if (reason !== undefined) return { code: "trigger", reason };
    const change = parseChange(parked.change);
    const read = this.#read(parked, context.nowMs);
    if (read.kind === "park") return read;
    // What was kept stays kept: --tables may say otherwise tomorrow.
    if (read.kind === "left-out") {
      return { code: "unknown-table", reason: "--tables leaves the table out" };
    }
    const outcome = this.#changes.write(read, change, {
      origin: parked.origin,
      nowMs: context.nowMs,
      tally: context.tally,
      onRollback: (text) => context.guilty.retries.set(parked.deadId, text),
    });
    // Foreign peers had it when it came, and were told otherwise while it waited here.
    if (outcome === "applied") this.#parts.healing.contest(read.table, read.id, context.nowMs);
    return outcome;
  }

  #read(parked: Parked, nowMs: number): ReturnType<typeof readChange> {
    return readChange(parseChange(parked.change), {
      survey: this.#parts.survey(),
      nowMs,
      isOurs: !parked.origin.isForeign,
    });
  }

  // ── Trading places ──────────────────────────────────────────────────────────────────────────

  /**
   * Rows that exchange a unique value, two or in a ring, can each only be written when the others are:
   * where every row in the way has a newer change waiting, all of them are written at once. Returns the
   * dead_ids of those that are.
   */
  #trade(first: Parked, context: RetryContext): number[] {
    const ring = this.#ringOf(first, context.nowMs);
    if (ring === undefined) return [];
    const { db, deadLetters, log, writerFor } = this.#parts;
    const loggedBefore = context.tally.logged;
    db.run("SAVEPOINT hooksync_trade");
    try {
      for (const { read } of ring) writerFor(read.table).delete(read.id);
      const isWritten = ring.every(({ parked }) => this.#tryOne(parked, context) === "applied");
      if (isWritten) {
        for (const { parked } of ring) deadLetters.remove(parked.deadId);
        db.run("RELEASE hooksync_trade");
        return ring.map(({ parked }) => parked.deadId);
      }
    } catch (error) {
      if (!isRowFault(error) || !db.inTransaction) throw error;
    }
    db.run("ROLLBACK TO hooksync_trade");
    db.run("RELEASE hooksync_trade");
    log.forget();
    context.tally.logged = loggedBefore;
    return [];
  }

  /** The waiting changes that stand in each other's way and in nobody else's; whole rows only. */
  #ringOf(first: Parked, nowMs: number): { parked: Parked; read: Upsert }[] | undefined {
    const { db, deadLetters, columnNotes, writerFor } = this.#parts;
    const ring = new Map<string, { parked: Parked; read: Upsert }>();
    const next: Parked[] = [first];
    for (let parked = next.pop(); parked !== undefined; parked = next.pop()) {
      const read = this.#read(parked, nowMs);
      if (read.kind !== "upsert" || ring.size >= TRADE_ROWS_MAX) return undefined;
      const writer = writerFor(read.table);
      const stored = writer.stamp(read.id);
      const isWhole = read.table.columns.every((column) => read.cells.has(column.key));
      // What a row has beside its whole new self would be lost with it.
      if (!isWhole || columnNotes.hasNotes(read.table.key)) return undefined;
      if (stored !== undefined && stored !== "odd" && stored >= read.version) return undefined;
      ring.set(read.id, { parked, read });
      for (const id of clashingIds(db, read, writer.content(read.id))) {
        if (id === undefined) return undefined;
        if (ring.has(id)) continue;
        const other = deadLetters.waitingOf(parked.table!, id);
        if (other === undefined) return undefined;
        next.push(other);
      }
    }
    return [...ring.values()];
  }

  // ── Deciding ────────────────────────────────────────────────────────────────────────────────

  /**
   * It waited long enough: against the highest of the rows it clashes with, the lower (version, content,
   * id) is deleted, at the version and with the content of the losing change.
   */
  #decide(parked: Parked, context: RetryContext): void {
    const { db, deadLetters, log } = this.#parts;
    const read = this.#read(parked, context.nowMs);
    if (read.kind !== "upsert") return;
    const loggedBefore = context.tally.logged;
    db.run("SAVEPOINT hooksync_decision");
    let failure: Failure | undefined;
    try {
      failure = this.#deleteLosers(read, parked, context);
    } catch (error) {
      // A user's trigger forbids deleting the loser.
      if (!isRowFault(error) || !db.inTransaction) throw error;
      failure = failureOf(error);
    }
    if (failure) {
      db.run("ROLLBACK TO hooksync_decision");
      log.forget();
      context.tally.logged = loggedBefore;
      const code = failure.code === "unique" ? "constraint" : failure.code;
      deadLetters.postpone(parked, { ...failure, code }, context.nowMs);
    } else deadLetters.remove(parked.deadId);
    db.run("RELEASE hooksync_decision");
  }

  #deleteLosers(read: Upsert, parked: Parked, context: RetryContext): Failure | undefined {
    const { db, deadLetters, tombstones, log, columnNotes, healing, writerFor } = this.#parts;
    const { table } = read;
    const writer = writerFor(table);
    const rivals: Rival[] = [];
    for (const id of clashingIds(db, read, writer.content(read.id))) {
      // Nobody else can have that row: no decision of theirs would be this one.
      if (id === undefined) return { code: "constraint", reason: OUTSIDER_REASON };
      const stamp = writer.stamp(id)!;
      rivals.push({ id, content: writer.content(id)!, version: stamp === "odd" ? 0 : stamp });
    }
    const own: Rival = {
      id: read.id,
      content: writer.afterAffinity(read.cells),
      version: read.version,
    };
    const [first, ...others] = rivals;
    if (first === undefined) return { code: "constraint", reason: "it clashes on a unique key" };
    const highest = others.reduce(
      (best, each) => (compareRivals(each, best) > 0 ? each : best),
      first,
    );
    const losers = compareRivals(own, highest) > 0 ? rivals : [own];
    for (const loser of losers) {
      const row = formatRow(table, loser.content, loser.version);
      if (writer.stamp(loser.id) !== undefined) writer.delete(loser.id);
      log.announceDelete(table, loser.id, row);
      context.tally.logged++;
      columnNotes.dropRow(table.key, loser.id);
      tombstones.put(table.key, loser.id, loser.version, context.nowMs);
      healing.note(table, loser.id, parked.origin, true, context.nowMs);
      const winner = loser === own ? highest.id : own.id;
      deadLetters.keepLoser(
        {
          table: table.name,
          id: loser.id,
          version: loser.version,
          change: `{"op":"DELETE","table":${JSON.stringify(table.name)},"row":${row},"old_id":${JSON.stringify(loser.id)}}`,
          reason: `it clashed on a unique key with ${winner}, which is higher`,
        },
        context.nowMs,
      );
    }
    if (losers.includes(own)) return undefined;
    const outcome = this.#tryOne(parked, context);
    return typeof outcome === "string" ? undefined : outcome;
  }
}
