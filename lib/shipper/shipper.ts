/**
 * The driver of the links: carries out what peer-link.ts decides, and tells the main thread.
 *
 * It owns the links, their timers and requests, and nothing that lasts: the main thread persists what
 * it reports. Clock, chance, timers, network and log come in as arguments, so that the simulator runs
 * this very code without sockets and without waiting.
 *
 * Invariants (test/shipper/shipper.test.ts):
 *   S1  No link ever waits for another: every read is short and every request is on its own.
 *   S2  Nothing past `settledThrough` is read.
 *   S3  An idle shipper holds no timer that repeats for a peer that answered once.
 *   S4  After `stop` nothing is posted, and no timer or request is left.
 *   S5  To a peer that is held nothing is sent until it is released; its /health is read meanwhile.
 */
import { ATTEMPTS_MAX, retryPauseMs, slowPauseMs } from "../base/backoff.ts";
import type { Cancel, Clock, Timers } from "../base/clock.ts";
import type { LogLevel } from "../base/log.ts";
import type { Random } from "../base/random.ts";
import type { Identity } from "../protocol/identity.ts";
import { type Batch, type BatchRead, type BatchSource, isStoreError } from "./batch.ts";
import type {
  FromShipper,
  PeerStart,
  PeerStateName,
  PeerStatus,
  Refusal,
  ShipperConfig,
} from "./messages.ts";
import {
  type BatchWindow,
  type LinkEffect,
  type LinkEvent,
  openLink,
  type PeerLink,
  type Sent,
  step,
  type Trouble,
  troubleOf,
} from "./peer-link.ts";
import type { HealthOutcome, Outcome, Reply, Transport } from "./transport.ts";

/** Statuses are for people and for /health; more often than this nobody looks. */
const STATUS_PAUSE_MS = 100;
/** Counting stops here and the difference of ids stands in: a million entries would be read for it. */
const COUNTED_CHANGES_MAX = 200_000;
/**
 * Bun has 256 requests in flight at most and lets more wait. Readings of /health must not take the
 * places of batches: with these, up to 240 silent peers leave room for a living one.
 */
const HEALTH_READS_MAX = 16;
/** `Date` has whole seconds, and a reply takes its time: less than this is no offset. */
const CLOCK_OFFSET_MS_MIN = 1_500;

/**
 * A busy node's batches to one peer begin at least this far apart, so that each is worth its price: a
 * request costs both sides as much as dozens of rows, and a receiver writes long runs several times as
 * fast. It is the lag that a busy node adds; a change that comes alone is sent at once.
 */
export const PACE_MS = 10;
/**
 * Where machines or lines are slower, batches are larger: one is on its way an eighth of the time. Where
 * processors have nothing to spare, four round trips apart took a fifth more of them (bench/mesh-4.ts).
 */
const PACE_ROUND_TRIPS = 8;
/** Twice what the existing nodes always wait; only a saturated machine comes to it. */
export const PACE_MS_MAX = 100;
/** A batch of fewer changes than this was not made by a busy node. */
export const PACED_CHANGES_MIN = 8;
/** When this many wait there is nothing to be gained by waiting. */
export const UNPACED_CHANGES = 1_000;

/** What the driver itself goes by; the rest of the config is the transport's and the source's. */
export type ShipperSettings = Pick<
  ShipperConfig,
  "dbId" | "batchChangesMax" | "settledThrough" | "targeted" | "peers"
>;

/** Everything the shipper touches: it opens nothing by itself. */
export interface ShipperOptions {
  readonly config: ShipperSettings;
  readonly clock: Clock;
  readonly random: Random;
  readonly timers: Timers;
  readonly transport: Transport;
  readonly source: BatchSource;
  readonly post: (message: FromShipper) => void;
}

/** One peer as the driver holds it. */
interface Peer {
  readonly url: string;
  /** S5. */
  isHeld: boolean;
  link: PeerLink;
  /** Largest batch id that this peer acknowledged. */
  ackedBatchId: number;
  /** Settled changes past the watermark, as far as `countedThrough`. */
  pending: number;
  /** What the link's pause, a read to be tried again, or the pace waits for. */
  cancelTimer: Cancel | undefined;
  /** What is sent when the pace allows it. */
  paced: BatchWindow | undefined;
  /** Changes in the last batch, and when it was sent, by the monotonic clock. */
  lastCount: number;
  lastSentMs: number;
  /** How long its answer took. */
  lastTookMs: number;
  readFailures: number;
  /** The trouble that the log knows of. */
  trouble: Trouble | undefined;
  nodeId: string | undefined;
  make: "ours" | "foreign" | undefined;
  dbId: string | undefined;
  lastError: string | undefined;
  lastContactMs: number | undefined;
  clockOffsetMs: number | undefined;
  /** Whether anything ever answered a request for /health. */
  healthRead: boolean;
  /** Whether it is being read, or is in the queue for it. */
  healthReading: boolean;
  /** Failed attempts to read /health in a row. */
  healthFailures: number;
  cancelHealthTimer: Cancel | undefined;
  /** Refused changes that no line in the log tells of yet, with what the peer said last. */
  refusedCount: number;
  refusedReason: string;
  /** Whether an attempt failed since the drain began. */
  failedInDrain: boolean;
}

/** Ships to all peers until it is stopped. */
export class Shipper {
  readonly #options: ShipperOptions;
  /** Windows to be read as soon as nothing is left to be sent. */
  readonly #readAhead: { readonly window: BatchWindow; readonly peer: Peer }[] = [];
  /** Peers whose /health is to be read when another reading has ended. */
  readonly #healthQueue: Peer[] = [];
  #healthReads = 0;
  readonly #peers: readonly Peer[];
  readonly #abort = new AbortController();
  #settledThrough: number;
  /** Whether entries are in the log that one peer alone gets: then reads ask for whom. */
  #targeted: boolean;
  /** Up to here the peers' `pending` counts. */
  #countedThrough: number;
  #statusSentAtMs = Number.NEGATIVE_INFINITY;
  #cancelStatusTimer: Cancel | undefined;
  #cancelDrainTimer: Cancel | undefined;

  constructor(options: ShipperOptions) {
    this.#options = options;
    this.#settledThrough = options.config.settledThrough;
    this.#targeted = options.config.targeted ?? false;
    this.#countedThrough = options.config.settledThrough;
    this.#peers = options.config.peers.map(openPeer);
  }

  /** Begins: sends what waits, and asks every peer who it is. */
  start(): void {
    // Many peers stand at the same place: the log is counted once for each place.
    const counts = new Map<number, number>();
    for (const peer of this.#peers) {
      const { watermark } = peer.link;
      peer.pending = counts.get(watermark) ?? this.#count(watermark, this.#settledThrough);
      counts.set(watermark, peer.pending);
    }
    this.#options.post({ kind: "ready" });
    for (const peer of this.#peers) {
      if (peer.pending > 0 && !peer.isHeld) this.#take(peer, { kind: "settled" });
      this.#readHealth(peer);
    }
    this.#statusChanged();
  }

  /** The log is settled up to here: idle peers get it at once. */
  settled(through: number, rewritten = false, targeted = false): void {
    if (this.#stopped) return;
    this.#targeted = targeted;
    if (rewritten) this.#options.source.forget();
    if (through <= this.#settledThrough) return;
    this.#settledThrough = through;
    for (const peer of this.#peers) {
      if (peer.isHeld) continue;
      if (peer.link.kind === "idle") this.#take(peer, { kind: "settled" });
      else this.#sendIfMany(peer);
    }
    this.#statusChanged();
  }

  /** What waits for a peer that was held is sent. */
  release(url: string): void {
    const peer = this.#peers.find((one) => one.url === url);
    if (this.#stopped || peer === undefined || !peer.isHeld) return;
    peer.isHeld = false;
    if (peer.link.kind === "idle") this.#take(peer, { kind: "settled" });
  }

  /** Reads /health of these peers, or of all. */
  readHealth(urls?: readonly string[]): void {
    if (this.#stopped) return;
    for (const peer of this.#peers) {
      if (urls === undefined || urls.includes(peer.url)) this.#readHealth(peer);
    }
  }

  /**
   * Ships until nothing waits or the time is over, then says what is left. Peers that were out of
   * reach before, and still are at the next attempt, are not waited for.
   */
  drain(withinMs: number): void {
    if (this.#stopped) return;
    this.#cancelDrainTimer?.();
    this.#cancelDrainTimer = this.#options.timers.after(withinMs, () => this.#endDrain());
    for (const peer of this.#peers) peer.failedInDrain = false;
    for (const peer of this.#peers) {
      if (peer.paced) this.#send(peer, peer.paced);
      else this.#take(peer, { kind: "hurry" });
    }
    this.#drainIfDone();
  }

  /** Ends all requests and timers. The source may be closed after it. */
  stop(): void {
    if (this.#stopped) return;
    this.#abort.abort();
    this.#cancelStatusTimer?.();
    this.#cancelDrainTimer?.();
    for (const peer of this.#peers) {
      peer.cancelTimer?.();
      peer.cancelHealthTimer?.();
    }
  }

  #only(peer: Peer): string | undefined {
    return this.#targeted ? peer.url : undefined;
  }

  get #stopped(): boolean {
    return this.#abort.signal.aborted;
  }

  #take(peer: Peer, event: LinkEvent): void {
    const before = peer.link;
    const { link, effects } = step(before, event, this.#options.random);
    peer.link = link;
    if (before.kind !== "idle" && link.kind === "idle") this.#becameIdle(peer);
    for (const effect of effects) this.#carryOut(peer, effect);
    this.#noteTrouble(peer);
    if (peer.link.kind !== "bisecting") this.#logRefusals(peer);
    this.#statusChanged();
    this.#drainIfDone();
  }

  #carryOut(peer: Peer, effect: LinkEffect): void {
    switch (effect.kind) {
      case "send":
        this.#sendInPace(peer, effect.window);
        return;
      case "wake":
        this.#wakeLater(peer, effect.delayMs, () => this.#take(peer, { kind: "timer-fired" }));
        return;
      case "acked": {
        peer.pending = Math.max(0, peer.pending - effect.count);
        // A change may be taken out of turn; the receiver's mark never goes back either.
        peer.ackedBatchId = Math.max(peer.ackedBatchId, effect.batchId);
        const { through } = effect;
        const { url, make, dbId, ackedBatchId } = peer;
        this.#options.post({ kind: "moved", peer: url, through, make, dbId, ackedBatchId });
        return;
      }
      case "set-aside":
        this.#setAside(peer, effect);
        return;
    }
  }

  #setAside(peer: Peer, effect: Extract<LinkEffect, { kind: "set-aside" }>): void {
    const { after, through, reason, attempts } = effect;
    const changeIds = this.#options.source.changeIds(after, through, this.#only(peer));
    const refusal: Refusal = { changeIds, reason, attempts };
    peer.pending = Math.max(0, peer.pending - changeIds.length);
    peer.refusedCount += changeIds.length;
    peer.refusedReason = reason;
    const { url, make } = peer;
    this.#options.post({ kind: "moved", peer: url, through, make, refusal });
  }

  #wakeLater(peer: Peer, pauseMs: number, action: () => void): void {
    peer.cancelTimer?.();
    peer.cancelTimer = this.#options.timers.after(pauseMs, () => {
      peer.cancelTimer = undefined;
      action();
    });
  }

  #sendInPace(peer: Peer, window: BatchWindow): void {
    const isPlain = window.through === undefined && window.skip === 0;
    const waiting = this.#settledThrough - window.after;
    const sinceMs = this.#options.clock.monotonicMs() - peer.lastSentMs;
    const pace = { lastCount: peer.lastCount, lastTookMs: peer.lastTookMs, sinceMs };
    const pauseMs = isPlain ? pacePauseMs(pace, waiting, this.#manyChanges) : 0;
    if (pauseMs <= 0) {
      this.#send(peer, window);
      return;
    }
    peer.paced = window;
    this.#wakeLater(peer, pauseMs, () => this.#send(peer, window));
  }

  #sendIfMany(peer: Peer): void {
    if (peer.paced === undefined) return;
    if (this.#settledThrough - peer.paced.after >= this.#manyChanges) this.#send(peer, peer.paced);
  }

  get #manyChanges(): number {
    return Math.min(UNPACED_CHANGES, this.#options.config.batchChangesMax);
  }

  #send(peer: Peer, window: BatchWindow): void {
    peer.cancelTimer?.();
    peer.cancelTimer = undefined;
    peer.paced = undefined;
    const read = this.#read(peer, window);
    if (read === undefined) return;
    switch (read.kind) {
      case "nothing":
        this.#take(peer, read);
        return;
      case "oversized": {
        const reason = `${read.sent.bytes} bytes for one change are more than any peer takes`;
        peer.lastError = reason;
        this.#take(peer, { kind: "too-large", sent: read.sent, reason });
        return;
      }
      case "batch":
        this.#post(peer, window, read.batch);
    }
  }

  #post(peer: Peer, window: BatchWindow, batch: Batch): void {
    const { body, ...sent } = batch;
    const rest = this.#restAfter(peer, sent);
    const identity = { db: this.#options.config.dbId, prev: peer.ackedBatchId, rest };
    const request = { peer: peer.url, batchId: sent.through, body, identity };
    const sentAtMs = this.#options.clock.nowMs();
    // One that is full shows a backlog, however few rows filled it.
    peer.lastCount = rest > 0 ? Number.POSITIVE_INFINITY : sent.count;
    peer.lastSentMs = this.#options.clock.monotonicMs();
    void this.#options.transport
      .send(request, this.#abort.signal)
      .then((outcome) => this.#answered(peer, sent, outcome, sentAtMs, identity.prev));
    if (rest >= this.#options.config.batchChangesMax && peer.link.kind === "sending") {
      this.#readAheadOf(peer, { ...window, after: sent.through, through: undefined });
    }
  }

  /** A batch, or undefined when the file could not be read just now: it is tried again. */
  #read(peer: Peer, window: BatchWindow): BatchRead | undefined {
    try {
      const read = this.#options.source.read(window, this.#settledThrough, this.#only(peer));
      if (peer.readFailures >= ATTEMPTS_MAX) this.#log("info", "the change log can be read again");
      peer.readFailures = 0;
      return read;
    } catch (error) {
      if (!isStoreError(error)) throw error;
      peer.readFailures += 1;
      if (peer.readFailures === ATTEMPTS_MAX) {
        this.#log("error", "the change log cannot be read", { error: error.message });
        peer.lastError = `the change log here cannot be read: ${error.message}`;
        this.#statusChanged();
      }
      const pauseMs = retryPauseMs(peer.readFailures, this.#options.random);
      this.#wakeLater(peer, pauseMs, () => this.#send(peer, window));
      return undefined;
    }
  }

  /**
   * Reads what follows while the batch is on its way, but not before everything that can be sent now
   * is: the answer then finds the next body made.
   */
  #readAheadOf(peer: Peer, window: BatchWindow): void {
    this.#readAhead.push({ window, peer });
    if (this.#readAhead.length > 1) return;
    this.#options.timers.soon(() => {
      for (const next of this.#readAhead.splice(0)) {
        if (this.#stopped) return;
        try {
          this.#options.source.read(next.window, this.#settledThrough, this.#only(next.peer));
        } catch (error) {
          // What cannot be read ahead is read, and reported, in its turn.
          if (!isStoreError(error)) throw error;
        }
      }
    });
  }

  #answered(peer: Peer, sent: Sent, outcome: Outcome, sentAtMs: number, prev: number): void {
    if (this.#stopped) return;
    if (outcome.reply !== undefined) this.#heard(peer, outcome.reply, sentAtMs);
    const wasDown = troubleOf(peer.link) === "down";
    let isSame = true;
    if (outcome.kind === "acked" || outcome.kind === "mismatched") {
      isSame = this.#recognise(peer, outcome.reply);
      this.#compareMark(peer, outcome.reply?.identity, isSame ? prev : 0);
      if (!isSame) this.#readHealth(peer);
    }
    peer.lastTookMs = this.#options.clock.monotonicMs() - peer.lastSentMs;
    peer.lastError = outcome.kind === "acked" ? undefined : outcome.reason;
    if (outcome.kind === "failed") peer.failedInDrain = true;
    this.#take(peer, toEvent(outcome, sent));
    // It was told of acknowledgements that were another file's, and sets no mark for such a batch.
    if (!isSame) peer.ackedBatchId = 0;
    if (outcome.kind === "acked" && (wasDown || !peer.healthRead)) this.#readHealth(peer);
  }

  #heard(peer: Peer, reply: Reply, sentAtMs: number): void {
    const nowMs = this.#options.clock.nowMs();
    peer.lastContactMs = nowMs;
    peer.healthFailures = 0;
    if (reply.serverTimeMs === undefined) return;
    // The stamp was cut to its second: half a second later is the best guess of when it was made.
    const offsetMs = reply.serverTimeMs + 500 - (sentAtMs + nowMs) / 2;
    peer.clockOffsetMs = Math.abs(offsetMs) < CLOCK_OFFSET_MS_MIN ? 0 : Math.round(offsetMs);
  }

  /**
   * Ours name themselves in every reply; what answers like a peer and does not is foreign. False where
   * another file answers than before: what that one acknowledged this one never did. It may still know of
   * changes that this node lost.
   */
  #recognise(peer: Peer, reply: Reply | undefined): boolean {
    const db = reply?.identity?.db;
    const isSame = peer.dbId === undefined || db === undefined || db === peer.dbId;
    if (!isSame) peer.ackedBatchId = 0;
    peer.make = db === undefined ? "foreign" : "ours";
    peer.dbId = db;
    return isSame;
  }

  /** The receiver's mark before the batch is what it acknowledged last, or somebody was restored. */
  #compareMark(peer: Peer, identity: Identity | undefined, prev: number): void {
    if (identity?.last === undefined) return;
    const { db, last, doubt } = identity;
    if (doubt !== undefined)
      this.#options.post({ kind: "mark-doubted", peer: peer.url, db, mark: doubt });
    if (last.batchId === prev) return;
    this.#options.post({ kind: "mark-differs", peer: peer.url, db, prev, last });
  }

  #readHealth(peer: Peer): void {
    if (peer.healthReading) return;
    peer.healthReading = true;
    peer.cancelHealthTimer?.();
    peer.cancelHealthTimer = undefined;
    if (this.#healthReads >= HEALTH_READS_MAX) {
      this.#healthQueue.push(peer);
      return;
    }
    this.#healthReads += 1;
    const sentAtMs = this.#options.clock.nowMs();
    const prev = peer.ackedBatchId;
    void this.#options.transport.readHealth(peer.url, this.#abort.signal).then((outcome) => {
      if (this.#stopped) return;
      peer.healthReading = false;
      this.#healthReads -= 1;
      this.#healthAnswered(peer, outcome, sentAtMs, prev);
      const next = this.#healthQueue.shift();
      if (next === undefined) return;
      next.healthReading = false;
      this.#readHealth(next);
    });
  }

  #healthAnswered(peer: Peer, outcome: HealthOutcome, sentAtMs: number, prev: number): void {
    if (outcome.kind === "failed") {
      this.#healthFailed(peer, outcome.reason);
    } else {
      peer.healthRead = true;
      this.#heard(peer, outcome.reply, sentAtMs);
      if (outcome.kind === "health") {
        peer.nodeId = outcome.health.nodeId;
        const isSame = this.#recognise(peer, outcome.reply);
        this.#options.post({ kind: "peer-health", health: outcome.health });
        this.#compareMark(peer, outcome.health.identity, isSame ? prev : 0);
      }
      if (peer.link.kind === "idle") peer.lastError = undefined;
    }
    this.#noteTrouble(peer);
    this.#statusChanged();
  }

  /** A peer that never answered is asked again, unless its link is trying anyway. */
  #healthFailed(peer: Peer, reason: string): void {
    peer.healthFailures += 1;
    if (peer.link.kind !== "idle") return;
    peer.lastError = reason;
    if (peer.healthRead) return;
    const { random, timers } = this.#options;
    const quick = peer.healthFailures <= ATTEMPTS_MAX;
    const pauseMs = quick
      ? retryPauseMs(peer.healthFailures, random)
      : slowPauseMs(peer.healthFailures - ATTEMPTS_MAX, random);
    peer.cancelHealthTimer = timers.after(pauseMs, () => {
      peer.cancelHealthTimer = undefined;
      if (peer.link.kind === "idle") this.#readHealth(peer);
    });
  }

  #becameIdle(peer: Peer): void {
    this.#countSettled();
    peer.pending = 0;
    // Nobody is at the place of a body made before; it would only take up memory.
    if (this.#peers.every(({ link }) => link.kind === "idle")) this.#options.source.forget();
  }

  /** What waits for this peer after the batch; 0 only if that is so. */
  #restAfter(peer: Peer, sent: Sent): number {
    this.#countSettled();
    const more = this.#count(sent.through, this.#settledThrough, 1, this.#only(peer)) > 0;
    return more ? Math.max(1, peer.pending - sent.count) : 0;
  }

  /** Adds what was settled since the last time to every peer's pending. */
  #countSettled(): void {
    const added = this.#count(this.#countedThrough, this.#settledThrough);
    this.#countedThrough = this.#settledThrough;
    if (added > 0) for (const peer of this.#peers) peer.pending += added;
  }

  #count(after: number, through: number, countMax = COUNTED_CHANGES_MAX, peer?: string): number {
    if (through <= after) return 0;
    try {
      const count = this.#options.source.count(after, through, countMax, peer);
      return count < COUNTED_CHANGES_MAX ? count : through - after;
    } catch (error) {
      if (!isStoreError(error)) throw error;
      return through - after;
    }
  }

  /** One line when a peer goes, one when it comes back. */
  #noteTrouble(peer: Peer): void {
    const outOfReach = peer.healthFailures >= ATTEMPTS_MAX ? "down" : undefined;
    const trouble = troubleOf(peer.link) ?? outOfReach;
    const before = peer.trouble;
    if (trouble === before) return;
    peer.trouble = trouble;
    const fields = { peer: peer.url, pending: peer.pending };
    if (trouble !== undefined) {
      this.#log("warn", TROUBLE_LINES[trouble].begins, { ...fields, error: peer.lastError });
    } else if (before !== undefined) {
      this.#log("info", TROUBLE_LINES[before].ends, fields);
    }
  }

  #logRefusals(peer: Peer): void {
    if (peer.refusedCount === 0) return;
    const { url, refusedCount: changes, refusedReason: reason } = peer;
    peer.refusedCount = 0;
    this.#log("warn", "peer refused changes: they are kept as dead letters", {
      peer: url,
      changes,
      reason,
    });
  }

  #drainIfDone(): void {
    if (this.#cancelDrainTimer === undefined) return;
    if (this.#peers.every(isDrained)) this.#endDrain();
  }

  #endDrain(): void {
    this.#cancelDrainTimer?.();
    this.#cancelDrainTimer = undefined;
    this.#countSettled();
    const pending = this.#peers.reduce((most, peer) => Math.max(most, peer.pending), 0);
    this.#options.post({ kind: "drained", pending });
  }

  #statusChanged(): void {
    if (this.#cancelStatusTimer !== undefined || this.#stopped) return;
    const { clock, timers } = this.#options;
    const pauseMs = this.#statusSentAtMs + STATUS_PAUSE_MS - clock.monotonicMs();
    if (pauseMs <= 0) {
      this.#sendStatus();
      return;
    }
    this.#cancelStatusTimer = timers.after(pauseMs, () => {
      this.#cancelStatusTimer = undefined;
      this.#sendStatus();
    });
  }

  #sendStatus(): void {
    this.#statusSentAtMs = this.#options.clock.monotonicMs();
    this.#countSettled();
    this.#options.post({ kind: "status", peers: this.#peers.map(statusOf) });
  }

  #log(level: LogLevel, message: string, fields: Record<string, unknown> = {}): void {
    this.#options.post({ kind: "log", level, message, fields });
  }
}

/** The batch before: its changes, how long its answer took, and how long ago it was sent. */
export interface LastBatch {
  readonly lastCount: number;
  readonly lastTookMs: number;
  readonly sinceMs: number;
}

/**
 * How long a batch should still wait for company; `waiting` changes are there already, and `many` are
 * reason enough not to wait.
 */
export function pacePauseMs(last: LastBatch, waiting: number, many: number): number {
  // As many as that show a backlog; it is sent as fast as the peer takes it.
  const isBusy = last.lastCount >= PACED_CHANGES_MIN && last.lastCount < many;
  if (!isBusy || waiting === 0 || waiting >= many) return 0;
  const paceMs = Math.min(PACE_MS_MAX, Math.max(PACE_MS, PACE_ROUND_TRIPS * last.lastTookMs));
  return Math.max(0, paceMs - last.sinceMs);
}

const TROUBLE_LINES: Readonly<Record<Trouble, { begins: string; ends: string }>> = {
  down: {
    begins: "peer cannot be reached; its changes are kept",
    ends: "peer answers again",
  },
  "not-admitted": {
    begins: "peer does not admit this node; its changes are kept",
    ends: "peer admits this node again",
  },
  refusing: {
    begins: "peer refuses all changes; they are kept",
    ends: "peer takes changes again",
  },
};

function openPeer(start: PeerStart): Peer {
  return {
    url: start.url,
    isHeld: start.isHeld ?? false,
    link: openLink(start.watermark),
    ackedBatchId: start.prev,
    pending: 0,
    cancelTimer: undefined,
    paced: undefined,
    lastCount: 0,
    lastSentMs: 0,
    lastTookMs: 0,
    readFailures: 0,
    trouble: undefined,
    nodeId: undefined,
    make: undefined,
    dbId: start.dbId,
    lastError: undefined,
    lastContactMs: undefined,
    clockOffsetMs: undefined,
    healthRead: false,
    healthReading: false,
    healthFailures: 0,
    cancelHealthTimer: undefined,
    refusedCount: 0,
    refusedReason: "",
    failedInDrain: false,
  };
}

function toEvent(outcome: Outcome, sent: Sent): LinkEvent {
  switch (outcome.kind) {
    case "acked":
      return { kind: "acked", sent };
    case "mismatched":
    case "refused":
    case "too-large":
      return { kind: outcome.kind, sent, reason: outcome.reason };
    case "not-admitted":
      return { kind: "not-admitted", retryAfterMs: outcome.retryAfterMs };
    case "failed": {
      const { retryAfterMs, cutOff } = outcome;
      return { kind: "failed", sent, retryAfterMs, cutOff };
    }
  }
}

/** Whether a drain need not wait for this peer: it has everything, or waiting will not help. */
function isDrained(peer: Peer): boolean {
  const { link } = peer;
  switch (link.kind) {
    case "idle":
    case "refusing":
    case "not-admitted":
      return true;
    case "sending":
      return false;
    case "waiting":
    case "bisecting":
      if (link.pause === "asked") return true;
      return link.pause === "backoff" && peer.trouble === "down" && peer.failedInDrain;
  }
}

function stateName(link: PeerLink): PeerStateName {
  switch (link.kind) {
    case "sending":
    case "waiting":
      return link.series.trouble ?? link.kind;
    case "bisecting":
      return link.bisection.trouble ?? link.kind;
    default:
      return link.kind;
  }
}

function statusOf(peer: Peer): PeerStatus {
  return {
    url: peer.url,
    state: stateName(peer.link),
    nodeId: peer.nodeId,
    make: peer.make,
    dbId: peer.dbId,
    lastAcked: peer.link.watermark,
    pending: peer.pending,
    lastError: peer.lastError,
    lastContactMs: peer.lastContactMs,
    clockOffsetMs: peer.clockOffsetMs,
  };
}
