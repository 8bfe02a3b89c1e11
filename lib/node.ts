/**
 * One running node, from its configuration to its end: lock, port, file, shipper, and the timer that
 * looks after what happens by itself. The order of starting is the order of refusing: what can be
 * refused without touching anything comes first.
 */
import { existsSync, statSync } from "node:fs";
import type { Cancel, Clock, Timers } from "./base/clock.ts";
import { systemTimers } from "./base/clock.ts";
import { HookSyncError } from "./base/errors.ts";
import type { Logger } from "./base/log.ts";
import type { Random } from "./base/random.ts";
import type { Config } from "./config.ts";
import { answerStarting, createApp } from "./http/app.ts";
import type { HealthReport } from "./http/health-routes.ts";
import { IDLE_TIMEOUT_MS } from "./protocol/limits.ts";
import type { PeerHealth } from "./protocol/peer.ts";
import { parsePeerUrl } from "./protocol/peer-url.ts";
import { type ShipperHandle, startShipper } from "./shipper/handle.ts";
import type { FromShipper } from "./shipper/messages.ts";
import type { ApplyEvent } from "./store/apply.ts";
import { ItemCounter } from "./store/item-counter.ts";
import { type FileLock, lockFile, resolvePath } from "./store/open.ts";
import { type HeardHealth, isEveryoneCaughtUp, repeatsEndBefore } from "./store/quiet.ts";
import { Receiver } from "./store/receive.ts";
import type { SyncedTable } from "./store/schema.ts";
import type { SettleEvent } from "./store/settle.ts";
import { Store } from "./store/store.ts";
import { sqliteCode } from "./store/write-queue.ts";

export interface NodeOptions {
  readonly config: Config;
  /** Made in server.ts, where the bundler sees it. */
  readonly workerUrl: URL;
  readonly log: Logger;
  readonly clock: Clock;
  readonly random: Random;
  readonly version: string;
  readonly timers?: Timers;
}

export interface RunningNode {
  /** Where it answers, for programs on this machine. */
  readonly url: string;
  /** What it does, for the person who started it: a line each. */
  readonly summary: readonly string[];
  /** Stops accepting, finishes requests, drains for up to 2 s, closes the file. */
  stop(): Promise<void>;
}

/** DESIGN.md, "Stop": a peer that is down must not hold up a restart. */
const DRAIN_MS_MAX = 2_000;
/** Acknowledgements wait this long for company, so that each does not cost a commit of its own. */
const MOVES_PAUSE_MS = 10;
/** How often foreign peers are asked whether they have anything left, while something waits for it. */
const QUIET_CHECK_MS = 30_000;
/** How often a stopping node looks whether its last requests are answered. */
const STOP_LOOK_MS = 5;
/** A peer with this many more rows than we have is worth a word at start. */
const MANY_ROWS = 1_000_000;
/** Parked changes and left-out tables are one line per peer, table and reason in this time. */
const REPORT_PAUSE_MS = 60_000;

type Moved = Extract<FromShipper, { kind: "moved" }>;

/** Throws HookSyncError where the world is in the way; nothing was changed then. */
export async function startNode(options: NodeOptions): Promise<RunningNode> {
  const node = new Node(options);
  await node.start();
  return node;
}

class Node implements RunningNode {
  readonly #options: NodeOptions;
  readonly #timers: Timers;
  readonly #startedMs: number;
  readonly #reports: EventReports;
  #lock: FileLock | undefined;
  #server: Bun.Server<undefined> | undefined;
  #store: Store | undefined;
  #counter: ItemCounter | undefined;
  #shipper: ShipperHandle | undefined;
  #tick: Cancel | undefined;
  #isStopping = false;
  #moves: Moved[] = [];
  #isPersisting = false;
  #tables: { survey: unknown; list: readonly SyncedTable[] } = { survey: undefined, list: [] };
  /** Why the node is not healthy, by what is wrong; and what a person should look at. */
  readonly #reasons = new Map<string, string>();
  readonly #warnings = new Map<string, string>();
  readonly #peerHealth = new Map<string, HeardHealth>();
  #quietCheckedMs = 0;
  /** By db id: what our senders said last that they still have for us. */
  readonly #restOf = new Map<string, number>();
  url = "";
  summary: readonly string[] = [];

  constructor(options: NodeOptions) {
    this.#options = options;
    this.#timers = options.timers ?? systemTimers;
    this.#startedMs = options.clock.monotonicMs();
    this.#reports = new EventReports(options.log, options.clock);
  }

  async start(): Promise<void> {
    const { config } = this.#options;
    const path = resolvePath(config.dbPath);
    this.#lock = lockFile(path);
    try {
      if (existsSync(path) && statSync(path).size > 0) Store.inspect(path, config.tables);
      this.#listen();
      this.#open(path);
    } catch (error) {
      await this.#server?.stop(true);
      this.#lock.release();
      throw error;
    }
    this.#scheduleTick();
  }

  // ── Starting ────────────────────────────────────────────────────────────────────────────────

  #listen(): void {
    const { config } = this.#options;
    const { hostname, port } = config.listen;
    try {
      this.#server = Bun.serve({
        port,
        ...(hostname === undefined ? {} : { hostname }),
        reusePort: false,
        development: false,
        maxRequestBodySize: config.bodyBytesMax,
        idleTimeout: Math.min(255, IDLE_TIMEOUT_MS / 1_000),
        fetch: () => answerStarting(),
      });
    } catch (error) {
      throw listenError(error, config.listen);
    }
    const host =
      hostname === undefined || hostname === "0.0.0.0" || hostname === "::"
        ? "127.0.0.1"
        : hostname;
    this.url = `http://${host.includes(":") ? `[${host}]` : host}:${this.#server.port}`;
  }

  #open(path: string): void {
    const { config, clock, random, log, version } = this.#options;
    const store = Store.open({
      path,
      nodeId: config.id,
      asked: config.tables,
      schemaSql: config.schema?.sql,
      synchronous: config.synchronous,
      parkedBytesMax: config.parkedBytesMax,
      tombstoneRetentionMs: config.tombstoneRetentionMs,
      acceptOldFile: config.acceptOldFile,
      clock,
      timers: this.#timers,
      random,
      onEvent: (event) => this.#onStoreEvent(event),
      onCommit: (through, rewritten) => this.#shipper?.settled(through, rewritten),
    });
    this.#store = store;
    this.#counter = new ItemCounter(store.db, clock);
    const { starts, added } = store.configurePeers(config.peers, normalisePeer);
    const receiver = new Receiver(store, (identity) => {
      if (identity?.rest !== undefined) this.#restOf.set(identity.db, identity.rest);
    });
    const app = createApp({
      queue: store.queue,
      repository: store.repository,
      bodyBytesMax: config.bodyBytesMax,
      version,
      tables: () => this.#currentTables(),
      sync: { apply: (request) => receiver.receive(request) },
      health: () => this.#health(),
      identity: () => store.identity(),
      reportError: (error, request) => this.#reportError(error, request),
    });
    this.#server!.reload({ fetch: (request) => app.fetch(request) });
    this.#shipper = startShipper({
      workerUrl: this.#options.workerUrl,
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
        peers: starts,
      },
      onMessage: (message) => this.#onShipper(message),
      clock,
      random,
      timers: this.#timers,
    });
    this.summary = this.#describe(path, store, added);
    if (added.length > 0 && this.#counter.count(store.survey.synced.values()) > 0) {
      log.info(
        "new peers get what is still in the log; rows that are no longer in it do not reach them by themselves: start them from a copy of this file",
        { peers: added.join(", ") },
      );
    }
  }

  #describe(path: string, store: Store, added: readonly string[]): string[] {
    const { config, version } = this.#options;
    const { synced, notSynced, notAsked } = store.survey;
    const where =
      config.listen.hostname === undefined ? ` (all addresses, port ${this.#server!.port})` : "";
    const lines = [
      `hook-sync ${version}, node ${config.id}`,
      `listening on ${this.url}${where}`,
      `file ${path}`,
      `syncing ${[...synced.values()].map((table) => table.name).join(", ") || "no table"}`,
    ];
    for (const table of notSynced)
      lines.push(`not syncing ${table.name}: ${table.reason}. Remedy: ${table.remedy}`);
    if (notAsked.length > 0)
      lines.push(`not asked for (--tables): ${notAsked.map((table) => table.name).join(", ")}`);
    for (const [table, rows] of store.zeroed)
      lines.push(
        `${table}: ${rows} rows without a stamp got version 0; they lose against anything stamped`,
      );
    for (const [table, rows] of store.oddIds())
      lines.push(`${table}: ${rows} rows whose id is NULL or a BLOB stay out`);
    lines.push(
      config.peers.length === 0
        ? "no peers"
        : `peers ${config.peers.map((url) => (added.includes(url) ? `${url} (new)` : url)).join(", ")}`,
    );
    return lines;
  }

  // ── What others tell ────────────────────────────────────────────────────────────────────────

  #onStoreEvent(event: SettleEvent | ApplyEvent): void {
    const { log } = this.#options;
    switch (event.kind) {
      case "parked":
      case "left-out":
        this.#reports.add(event);
        return;
      case "trigger":
        this.#warnings.set(
          `trigger ${event.table}`,
          `${event.table}: ${event.reason}; such changes are parked`,
        );
        return;
      case "lost":
        this.#reasons.set(
          `table ${event.table}`,
          `${event.table} is not synced any more: ${event.text}`,
        );
        log.error(`${event.table} is not synced any more`, { reason: event.text });
        return;
      case "registered":
        this.#reasons.delete(`table ${event.table}`);
        if (this.#store) log.info(`${event.table}: ${event.text}`);
        return;
      case "gap":
      case "flag-restored":
      case "lift-refused":
      case "log-restarted":
        this.#warnings.set(`${event.kind} ${event.table}`, `${event.table}: ${event.text}`);
        log.warn(`${event.table}: ${event.text}`);
        return;
      default:
        log.info(`${event.table}: ${event.text}`);
    }
  }

  #onShipper(message: FromShipper): void {
    switch (message.kind) {
      case "moved":
        this.#moves.push(message);
        this.#persistMovesSoon();
        return;
      case "log":
        this.#options.log.log(message.level, message.message, message.fields);
        return;
      case "peer-health":
        this.#onPeerHealth(message.health);
        return;
      default:
    }
  }

  #persistMovesSoon(): void {
    if (this.#isPersisting) return;
    this.#isPersisting = true;
    this.#timers.after(MOVES_PAUSE_MS, () => void this.#persistMoves());
  }

  /** Watermarks, refusals and pruning of all that came in, in one transaction. */
  async #persistMoves(): Promise<void> {
    const moves = this.#moves;
    this.#moves = [];
    try {
      await this.#store!.recordMoves(moves);
      this.#reasons.delete("disk");
    } catch (error) {
      // They stay in the log and are kept for the next time; after a restart they are sent again.
      this.#moves = [...moves, ...this.#moves];
      this.#reportError(error, { method: "", path: "watermarks" });
    }
    this.#isPersisting = false;
    if (this.#moves.length > 0 && !this.#isStopping) this.#persistMovesSoon();
  }

  #onPeerHealth(health: PeerHealth): void {
    const { log, clock } = this.#options;
    const store = this.#store!;
    const isFirst = !this.#peerHealth.has(health.url);
    this.#peerHealth.set(health.url, { health, atMs: clock.nowMs() });
    if (health.identity?.db === store.dbId) {
      log.error("a peer is this very node: remove it from the peers", { peer: health.url });
      this.#warnings.set(`self ${health.url}`, `the peer ${health.url} is this very node`);
    }
    if (health.nodeId === this.#options.config.id && health.identity?.db !== store.dbId) {
      log.warn("a peer has the same --id as this node; give each its own", { peer: health.url });
      this.#warnings.set(
        `id ${health.url}`,
        `the peer ${health.url} has the same --id as this node`,
      );
    }
    store
      .learnPeer(health)
      .catch((error) => this.#reportError(error, { method: "", path: health.url }));
    if (!isFirst || health.identity) return;
    const own = this.#counter!.count(store.survey.synced.values());
    if (own === 0 && (health.itemCount ?? 0) >= MANY_ROWS) {
      log.warn(
        "this node is empty and a peer of another make holds many rows, which it will not send by itself: stop, and start from a copy of its file",
        {
          peer: health.url,
          rows: health.itemCount,
        },
      );
    }
  }

  // ── By itself ───────────────────────────────────────────────────────────────────────────────

  #scheduleTick(): void {
    this.#tick = this.#timers.after(this.#options.config.batchMs, () => void this.#runTick());
  }

  async #runTick(): Promise<void> {
    if (this.#isStopping) return;
    try {
      await this.#store!.runDue();
      this.#reasons.delete("file");
      await this.#watchQuiet();
    } catch (error) {
      if (!(error instanceof HookSyncError && error.code === "busy")) {
        this.#reasons.set("file", describeError(error));
        this.#reportError(error, { method: "", path: "background" });
      }
    }
    this.#reports.flush();
    if (!this.#isStopping) this.#scheduleTick();
  }

  /** When everyone has everything, repeats end and old deletes may be forgotten. */
  async #watchQuiet(): Promise<void> {
    const { clock } = this.#options;
    const nowMs = clock.monotonicMs();
    if (nowMs - this.#quietCheckedMs < QUIET_CHECK_MS) return;
    this.#quietCheckedMs = nowMs;
    const store = this.#store!;
    const heard = this.#peerHealth;
    const endsBeforeMs = repeatsEndBefore(heard.values(), clock.nowMs());
    if (store.healing.isWaiting && endsBeforeMs !== undefined) await store.endRepeats(endsBeforeMs);
    const hasHub = [...heard.values()].some(({ health }) => health.hub);
    const peers = this.#shipper?.status() ?? [];
    const isCaughtUp = isEveryoneCaughtUp(peers, heard, this.#restOf, clock.nowMs());
    await store.forgetTombstones(isCaughtUp, hasHub);
    if (store.healing.isWaiting || store.hasTombstones) this.#shipper?.readHealth();
  }

  // ── Health ──────────────────────────────────────────────────────────────────────────────────

  #currentTables(): readonly SyncedTable[] {
    const { survey } = this.#store!;
    if (this.#tables.survey !== survey)
      this.#tables = { survey, list: [...survey.synced.values()] };
    return this.#tables.list;
  }

  #health(): HealthReport {
    const { config, version, clock } = this.#options;
    const store = this.#store!;
    const letters = store.deadLetters.counts();
    return {
      ok: this.#reasons.size === 0,
      reasons: [...this.#reasons.values()],
      warnings: [...this.#warnings.values(), ...this.#clockWarning()],
      nodeId: config.id,
      version,
      itemCount: this.#counter!.count(store.survey.synced.values()),
      pendingChanges: store.log.pending(),
      deadLetter: letters.all,
      parked: letters.parked,
      peers: this.#shipper?.status() ?? [],
      tables: {
        synced: [...store.survey.synced.values()].map((table) => table.name),
        notSynced: store.survey.notSynced,
      },
      sqliteVersion: store.sqliteVersion,
      uptimeS: Math.floor((clock.monotonicMs() - this.#startedMs) / 1_000),
    };
  }

  /** If most peers are ahead, it is our clock that is wrong. */
  #clockWarning(): string[] {
    const offsets = (this.#shipper?.status() ?? []).flatMap((peer) => peer.clockOffsetMs ?? []);
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

  #reportError(error: unknown, request: { method: string; path: string }): void {
    const { log } = this.#options;
    if (error instanceof HookSyncError && error.code === "busy") return;
    if (error instanceof HookSyncError && error.code === "disk-full")
      this.#reasons.set("disk", error.message);
    log.error(describeError(error), {
      ...request,
      stack: error instanceof HookSyncError ? undefined : (error as Error)?.stack,
    });
  }

  // ── Stopping ────────────────────────────────────────────────────────────────────────────────

  async stop(): Promise<void> {
    if (this.#isStopping) return;
    const store = this.#store!;
    // No new connections; what is being answered is finished. Kept connections may stay open for ever.
    void this.#server!.stop(false);
    const untilMs = this.#options.clock.monotonicMs() + DRAIN_MS_MAX;
    while (this.#server!.pendingRequests > 0 && this.#options.clock.monotonicMs() < untilMs) {
      await this.#waited(STOP_LOOK_MS);
    }
    await this.#server!.stop(true);
    store.queue.hurry();
    await store.runDue().catch(() => undefined);
    this.#isStopping = true;
    this.#tick?.();
    const pending = await this.#shipper!.drain(DRAIN_MS_MAX);
    if (pending > 0)
      this.#options.log.info(
        "changes wait for peers that are down; they are sent after the next start",
        { pending },
      );
    await this.#shipper!.stop();
    if (this.#moves.length > 0) await store.recordMoves(this.#moves).catch(() => undefined);
    this.#reports.flush(true);
    await store.close();
    this.#lock!.release();
  }

  #waited(delayMs: number): Promise<void> {
    return new Promise((resolve) => void this.#timers.after(delayMs, resolve));
  }
}

/** One line per peer, table and reason, with a count: a bad sender must not flood the log. */
class EventReports {
  readonly #log: Logger;
  readonly #clock: Clock;
  readonly #waiting = new Map<string, { event: ApplyEvent; count: number }>();
  readonly #saidMs = new Map<string, number>();

  constructor(log: Logger, clock: Clock) {
    this.#log = log;
    this.#clock = clock;
  }

  add(event: ApplyEvent): void {
    const key = JSON.stringify([event.kind, event.peer, event.table, event.reason]);
    const waiting = this.#waiting.get(key);
    if (waiting) waiting.count++;
    else this.#waiting.set(key, { event, count: 1 });
  }

  flush(all = false): void {
    const nowMs = this.#clock.monotonicMs();
    for (const [key, { event, count }] of this.#waiting) {
      const saidMs = this.#saidMs.get(key);
      if (!all && saidMs !== undefined && nowMs - saidMs < REPORT_PAUSE_MS) continue;
      const { peer, table, reason } = event;
      const isParked = event.kind === "parked";
      this.#log.log(isParked ? "warn" : "info", isParked ? "changes parked" : "changes left out", {
        peer,
        table,
        reason,
        count,
      });
      this.#waiting.delete(key);
      this.#saidMs.set(key, nowMs);
    }
  }
}

function normalisePeer(url: string): string | undefined {
  const parsed = parsePeerUrl(url);
  return "url" in parsed ? parsed.url : undefined;
}

function listenError(error: unknown, listen: Config["listen"]): unknown {
  const where = `${listen.hostname ?? ""}:${listen.port}`;
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  if (code === "EADDRINUSE") {
    return new HookSyncError(
      "port-in-use",
      `port ${listen.port} is in use (${where})`,
      "Stop the program that has it, or choose another with --listen.",
      error,
    );
  }
  if (code === "EACCES" || code === "EADDRNOTAVAIL" || code === "ENOTFOUND") {
    return new HookSyncError(
      "port-refused",
      `cannot listen on ${where} (${code})`,
      "Choose another address or a port above 1023 with --listen.",
      error,
    );
  }
  return new HookSyncError(
    "port-refused",
    `cannot listen on ${where}: ${(error as Error).message}`,
    "Choose another address with --listen.",
    error,
  );
}

function describeError(error: unknown): string {
  if (error instanceof HookSyncError) return `${error.message}. ${error.hint}`;
  const code = sqliteCode(error);
  return `${code === "" ? "" : `${code}: `}${error instanceof Error ? error.message : String(error)}`;
}
