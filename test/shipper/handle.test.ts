/** The shipper as the node runs it: a real worker, a real file, real sockets. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { systemTimers, type Timers } from "../../lib/base/clock.ts";
import type { Random } from "../../lib/base/random.ts";
import { type ShipperHandle, startShipper } from "../../lib/shipper/handle.ts";
import type { FromShipper, PeerStatus, ShipperConfig } from "../../lib/shipper/messages.ts";
import { ackAll, FakePeer, LogFile, RawPeer, type Received, Watch } from "./support.ts";
import { VirtualTime } from "./virtual-time.ts";

const WORKER = new URL("../../lib/shipper/worker.ts", import.meta.url);
const CRASHING_WORKER = new URL("./crashing-worker.ts", import.meta.url);
const CRASH_AT = 666_666;
const DB = "00000000000000aa";
const NO_JITTER: Random = { next: () => 0, uuid: () => "", hex: () => "" };

let log: LogFile;
let watch: Watch;
let posted: FromShipper[];
let shipper: ShipperHandle | undefined;
let close: (() => unknown)[];

beforeEach(() => {
  log = new LogFile();
  watch = new Watch();
  posted = [];
  shipper = undefined;
  close = [];
});

afterEach(async () => {
  await shipper?.stop();
  for (const step of close) await step();
  log[Symbol.dispose]();
});

function fake(): FakePeer {
  const peer = new FakePeer(watch);
  close.push(() => peer.down());
  return peer;
}

function start(
  peers: readonly (string | ShipperConfig["peers"][number])[],
  over: Partial<ShipperConfig> = {},
  workerUrl = WORKER,
  timers: Timers = systemTimers,
): ShipperHandle {
  shipper = startShipper({
    workerUrl,
    random: NO_JITTER,
    timers,
    config: {
      dbPath: log.path,
      nodeId: "node1",
      dbId: DB,
      nodeUrl: undefined,
      batchChangesMax: 1_000,
      batchBytesMax: 1024 * 1024,
      requestTimeoutMs: 5_000,
      useProxy: false,
      settledThrough: log.newest(),
      peers: peers.map((peer) =>
        typeof peer === "string" ? { url: peer, watermark: 0, prev: 0 } : peer,
      ),
      ...over,
    },
    onMessage: (message) => {
      posted.push(message);
      watch.changed();
    },
  });
  return shipper;
}

function of<K extends FromShipper["kind"]>(kind: K): Extract<FromShipper, { kind: K }>[] {
  return posted.filter(
    (message): message is Extract<FromShipper, { kind: K }> => message.kind === kind,
  );
}

const moved = (url: string) => of("moved").filter(({ peer }) => peer === url);
const reached = (url: string, through: number) =>
  watch.until(`${url} has ${through}`, () => moved(url).some((m) => m.through >= through));
const refusals = () => of("moved").flatMap(({ refusal }) => refusal ?? []);
const valuesOf = (requests: readonly Received[]) =>
  requests.flatMap(({ changes }) => changes.map(({ row }) => row?.["value"]));
const statusIs = (what: string, isTrue: (peer: PeerStatus) => boolean) =>
  watch.until(what, () => shipper!.status().some(isTrue));
const numbers = (count: number) => Array.from({ length: count }, (_, index) => index + 1);

describe("with real peers", () => {
  test("a backlog arrives in order, in full batches, once", async () => {
    const peer = fake();
    start([peer.url], { settledThrough: log.fill(10_500) });
    await reached(peer.url, 10_500);
    expect(peer.received.map(({ changes }) => changes.length)).toEqual([
      ...Array(10).fill(1_000),
      500,
    ]);
    expect(valuesOf(peer.received)).toEqual(numbers(10_500));
  });

  test("a commit is on its way at once", async () => {
    const peer = fake();
    const handle = start([peer.url]);
    await watch.until("ready", () => of("ready").length === 1);
    for (let n = 1; n <= 5; n++) {
      handle.settled(log.fill(1));
      await reached(peer.url, n);
    }
    expect(peer.received).toHaveLength(5);
    expect(of("peer-health").map(({ health }) => health.nodeId)).toEqual(["fake"]);
  });

  test("a silent peer beside a living one", async () => {
    const silent = await RawPeer.open(() => {});
    close.push(() => silent.close());
    const living = fake();
    const handle = start([silent.url, living.url]);
    for (let n = 1; n <= 20; n++) {
      handle.settled(log.fill(1));
      await reached(living.url, n);
    }
    // One for the batch, one for /health.
    expect(silent.connections).toBeLessThanOrEqual(2);
    expect(moved(silent.url)).toEqual([]);
  });

  test("a peer that is down gets everything when it comes up, and nothing is refused", async () => {
    const peer = fake();
    await peer.down();
    const handle = start([peer.url]);
    handle.settled(log.fill(5));
    await statusIs("waiting with an error", ({ state, lastError }) => {
      return state === "waiting" && lastError !== undefined;
    });
    peer.up();
    await reached(peer.url, 5);
    expect(refusals()).toEqual([]);
  });

  test("five attempts, spaced by the contract's pauses, come before a wrong ack is believed", async () => {
    const peer = fake();
    peer.respond = ({ batchId }) => Response.json({ applied: 0, ack: batchId + 1_000 });
    const handle = start([peer.url]);
    handle.settled(log.fill(3));
    await reached(peer.url, 3);
    expect(peer.received).toHaveLength(5);
    const gaps = peer.received.slice(1).map(({ atMs }, n) => atMs - peer.received[n]!.atMs);
    for (const [n, pauseMs] of [50, 100, 200, 400].entries()) {
      expect(gaps[n]!).toBeGreaterThan(pauseMs * 0.9);
    }
    expect(refusals()).toMatchObject([{ changeIds: [1, 2, 3], attempts: 5 }]);
    peer.respond = ackAll;
    handle.settled(log.fill(1));
    await reached(peer.url, 4);
  });

  test("one row that the peer refuses is isolated; the rest of its batch arrives", async () => {
    const peer = fake();
    peer.respond = (request) =>
      valuesOf([request]).includes(50)
        ? Response.json({ error: "row 50" }, { status: 400 })
        : ackAll(request);
    const handle = start([peer.url]);
    handle.settled(log.fill(100));
    await reached(peer.url, 100);
    expect(refusals()).toEqual([
      { changeIds: [50], reason: '400: {"error":"row 50"}', attempts: 5 },
    ]);
    const taken = peer.received.filter((request) => !valuesOf([request]).includes(50));
    expect(valuesOf(taken)).toEqual(numbers(100).filter((n) => n !== 50));
  });

  test("a batch that the peer calls too large is cut until it fits", async () => {
    const peer = fake();
    const limit = 100_000;
    peer.respond = (request) =>
      request.text.length > limit ? new Response(null, { status: 413 }) : ackAll(request);
    start([peer.url], { settledThrough: log.fill(2_000, "x".repeat(500)) });
    await reached(peer.url, 2_000);
    const taken = peer.received.filter(({ text }) => text.length <= limit);
    expect(valuesOf(taken)).toEqual(numbers(2_000));
    expect(refusals()).toEqual([]);
    // The size is remembered: not every batch is tried in full first.
    expect(peer.received.length - taken.length).toBeLessThan(8);
  });

  test("answers that are not a peer's never clear the queue and are never dead letters", async () => {
    const peer = fake();
    const head = { headers: { "Content-Type": "text/html" } };
    const answers = [
      () => new Response("<html>sign in</html>", head),
      () => Response.json({}),
      () => Response.json({ applied: 1, ack: null }),
      () => new Response(null, { status: 204 }),
      () => new Response('\ufeff{"applied":1,"ack":1}'),
    ];
    peer.respond = (request) => answers.shift()?.() ?? ackAll(request);
    const handle = start([peer.url]);
    handle.settled(log.fill(1));
    await watch.until("the last of them", () => answers.length === 0);
    expect(moved(peer.url)).toEqual([]);
    await reached(peer.url, 1);
    expect(refusals()).toEqual([]);
  });

  test("Retry-After is waited for", async () => {
    const peer = fake();
    peer.respond = (request) =>
      peer.received.length === 1
        ? new Response("busy", { status: 503, headers: { "Retry-After": "1" } })
        : ackAll(request);
    const handle = start([peer.url]);
    handle.settled(log.fill(1));
    await reached(peer.url, 1);
    expect(peer.received[1]!.atMs - peer.received[0]!.atMs).toBeGreaterThan(950);
  });

  test.each(["closes the connection", "answers 500", "answers 504"])(
    "a peer that %s on a large body gets smaller ones",
    async (what) => {
      const reply = (status: string, text: string) =>
        `HTTP/1.1 ${status}\r\nContent-Length: ${text.length}\r\n\r\n${text}`;
      const taken: string[] = [];
      const touchy = await RawPeer.open((socket) => {
        let text = "";
        socket.setEncoding("latin1");
        socket.on("data", (chunk: string) => {
          text += chunk;
          const length = Number(/content-length: (\d+)/i.exec(text)?.[1] ?? 0);
          const isLarge = length > 400_000;
          if (isLarge && what === "closes the connection") {
            socket.destroy();
            return;
          }
          const body = text.slice(text.indexOf("\r\n\r\n") + 4);
          if (body.length < length) return;
          text = "";
          if (isLarge) {
            socket.write(reply(`${what.slice(-3)} Oh`, "too much"));
            return;
          }
          taken.push(body);
          const through = /"batch_id":(\d+)/.exec(body)?.[1] ?? "0";
          socket.write(reply("200 OK", `{"applied":0,"ack":${through}}`));
        });
      });
      close.push(() => touchy.close());
      start([touchy.url], { settledThrough: log.fill(1_000, "x".repeat(1_000)) });
      await reached(touchy.url, 1_000);
      expect(refusals()).toEqual([]);
      expect(taken.filter((body) => body.includes('"value":777,'))).toHaveLength(1);
    },
  );

  test("drain ships what is there and says what is left", async () => {
    const peer = fake();
    const handle = start([peer.url]);
    handle.settled(log.fill(5_000));
    expect(await handle.drain(5_000)).toBe(0);
    expect(peer.changes).toHaveLength(5_000);
    peer.respond = () => new Promise(() => {});
    handle.settled(log.fill(7));
    const [first, second] = [handle.drain(100), handle.drain(100)];
    expect(await first).toBe(7);
    expect(await second).toBe(7);
  });
});

describe("beside the main thread", () => {
  test("checkpoints and ALTER work while a batch waits for a slow peer", async () => {
    const peer = fake();
    let release = () => {};
    peer.respond = (request) =>
      new Promise((resolve) => (release = () => resolve(ackAll(request))));
    const handle = start([peer.url]);
    handle.settled(log.fill(3_000));
    await watch.until("a batch is out", () => peer.received.length === 1);
    log.fill(2_000);
    expect(log.db.query("PRAGMA wal_checkpoint(TRUNCATE)").get()).toMatchObject({ busy: 0 });
    log.db.run("ALTER TABLE _changes ADD COLUMN extra TEXT");
    peer.respond = ackAll;
    release();
    handle.settled(log.newest());
    await reached(peer.url, 5_000);
    expect(valuesOf(peer.received)).toEqual(numbers(5_000));
  });

  test("stopping closes the worker's file first: no -wal is left when the main one closes", async () => {
    const peer = fake();
    peer.respond = () => new Promise(() => {});
    const handle = start([peer.url]);
    handle.settled(log.fill(10));
    await watch.until("a batch is out", () => peer.received.length === 1);
    await handle.stop();
    await handle.stop();
    expect(of("stopped")).toHaveLength(1);
    log.db.close(true);
    expect(readdirSync(log.dir)).toEqual(["log.db"]);
    const count = posted.length;
    handle.settled(11);
    expect(posted).toHaveLength(count);
  });

  test("without peers there is no worker and nothing to wait for", async () => {
    const handle = start([]);
    handle.settled(log.fill(1));
    handle.readHealth();
    expect(await handle.drain(60_000)).toBe(0);
    expect(handle.status()).toEqual([]);
    await handle.stop();
    expect(posted).toEqual([]);
  });
});

describe("a worker that fails", () => {
  test("is an error in the log, and another goes on from where it was", async () => {
    const peer = fake();
    const time = new VirtualTime();
    const handle = start([peer.url], { settledThrough: log.fill(3) }, CRASHING_WORKER, time);
    await reached(peer.url, 3);
    handle.settled(CRASH_AT);
    await watch.until("it is reported", () => of("log").some(({ level }) => level === "error"));
    expect(of("log").find(({ level }) => level === "error")).toMatchObject({
      message: "the shipper failed and is started again",
      fields: { error: "error: planted failure", pauseMs: 50 },
    });
    // What is settled while there is no worker is known to the next one.
    const last = log.fill(2);
    handle.settled(last);
    await time.advance(50);
    await reached(peer.url, last);
    expect(of("ready")).toHaveLength(2);
    expect(of("log").filter(({ level }) => level === "error")).toHaveLength(1);
    expect(valuesOf(peer.received)).toEqual(numbers(5));
    expect(peer.received.at(-1)!.headers.get("x-hook-sync")).toContain("prev=3");
  });

  test("a file that cannot be opened is tried again, with growing pauses, until stopped", async () => {
    const handle = start([fake().url], { dbPath: `${log.dir}/missing/log.db` });
    await watch.until("three failures", () => of("log").length === 3);
    expect(of("log")[0]!.fields["error"]).toBe("SQLiteError: unable to open database file");
    expect(of("log").map(({ fields }) => fields["pauseMs"])).toEqual([50, 100, 200]);
    await handle.stop();
    const count = posted.length;
    expect(await handle.drain(1)).toBe(0);
    expect(posted).toHaveLength(count);
  });
});

test("a proxy in the environment is not used for peers", async () => {
  const peer = fake();
  let proxied = 0;
  const proxy = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: () => {
      proxied += 1;
      return new Response("proxy");
    },
  });
  close.push(() => proxy.stop(true));
  const before = { ...process.env };
  // A worker starts with a copy of this.
  process.env["HTTP_PROXY"] = `http://127.0.0.1:${proxy.port}`;
  process.env["http_proxy"] = `http://127.0.0.1:${proxy.port}`;
  try {
    const handle = start([peer.url]);
    handle.settled(log.fill(1));
    await reached(peer.url, 1);
    await handle.stop();
    expect(proxied).toBe(0);
    start([peer.url], { useProxy: true, settledThrough: log.fill(1) });
    await watch.until("the proxy is asked", () => proxied > 0);
  } finally {
    for (const name of ["HTTP_PROXY", "http_proxy"]) {
      if (before[name] === undefined) delete process.env[name];
      else process.env[name] = before[name];
    }
  }
});
