/**
 * Nodes for tests of the receiving side: a real file, a real Store with its triggers and a real Receiver;
 * clock and timers are the test's own. What one node captured reaches another as the bytes that the
 * shipper would send.
 */
import { Database } from "bun:sqlite";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Cancel, Clock, Timers } from "../../lib/base/clock.ts";
import type { Identity } from "../../lib/protocol/identity.ts";
import { LogBatchSource } from "../../lib/shipper/batch.ts";
import type { AskedTables } from "../../lib/store/adopt.ts";
import { Receiver, type SyncAnswer } from "../../lib/store/receive.ts";
import { Store, type StoreOptions } from "../../lib/store/store.ts";
import { Seeded } from "./seeded.ts";

export const T = 1_800_000_000_000;
export const ITEMS_SQL =
  "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT);";

/** Time that passes only when it is told to; what is due runs then. Shared by all nodes of a test. */
export class VirtualTime implements Clock, Timers {
  ms = T;
  #timers: { atMs: number; run: () => void }[] = [];

  nowMs(): number {
    return this.ms;
  }

  monotonicMs(): number {
    return this.ms;
  }

  after(delayMs: number, run: () => void): Cancel {
    const timer = { atMs: this.ms + delayMs, run };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  soon(run: () => void): void {
    queueMicrotask(run);
  }

  pass(ms: number): void {
    this.ms += ms;
    for (;;) {
      const due = this.#timers.find((timer) => timer.atMs <= this.ms);
      if (!due) return;
      this.#timers = this.#timers.filter((other) => other !== due);
      due.run();
    }
  }
}

export interface NodeOptions {
  readonly schema?: string;
  readonly tables?: AskedTables | "found";
  readonly time?: VirtualTime;
  readonly timers?: Timers;
  readonly parkedBytesMax?: number;
  readonly pauseRowsMin?: number;
  readonly id?: string;
  /** Reopens this file instead of making one. */
  readonly path?: string;
}

export interface Send {
  readonly batchId?: number;
  /** X-Node-Id. */
  readonly from?: string;
  /** Our header; `null` for a foreign sender, a default one otherwise. */
  readonly identity?: Identity | null;
  readonly url?: string;
}

export const OURS: Identity = { db: "00112233445566778899aabbccddeeff" };

/** A change as a test writes it: JSON text, or a value that becomes it. */
export type TestChange = string | Readonly<Record<string, unknown>>;

export interface ParkedEntry {
  readonly peer: string;
  readonly op: string | null;
  readonly table_name: string | null;
  readonly row_id: string | null;
  readonly code: string;
  readonly reason: string;
  readonly version: number | null;
  readonly change: string;
  readonly retry_count: number;
  readonly retry_at: number | null;
}

const folders: string[] = [];
let nodeCount = 0;

/** In an afterAll of each file that opens nodes. */
export function removeNodeFiles(): void {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
}

export class TestNode {
  readonly time: VirtualTime;
  readonly path: string;
  readonly store: Store;
  readonly receiver: Receiver;
  readonly events: Parameters<StoreOptions["onEvent"]>[0][] = [];
  commits = 0;
  readonly #source: LogBatchSource;
  #batchId = 0;
  #app: Database | undefined;

  constructor(options: NodeOptions = {}) {
    this.time = options.time ?? new VirtualTime();
    this.path = options.path ?? join(newFolder(), "node.db");
    nodeCount++;
    const storeOptions: StoreOptions = {
      path: this.path,
      nodeId: options.id ?? "node-b",
      asked: options.tables === "found" ? undefined : (options.tables ?? "*"),
      schemaSql: options.schema ?? ITEMS_SQL,
      synchronous: "normal",
      parkedBytesMax: options.parkedBytesMax ?? 1024 ** 3,
      tombstoneRetentionMs: 30 * 86_400_000,
      acceptOldFile: false,
      pauseRowsMin: options.pauseRowsMin,
      clock: this.time,
      timers: options.timers ?? this.time,
      random: new Seeded(nodeCount),
      onEvent: (event) => this.events.push(event),
      onCommit: () => this.commits++,
    };
    this.store = Store.open(storeOptions);
    this.receiver = new Receiver(this.store, () => undefined);
    this.#source = new LogBatchSource({
      db: this.store.db,
      batchChangesMax: 10_000,
      batchBytesMax: 8 * 1024 * 1024,
    });
  }

  get db(): Database {
    return this.store.db;
  }

  /** POST /sync with these bytes. */
  post(body: Uint8Array | string, send: Send = {}): Promise<SyncAnswer> {
    return this.receiver.receive({
      body: typeof body === "string" ? new TextEncoder().encode(body) : body,
      nodeId: send.from ?? "node-a",
      nodeUrl: send.url,
      identity: send.identity === null ? undefined : (send.identity ?? OURS),
    });
  }

  /** POST /sync with these changes; answers `applied`. */
  async sync(changes: readonly TestChange[], send: Send = {}): Promise<number> {
    const batchId = send.batchId ?? ++this.#batchId;
    const texts = changes.map((each) => (typeof each === "string" ? each : JSON.stringify(each)));
    const body = `{"batch_id":${batchId},"changes":[${texts.join(",")}]}`;
    const answer = await this.post(body, send);
    if (answer.ack !== batchId) throw new Error(`acknowledged ${answer.ack} for ${batchId}`);
    return answer.applied;
  }

  /** Another program's connection to the file. */
  get app(): Database {
    this.#app ??= new Database(this.path);
    return this.#app;
  }

  /** Writes of another program, settled at once. */
  async write(sql: string): Promise<void> {
    this.app.run(sql);
    await this.store.queue.run("local", () => undefined);
  }

  /** What the node's timer does. */
  async tick(): Promise<void> {
    await this.store.runDue();
  }

  /** Changes captured or announced after `after`, as the shipper sends them. */
  batchAfter(after: number): { body: Uint8Array; through: number } | undefined {
    this.#source.forget();
    const read = this.#source.read(
      { after, through: undefined, skip: 0, changesMax: undefined, bytesMax: undefined },
      this.store.settledThrough,
    );
    return read.kind === "batch" ? read.batch : undefined;
  }

  /** Every row with the exact kind and bytes of each value. */
  rows(table = "items"): string[] {
    const columns = this.db
      .prepare<{ name: string }, [string]>("SELECT name FROM pragma_table_info(?) ORDER BY name")
      .all(table)
      .map(({ name }) => `"${name.replaceAll('"', '""')}"`);
    const shown = columns.map(
      (name) => `typeof(${name}) || ':' || hex(${name}) || ':' || quote(${name})`,
    );
    const select = this.db.prepare<{ row: string }, []>(
      `SELECT ${shown.join(" || ' | ' || ")} AS row FROM "${table.replaceAll('"', '""')}" ORDER BY id`,
    );
    const rows = select.all().map(({ row }) => row);
    select.finalize();
    return rows;
  }

  row<T = Record<string, unknown>>(id: string, table = "items"): T | null {
    return this.db.prepare<T, [string]>(`SELECT * FROM "${table}" WHERE id = ?`).get(id);
  }

  /** `typeof` and `quote` of one value. */
  value(id: string, column: string, table = "items"): [string, string] {
    const found = this.db
      .prepare<{ kind: string; value: string }, [string]>(
        `SELECT typeof("${column}") AS kind, quote("${column}") AS value FROM "${table}" WHERE id = ?`,
      )
      .get(id);
    return found ? [found.kind, found.value] : ["none", ""];
  }

  tombstones(): string[] {
    return this.db
      .query<{ t: string }, []>(
        "SELECT tbl || '/' || id || '@' || version AS t FROM _hooksync_tombstones ORDER BY 1",
      )
      .all()
      .map(({ t }) => t);
  }

  parked(): ParkedEntry[] {
    return this.db
      .query<ParkedEntry, []>(
        `SELECT peer, op, table_name, row_id, code, reason, version, change, retry_count, retry_at
         FROM _dead_letter WHERE direction = 'received' ORDER BY dead_id`,
      )
      .all();
  }

  log(): { op: string; table_name: string; row_id: string; row_data: string }[] {
    return this.db
      .query<{ op: string; table_name: string; row_id: string; row_data: string }, []>(
        "SELECT op, table_name, row_id, row_data FROM _changes ORDER BY change_id",
      )
      .all();
  }

  count(sql: string): number {
    return this.db.prepare<{ n: number }, []>(sql).get()!.n;
  }

  async close(): Promise<void> {
    this.#source.close();
    this.#app?.close();
    await this.store.close();
  }
}

function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "hook-sync-receive-"));
  folders.push(folder);
  return folder;
}

// ── Changes ───────────────────────────────────────────────────────────────────────────────────────

export function itemRow(id: string, over: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    id,
    name: `name ${id}`,
    value: 1,
    created_at: T - 1_000,
    updated_at: T,
    node_id: "node-a",
    ...over,
  };
}

export function insert(id: string, over: Record<string, unknown> = {}): TestChange {
  return { op: "INSERT", table: "items", row: itemRow(id, over), old_id: null };
}

export function update(id: string, over: Record<string, unknown> = {}): TestChange {
  return { op: "UPDATE", table: "items", row: itemRow(id, over), old_id: null };
}

export function remove(id: string, over: Record<string, unknown> = {}): TestChange {
  return { op: "DELETE", table: "items", row: itemRow(id, over), old_id: id };
}

/** A change of any table from a row whose members are JSON text, so that digits are exact. */
export function rawChange(
  table: string,
  members: Readonly<Record<string, string>>,
  more = "",
  op = "UPDATE",
): string {
  const row = Object.entries(members).map(([name, json]) => `${JSON.stringify(name)}:${json}`);
  return `{"op":"${op}","table":${JSON.stringify(table)},"row":{${row.join(",")}},"old_id":null${more}}`;
}
