/**
 * A node that follows a source outside of its mesh and brings what it has into it: each transaction of
 * the source in one transaction of the node's file, together with how far the source was read, so that
 * whatever happens to the process nothing is taken twice and nothing is left out.
 *
 *     source ─► Follower ─► Bridge ─► write queue ─► the file ─► shipper ─► the mesh
 *
 * A source that itself belongs to the mesh would send back what it got from here, for ever: it is
 * refused by its address or file where those are known, and at the latest when rows come back under
 * versions that were given here.
 */
import { dirname } from "node:path";
import { assert } from "./base/assert.ts";
import type { Clock, Timers } from "./base/clock.ts";
import { HookSyncError } from "./base/errors.ts";
import type { Logger } from "./base/log.ts";
import type { Random } from "./base/random.ts";
import type { Batch, CdcChange, Watermark } from "./cdc/change.ts";
import { followClosedFile } from "./cdc/closed-file.ts";
import { breathe } from "./cdc/connection.ts";
import { CdcError } from "./cdc/error.ts";
import { Follower, type FollowerStatus } from "./cdc/follower.ts";
import type { ApplyOutcome } from "./cdc/replica.ts";
import { type ShapeTable, SourceShape } from "./cdc/source-shape.ts";
import type { FollowTarget } from "./cdc/stream.ts";
import type { FollowingReport } from "./http/health-routes.ts";
import { callNode, streamFrom } from "./shipper/node-client.ts";
import type { SourceRows } from "./store/source-rows.ts";
import { nameKey } from "./store/sql.ts";
import type { Store } from "./store/store.ts";

/** What a node is to follow. */
export type BridgeSource =
  | {
      readonly kind: "node";
      readonly url: string;
      /** How the source remembers this follower. */
      readonly name: string;
      readonly token: string | undefined;
    }
  /** One that no program has open: it is read to its end. */
  | { readonly kind: "file"; readonly path: string };

/** What a bridge is told of its source. */
export interface BridgeAim {
  readonly source: BridgeSource;
  /** What the file has from another source is this one's from now on. */
  readonly isNew: boolean;
}

/** What may tell that a source belongs to this node's mesh. */
export interface OwnMesh {
  readonly dbIds: ReadonlySet<string>;
  readonly urls: ReadonlySet<string>;
}

/** What a Bridge works with; the store is the node's own, which it neither opens nor closes. */
export interface BridgeOptions extends BridgeAim {
  readonly store: Store;
  /** The node's file; large transactions are held beside it until they are whole. */
  readonly path: string;
  readonly ownMesh: () => OwnMesh;
  readonly log: Logger;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
}

/** Rows of a copy written in one transaction, with the node's other writes between them. */
const SLICE_ROWS = 500;
const SLICE_BYTES = 1024 * 1024;
/** Looked at between two breaths. */
const BREATH_ITEMS = 1_000;
/** After a failure of the node's own file: a full disk is not full for a moment only. */
const FAILURE_PAUSE_MS = 1_000;
/** A node that stops waits for it. */
const HEALTH_TIMEOUT_MS = 2_000;
/** How often a source that sends is held against the peers that are known by then. */
const ASK_PAUSE_MS = 1_000;

interface Kept {
  readonly log: string;
  readonly commit: string;
  readonly mark: string;
}

/** What a source says of itself. */
export interface SourceHealth {
  readonly dbId?: string | undefined;
  readonly peers: readonly string[];
}

/** Why a source with this health, at this address, belongs to the mesh; undefined where it does not. */
export function whyOfMesh(url: string, health: SourceHealth, own: OwnMesh): string | undefined {
  if (own.urls.has(url)) return "it is one of this node's peers";
  if (health.dbId !== undefined && own.dbIds.has(health.dbId)) {
    return "its file is that of one of this node's peers";
  }
  // An address of the machine itself means something on that machine only.
  const isNear = isLoopback(url);
  const shared = health.peers.find((peer) => own.urls.has(peer) && isLoopback(peer) === isNear);
  return shared === undefined ? undefined : `both have ${shared} as a peer or as an own address`;
}

function isLoopback(url: string): boolean {
  return /^https?:\/\/(?:localhost|127\.|\[::1\])/.test(url);
}

/** Throws where the source can be seen to belong to the mesh; one that is away is asked later. */
export async function refuseOwnMesh(source: BridgeSource, own: OwnMesh): Promise<void> {
  if (source.kind === "file") return;
  const why =
    whyOfMesh(source.url, { peers: [] }, own) ??
    whyOfMesh(source.url, await askSource(source.url), own);
  if (why === undefined) return;
  throw new HookSyncError(
    "source-of-mesh",
    `${source.url} belongs to this node's own mesh (${why}): what it sends would go round in circles`,
    "Follow it without --into-mesh, or give it as --peer: then it syncs.",
  );
}

/** A program that serves its own database need not have a health, nor a file with an identity. */
async function askSource(url: string): Promise<SourceHealth> {
  const call = { node: url, method: "GET", path: "/health", timeoutMs: HEALTH_TIMEOUT_MS } as const;
  const answer = await callNode(call);
  if (answer.kind === "failed" || answer.status !== 200) return { peers: [] };
  return { dbId: answer.identity?.db, peers: neighboursIn(answer.json) };
}

/** Its peers, and what it follows itself. */
function neighboursIn(health: unknown): string[] {
  const { peers = [], following } = (health ?? {}) as { peers?: unknown; following?: unknown };
  const others: unknown[] = Array.isArray(peers) ? [...peers, following] : [following];
  return others.flatMap((other) => {
    const { url, source } = (other ?? {}) as { url?: unknown; source?: unknown };
    return [other, url, source].filter((text) => typeof text === "string");
  });
}

/** The life of a node's following, from start to stop. */
export class Bridge implements FollowTarget {
  readonly #options: BridgeOptions;
  readonly #rows: SourceRows;
  #watermark: Watermark | null;
  /** Undefined: to be made from what the file says. */
  #shape: SourceShape | undefined;
  /** The file says which source it has rows from. */
  #isNamed = false;
  /** The tables of `#shape` have been looked at. */
  #isAdmitted = false;
  #follower: Follower | undefined;
  #running: Promise<void> = Promise.resolve();
  #isStopping = false;
  #wake: (() => void) | undefined;
  #refusal: string | undefined;
  #failure: string | undefined;
  /** Of followers before this one, and of files. */
  #transactions = 0;
  #copies = 0;
  #isFileRead = false;
  #health: SourceHealth = { peers: [] };
  #askedMs = 0;

  constructor(options: BridgeOptions) {
    this.#options = options;
    this.#rows = options.store.takeFromSource();
    this.#watermark = this.#readKept();
  }

  start(): void {
    const { source } = this.#options;
    this.#running = source.kind === "file" ? this.#readFile(source.path) : this.#keepOn(source);
  }

  /** What is being applied is finished; the file may be closed after it. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#follower?.stop();
    this.#wake?.();
    await this.#running;
    this.#shape?.close();
    this.#shape = undefined;
  }

  /** Why following has ended for good: the node is not healthy then. */
  get refusal(): string | undefined {
    return this.#refusal;
  }

  report(): FollowingReport {
    const status = this.#follower?.status;
    return {
      source: this.#name,
      state: this.#state(status),
      log: this.#watermark?.log,
      commit: this.#watermark?.commit.toString(),
      transactions: this.#transactions + (status?.transactions ?? 0),
      copies: this.#copies + (status?.copies ?? 0),
      lagTransactions: status?.lagTransactions ?? (this.#isFileRead ? 0 : undefined),
      lagMs: status?.lagMs ?? (this.#isFileRead ? 0 : undefined),
      lastError: this.#refusal ?? this.#failure ?? status?.lastError ?? undefined,
      remarks: this.#rows.remarks,
      refused: this.#rows.refused,
    };
  }

  get #name(): string {
    const { source } = this.#options;
    return source.kind === "file" ? source.path : source.url;
  }

  #state(status: FollowerStatus | undefined): string {
    if (this.#refusal !== undefined) return "refused";
    if (this.#options.source.kind === "file") return this.#isFileRead ? "done" : "copying";
    return this.#failure === undefined ? (status?.state ?? "connecting") : "waiting";
  }

  // ── Following ───────────────────────────────────────────────────────────────────────────────

  /** The tables as they were left: what is told of them should not wait for the next change. */
  async #lookAtTables(): Promise<void> {
    if (this.#watermark === null) return;
    try {
      await this.#write((shape, nowMs) => this.#admit(shape, nowMs));
    } catch (error) {
      this.#fail(error);
    }
  }

  async #keepOn(source: BridgeSource & { kind: "node" }): Promise<void> {
    await this.#lookAtTables();
    while (!this.#isStopping && this.#refusal === undefined) {
      const follower = this.#makeFollower(source);
      this.#follower = follower;
      try {
        await follower.run();
      } catch (error) {
        if (this.#refusal !== undefined) return;
        // The node's own file: busy, full, damaged. Told once, tried again.
        this.#fail(error);
        this.#transactions += follower.status.transactions;
        this.#copies += follower.status.copies;
        this.#follower = undefined;
        await this.#pause();
      }
    }
  }

  #makeFollower({ url, name, token }: BridgeSource & { kind: "node" }): Follower {
    const { path, clock, timers, random, log } = this.#options;
    let told: string | undefined;
    return new Follower({
      replica: this,
      clock,
      timers,
      random,
      spool: { folder: dirname(path) },
      connect: async (query, signal) => {
        this.#health = await askSource(url);
        this.#refuseOwnMesh(url);
        const named = `name=${encodeURIComponent(name)}`;
        const parameters = query === "" ? named : `${query}&${named}`;
        return streamFrom({ node: url, path: `/cdc/stream?${parameters}`, token, signal });
      },
      onBatch: ({ kind, commit }) => {
        this.#failure = undefined;
        if (kind === "copy") log.info("copied the source", { source: url, commit: `${commit}` });
        else if (told !== undefined) log.info("following again", { source: url });
        told = undefined;
      },
      onEnd: (reason) => {
        if (reason !== undefined && reason !== told)
          log.warn("following was interrupted", { source: url, reason });
        told = reason;
      },
    });
  }

  async #readFile(path: string): Promise<void> {
    const { clock, log } = this.#options;
    await this.#lookAtTables();
    while (!this.#isStopping && !this.#isFileRead && this.#refusal === undefined) {
      try {
        const { copied, transactions } = await followClosedFile(path, this, clock.nowMs());
        this.#transactions += transactions;
        if (copied !== undefined) this.#copies++;
        this.#failure = undefined;
        this.#isFileRead = true;
        log.info("the source was read to its end", { source: path, transactions, copied });
      } catch (error) {
        if (this.#refusal !== undefined) return;
        this.#fail(error);
        await this.#pause();
      }
    }
  }

  #fail(error: unknown): void {
    if (this.#isStopping) return;
    const text = error instanceof Error ? error.message : String(error);
    if (text !== this.#failure) this.#options.log.error("following failed", { reason: text });
    this.#failure = text;
  }

  #pause(): Promise<void> {
    if (this.#isStopping) return Promise.resolve();
    return new Promise((resolve) => {
      const cancel = this.#options.timers.after(FAILURE_PAUSE_MS, resolve);
      this.#wake = () => {
        cancel();
        resolve();
      };
    });
  }

  /** Peers are learnt with time: asked again and again. */
  #refuseOwnMesh(url: string): void {
    this.#askedMs = this.#options.clock.monotonicMs();
    const why = whyOfMesh(url, this.#health, this.#options.ownMesh());
    if (why !== undefined) this.#refuseAsOwn(why);
  }

  #refuseAsOwn(why: string): never {
    this.#refuse(
      `the source belongs to this node's own mesh (${why}): following it goes round in circles and has ended`,
    );
  }

  #refuse(why: string): never {
    this.#refusal = why;
    this.#options.log.error(why);
    this.#follower?.stop();
    throw new Error(this.#refusal);
  }

  // ── Taking ──────────────────────────────────────────────────────────────────────────────────

  watermark(): Watermark | null {
    return this.#watermark;
  }

  async apply(batch: Batch): Promise<ApplyOutcome> {
    this.#endWhereStopping();
    const { source, clock } = this.#options;
    const isTime = clock.monotonicMs() - this.#askedMs >= ASK_PAUSE_MS;
    if (source.kind === "node" && isTime) this.#refuseOwnMesh(source.url);
    const outcome = batch.kind === "copy" ? await this.#copy(batch) : await this.#take(batch);
    if (outcome === "applied") {
      this.#isNamed = true;
      const { log, commit, mark } = batch;
      this.#watermark = { log, commit, mark };
    }
    if (this.#rows.isCircle)
      this.#refuseAsOwn("rows that got their versions here came back from it");
    return outcome;
  }

  /** Whatever is left comes after the next start. */
  #endWhereStopping(): void {
    if (this.#isStopping) throw new Error("the node is stopping");
  }

  #take(batch: Batch): Promise<ApplyOutcome> {
    return this.#write((shape, nowMs) => {
      this.#admit(shape, nowMs);
      let { tables } = shape;
      let isOther = false;
      const outcome = this.#follow(
        shape,
        batch,
        (change) => this.#row(shape, change),
        () => {
          for (const [key, { name }] of tables) if (!shape.tables.has(key)) this.#rows.sweep(name);
          ({ tables } = shape);
          isOther = true;
          this.#rows.admit(tables.values(), shape.db, nowMs);
        },
      );
      if (outcome === "already-applied") return outcome;
      while (this.#rows.sweepOut(SLICE_ROWS)) {
        // A transaction of the source is one here.
      }
      // The same log under another address: it moved.
      if (!this.#isNamed) this.#rows.setSource(this.#name);
      if (isOther) this.#rows.setSchema(JSON.stringify(shape.statements()));
      this.#rows.setPosition(positionOf(batch));
      return outcome;
    });
  }

  #admit(shape: SourceShape, nowMs: number): void {
    if (!this.#isAdmitted) this.#rows.admit(shape.tables.values(), shape.db, nowMs);
    this.#isAdmitted = true;
  }

  /** In slices, since the node serves others meanwhile; until the last the position is none. */
  async #copy(batch: Batch): Promise<ApplyOutcome> {
    const before = this.#rows.state.source;
    if (before !== null && before !== this.#name && !this.#options.isNew) {
      this.#refuse(
        `this file has rows from ${before}, and ${this.#name} has another log: a copy of it would delete them everywhere. ` +
          "Start with another file, or with --new-source if it took that one's place",
      );
    }
    this.#watermark = null;
    const schema: CdcChange[] = [];
    for await (const change of this.#unhurried(batch.changes)) {
      if (change.kind === "schema") schema.push(change);
    }
    await this.#write((shape, nowMs) => {
      this.#rows.setSource(this.#name);
      this.#rows.setPosition(null);
      this.#rows.sweep();
      this.#follow(shape, { ...batch, changes: schema }, unexpected, () => {});
      this.#rows.admit(shape.tables.values(), shape.db, nowMs);
      this.#isAdmitted = true;
      this.#rows.setSchema(JSON.stringify(shape.statements()));
    });
    const shape = this.#shape!;
    for (const slice of slicesOf(batch.changes)) {
      this.#endWhereStopping();
      await this.#writeSlice(() => {
        for (const change of slice) this.#row(shape, change);
      });
    }
    for (let moreRemains = true; moreRemains; ) {
      moreRemains = await this.#writeSlice(() => {
        const isMore = this.#rows.sweepOut(SLICE_ROWS);
        if (!isMore) this.#rows.setPosition(positionOf(batch));
        return isMore;
      });
    }
    return "applied";
  }

  #row(shape: SourceShape, change: RowChange): void {
    const table = shape.tables.get(nameKey(change.table));
    if (table === undefined) throw new CdcError("diverged", `there is no table ${change.table}`);
    switch (change.kind) {
      case "insert":
      case "update":
      case "put":
        if (change.values.length !== table.columns.length) throw otherColumns(change, table);
        this.#rows.put(table, change.rowid, change.values);
        return;
      case "delete":
        this.#rows.remove(table, { rowid: change.rowid, key: [] });
        return;
      case "remove":
        this.#rows.remove(table, change);
    }
  }

  /** A failure of the file passes through as it is: to the shape it would look like one of the batch. */
  #follow(
    shape: SourceShape,
    batch: Batch,
    row: (change: RowChange) => void,
    changed: () => void,
  ): ApplyOutcome {
    let failure: { readonly error: unknown } | undefined;
    const watched = <T extends unknown[]>(run: (...given: T) => void) => {
      return (...given: T) => {
        try {
          run(...given);
        } catch (error) {
          failure = { error };
          throw new Error("passed on", { cause: error });
        }
      };
    };
    try {
      return shape.follow(batch, watched(row), watched(changed));
    } catch (error) {
      throw failure === undefined ? error : failure.error;
    }
  }

  /** Runs again where the transaction has to: from what the file says, not from what it left here. */
  async #write<T>(work: (shape: SourceShape, nowMs: number) => T): Promise<T> {
    const { store } = this.#options;
    try {
      let shape = this.#shape;
      const result = await store.queue.run("source", ({ nowMs }) => {
        if (shape === undefined || this.#shape === undefined) {
          this.#forget();
          shape?.close();
          shape = this.#readShape();
        }
        this.#shape = undefined;
        this.#rows.begin(nowMs);
        const done = work(shape, nowMs);
        this.#rows.end(nowMs);
        return done;
      });
      this.#shape = shape;
      return result;
    } catch (error) {
      this.#forget();
      throw error;
    }
  }

  async #writeSlice<T>(work: () => T): Promise<T> {
    try {
      return await this.#options.store.queue.run("source", ({ nowMs }) => {
        this.#rows.begin(nowMs);
        const done = work();
        this.#rows.end(nowMs);
        return done;
      });
    } catch (error) {
      this.#forget();
      this.#shape?.close();
      this.#shape = undefined;
      throw error;
    }
  }

  #forget(): void {
    this.#rows.forget();
    this.#isAdmitted = false;
  }

  /** Others on this thread go on meanwhile. */
  async *#unhurried<T>(items: Iterable<T>): AsyncGenerator<T> {
    let count = 0;
    for (const item of items) {
      if (++count % BREATH_ITEMS === 0) await breathe(this.#options.timers);
      yield item;
    }
  }

  #readShape(): SourceShape {
    const { schema } = this.#rows.state;
    const statements: unknown = schema === null ? [] : JSON.parse(schema);
    assert(Array.isArray(statements), "the schema of the source is kept as a list");
    return new SourceShape(statements as string[], this.#readKept());
  }

  #readKept(): Watermark | null {
    const { position } = this.#rows.state;
    if (position === null) return null;
    const { log, commit, mark } = JSON.parse(position) as Kept;
    return { log, commit: BigInt(commit), mark };
  }
}

type RowChange = Exclude<CdcChange, { kind: "schema" }>;

function unexpected(change: RowChange): never {
  throw new CdcError("malformed", `a row of ${change.table} among the schema`);
}

function otherColumns(change: { table: string; values: readonly unknown[] }, table: ShapeTable) {
  const { length } = change.values;
  const columns = table.columns.length;
  return new CdcError("diverged", `${length} values for ${columns} columns of ${change.table}`);
}

function positionOf({ log, commit, mark }: Batch): string {
  return JSON.stringify({ log, commit: commit.toString(), mark } satisfies Kept);
}

/** The rows of a copy, as many at once as one transaction takes. */
function* slicesOf(changes: Iterable<CdcChange>): Generator<readonly RowChange[]> {
  let slice: RowChange[] = [];
  let bytes = 0;
  for (const change of changes) {
    if (change.kind === "schema") continue;
    slice.push(change);
    bytes += "values" in change ? bytesOf(change.values) : 0;
    if (slice.length < SLICE_ROWS && bytes < SLICE_BYTES) continue;
    yield slice;
    slice = [];
    bytes = 0;
  }
  if (slice.length > 0) yield slice;
}

function bytesOf(values: readonly unknown[]): number {
  let bytes = 0;
  for (const value of values) {
    bytes += typeof value === "string" || value instanceof Uint8Array ? value.length : 8;
  }
  return bytes;
}
