/**
 * A log as a stream of bytes, and such a stream into a follower. Whatever carries the bytes is none
 * of this file's business: `serveCdc` gives a ReadableStream, which is what an HTTP response is made
 * of, and `followCdc` takes the chunks of one.
 */
import { type Clock, systemClock, systemTimers, type Timers } from "../base/clock.ts";
import type { Batch, Watermark } from "./change.ts";
import { readInt64 } from "./change-text.ts";
import { breathe, type CdcConnection, type MaybePromise } from "./connection.ts";
import { readCopy } from "./copy.ts";
import { CdcError } from "./error.ts";
import { encodeBeat, encodeFrames, encodeStop, type FrameOptions, FrameReader } from "./frames.ts";
import type { ApplyOutcome } from "./replica.ts";
import { CdcTailer, countTransactions } from "./tailer.ts";

/** How soon a follower has what was committed, against what looking costs: a read of one row. */
const POLL_MS = 20;

/** What is left in a long log is counted so often; between, what was sent is taken off. */
const COUNT_PAUSE_MS = 250;

/** Proxies and sockets give up on silence after a minute or less. */
const BEAT_MS = 10_000;

/** A connection that this stream has for itself. */
export interface StreamConnection extends CdcConnection {
  close?(): unknown;
}

/** What `serveCdc` goes by where its defaults do not fit. */
export interface ServeOptions extends FrameOptions {
  readonly pollMs?: number;
  readonly beatMs?: number;
  /** Ends the stream between two batches after this time, so that followers say where they are. */
  readonly lifeMs?: number;
  /** Ends it between two batches as soon as it is aborted: the source goes away. */
  readonly signal?: AbortSignal;
  /** Ends it after the first batch: a copy and nothing else. */
  readonly once?: boolean;
  /** Told of each position that was sent to its end, and when the stream is over. */
  onSent?(commit: bigint): void;
  onEnd?(): void;
  /** Told of a failure of the database, which followers get as "source-failed"; without it the stream fails. */
  onFailure?(error: unknown): void;
  readonly clock?: Clock;
  readonly timers?: Timers;
}

/**
 * A follower's stream: a copy first where `after` is null, then each transaction as it is committed,
 * heartbeats between, and at the end, where the log cannot be followed further, the reason. Reads on
 * only as fast as the stream is read. `open` gives a connection for this stream alone.
 */
export function serveCdc(
  open: () => MaybePromise<StreamConnection>,
  after: Watermark | null,
  options: ServeOptions = {},
): ReadableStream<Uint8Array> {
  const source = new StreamSource(open, after, options);
  return new ReadableStream<Uint8Array>(
    {
      pull: (controller) => source.pull(controller),
      cancel: () => source.stop(),
    },
    // One frame at a time: what a slow follower has not read is not even encoded.
    { highWaterMark: 0 },
  );
}

class StreamSource {
  readonly #open: () => MaybePromise<StreamConnection>;
  readonly #after: Watermark | null;
  readonly #options: ServeOptions;
  readonly #clock: Clock;
  readonly #timers: Timers;
  readonly #untilMs: number;
  #batches = 0;
  #connection: StreamConnection | undefined;
  #tailer: CdcTailer | undefined;
  #pending: Promise<Batch | null> | undefined;
  #batch: Batch | undefined;
  #frames: Generator<Uint8Array> | undefined;
  #stopped = false;
  #pulling = false;
  #isReleased = false;
  /** How many transactions were left when it was last counted, less those sent since. */
  #behind: number | undefined;
  #countedMs = 0;
  #wake: (() => void) | undefined;

  constructor(
    open: () => MaybePromise<StreamConnection>,
    after: Watermark | null,
    options: ServeOptions,
  ) {
    this.#open = open;
    this.#after = after;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#timers = options.timers ?? systemTimers;
    this.#untilMs = this.#clock.monotonicMs() + (options.lifeMs ?? Number.POSITIVE_INFINITY);
  }

  async pull(controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> {
    this.#pulling = true;
    try {
      const frame = await this.#nextFrame();
      if (frame !== undefined && !this.#stopped) controller.enqueue(frame);
      else if (!this.#stopped) {
        this.#stopped = true;
        controller.close();
      }
    } catch (error) {
      if (this.#stopped) return;
      this.#stopped = true;
      controller.enqueue(encodeStop(this.#stopReason(error)));
      controller.close();
    } finally {
      this.#pulling = false;
      if (this.#stopped) await this.#release();
    }
  }

  #stopReason(error: unknown): CdcError {
    if (error instanceof CdcError) return error;
    const { onFailure } = this.#options;
    if (onFailure === undefined) throw error;
    onFailure(error);
    const message = error instanceof Error ? error.message : String(error);
    return new CdcError("source-failed", message, error);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#wake?.();
    // A pull that is under way uses the connection: it gives back what there is when it ends.
    if (!this.#pulling) await this.#release();
  }

  async #nextFrame(): Promise<Uint8Array | undefined> {
    // A follower that takes frames as fast as they come would have this thread for itself.
    if (this.#frames !== undefined) await breathe(this.#timers);
    const next = this.#frames?.next();
    if (next !== undefined && next.done !== true) return next.value;
    this.#endBatch();
    const beatAt = this.#clock.monotonicMs() + (this.#options.beatMs ?? BEAT_MS);
    while (!this.#stopped && !this.#isOver()) {
      // A large copy takes longer than a follower waits for a sign of life.
      this.#pending ??= this.#nextBatch();
      const batch = await this.#before(beatAt, this.#pending);
      if (batch === "late") return this.#beat();
      this.#pending = undefined;
      if (batch !== null) {
        this.#batches++;
        this.#batch = batch;
        await this.#countBehind(batch);
        this.#frames = encodeFrames(batch, { ...this.#options, behind: this.#behind });
        return this.#frames.next().value as Uint8Array;
      }
      // A follower that was told that more is left hears at once that it has all, or the other way.
      const isNews = this.#heldBack() !== (this.#behind ?? 0);
      if (this.#clock.monotonicMs() >= beatAt || isNews) return this.#beat();
      await this.#pause();
    }
    return undefined;
  }

  /** Says that nothing is left, or nothing that can be sent yet. */
  #beat(): Uint8Array {
    this.#behind = this.#heldBack();
    return encodeBeat(this.#behind);
  }

  /** How many transactions are there for all that is known, and no batch of them yet. */
  #heldBack(): number {
    return this.#tailer?.isHoldingBack === true ? Math.max(1, this.#behind ?? 0) : 0;
  }

  async #countBehind({ commit }: Batch): Promise<void> {
    const nowMs = this.#clock.monotonicMs();
    const known = this.#behind ?? 0;
    if (known > 1 && nowMs - this.#countedMs < COUNT_PAUSE_MS) {
      this.#behind = known - 1;
      return;
    }
    this.#countedMs = nowMs;
    this.#behind = await countTransactions(this.#connection!, commit);
  }

  /** What was promised, or "late" where that takes longer. */
  async #before<T>(atMs: number, promised: Promise<T>): Promise<T | "late"> {
    const left = Math.max(0, atMs - this.#clock.monotonicMs());
    let cancel = () => {};
    const late = new Promise<"late">((resolve) => {
      cancel = this.#timers.after(left, () => resolve("late"));
    });
    try {
      return await Promise.race([promised, late]);
    } finally {
      cancel();
    }
  }

  #isOver(): boolean {
    if (this.#options.once === true && this.#batches > 0) return true;
    if (this.#options.signal?.aborted === true) return true;
    return this.#clock.monotonicMs() >= this.#untilMs;
  }

  async #nextBatch(): Promise<Batch | null> {
    this.#connection ??= await this.#open();
    if (this.#tailer !== undefined) return await this.#tailer.pollBatch();
    if (this.#after !== null) {
      this.#tailer = new CdcTailer(this.#connection, this.#after, this.#options);
      return await this.#tailer.pollBatch();
    }
    const copy = await this.#copyWhenSettled(this.#connection);
    if (copy === null) return null;
    const { log, commit, mark } = copy;
    this.#tailer = new CdcTailer(this.#connection, { log, commit, mark }, this.#options);
    return copy;
  }

  async #copyWhenSettled(connection: StreamConnection): Promise<Batch | null> {
    try {
      return await readCopy(connection, this.#clock.nowMs(), this.#options);
    } catch (error) {
      if (error instanceof CdcError && error.code === "unsettled") return null;
      throw error;
    }
  }

  #pause(): Promise<void> {
    return new Promise((resolve) => {
      const cancel = this.#timers.after(this.#options.pollMs ?? POLL_MS, () => {
        this.#wake = undefined;
        resolve();
      });
      this.#wake = () => {
        cancel();
        resolve();
      };
    });
  }

  #endBatch(): void {
    if (this.#batch !== undefined && !this.#stopped) this.#options.onSent?.(this.#batch.commit);
    this.#batch?.close();
    this.#batch = undefined;
    this.#frames = undefined;
  }

  async #release(): Promise<void> {
    if (!this.#isReleased) this.#options.onEnd?.();
    this.#isReleased = true;
    // What is being read uses the connection.
    const unread = await this.#pending?.catch(() => null);
    this.#pending = undefined;
    unread?.close();
    this.#endBatch();
    this.#tailer?.close();
    const connection = this.#connection;
    this.#connection = undefined;
    await connection?.close?.();
  }
}

/** Where batches go: a `Replica`, or anything else that keeps its watermark with what it applies. */
export interface FollowTarget {
  /** How far it is; null before the first batch. */
  watermark(): Watermark | null;
  /** Applies all of a batch with its watermark, or nothing; see `applyBatch`. */
  apply(batch: Batch): MaybePromise<ApplyOutcome>;
}

/** What `followCdc` tells of each batch after it is applied. */
export interface FollowOptions extends FrameOptions {
  /** `behind`: how many transactions the source had after this one, where it says so. */
  onBatch?(batch: Batch, outcome: ApplyOutcome, behind: number | undefined): void;
  /** `behind`: how many transactions the source has that it cannot send yet. */
  onBeat?(behind: number): void;
}

/**
 * Applies a stream to a follower until it ends between two transactions. Throws a CdcError where it
 * was cut or stopped: `needsCopy` tells whether to ask again from the watermark or for a copy.
 */
export async function followCdc(
  replica: FollowTarget,
  chunks: AsyncIterable<Uint8Array>,
  options: FollowOptions = {},
): Promise<void> {
  const reader = new FrameReader(options);
  try {
    for await (const chunk of chunks) {
      for (const event of reader.read(chunk)) {
        if (event.kind === "stop")
          throw new CdcError(event.code, `the source says: ${event.message}`);
        if (event.kind === "beat") options.onBeat?.(event.behind);
        else await applyAndClose(replica, event.batch, event.behind, options);
      }
    }
    reader.end();
  } finally {
    reader.close();
  }
}

async function applyAndClose(
  replica: FollowTarget,
  batch: Batch,
  behind: number | undefined,
  options: FollowOptions,
): Promise<void> {
  try {
    const outcome = await replica.apply(batch);
    options.onBatch?.(batch, outcome, behind);
  } finally {
    batch.close();
  }
}

/** A watermark as the parameters of an address; nothing for null, which asks for a copy. */
export function formatWatermark(watermark: Watermark | null): string {
  if (watermark === null) return "";
  const { log, commit, mark } = watermark;
  return new URLSearchParams({ log, after: commit.toString(), mark }).toString();
}

/** The watermark that an address asks from; null where it asks for a copy. */
export function parseWatermark(parameters: { get(name: string): string | null }): Watermark | null {
  const log = parameters.get("log");
  const after = parameters.get("after");
  if (log === null && after === null) return null;
  if (log === null || after === null) {
    throw new CdcError("malformed", "a position needs both log= and after=");
  }
  return { log, commit: readInt64(after), mark: parameters.get("mark") ?? "" };
}
