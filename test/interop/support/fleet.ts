/**
 * Fleets of real nodes for the tests: ours, the Go node, the Node node and the Go hub, each a process
 * of its own with a file of its own, driven only from outside (command line, HTTP, SQL on the file).
 * Nothing of our implementation is imported here, so what passes is what a stranger would see.
 */
import { Database } from "bun:sqlite";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { buildPeers } from "./build.ts";
import { Recorder, Tap, Wire, type WireChange } from "./wire.ts";

/** The kinds of node a fleet can hold. A hub relays and has no rows of its own. */
export type Make = "ours" | "go" | "node" | "hub";

const ROOT = join(import.meta.dir, "..", "..", "..");
const peers = await buildPeers();
const commands: Record<Make, string[] | undefined> = {
  ours: commandOfOurs(process.env["HOOK_SYNC_COMMAND"]),
  go: peers.go,
  node: peers.node,
  hub: peers.hub,
};

/** From the sources, or what the variable names (the executable, say), from the top of the repository. */
function commandOfOurs(given: string | undefined): string[] {
  if (given === undefined) return [process.execPath, join(ROOT, "server.ts")];
  const [program = "", ...words] = given.split(" ");
  return [program.includes("/") ? resolve(ROOT, program) : program, ...words];
}

/** Ours reads its flags from the environment, too, and must not take the suite's own for them. */
const environment = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !name.startsWith("HOOK_SYNC_")),
);

/** Whether every one of these makes can be started here. */
export function available(...makes: Make[]): boolean {
  return makes.every((make) => commands[make] !== undefined);
}

/** Long enough for the five attempts of a shipper and a slow machine; a test that needs it has failed. */
const PATIENCE_MS = 15_000;
const START_MS_MAX = 15_000;

/** For a whole test: above every patience within it, so that a failure says what it waited for. */
export const TEST_MS_MAX = 60_000;

/** Asks until the answer is neither false nor undefined, and says what it waited for if it never is. */
export async function until<T>(
  what: string,
  probe: () => T | Promise<T>,
  limitMs = PATIENCE_MS,
): Promise<NonNullable<T>> {
  const end = performance.now() + limitMs;
  let last: unknown;
  for (;;) {
    try {
      const value = await probe();
      if (value) return value;
    } catch (error) {
      last = error;
    }
    if (performance.now() > end) {
      const cause = last instanceof Error ? ` (last error: ${last.message})` : "";
      throw new Error(`not within ${limitMs} ms: ${what}${cause}`);
    }
    await Bun.sleep(10);
  }
}

/** Waits until a clock of this machine gives later stamps than any so far. */
export async function nextMillisecond(): Promise<void> {
  const now = Date.now();
  await until("the clock to move on", () => Date.now() > now + 1);
}

/** Below the range that systems hand out by themselves, so that no connection takes one meanwhile. */
const PORT_FIRST = 12_000;
const PORT_LAST = 30_000;
const ports = (function* () {
  // Apart from each other for suites that run at the same time.
  let port = PORT_FIRST + ((process.pid * 97) % (PORT_LAST - PORT_FIRST));
  for (;;) {
    port = port < PORT_LAST ? port + 1 : PORT_FIRST;
    try {
      Bun.listen({ hostname: "127.0.0.1", port, socket: { data() {} } }).stop(true);
    } catch {
      continue; // taken by somebody else
    }
    yield port;
  }
})();

function freePort(): number {
  return ports.next().value;
}

/** The items table's row, as REST answers it. */
export interface Item {
  id: string;
  name: string | null;
  value: number | null;
  created_at: number;
  updated_at: number;
  node_id: string | null;
}

/** What /health of any node tells; ours tells more. */
export interface Health {
  ok: boolean;
  pending_changes: number;
  pending_forwards?: number;
  dead_letter: number;
  item_count: number;
}

/** A value that can be bound in SQL. */
export type SqlValue = string | number | bigint | boolean | null | Uint8Array;

/** One node of a fleet, running or not. */
export class Member {
  /** Addresses this node ships to; read at the next start. */
  peers: string[] = [];
  /** The node's file; a test may point it at the file of another node that is stopped. */
  dbPath: string;
  readonly make: Make;
  readonly id: string;
  readonly port: number;
  /** Further flags, read at the next start. */
  readonly flags: string[];
  readonly #logPath: string;
  #child: Bun.Subprocess | undefined;

  constructor(make: Make, id: string, dir: string, port: number, flags: string[]) {
    this.make = make;
    this.id = id;
    this.port = port;
    this.dbPath = join(dir, `${id}.db`);
    this.#logPath = join(dir, `${id}.log`);
    this.flags = flags;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get running(): boolean {
    return this.#child !== undefined;
  }

  async start(): Promise<this> {
    if (this.running) throw new Error(`${this.id} runs already`);
    const command = commands[this.make];
    if (command === undefined) throw new Error(`no ${this.make} node here`);
    const dash = this.make === "go" || this.make === "hub" ? "-" : "--";
    const flag = (name: string, value: string) => [dash + name, value];
    const child = Bun.spawn(
      [
        ...command,
        ...flag("id", this.id),
        ...flag("db", this.dbPath),
        ...flag("listen", `127.0.0.1:${this.port}`),
        ...this.peers.flatMap((url) => flag("peer", url)),
        ...(this.flags.includes("--batch-ms") ? [] : flag("batch-ms", "50")),
        ...this.flags,
      ],
      {
        cwd: ROOT,
        env: environment,
        stdin: "ignore",
        stdout: "ignore",
        stderr: Bun.file(this.#logPath),
      },
    );
    this.#child = child;
    await until(
      `${this.id} (${this.make}) answers /health`,
      async () => child.exitCode !== null || (await fetch(`${this.url}/health`)).ok,
      START_MS_MAX,
    );
    if (child.exitCode !== null) {
      this.#child = undefined;
      throw new Error(`${this.id} (${this.make}) ended at start: ${this.said()}`);
    }
    return this;
  }

  /** The end of what the node wrote to its error output. */
  said(): string {
    return readFileSync(this.#logPath, "utf8").slice(-2_000);
  }

  /** Ends the process, by default as a power cut would. Answers its exit code, null after a kill. */
  async stop(signal: "SIGKILL" | "SIGTERM" = "SIGKILL"): Promise<number | null> {
    const child = this.#child;
    if (child === undefined) return null;
    this.#child = undefined;
    child.kill(signal);
    await child.exited;
    return child.exitCode;
  }

  async restart(): Promise<void> {
    await this.stop();
    await this.start();
  }

  async call(method: string, path: string, body?: unknown): Promise<Response> {
    const init: RequestInit = { method, headers: { "X-Node-Id": "test" } };
    if (body !== undefined) {
      init.body = typeof body === "string" ? body : JSON.stringify(body);
      init.headers = { "Content-Type": "application/json", "X-Node-Id": "test" };
    }
    return fetch(this.url + path, init);
  }

  async #json<T>(method: string, path: string, body?: unknown): Promise<T> {
    const response = await this.call(method, path, body);
    if (!response.ok) {
      throw new Error(`${this.id}: ${method} ${path} ${response.status}: ${await response.text()}`);
    }
    return (await response.json()) as T;
  }

  async create(name: string, value: number): Promise<string> {
    return (await this.#json<Item>("POST", "/api/items", { name, value })).id;
  }

  async createMany(count: number, name = "many"): Promise<void> {
    const items = Array.from({ length: count }, (_, i) => ({ name, value: i }));
    await this.#json("POST", "/api/items/batch", items);
  }

  async update(id: string, name: string, value: number): Promise<void> {
    await this.#json("PUT", `/api/items/${encodeURIComponent(id)}`, { name, value });
  }

  async remove(id: string): Promise<void> {
    await this.#json("DELETE", `/api/items/${encodeURIComponent(id)}`);
  }

  /** The row as REST answers it, undefined where there is none. */
  async item(id: string): Promise<Item | undefined> {
    const response = await this.call("GET", `/api/items/${encodeURIComponent(id)}`);
    return response.status === 200 ? ((await response.json()) as Item) : undefined;
  }

  health(): Promise<Health> {
    return this.#json<Health>("GET", "/health");
  }

  /** Posts a batch as a peer would, and gives the answer. */
  sync(changes: WireChange[] | null, batchId = 42): Promise<{ applied: number; ack: number }> {
    return this.#json("POST", "/sync", { batch_id: batchId, changes });
  }

  /** One statement on the node's file, through a connection of another program. */
  sql<T>(text: string, ...values: SqlValue[]): T[] {
    return this.#withFile((db) => db.query<T, SqlValue[]>(text).all(...values));
  }

  /** Several statements in one transaction, through a connection of another program. */
  write(script: string): void {
    this.#withFile((db) => {
      db.run("BEGIN IMMEDIATE");
      db.run(script);
      db.run("COMMIT");
    });
  }

  /** Every row of a table, one text a row, values with their type and every digit. */
  content(table = "items"): string[] {
    return this.#withFile((db) => {
      const columns = db
        .query<{ name: string }, [string]>("SELECT name FROM pragma_table_info(?) ORDER BY name")
        .all(table);
      const shown = columns.map(({ name }) => {
        const c = `"${name.replaceAll('"', '""')}"`;
        // Not quote(): it cuts a text at a NUL character.
        return `'${name.replaceAll("'", "''")}=' || typeof(${c}) || ':' || CASE typeof(${c})
          WHEN 'null' THEN '' WHEN 'real' THEN printf('%!.20g', ${c})
          WHEN 'blob' THEN hex(${c}) ELSE CAST(${c} AS TEXT) END`;
      });
      return db
        .query(`SELECT ${shown.join(" || ' ' || ")} FROM "${table}" ORDER BY id`)
        .values()
        .map(([row]) => String(row));
    });
  }

  #withFile<T>(work: (db: Database) => T): T {
    const db = new Database(this.dbPath, { readwrite: true, create: true, safeIntegers: false });
    try {
      db.run("PRAGMA busy_timeout = 5000");
      return work(db);
    } finally {
      db.close();
    }
  }
}

/** Options of a member that only some tests need. */
export interface MemberOptions {
  /** Milliseconds by which the node's clock is wrong; foreign nodes only. */
  clockOffsetMs?: number;
  /** Further flags, spelled as the make wants them. */
  flags?: string[];
}

/** A set of nodes and links in a temporary folder; leaving its scope ends and removes everything. */
export class Fleet implements AsyncDisposable {
  readonly dir = mkdtempSync(join(tmpdir(), "interop-"));
  readonly members: Member[] = [];
  readonly #links: { close(): void | Promise<void> }[] = [];

  /** A node with its address and its file, not yet started. */
  declare(make: Make, id = this.#nextId(make), options: MemberOptions = {}): Member {
    const dash = make === "go" ? "-" : "--";
    const flags = [...(options.flags ?? [])];
    if (options.clockOffsetMs !== undefined) {
      flags.push(`${dash}clock-offset-ms=${options.clockOffsetMs}`);
    }
    const member = new Member(make, id, this.dir, freePort(), flags);
    this.members.push(member);
    return member;
  }

  /** A started node that ships to the given peers. */
  async node(
    make: Make,
    peers: { url: string }[] = [],
    options: MemberOptions = {},
  ): Promise<Member> {
    const member = this.declare(make, undefined, options);
    member.peers = peers.map((peer) => peer.url);
    return member.start();
  }

  /**
   * The file, the name and the address of a node, for a node of another make to go on with. The first
   * must have been stopped.
   */
  handOver(from: Member, make: Make, flags: string[] = []): Member {
    if (from.running) throw new Error(`${from.id} still runs`);
    const member = new Member(make, from.id, this.dir, from.port, flags);
    member.dbPath = from.dbPath;
    member.peers = from.peers;
    this.members.push(member);
    return member;
  }

  /** A full mesh of started nodes. */
  async mesh(...makes: Make[]): Promise<Member[]> {
    const members = makes.map((make) => this.declare(make));
    connectAll(members);
    await Promise.all(members.map((member) => member.start()));
    return members;
  }

  /** A link to a node that can be cut. */
  async wire(target: Member): Promise<Wire> {
    const wire = await Wire.open(freePort(), target.port);
    this.#links.push(wire);
    return wire;
  }

  /** A link to a node that keeps what passes. */
  tap(target: Member): Tap {
    const tap = new Tap(freePort(), target.url);
    this.#links.push(tap);
    return tap;
  }

  /** A peer played by the test. */
  recorder(): Recorder {
    const recorder = new Recorder(freePort());
    this.#links.push(recorder);
    return recorder;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.members.map((member) => member.stop()));
    await Promise.all(this.#links.map((link) => link.close()));
    rmSync(this.dir, { recursive: true, force: true });
  }

  #nextId(make: Make): string {
    return `${make}${this.members.length}`;
  }
}

/** Makes every member ship to every other, at the next start. */
export function connectAll(members: Member[]): void {
  for (const member of members) {
    member.peers = members.filter((other) => other !== member).map((other) => other.url);
  }
}

/** Waits until nothing is on the way any more: no log has entries and no hub has forwards. */
export async function quiet(members: Member[], limitMs = PATIENCE_MS): Promise<void> {
  await until(
    `empty logs on ${members.map((member) => member.id).join(", ")}`,
    async () => {
      const healths = await Promise.all(members.map((member) => member.health()));
      return healths.every(
        (h) => (h.pending_changes ?? 0) === 0 && (h.pending_forwards ?? 0) === 0,
      );
    },
    limitMs,
  );
}

/**
 * Waits until logs are empty and all nodes hold the same rows by value and type, and gives the rows.
 * Hubs among the members must be empty, too, but have no rows to compare.
 */
export async function settled(
  members: Member[],
  { table = "items", limitMs = PATIENCE_MS }: { table?: string; limitMs?: number } = {},
): Promise<string[]> {
  const nodes = members.filter((member) => member.make !== "hub");
  const first = nodes[0];
  if (first === undefined) throw new Error("nothing to compare");
  const end = performance.now() + limitMs;
  // Comparing is dear for large tables, and some differences are mended only after a minute.
  for (let pauseMs = 20; ; pauseMs = Math.min(pauseMs * 1.5, 500)) {
    await quiet(members, Math.max(end - performance.now(), 1));
    const wanted = first.content(table);
    const other = nodes.find((node) => !Bun.deepEquals(node.content(table), wanted));
    if (other === undefined) return wanted;
    if (performance.now() > end) {
      throw new Error(`still different after ${limitMs} ms: ${difference(first, other, table)}`);
    }
    await Bun.sleep(pauseMs);
  }
}

/** The first rows in which two nodes differ, for a failure's message and for tests that expect one. */
export function difference(a: Member, b: Member, table = "items"): string {
  const [left, right] = [a.content(table), b.content(table)];
  const [inLeft, inRight] = [new Set(left), new Set(right)];
  const only = (rows: string[], there: Set<string>) => rows.filter((row) => !there.has(row));
  const show = (member: Member, rows: string[]) =>
    `only on ${member.id} (${rows.length}): ${rows.slice(0, 3).join(" | ")}`;
  return `${show(a, only(left, inRight))}; ${show(b, only(right, inLeft))}`;
}
