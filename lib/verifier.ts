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

/** What a Verifier works with; network and time come in from outside. */
export interface VerifierOptions {
  /** 0: never by itself. */
  readonly everyMs: number;
  readonly nodeId: string;
  /** Where this node answers itself. */
  readonly ownUrl: string;
  readonly neighbours: () => readonly PeerStatus[];
  /** Whether rows are being written or received: then reading whole tables would be in the way. */
  readonly isBusy: () => boolean;
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
/** Between attempts when neighbours cannot be compared now: from the one to the other. */
const RETRY_MS = 60_000;
const RETRY_MS_MAX = 3_600_000;
/** A node that is always written to is compared all the same. */
const BUSY_MS_MAX = 60_000;
/** A change in flight arrives within seconds, or its peer is behind and will be compared later. */
const WAIT_MS = 60_000;
const DUE_SETTING = "verify-due";
const OWED_SETTING = "verify-owed";

/** Whom to compare with because something happened: those of them that were away are still owed it. */
type Owed = "all" | ReadonlySet<string>;

const NOBODY: Owed = new Set();

/** One per node, at most one comparison at a time. After `stop` none begins. */
export class Verifier {
  readonly #options: VerifierOptions;
  #dueMs: number | undefined;
  #isRunning = false;
  #isStopping = false;
  /** Kept over restarts. */
  #owed: Owed = NOBODY;
  #isOwedRead = false;
  #failures = 0;
  /** Since when a comparison has waited for a quiet moment. */
  #waitsSinceMs: number | undefined;
  #report: VerifiedReport | undefined;

  constructor(options: VerifierOptions) {
    this.#options = options;
  }

  get report(): VerifiedReport | undefined {
    return this.#report;
  }

  /** Something happened that may have left nodes different. */
  soon(): void {
    const { everyMs, clock, store } = this.#options;
    if (everyMs === 0) return;
    this.#owed = "all";
    this.#isOwedRead = true;
    const dueMs = clock.monotonicMs() + SOON_MS;
    this.#dueMs = Math.min(this.#dueMs ?? dueMs, dueMs);
    // If it cannot be kept, it is only forgotten by a restart.
    store.keepSetting(OWED_SETTING, owedText("all")).catch(() => undefined);
  }

  /** Called with every tick of the node. */
  async look(): Promise<void> {
    const { everyMs, clock, isBusy } = this.#options;
    if (everyMs === 0 || this.#isRunning || this.#isStopping) return;
    if (!this.#isOwedRead) this.#readOwed();
    this.#dueMs ??= await this.#firstDueMs();
    const isDue = clock.monotonicMs() >= this.#dueMs;
    if (!isDue && !this.#isOwedBack()) {
      this.#waitsSinceMs = undefined;
      return;
    }
    this.#waitsSinceMs ??= clock.monotonicMs();
    if (isBusy() && clock.monotonicMs() - this.#waitsSinceMs < BUSY_MS_MAX) return;
    this.#waitsSinceMs = undefined;
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

  #readOwed(): void {
    this.#isOwedRead = true;
    const kept = this.#options.store.keptSetting(OWED_SETTING);
    if (kept === undefined) return;
    const urls = JSON.parse(kept) as "all" | string[];
    this.#owed = urls === "all" ? urls : new Set(urls);
    if (urls === "all") this.#dueMs = this.#options.clock.monotonicMs() + SOON_MS;
  }

  /** Somebody who was away when everybody was compared. */
  #isOwedBack(): boolean {
    const owed = this.#owed;
    if (owed === "all" || owed.size === 0) return false;
    return this.#options.neighbours().some((one) => owed.has(one.url) && isThere(one));
  }

  async #run(): Promise<void> {
    const { everyMs, log, clock, store } = this.#options;
    const owed = this.#owed;
    this.#owed = NOBODY;
    try {
      // Set before, so that what is asked for meanwhile comes after.
      this.#dueMs = await this.#dueIn(everyMs);
      const urls = this.#urls(owed);
      const away = this.#away(owed);
      if (urls.length > 0) this.#tell(await this.#compare(urls), urls.length);
      this.#failures = 0;
      // Asked again meanwhile: then everybody is owed it once more.
      if (this.#owed !== NOBODY) return;
      this.#owed = away;
      if (owed !== NOBODY) await store.keepSetting(OWED_SETTING, owedText(away));
    } catch (error) {
      if (this.#isStopping) return;
      // Also what is a mistake of ours, or of a neighbour's: comparing is not worth a node's end.
      const level = error instanceof ComparisonError ? "warn" : "error";
      log.log(level, "could not compare with the neighbours; tried again later", { error });
      if (this.#owed === NOBODY) this.#owed = owed === NOBODY ? NOBODY : "all";
      const retryMs = Math.min(everyMs, RETRY_MS_MAX, RETRY_MS * 2 ** this.#failures++);
      this.#dueMs = clock.monotonicMs() + retryMs;
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
  #urls(owed: Owed): string[] {
    const { neighbours, store } = this.#options;
    const found = neighbours()
      .filter(isThere)
      .filter(({ dbId }) => dbId !== store.dbId)
      .filter(({ dbId, url }) => (dbId ?? "") > store.dbId || owed === "all" || owed.has(url));
    // One node under two addresses is compared once.
    return [...new Map(found.map(({ dbId, url }) => [dbId, url])).values()];
  }

  /** Of those who are owed a comparison, and may be nodes of ours, who cannot be reached now. */
  #away(owed: Owed): Owed {
    const away = this.#options
      .neighbours()
      .filter((one) => one.make !== "foreign" && !isThere(one))
      .map(({ url }) => url);
    return new Set(away.filter((url) => owed === "all" || owed.has(url)));
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
      const outcome = repaired === differing ? "were repaired" : "not all could be repaired";
      log.warn(`compared with the neighbours: rows differed, and ${outcome}`, fields);
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

function isThere({ make, lastError }: PeerStatus): boolean {
  return make === "ours" && lastError === undefined;
}

function owedText(owed: Owed): string {
  return JSON.stringify(owed === "all" ? owed : [...owed]);
}
