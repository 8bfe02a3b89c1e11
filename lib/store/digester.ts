/**
 * Answers questions about the content of a file, as often as other nodes ask, without ever being in
 * the way: whole tables are read in slices of a few milliseconds, one read at a time, over connections
 * that only read. Runs in a thread of its own (shipper/digest-worker.ts).
 *
 * What a reading found is kept for a while under its name, a *snapshot*: whoever saw a hash that differs
 * can go down into it without the table being read again. Keys and rows are read as they are now; a
 * difference that has healed meanwhile is none.
 */
import type { Database } from "bun:sqlite";
import type { Clock, Timers } from "../base/clock.ts";
import { RequestError } from "../base/errors.ts";
import type { Bucket, KeyRange, KeyState } from "../protocol/digest.ts";
import {
  type Digest,
  type DigestTable,
  digestRange,
  digestTombstones,
  keysIn,
  keysOf,
  type Pace,
} from "./digest.ts";
import { openReader } from "./open.ts";

/** One table, as of one moment. */
export interface TableSummary {
  readonly table: string;
  /** Lower-cased, in order, without the id. */
  readonly columns: readonly string[];
  readonly rows: number;
  readonly hash: string;
  readonly tombstones: number;
  readonly tombstoneHash: string;
}

/** A range of a kept snapshot, cut into buckets. */
export interface RangeBuckets extends KeyRange {
  readonly buckets: readonly Bucket[];
  /** It cannot be cut further. */
  readonly isFinest: boolean;
}

/** The keys of a range as they are now. */
export interface RangeKeys extends KeyRange {
  readonly keys: readonly KeyState[];
  /** Where reading ended before the end of the range. */
  readonly through: string | undefined;
}

/** It opens connections of its own to `path`, and closes them. */
export interface DigesterOptions {
  readonly path: string;
  readonly clock: Pick<Clock, "monotonicMs">;
  readonly timers: Timers;
}

/** After so long it lets others in: commands of the main thread must not wait. */
const SLICE_MS = 5;
/** Keys in one answer: some 800 KB. */
const KEYS_MAX = 10_000;
/** Snapshots and groups kept: some 60 MB at most, until the thread ends. */
const SNAPSHOTS_MAX = 8;
const GROUPS_KEPT_MAX = 400_000;
/** Holds the inner pages of an index of ten million keys. */
const CACHE_KIB = 32_768;

interface Kept {
  readonly table: DigestTable;
  readonly digest: Digest;
}

/** A snapshot that is not kept any more is a RequestError, 409. Must be closed. */
export class Digester {
  readonly #options: DigesterOptions;
  /** By name, the newest last; in each by table key. */
  readonly #snapshots = new Map<string, ReadonlyMap<string, Kept>>();
  #scan: Database | undefined;
  #look: Database | undefined;
  #scanning: Promise<unknown> = Promise.resolve();
  #isClosed = false;

  constructor(options: DigesterOptions) {
    this.#options = options;
  }

  /** Reads these tables whole, in one read transaction. `isSlow`: takes half of a core at most. */
  read(snapshot: string, tables: readonly DigestTable[], isSlow: boolean): Promise<TableSummary[]> {
    const reading = this.#scanning.then(() => this.#read(snapshot, tables, isSlow));
    this.#scanning = reading.catch(() => undefined);
    return reading;
  }

  async #read(
    snapshot: string,
    tables: readonly DigestTable[],
    isSlow: boolean,
  ): Promise<TableSummary[]> {
    const pace = this.#pace(isSlow);
    this.#scan ??= this.#open();
    const db = this.#scan;
    const kept = new Map<string, Kept>();
    const summaries: TableSummary[] = [];
    db.run("BEGIN");
    try {
      for (const table of tables) {
        const digest = await digestRange(db, table, undefined, pace);
        const tombstones = await digestTombstones(db, table.key, pace);
        kept.set(table.key, { table, digest });
        summaries.push({
          table: table.name,
          columns: table.columns.map(({ key }) => key),
          rows: digest.rows,
          hash: digest.hash,
          tombstones: tombstones.count,
          tombstoneHash: tombstones.hash,
        });
      }
    } finally {
      db.run("COMMIT");
    }
    this.#keep(snapshot, kept);
    return summaries;
  }

  /** Cuts ranges of a snapshot into about `most` buckets each. */
  buckets(
    snapshot: string,
    tableKey: string,
    ranges: readonly KeyRange[],
    most: number,
  ): RangeBuckets[] {
    const { digest } = this.#find(snapshot, tableKey);
    return ranges.map((range) => {
      const part = digest.within(range);
      if (part === undefined) throw new RequestError(400, "from and to must be cuts of a digest");
      const { buckets, finest } = part.buckets(most);
      return { ...range, buckets, isFinest: finest };
    });
  }

  /** The keys in these ranges, as many ranges as fit; a last one may end early. */
  keysIn(snapshot: string, tableKey: string, ranges: readonly KeyRange[]): RangeKeys[] {
    const { table } = this.#find(snapshot, tableKey);
    const answers: RangeKeys[] = [];
    let left = KEYS_MAX;
    for (const range of ranges) {
      if (left <= 0) break;
      const { keys, through } = keysIn(this.reader, table, range, left);
      answers.push({ ...range, keys, through });
      left -= keys.length;
      if (through !== undefined) break;
    }
    return answers;
  }

  keysOf(table: DigestTable, ids: readonly string[]): KeyState[] {
    return keysOf(this.reader, table, ids);
  }

  /** For short looks: it sees the newest commit, also while a whole table is being read. */
  get reader(): Database {
    this.#look ??= this.#open();
    return this.#look;
  }

  /** Resolves when no reading is under way any more; then everything is closed. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#scanning;
    this.#look?.close(true);
    this.#scan?.close(true);
  }

  #open(): Database {
    const db = openReader(this.#options.path);
    db.run(`PRAGMA cache_size = -${CACHE_KIB}`);
    return db;
  }

  #find(snapshot: string, tableKey: string): Kept {
    const kept = this.#snapshots.get(snapshot)?.get(tableKey);
    if (kept === undefined) {
      throw new RequestError(409, "that snapshot is not kept any more; begin again");
    }
    return kept;
  }

  #keep(snapshot: string, tables: ReadonlyMap<string, Kept>): void {
    this.#snapshots.set(snapshot, tables);
    let groups = 0;
    for (const [at, [name, kept]] of [...this.#snapshots].reverse().entries()) {
      for (const { digest } of kept.values()) groups += digest.groups;
      if (at > 0 && (at >= SNAPSHOTS_MAX || groups > GROUPS_KEPT_MAX)) this.#snapshots.delete(name);
    }
  }

  #pace(isSlow: boolean): Pace {
    const { clock, timers } = this.#options;
    let sinceMs = clock.monotonicMs();
    return () => {
      if (this.#isClosed) throw new RequestError(503, "the node is stopping");
      const workedMs = clock.monotonicMs() - sinceMs;
      if (workedMs < SLICE_MS) return undefined;
      return new Promise<void>((resolve) => {
        const goOn = () => {
          sinceMs = clock.monotonicMs();
          resolve();
        };
        if (isSlow) timers.after(workedMs, goOn);
        else timers.soon(goOn);
      });
    };
  }
}
