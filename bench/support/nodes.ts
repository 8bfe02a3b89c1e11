/**
 * Nodes of every make, each a process of its own with a file in the bench's folder: ours, the Go and
 * the Node node of test/interop, one written the old way, and a handler that does nothing.
 */
import { Database } from "bun:sqlite";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { buildPeers } from "../../test/interop/support/build.ts";
import { cpuSeconds, end, peakRssMb, rssMb, spawnOwn } from "./processes.ts";

export type Make = "ours" | "go" | "node" | "old" | "empty";

/** As tables call them. */
export const MAKE_NAMES: Readonly<Record<Make, string>> = {
  ours: "ours",
  go: "Go",
  node: "Node",
  old: "the old way",
  empty: "an empty handler",
};

export interface NodeOptions {
  readonly peers?: readonly string[];
  /** Ours and the old way; the others know only NORMAL. */
  readonly synchronous?: "full" | "normal";
  readonly port?: number;
  /** A file to start from instead of a new one. */
  readonly dbPath?: string;
  readonly flags?: readonly string[];
}

const ROOT = join(import.meta.dir, "..", "..");
const START_MS_MAX = 30_000;

let built: ReturnType<typeof buildPeers> | undefined;

/** Undefined where the toolchain of that make is missing. */
async function commandOf(make: Make): Promise<readonly string[] | undefined> {
  switch (make) {
    case "ours":
      return (
        process.env["HOOK_SYNC_COMMAND"]?.split(" ") ?? [process.execPath, join(ROOT, "server.ts")]
      );
    case "old":
      return [process.execPath, join(import.meta.dir, "old-way.ts")];
    case "empty":
      return [process.execPath, join(import.meta.dir, "empty-handler.ts")];
    default:
      built ??= buildPeers();
      return (await built)[make];
  }
}

export async function available(make: Make): Promise<boolean> {
  return (await commandOf(make)) !== undefined;
}

/** A port that is free now; below the range that systems hand out by themselves. */
export function freePort(): number {
  for (;;) {
    const port = 12_000 + Math.floor(Math.random() * 18_000);
    try {
      Bun.listen({ hostname: "127.0.0.1", port, socket: { data() {} } }).stop(true);
      return port;
    } catch {
      // Taken by somebody else.
    }
  }
}

let nodesStarted = 0;

export class BenchNode implements AsyncDisposable {
  readonly make: Make;
  readonly port: number;
  readonly dbPath: string;
  /** From the start of the process until it answered at all, and until /health said all is well. */
  readonly listenMs: number;
  readonly readyMs: number;
  readonly #child: Bun.Subprocess;
  #reader: Database | undefined;

  private constructor(
    make: Make,
    port: number,
    dbPath: string,
    listenMs: number,
    readyMs: number,
    child: Bun.Subprocess,
  ) {
    this.make = make;
    this.port = port;
    this.dbPath = dbPath;
    this.listenMs = listenMs;
    this.readyMs = readyMs;
    this.#child = child;
  }

  /** Started and answering. */
  static async start(dir: string, make: Make, options: NodeOptions = {}): Promise<BenchNode> {
    const command = await commandOf(make);
    if (command === undefined) throw new Error(`no ${MAKE_NAMES[make]} node can be built here`);
    const id = `${make}${nodesStarted++}`;
    const port = options.port ?? freePort();
    const dbPath = options.dbPath ?? join(dir, `${id}.db`);
    const log = join(dir, `${id}.log`);
    const dash = make === "go" ? "-" : "--";
    const flags = [
      [`${dash}id`, id],
      [`${dash}db`, dbPath],
      [`${dash}listen`, `127.0.0.1:${port}`],
      ...(options.peers ?? []).map((peer) => [`${dash}peer`, peer]),
      ...(options.synchronous === undefined ? [] : [["--synchronous", options.synchronous]]),
    ].flat();
    const beganMs = performance.now();
    const child = spawnOwn([...command, ...flags, ...(options.flags ?? [])], "ignore", log);
    const url = `http://127.0.0.1:${port}`;
    let listenMs: number | undefined;
    for (;;) {
      if (child.exitCode !== null || performance.now() - beganMs > START_MS_MAX) {
        child.kill("SIGKILL");
        throw new Error(`${id} did not start: ${readFileSync(log, "utf8").slice(-2_000)}`);
      }
      const response = await fetch(`${url}/health`).catch(() => undefined);
      if (response !== undefined) listenMs ??= performance.now() - beganMs;
      if (response?.ok) break;
      await Bun.sleep(1);
    }
    return new BenchNode(make, port, dbPath, listenMs!, performance.now() - beganMs, child);
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get pid(): number {
    return this.#child.pid;
  }

  get peakRssMb(): number {
    return peakRssMb(this.pid);
  }

  get rssMb(): number {
    return rssMb(this.pid);
  }

  get cpuSeconds(): number {
    return cpuSeconds(this.pid);
  }

  /** A connection of this process's own that only reads. */
  get reader(): Database {
    if (this.#reader === undefined) {
      this.#reader = new Database(this.dbPath, { readonly: true });
      this.#reader.run("PRAGMA busy_timeout = 5000");
    }
    return this.#reader;
  }

  /**
   * Rows that were ever inserted here: the end of the table's own key, found without counting. True
   * for tables that only grow.
   */
  rowsInserted(): number {
    return (
      this.reader.query<{ n: number | null }, []>("SELECT max(rowid) AS n FROM items").get()!.n ?? 0
    );
  }

  /** All rows in one number, to tell whether two nodes have the same. */
  fingerprint(): string {
    const row = this.reader
      .query<{ rows: number; sum: number }, []>(
        `SELECT count(*) AS rows,
           total(length(id) + value + updated_at % 1000003 + unicode(substr(id, -1)) * (value % 7)) AS sum
         FROM items`,
      )
      .get()!;
    return `${row.rows} rows, ${row.sum}`;
  }

  async createMany(body: Buffer): Promise<void> {
    const response = await fetch(`${this.url}/api/items/batch`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body,
    });
    await response.arrayBuffer();
    if (!response.ok) throw new Error(`${this.make}: batch answered ${response.status}`);
  }

  async stop(): Promise<void> {
    this.#reader?.close();
    this.#reader = undefined;
    await end(this.#child);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** The body of a batch of rows, as every make takes it. */
export function batchBody(rows: number): Buffer {
  const items = Array.from({ length: rows }, (_, i) => ({ name: `name number ${i}`, value: i }));
  return Buffer.from(JSON.stringify(items));
}

/** Two nodes that ship to each other, started and idle. */
export async function startPair(
  dir: string,
  make: Make,
  options: NodeOptions = {},
): Promise<readonly [BenchNode, BenchNode]> {
  const [first, second] = [freePort(), freePort()];
  return Promise.all([
    BenchNode.start(dir, make, {
      ...options,
      port: first,
      peers: [`http://127.0.0.1:${second}`],
    }),
    BenchNode.start(dir, make, {
      ...options,
      port: second,
      peers: [`http://127.0.0.1:${first}`],
    }),
  ]);
}
