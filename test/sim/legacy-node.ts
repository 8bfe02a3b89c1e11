/**
 * A node of another make, as a model over real SQLite: what PROTOCOL.md says of the existing nodes, with
 * their faults, since living beside them is what is tested. Both makes take numbers as doubles, replace
 * whole rows, let the last arrival win a tie, keep no tombstones, and stamp with their own clock
 * whatever they replace. They differ in what a bad row does: `go` swallows its error and acknowledges,
 * `js` answers 400 for the whole batch.
 */
import { Database } from "bun:sqlite";
import type { Chance } from "./chance.ts";
import type { Exchange, Machine, Network, WireReply, WireRequest } from "./network.ts";
import { captureColumns, type Schema } from "./schema.ts";
import type { WallClock, World } from "./world.ts";

export type Make = "go" | "js";

export interface LegacyNodeOptions {
  readonly world: World;
  readonly chance: Chance;
  readonly network: Network;
  readonly clock: WallClock;
  readonly url: string;
  readonly make: Make;
  readonly schema: Schema;
  readonly peers: readonly string[];
}

interface WireChange {
  readonly op: string;
  readonly table: string;
  readonly row: Record<string, string | number | null> | null;
  readonly old_id: string | null;
}

interface LogRow {
  readonly change_id: number;
  readonly op: string;
  readonly table_name: string;
  readonly row_id: string;
  readonly row_data: string;
}

const BATCH_SIZE = 10_000;
const TICK_MS = 50;
/** They have none; a peer that stays away is not asked twenty times a second through a virtual day. */
const PAUSE_MS_MAX = 2_000;

const images = new Map<Schema, Uint8Array>();

export class LegacyNode implements Machine {
  readonly url: string;
  readonly isUp = true;
  readonly remembersDeletes = false;
  readonly db: Database;
  readonly clock: WallClock;
  readonly #options: LegacyNodeOptions;
  readonly #acked = new Map<string, number>();
  #isShipping = false;
  #pauseMs = TICK_MS;

  constructor(options: LegacyNodeOptions) {
    this.#options = options;
    this.url = options.url;
    this.clock = options.clock;
    this.db = Database.deserialize(imageOf(options.schema));
    for (const peer of options.peers) this.#acked.set(peer, 0);
  }

  close(): void {
    this.db.close(true);
  }

  // ── Writing ─────────────────────────────────────────────────────────────────────────────────

  /** A write by its REST or by another program; captured by its triggers, shipped on its tick. */
  write(sql: string, key: string): void {
    this.#options.world.trace(`${this.url} ${sql}`, key);
    this.db.run(sql);
    this.#shipSoon();
  }

  // ── Receiving ───────────────────────────────────────────────────────────────────────────────

  async sync(request: WireRequest): Promise<WireReply> {
    const batch = JSON.parse(new TextDecoder().decode(request.body)) as {
      batch_id: number;
      changes: WireChange[] | null;
    };
    const { make } = this.#options;
    this.db.run("BEGIN IMMEDIATE");
    this.db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
    let applied = 0;
    try {
      for (const change of batch.changes ?? []) {
        try {
          applied += this.#apply(change);
        } catch (error) {
          if (make === "js") throw error;
        }
      }
    } catch (error) {
      this.db.run("ROLLBACK");
      return reply(400, { error: (error as Error).message });
    }
    this.db.run("UPDATE _meta SET value = 0 WHERE key = 'syncing'");
    this.db.run("COMMIT");
    return reply(200, { applied, ack: batch.batch_id });
  }

  #apply({ op, table, row, old_id: oldId }: WireChange): number {
    if (!this.#options.schema.tables.some(({ name }) => name === table)) {
      throw new Error(`no table ${table}`);
    }
    const id = op === "DELETE" && oldId ? oldId : (row?.["id"] as string);
    const stored = this.db
      .query<{ stamp: number | null }, [string]>(
        `SELECT updated_at AS stamp FROM ${table} WHERE id = ?`,
      )
      .get(id);
    if (row !== null && stored !== null && (stored.stamp ?? 0) > Number(row["updated_at"] ?? 0)) {
      return 0;
    }
    if (op === "DELETE") {
      this.db.query(`DELETE FROM ${table} WHERE id = ?`).run(id);
      return 1;
    }
    const columns = Object.keys(row!);
    this.db
      .query(
        `INSERT OR REPLACE INTO ${table}(${columns.join(", ")}) VALUES (${columns.map(() => "?").join(", ")})`,
      )
      .run(...Object.values(row!));
    return 1;
  }

  health(): WireReply {
    const { pending } = this.db
      .query<{ pending: number }, []>("SELECT count(*) AS pending FROM _changes")
      .get()!;
    return reply(200, { ok: true, node_id: this.url, item_count: 1, pending_changes: pending });
  }

  // ── Shipping ────────────────────────────────────────────────────────────────────────────────

  #shipSoon(): void {
    if (this.#isShipping) return;
    this.#isShipping = true;
    this.#options.world.at(this.#pauseMs, () => void this.#ship());
  }

  /** To one peer after the other; who cannot be reached is tried again on a later tick. */
  async #ship(): Promise<void> {
    let failed = false;
    for (const peer of this.#acked.keys()) if (!(await this.#drain(peer))) failed = true;
    const least = Math.min(...this.#acked.values());
    this.db.query("DELETE FROM _changes WHERE change_id <= ?").run(least);
    this.#isShipping = false;
    this.#pauseMs = failed ? Math.min(2 * this.#pauseMs, PAUSE_MS_MAX) : TICK_MS;
    const left = this.db.query("SELECT 1 FROM _changes LIMIT 1").get();
    if (left !== null) this.#shipSoon();
  }

  async #drain(peer: string): Promise<boolean> {
    const { network } = this.#options;
    for (let failures = 0; failures < 5; ) {
      const rows = this.db
        .query<LogRow, [number]>(
          `SELECT * FROM _changes WHERE change_id > ? ORDER BY change_id LIMIT ${BATCH_SIZE}`,
        )
        .all(this.#acked.get(peer)!);
      if (rows.length === 0) return true;
      const batchId = rows.at(-1)!.change_id;
      const request = {
        body: new TextEncoder().encode(
          JSON.stringify({ batch_id: batchId, changes: rows.map((row) => this.#toWire(row)) }),
        ),
        nodeId: this.url,
        nodeUrl: undefined,
        identity: undefined,
      };
      const exchange = await network.post(this.url, peer, request, undefined);
      if (ackOf(exchange) === batchId) {
        this.#acked.set(peer, batchId);
        failures = 0;
      } else {
        failures++;
        await this.#sleep(TICK_MS * 2 ** (failures - 1));
      }
    }
    return false;
  }

  #toWire({ op, table_name: table, row_id: id, row_data: data }: LogRow): WireChange {
    const none = this.#options.make === "go" ? "" : null;
    // Through doubles: this is where digits get lost.
    return { op, table, row: JSON.parse(data), old_id: op === "DELETE" ? id : none };
  }

  #sleep(delayMs: number): Promise<void> {
    return new Promise((resolve) => void this.#options.world.at(delayMs, resolve));
  }
}

function ackOf(exchange: Exchange): unknown {
  if (exchange.kind === "failed" || exchange.raw.status !== 200) return undefined;
  try {
    return (JSON.parse(exchange.reply.text) as { ack?: unknown }).ack;
  } catch {
    return undefined;
  }
}

function reply(status: number, body: unknown): WireReply {
  return { status, text: JSON.stringify(body), identity: undefined };
}

function imageOf(schema: Schema): Uint8Array {
  let image = images.get(schema);
  if (image === undefined) {
    const db = new Database(":memory:");
    db.run(`
      CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER);
      CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, table_name TEXT,
        row_id TEXT, row_data TEXT);
      INSERT INTO _meta VALUES ('syncing', 0);`);
    for (const { name, sql, columns } of schema.tables) {
      db.run(sql);
      for (const [suffix, op, side] of [
        ["ai", "INSERT", "NEW"],
        ["au", "UPDATE", "NEW"],
        ["ad", "DELETE", "OLD"],
      ] as const) {
        db.run(`CREATE TRIGGER ${name}_${suffix} AFTER ${op} ON ${name}
          WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
          BEGIN INSERT INTO _changes(op, table_name, row_id, row_data)
            VALUES ('${op}', '${name}', ${side}.id, json_object(${captureColumns(columns, side)})); END`);
      }
    }
    image = db.serialize();
    images.set(schema, image);
    db.close();
  }
  return image;
}
