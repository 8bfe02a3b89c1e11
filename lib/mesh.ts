/**
 * A node among its peers: who they are, how far they have come, and what to do when one of them turns
 * out to be new, restored, or a twin (DESIGN.md, "Identity"). Owns the shipper; whoever the
 * peers are can change while the node runs.
 *
 * Invariants:
 *   M1  a peer that is new to a node with content, or lost what it had acknowledged, is filled.
 *   M2  network faults alone never start a fill: only a mark below what was acknowledged when the
 *       request left, or another file behind the same address, does.
 *   M3  whether a new peer must be filled is decided, and kept, before anything is shipped to it: only
 *       then its mark says what it had of this file before.
 *   M4  a removed peer stops holding the log at once.
 */
import type { Clock, Timers } from "./base/clock.ts";
import { RequestError } from "./base/errors.ts";
import type { Logger } from "./base/log.ts";
import type { Random } from "./base/random.ts";
import type { Config } from "./config.ts";
import type { MemberReport, Membership } from "./http/peer-routes.ts";
import type { Identity } from "./protocol/identity.ts";
import { PEERS_MAX } from "./protocol/limits.ts";
import { isOwnAddress } from "./protocol/own-address.ts";
import type { PeerHealth } from "./protocol/peer.ts";
import { parsePeerUrl } from "./protocol/peer-url.ts";
import { relationOf, type Self, twinWarnings } from "./protocol/twins.ts";
import { REPAIR_DB } from "./shipper/comparison.ts";
import { type ShipperHandle, type ShipperHandleOptions, startShipper } from "./shipper/handle.ts";
import type { FromShipper, PeerStatus } from "./shipper/messages.ts";
import { answered, callNode, complaint, listedPeers } from "./shipper/node-client.ts";
import { NEW_PEER } from "./store/peers.ts";
import {
  Acknowledged,
  type HeardHealth,
  isEveryoneCaughtUp,
  repeatsEndBefore,
} from "./store/quiet.ts";
import type { Store } from "./store/store.ts";

/** What a Mesh works with; clock, timers, chance and threads come in from outside. */
export interface MeshOptions {
  readonly config: Config;
  readonly store: Store;
  readonly path: string;
  readonly workerUrl: URL;
  readonly log: Logger;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
  /** Of this process; without it a copy of its file cannot be told from itself. */
  readonly run?: string;
  /** Rows over all tables, for the word to an empty node. */
  readonly itemCount: () => number;
  readonly reportError: (error: unknown, what: string) => void;
  readonly remoteAddress: (request: Request) => string | undefined;
  /** Something may be nobody's to send: a peer was removed, or went on from where a copy of a file was. */
  readonly onDoubt: () => void;
  /** Where shipping runs; in a worker if not said otherwise. The simulator has no threads. */
  readonly startShipper?: (options: ShipperHandleOptions) => ShipperHandle;
}

/** Acknowledgements wait this long for company, so that each does not cost a commit of its own. */
const MOVES_PAUSE_MS = 10;
/** The size of the log, the quiet of foreign peers and old deletes are looked at more often than peers. */
const LOOKS_PER_HEALTH = 2;
/** Between two fills of one peer; doubled each time up to the other, and forgotten after that. */
const FILL_PAUSE_MS = 5_000;
const FILL_PAUSE_MS_MAX = 3_600_000;
/** A node that shipped here under this node's --id is spoken of for so long. */
const NAMESAKE_MS = 3_600_000;
const LOST = "it lost what it had acknowledged (a restored backup?)";
/** Between two comparisons for what a former file sent: two nodes with one --id look like that, too. */
const LATE_PAUSE_MS = 600_000;
/** Until shipping, which was ended for a change of the peers, is started again when it could not be. */
const RESTART_PAUSE_MS = 1_000;
const FOREIGN_SETTING = "foreign-senders";
/** Between attempts to join a mesh that is not there yet: this long times the attempt, up to the other. */
const JOIN_PAUSE_MS = 2_000;
const JOIN_PAUSE_MS_MAX = 60_000;
/** A peer with this many rows that will not send them by itself is worth a word at start. */
const MANY_ROWS = 1_000_000;

type Moved = Extract<FromShipper, { kind: "moved" }>;
type ToldMark = Omit<Extract<FromShipper, { kind: "mark-differs" }>, "kind">;

/** Peers added and removed while running, kept in the file beside those of the configuration. */
interface KeptPeers {
  readonly added: readonly string[];
  readonly removed: readonly string[];
}

/** One per running node, and what its /peers routes ask. Ships from `start` until `stop`. */
export class Mesh implements Membership {
  readonly #options: MeshOptions;
  readonly #peerHealth = new Map<string, HeardHealth>();
  readonly #acknowledged = new Map<string, Acknowledged>();
  /** By db id: what our senders said last that they still have for us. */
  readonly #restOf = new Map<string, number>();
  readonly #warnings = new Map<string, string>();
  /** Marks that were dealt with: the same one comes with every reply until the peer moves on. */
  readonly #judgedMarks = new Map<string, string>();
  readonly #judgedDoubts = new Map<string, string>();
  /** When each peer's last fill began, how long the next one waits at least, and whether that is too often. */
  readonly #fills = new Map<string, { atMs: number; pauseMs: number; isRepeated: boolean }>();
  /** Peers whose fill is about to begin. */
  readonly #beginning = new Set<string>();
  /** By db id: when a node with this one's --id shipped here last. */
  readonly #namesakes = new Map<string, number>();
  /** Ids of nodes of other makes that shipped here, as the file has them. */
  #foreign: Set<string> | undefined;
  /** Members of a mesh that was joined with an empty file: what is in it now came from there. */
  readonly #joinedEmpty = new Set<string>();
  /** What the log was told of twins. */
  #toldTwins: readonly string[] = [];
  #shipper: ShipperHandle | undefined;
  #moves: Moved[] = [];
  /** A batch came of a file that its node has no more: what was in it is nobody's to send. */
  #hasLateBatch = false;
  #lateDoubtMs = Number.NEGATIVE_INFINITY;
  #isPersisting = false;
  #isStopping = false;
  #healthReadMs = 0;
  #lookedMs = 0;
  #restarting: Promise<void> = Promise.resolve();
  #changing: Promise<void> = Promise.resolve();

  constructor(options: MeshOptions) {
    this.#options = options;
  }

  /** Starts shipping to the peers of the configuration and of the file. Returns those that are new. */
  start(): readonly string[] {
    const { store, clock } = this.#options;
    this.#healthReadMs = clock.monotonicMs();
    const { starts, added } = store.configurePeers(this.#urls(), normalise);
    this.#startShipper(starts);
    return added;
  }

  settled(through: number, rewritten: boolean): void {
    this.#shipper?.settled(through, rewritten, this.#options.store.isFilling);
  }

  /** A batch from this sender was committed. */
  heard(identity: Identity | undefined, nodeId?: string): void {
    if (identity?.rest !== undefined) this.#restOf.set(identity.db, identity.rest);
    if (identity === undefined && nodeId !== undefined) this.#meetForeign(nodeId);
    if (this.#isOfFormerFile(identity, nodeId)) this.#hasLateBatch = true;
    if (identity === undefined || nodeId !== this.#options.config.id) return;
    const { db } = identity;
    // Repairs are sent by whoever compares, also by this node itself.
    if (db === REPAIR_DB || db === this.#options.store.dbId) return;
    if (!this.#namesakes.has(db) && this.#namesakes.size >= PEERS_MAX) return;
    this.#namesakes.set(db, this.#options.clock.monotonicMs());
    this.#tellTwins();
  }

  /** Sent, and long on its way, before this node came to have the file that it has now. */
  #isOfFormerFile(identity: Identity | undefined, nodeId: string | undefined): boolean {
    if (identity === undefined || nodeId === undefined) return false;
    if (identity.db === REPAIR_DB) return false;
    const heard = [...this.#peerHealth.values()].map(({ health }) => health);
    if (heard.some((peer) => peer.identity?.db === identity.db)) return false;
    return heard.some((peer) => peer.identity !== undefined && peer.nodeId === nodeId);
  }

  /**
   * A node of another make that ships here for the first time was told of this one just now: what it
   * wrote before, others of ours have from it, and nobody sends it here by himself.
   */
  #meetForeign(nodeId: string): void {
    const { store } = this.#options;
    this.#foreign ??= new Set(JSON.parse(store.keptSetting(FOREIGN_SETTING) ?? "[]") as string[]);
    if (this.#foreign.has(nodeId) || this.#foreign.size >= PEERS_MAX) return;
    this.#foreign.add(nodeId);
    this.#options.onDoubt();
    this.#inBackground(
      store.keepSetting(FOREIGN_SETTING, JSON.stringify([...this.#foreign])),
      FOREIGN_SETTING,
    );
  }

  status(): readonly PeerStatus[] {
    return this.#shipper?.status() ?? [];
  }

  warnings(): readonly string[] {
    return [
      ...this.#warnings.values(),
      ...this.#twins(),
      ...this.#fillWarnings(),
      ...this.#clockWarning(),
    ];
  }

  get urls(): readonly string[] {
    return this.#urls();
  }

  /** Peers of the configuration that were removed while running, and stay so until they are added again. */
  get removed(): readonly string[] {
    const { removed } = this.#kept();
    return this.#options.config.peers.filter((url) => removed.includes(url));
  }

  /** Ships what waits, at most this long, and ends the worker. Returns what the last peer lacks. */
  async stop(withinMs: number): Promise<number> {
    this.#isStopping = true;
    await this.#restarting;
    const pending = (await this.#shipper?.drain(withinMs)) ?? 0;
    await this.#shipper?.stop();
    const { store } = this.#options;
    // What was acknowledged last and is not noted is sent again after the next start.
    if (this.#moves.length > 0) await store.recordMoves(this.#moves).catch(() => undefined);
    return pending;
  }

  #startShipper(peers: ReturnType<Store["configurePeers"]>["starts"]): void {
    const { config, store, path, workerUrl, clock, random, timers } = this.#options;
    const undecided = store.peers.rows().filter(({ fillWanted }) => fillWanted === NEW_PEER);
    const held = new Set(undecided.map(({ url }) => url));
    const start = this.#options.startShipper ?? startShipper;
    this.#shipper = start({
      workerUrl,
      config: {
        dbPath: path,
        nodeId: config.id,
        dbId: store.dbId,
        nodeUrl: config.nodeUrl,
        batchChangesMax: config.batchChangesMax,
        batchBytesMax: config.batchBytesMax,
        requestTimeoutMs: config.requestTimeoutMs,
        useProxy: config.useProxy,
        settledThrough: store.settledThrough,
        targeted: store.isFilling,
        peers: peers.map((peer) => ({ ...peer, isHeld: held.has(peer.url) })),
      },
      onMessage: (message) => this.#onShipper(message),
      clock,
      random,
      timers,
    });
  }

  /**
   * With other peers, or after `change`, which nothing that was acknowledged before it may outlive. One
   * at a time. What cannot be written just now leaves the node shipping as before.
   */
  #restartShipper(change: () => Promise<void> = async () => {}): Promise<void> {
    const restarted = this.#restarting.then(async () => {
      if (this.#isStopping) return;
      await this.#shipper?.stop();
      try {
        await this.#persistAll();
        await change();
      } finally {
        this.#startAgain();
      }
    });
    this.#restarting = restarted.catch(() => undefined);
    return restarted;
  }

  #startAgain(): void {
    const { store, timers, reportError } = this.#options;
    if (this.#isStopping) return;
    try {
      this.#startShipper(store.configurePeers(this.#urls(), normalise).starts);
    } catch (error) {
      reportError(error, "peers");
      timers.after(RESTART_PAUSE_MS, () => this.#inBackground(this.#restartShipper(), "peers"));
    }
  }

  /** To the peers this is another file from now on, unless it became one since it was `dbId`. */
  #becomeAnother(dbId: string): Promise<void> {
    const { store, random } = this.#options;
    return this.#restartShipper(async () => {
      if (store.dbId === dbId) await store.becomeAnother(random);
    });
  }

  /** What peers acknowledged is gone from the file: shipping starts again at the log's beginning. */
  relearn(): void {
    this.#inBackground(this.#restartShipper(), "peers");
  }

  // ── What the shipper says ───────────────────────────────────────────────────────────────────

  #onShipper(message: FromShipper): void {
    switch (message.kind) {
      case "moved":
        this.#moves.push(message);
        this.#persistSoon();
        return;
      case "log":
        this.#options.log.log(message.level, message.message, message.fields);
        return;
      case "peer-health":
        this.#inBackground(this.#onPeerHealth(message.health), message.health.url);
        return;
      case "mark-differs":
        this.#inBackground(this.#onMark(message), message.peer);
        return;
      case "mark-doubted": {
        // Below what it acknowledged or not: it says nothing of what this peer has.
        const { peer, db, mark } = message;
        const judged = { peer, db, prev: 0, last: mark };
        this.#inBackground(this.#onMark(judged, this.#judgedDoubts), peer);
        return;
      }
      case "status":
        for (const peer of message.peers) this.#inBackground(this.#onStatus(peer), peer.url);
        return;
      default:
    }
  }

  #inBackground(work: Promise<void>, what: string): void {
    work.catch((error) => this.#options.reportError(error, what));
  }

  #persistSoon(): void {
    if (this.#isPersisting) return;
    this.#isPersisting = true;
    this.#options.timers.after(MOVES_PAUSE_MS, () => void this.#persist());
  }

  async #persist(): Promise<void> {
    try {
      await this.#persistAll();
    } catch (error) {
      this.#options.reportError(error, "watermarks");
    }
    this.#isPersisting = false;
    if (this.#moves.length > 0 && !this.#isStopping) this.#persistSoon();
  }

  /** Watermarks, refusals and pruning of all that came in, in one transaction. */
  async #persistAll(): Promise<void> {
    const moves = this.#moves;
    this.#moves = [];
    try {
      if (moves.length > 0) await this.#options.store.recordMoves(moves);
    } catch (error) {
      // They stay in the log and are kept for the next time; after a restart they are sent again.
      this.#moves = [...moves, ...this.#moves];
      throw error;
    }
  }

  #heardNow(health: PeerHealth, nowMs: number): HeardHealth {
    const { url } = health;
    const acknowledged = this.#acknowledged.get(url) ?? new Acknowledged();
    this.#acknowledged.set(url, acknowledged);
    const peer = this.status().find((one) => one.url === url);
    const ackedMs = acknowledged.heard(peer, this.#options.store.settledThrough, nowMs);
    return { health, atMs: nowMs, ackedMs };
  }

  async #onPeerHealth(health: PeerHealth): Promise<void> {
    const { store, clock } = this.#options;
    const isFirst = !this.#peerHealth.has(health.url);
    this.#peerHealth.set(health.url, this.#heardNow(health, clock.nowMs()));
    if (await this.#removeSelf(health)) return;
    this.#tellTwins();
    const relation = relationOf(this.#self, health);
    const learned = await store.learnPeer(health);
    if (learned === undefined) return;
    if (relation === "copy") await this.#partFromCopy(health.url);
    if (relation !== "other") return;
    const { identity } = health;
    const { fillWanted } = learned;
    // What we have of an earlier file of this node is not in this one, and nobody would know.
    if (learned.isFirst && fillWanted === null && store.hasContent) this.#options.onDoubt();
    if (fillWanted !== null) {
      const last = identity?.last?.batchId ?? 0;
      // It was a peer before, or started from a copy of a file of this mesh.
      const isOriginal = identity !== undefined && store.isCopyOf(identity.db);
      const isUnfilled = identity !== undefined && store.peers.isUnfilled(identity.db);
      const hasAll = !isUnfilled && (isOriginal || (last > 0 && last >= store.prunedThrough));
      const knowsUs = hasAll && fillWanted === NEW_PEER;
      if (knowsUs) {
        await store.needNoFill(health.url);
        this.#shipper?.release(health.url);
        this.#options.onDoubt();
      } else await this.#fillOrSpare(health.url, fillWanted);
    }
    if (isFirst && !identity) this.#adviseEmpty(health);
  }

  /** A file that is a copy of a peer's may name this node among its peers. */
  async #removeSelf(health: PeerHealth): Promise<boolean> {
    const { config, log } = this.#options;
    const { url } = health;
    const isSelf = relationOf(this.#self, health) === "self";
    if (!isSelf || config.peers.includes(url)) return false;
    log.info("a peer that the file names is this very node; it is removed", { peer: url });
    return this.remove(url);
  }

  /**
   * Two processes on copies of one file pass for one another everywhere. From now on this is another
   * file to the peers, the copy, too, and they fill it and each other.
   */
  async #partFromCopy(url: string): Promise<void> {
    const { store, log } = this.#options;
    log.warn("a peer runs on a copy of this node's file; from now on this one is another file", {
      peer: url,
    });
    await store.wantFill(url, "it ran on a copy of this file");
    await this.#becomeAnother(store.dbId);
  }

  get #self(): Self {
    const { config, store, run } = this.#options;
    return { nodeId: config.id, db: store.dbId, run };
  }

  #twins(): string[] {
    const heard = this.#urls().flatMap((url) => this.#peerHealth.get(url)?.health ?? []);
    const nowMs = this.#options.clock.monotonicMs();
    const isNamesakeKnown = (db: string) => heard.some(({ identity }) => identity?.db === db);
    const hasNamesake = [...this.#namesakes].some(
      ([db, atMs]) => nowMs - atMs < NAMESAKE_MS && !isNamesakeKnown(db),
    );
    const warnings = twinWarnings(this.#self, heard);
    if (!hasNamesake) return warnings;
    return [
      ...warnings,
      "a node that ships to this one has the same --id, and is none of its peers: give each its own",
    ];
  }

  #tellTwins(): void {
    const twins = this.#twins();
    for (const text of twins.filter((one) => !this.#toldTwins.includes(one)))
      this.#options.log.warn(text);
    this.#toldTwins = twins;
  }

  #adviseEmpty(health: PeerHealth): void {
    if (this.#options.itemCount() > 0 || (health.itemCount ?? 0) < MANY_ROWS) return;
    this.#options.log.warn(
      "this node is empty and a peer of another make holds many rows, which it will not send by itself: stop, and start from a copy of its file",
      { peer: health.url, rows: health.itemCount },
    );
  }

  /** A peer of another make shows by any answer that it is there; ours say in /health what they need. */
  async #onStatus(peer: PeerStatus): Promise<void> {
    const isThere = peer.make === "foreign" || hasAnswered(peer);
    if (!isThere) return;
    const row = this.#options.store.peers.rows().find(({ url }) => url === peer.url);
    if (row?.fillWanted == null) return;
    await this.#fillOrSpare(peer.url, row.fillWanted);
  }

  async #fillOrSpare(url: string, reason: string): Promise<void> {
    const { store } = this.#options;
    const hasAll = this.#joinedEmpty.has(url) && store.prunedThrough === 0;
    if (reason !== NEW_PEER || !hasAll) {
      await this.#fill(url, reason);
      return;
    }
    await store.needNoFill(url);
    this.#shipper?.release(url);
  }

  async #onMark(told: ToldMark, judged = this.#judgedMarks): Promise<void> {
    const { peer, db, prev, last } = told;
    const key = `${db} ${prev} ${last.batchId} ${last.hash}`;
    if (judged.get(peer) === key) return;
    judged.set(peer, key);
    try {
      await this.#judgeMark(told);
    } catch (error) {
      judged.delete(peer);
      throw error;
    }
  }

  async #judgeMark({ peer, prev, last }: ToldMark): Promise<void> {
    const { store, log } = this.#options;
    switch (store.judgeMark(prev, last)) {
      case "lost":
        await this.#fill(peer, LOST);
        return;
      case "restored":
        log.warn(
          "a peer knows changes that this file never made: it was restored from a backup; from now on it is another file to the peers, and they fill it",
          { peer, their_mark: last.batchId },
        );
        await this.#becomeAnother(store.dbId);
        return;
      default:
    }
  }

  /**
   * A peer that needs everything again and again is several nodes behind one address, or answers with
   * another's mark: each fill waits longer than the one before, and that is said.
   */
  async #fill(url: string, reason: string): Promise<void> {
    const { clock, store, log } = this.#options;
    // Several messages may ask before the file says that it has begun; it sends what any of them wants.
    if (this.#beginning.has(url)) return;
    const nowMs = clock.monotonicMs();
    const last = this.#fills.get(url);
    if (last !== undefined && nowMs - last.atMs < last.pauseMs) {
      // A restored peer may ask twice: for what it lacks, and once more when it has become another file.
      if (last.pauseMs > FILL_PAUSE_MS && !last.isRepeated) {
        last.isRepeated = true;
        log.warn(tooManyFills(url));
      }
      await store.wantFill(url, reason === NEW_PEER ? "it is new once more" : reason);
      this.#shipper?.release(url);
      return;
    }
    const wasLongAgo = last === undefined || nowMs - last.atMs > FILL_PAUSE_MS_MAX;
    const pauseMs = wasLongAgo ? FILL_PAUSE_MS : Math.min(FILL_PAUSE_MS_MAX, last.pauseMs * 2);
    const isRepeated = !wasLongAgo && last.isRepeated;
    this.#fills.set(url, { atMs: nowMs, pauseMs, isRepeated });
    this.#warnings.delete(`cut ${url}`);
    log.info("filling a peer: it gets every row and every delete", {
      peer: url,
      reason,
    });
    this.#beginning.add(url);
    const begin = async () => void (await store.fill(url, reason));
    try {
      // The peer's mark stands still until it hears that what it lost is not taken for granted any more.
      await (reason === LOST ? this.#restartShipper(begin) : begin());
      this.#shipper?.release(url);
    } catch (error) {
      // The disk is full, or the file locked: one that did not begin is none that the next has to wait for.
      if (last === undefined) this.#fills.delete(url);
      else this.#fills.set(url, last);
      throw error;
    } finally {
      this.#beginning.delete(url);
    }
  }

  #fillWarnings(): string[] {
    const nowMs = this.#options.clock.monotonicMs();
    return [...this.#fills]
      .filter(([, { atMs, isRepeated }]) => isRepeated && nowMs - atMs <= FILL_PAUSE_MS_MAX)
      .map(([url]) => tooManyFills(url));
  }

  // ── From time to time ───────────────────────────────────────────────────────────────────────

  /** Called with every tick of the node. */
  async look(): Promise<void> {
    const { clock, store, config, log } = this.#options;
    const nowMs = clock.monotonicMs();
    if (nowMs - this.#healthReadMs >= config.healthMs) {
      this.#healthReadMs = nowMs;
      this.#shipper?.readHealth();
    }
    if (nowMs - this.#lookedMs < config.healthMs / LOOKS_PER_HEALTH) return;
    this.#lookedMs = nowMs;
    if (this.#hasLateBatch && nowMs - this.#lateDoubtMs >= LATE_PAUSE_MS) {
      this.#hasLateBatch = false;
      this.#lateDoubtMs = nowMs;
      this.#options.onDoubt();
    }
    const cutOff = await store.cutLog(config.logBytesMax);
    if (cutOff !== undefined) {
      this.#warnings.set(
        `cut ${cutOff}`,
        `the log reached --log-max: ${cutOff} was cut off and is filled when it returns`,
      );
      log.warn(
        "the log reached --log-max: the slowest peer is cut off and is filled when it returns",
        { peer: cutOff },
      );
    }
    await this.#endRepeats();
  }

  /** When everyone has everything, repeats end and old deletes may be forgotten. */
  async #endRepeats(): Promise<void> {
    const { store, clock } = this.#options;
    const heard = this.#peerHealth;
    const endsBeforeMs = repeatsEndBefore(heard.values(), clock.nowMs());
    if (store.healing.isWaiting && endsBeforeMs !== undefined) await store.endRepeats(endsBeforeMs);
    const hasHub = [...heard.values()].some(({ health }) => health.hub);
    const isCaughtUp = isEveryoneCaughtUp(this.status(), heard, this.#restOf, clock.nowMs());
    await store.forgetTombstones(isCaughtUp, hasHub);
    // Every minute is enough for old deletes; repeats should end when they can.
    if (store.healing.isWaiting) this.#shipper?.readHealth();
  }

  /** If most peers are ahead, it is our clock that is wrong. */
  #clockWarning(): string[] {
    const offsets = this.status().flatMap((peer) => peer.clockOffsetMs ?? []);
    const wrong = offsets.filter((offset) => Math.abs(offset) > 60_000);
    if (wrong.length === 0) return [];
    if (wrong.length > offsets.length / 2) {
      return [
        `this node's clock differs by ${Math.round(wrong[0]! / 1_000)} s from most peers: set it right`,
      ];
    }
    return [
      `the clock of ${wrong.length} of ${offsets.length} peers differs by more than a minute; see clock_offset_ms`,
    ];
  }

  // ── Membership ──────────────────────────────────────────────────────────────────────────────

  get ownUrl(): string | null {
    return this.#options.config.nodeUrl ?? null;
  }

  get adminToken(): string | undefined {
    return this.#options.config.adminToken;
  }

  remoteAddress(request: Request): string | undefined {
    return this.#options.remoteAddress(request);
  }

  peers(): readonly MemberReport[] {
    const status = new Map(this.status().map((peer) => [peer.url, peer]));
    // What was heard of it before it is heard again: a start, or a change of the peers, is no reason to forget.
    const known = new Map(this.#options.store.peers.rows().map((row) => [row.url, row]));
    return this.#urls().map((url) => ({
      url,
      node_id: status.get(url)?.nodeId ?? known.get(url)?.nodeId ?? null,
      make: status.get(url)?.make ?? known.get(url)?.make ?? null,
      configured: this.#options.config.peers.includes(url),
    }));
  }

  async add(url: string): Promise<boolean> {
    return (await this.#addAll([url])).length > 0;
  }

  /** At once, so that shipping starts anew once. Returns those that were no peers before. */
  #addAll(asked: readonly string[]): Promise<string[]> {
    return this.#inTurn(() => this.#addNow(asked));
  }

  /** Changes of the peers begin with what the one before left: several may be asked for at once. */
  #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const done = this.#changing.then(change);
    this.#changing = done.then(
      () => undefined,
      () => undefined,
    );
    return done;
  }

  async #addNow(asked: readonly string[]): Promise<string[]> {
    const { config } = this.#options;
    const self = asked.find(
      (url) => url === config.nodeUrl || isOwnAddress(url, { ...config.listen, hosts: [] }),
    );
    if (self !== undefined) throw new RequestError(400, `${self} is this node itself`);
    const known = this.#urls();
    const wanted = [...new Set(asked)];
    const urls = wanted.filter((url) => !known.includes(url));
    if (known.length + urls.length > PEERS_MAX)
      throw new RequestError(409, `there are ${PEERS_MAX} peers already`);
    const kept = this.#kept();
    // Those of the configuration, too: what was asked for holds when that names them no more.
    const next = {
      added: [...new Set([...kept.added, ...wanted])],
      removed: kept.removed.filter((other) => !wanted.includes(other)),
    };
    if (urls.length > 0) await this.#keep(next);
    else if (next.added.length > kept.added.length) await this.#write(next);
    return urls;
  }

  remove(url: string): Promise<boolean> {
    return this.#inTurn(() => this.#removeNow(url));
  }

  async #removeNow(url: string): Promise<boolean> {
    if (!this.#urls().includes(url)) return false;
    const kept = this.#kept();
    const isConfigured = this.#options.config.peers.includes(url);
    await this.#keep({
      added: kept.added.filter((other) => other !== url),
      removed: isConfigured ? [...kept.removed, url] : kept.removed,
    });
    this.#peerHealth.delete(url);
    this.#acknowledged.delete(url);
    this.#fills.delete(url);
    for (const what of ["cut", "join"]) this.#warnings.delete(`${what} ${url}`);
    this.#options.onDoubt();
    return true;
  }

  async fill(url: string): Promise<boolean> {
    if (!this.#urls().includes(url)) return false;
    this.#fills.delete(url);
    await this.#fill(url, "somebody asked for it");
    return true;
  }

  async #keep(kept: KeptPeers): Promise<void> {
    await this.#write(kept);
    await this.#restartShipper();
  }

  #write(kept: KeptPeers): Promise<void> {
    return this.#options.store.keepSetting("peers", JSON.stringify(kept));
  }

  #urls(): string[] {
    const { added, removed } = this.#kept();
    const all = [
      ...this.#options.config.peers,
      ...added.filter((url) => !this.#options.config.peers.includes(url)),
    ];
    return all.filter((url) => !removed.includes(url));
  }

  #kept(): KeptPeers {
    const text = this.#options.store.keptSetting("peers");
    return text === undefined ? { added: [], removed: [] } : (JSON.parse(text) as KeptPeers);
  }

  /**
   * `--join`: everyone of ours in the mesh of that node adds us, and we add them. Nodes of another make
   * are told to the log, with the flag to give them. Tried until everyone took us in.
   */
  async join(through: string, attempt = 1): Promise<void> {
    if (this.#isStopping || (await this.#tryJoin(through, attempt === 1))) return;
    const { timers, reportError } = this.#options;
    const pauseMs = Math.min(JOIN_PAUSE_MS_MAX, JOIN_PAUSE_MS * attempt);
    timers.after(pauseMs, () => {
      this.join(through, attempt + 1).catch((error) => reportError(error, "join"));
    });
  }

  /**
   * Every node of ours has /peers: one that knows no such path is of another make. This very node, under
   * a name that it does not know to be its own, refuses itself.
   */
  async #askToTakeIn(
    url: string,
  ): Promise<"taken" | "foreign" | "self" | { readonly complaint: string }> {
    const { nodeUrl, adminToken } = this.#options.config;
    const answer = await callNode({
      node: url,
      method: "POST",
      path: "/peers",
      body: { url: nodeUrl },
      token: adminToken,
    });
    if (typeof answered(answer, "added") === "boolean") return "taken";
    const isForeign =
      answer.kind === "answered" && (answer.status === 404 || answer.status === 405);
    if (isForeign) return "foreign";
    const health = await callNode({ node: url, method: "GET", path: "/health" });
    const identity = health.kind === "answered" ? health.identity : undefined;
    const isSelf = relationOf(this.#self, { identity }) === "self";
    return isSelf ? "self" : { complaint: complaint(answer) };
  }

  async #tryJoin(through: string, isFirst: boolean): Promise<boolean> {
    const { config, log } = this.#options;
    const level = isFirst ? "error" : "debug";
    const asked = await callNode({ node: through, method: "GET", path: "/peers" });
    const known = listedPeers(asked);
    if (known === undefined) {
      log.log(level, "cannot join the mesh yet; it is tried again", {
        through,
        error: complaint(asked),
      });
      this.#warnings.set("join", `cannot join through ${through} yet: ${complaint(asked)}`);
      return false;
    }
    const members = [
      { url: through, make: "ours" },
      ...known.filter(({ url }) => url !== config.nodeUrl),
    ];
    const isEmpty = !this.#options.store.hasContent;
    const found: string[] = [];
    let isComplete = true;
    for (const { url, make } of members) {
      const taken = make === "foreign" ? "foreign" : await this.#askToTakeIn(url);
      if (taken === "self") {
        if (url !== through) continue;
        // Under a name that several nodes share, another of them may answer the next time.
        const text = `cannot join through ${through}: that is this node itself; give --join the address of another node of the mesh`;
        log.log(level, text);
        this.#warnings.set("join", text);
        return false;
      }
      if (taken === "foreign") {
        log.log(
          isFirst ? "warn" : "debug",
          "a node of another make must be told of this one by hand, for the rows that it writes from then on",
          {
            peer: url,
            flag: `--peer ${config.nodeUrl}`,
          },
        );
      } else if (taken !== "taken") {
        isComplete = false;
        const text = `${url} did not take this node in yet: ${taken.complaint}`;
        log.log(level, "a node of the mesh did not take this one in yet; it is tried again", {
          peer: url,
          error: taken.complaint,
        });
        this.#warnings.set(`join ${url}`, text);
        continue;
      }
      this.#warnings.delete(`join ${url}`);
      found.push(url);
    }
    this.#warnings.delete("join");
    if (isEmpty) for (const url of found) this.#joinedEmpty.add(url);
    await this.#addAll(found);
    if (isComplete) log.info("joined the mesh", { through, members: members.length });
    return isComplete;
  }
}

/** Something that has no /health of a node. A proxy whose node is away, or a node that starts, fails. */
function hasAnswered({ make, state, lastContactMs, lastError }: PeerStatus): boolean {
  const isFine = state === "idle" && lastError === undefined;
  return make === undefined && isFine && lastContactMs !== undefined;
}

function tooManyFills(url: string): string {
  return `${url} keeps asking for everything: is it several nodes behind one address? It is filled again after a pause`;
}

function normalise(url: string): string | undefined {
  const parsed = parsePeerUrl(url);
  return "url" in parsed ? parsed.url : undefined;
}
