/**
 * One writer, many writes: requests that arrive while one is being served share the next
 * transaction, and each is answered after its commit. This is what makes synchronous=FULL
 * affordable. Without it every request would pay for its own fsync.
 *
 * Invariants:
 *   W1  a promise resolves only after COMMIT succeeded.
 *   W2  one bad write fails alone: when a group fails, its writes are run again one by one.
 *   W3  the event loop never waits for a lock that another program holds: the connection's busy
 *       timeout is a few milliseconds, then a timer tries again, for up to BUSY_MS_MAX.
 *   W4  settling is the first thing in every transaction (DESIGN.md, "Settling").
 */
import type { Database } from "bun:sqlite";
import type { Clock, Timers } from "../base/clock.ts";
import { HookSyncError } from "../base/errors.ts";

/** `local`: foreign keys enforced, as for any application. `apply`: not, cascades arrive as changes. */
export type WriteMode = "local" | "apply";

export interface WriteTransaction {
  /** The time of this transaction, the same for everything in it. */
  readonly nowMs: number;
  /** Says that this write made `entries` log entries, each already with its final version. */
  logged(entries: number): void;
}

export interface WriteQueueOptions {
  readonly db: Database;
  readonly clock: Clock;
  readonly timers: Timers;
  /** Whether the schema has foreign keys at all: only then enforcement is switched. */
  readonly hasForeignKeys: () => boolean;
  /** First in every transaction. */
  readonly settle: (nowMs: number) => void;
  /** Last in every transaction: `logged` is what its writes said they logged. */
  readonly finish: (nowMs: number, logged: number, mode: WriteMode) => void;
  /** After every commit. */
  readonly committed: () => void;
  /** After a rollback: what is cached about the file may be wrong. */
  readonly rolledBack: () => void;
}

interface Job {
  readonly mode: WriteMode;
  readonly queuedMs: number;
  readonly work: (transaction: WriteTransaction) => unknown;
  readonly resolve: (value: never) => void;
  readonly reject: (error: unknown) => void;
}

/** A reader of a large file may hold a lock for seconds; after this the client should decide. */
const BUSY_MS_MAX = 5_000;
const BUSY_RETRY_MS = 10;
/** While stopping: what is left to write can be done after the next start, and a stop has 8 s. */
const BUSY_STOPPING_MS_MAX = 1_000;
/** Bounds one transaction, and with it the wait of the last request in it. */
const GROUP_JOBS_MAX = 512;
/** Above this many waiting writes new ones are refused (503): a queue without end helps nobody. */
const WAITING_JOBS_MAX = 20_000;

export class WriteQueue {
  readonly #options: WriteQueueOptions;
  #waiting: Job[] = [];
  #scheduled = false;
  #foreignKeys: boolean | undefined;
  #closed = false;
  #busyMsMax = BUSY_MS_MAX;

  constructor(options: WriteQueueOptions) {
    this.#options = options;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  /** Runs `work` in a transaction, perhaps with others; resolves with its result after the commit. */
  run<T>(mode: WriteMode, work: (transaction: WriteTransaction) => T): Promise<T> {
    if (this.#closed) return Promise.reject(busyError("the node is stopping"));
    if (this.#waiting.length >= WAITING_JOBS_MAX) {
      return Promise.reject(busyError(`${WAITING_JOBS_MAX} writes are waiting already`));
    }
    const queuedMs = this.#options.clock.monotonicMs();
    return new Promise<T>((resolve, reject) => {
      this.#waiting.push({
        mode,
        queuedMs,
        work,
        resolve: resolve as (value: never) => void,
        reject,
      });
      this.#schedule();
    });
  }

  /** Nobody is answered any more: from now on a locked file is not waited for as long. */
  hurry(): void {
    this.#busyMsMax = BUSY_STOPPING_MS_MAX;
  }

  /** Refuses further writes; those already waiting are still run. */
  close(): void {
    this.#closed = true;
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    this.#options.timers.soon(() => this.#flush());
  }

  #flush(): void {
    this.#scheduled = false;
    const first = this.#waiting[0];
    if (!first) return;
    let count = 1;
    while (count < GROUP_JOBS_MAX && this.#waiting[count]?.mode === first.mode) count++;
    const group = this.#waiting.slice(0, count);
    const outcome = this.#transact(group);
    if (outcome === "busy") {
      this.#refuseOverdue();
      this.#scheduled = true;
      this.#options.timers.after(BUSY_RETRY_MS, () => this.#flush());
      return;
    }
    this.#waiting.splice(0, count);
    if (outcome === "failed") this.#runAlone(group);
    if (this.#waiting.length > 0) this.#schedule();
  }

  /** W2. A group of one has already had its error. */
  #runAlone(group: readonly Job[]): void {
    for (const [index, job] of group.entries()) {
      const outcome = this.#transact([job], true);
      if (outcome === "busy") {
        this.#waiting.unshift(...group.slice(index));
        return;
      }
    }
  }

  #refuseOverdue(): void {
    const nowMs = this.#options.clock.monotonicMs();
    const isOverdue = (job: Job) => nowMs - job.queuedMs >= this.#busyMsMax;
    for (const job of this.#waiting.filter(isOverdue)) {
      job.reject(busyError("another program holds the write lock of the database"));
    }
    this.#waiting = this.#waiting.filter((job) => !isOverdue(job));
  }

  #transact(group: readonly Job[], alone = group.length === 1): "done" | "busy" | "failed" {
    const { db, clock, settle, finish, committed, rolledBack, hasForeignKeys } = this.#options;
    const wanted = group[0]!.mode === "local" && hasForeignKeys();
    if (wanted !== this.#foreignKeys) {
      db.run(`PRAGMA foreign_keys = ${wanted ? "ON" : "OFF"}`);
      this.#foreignKeys = wanted;
    }
    try {
      db.run("BEGIN IMMEDIATE");
    } catch (error) {
      if (isBusy(error)) return "busy";
      if (!alone) return "failed";
      group[0]!.reject(storeError(error));
      return "done";
    }
    const results: unknown[] = [];
    let logged = 0;
    const nowMs = clock.nowMs();
    try {
      settle(nowMs);
      const transaction: WriteTransaction = {
        nowMs,
        logged: (entries) => {
          logged += entries;
        },
      };
      for (const job of group) results.push(job.work(transaction));
      finish(nowMs, logged, group[0]!.mode);
      db.run("COMMIT");
    } catch (error) {
      if (db.inTransaction) db.run("ROLLBACK");
      rolledBack();
      if (isBusy(error)) return "busy";
      if (!alone) return "failed";
      group[0]!.reject(storeError(error));
      return "done";
    }
    committed();
    for (const [index, job] of group.entries()) job.resolve(results[index] as never);
    return "done";
  }
}

function busyError(message: string): HookSyncError {
  return new HookSyncError("busy", message, "Try again in a moment.");
}

export function sqliteCode(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "";
}

export function isBusy(error: unknown): boolean {
  const code = sqliteCode(error);
  return code.startsWith("SQLITE_BUSY") || code.startsWith("SQLITE_LOCKED");
}

/** The world's failures get a name; a refusal by a constraint or our own error stays what it is. */
export function storeError(error: unknown): unknown {
  const code = sqliteCode(error);
  const text = error instanceof Error ? error.message : String(error);
  if (code === "SQLITE_FULL") {
    return new HookSyncError(
      "disk-full",
      `the disk is full: ${text}`,
      "Free some space; nothing was written.",
      error,
    );
  }
  if (code.startsWith("SQLITE_READONLY")) {
    return new HookSyncError(
      "file-read-only",
      `the file cannot be written: ${text}`,
      "Check its permissions.",
      error,
    );
  }
  if (
    code.startsWith("SQLITE_IOERR") ||
    code.startsWith("SQLITE_CORRUPT") ||
    code === "SQLITE_NOTADB"
  ) {
    return new HookSyncError(
      "store-failed",
      `the file cannot be used: ${text}`,
      "Check the disk; run PRAGMA integrity_check.",
      error,
    );
  }
  return error;
}
