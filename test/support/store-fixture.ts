/**
 * A database with synced tables and their real triggers, a repository over it and a write queue that
 * neither settles nor finishes: enough to see what REST reads, writes and logs.
 */
import { Database } from "bun:sqlite";
import { type Clock, systemTimers } from "../../lib/base/clock.ts";
import { RequestError } from "../../lib/base/errors.ts";
import { systemRandom } from "../../lib/base/random.ts";
import { installTriggers, type Selection, survey } from "../../lib/store/catalog.ts";
import { migrate } from "../../lib/store/migrations.ts";
import { Repository } from "../../lib/store/repository.ts";
import type { SyncedTable } from "../../lib/store/schema.ts";
import { nameKey } from "../../lib/store/sql.ts";
import { Tombstones } from "../../lib/store/tombstones.ts";
import { TriggerPause } from "../../lib/store/trigger-pause.ts";
import { type Later, WriteQueue, type WriteTransaction } from "../../lib/store/write-queue.ts";

export const ITEMS_SQL =
  "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT)";

/** A clock that stands still until it is set. */
export class TestClock implements Clock {
  ms = 1_800_000_000_000;
  nowMs(): number {
    return this.ms;
  }
  monotonicMs(): number {
    return this.ms;
  }
}

export interface LogEntry {
  readonly op: string;
  readonly table_name: string;
  readonly row_id: string;
  readonly row_data: string;
  readonly was: number | null;
}

export class StoreFixture {
  readonly db: Database;
  readonly clock = new TestClock();
  readonly tombstones: Tombstones;
  readonly pause: TriggerPause;
  readonly repository: Repository;
  readonly queue: WriteQueue;
  /** What each commit's writes said they logged. */
  readonly logged: number[] = [];
  commits = 0;
  rollbacks = 0;
  #tables: readonly SyncedTable[] = [];
  #foreignKeys = false;
  /** Runs in the next transaction before its writes, where settling would. */
  onSettle: () => void = () => {};

  readonly #selection: Selection;

  /** `synced`: which tables; all that qualify when left out. */
  constructor(schema: string = ITEMS_SQL, synced?: readonly string[], pauseRowsMin?: number) {
    this.#selection = { all: synced === undefined, names: synced ?? [] };
    this.db = new Database(":memory:", { strict: true });
    this.db.run(schema);
    migrate(this.db);
    this.followSchema();
    this.tombstones = new Tombstones(this.db);
    this.pause = new TriggerPause({
      db: this.db,
      onEnd: () => undefined,
      rowsMin: pauseRowsMin,
    });
    this.repository = new Repository({
      db: this.db,
      tombstones: this.tombstones,
      pause: this.pause,
      random: systemRandom,
      nodeId: "node-a",
    });
    this.queue = new WriteQueue({
      db: this.db,
      clock: this.clock,
      timers: systemTimers,
      hasForeignKeys: () => this.#foreignKeys,
      settle: () => this.onSettle(),
      finish: (_nowMs, logged) => this.logged.push(logged),
      committed: () => this.commits++,
      rolledBack: () => {
        this.pause.forget();
        this.rollbacks++;
      },
    });
  }

  tables(): readonly SyncedTable[] {
    return this.#tables;
  }

  table(name = "items"): SyncedTable {
    const table = this.#tables.find((candidate) => candidate.key === nameKey(name));
    if (!table) throw new Error(`${name} does not qualify`);
    return table;
  }

  /** Reads the tables again and makes their triggers, as settling does. */
  followSchema(): void {
    const { synced, foreignKeys } = survey(this.db, this.#selection);
    this.#tables = [...synced.values()];
    this.#foreignKeys = foreignKeys;
    for (const table of this.#tables) installTriggers(this.db, table);
  }

  write<T>(work: (transaction: WriteTransaction) => T | Later<T>): Promise<T> {
    return this.queue.run("local", work);
  }

  /** As a client's batch does; throws the refusal. */
  async createMany(rows: unknown[], name?: string): Promise<string[]> {
    const table = this.table(name);
    const inputs = this.repository.reader(table).newRows(rows);
    const made = await this.write((tx) => this.repository.createMany(table, inputs, tx));
    if (made instanceof RequestError) throw made;
    return made;
  }

  log(): LogEntry[] {
    return this.db
      .query<LogEntry, []>(
        "SELECT op, table_name, row_id, row_data, was FROM _changes ORDER BY change_id",
      )
      .all();
  }

  close(): void {
    this.repository.close();
    this.db.close();
  }
}
