/**
 * The little that following needs of a database driver: bun:sqlite's `Database` fits, and so do both
 * of Turso's, the one that answers at once and the one that answers with promises.
 */

import { type Clock, systemClock, systemTimers, type Timers } from "../base/clock.ts";

/** A driver may answer at once or later. */
export type MaybePromise<T> = T | Promise<T>;

/** A prepared statement. Only values that every driver binds alike are passed to it. */
export interface CdcStatement {
  all(...parameters: (string | number | null)[]): MaybePromise<unknown[]>;
}

/** A connection of its own: read transactions are opened and closed on it. */
export interface CdcConnection {
  prepare(sql: string): MaybePromise<CdcStatement>;
  /** Runs one or more statements that return nothing. */
  exec(sql: string): unknown;
}

/** The rows of one statement, prepared for this once: a schema may change between two calls. */
export async function selectAll<Row>(
  connection: CdcConnection,
  sql: string,
  ...parameters: (string | number | null)[]
): Promise<Row[]> {
  const statement = await connection.prepare(sql);
  try {
    return (await statement.all(...parameters)) as Row[];
  } finally {
    await release(statement);
  }
}

/** bun:sqlite says finalize, Turso says close; neither is needed for anything but memory. */
async function release(statement: CdcStatement): Promise<void> {
  const either = statement as { finalize?(): unknown; close?(): unknown };
  if (typeof either.finalize === "function") either.finalize();
  else if (typeof either.close === "function") await either.close();
}

/** Lets others on this thread go on: drivers that answer at once never would. */
export function breathe(timers: Timers = systemTimers): Promise<void> {
  return new Promise((resolve) => timers.soon(resolve));
}

/** Longer than that nobody else on the thread waits, but for one page. */
const WORK_MS = 5;

/**
 * The same between small pieces of long work. Going round for each would leave the work to whoever
 * else is busy: a commit between two pages takes longer than both.
 */
export class Breath {
  readonly #clock: Clock;
  readonly #timers: Timers;
  #sinceMs: number;

  constructor(clock: Clock = systemClock, timers: Timers = systemTimers) {
    this.#clock = clock;
    this.#timers = timers;
    this.#sinceMs = clock.monotonicMs();
  }

  /** At once while the work has only just begun. */
  async take(): Promise<void> {
    if (this.#clock.monotonicMs() - this.#sinceMs < WORK_MS) return;
    await breathe(this.#timers);
    this.#sinceMs = this.#clock.monotonicMs();
  }
}

/** What one read transaction sees. A failure inside leaves no transaction open. */
export async function inSnapshot<T>(connection: CdcConnection, read: () => Promise<T>): Promise<T> {
  await connection.exec("BEGIN");
  try {
    return await read();
  } finally {
    await connection.exec("ROLLBACK");
  }
}
