/**
 * A real file in a folder of its own, and a Store on it: the production call, with every option
 * defaulted, so that an option set in a test is one that matters to it.
 */
import { Database, type SQLQueryBindings } from "bun:sqlite";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemTimers } from "../../lib/base/clock.ts";
import { TOMBSTONE_RETENTION_MS } from "../../lib/protocol/limits.ts";
import { Store, type StoreOptions } from "../../lib/store/store.ts";
import { Seeded } from "./seeded.ts";
import { TestClock } from "./store-fixture.ts";

/** Some milliseconds before the time of TestClock, for rows that were written a while ago. */
export const T = 1_700_000_000_000;

export interface Entry {
  readonly change_id: number;
  readonly op: string;
  readonly table_name: string;
  readonly row_id: string;
  readonly row_data: string;
}

export class StoreFile {
  readonly folder = mkdtempSync(join(tmpdir(), "hook-sync-store-"));
  readonly path = join(this.folder, "node.db");
  readonly clock = new TestClock();
  readonly events: Parameters<StoreOptions["onEvent"]>[0][] = [];
  /** What every commit said of entries that were settled before. */
  readonly rewritten: boolean[] = [];
  #store: Store | undefined;

  /** `sql` makes the file as another program would have left it. */
  constructor(sql?: string) {
    if (sql !== undefined) this.write(sql);
  }

  get store(): Store {
    if (this.#store === undefined) throw new Error("the store is not open");
    return this.#store;
  }

  open(options: Partial<StoreOptions> = {}): Store {
    this.#store = Store.open({
      path: this.path,
      nodeId: "node-a",
      asked: undefined,
      schemaSql: undefined,
      synchronous: "normal",
      parkedBytesMax: 1 << 30,
      tombstoneRetentionMs: TOMBSTONE_RETENTION_MS,
      acceptOldFile: false,
      clock: this.clock,
      timers: systemTimers,
      random: new Seeded(1),
      onEvent: (event) => this.events.push(event),
      onCommit: (_through, rewritten) => this.rewritten.push(rewritten),
      ...options,
    });
    return this.#store;
  }

  async close(): Promise<void> {
    await this.#store?.close();
    this.#store = undefined;
  }

  /** What the node does when another program committed. */
  async settle(): Promise<void> {
    await this.store.queue.run("apply", () => undefined);
  }

  /** Settles, and announces whatever is due to be. */
  async runDue(): Promise<void> {
    await this.settle();
    for (let i = 0; i < 100; i++) await this.store.runDue();
  }

  /** What another program does, on a connection of its own. */
  write(sql: string): void {
    this.#elsewhere((db) => db.run(sql));
  }

  rows<T = Record<string, unknown>>(sql: string, ...params: SQLQueryBindings[]): T[] {
    return this.#elsewhere((db) => db.prepare(sql).all(...params) as T[]);
  }

  #elsewhere<T>(work: (db: Database) => T): T {
    const db = new Database(this.path);
    try {
      // Nothing here is about a power cut.
      db.run("PRAGMA busy_timeout = 5000; PRAGMA synchronous = OFF");
      return work(db);
    } finally {
      db.close();
    }
  }

  /** The log after a position, oldest first. */
  entries(after = 0): Entry[] {
    return this.rows<Entry>(
      "SELECT change_id, op, table_name, row_id, row_data FROM _changes WHERE change_id > ? ORDER BY change_id",
      after,
    );
  }

  /** The log in short: what a peer would be told. */
  log(after = 0): string[] {
    return this.entries(after).map((entry) => `${entry.op} ${entry.row_id}`);
  }

  kinds(): string[] {
    return this.events.map((event) => event.kind);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
