/**
 * A follower that keeps going: connects, applies, and after any end connects again, from where the
 * replica is or for a copy where only one helps. What carries the bytes comes in as `connect`.
 *
 *   connecting ──► copying ──► following ──ends, is cut, falls silent──► waiting ──► connecting
 *
 * Pauses grow with failures in a row and begin anew with a batch. A copy that is asked for again and
 * again (a source whose log leaves something out all the time) comes in pauses, too.
 */
import { retryPauseMs } from "../base/backoff.ts";
import type { Cancel, Clock, Timers } from "../base/clock.ts";
import type { Random } from "../base/random.ts";
import type { Batch } from "./change.ts";
import { CdcError } from "./error.ts";
import type { SpoolOptions } from "./spool.ts";
import { type FollowTarget, followCdc, formatWatermark } from "./stream.ts";

/** Three heartbeats: a connection that is silent for longer is dead, whatever the socket says. */
const SILENCE_MS_MAX = 30_000;

/** What a follower tells of itself. */
export interface FollowerStatus {
  readonly state: "connecting" | "copying" | "following" | "waiting" | "stopped";
  /** Transactions and copies applied by this process. */
  readonly transactions: number;
  readonly copies: number;
  /** How many transactions the source has that are not here; null where that is not known now. */
  readonly lagTransactions: number | null;
  /**
   * How old what is here is: 0 while all is here, else the time since the newest transaction that is
   * here, or since all was here. Null before anything is.
   */
  readonly lagMs: number | null;
  readonly lastError: string | null;
}

/** What a follower needs of the world around it. */
export interface FollowerOptions {
  readonly replica: FollowTarget;
  /** Opens the stream of a position (`formatWatermark`); throws where it cannot. */
  connect(query: string, signal: AbortSignal): Promise<AsyncIterable<Uint8Array>>;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
  /** Where transactions are held that are too large for memory. */
  readonly spool?: SpoolOptions;
  /** Called when the source is heard; throws where the follower's own file is not what it was. */
  checkFile?(): void;
  /** After each batch, and after each end with its reason (undefined: the source ended it). */
  onBatch?(batch: Batch): void;
  onEnd?(reason: string | undefined): void;
}

/** One follower's life. `run` ends with `stop`, or throws where the follower's own file fails. */
export class Follower {
  readonly #options: FollowerOptions;
  #state: FollowerStatus["state"] = "connecting";
  #transactions = 0;
  #copies = 0;
  /** As the source said last; undefined where it did not. */
  #behind: number | undefined;
  /** Wall clock: when the source was heard, and what is here is of then or later. */
  #heardMs = Number.NEGATIVE_INFINITY;
  #currentMs: number | undefined;
  #lastError: string | null = null;
  #failures = 0;
  #wantsCopy = false;
  #isStopped = false;
  #isHeard = false;
  #abort = new AbortController();
  #wake: (() => void) | undefined;

  constructor(options: FollowerOptions) {
    this.#options = options;
  }

  /** How it is now. */
  get status(): FollowerStatus {
    return {
      state: this.#state,
      transactions: this.#transactions,
      copies: this.#copies,
      ...this.#lag(),
      lastError: this.#lastError,
    };
  }

  #lag(): { lagTransactions: number | null; lagMs: number | null } {
    const nowMs = this.#options.clock.nowMs();
    const isConnected = this.#state === "following" || this.#state === "connecting";
    const isHeard = isConnected && nowMs - this.#heardMs < SILENCE_MS_MAX;
    const lagTransactions = isHeard ? (this.#behind ?? null) : null;
    if (this.#currentMs === undefined) return { lagTransactions, lagMs: null };
    const lagMs = lagTransactions === 0 ? 0 : Math.max(0, nowMs - this.#currentMs);
    return { lagTransactions, lagMs };
  }

  /** All up to `atMs` is here, and `behind` transactions are not. */
  #heard(behind: number | undefined, atMs: number): void {
    this.#heardMs = this.#options.clock.nowMs();
    this.#behind = behind;
    const isAll = behind === 0;
    this.#currentMs = Math.max(this.#currentMs ?? 0, isAll ? this.#heardMs : atMs);
  }

  /** Follows until it is stopped. */
  async run(): Promise<void> {
    while (!this.#isStopped) {
      const failure = await this.#follow();
      if (this.#isStopped) break;
      this.#lastError = failure === undefined ? null : failure.message;
      this.#options.onEnd?.(failure?.message);
      // An end between two transactions is how a source asks where its followers are.
      if (failure !== undefined) await this.#pause();
    }
    this.#state = "stopped";
  }

  /** Ends `run` at once; what is being applied is finished. */
  stop(): void {
    this.#isStopped = true;
    this.#abort.abort();
    this.#wake?.();
  }

  async #follow(): Promise<Error | undefined> {
    const { replica, connect } = this.#options;
    const from = this.#wantsCopy ? null : replica.watermark();
    this.#state = from === null ? "copying" : "connecting";
    this.#abort = new AbortController();
    let chunks: AsyncIterable<Uint8Array>;
    try {
      chunks = await connect(formatWatermark(from), this.#abort.signal);
    } catch (error) {
      return error instanceof Error ? error : new Error(String(error));
    }
    if (from !== null) this.#state = "following";
    let networkFailure: Error | undefined;
    this.#isHeard = false;
    const guarded = this.#guard(chunks, (error) => {
      networkFailure ??= error;
    });
    try {
      await followCdc(replica, guarded, {
        ...this.#options.spool,
        onBatch: (batch, _outcome, behind) => this.#applied(batch, behind),
        onBeat: (behind) => {
          this.#options.checkFile?.();
          this.#isHeard = true;
          this.#failures = 0;
          // One that comes while a copy is made says only that the source is there.
          if (this.#state === "following") this.#heard(behind, 0);
        },
      });
      // Something that is no source, or none any more: asking at once again would go on for ever.
      if (networkFailure === undefined && !this.#isHeard)
        return new Error("it ended without a word");
      return networkFailure;
    } catch (error) {
      if (networkFailure !== undefined) return networkFailure;
      // Anything else is the follower's own file: full, damaged, locked for too long.
      if (!(error instanceof CdcError)) throw error;
      if (error.needsCopy) this.#wantsCopy = true;
      return error;
    }
  }

  #applied(batch: Batch, behind: number | undefined): void {
    this.#options.checkFile?.();
    this.#isHeard = true;
    this.#state = "following";
    this.#wantsCopy = false;
    if (batch.kind === "copy") this.#copies++;
    else {
      this.#transactions++;
      this.#failures = 0;
    }
    this.#heard(behind, batch.timeMs);
    this.#options.onBatch?.(batch);
  }

  /** The chunks, ended by a failure of the network or a silence; `failed` is told which. */
  async *#guard(
    chunks: AsyncIterable<Uint8Array>,
    failed: (error: Error) => void,
  ): AsyncGenerator<Uint8Array> {
    let silence: Cancel = () => {};
    const watch = () => {
      silence();
      silence = this.#options.timers.after(SILENCE_MS_MAX, () => {
        failed(new Error(`nothing was heard for ${SILENCE_MS_MAX / 1000} s`));
        this.#abort.abort();
      });
    };
    watch();
    try {
      const iterator = chunks[Symbol.asyncIterator]();
      while (true) {
        let next: IteratorResult<Uint8Array>;
        try {
          next = await iterator.next();
        } catch (error) {
          failed(error instanceof Error ? error : new Error(String(error)));
          return;
        }
        if (next.done === true) return;
        // What is applied meanwhile is no silence.
        silence();
        yield next.value;
        watch();
      }
    } finally {
      silence();
      // Where the follower ended it: the connection is not needed any more.
      this.#abort.abort();
    }
  }

  async #pause(): Promise<void> {
    this.#failures++;
    this.#state = "waiting";
    const { timers, random } = this.#options;
    await new Promise<void>((resolve) => {
      const cancel = timers.after(retryPauseMs(this.#failures, random), resolve);
      this.#wake = () => {
        cancel();
        resolve();
      };
    });
    this.#wake = undefined;
  }
}
