/**
 * One writer, many writes: requests that arrive while one is being served share the next
 * transaction, and each is answered after its commit. This is what makes synchronous=FULL
 * affordable. Without it every request would pay for its own fsync.
 *
 * Received changes and the node's own housekeeping go into the same transactions, behind the local
 * writes, for as long as there is time; what does not fit comes first in the next one.
 *
 * Invariants:
 *   W1  a promise resolves only after COMMIT succeeded.
 *   W2  one bad write fails alone: when a group fails, its writes are run again in smaller ones until
 *       each bad one had a transaction of its own, and its own error.
 *   W3  the event loop never waits for a lock that another program holds: the connection's busy
 *       timeout is a few milliseconds, then a timer tries again, for up to BUSY_MS_MAX.
 *   W4  settling is the first thing in every transaction (DESIGN.md, "Settling").
 *   W5  neither local writes nor received changes wait for more than the transaction that runs and
 *       the one after it to begin.
 */
import type { Database, Statement } from "bun:sqlite";
import type { Cancel, Clock, Timers } from "../base/clock.ts";
import { HookSyncError, isBusy, sqliteCode } from "../base/errors.ts";
import { COMPANY_MS_MAX, Company } from "./company.ts";

/**
 * `local`: foreign keys enforced, as for any application. `apply`: not, cascades arrive as changes.
 * `source`: local writes that repeat those of another database, whose cascades are among them.
 */
export type WriteMode = "local" | "apply" | "source";

/** Good until the transaction ends that it stands for; writes of one group share it. */
export interface WriteTransaction {
  /** The time of this transaction, the same for everything in it. */
  readonly nowMs: number;
  /** Says that this write made `entries` log entries, each already with its final version. */
  logged(entries: number): void;
  /** Whether a write that can be continued in another transaction should leave the rest to it. */
  isLong(): boolean;
  /** Runs once the writes of this mode have run: what several of them want done can be done at once. */
  atEnd(run: () => void): void;
}

/** The result of a write that is carried out by what it gave to `atEnd`. */
export class Later<T> {
  readonly take: () => T;
  constructor(take: () => T) {
    this.take = take;
  }
}

/** `settle` and `finish` run inside the transaction, `committed` and `rolledBack` after it. */
export interface WriteQueueOptions {
  readonly db: Database;
  readonly clock: Clock;
  readonly timers: Timers;
  /** Whether the schema has foreign keys at all: only then enforcement is switched. */
  readonly hasForeignKeys: () => boolean;
  /** First in every transaction. */
  readonly settle: (nowMs: number) => void;
  /** After the writes of one mode: `logged` is what they said they logged. */
  readonly finish: (nowMs: number, logged: number, mode: WriteMode) => void;
  /** After every commit. */
  readonly committed: () => void;
  /** After a rollback: what is cached about the file may be wrong. */
  readonly rolledBack: () => void;
}

/** Marks the end of a transaction in a log that others keep of this file (lib/cdc). */
export interface TransactionEnds {
  /** First and last in every transaction. */
  end(): void;
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
/** Bounds what is undone, and run again, when a group fails. */
const GROUP_JOBS_MAX = 512;
/**
 * No further write joins a transaction that has lasted this long, so that whoever comes meanwhile waits
 * for a few milliseconds. A commit costs a tenth of it, or more than all of it where the disk is slow:
 * while nobody writes here, received changes take longer ones, a full batch of new rows a single one.
 */
const TRANSACTION_MS_MAX = 5;
const UNDISTURBED_MS_MAX = 30;
/** So long after a local write the next one is to be expected. */
const BUSY_AFTER_MS = 1_000;
/** Above this many waiting writes new ones are refused (503): a queue without end helps nobody. */
const WAITING_JOBS_MAX = 20_000;

/** The one writer of a file. After `close` new writes are refused, waiting ones still run. */
export class WriteQueue {
  readonly #options: WriteQueueOptions;
  readonly #begin: Statement;
  readonly #commit: Statement;
  #local: Job[] = [];
  #apply: Job[] = [];
  /** The transaction before had no time for any of `#apply`. */
  #isApplyDue = false;
  /** When the last local write came. */
  #localMs = Number.NEGATIVE_INFINITY;
  /** The same of another program's, or another node's. */
  #othersMs = Number.NEGATIVE_INFINITY;
  #scheduled = false;
  readonly #company = new Company();
  /** Set while those are waited for who are likely to come. */
  #cancelWait: Cancel | undefined;
  #foreignKeys: boolean | undefined;
  #closed = false;
  /** While it is set, writes of this node's clients are refused with it. */
  refusal: HookSyncError | undefined;
  /** Undefined, and free, while nobody follows this file. */
  ends: TransactionEnds | undefined;
  #busyMsMax = BUSY_MS_MAX;

  constructor(options: WriteQueueOptions) {
    this.#options = options;
    this.#begin = options.db.query("BEGIN IMMEDIATE");
    this.#commit = options.db.query("COMMIT");
  }

  /** Whether somebody writes here. */
  get isBusy(): boolean {
    return this.#options.clock.monotonicMs() - this.#localMs < BUSY_AFTER_MS;
  }

  /** Whether somebody writes here or straight into the file, or sends changes. */
  get isAtWork(): boolean {
    return this.isBusy || this.#options.clock.monotonicMs() - this.#othersMs < BUSY_AFTER_MS;
  }

  get waiting(): number {
    return this.#local.length + this.#apply.length;
  }

  /**
   * Runs `work` in a transaction, perhaps with others; resolves with its result after the commit.
   * With `patienceMs` it makes no transaction of its own before that time, but joins one that is made.
   */
  run<T>(
    mode: WriteMode,
    work: (transaction: WriteTransaction) => T | Later<T>,
    patienceMs = 0,
  ): Promise<T> {
    if (this.#closed) return Promise.reject(busyError("the node is stopping"));
    if (mode !== "apply" && this.refusal) return Promise.reject(this.refusal);
    if (this.waiting >= WAITING_JOBS_MAX) {
      return Promise.reject(busyError(`${WAITING_JOBS_MAX} writes are waiting already`));
    }
    const queuedMs = this.#options.clock.monotonicMs();
    if (mode === "local") this.#localMs = queuedMs;
    return new Promise<T>((resolve, reject) => {
      this.#listOf(mode).push({
        mode,
        queuedMs,
        work,
        resolve: resolve as (value: never) => void,
        reject,
      });
      if (patienceMs > 0) this.#options.timers.after(patienceMs, () => this.#schedule());
      else this.#schedule();
    });
  }

  /** What another program wrote is being settled, or what another node sent written. */
  noteOthers(): void {
    this.#othersMs = this.#options.clock.monotonicMs();
  }

  /** Nobody is answered any more: from now on a locked file is not waited for as long. */
  hurry(): void {
    this.#busyMsMax = BUSY_STOPPING_MS_MAX;
  }

  /** Refuses further writes; those already waiting are still run. */
  close(): void {
    this.#closed = true;
  }

  #listOf(mode: WriteMode): Job[] {
    return mode === "local" ? this.#local : this.#apply;
  }

  #schedule(): void {
    const { timers } = this.#options;
    if (this.#cancelWait !== undefined && !this.#company.isMissing(this.#local.length)) {
      this.#cancelWait();
      this.#cancelWait = undefined;
      timers.soon(() => this.#flush());
    }
    if (this.#scheduled) return;
    this.#scheduled = true;
    timers.soon(() => this.#flushTogether());
  }

  #flushTogether(): void {
    if (this.#isApplyDue || !this.#company.isAwaited(this.#local.length)) {
      this.#flush();
      return;
    }
    this.#cancelWait = this.#options.timers.after(COMPANY_MS_MAX, () => {
      this.#cancelWait = undefined;
      this.#company.gaveUp(this.#local.length);
      this.#flush();
    });
  }

  #flush(): void {
    this.#scheduled = false;
    const group = this.#nextGroup();
    if (group.length === 0) return;
    const attempt = this.#transact(group);
    const { outcome, tried } = attempt;
    if (outcome === "busy") {
      this.#refuseOverdue();
      this.#scheduled = true;
      this.#options.timers.after(BUSY_RETRY_MS, () => this.#flush());
      return;
    }
    const applied = tried.filter((job) => job.mode !== "local").length;
    this.#local.splice(0, tried.length - applied);
    this.#apply.splice(0, applied);
    this.#isApplyDue = applied === 0 && this.#apply.length > 0;
    if (outcome === "failed") this.#runApart(partsOf(attempt));
    if (this.waiting > 0) this.#schedule();
  }

  /** In the order in which they are run while there is time; each list from its beginning. */
  #nextGroup(): readonly Job[] {
    const local = this.#local.slice(0, GROUP_JOBS_MAX);
    const apply = this.#apply.slice(0, GROUP_JOBS_MAX);
    if (local.length === 0 || apply.length === 0) return local.length === 0 ? apply : local;
    // Foreign keys cannot be switched inside a transaction.
    if (this.#options.hasForeignKeys()) return this.#isApplyDue ? apply : local;
    return this.#isApplyDue ? [apply[0]!, ...local, ...apply.slice(1)] : [...local, ...apply];
  }

  /** W2. Writes that can share a commit still do: one bad client costs the others little. */
  #runApart(parts: readonly (readonly Job[])[]): void {
    const left = [...parts];
    for (let part = left.shift(); part !== undefined; part = left.shift()) {
      const { outcome, tried } = this.#transact(part);
      if (outcome === "busy") {
        const rest = [part, ...left].flat();
        this.#local.unshift(...rest.filter(({ mode }) => mode === "local"));
        this.#apply.unshift(...rest.filter(({ mode }) => mode !== "local"));
        return;
      }
      if (tried.length < part.length) left.unshift(part.slice(tried.length));
      // In halves whoever failed: where the disk is full it is another write each time.
      if (outcome === "failed") left.unshift(...halvesOf(tried));
    }
  }

  #refuseOverdue(): void {
    const nowMs = this.#options.clock.monotonicMs();
    const isOverdue = (job: Job) => nowMs - job.queuedMs >= this.#busyMsMax;
    for (const job of [...this.#local, ...this.#apply].filter(isOverdue)) {
      job.reject(busyError("another program holds the write lock of the database"));
    }
    this.#local = this.#local.filter((job) => !isOverdue(job));
    this.#apply = this.#apply.filter((job) => !isOverdue(job));
  }

  /** What to answer: that the transaction failed, or that even its end could not be read. */
  #rollBack(failure: unknown, rolledBack: () => void): unknown {
    try {
      if (this.#options.db.inTransaction) this.#options.db.run("ROLLBACK");
      rolledBack();
      return failure;
    } catch (error) {
      return isBusy(failure) ? error : failure;
    }
  }

  /** `tried`: those of the group that were run, or that failed with it. */
  #transact(group: readonly Job[]): Attempt {
    const alone = group.length === 1;
    const { db, clock, settle, finish, committed, rolledBack, hasForeignKeys } = this.#options;
    let { mode } = group[0]!;
    const wanted = mode === "local" && hasForeignKeys();
    if (wanted !== this.#foreignKeys) {
      db.run(`PRAGMA foreign_keys = ${wanted ? "ON" : "OFF"}`);
      this.#foreignKeys = wanted;
    }
    try {
      this.#begin.run();
    } catch (error) {
      if (isBusy(error)) return { outcome: "busy", tried: [] };
      if (!alone) return { outcome: "failed", tried: group, by: "all" };
      group[0]!.reject(storeError(error));
      return { outcome: "done", tried: group };
    }
    const results: unknown[] = [];
    const ends: (() => void)[] = [];
    let logged = 0;
    const nowMs = clock.nowMs();
    const beganMs = clock.monotonicMs();
    const lastsMs = this.isBusy ? TRANSACTION_MS_MAX : UNDISTURBED_MS_MAX;
    const transaction: WriteTransaction = {
      nowMs,
      logged: (entries) => {
        logged += entries;
      },
      isLong: () => clock.monotonicMs() - beganMs >= lastsMs,
      atEnd: (run) => {
        ends.push(run);
      },
    };
    const endMode = () => {
      for (const run of ends.splice(0)) run();
      finish(nowMs, logged, mode);
      logged = 0;
    };
    let tried = 0;
    let worked = 0;
    let writes = 0;
    try {
      this.ends?.end();
      settle(nowMs);
      for (const job of group) {
        if (tried > 0 && transaction.isLong()) break;
        if (job.mode !== mode) {
          // Settling may have found the first ones; they cannot be switched inside a transaction.
          if (wanted !== (job.mode === "local" && hasForeignKeys())) break;
          endMode();
          mode = job.mode;
        }
        tried++;
        if (mode === "local") writes++;
        results.push(job.work(transaction));
        worked++;
      }
      endMode();
      this.ends?.end();
      const endedMs = clock.monotonicMs();
      this.#commit.run();
      this.#company.committed(writes, clock.monotonicMs() - endedMs);
    } catch (failure) {
      const error = this.#rollBack(failure, rolledBack);
      if (isBusy(error)) return { outcome: "busy", tried: [] };
      // Where settling failed, nobody was tried and everybody fails with it.
      if (!alone && tried === 0) return { outcome: "failed", tried: group, by: "all" };
      const by = worked < tried ? "last" : "any";
      if (!alone) return { outcome: "failed", tried: group.slice(0, tried), by };
      group[0]!.reject(storeError(error));
      return { outcome: "done", tried: group };
    }
    committed();
    for (let i = 0; i < tried; i++) {
      const result = results[i];
      group[i]!.resolve((result instanceof Later ? result.take() : result) as never);
    }
    return { outcome: "done", tried: group.slice(0, tried) };
  }
}

type Attempt =
  | { readonly outcome: "done" | "busy"; readonly tried: readonly Job[] }
  | {
      readonly outcome: "failed";
      readonly tried: readonly Job[];
      /** Whose failure it looks like: that of the last one tried, of any of them, or of none more than another. */
      readonly by: "last" | "any" | "all";
    };

/** What of a failed group is run together next. */
function partsOf({ tried, by }: Attempt & { readonly outcome: "failed" }): (readonly Job[])[] {
  switch (by) {
    case "last":
      return [tried.slice(0, -1), tried.slice(-1)].filter(({ length }) => length > 0);
    case "any":
      return halvesOf(tried);
    case "all":
      return tried.map((job) => [job]);
  }
}

function halvesOf(jobs: readonly Job[]): (readonly Job[])[] {
  const middle = jobs.length >> 1;
  return [jobs.slice(0, middle), jobs.slice(middle)].filter(({ length }) => length > 0);
}

function busyError(message: string): HookSyncError {
  return new HookSyncError("busy", message, "Try again in a moment.");
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
