/**
 * How a node ends: told to, it finishes what it was doing, leaves nothing beside its file and exits
 * with 0, whatever its clients and peers are doing; killed, it has lost nothing that it had answered.
 */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { freePort, type NodeProcess, Nodes, until } from "./support/node-process.ts";
import { RawSocket } from "./support/raw-socket.ts";

/** Requests get 2 s, shipping 2 s; the rest is for a busy machine. The node itself gives up after 8. */
const STOP_MS_MAX = 7_500;
const TEST_MS_MAX = 45_000;

/** Stops it and checks what every stop owes; how long it took. */
async function stopsCleanly(node: NodeProcess, signal: NodeJS.Signals = "SIGTERM") {
  const startedMs = performance.now();
  const code = await node.stop(signal);
  const tookMs = performance.now() - startedMs;
  expect([code, node.leftovers(), node.log.trimEnd().split("\n").at(-1)]).toEqual([
    0,
    [],
    expect.stringContaining("stopped"),
  ]);
  expect(tookMs).toBeLessThan(STOP_MS_MAX);
  return tookMs;
}

const names = (node: NodeProcess) =>
  node.rows<{ name: string }>("SELECT name FROM items ORDER BY name").map(({ name }) => name);

const create = (node: NodeProcess, name: string) => node.call("POST", "/api/items", { name });

/** A peer that takes connections and requests, and never says a word. */
async function silentPeer(team: Nodes): Promise<{ url: string; requests: () => number }> {
  let requests = 0;
  const server = createServer((socket) => {
    socket.on("data", (chunk) => {
      if (chunk.toString("latin1").includes("POST /sync")) requests++;
    });
    socket.on("error", () => {});
  });
  const port = freePort();
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  team.defer(() => server.close());
  return { url: `http://127.0.0.1:${port}`, requests: () => requests };
}

test.each(["SIGTERM", "SIGINT"] as const)("%s while idle", async (signal) => {
  await using team = new Nodes();
  const node = await team.make().start();
  await create(node, "tea");
  // Without anything to wait for it takes no part of what it may.
  expect(await stopsCleanly(node, signal)).toBeLessThan(2_000);
  expect(names(node)).toEqual(["tea"]);
});

test(
  "while requests are in flight: what was answered is there, what is there was whole",
  async () => {
    await using team = new Nodes();
    const node = await team.make().start();
    const posts = Array.from({ length: 40 }, (_, i) => create(node, `single ${i}`));
    const batches = Array.from({ length: 5 }, (_, b) =>
      node.call(
        "POST",
        "/api/items/batch",
        Array.from({ length: 2_000 }, (_, i) => ({ name: `batch ${b}`, value: i })),
      ),
    );
    const all = Promise.allSettled([...posts, ...batches]);
    await Promise.race([...posts, ...batches]);
    await stopsCleanly(node);
    const answered = (await all).map(
      (one) => one.status === "fulfilled" && one.value.status === 201,
    );
    expect(answered.some(Boolean)).toBe(true);

    await node.start();
    const found = new Map(
      node
        .rows<{ name: string; n: number }>("SELECT name, count(*) AS n FROM items GROUP BY name")
        .map(({ name, n }) => [name, n]),
    );
    for (let i = 0; i < posts.length; i++)
      if (answered[i]) expect(found.get(`single ${i}`)).toBe(1);
    for (let b = 0; b < batches.length; b++) {
      expect([0, 2_000]).toContain(found.get(`batch ${b}`) ?? 0);
      if (answered[posts.length + b]) expect(found.get(`batch ${b}`)).toBe(2_000);
    }
  },
  TEST_MS_MAX,
);

test(
  "while a client is still sending a body: it is not waited for without end",
  async () => {
    await using team = new Nodes();
    const node = await team.make().start();
    using socket = new RawSocket(node.port);
    socket.write(
      "POST /api/items HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    );
    await create(node, "tea");
    await stopsCleanly(node);
    await until("the half request is cut", () => socket.isClosed);
    expect(names(node)).toEqual(["tea"]);
  },
  TEST_MS_MAX,
);

test(
  "while a batch is applied: the sender hears the answer or repeats it, and nothing is there twice",
  async () => {
    await using team = new Nodes();
    const node = await team.make().start();
    const changes = Array.from({ length: 20_000 }, (_, i) => ({
      op: "INSERT",
      table: "items",
      row: { id: `id-${i}`, name: "n", value: i, created_at: 1, updated_at: 1, node_id: "b" },
      old_id: null,
    }));
    const body = JSON.stringify({ batch_id: 20_000, changes });
    const sent = node.call("POST", "/sync", body).catch(() => undefined);
    await until("it is at work", () => node.rows("SELECT 1 FROM items LIMIT 1").length > 0);
    await stopsCleanly(node);
    const answer = await sent;
    const count = () => node.rows<{ n: number }>("SELECT count(*) AS n FROM items")[0]!.n;
    if (answer?.status === 200) {
      expect(answer.body).toEqual({ applied: 20_000, ack: 20_000 });
      expect(count()).toBe(20_000);
    }
    await node.start();
    const again = await node.call("POST", "/sync", body);
    expect(again.body).toEqual({ applied: 20_000, ack: 20_000 });
    expect([count(), (await node.health()).dead_letter]).toEqual([20_000, 0]);
  },
  TEST_MS_MAX,
);

test(
  "while a peer is down and the shipper waits to try again: what waits is sent after the next start",
  async () => {
    await using team = new Nodes();
    const peer = team.make({ id: "b" });
    const node = await team.make({ peers: [peer.url] }).start();
    await create(node, "tea");
    await until("the peer is seen to be down", () => node.log.includes(peer.url));
    await stopsCleanly(node);
    expect(node.rows("SELECT 1 FROM _changes")).toHaveLength(1);
    await peer.start();
    await node.start();
    await until("it has arrived", () => names(peer).length === 1);
    await until("nothing waits", async () => (await node.health()).pending_changes === 0);
    expect([names(peer), (await node.health()).dead_letter]).toEqual([["tea"], 0]);
  },
  TEST_MS_MAX,
);

test(
  "while a peer takes a batch and never answers: it stops in time, and loses nothing",
  async () => {
    await using team = new Nodes();
    const silent = await silentPeer(team);
    const node = await team.make({ peers: [silent.url] }).start();
    await create(node, "tea");
    await until("the batch is under way", () => silent.requests() > 0);
    await stopsCleanly(node);
    expect(node.rows("SELECT 1 FROM _changes")).toHaveLength(1);
  },
  TEST_MS_MAX,
);

test(
  "while clients keep their connections open and go on asking",
  async () => {
    await using team = new Nodes();
    const node = await team.make().start();
    const idle = Array.from({ length: 30 }, () => new RawSocket(node.port));
    team.defer(() => idle.map((socket) => socket[Symbol.dispose]()));
    for (const socket of idle) socket.write("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    await until("all are answered", () => idle.every(({ status }) => status === 200));
    const answered: string[] = [];
    let isOver = false;
    const asking = Array.from({ length: 4 }, async (_, client) => {
      for (let i = 0; !isOver; i++) {
        const name = `${client}-${i}`;
        const answer = await create(node, name).catch(() => undefined);
        if (answer === undefined) return;
        if (answer.status === 201) answered.push(name);
      }
    });
    await until("they are at it", () => answered.length > 50);
    await stopsCleanly(node);
    isOver = true;
    await Promise.all(asking);
    await until("the idle ones are closed", () => idle.every(({ isClosed }) => isClosed));
    const found = new Set(names(node));
    expect(answered.filter((name) => !found.has(name))).toEqual([]);
  },
  TEST_MS_MAX,
);

test(
  "while another program holds the write lock: it ends all the same",
  async () => {
    await using team = new Nodes();
    const node = await team.make().start();
    await create(node, "tea");
    const theirs = new Database(node.dbPath);
    team.defer(() => theirs.close(true));
    // The node may be writing for itself just now.
    theirs.run("PRAGMA busy_timeout = 5000");
    theirs.run("BEGIN IMMEDIATE");
    theirs.run("INSERT INTO items(id, name, updated_at) VALUES ('x', 'theirs', 1)");
    const startedMs = performance.now();
    const code = await node.stop();
    const tookMs = performance.now() - startedMs;
    theirs.run("COMMIT");
    expect(code).toBe(0);
    expect(tookMs).toBeLessThan(STOP_MS_MAX);
    expect(names(node)).toEqual(["tea", "theirs"]);
  },
  TEST_MS_MAX,
);

test(
  "a second signal ends it at once, and what was answered is there",
  async () => {
    await using team = new Nodes();
    const silent = await silentPeer(team);
    const node = await team.make({ peers: [silent.url] }).start();
    const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => create(node, `${i}`)));
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 201));
    await until("a batch is under way", () => silent.requests() > 0);
    node.signal("SIGTERM");
    await until("it is stopping", () => node.log.includes("stopping"));
    // One that comes at once is taken for the same.
    const again = setInterval(() => node.signal("SIGTERM"), 5);
    const code = await node.ended();
    clearInterval(again);
    expect(code).toBe(143);
    await node.start();
    expect(names(node)).toHaveLength(20);
  },
  TEST_MS_MAX,
);

test(
  "a signal that comes twice at once, as timeout and npm send it, stops it cleanly",
  async () => {
    await using team = new Nodes();
    const node = await team.make().start();
    expect((await create(node, "tea")).status).toBe(201);
    node.signal("SIGTERM");
    node.signal("SIGINT");
    expect(await node.ended()).toBe(0);
    expect(names(node)).toEqual(["tea"]);
  },
  TEST_MS_MAX,
);

test(
  "kill -9 right after the answer: written by REST, received and deleted, it is all there",
  async () => {
    await using team = new Nodes();
    const node = team.make();
    const expected: string[] = [];
    for (let round = 0; round < 6; round++) {
      await node.start();
      expect(names(node)).toEqual(expected.toSorted());
      const name = `round ${round}`;
      let gone: string | undefined;
      if (round % 3 === 0) {
        expect((await create(node, name)).status).toBe(201);
      } else if (round % 3 === 1) {
        const row = {
          id: name,
          name,
          updated_at: Date.now(),
          value: null,
          created_at: 1,
          node_id: "b",
        };
        const change = { op: "INSERT", table: "items", row, old_id: null };
        const answer = await node.call("POST", "/sync", { batch_id: round, changes: [change] });
        expect(answer.body).toEqual({ applied: 1, ack: round });
      } else {
        gone = expected.pop()!;
        expect((await node.call("DELETE", `/api/items/${gone}`)).status).toBe(200);
      }
      await node.stop("SIGKILL");
      if (gone === undefined) expected.push(name);
    }
    await node.start();
    expect(names(node)).toEqual(expected.toSorted());
    expect(node.rows("PRAGMA integrity_check")).toEqual([{ integrity_check: "ok" }]);
    await stopsCleanly(node);
  },
  TEST_MS_MAX,
);

/** As process 1, where a signal without a handler does nothing. Root can, and often everybody. */
const UNSHARE = [
  ["unshare", "--pid", "--fork", "--kill-child"],
  ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"],
].find((command) => {
  try {
    return Bun.spawnSync([...command, "true"], { stderr: "ignore" }).success;
  } catch {
    return false;
  }
});
if (UNSHARE === undefined) console.log("not tried as process 1: unshare does not work here");

test.if(UNSHARE !== undefined)(
  "as process 1 of a container",
  async () => {
    await using team = new Nodes();
    const node = await team.make({ wrapper: UNSHARE! }).start();
    const [inner] = readFileSync(`/proc/${node.pid}/task/${node.pid}/children`, "utf8").split(" ");
    const status = readFileSync(`/proc/${inner}/status`, "utf8");
    expect(status).toMatch(/^NSpid:\s+\d+\s+1$/m);
    await create(node, "tea");
    process.kill(Number(inner), "SIGTERM");
    expect(await node.ended()).toBe(0);
    expect([node.leftovers(), names(node)]).toEqual([[], ["tea"]]);
  },
  TEST_MS_MAX,
);
