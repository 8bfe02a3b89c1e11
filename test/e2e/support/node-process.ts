/**
 * Real nodes as processes of their own, seen only from outside: command line, HTTP, signals, and SQL on
 * the file. HOOK_SYNC_COMMAND names another program to run as the node, the executable, say.
 */
import { Database } from "bun:sqlite";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const ROOT = join(import.meta.dir, "..", "..", "..");

function nodeCommand(): string[] {
  const given = process.env["HOOK_SYNC_COMMAND"];
  if (given === undefined) return [process.execPath, join(ROOT, "server.ts")];
  const [program = "", ...words] = given.split(" ");
  return [program.includes("/") ? resolve(ROOT, program) : program, ...words];
}

/** Nodes read their flags from the environment, too, and must not take the suite's own for them. */
export const ENVIRONMENT = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !name.startsWith("HOOK_SYNC_")),
);

/** A machine with two busy processors starts a node in a second or two. */
const START_MS_MAX = 15_000;

/** A stop ends by itself after 8 s. */
const END_MS_MAX = 12_000;

/** Asks until the answer is neither false nor undefined; says what it waited for if it never is. */
export async function until<T>(
  what: string,
  probe: () => T | Promise<T>,
  limitMs = 15_000,
): Promise<NonNullable<Exclude<T, false>>> {
  const end = performance.now() + limitMs;
  let last: unknown;
  for (;;) {
    try {
      const value = await probe();
      if (value) return value as NonNullable<Exclude<T, false>>;
      last = value;
    } catch (error) {
      last = error;
    }
    if (performance.now() > end) throw new Error(`not within ${limitMs} ms: ${what} (${last})`);
    await Bun.sleep(10);
  }
}

/** Below the range that systems hand out by themselves, so that no connection takes one meanwhile. */
const PORT_FIRST = 12_000;
const PORT_LAST = 30_000;
const ports = (function* () {
  let port = PORT_FIRST + ((process.pid * 131) % (PORT_LAST - PORT_FIRST));
  for (;;) {
    port = port < PORT_LAST ? port + 1 : PORT_FIRST;
    try {
      Bun.listen({ hostname: "127.0.0.1", port, socket: { data() {} } }).stop(true);
    } catch {
      continue;
    }
    yield port;
  }
})();

/** A port that nobody listens on. */
export function freePort(): number {
  return ports.next().value!;
}

export interface Health {
  readonly ok: boolean;
  readonly reasons: readonly string[];
  readonly warnings: readonly string[];
  readonly item_count: number;
  readonly pending_changes: number;
  readonly dead_letter: number;
  readonly parked: number;
  readonly peers: readonly { readonly peer_url: string; readonly pending: number }[];
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: what a client reads is JSON.
  readonly body: any;
}

export interface NodeOptions {
  readonly id?: string;
  readonly port?: number;
  /** Further flags: `["--tables", "a,b"]`. */
  readonly flags?: readonly string[];
  readonly peers?: readonly string[];
  /** Words before the node's own command, such as `["unshare", …]`. */
  readonly wrapper?: readonly string[];
}

/** One node of a test: its folder and port stay the same over restarts. */
export class NodeProcess {
  readonly id: string;
  readonly port: number;
  readonly folder: string;
  readonly dbPath: string;
  flags: readonly string[];
  peers: readonly string[];
  readonly #wrapper: readonly string[];
  #child: Bun.Subprocess<"ignore", "pipe", Bun.BunFile> | undefined;
  #said = "";

  constructor(folder: string, options: NodeOptions = {}) {
    this.id = options.id ?? "a";
    this.port = options.port ?? freePort();
    this.folder = folder;
    this.dbPath = join(folder, `${this.id}.db`);
    this.flags = options.flags ?? [];
    this.peers = options.peers ?? [];
    this.#wrapper = options.wrapper ?? [];
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get pid(): number {
    return this.#child!.pid;
  }

  get isRunning(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null;
  }

  /** What it said on standard output since it was started. */
  get said(): string {
    return this.#said;
  }

  get log(): string {
    return readFileSync(join(this.folder, `${this.id}.log`), "utf8");
  }

  /** Resolves once it answers; throws with its log when it ends instead. */
  async start(): Promise<this> {
    const child = Bun.spawn(
      [
        ...this.#wrapper,
        ...nodeCommand(),
        "--id",
        this.id,
        "--db",
        this.dbPath,
        "--listen",
        `127.0.0.1:${this.port}`,
        ...this.peers.flatMap((url) => ["--peer", url]),
        ...this.flags,
      ],
      {
        cwd: this.folder,
        env: ENVIRONMENT,
        stdin: "ignore",
        stdout: "pipe",
        stderr: Bun.file(join(this.folder, `${this.id}.log`)),
      },
    );
    this.#child = child;
    this.#said = "";
    void this.#listen(child);
    await until(
      `${this.id} is ready`,
      async () => child.exitCode !== null || /^(peers |no peers)/m.test(this.#said),
      START_MS_MAX,
    );
    if (child.exitCode !== null)
      throw new Error(`${this.id} ended with ${child.exitCode}: ${this.log}`);
    return this;
  }

  async #listen(child: Bun.Subprocess<"ignore", "pipe", Bun.BunFile>): Promise<void> {
    const decoder = new TextDecoder();
    for await (const chunk of child.stdout) this.#said += decoder.decode(chunk, { stream: true });
  }

  signal(signal: NodeJS.Signals): void {
    this.#child!.kill(signal);
  }

  /** Resolves with the exit code, 137 for SIGKILL. */
  async ended(): Promise<number> {
    const child = this.#child!;
    const code = await until(
      `${this.id} (${child.pid}) ends`,
      () => child.exitCode !== null || child.signalCode !== null,
      END_MS_MAX,
    ).then(() => child.exitCode);
    this.#child = undefined;
    return code ?? 128 + 9;
  }

  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<number> {
    if (this.#child === undefined) return 0;
    this.signal(signal);
    return this.ended();
  }

  async call(method: string, path: string, body?: unknown): Promise<Answer> {
    const answer = await fetch(this.url + path, {
      method,
      headers: { "Content-Type": "application/json", "X-Node-Id": "test" },
      ...(body === undefined
        ? {}
        : { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
    const text = await answer.text();
    let read: unknown = text;
    try {
      read = JSON.parse(text);
    } catch {
      // Some answers are text; a test that expects JSON fails on it by itself.
    }
    return { status: answer.status, headers: answer.headers, body: read };
  }

  async health(): Promise<Health> {
    return (await this.call("GET", "/health")).body as Health;
  }

  /** Work on the file through a connection of another program. */
  file<T>(work: (db: Database) => T): T {
    return withFile(this.dbPath, work);
  }

  exec(sql: string): void {
    this.file((db) => {
      db.run("BEGIN IMMEDIATE");
      db.run(sql);
      db.run("COMMIT");
    });
  }

  rows<T = Record<string, unknown>>(sql: string): T[] {
    return this.file((db) => db.query<T, []>(sql).all());
  }

  /** What lies beside the file: nothing but the lock after a clean stop. */
  leftovers(): string[] {
    return readdirSync(this.folder).filter((name) => /-wal$|-shm$|-journal$/.test(name));
  }
}

export function withFile<T>(path: string, work: (db: Database) => T): T {
  const db = new Database(path, { readwrite: true, create: false });
  try {
    db.run("PRAGMA busy_timeout = 10000");
    return work(db);
  } finally {
    db.close(true);
  }
}

/** Every row of a table, one text a row, values with their type and every digit; by column name. */
export function content(path: string, table: string): string[] {
  return withFile(path, (db) => {
    const columns = db
      .query<{ name: string }, [string]>("SELECT name FROM pragma_table_xinfo(?) ORDER BY name")
      .all(table);
    const shown = columns.map(({ name }) => {
      const c = `"${name.replaceAll('"', '""')}"`;
      // Not quote(): it cuts a text at a NUL character.
      return `'${name.replaceAll("'", "''")}=' || typeof(${c}) || ':' || CASE typeof(${c})
        WHEN 'null' THEN '' WHEN 'real' THEN printf('%!.20g', ${c})
        WHEN 'integer' THEN CAST(${c} AS TEXT) ELSE hex(CAST(${c} AS BLOB)) END`;
    });
    // Joined in parts: an expression may not be deeper than 1,000.
    const parts = shown.map((text) => `(${text})`);
    return db
      .query<Record<string, string>, []>(
        `SELECT ${parts.join(", ")} FROM "${table.replaceAll('"', '""')}" ORDER BY id`,
      )
      .values()
      .map((row) => row.join(" "));
  });
}

/** Nodes of one test, each in a folder of its own, and all of them gone at its end. */
export class Nodes implements AsyncDisposable {
  readonly root = mkdtempSync(join(tmpdir(), "hook-sync-e2e-"));
  readonly all: NodeProcess[] = [];
  readonly #also: (() => unknown)[] = [];

  make(options: NodeOptions = {}): NodeProcess {
    const node = new NodeProcess(this.folder(), options);
    this.all.push(node);
    return node;
  }

  folder(): string {
    return mkdtempSync(join(this.root, "node-"));
  }

  /** Run at the end, whatever happened. */
  defer(end: () => unknown): void {
    this.#also.push(end);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const end of this.#also) await end();
    await Promise.all(this.all.map((node) => node.stop("SIGKILL")));
    rmSync(this.root, { recursive: true, force: true });
  }
}
