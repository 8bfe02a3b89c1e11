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
import { type ApplyOutcome, applyBatch, type Replica } from "./replica.ts";
import { CdcTailer } from "./tailer.ts";

/** How soon a follower has what was committed, against what looking costs: a read of one row. */
const POLL_MS = 20;

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
      if (!(error instanceof CdcError)) throw error;
      controller.enqueue(encodeStop(error));
      controller.close();
    } finally {
      this.#pulling = false;
      if (this.#stopped) await this.#release();
    }
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
      if (batch === "late") return encodeBeat();
      this.#pending = undefined;
      if (batch !== null) {
        this.#batches++;
        this.#batch = batch;
        this.#frames = encodeFrames(batch, this.#options);
        return this.#frames.next().value as Uint8Array;
      }
      if (this.#clock.monotonicMs() >= beatAt) return encodeBeat();
      await this.#pause();
    }
    return undefined;
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
    this.#batch?.close();
    this.#batch = undefined;
    this.#frames = undefined;
  }

  async #release(): Promise<void> {
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

/** What `followCdc` tells of each batch after it is applied. */
export interface FollowOptions extends FrameOptions {
  onBatch?(batch: Batch, outcome: ApplyOutcome): void;
  onBeat?(): void;
}

/**
 * Applies a stream to a follower until it ends between two transactions. Throws a CdcError where it
 * was cut or stopped: `needsCopy` tells whether to ask again from the watermark or for a copy.
 */
export async function followCdc(
  replica: Replica,
  chunks: AsyncIterable<Uint8Array>,
  options: FollowOptions = {},
): Promise<void> {
  const reader = new FrameReader(options);
  try {
    for await (const chunk of chunks) {
      for (const event of reader.read(chunk)) {
        if (event.kind === "stop")
          throw new CdcError(event.code, `the source says: ${event.message}`);
        if (event.kind === "beat") options.onBeat?.();
        else applyAndClose(replica, event.batch, options);
      }
    }
    reader.end();
  } finally {
    reader.close();
  }
}

function applyAndClose(replica: Replica, batch: Batch, options: FollowOptions): void {
  try {
    const outcome = applyBatch(replica, batch);
    options.onBatch?.(batch, outcome);
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
