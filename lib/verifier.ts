/**
 * Comparing this node with its neighbours of ours, from time to time and after everything that may have
 * left them different (a fill, a member removed), and repairing what differs. At low priority: nobody
 * waits for it. A row that only one node acknowledged, and whose author is gone, is in nobody's log; this
 * is what brings it to the others.
 */
import type { Clock, Timers } from "./base/clock.ts";
import type { Logger } from "./base/log.ts";
import type { Random } from "./base/random.ts";
import type { VerifiedReport } from "./http/health-routes.ts";
import {
  type CompareOptions,
  type Comparison,
  ComparisonError,
  compareNodes,
  notCompared,
} from "./shipper/comparison.ts";
import type { PeerStatus } from "./shipper/messages.ts";
import type { Store } from "./store/store.ts";

export interface VerifierOptions {
  /** 0: never by itself. */
  readonly everyMs: number;
  readonly nodeId: string;
  /** Where this node answers itself. */
  readonly ownUrl: string;
  readonly neighbours: () => readonly PeerStatus[];
  readonly store: Pick<Store, "dbId" | "keptSetting" | "keepSetting">;
  readonly log: Logger;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
  /** How nodes are asked, if not over sockets. */
  readonly call?: CompareOptions["call"];
}

/** What led to a comparison is seldom alone: a removal on every node, a fill to several peers. */
const SOON_MS = 1_000;
/** When neighbours cannot be compared now. */
const RETRY_MS_MAX = 3_600_000;
/** A change in flight arrives within seconds, or its peer is behind and will be compared later. */
const WAIT_MS = 60_000;
const DUE_SETTING = "verify-due";

export class Verifier {
  readonly #options: VerifierOptions;
  #dueMs: number | undefined;
  #isRunning = false;
  #isStopping = false;
  /** Compare with all, not only with those whose turn it is not. */
  #isAsked = false;
  #report: VerifiedReport | undefined;

  constructor(options: VerifierOptions) {
    this.#options = options;
  }

  get report(): VerifiedReport | undefined {
    return this.#report;
  }

  /** Something happened that may have left nodes different. */
  soon(): void {
    if (this.#options.everyMs === 0) return;
    this.#isAsked = true;
    const dueMs = this.#options.clock.monotonicMs() + SOON_MS;
    this.#dueMs = Math.min(this.#dueMs ?? dueMs, dueMs);
  }

  /** Called with every tick of the node. */
  async look(): Promise<void> {
    const { everyMs, clock } = this.#options;
    if (everyMs === 0 || this.#isRunning || this.#isStopping) return;
    this.#dueMs ??= await this.#firstDueMs();
    if (clock.monotonicMs() < this.#dueMs) return;
    this.#isRunning = true;
    // A comparison may take minutes; the tick does not wait for it.
    void this.#run().finally(() => {
      this.#isRunning = false;
    });
  }

  stop(): void {
    this.#isStopping = true;
  }

  /** Kept over restarts; nodes that start together do not compare together. */
  async #firstDueMs(): Promise<number> {
    const { everyMs, clock, random, store } = this.#options;
    const kept = Number(store.keptSetting(DUE_SETTING) ?? Number.NaN);
    const inMs = kept - clock.nowMs();
    if (inMs <= everyMs) return clock.monotonicMs() + Math.max(SOON_MS, inMs);
    return this.#dueIn(random.next() * everyMs);
  }

  async #dueIn(delayMs: number): Promise<number> {
    const { clock, store } = this.#options;
    await store.keepSetting(DUE_SETTING, String(Math.round(clock.nowMs() + delayMs)));
    return clock.monotonicMs() + delayMs;
  }

  async #run(): Promise<void> {
    const { everyMs, log } = this.#options;
    const isAsked = this.#isAsked;
    this.#isAsked = false;
    try {
      // Set before, so that what is asked for meanwhile comes after.
      this.#dueMs = await this.#dueIn(everyMs);
      const urls = this.#urls(isAsked);
      if (urls.length > 0) this.#tell(await this.#compare(urls), urls.length);
    } catch (error) {
      if (this.#isStopping) return;
      // Also what is a mistake of ours, or of a neighbour's: comparing is not worth a node's end.
      const level = error instanceof ComparisonError ? "warn" : "error";
      log.log(level, "could not compare with the neighbours; tried again later", { error });
      this.#isAsked ||= isAsked;
      const retryMs = Math.min(everyMs, RETRY_MS_MAX);
      this.#dueMs = this.#options.clock.monotonicMs() + retryMs;
    }
  }

  #compare(urls: readonly string[]): Promise<Comparison> {
    const { ownUrl, nodeId, clock, timers, call } = this.#options;
    return compareNodes({
      nodes: [ownUrl, ...urls],
      isSlow: true,
      repairAs: nodeId,
      waitMs: WAIT_MS,
      clock,
      timers,
      call,
    });
  }

  /** Of two nodes the one with the lower file id compares, unless something happened. */
  #urls(isAsked: boolean): string[] {
    const { neighbours, store } = this.#options;
    const found = neighbours()
      .filter(({ make, lastError }) => make === "ours" && lastError === undefined)
      .filter(({ dbId }) => dbId !== store.dbId && (isAsked || (dbId ?? "") > store.dbId));
    // One node under two addresses is compared once.
    return [...new Map(found.map(({ dbId, url }) => [dbId, url])).values()];
  }

  #tell(comparison: Comparison, neighbours: number): void {
    const { log, clock } = this.#options;
    const { tables, inFlight } = comparison;
    const keys = tables.flatMap(({ differing }) => differing);
    const differing = keys.length;
    const repaired = keys.filter(({ isRepaired }) => isRepaired).length;
    const repairedInAll = (this.#report?.repairedInAll ?? 0) + repaired;
    const missing = notCompared(comparison);
    this.#report = {
      atMs: clock.nowMs(),
      neighbours,
      differing,
      repaired,
      repairedInAll,
      notCompared: missing,
    };
    const fields = { neighbours, differing, repaired };
    if (differing > 0) {
      log.warn("compared with the neighbours: rows differed and were repaired", fields);
    } else if (inFlight.length > 0) {
      log.info("compared with the neighbours: equal but for what is on its way", fields);
    } else log.info("compared with the neighbours: all rows are equal", fields);
    if (missing.length > 0) {
      const message = "not all neighbours have the same tables and columns; the rest was compared";
      log.warn(message, { missing: missing.join("; ") });
    }
    // As many as were looked at are equal now: on with the others.
    if (repaired > 0 && tables.some(({ hasMore }) => hasMore)) this.soon();
  }
}
