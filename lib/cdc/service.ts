/**
 * The log of a running node's file: keeps it settled, serves it to followers, remembers the named
 * ones, and deletes what nobody needs. It has a writing connection of its own, used for moments only;
 * everything the node and other programs write is logged by the file's triggers.
 */
import { Database } from "bun:sqlite";
import { dirname } from "node:path";
import type { Clock, Timers } from "../base/clock.ts";
import { isBusy } from "../base/errors.ts";
import type { Random } from "../base/random.ts";
import type { Watermark } from "./change.ts";
import { COMMIT } from "./log-entry.ts";
import { SqliteCapture } from "./sqlite-capture.ts";
import { schemaVersion } from "./sqlite-table.ts";
import { type ServeOptions, serveCdc } from "./stream.ts";

/** Another program's transaction is waited for when the log is opened, never while the node runs. */
const OPEN_BUSY_MS = 5_000;
const BUSY_MS = 5;

/** A stream ends so often, and its follower asks again from where it is: that is what is kept. */
const STREAM_MS = 300_000;
/** A frame is made at one go, while the node answers nobody. */
const NODE_FRAME_BYTES = 256 * 1024;
const PRUNE_PAUSE_MS = 10_000;
/** Rows, spread over the log, whose size stands for all. */
const SAMPLE_ROWS = 1_000;
/** What a row takes beside its images. */
const ROW_BYTES = 60;
/** Names take a row each and hold the log back. */
const FOLLOWERS_MAX = 256;

const CREATE_SQL = `
  CREATE TABLE IF NOT EXISTS _cdc_follower (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL
  )`;

const SEEN_SQL = `
  INSERT INTO _cdc_follower (name, position, seen_ms)
  VALUES (?1, ?2, ?3)
  ON CONFLICT (name) DO UPDATE
  SET position = ?2, seen_ms = ?3`;

interface LogEnds {
  readonly oldest: number;
  readonly newest: number;
}

interface Sample {
  readonly id: number;
  readonly bytes: number;
}

type Samples = [newest: number, step: number, oldest: number];

/** Lengths in bytes are known without reading what is that long. */
const SAMPLE_SQL = `
  WITH RECURSIVE at (id) AS (SELECT ?1 UNION ALL SELECT id - ?2 FROM at WHERE id - ?2 >= ?3)
  SELECT at.id AS id, ${ROW_BYTES} + coalesce(octet_length("before"), 0)
    + coalesce(octet_length("after"), 0) + coalesce(octet_length(updates), 0) AS bytes
  FROM at JOIN _cdc ON change_id = at.id`;

/** Kept in a node's file; `behind` in rows of the log, by what it asked for or was sent since. */
export interface NamedFollower {
  readonly isConnected: boolean;
  readonly name: string;
  readonly position: number;
  readonly behind: number;
  readonly seenMs: number;
}

/** Where the log is, and how much of it is kept. */
export interface CdcServiceOptions {
  readonly path: string;
  /** What is older is deleted, whoever still needs it. */
  readonly keepMs: number;
  readonly keepBytes: number;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
  /** Another program had taken the log out of the file: it is another one now, which nobody has followed. */
  readonly onBegunAnew?: () => void;
  /** A stream ended because the file could not be read; its follower is told, too. */
  readonly onFailure?: (error: unknown) => void;
}

/** The log of one node's file, from start to stop. */
export class CdcService {
  readonly #options: CdcServiceOptions;
  readonly #db: Database;
  #capture: SqliteCapture;
  /** The schema's version with which the log's tables were all seen. */
  #wholeAt: number | undefined;
  readonly #ending = new AbortController();
  /** The streams that are open, by their followers' names: up to where they were sent. */
  readonly #open = new Map<string, { sent: number }>();
  #pruneAtMs = 0;
  /** Named followers that could not be noted yet, with their positions: somebody held the file. */
  readonly #unnoted = new Map<string, bigint>();
  #isPruning = false;

  /** Opens the log, or begins it. Throws a CdcError where the file cannot be followed. */
  static open(options: CdcServiceOptions): CdcService {
    const db = new Database(options.path);
    try {
      db.run(`PRAGMA busy_timeout = ${OPEN_BUSY_MS}`);
      const service = new CdcService(options, db, SqliteCapture.openUnsettled(db, options.random));
      db.run(CREATE_SQL);
      service.#capture.settlePart();
      db.run(`PRAGMA busy_timeout = ${BUSY_MS}`);
      return service;
    } catch (error) {
      db.close();
      throw error;
    }
  }

  private constructor(options: CdcServiceOptions, db: Database, capture: SqliteCapture) {
    this.#options = options;
    this.#db = db;
    this.#capture = capture;
  }

  /** A step of the node's timer: settles what others altered, deletes what nobody needs. */
  look(): void {
    try {
      this.#restore();
      for (const [name, position] of this.#unnoted) this.#note(name, position);
      this.#capture.settlePart();
      const nowMs = this.#options.clock.monotonicMs();
      if (!this.#isPruning && nowMs < this.#pruneAtMs) return;
      this.#pruneAtMs = nowMs + PRUNE_PAUSE_MS;
      this.#isPruning = this.#prune();
    } catch (error) {
      // Somebody else writes: the next step comes soon.
      if (!isBusy(error)) throw error;
    }
  }

  /** Another program may have dropped any of our tables. Who follows a log that is gone is told so. */
  #restore(): void {
    const version = schemaVersion(this.#db);
    if (version === this.#wholeAt) return;
    if (!SqliteCapture.isWhole(this.#db)) {
      this.#capture = SqliteCapture.openUnsettled(this.#db, this.#options.random);
      // Places in the other log.
      this.#unnoted.clear();
      this.#options.onBegunAnew?.();
    }
    this.#db.run(CREATE_SQL);
    this.#wholeAt = version;
  }

  /** A follower's stream; under its name its position is kept, and holds the log. */
  stream(after: Watermark | null, name: string | null, once: boolean): ReadableStream<Uint8Array> {
    const { path, clock, timers, onFailure } = this.#options;
    if (name !== null) this.#see(name, after);
    const limits = { lifeMs: STREAM_MS, once, frameBytesMax: NODE_FRAME_BYTES };
    const { signal } = this.#ending;
    const told = {
      ...(name === null ? {} : this.#watch(name, after)),
      ...(onFailure === undefined ? {} : { onFailure }),
    };
    const options = { ...limits, ...told, folder: dirname(path), clock, timers, signal };
    return serveCdc(() => new Database(path, { readonly: true }), after, options);
  }

  /** The named followers, by name. */
  followers(): readonly NamedFollower[] {
    // Until the next step, where the log is no more.
    if (schemaVersion(this.#db) !== this.#wholeAt && !this.#isAllThere()) return [];
    const last = this.#db
      .query<{ id: number; type: number }, []>(
        "SELECT change_id AS id, change_type AS type FROM _cdc ORDER BY change_id DESC LIMIT 1",
      )
      .get();
    const newest = last?.id ?? 0;
    // One that was there before the COMMIT was written lacks nothing.
    const enough = last?.type === COMMIT ? newest - 1 : newest;
    return this.#db
      .query<{ name: string; position: number; seen_ms: number }, []>(
        "SELECT name, position, seen_ms FROM _cdc_follower ORDER BY name",
      )
      .all()
      .map(({ name, position, seen_ms: seenMs }) => {
        const open = this.#open.get(name);
        const at = Math.max(position, open?.sent ?? 0);
        const behind = at >= enough ? 0 : newest - at;
        return { name, position, behind, seenMs, isConnected: open !== undefined };
      });
  }

  #isAllThere(): boolean {
    const names = this.#db.query("SELECT 1 FROM sqlite_schema WHERE name = '_cdc_follower'").get();
    return names !== null && SqliteCapture.isWhole(this.#db);
  }

  /** Of two streams under one name the later counts. */
  #watch(name: string, after: Watermark | null): Pick<ServeOptions, "onSent" | "onEnd"> {
    const open = { sent: Number(after?.commit ?? 0) };
    this.#open.set(name, open);
    return {
      onSent: (commit) => {
        open.sent = Number(commit);
      },
      onEnd: () => {
        if (this.#open.get(name) === open) this.#open.delete(name);
      },
    };
  }

  /** Ends the streams between two batches: their followers ask again when the node is back. */
  end(): void {
    this.#ending.abort();
  }

  /** Streams that are open keep their own connections until they end. */
  close(): void {
    this.#db.close();
  }

  #see(name: string, after: Watermark | null): void {
    const position = after?.commit ?? this.#capture.newest();
    const { n } = this.#db
      .query<{ n: number }, [string]>("SELECT count(*) AS n FROM _cdc_follower WHERE name <> ?")
      .get(name)!;
    if (n + this.#unnoted.size >= FOLLOWERS_MAX) return;
    try {
      this.#note(name, position);
    } catch (error) {
      if (!isBusy(error)) throw error;
      this.#unnoted.set(name, position);
    }
  }

  #note(name: string, position: bigint): void {
    this.#db.query(SEEN_SQL).run(name, position, this.#options.clock.nowMs());
    this.#unnoted.delete(name);
  }

  /** Deletes a part of what may go; true when there is more of it. */
  #prune(): boolean {
    const { clock, keepMs } = this.#options;
    const sinceMs = clock.nowMs() - keepMs;
    this.#db.query("DELETE FROM _cdc_follower WHERE seen_ms < ?").run(sinceMs);
    const ends = this.#ends();
    if (ends === undefined) return false;
    const { slowest } = this.#db
      .query<{ slowest: number | null }, []>("SELECT min(position) AS slowest FROM _cdc_follower")
      .get()!;
    const through = Math.max(slowest ?? 0, this.#tooOld(ends, sinceMs / 1000), this.#tooMuch(ends));
    return through > 0 && this.#capture.prune(BigInt(through)) > 0;
  }

  /** Each asked for by itself: for both at once SQLite reads the whole log. */
  #ends(): LogEnds | undefined {
    const { oldest, newest } = this.#db
      .query<{ oldest: number | null; newest: number | null }, []>(
        `SELECT
           (SELECT min(change_id) FROM _cdc) AS oldest,
           (SELECT max(change_id) FROM _cdc) AS newest`,
      )
      .get()!;
    return oldest === null || newest === null ? undefined : { oldest, newest };
  }

  /** The newest row before that time, by halves: the log is in order, and not small. */
  #tooOld({ oldest, newest }: LogEnds, sinceS: number): number {
    const time = this.#db.query<{ s: number }, [number]>(
      "SELECT change_time AS s FROM _cdc WHERE change_id >= ? ORDER BY change_id LIMIT 1",
    );
    let [old, young] = [oldest - 1, newest + 1];
    while (young - old > 1) {
      const middle = Math.floor((old + young) / 2);
      if (time.get(middle)!.s < sinceS) old = middle;
      else young = middle;
    }
    return old < oldest ? 0 : old;
  }

  /** Up to where the log is more than may be kept. Ids are without gaps. */
  #tooMuch({ oldest, newest }: LogEnds): number {
    const step = Math.ceil((newest - oldest + 1) / SAMPLE_ROWS);
    let left = this.#options.keepBytes;
    for (const { id, bytes } of this.#db
      .query<Sample, Samples>(SAMPLE_SQL)
      .iterate(newest, step, oldest)) {
      left -= bytes * step;
      if (left < 0) return Math.min(id, newest - 1);
    }
    return 0;
  }
}
