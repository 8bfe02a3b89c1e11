/** What the shipper's tests share: a log made by hand, peers that answer as told, and patience. */
import { Database } from "bun:sqlite";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Random } from "../../lib/base/random.ts";

/** Mulberry32: small, and good enough to choose failures with. */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
  return { next, uuid: () => Bun.randomUUIDv7(), hex: (bytes) => "ab".repeat(bytes) };
}

export interface LogEntry {
  readonly op?: string;
  readonly table?: string | null;
  readonly id?: string | Uint8Array | null;
  /** JSON text, or bytes of it. */
  readonly row?: string | Uint8Array | null;
  readonly changeId?: number;
}

/** A file with the layout of `_changes`, as the store makes it, in a folder of its own. */
export class LogFile {
  readonly dir = mkdtempSync(join(tmpdir(), "hook-sync-shipper-"));
  readonly path = join(this.dir, "log.db");
  readonly db = new Database(this.path, { create: true });

  constructor() {
    this.db.run("PRAGMA journal_mode = WAL");
    // A thread that ends closes its connection, which locks the file for a moment.
    this.db.run("PRAGMA busy_timeout = 5000");
    this.db.run(
      `CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, table_name TEXT,
         row_id TEXT, row_data TEXT, was, only_for TEXT)`,
    );
  }

  add(entry: LogEntry = {}): number {
    const id = entry.id === undefined ? crypto.randomUUID() : entry.id;
    const row = entry.row === undefined ? JSON.stringify({ id, updated_at: 1 }) : entry.row;
    // Bytes become text as they are: CAST does not look at them.
    const { lastInsertRowid } = this.db.run(
      `INSERT INTO _changes(change_id, op, table_name, row_id, row_data)
       VALUES(?, ?, ?, CAST(? AS TEXT), CAST(? AS TEXT))`,
      [
        entry.changeId ?? null,
        entry.op ?? "INSERT",
        entry.table === undefined ? "items" : entry.table,
        id,
        row,
      ],
    );
    return Number(lastInsertRowid);
  }

  /** `count` rows that tell their number. */
  fill(count: number, pad = ""): number {
    const first = this.newest() + 1;
    this.db.transaction(() => {
      for (let n = first; n < first + count; n++) {
        const row = { id: `r${n}`, name: `name ${n}${pad}`, value: n, updated_at: n };
        this.add({ id: row.id, row: JSON.stringify(row) });
      }
    })();
    return this.newest();
  }

  newest(): number {
    const row = this.db.query("SELECT max(change_id) AS id FROM _changes").get();
    return (row as { id: number | null }).id ?? 0;
  }

  [Symbol.dispose](): void {
    this.db.close(true);
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** Waits for a condition; whoever may have made it true says so with `changed`. */
export class Watch {
  readonly #waiting = new Set<() => void>();

  changed(): void {
    for (const check of [...this.#waiting]) check();
  }

  until(what: string, isTrue: () => boolean, limitMs = 10_000): Promise<void> {
    return new Promise((resolve, reject) => {
      const end = (settle: () => void) => {
        clearTimeout(timer);
        this.#waiting.delete(check);
        settle();
      };
      const check = () => {
        if (isTrue()) end(resolve);
      };
      const timer = setTimeout(
        () => end(() => reject(new Error(`not within ${limitMs} ms: ${what}`))),
        limitMs,
      );
      this.#waiting.add(check);
      check();
    });
  }
}

export interface Change {
  readonly op: string;
  readonly table: string;
  readonly row: Readonly<Record<string, unknown>> | null;
  readonly old_id: string | null;
  readonly blobs?: readonly string[];
  readonly texts?: readonly string[];
}

export interface Received {
  readonly batchId: number;
  readonly changes: readonly Change[];
  readonly headers: Headers;
  readonly text: string;
  readonly atMs: number;
}

/** A peer on a real port. It acknowledges everything unless told otherwise. */
export class FakePeer {
  readonly received: Received[] = [];
  healthReads = 0;
  respond: (request: Received) => Response | Promise<Response> = ackAll;
  health: () => Response | Promise<Response> = () =>
    Response.json({ ok: true, node_id: "fake", item_count: 3, pending_changes: 1 });
  readonly #watch: Watch;
  readonly port: number;
  #server: ReturnType<typeof Bun.serve> | undefined;

  constructor(watch: Watch) {
    this.#watch = watch;
    this.#server = this.#serve(0);
    this.port = this.#server.port!;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get changes(): Change[] {
    return this.received.flatMap(({ changes }) => changes);
  }

  up(): void {
    this.#server ??= this.#serve(this.port);
  }

  async down(): Promise<void> {
    await this.#server?.stop(true);
    this.#server = undefined;
  }

  #serve(port: number): ReturnType<typeof Bun.serve> {
    return Bun.serve({
      port,
      hostname: "127.0.0.1",
      maxRequestBodySize: 64 * 1024 * 1024,
      fetch: async (request) => {
        const { pathname } = new URL(request.url);
        if (pathname === "/health") {
          this.healthReads += 1;
          this.#watch.changed();
          return this.health();
        }
        const text = await request.text();
        const body = JSON.parse(text) as { batch_id: number; changes: Change[] };
        const received: Received = {
          batchId: body.batch_id,
          changes: body.changes,
          headers: request.headers,
          text,
          atMs: performance.now(),
        };
        this.received.push(received);
        this.#watch.changed();
        return this.respond(received);
      },
    });
  }
}

export function ackAll(request: Received): Response {
  return Response.json({ applied: request.changes.length, ack: request.batchId });
}

/** A server of bare TCP: what the socket does is up to the test. */
export class RawPeer {
  connections = 0;
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;

  private constructor(onSocket: (socket: Socket, index: number) => void) {
    this.#server = createServer((socket) => {
      this.#sockets.add(socket);
      // A peer that is cut off is what these tests are about.
      socket.on("error", () => {});
      socket.on("close", () => this.#sockets.delete(socket));
      onSocket(socket, this.connections++);
    });
  }

  static async open(onSocket: (socket: Socket, index: number) => void): Promise<RawPeer> {
    const peer = new RawPeer(onSocket);
    await new Promise<void>((resolve) => peer.#server.listen(0, "127.0.0.1", resolve));
    return peer;
  }

  get url(): string {
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("not listening");
    return `http://127.0.0.1:${address.port}`;
  }

  get open(): number {
    return this.#sockets.size;
  }

  close(): void {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }
}
