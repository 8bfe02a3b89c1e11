/**
 * A node of ours in a simulation: the real store, receiver, peer links and parser, wired as lib/node.ts
 * wires them, over a simulated clock and network. The process around them can be ended at any moment.
 *
 * How a crash is made: at the chosen moment the file and its -wal are copied as they lie on the disk, and
 * the next process opens the copy. The old one goes on with what it had begun, but on a file
 * nobody looks at any more, and without timers, network or answers. So nothing of the code under test
 * has to be ended by force, and SQLite's own recovery is part of what is tested.
 */
import { drainMicrotasks } from "bun:jsc";
import { Database } from "bun:sqlite";
import { copyFileSync, existsSync, rmSync, writeFileSync } from "node:fs";
import type { Cancel, Timers } from "../../lib/base/clock.ts";
import { HookSyncError, RequestError } from "../../lib/base/errors.ts";
import type { LogFields, Logger, LogLevel } from "../../lib/base/log.ts";
import type { Random } from "../../lib/base/random.ts";
import { type Config, loadConfig } from "../../lib/config.ts";
import { Mesh } from "../../lib/mesh.ts";
import {
  formatIdentity,
  IDENTITY_HEADER,
  type Mark,
  NODE_ID_HEADER,
  parseIdentity,
} from "../../lib/protocol/identity.ts";
import type { FromShipper } from "../../lib/shipper/messages.ts";
import type { NodeCall } from "../../lib/shipper/node-client.ts";
import { Receiver } from "../../lib/store/receive.ts";
import type { Repository } from "../../lib/store/repository.ts";
import type { RowReader } from "../../lib/store/row-input.ts";
import type { SyncedTable } from "../../lib/store/schema.ts";
import { Store } from "../../lib/store/store.ts";
import type { Later, WriteTransaction } from "../../lib/store/write-queue.ts";
import { Verifier } from "../../lib/verifier.ts";
import type { Chance } from "./chance.ts";
import { Face } from "./face.ts";
import type { Machine, Network, WireReply, WireRequest } from "./network.ts";
import type { Remembered, Safety } from "./safety.ts";
import { MESSAGE_MS_MAX, SimShipper } from "./sim-shipper.ts";
import { Finding, type WallClock, type World } from "./world.ts";

export interface OurNodeOptions {
  readonly world: World;
  readonly chance: Chance;
  readonly network: Network;
  readonly clock: WallClock;
  readonly safety: Safety;
  readonly url: string;
  /** `--url` is given: hubs do not echo what we send. */
  readonly namesItself: boolean;
  readonly peers: readonly string[];
  /** Whose node answers at this address. */
  readonly nodeAt: (url: string) => OurNode | undefined;
  /** It compares itself with its neighbours. */
  readonly verifies: boolean;
  /** Where its files go. */
  readonly folder: string;
  /** The file as it is before the first start. */
  readonly image: Uint8Array;
  readonly tables: readonly string[];
  readonly batchMs: number;
  readonly batchChangesMax: number;
  readonly batchBytesMax: number;
  readonly tombstoneRetentionMs: number;
  readonly fillSliceRows: number | undefined;
  readonly pauseRowsMin: number | undefined;
  /** It fills a peer. */
  readonly onFill: (reason: string) => void;
}

/** Where a crash strikes. */
export type CrashPoint =
  /** Between two events. */
  | "between"
  /** Between BEGIN and COMMIT of the next transaction. */
  | "in-transaction"
  /** After the next COMMIT, before anybody hears of it. */
  | "after-commit"
  /** While the file is being opened, after the next start. */
  | "while-opening";

/** What a file says of a peer. */
interface PeerStanding {
  readonly dbId: string | null;
  /** What it acknowledged last. */
  readonly prev: number;
  /** It is being filled, and has taken nothing of that yet. */
  readonly isFillAhead: boolean;
}

/** What a file says of its node and of others. */
export interface Standing {
  readonly dbId: string | undefined;
  readonly newest: number;
  /** By sender's file, the largest batch committed, with the hash of its last change. */
  readonly marks: ReadonlyMap<string, Mark>;
  /** By URL. */
  readonly peers: ReadonlyMap<string, PeerStanding>;
}

/** A file as it was at some moment, and what its node had promised by then. */
export interface KeptFile {
  readonly path: string;
  readonly remembered: Remembered;
  /** By receiver, the largest batch that it had acknowledged. */
  readonly acknowledged: ReadonlyMap<string, number>;
}

/** As in lib/node.ts. */
const DRAIN_MS_MAX = 2_000;
/** Half of the time between two looks at the health of the peers: how often lib/mesh.ts looks around. */
const LOOK_MS = 31_000;
const DAY_MS = 24 * 3_600_000;
/** An armed crash whose transaction does not come strikes anyway. */
const ARMED_MS_MAX = 2_000;

export class OurNode implements Machine {
  readonly url: string;
  readonly remembersDeletes = true;
  readonly clock: WallClock;
  readonly options: OurNodeOptions;
  #running: Running | undefined;
  #path: string;
  #files = 0;
  #program: Database | undefined;
  #armed: { point: CrashPoint; downMs: number } | undefined;
  /** Longest pause between two looks at the file while nothing happens; see `Running.wake`. */
  idleMsMax: number;

  constructor(options: OurNodeOptions) {
    this.options = options;
    this.url = options.url;
    this.clock = options.clock;
    this.idleMsMax = 1_000;
    this.#path = this.#nextPath();
    writeFileSync(this.#path, options.image);
    this.clock.onRead = () => this.#onClock();
  }

  get isUp(): boolean {
    return this.#running !== undefined;
  }

  get running(): Running | undefined {
    return this.#running;
  }

  #nextPath(): string {
    return `${this.options.folder}/${this.url.replace(/\W+/g, "-")}-${this.#files++}.db`;
  }

  // ── Its life ────────────────────────────────────────────────────────────────────────────────

  start(): void {
    if (this.#running) return;
    const { world } = this.options;
    world.trace(`${this.url} starts`);
    const running = new Running(this, this.#path);
    if (running.isCrashed) return;
    this.#running = running;
    running.begin();
    this.options.safety.checkOpened(this);
  }

  /** Ends the process at this point, without any of its own doing, and starts it again later. */
  crash(point: CrashPoint, downMs: number): void {
    if (point === "between") {
      this.#strike(downMs);
      return;
    }
    this.#armed = { point, downMs };
    if (point === "while-opening") this.#strike(1);
    this.options.world.at(ARMED_MS_MAX, () => {
      if (this.#armed?.point === point && point !== "while-opening") this.#strike(downMs);
    });
  }

  /** A crash that has not struck yet does not. */
  disarm(): void {
    this.#armed = undefined;
  }

  /** Ends as on SIGTERM, and starts again later. */
  restart(downMs: number): void {
    const running = this.#running;
    if (running === undefined || running.isStopping) return;
    void running.stop().then((isStopped) => {
      if (!isStopped) return;
      this.#closeProgram();
      this.#running = undefined;
      this.options.world.at(downMs, () => this.start());
    });
  }

  /** Called at every look at the clock: transactions take the time once, after BEGIN. */
  #onClock(): void {
    const point = this.#armed?.point;
    if (point === "in-transaction" && this.#running?.store.db.inTransaction) this.#strikeArmed();
  }

  /** Called while a file is opened, with the process that opens it. */
  onOpening(running: Running): void {
    if (this.#armed?.point !== "while-opening" || !this.options.chance.hits(0.4)) return;
    const { downMs } = this.#armed;
    this.#armed = undefined;
    this.#closeProgram();
    this.#copyFiles();
    running.isCrashed = true;
    this.options.world.trace(`${this.url} crashes while opening its file`);
    this.options.world.at(downMs, () => this.start());
  }

  onCommit(): void {
    if (this.#armed?.point === "after-commit" && this.#running) this.#strikeArmed();
  }

  #strikeArmed(): void {
    const { downMs } = this.#armed!;
    this.#strike(downMs);
  }

  #strike(downMs: number): void {
    const running = this.#running;
    if (running === undefined) return;
    const point = this.#armed?.point ?? "between";
    if (point !== "while-opening") this.#armed = undefined;
    this.options.world.trace(`${this.url} crashes (${point})`);
    this.#closeProgram();
    this.#copyFiles();
    this.#running = undefined;
    running.kill();
    this.options.world.at(downMs, () => this.start());
  }

  #copyFiles(): void {
    this.#path = copyDatabase(this.#path, this.#nextPath());
  }

  // ── Another file in the place of its own ────────────────────────────────────────────────────

  /** Keeps its file as it is now. */
  backUp(): KeptFile {
    const { safety, network } = this.options;
    return {
      path: copyDatabase(this.#path, this.#nextPath()),
      remembered: safety.remember(this),
      acknowledged: network.acknowledgedTo(this.url),
    };
  }

  /** A file that was never used. */
  emptyFile(): KeptFile {
    const path = this.#nextPath();
    writeFileSync(path, this.options.image);
    const remembered = { held: new Map(), unsettled: new Map(), written: new Set<string>() };
    return { path, remembered, acknowledged: new Map() };
  }

  /** Ends the process where there is one, and starts it again later with a copy of this file. */
  putFile({ path, remembered, acknowledged }: KeptFile, downMs: number): void {
    const { safety, network } = this.options;
    if (this.#running) this.#strike(downMs);
    this.#closeProgram();
    this.#armed = undefined;
    this.#path = copyDatabase(path, this.#nextPath());
    safety.changedFile(this, remembered);
    network.changedFile(this.url, acknowledged);
  }

  /** Who its file is, and what it knows of others; `dbId` is undefined where the next start gives it one. */
  readStanding(): Standing {
    const db = this.program;
    const settings = new Map(
      db
        .query<{ key: string; value: string }, []>(
          "SELECT key, value FROM _hooksync WHERE key IN ('db_id', 'node_id')",
        )
        .all()
        .map(({ key, value }) => [key, value]),
    );
    const isOwn = settings.get("node_id") === new URL(this.url).hostname;
    const marks = db
      .query<{ db: string } & Mark, []>("SELECT db, batch_id AS batchId, hash FROM _hooksync_marks")
      .all();
    const peers = db
      .query<PeerStanding & { url: string; made: number | null; left: number }, []>(
        `SELECT peer_url AS url, db_id AS dbId, coalesce(prev, 0) AS prev, fill ->> 'entries' AS made,
           (SELECT count(*) FROM _changes WHERE only_for = peer_url) AS left
         FROM _peer_state`,
      )
      .all();
    return {
      dbId: isOwn ? settings.get("db_id") : undefined,
      newest: this.newestChange,
      marks: new Map(marks.map(({ db: of, ...mark }) => [of, mark])),
      peers: new Map(
        peers.map(({ url, dbId, prev, made, left }) => {
          return [url, { dbId, prev, isFillAhead: made !== null && made === left }];
        }),
      ),
    };
  }

  /** The newest change of its log. */
  get newestChange(): number {
    return (
      this.program
        .query<{ seq: number }, []>("SELECT seq FROM sqlite_sequence WHERE name = '_changes'")
        .get()?.seq ?? 0
    );
  }

  /** The simulation is over. */
  close(): void {
    this.clock.onRead = () => {};
    this.#closeProgram();
    this.#running?.kill();
    this.#running = undefined;
  }

  // ── Another program with the same file ──────────────────────────────────────────────────────

  /** Its connection: stays open across a restart of the node, as programs do. */
  get program(): Database {
    if (this.#program === undefined) {
      this.#program = new Database(this.#path, { readwrite: true, strict: true });
      this.#program.run("PRAGMA busy_timeout = 0");
    }
    return this.#program;
  }

  #closeProgram(): void {
    this.#program?.close(true);
    this.#program = undefined;
  }

  /** Runs these statements in one transaction; false where the file is locked or full. */
  runProgram(keys: readonly string[], statements: readonly string[]): boolean {
    const { world, safety } = this.options;
    const db = this.program;
    try {
      db.run("BEGIN IMMEDIATE");
    } catch {
      return false;
    }
    const before = safety.beforeProgram(this, db, keys);
    try {
      for (const sql of statements) {
        world.trace(`${this.url} program: ${sql}`, keys[0]);
        db.run(sql);
      }
      db.run("COMMIT");
    } catch (error) {
      if (db.inTransaction) db.run("ROLLBACK");
      world.trace(`${this.url} program: refused, ${(error as Error).message}`, keys[0]);
      if (!isExpectedRefusal(error)) world.fail(error);
      return false;
    }
    safety.afterProgram(this, before);
    this.#running?.wake();
    return true;
  }

  // ── Its REST ────────────────────────────────────────────────────────────────────────────────

  create(table: string, row: Record<string, unknown>): void {
    this.#write(
      table,
      `POST ${show(row)}`,
      (reader) => reader.newRow(row),
      (repository, synced, input, transaction) => repository.create(synced, input, transaction),
      (answer) => [JSON.parse(new TextDecoder().decode(answer)) as AnsweredRow],
    );
  }

  createMany(table: string, rows: readonly Record<string, unknown>[]): void {
    this.#write(
      table,
      `POST a batch of ${rows.length}`,
      (reader) => reader.newRows(rows),
      (repository, synced, input, transaction) => repository.createMany(synced, input, transaction),
      (ids) => ids.map((id) => ({ id, updated_at: undefined })),
    );
  }

  update(table: string, id: string, row: Record<string, unknown>): void {
    this.#write(
      table,
      `PUT ${id} ${show(row)}`,
      (reader) => reader.change(row, id),
      (repository, synced, input, transaction) => repository.update(synced, id, input, transaction),
      (answer) => [JSON.parse(new TextDecoder().decode(answer)) as AnsweredRow],
      id,
    );
  }

  remove(table: string, id: string): void {
    this.#write(
      table,
      `DELETE ${id}`,
      () => undefined,
      (repository, synced, _, transaction) =>
        repository.remove(synced, id, transaction) ?? "removed",
      () => [],
      id,
    );
  }

  /** As `write` in lib/http/row-routes.ts. */
  #write<Input, Result>(
    tableName: string,
    what: string,
    read: (reader: RowReader) => Input,
    work: (
      repository: Repository,
      table: SyncedTable,
      input: Input,
      transaction: WriteTransaction,
    ) => Result | RequestError | Later<Result | RequestError>,
    rowsOf: (result: Result) => AnsweredRow[],
    id?: string,
  ): void {
    const running = this.#running;
    const { world, safety } = this.options;
    if (running === undefined || running.isStopping) return;
    const { store } = running;
    const table = store.table(tableName);
    if (table === undefined) {
      world.fail(new Finding(`${tableName} is not synced`));
      return;
    }
    world.trace(`${this.url} ${what}`, id === undefined ? undefined : `${tableName}/${id}`);
    const floor = id === undefined ? undefined : safety.floorOf(this, store.db, tableName, id);
    safety.writes(this);
    if (id !== undefined) safety.touches(this, tableName, id);
    const input = read(store.repository.reader(table));
    running.wake();
    void store.queue
      .run("local", (transaction) => {
        const current = store.table(tableName);
        if (current === undefined) return new RequestError(404, "no such table");
        const fresh = current === table ? input : read(store.repository.reader(current));
        return work(store.repository, current, fresh, transaction);
      })
      .then(
        (result) => {
          if (!running.isAlive || result instanceof RequestError) return;
          for (const row of rowsOf(result)) {
            world.trace(`${this.url} answers version ${row.updated_at}`, `${tableName}/${row.id}`);
            safety.answered(this, tableName, row, floor);
          }
          if (result === "removed" && id !== undefined) safety.removed(this, tableName, id, floor);
        },
        (error: unknown) => {
          if (running.isAlive) running.expectFailure(error);
        },
      );
  }

  // ── Its network ─────────────────────────────────────────────────────────────────────────────

  sync(request: WireRequest): Promise<WireReply | "reset"> {
    const running = this.#running;
    if (running === undefined) return Promise.resolve("reset");
    return running.sync(request);
  }

  answer(call: NodeCall): Promise<WireReply | "reset"> {
    return this.#running?.answer(call) ?? Promise.resolve("reset");
  }

  health(identity: string | undefined): WireReply {
    const running = this.#running!;
    return {
      status: 200,
      text: JSON.stringify({
        ok: true,
        node_id: new URL(this.url).hostname,
        item_count: 1,
        pending_changes: running.store.log.pending(),
        last_change_id: running.store.settledThrough,
      }),
      identity: formatIdentity(running.store.identity(parseIdentity(identity)?.db)),
    };
  }
}

/** What an answer says of a row; without a stamp where the answer has none. */
export interface AnsweredRow {
  readonly id: string;
  readonly updated_at: number | undefined;
}

function shownFields(fields: LogFields): string {
  return JSON.stringify(fields, (_, value: unknown) =>
    value instanceof Error ? value.message : value,
  );
}

function show(row: Record<string, unknown>): string {
  return JSON.stringify(row, (_, value: unknown) =>
    typeof value === "bigint" ? `${value}n` : value,
  );
}

/** The file and its -wal, as they lie on the disk. */
function copyDatabase(path: string, copy: string): string {
  copyFileSync(path, copy);
  if (existsSync(`${path}-wal`)) copyFileSync(`${path}-wal`, `${copy}-wal`);
  return copy;
}

function isExpectedRefusal(error: unknown): boolean {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return code.startsWith("SQLITE_CONSTRAINT") || code === "SQLITE_FULL";
}

/** One process of a node, from its start to its end: the parts as lib/node.ts wires them. */
export class Running {
  readonly store: Store;
  readonly node: OurNode;
  readonly #path: string;
  readonly #mesh: Mesh;
  readonly #receiver: Receiver;
  readonly #face: Face;
  readonly #verifier: Verifier;
  readonly #requests = new Set<() => void>();
  readonly #shippers: SimShipper[] = [];
  #cancelTick: Cancel | undefined;
  #pauseMs: number;
  #looksAgain = false;
  isAlive = true;
  isStopping = false;
  isCrashed = false;
  /** How many faults that make writes fail are on. */
  hindrances = 0;

  constructor(node: OurNode, path: string) {
    const { options } = node;
    const { clock, world, safety } = options;
    this.node = node;
    this.#path = path;
    this.#pauseMs = options.batchMs;
    const before = clock.onRead;
    clock.onRead = () => node.onOpening(this);
    const config = configOf(options);
    const random = this.#random();
    const timers = this.#timers();
    this.store = Store.open({
      path,
      nodeId: config.id,
      asked: config.tables,
      schemaSql: undefined,
      synchronous: config.synchronous,
      parkedBytesMax: config.parkedBytesMax,
      tombstoneRetentionMs: config.tombstoneRetentionMs,
      acceptOldFile: config.acceptOldFile,
      fillSliceRows: options.fillSliceRows,
      pauseRowsMin: options.pauseRowsMin,
      clock,
      timers,
      random,
      onEvent: (event) => {
        const { kind, table } = event;
        const text = "text" in event ? event.text : `${event.reason} (from ${event.peer})`;
        world.trace(`${options.url} ${kind} ${table}: ${text}`);
        safety.onEvent(node, kind);
        if (kind === "filled") this.#verifier.soon();
      },
      onCommit: (through, rewritten) => this.#onCommit(through, rewritten),
    });
    // The simulated clock stands still while SQLite waits for a lock.
    this.store.db.run("PRAGMA busy_timeout = 0");
    const log = this.#logger();
    this.#mesh = new Mesh({
      config,
      store: this.store,
      path,
      workerUrl: new URL("none:"),
      log,
      clock,
      timers,
      random,
      itemCount: () => 1,
      reportError: (error) => {
        if (this.isAlive) this.expectFailure(error);
      },
      remoteAddress: () => undefined,
      onDoubt: () => this.#verifier.soon(),
      startShipper: (shipper) => {
        const started = new SimShipper({
          ...shipper,
          timers,
          network: options.network,
          url: options.url,
          later: (run) => this.#later(run),
          onMessage: (message) => {
            this.#onShipper(message);
            shipper.onMessage(message);
          },
        });
        this.#shippers.push(started);
        return started;
      },
    });
    const { store } = this;
    const { id: nodeId } = config;
    this.#face = new Face({ store, mesh: this.#mesh, path, nodeId, clock, timers, random });
    this.#verifier = new Verifier({
      everyMs: options.verifies ? config.verifyMs : 0,
      nodeId,
      ownUrl: options.url,
      neighbours: () => this.#mesh.status(),
      isBusy: () => store.queue.isAtWork,
      store,
      log,
      clock,
      timers,
      random,
      call: (call) => options.network.call(options.url, call),
    });
    this.#receiver = new Receiver(this.store, (identity, nodeId) =>
      this.#mesh.heard(identity, nodeId),
    );
    this.#mesh.start();
    this.store.db.run("PRAGMA busy_timeout = 0");
    clock.onRead = before;
    if (this.isCrashed) this.kill();
  }

  begin(): void {
    this.#scheduleTick();
  }

  /** Nothing of this process is heard of again. Its files are taken away once its work in hand is done. */
  kill(): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    this.#cancelTick?.();
    for (const reset of [...this.#requests]) reset();
    const { world, network, url } = this.node.options;
    network.ended(url);
    world.at(0, () => {
      for (const shipper of this.#shippers) shipper.end();
      this.#verifier.stop();
      this.#face.close();
      drainMicrotasks();
      this.store.db.close(true);
      for (const suffix of ["", "-wal", "-shm"]) rmSync(`${this.#path}${suffix}`, { force: true });
    });
  }

  /** As `stop` of lib/node.ts; false where a crash came first. */
  async stop(): Promise<boolean> {
    const { store } = this;
    store.queue.hurry();
    await store.runDue().catch(() => undefined);
    if (!this.isAlive) return false;
    this.isStopping = true;
    this.#cancelTick?.();
    this.#verifier.stop();
    await this.#mesh.stop(DRAIN_MS_MAX);
    if (!this.isAlive) return false;
    this.#face.close();
    await store.close();
    if (!this.isAlive) return false;
    this.isAlive = false;
    this.node.options.network.ended(this.node.url);
    for (const reset of [...this.#requests]) reset();
    return true;
  }

  #random(): Random {
    const { chance, safety, tables } = this.node.options;
    return {
      next: () => chance.next(),
      hex: (bytes) => chance.hex(bytes),
      uuid: () => {
        const id = chance.uuid();
        safety.made(this.node, id, tables);
        return id;
      },
    };
  }

  #timers(): Timers {
    const { world } = this.node.options;
    const guarded = (run: () => void) => () => {
      if (this.isAlive) run();
    };
    return {
      after: (delayMs, run) => world.at(delayMs, guarded(run)),
      soon: (run) => void world.at(0, guarded(run)),
    };
  }

  /** A message between the node's two threads. */
  #later(run: () => void): void {
    const { world, chance } = this.node.options;
    world.at(chance.hits(0.1) ? chance.below(MESSAGE_MS_MAX) : 0, () => {
      if (this.isAlive) run();
    });
  }

  #onCommit(through: number, rewritten: boolean): void {
    if (!this.isAlive) return;
    this.node.options.safety.checkCommitted(this.node, this);
    this.node.onCommit();
    if (!this.isAlive) return;
    this.#mesh.settled(through, rewritten);
  }

  #onShipper(message: FromShipper): void {
    if (message.kind === "moved") this.node.options.safety.moved(this.node, message);
  }

  // ── By itself ───────────────────────────────────────────────────────────────────────────────

  /** Something happened here: look at the file soon, and often for a while. */
  wake(): void {
    if (this.isStopping || this.#pauseMs === this.node.options.batchMs) return;
    this.#pauseMs = this.node.options.batchMs;
    this.#cancelTick?.();
    this.#scheduleTick();
  }

  /** A real node looks every `--batch-ms`; looks that can find nothing are only time lost here. */
  #scheduleTick(): void {
    const { idleMsMax } = this.node;
    // What the peers answered to a look must be looked at while it is fresh.
    const isSecondLook = this.#pauseMs > LOOK_MS && !this.#looksAgain;
    const pauseMs = isSecondLook ? LOOK_MS : this.#pauseMs;
    this.#looksAgain = isSecondLook;
    this.#cancelTick = this.#timers().after(pauseMs, () => void this.#runTick());
    this.#pauseMs = Math.min(2 * this.#pauseMs, idleMsMax);
  }

  async #runTick(): Promise<void> {
    if (this.isStopping) return;
    const { world, safety } = this.node.options;
    const sinceMs = world.nowMs;
    try {
      await this.store.runDue();
      if (this.isAlive) await this.#mesh.look();
      if (this.isAlive) await this.#verifier.look();
      if (this.isAlive) safety.checkMoved(this.node, this, sinceMs);
    } catch (error) {
      if (this.isAlive) this.expectFailure(error);
    }
    if (this.isAlive && !this.isStopping) this.#scheduleTick();
  }

  /** Only what a fault of this simulation explains may fail. */
  expectFailure(error: unknown): void {
    const isOfTheWorld =
      error instanceof HookSyncError && (error.code === "busy" || error.code === "disk-full");
    if (isOfTheWorld && (this.hindrances > 0 || this.isStopping)) return;
    this.node.options.world.fail(error);
  }

  #logger(): Logger {
    const write = (level: LogLevel, message: string, fields: LogFields = {}) => {
      const { url, world, safety, nodeAt, onFill } = this.node.options;
      if (world.isTraced) world.trace(`${url} ${level}: ${message} ${shownFields(fields)}`);
      if (!message.startsWith("filling a peer") || !this.isAlive) return;
      const reason = String(fields["reason"]);
      onFill(reason);
      safety.filling(this.node, nodeAt(String(fields["peer"])), reason);
    };
    const at = (level: LogLevel) => (message: string, fields?: LogFields) =>
      write(level, message, fields);
    return {
      debug: at("debug"),
      info: at("info"),
      warn: at("warn"),
      error: at("error"),
      log: write,
      isOn: () => true,
    };
  }

  /** Takes a peer in, or out; false where it could not be written, and should be tried again. */
  async changePeer(does: "add" | "remove", url: string): Promise<boolean> {
    this.wake();
    try {
      await this.#mesh[does](url);
      return true;
    } catch (error) {
      if (this.isAlive) this.expectFailure(error);
      return false;
    }
  }

  // ── Network ─────────────────────────────────────────────────────────────────────────────────

  answer(call: NodeCall): Promise<WireReply | "reset"> {
    this.wake();
    if (call.method === "POST" && call.path === "/sync") {
      return this.sync({
        body: new TextEncoder().encode(call.json!),
        nodeId: call.headers![NODE_ID_HEADER]!,
        nodeUrl: undefined,
        identity: call.headers![IDENTITY_HEADER],
      });
    }
    return new Promise((resolve) => {
      const reset = () => end("reset");
      const end = (reply: WireReply | "reset") => {
        this.#requests.delete(reset);
        resolve(reply);
      };
      this.#requests.add(reset);
      const request = new Request(call.node + call.path, {
        method: call.method,
        headers: { "content-type": "application/json" },
        ...(call.body === undefined ? {} : { body: JSON.stringify(call.body) }),
      });
      this.#face.answer(request).then(
        (reply) => end({ ...reply, identity: undefined }),
        (error: unknown) => {
          if (this.isAlive) this.node.options.world.fail(error);
          end("reset");
        },
      );
    });
  }

  sync(request: WireRequest): Promise<WireReply | "reset"> {
    this.wake();
    return new Promise((resolve) => {
      const reset = () => end("reset");
      const end = (reply: WireReply | "reset") => {
        this.#requests.delete(reset);
        resolve(reply);
      };
      this.#requests.add(reset);
      const identity = parseIdentity(request.identity);
      this.#receiver.receive({ ...request, identity }).then(
        (answer) => {
          if (!this.isAlive) return;
          const { applied, ack } = answer;
          if (!this.isStopping) this.node.options.safety.acknowledged(this.node, request);
          end({
            status: 200,
            text: JSON.stringify({ applied, ack }),
            identity: formatIdentity(answer.identity),
          });
        },
        (error: unknown) => {
          if (!this.isAlive) return;
          if (error instanceof RequestError && error.status !== 503) {
            const text = new TextDecoder().decode(request.body);
            this.node.options.world.fail(new Finding(`${error.status} for ${text}: ${error}`));
          } else if (!(error instanceof RequestError)) this.expectFailure(error);
          end({ status: 503, text: "{}", identity: undefined });
        },
      );
    });
  }
}

function configOf(options: OurNodeOptions): Config {
  const { url, peers, batchMs, batchChangesMax, batchBytesMax, tombstoneRetentionMs } = options;
  const argv = [
    "--id",
    new URL(url).hostname,
    "--db",
    "none.db",
    ...peers.flatMap((peer) => ["--peer", peer]),
  ];
  const loaded = loadConfig({ argv, env: {}, readText: () => "" });
  if (!("config" in loaded)) throw new Finding(JSON.stringify(loaded.mistakes));
  return {
    ...loaded.config,
    nodeUrl: options.namesItself ? url : undefined,
    synchronous: "normal",
    batchMs,
    batchChangesMax,
    batchBytesMax,
    tombstoneRetentionMs,
    // A simulated retention may be shorter than a node is down.
    acceptOldFile: tombstoneRetentionMs < DAY_MS,
  };
}
