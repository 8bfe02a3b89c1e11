/**
 * Digests as the HTTP face offers them: readings that take longer than a request may are named, and
 * asked for again by their name.
 */
import type { Timers } from "../base/clock.ts";
import { RequestError } from "../base/errors.ts";
import type { Random } from "../base/random.ts";
import type { KeyRange, KeyState } from "../protocol/digest.ts";
import type { DigestTable } from "../store/digest.ts";
import type { RangeBuckets, RangeKeys, TableSummary } from "../store/digester.ts";
import type { DigestHandle } from "./digest-handle.ts";

/** A failure is no kind of this: it rejects. */
export type Reading =
  | { readonly kind: "done"; readonly snapshot: string; readonly tables: readonly TableSummary[] }
  | { readonly kind: "reading"; readonly snapshot: string };

/** What names are made from and waiting is done with; the handle is the node's. */
export interface DigestsOptions {
  readonly handle: DigestHandle;
  readonly timers: Timers;
  readonly random: Random;
  /** How long a question waits for its answer. */
  readonly patienceMs?: number;
}

/** Below what proxies between two nodes allow a request. */
const PATIENCE_MS = 20_000;
/** As many as their snapshots are kept (digester.ts), and some that still wait. */
const READINGS_MAX = 32;

/** One per node: only it knows the readings by the names it gave them. */
export class Digests {
  readonly #options: DigestsOptions;
  readonly #readings = new Map<string, Promise<readonly TableSummary[]>>();

  constructor(options: DigestsOptions) {
    this.#options = options;
  }

  read(tables: readonly DigestTable[], isSlow: boolean): Promise<Reading> {
    const snapshot = this.#options.random.hex(8);
    const reading = this.#options.handle.ask("read", { snapshot, tables, isSlow });
    // Whoever asks hears of a failure; nobody need ask.
    reading.catch(() => undefined);
    this.#readings.set(snapshot, reading);
    for (const name of this.#readings.keys()) {
      if (this.#readings.size <= READINGS_MAX) break;
      this.#readings.delete(name);
    }
    return this.result(snapshot);
  }

  async result(snapshot: string): Promise<Reading> {
    const reading = this.#readings.get(snapshot);
    if (reading === undefined) {
      throw new RequestError(409, "that snapshot is not kept any more; begin again");
    }
    const { timers, patienceMs = PATIENCE_MS } = this.#options;
    const { promise: patience, resolve } = Promise.withResolvers<undefined>();
    const cancel = timers.after(patienceMs, () => resolve(undefined));
    try {
      const tables = await Promise.race([reading, patience]);
      return tables === undefined
        ? { kind: "reading", snapshot }
        : { kind: "done", snapshot, tables };
    } finally {
      cancel();
    }
  }

  buckets(
    snapshot: string,
    tableKey: string,
    ranges: readonly KeyRange[],
    most: number,
  ): Promise<readonly RangeBuckets[]> {
    return this.#options.handle.ask("buckets", { snapshot, tableKey, ranges, most });
  }

  keysIn(
    snapshot: string,
    tableKey: string,
    ranges: readonly KeyRange[],
  ): Promise<readonly RangeKeys[]> {
    return this.#options.handle.ask("keysIn", { snapshot, tableKey, ranges });
  }

  keysOf(table: DigestTable, ids: readonly string[]): Promise<readonly KeyState[]> {
    return this.#options.handle.ask("keysOf", { table, ids });
  }

  rows(table: DigestTable, ids: readonly string[], bytesMax: number): Promise<string> {
    return this.#options.handle.ask("rows", { table, ids, bytesMax });
  }
}
