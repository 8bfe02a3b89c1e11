/**
 * Carries out runs (apply-run.ts), a hundred rows to a statement. What is plainly newer, plainly stale or
 * exactly what is stored is done here; everything else is handed back for the row path, which is the
 * reference: test/store/apply-paths.test.ts holds the two against each other.
 */
import type { ApplyParts, ApplyTally } from "./apply-parts.ts";
import type { Deletes, Run, Upserts } from "./apply-run.ts";
import type { Origin } from "./healing.ts";
import { isRowFault } from "./row-fault.ts";
import type { ChunkVerdict, TableWriter } from "./table-writer.ts";

/** What a run needs of its batch; `at` is always a place in that batch. */
export interface ChunkContext {
  readonly isForeign: boolean;
  readonly originOf: (at: number) => Origin;
  readonly nowMs: number;
  readonly tally: ApplyTally;
  /** How many times as many changes as are in this run are likely to come, itself included. */
  readonly ahead: number;
  /** Decides the change at this place of the batch alone. */
  readonly alone: (at: number) => void;
}

/** Fewer deletes are not worth statements of their own. */
const DELETES_MIN = 8;

/** The chunk path. Runs inside the caller's transaction, with the syncing flag up. */
export class ChunkWriter {
  readonly #parts: ApplyParts;
  /** The last chunk held nothing new, as when a batch comes again: then the next is looked at first. */
  #expectsRepeats = false;

  constructor(parts: ApplyParts) {
    this.#parts = parts;
  }

  /** Deletes first: what they give up of a unique key may be taken by a row of the same run. */
  write(run: Run, context: ChunkContext): void {
    this.#delete(run, run.deletes, context);
    this.#upsert(run, context);
  }

  // ── Rows ────────────────────────────────────────────────────────────────────────────────────

  #upsert(run: Run, context: ChunkContext): void {
    if (run.upserts.at.length === 0) return;
    const writer = this.#parts.writerFor(run.table);
    const upserts = this.#sift(run, context);
    for (let from = 0; from < upserts.at.length; ) {
      const rows = writer.chunkSize(upserts.at.length - from);
      this.#upsertChunk(writer, upserts, from, rows, context);
      from += rows;
    }
  }

  /** Takes out what a tombstone or a note has a say in. */
  #sift(run: Run, context: ChunkContext): Upserts {
    const { tombstones, columnNotes } = this.#parts;
    const { table, upserts } = run;
    const noted = columnNotes.notedOf(table.key, upserts.ids);
    const dead = tombstones.versionsOf(table.key, upserts.ids);
    const lowest = upserts.versions.reduce((least, version) => Math.min(least, version));
    if (noted.size === 0 && dead.size === 0 && columnNotes.isPlain(table.key, lowest)) {
      return upserts;
    }
    const width = table.columns.length;
    const rest: Upserts = { at: [], ids: [], versions: [], bindings: [] };
    for (const [i, id] of upserts.ids.entries()) {
      const version = upserts.versions[i]!;
      const tombstone = dead.get(id);
      if (noted.has(id) || !columnNotes.isPlain(table.key, version)) {
        context.alone(upserts.at[i]!);
      } else if (tombstone !== undefined && version <= tombstone) {
        if (this.#mayAnswer(context)) context.alone(upserts.at[i]!);
      } else {
        rest.at.push(upserts.at[i]!);
        rest.ids.push(id);
        rest.versions.push(version);
        for (let k = i * width; k < (i + 1) * width; k++) rest.bindings.push(upserts.bindings[k]!);
      }
    }
    return rest;
  }

  /** Whether what loses here is answered (healing.ts, rule 1). */
  #mayAnswer(context: ChunkContext): boolean {
    return context.isForeign && this.#parts.healing.isActive;
  }

  #upsertChunk(
    writer: TableWriter,
    upserts: Upserts,
    from: number,
    rows: number,
    context: ChunkContext,
  ): void {
    const { db, healing } = this.#parts;
    const { table } = writer;
    const width = table.columns.length;
    const bindings = upserts.bindings.slice(from * width, (from + rows) * width);
    if (this.#expectsRepeats) {
      const verdicts = writer.compareChunk(rows, bindings);
      this.#expectsRepeats = !verdicts.includes("other");
      if (this.#expectsRepeats) {
        this.#count(verdicts, upserts, from, context);
        return;
      }
    }
    this.#parts.pause.begin(table, upserts.at.length * context.ahead);
    let written: number;
    try {
      if (healing.isActive) {
        const ids = writer.upsertChunkReturning(rows, bindings);
        const place = new Map(upserts.ids.slice(from, from + rows).map((id, i) => [id, i]));
        const origins = ids.map((id) => context.originOf(upserts.at[from + place.get(id)!]!));
        healing.noteMany(table, ids, origins, false, context.nowMs);
        written = ids.length;
      } else written = writer.upsertChunk(rows, bindings);
    } catch (error) {
      if (!isRowFault(error) || !db.inTransaction) throw error;
      for (let i = from; i < from + rows; i++) context.alone(upserts.at[i]!);
      return;
    }
    if (written === rows) {
      context.tally.applied += rows;
      return;
    }
    this.#expectsRepeats = written === 0;
    this.#count(writer.compareChunk(rows, bindings), upserts, from, context);
  }

  /** What was not written: held already, stale, or for the row path. */
  #count(
    verdicts: readonly ChunkVerdict[],
    upserts: Upserts,
    from: number,
    context: ChunkContext,
  ): void {
    for (const [i, verdict] of verdicts.entries()) {
      if (verdict === "equal") context.tally.applied++;
      else if (verdict === "other" || this.#mayAnswer(context))
        context.alone(upserts.at[from + i]!);
    }
  }

  // ── Deletes ─────────────────────────────────────────────────────────────────────────────────

  #delete(run: Run, deletes: Deletes, context: ChunkContext): void {
    const { tombstones, columnNotes, log, healing, writerFor } = this.#parts;
    const { table } = run;
    const { at, ids, versions } = deletes;
    if (at.length < DELETES_MIN) {
      for (const each of at) context.alone(each);
      return;
    }
    const writer = writerFor(table);
    const stored = writer.stamps(ids);
    const dead = tombstones.versionsOf(table.key, ids);
    const held = log.heldOf(table, [...stored.keys()]);
    const noted = columnNotes.notedOf(table.key, ids);
    const gone: { id: string; version: number; at: number }[] = [];
    for (const [i, id] of ids.entries()) {
      const version = versions[i]!;
      const stamp = stored.get(id);
      const tombstone = dead.get(id);
      if (noted.has(id) || held.has(id)) context.alone(at[i]!);
      else if (stamp !== undefined && stamp !== "odd" && version < stamp) context.alone(at[i]!);
      else if (stamp === undefined && tombstone !== undefined && version <= tombstone) {
        if (version === tombstone) context.tally.applied++;
        else if (this.#mayAnswer(context)) context.alone(at[i]!);
      } else gone.push({ id, version, at: at[i]! });
    }
    if (gone.length === 0) return;
    const there = gone.filter(({ id }) => stored.has(id)).map(({ id }) => id);
    if (there.length > 0) {
      this.#parts.pause.begin(table, there.length * context.ahead);
      writer.deleteMany(there);
    }
    tombstones.putMany(table.key, gone, context.nowMs);
    if (healing.isActive) {
      const origins = gone.map((each) => context.originOf(each.at));
      healing.noteMany(
        table,
        gone.map(({ id }) => id),
        origins,
        true,
        context.nowMs,
      );
    }
    context.tally.applied += gone.length;
  }
}
