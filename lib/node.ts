/**
 * One running node, from its configuration to its end: lock, port, file, shipper, and the timer that
 * looks after what happens by itself. The order of starting is the order of refusing: what can be
 * refused without touching anything comes first.
 */
import { existsSync, statSync } from "node:fs";
import type { Cancel, Clock, Timers } from "./base/clock.ts";
import { systemTimers } from "./base/clock.ts";
import { HookSyncError, RequestError, sqliteCode } from "./base/errors.ts";
import { countRepeats, type Logger, type Repeats } from "./base/log.ts";
import type { Random } from "./base/random.ts";
import { Bridge, type BridgeAim, type OwnMesh, refuseOwnMesh } from "./bridge.ts";
import { CdcError } from "./cdc/error.ts";
import { CdcService } from "./cdc/service.ts";
import { SqliteCommits } from "./cdc/sqlite-commits.ts";
import { parseWatermark } from "./cdc/stream.ts";
import type { Config } from "./config.ts";
import { answerStarting, createApp } from "./http/app.ts";
import type { CdcSource } from "./http/cdc-routes.ts";
import type { HealthReport } from "./http/health-routes.ts";
import { Mesh } from "./mesh.ts";
import { IDLE_TIMEOUT_MS } from "./protocol/limits.ts";
import { DigestHandle } from "./shipper/digest-handle.ts";
import { Digests } from "./shipper/digests.ts";
import type { ApplyEvent } from "./store/apply.ts";
import { ItemCounter } from "./store/item-counter.ts";
import { type FileLock, hasOtherName, lockFile, resolvePath } from "./store/open.ts";
import { Receiver } from "./store/receive.ts";
import type { SyncedTable } from "./store/schema.ts";
import type { SettleEvent } from "./store/settle.ts";
import { copyPath, removeLeftCopies, streamCopy } from "./store/snapshot.ts";
import { nameKey } from "./store/sql.ts";
import { type FillEvent, Store } from "./store/store.ts";
import { Verifier } from "./verifier.ts";

/** What serve and follow give a node; without `timers` it takes those of the event loop. */
export interface NodeOptions {
  readonly config: Config;
  /** Made in server.ts, where the bundler sees it. */
  readonly workerUrl: URL;
  readonly digestWorkerUrl: URL;
  readonly log: Logger;
  readonly clock: Clock;
  readonly random: Random;
  readonly version: string;
  readonly timers?: Timers;
  /** What is followed and brought into the mesh. */
  readonly bridge?: BridgeAim | undefined;
}

/** A node that answers; it runs until `stop`, whatever becomes of its peers. */
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
/** It stands in /health and in the file. */
const FOLLOWER_NAME_LENGTH_MAX = 128;
/** How often a stopping node looks whether its last requests are answered. */
const STOP_LOOK_MS = 5;

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
  readonly #reports: Repeats;
  #lock: FileLock | undefined;
  #server: Bun.Server<undefined> | undefined;
  #store: Store | undefined;
  #counter: ItemCounter | undefined;
  #mesh: Mesh | undefined;
  #digestHandle: DigestHandle | undefined;
  #verifier: Verifier | undefined;
  #cdc: CdcService | undefined;
  #bridge: Bridge | undefined;
  #tick: Cancel | undefined;
  #isStopping = false;
  #tables: { survey: unknown; list: readonly SyncedTable[] } = { survey: undefined, list: [] };
  /** Why the node is not healthy, by what is wrong; and what a person should look at. */
  readonly #reasons = new Map<string, string>();
  /** Something happened while the file was opened that calls for a comparison. */
  #isInDoubt = false;
  /** What the last tick failed with. */
  #backgroundError = "";
  readonly #warnings = new Map<string, string>();
  url = "";
  summary: readonly string[] = [];

  constructor(options: NodeOptions) {
    this.#options = options;
    this.#timers = options.timers ?? systemTimers;
    this.#startedMs = options.clock.monotonicMs();
    this.#reports = countRepeats({ log: options.log, clock: options.clock });
  }

  async start(): Promise<void> {
    const { config } = this.#options;
    const path = resolvePath(config.dbPath);
    const { bridge } = this.#options;
    if (bridge !== undefined) await refuseOwnMesh(bridge.source, this.#ownMesh());
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
        // Bun would answer 413 without a word of why; http/body.ts reads no more than it may.
        maxRequestBodySize: Number.MAX_SAFE_INTEGER,
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
      makesDefaultTable: this.#options.bridge === undefined,
      schemaSql: config.schema?.sql,
      synchronous: config.synchronous,
      parkedBytesMax: config.parkedBytesMax,
      tombstoneRetentionMs: config.tombstoneRetentionMs,
      acceptOldFile: config.acceptOldFile,
      clock,
      timers: this.#timers,
      random,
      onEvent: (event) => this.#onStoreEvent(event),
      onCommit: (through, rewritten) => {
        this.#reasons.delete("disk");
        this.#mesh?.settled(through, rewritten);
      },
    });
    this.#store = store;
    if (hasOtherName(path)) {
      const text = `${path} has another name (a hard link): whoever opens it by that one beside this node ruins it`;
      this.#warnings.set("hard link", text);
      log.warn(text);
    }
    this.#cdc = this.#openCdc(path, store);
    this.#counter = new ItemCounter(store.db, clock);
    const run = random.hex(8);
    const mesh = new Mesh({
      config,
      store,
      path,
      workerUrl: this.#options.workerUrl,
      log,
      clock,
      timers: this.#timers,
      random,
      run,
      itemCount: () => this.#counter!.count(store.survey.synced.values()),
      reportError: (error, what) => this.#reportError(error, { method: "", path: what }),
      remoteAddress: (request) => this.#server?.requestIP(request)?.address,
      onDoubt: () => this.#verifier?.soon(),
    });
    this.#mesh = mesh;
    removeLeftCopies(path);
    const handle = new DigestHandle({
      workerUrl: this.#options.digestWorkerUrl,
      dbPath: path,
      timers: this.#timers,
    });
    this.#digestHandle = handle;
    this.#verifier = new Verifier({
      everyMs: config.verifyMs,
      nodeId: config.id,
      ownUrl: this.url,
      neighbours: () => mesh.status(),
      isBusy: () => store.queue.isAtWork,
      store,
      log,
      clock,
      timers: this.#timers,
      random,
    });
    if (this.#isInDoubt) this.#verifier.soon();
    const receiver = new Receiver(store, (identity, nodeId) => mesh.heard(identity, nodeId));
    const app = createApp({
      queue: store.queue,
      repository: store.repository,
      bodyBytesMax: config.bodyBytesMax,
      version,
      tables: () => this.#currentTables(),
      sync: { apply: (request) => receiver.receive(request) },
      health: () => this.#health(),
      identity: (askedByDb) => ({ ...store.identity(askedByDb), run }),
      membership: mesh,
      nodeId: config.id,
      digests: new Digests({ handle, timers: this.#timers, random }),
      copies: {
        copy: async () => {
          // The worker would open what stands under the name now.
          if (store.queue.refusal) throw store.queue.refusal;
          const copy = copyPath(path, random.hex(4));
          await handle.ask("copy", { path: copy });
          return streamCopy(copy);
        },
        keepOpen: (request) => this.#server?.timeout(request, 0),
      },
      ...(this.#cdc === undefined ? {} : { cdc: this.#cdcSource(this.#cdc) }),
      reportError: (error, request) => this.#reportError(error, request),
    });
    this.#server!.reload({ fetch: (request) => app.fetch(request) });
    const added = mesh.start();
    this.#startBridge(path, store);
    this.summary = this.#describe(path, store, added);
    if (config.join !== undefined) {
      mesh
        .join(config.join)
        .catch((error) => this.#reportError(error, { method: "", path: "join" }));
    }
  }

  /** Opens the log for followers, or ends one that an earlier start had begun. */
  #openCdc(path: string, store: Store): CdcService | undefined {
    const { config, clock, random } = this.#options;
    if (!config.cdc) {
      store.endCdc();
      return undefined;
    }
    try {
      const { cdcKeepMs: keepMs, cdcBytesMax: keepBytes } = config;
      const timers = this.#timers;
      const onBegunAnew = () => this.#tellNewLog();
      const request = { method: "GET", path: "/cdc/stream" };
      const onFailure = (error: unknown) => this.#reportError(error, request);
      const told = { onBegunAnew, onFailure };
      const service = CdcService.open({ path, keepMs, keepBytes, clock, timers, random, ...told });
      store.beganCdc(new SqliteCommits(store.db));
      return service;
    } catch (error) {
      if (!(error instanceof CdcError)) throw error;
      const hint = "Start without --cdc, or change what is named.";
      throw new HookSyncError("store-failed", error.message, hint, error);
    }
  }

  #tellNewLog(): void {
    const text =
      "another program took the change log (_cdc) out of the file: it was begun anew, and whoever follows this node takes a new copy";
    this.#warnings.set("cdc", text);
    this.#options.log.warn(text);
  }

  #startBridge(path: string, store: Store): void {
    const { bridge, log, clock, random } = this.#options;
    if (bridge === undefined) return;
    this.#bridge = new Bridge({
      ...bridge,
      store,
      path,
      ownMesh: () => this.#ownMesh(),
      log,
      clock,
      timers: this.#timers,
      random,
    });
    this.#bridge.start();
  }

  /** By what a source is known to be one of us. */
  #ownMesh(): OwnMesh {
    const { config } = this.#options;
    const known = this.#store?.peers.rows() ?? [];
    const dbIds = [this.#store?.dbId, ...known.map(({ dbId }) => dbId)];
    const urls = [...config.peers, ...known.map(({ url }) => url), config.nodeUrl, this.url];
    return {
      dbIds: new Set(dbIds.filter((id) => typeof id === "string")),
      urls: new Set(urls.filter((url) => typeof url === "string" && url !== "")) as Set<string>,
    };
  }

  #cdcSource(service: CdcService): CdcSource {
    return {
      stream: (parameters, once) => {
        try {
          const after = once ? null : parseWatermark(parameters);
          const name = parameters.get("name");
          if (name !== null && (name === "" || name.length > FOLLOWER_NAME_LENGTH_MAX)) {
            const right = `expected 1 to ${FOLLOWER_NAME_LENGTH_MAX} characters`;
            throw new RequestError(400, `name: ${right}`);
          }
          return service.stream(after, once ? null : name, once);
        } catch (error) {
          if (!(error instanceof CdcError)) throw error;
          throw new RequestError(400, error.message);
        }
      },
    };
  }

  #describe(path: string, store: Store, added: readonly string[]): string[] {
    const { config, version } = this.#options;
    const { synced, notSynced, notAsked } = store.survey;
    const urls = this.#mesh!.urls;
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
        `${table}: ${rows} row${rows === 1 ? "" : "s"} without a stamp got version 0, which loses against anything stamped`,
      );
    for (const [table, rows] of store.oddIds())
      lines.push(
        `${table}: ${rows} row${rows === 1 ? "" : "s"} whose id is NULL or a BLOB: left out`,
      );
    for (const url of this.#mesh!.removed)
      lines.push(`not a peer: ${url}, it was removed; to have it again: hook-sync peer add ${url}`);
    lines.push(
      urls.length === 0
        ? "no peers"
        : `peers ${urls.map((url) => (added.includes(url) ? `${url} (new)` : url)).join(", ")}`,
    );
    const following = this.#bridge?.report().source;
    if (following !== undefined) lines.push(`following ${following} into the mesh`);
    return lines;
  }

  // ── What others tell ────────────────────────────────────────────────────────────────────────

  #onStoreEvent(event: SettleEvent | ApplyEvent | FillEvent): void {
    const { log } = this.#options;
    if ("isDoubtful" in event && event.isDoubtful) this.#doubt();
    switch (event.kind) {
      case "parked":
      case "left-out": {
        const { peer, table, reason } = event;
        const isParked = event.kind === "parked";
        const message = isParked ? "changes parked" : "changes left out";
        this.#reports.add(isParked ? "warn" : "info", message, { peer, table, reason });
        return;
      }
      case "trigger":
        this.#warnings.set(
          `${TRIGGER_WARNING} ${event.table}`,
          `${event.table}: ${event.reason}; such changes are parked`,
        );
        return;
      case "lost":
        this.#reasons.set(
          lostTable(event.table),
          `${event.table} is not synced any more: ${event.text}`,
        );
        log.error(`${event.table} is not synced any more`, { reason: event.text });
        return;
      case "registered":
      // Another table has the name of one that was lost.
      case "renamed":
        this.#reasons.delete(lostTable(event.table));
        if (this.#store) log.info(`${event.table}: ${event.text}`);
        return;
      case "gap":
      case "flag-restored":
      case "lift-refused":
      case "log-restarted":
      case "log-emptied":
      case "table-restored":
        this.#warnings.set(`${event.kind} ${event.table}`, `${event.table}: ${event.text}`);
        log.warn(`${event.table}: ${event.text}`);
        if (event.table === "_peer_state") this.#mesh?.relearn();
        return;
      case "filled":
        log.info(event.text);
        this.#verifier?.soon();
        return;
      default:
        log.info(`${event.table}: ${event.text}`);
    }
  }

  /** Nodes may be different now: they are compared as soon as this one can. */
  #doubt(): void {
    this.#isInDoubt = this.#verifier === undefined;
    this.#verifier?.soon();
  }

  // ── By itself ───────────────────────────────────────────────────────────────────────────────

  #scheduleTick(): void {
    this.#tick = this.#timers.after(this.#options.config.batchMs, () => void this.#runTick());
  }

  async #runTick(): Promise<void> {
    if (this.#isStopping) return;
    try {
      await this.#store!.runDue();
      this.#cdc?.look();
      this.#reasons.delete("file");
      this.#tellRefusal();
      this.#backgroundError = "";
      await this.#mesh!.look();
      if (!this.#store!.queue.refusal) await this.#verifier!.look();
      this.#counter!.advance(this.#currentTables());
    } catch (error) {
      if (!(error instanceof HookSyncError && error.code === "busy")) {
        const text = describeError(error);
        this.#reasons.set("file", text);
        // Tried again with every tick: said once.
        if (text !== this.#backgroundError)
          this.#reportError(error, { method: "", path: "background" });
        this.#backgroundError = text;
      }
    }
    this.#reports.flush();
    if (!this.#isStopping) this.#scheduleTick();
  }

  /** Said once when the node begins to refuse writes. */
  #tellRefusal(): void {
    const { refusal } = this.#store!.queue;
    if (refusal === undefined) this.#reasons.delete("moved");
    else if (!this.#reasons.has("moved")) {
      this.#reasons.set("moved", describeError(refusal));
      this.#options.log.error(describeError(refusal));
    }
  }

  // ── Health ──────────────────────────────────────────────────────────────────────────────────

  #currentTables(): readonly SyncedTable[] {
    const { survey } = this.#store!;
    if (this.#tables.survey !== survey)
      this.#tables = { survey, list: [...survey.synced.values()] };
    return this.#tables.list;
  }

  /** What a trigger left parked is no warning any more when nothing is. */
  #currentWarnings(parked: number): string[] {
    return [...this.#warnings]
      .filter(([key]) => parked > 0 || !key.startsWith(TRIGGER_WARNING))
      .map(([, text]) => text);
  }

  #health(): HealthReport {
    const { config, version, clock } = this.#options;
    const store = this.#store!;
    const letters = store.deadLetters.counts();
    const refusal = this.#bridge?.refusal;
    const reasons = [...this.#reasons.values(), ...(refusal === undefined ? [] : [refusal])];
    return {
      ok: reasons.length === 0,
      reasons,
      warnings: [...this.#currentWarnings(letters.parked), ...this.#mesh!.warnings()],
      nodeId: config.id,
      version,
      itemCount: this.#counter!.count(store.survey.synced.values()),
      pendingChanges: store.log.pending(),
      lastChangeId: store.settledThrough,
      newestChangeId: store.newestChange,
      verified: this.#verifier!.report,
      deadLetter: letters.all,
      parked: letters.parked,
      peers: this.#mesh!.status(),
      fills: store.filler.progress(),
      tables: {
        synced: [...store.survey.synced.values()].map((table) => table.name),
        notSynced: store.survey.notSynced,
      },
      ...(this.#cdc === undefined ? {} : { followers: this.#cdc.followers() }),
      ...(this.#bridge === undefined ? {} : { following: this.#bridge.report() }),
      sqliteVersion: store.sqliteVersion,
      uptimeS: Math.floor((clock.monotonicMs() - this.#startedMs) / 1_000),
    };
  }

  #reportError(error: unknown, request: { method: string; path: string }): void {
    const { log } = this.#options;
    if (error instanceof HookSyncError && error.code === "busy") return;
    if (
      error instanceof HookSyncError &&
      (error.code === "disk-full" || error.code === "store-failed")
    )
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
    this.#cdc?.end();
    // No new connections; what is being answered is finished. Kept connections may stay open for ever.
    void this.#server!.stop(false);
    const untilMs = this.#options.clock.monotonicMs() + DRAIN_MS_MAX;
    while (this.#server!.pendingRequests > 0 && this.#options.clock.monotonicMs() < untilMs) {
      await this.#waited(STOP_LOOK_MS);
    }
    await this.#server!.stop(true);
    await this.#bridge?.stop();
    store.queue.hurry();
    await store.runDue().catch(() => undefined);
    this.#isStopping = true;
    this.#tick?.();
    this.#verifier!.stop();
    const pending = await this.#mesh!.stop(DRAIN_MS_MAX);
    await this.#digestHandle!.stop();
    if (pending > 0)
      this.#options.log.info(
        "changes wait for peers that are down; they are sent after the next start",
        { pending },
      );
    this.#reports.flush(true);
    this.#cdc?.close();
    await store.close();
    this.#lock!.release();
  }

  #waited(delayMs: number): Promise<void> {
    return new Promise((resolve) => void this.#timers.after(delayMs, resolve));
  }
}

const TRIGGER_WARNING = "trigger";

/** The key of the reason for it. Made anew, it may be spelt in another case. */
function lostTable(name: string): string {
  return `table ${nameKey(name)}`;
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
