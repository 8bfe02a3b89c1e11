/**
 * Nodes that are killed, frozen, out of disk or behind a bad line while they work. Whatever happened, in
 * the end every write that was answered is on all of them, the files are sound and nothing was given up.
 *
 * HOOK_SYNC_CRASH_ROUNDS sets how often a node is killed; the gate has time for some tens of kills.
 */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { createServer, connect as dial, type Socket } from "node:net";
import { content, freePort, type NodeProcess, Nodes, until } from "./support/node-process.ts";

const ROUNDS = Number(process.env["HOOK_SYNC_CRASH_ROUNDS"] ?? 20);
/** There is as much to compare in the end as was written. */
const WRITE_PAUSE_MS = 4;
const TEST_MS_MAX = 90_000 + ROUNDS * 3_000;

const below = (limit: number) => Math.floor(Math.random() * limit);
const pick = <T>(from: readonly T[]): T => from[below(from.length)]!;

/** Each of them a peer of all others. */
function fleet(team: Nodes, ids: readonly string[], flags: readonly string[] = []): NodeProcess[] {
  const ports = ids.map(() => freePort());
  return ids.map((id, at) =>
    team.make({
      id,
      port: ports[at]!,
      peers: ports.filter((_, i) => i !== at).map((port) => `http://127.0.0.1:${port}`),
      flags,
    }),
  );
}

/** What was answered, by id: the version it had then; `deleted` once a delete was. */
type Promised = Map<string, { readonly version: number; readonly isDeleted: boolean }>;

interface Row {
  readonly id: string;
  readonly updated_at: number;
}

/** One write by REST; what was not answered promises nothing. */
async function writeOnce(
  node: NodeProcess,
  promised: Promised,
  deletable: string[],
): Promise<void> {
  const promise = ({ id, updated_at: version }: Row) =>
    promised.set(id, { version, isDeleted: false });
  try {
    const kind = below(10);
    if (kind < 5) {
      const { status, body } = await node.call("POST", "/api/items", {
        name: "new",
        value: below(9),
      });
      if (status === 201) promise(body as Row);
    } else if (kind < 7) {
      const rows = Array.from({ length: 12 }, () => ({ name: "batch", value: below(9) }));
      const { status, body } = await node.call("POST", "/api/items/batch", rows);
      if (status === 201) for (const id of body.ids) promise({ id, updated_at: 0 });
    } else if (kind < 9 && promised.size > 0) {
      // An edit where the delete has not arrived yet would be later than it, and bring the row back.
      const living = [...promised].filter(([, { isDeleted }]) => !isDeleted);
      if (living.length === 0) return;
      const [id] = pick(living);
      const { status, body } = await node.call("PUT", `/api/items/${id}`, { value: below(99) });
      if (status === 200 && body.updated_at > promised.get(id)!.version) promise(body);
    } else if (deletable.length > 0) {
      // Written by nobody else, so that no edit elsewhere may bring it back.
      const id = deletable.pop()!;
      const { status } = await node.call("DELETE", `/api/items/${id}`);
      if (status === 200) promised.set(id, { version: 0, isDeleted: true });
    } else {
      const { status, body } = await node.call("POST", "/api/items", { name: "to go" });
      if (status === 201) deletable.push((body as Row).id);
    }
  } catch {
    // Down, or killed before it answered.
    await Bun.sleep(20);
  }
}

/** Another program: writes past the node, also while it is down. */
function writeBeside(node: NodeProcess, promised: Promised, round: number): void {
  const id = `${node.id}-${round}`;
  node.file((db) => {
    db.run(`INSERT INTO items(id, name) VALUES ('${id}', 'beside')`);
    if (round % 3 === 0) db.run(`INSERT OR REPLACE INTO items(id, name) VALUES ('${id}', 'again')`);
    if (round % 5 === 0) db.run(`UPDATE items SET value = ${round} WHERE id = '${id}'`);
  });
  promised.set(id, { version: 0, isDeleted: false });
}

/** Nothing waits on any node, and all have the same number of rows. */
async function isQuiet(nodes: readonly NodeProcess[]): Promise<boolean> {
  const healths = await Promise.all(nodes.map((node) => node.health()));
  const counts = new Set(nodes.map((node) => content(node.dbPath, "items").length));
  return healths.every(({ pending_changes }) => pending_changes === 0) && counts.size === 1;
}

/** Same content everywhere, everything promised in it, sound files, nothing given up. */
async function expectWhole(nodes: readonly NodeProcess[], promised: Promised): Promise<number> {
  await until("nothing waits any more", () => isQuiet(nodes), 60_000);
  for (const node of nodes) {
    const { dead_letter: deadLetters, parked } = await node.health();
    expect([node.id, deadLetters, parked]).toEqual([node.id, 0, 0]);
    expect(node.rows("PRAGMA integrity_check")).toEqual([{ integrity_check: "ok" }]);
  }
  const [first, ...others] = nodes.map((node) => content(node.dbPath, "items"));
  for (const other of others) expect(other).toEqual(first!);
  const rows = nodes[0]!.rows<Row>("SELECT id, updated_at FROM items");
  const versions = new Map(rows.map((row) => [row.id, row.updated_at]));
  const broken = [...promised].filter(([id, { version, isDeleted }]) => {
    const found = versions.get(id);
    return isDeleted ? found !== undefined : found === undefined || found < version;
  });
  expect(broken).toEqual([]);
  return rows.length;
}

test(
  `three nodes, written through REST and by other programs, ${ROUNDS} kills at random moments`,
  async () => {
    await using team = new Nodes();
    const nodes = fleet(team, ["a", "b", "c"]);
    await Promise.all(nodes.map((node) => node.start()));
    const promised: Promised = new Map();
    let isOver = false;
    const writing = nodes.flatMap((node) =>
      [0, 1].map(async () => {
        const deletable: string[] = [];
        while (!isOver) {
          await writeOnce(node, promised, deletable);
          await Bun.sleep(WRITE_PAUSE_MS);
        }
      }),
    );
    for (let round = 0; round < ROUNDS; round++) {
      for (const node of nodes) writeBeside(node, promised, round);
      await Bun.sleep(below(150));
      const victims = below(5) === 0 ? [pick(nodes), pick(nodes)] : [pick(nodes)];
      await Promise.all(
        [...new Set(victims)].map(async (node) => {
          if (below(4) === 0) node.signal("SIGSTOP");
          await node.stop("SIGKILL");
          writeBeside(node, promised, 1_000 + round);
          // Sometimes it dies again while it opens its file.
          if (below(4) === 0) {
            node.start().catch(() => undefined);
            await Bun.sleep(below(250));
            await node.stop("SIGKILL");
          }
          await node.start();
        }),
      );
    }
    isOver = true;
    await Promise.all(writing);
    const rows = await expectWhole(nodes, promised);
    console.log(`crash: ${ROUNDS} rounds, ${promised.size} writes promised, ${rows} rows on each`);
    expect(promised.size).toBeGreaterThan(ROUNDS);
  },
  TEST_MS_MAX,
);

test(
  "a peer that is frozen for longer than the time-out misses nothing, and delays nobody",
  async () => {
    await using team = new Nodes();
    const nodes = fleet(team, ["a", "b", "c"], ["--request-timeout-ms", "1000"]);
    await Promise.all(nodes.map((node) => node.start()));
    const [a, b, c] = nodes as [NodeProcess, NodeProcess, NodeProcess];
    const promised: Promised = new Map();
    const write = async (node: NodeProcess) => {
      const { body } = await node.call("POST", "/api/items", { name: node.id });
      promised.set(body.id, { version: body.updated_at, isDeleted: false });
    };
    await write(c);
    await until("everyone has it", () => isQuiet(nodes));
    c.signal("SIGSTOP");
    const startedMs = performance.now();
    while (performance.now() - startedMs < 2_500) {
      await Promise.all([write(a), write(b)]);
      await Bun.sleep(20);
    }
    await until("the two others have all of it", () => {
      const counts = [a, b].map((node) => node.rows("SELECT 1 FROM items").length);
      return counts.every((count) => count === promised.size);
    });
    c.signal("SIGCONT");
    await expectWhole(nodes, promised);
  },
  TEST_MS_MAX,
);

test(
  "another program holds the write lock again and again: what was answered is everywhere",
  async () => {
    await using team = new Nodes();
    const nodes = fleet(team, ["a", "b"]);
    await Promise.all(nodes.map((node) => node.start()));
    const promised: Promised = new Map();
    let isOver = false;
    const writing = nodes.map(async (node) => {
      const deletable: string[] = [];
      while (!isOver) {
        await writeOnce(node, promised, deletable);
        await Bun.sleep(WRITE_PAUSE_MS);
      }
    });
    const theirs = new Database(nodes[0]!.dbPath);
    team.defer(() => theirs.close(true));
    theirs.run("PRAGMA busy_timeout = 10000");
    for (const heldMs of [300, 1_500, 100, 700]) {
      theirs.run("BEGIN IMMEDIATE");
      theirs.run(`INSERT INTO items(id, name) VALUES ('held-${heldMs}', 'theirs')`);
      await Bun.sleep(heldMs);
      theirs.run("COMMIT");
      promised.set(`held-${heldMs}`, { version: 0, isDeleted: false });
      await Bun.sleep(50);
    }
    isOver = true;
    await Promise.all(writing);
    await expectWhole(nodes, promised);
  },
  TEST_MS_MAX,
);

// ── Disk full ─────────────────────────────────────────────────────────────────────────────────

/** A disk of its own, small, seen by the node alone. */
const SMALL_DISK = [
  "unshare",
  "--user",
  "--map-root-user",
  "--mount",
  "sh",
  "-c",
  'mount -t tmpfs -o size=1m none "$PWD" && cd "$PWD" && head -c 400k /dev/zero > filler && exec "$@"',
  "sh",
];
const hasSmallDisk = Bun.spawnSync([...SMALL_DISK.slice(0, 4), "true"]).success;
if (!hasSmallDisk) console.log("not tried on a full disk: unshare does not work here");

test.if(hasSmallDisk)(
  "a full disk: writes and batches get 507, nothing half done; with room again all goes on",
  async () => {
    await using team = new Nodes();
    const peer = team.make({ id: "peer" });
    const small = team.make({ id: "small", wrapper: SMALL_DISK, peers: [peer.url] });
    peer.peers = [small.url];
    await Promise.all([peer.start(), small.start()]);
    const row = { name: "x".repeat(2_000) };
    const answered: string[] = [];
    let status = 201;
    while (status === 201) {
      const answer = await small.call("POST", "/api/items", row);
      status = answer.status;
      if (status === 201) answered.push(answer.body.id);
      expect(answered.length).toBeLessThan(2_000);
    }
    expect(status).toBe(507);
    const { ok, reasons } = await small.health();
    expect([ok, reasons.join()]).toEqual([false, expect.stringContaining("disk is full")]);
    // What the peer sends meanwhile is not acknowledged, and not lost.
    for (let n = 0; n < 20; n++) {
      const { body } = await peer.call("POST", "/api/items", row);
      answered.push(body.id);
    }
    await Bun.sleep(500);
    expect((await peer.health()).pending_changes).toBeGreaterThan(0);
    rmSync(`/proc/${small.pid}/root${small.folder}/filler`);
    await until("writing is possible again", async () => {
      const answer = await small.call("POST", "/api/items", { name: "room" });
      if (answer.status === 201) answered.push(answer.body.id);
      return answer.status === 201;
    });
    const ids = async (node: NodeProcess) => {
      const { body } = await node.call("GET", "/api/items?limit=1000");
      return new Set((body as Row[]).map(({ id }) => id));
    };
    await until(
      "both have all of it",
      async () => {
        const [here, there] = await Promise.all([ids(small), ids(peer)]);
        return answered.every((id) => here.has(id) && there.has(id)) && here.size === there.size;
      },
      30_000,
    );
    const healths = await Promise.all([small.health(), peer.health()]);
    expect(healths.map((health) => [health.ok, health.dead_letter])).toEqual([
      [true, 0],
      [true, 0],
    ]);
  },
  TEST_MS_MAX,
);

// ── A bad line ────────────────────────────────────────────────────────────────────────────────

const GARBAGE = [
  "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>",
  "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
  'HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{"applied":1,"ack":',
  "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
  "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
  "\u0000\u0001\u0002 nothing like HTTP\r\n\r\n",
];

const FAULTS = ["garbage", "reset at once", "reset in the body", "reset in the answer"] as const;

/**
 * Passes connections on, or does to them what bad lines do: every other one is a fault, each kind in its
 * turn. A line without luck would keep the sender in its longest pauses.
 */
class BadLine {
  readonly port = freePort();
  isBad = true;
  readonly did = new Map<string, number>();
  #taken = 0;
  readonly #to: number;
  readonly #server = createServer((socket) => this.#take(socket));

  constructor(to: number) {
    this.#to = to;
  }

  listen(): Promise<void> {
    return new Promise((resolve) => this.#server.listen(this.port, "127.0.0.1", resolve));
  }

  close(): void {
    this.#server.close();
  }

  #take(client: Socket): void {
    client.on("error", () => {});
    const turn = this.#taken++;
    const kind = this.isBad && turn % 2 === 1 ? FAULTS[((turn - 1) / 2) % FAULTS.length]! : "pass";
    this.did.set(kind, (this.did.get(kind) ?? 0) + 1);
    if (kind === "reset at once") {
      client.resetAndDestroy();
      return;
    }
    if (kind === "garbage") {
      client.once("data", () => client.end(pick(GARBAGE)));
      return;
    }
    // Kept connections would not meet the next fault.
    if (this.isBad) setTimeout(() => client.destroy(), 100 + below(200));
    const server = dial(this.#to, "127.0.0.1");
    server.on("error", () => client.destroy());
    client.on("close", () => server.destroy());
    server.on("close", () => client.destroy());
    client.on("data", (chunk: Buffer) => {
      if (kind !== "reset in the body") {
        server.write(chunk);
        return;
      }
      server.write(chunk.subarray(0, Math.ceil(chunk.length / 2)));
      setTimeout(() => {
        client.resetAndDestroy();
        server.resetAndDestroy();
      }, 5);
    });
    server.on("data", (chunk: Buffer) => {
      if (kind !== "reset in the answer") client.write(chunk);
      else client.write(chunk.subarray(0, chunk.length / 2), () => client.resetAndDestroy());
    });
  }
}

test(
  "garbage for answers, and connections that break in the middle: nothing is lost or given up",
  async () => {
    await using team = new Nodes();
    const [a, b] = [team.make({ id: "a" }), team.make({ id: "b" })];
    const [toA, toB] = [new BadLine(a.port), new BadLine(b.port)];
    await Promise.all([toA.listen(), toB.listen()]);
    team.defer(() => [toA, toB].map((line) => line.close()));
    a.peers = [`http://127.0.0.1:${toB.port}`];
    b.peers = [`http://127.0.0.1:${toA.port}`];
    await Promise.all([a.start(), b.start()]);
    const promised: Promised = new Map();
    let isOver = false;
    const writing = [a, b].map(async (node) => {
      const deletable: string[] = [];
      while (!isOver) {
        await writeOnce(node, promised, deletable);
        await Bun.sleep(10);
      }
    });
    // Not an hour glass: until each line has done everything that lines do, twice.
    await until(
      "everything went wrong",
      () => [toA, toB].every(({ did }) => did.size === 5 && [...did.values()].every((n) => n > 1)),
      45_000,
    );
    isOver = true;
    await Promise.all(writing);
    for (const line of [toA, toB]) line.isBad = false;
    await expectWhole([a, b], promised);
  },
  TEST_MS_MAX,
);
