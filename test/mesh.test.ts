/** A node among its peers: what it does about what its shipper tells; the shipper is scripted. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import type { Logger } from "../lib/base/log.ts";
import { loadConfig } from "../lib/config.ts";
import { Mesh } from "../lib/mesh.ts";
import { formatIdentity, IDENTITY_HEADER } from "../lib/protocol/identity.ts";
import { REPAIR_DB } from "../lib/shipper/comparison.ts";
import type { ShipperHandleOptions } from "../lib/shipper/handle.ts";
import type { FromShipper, PeerStatus } from "../lib/shipper/messages.ts";
import { StoreFile, T } from "./support/open-store.ts";
import { Seeded } from "./support/seeded.ts";

const A = "http://a:1";
const DB = "aa".repeat(16);

let file: StoreFile;
let mesh: Mesh;
let starts: ShipperHandleOptions[];
let fills: string[];
let doubts: number;
let errors: string[];

beforeEach(() => {
  file = new StoreFile(
    `CREATE TABLE notes(id TEXT PRIMARY KEY, n, updated_at INTEGER); INSERT INTO notes VALUES('old', 0, ${T})`,
  );
  starts = [];
  fills = [];
  doubts = 0;
  errors = [];
});

afterEach(async () => {
  await mesh.stop(0);
  await file[Symbol.asyncDispose]();
});

function start(): void {
  const { clock, path } = file;
  const store = file.open({ asked: ["notes"] });
  const random = new Seeded(2);
  const loaded = loadConfig({
    argv: ["--id", "n", "--db", "n.db", "--peer", A],
    env: {},
    readText: () => "",
  });
  if (!("config" in loaded)) throw new Error("no configuration");
  const log = (message: string, fields?: Readonly<Record<string, unknown>>) => {
    if (message.startsWith("filling")) fills.push(String(fields?.["reason"]));
  };
  mesh = new Mesh({
    config: loaded.config,
    store,
    path,
    workerUrl: new URL("none:"),
    log: {
      info: log,
      warn: log,
      error: (message: string) => void errors.push(message),
      log: (level: string, message: string) => {
        if (level === "error") errors.push(message);
      },
    } as unknown as Logger,
    clock,
    timers: { after: (ms, run) => timer(ms, run), soon: queueMicrotask },
    random,
    itemCount: () => 1,
    reportError: (error) => {
      throw error;
    },
    remoteAddress: () => undefined,
    onDoubt: () => void doubts++,
    startShipper: (options) => {
      starts.push(options);
      return {
        settled: () => {},
        readHealth: () => {},
        release: () => {},
        status: () => [],
        drain: async () => 0,
        stop: async () => {},
      };
    },
  });
  mesh.start();
}

/** Timers ever set. */
let timers = 0;

function timer(ms: number, run: () => void): () => void {
  timers++;
  const id = setTimeout(run, ms);
  return () => clearTimeout(id);
}

function say(message: FromShipper): void {
  starts.at(-1)!.onMessage(message);
}

function status(over: Partial<PeerStatus> = {}): FromShipper {
  const peer: PeerStatus = {
    url: A,
    state: "idle",
    nodeId: undefined,
    make: "foreign",
    dbId: undefined,
    lastAcked: 0,
    pending: 0,
    lastError: undefined,
    lastContactMs: 1,
    clockOffsetMs: 0,
    ...over,
  };
  return { kind: "status", peers: [peer] };
}

async function until(isSo: () => boolean): Promise<void> {
  for (let turn = 0; turn < 5_000 && !isSo(); turn++) await Bun.sleep(1);
  expect(isSo()).toBe(true);
}

const peer = () => file.store.peers.rows()[0]!;

test("a peer that is heard twice before its fill is noted is filled once", async () => {
  start();
  say(status());
  say(status());
  await until(() => peer().isFilling);
  say(status());
  await file.settle();
  expect([fills, peer().fillWanted]).toEqual([["it is new"], null]);
});

test("a fill that could not begin is none that the next one waits for", async () => {
  start();
  const { db } = file.store;
  file.write(`INSERT INTO notes VALUES('large', zeroblob(100000), ${T})`);
  await file.settle();
  const { page_count } = db.query<{ page_count: number }, []>("PRAGMA page_count").get()!;
  db.run(`PRAGMA max_page_count = ${page_count}`);
  expect(await mesh.fill(A).catch((error) => error.code)).toBe("disk-full");
  db.run("PRAGMA max_page_count = 1000000");
  say(status());
  await until(() => peer().isFilling);
  expect(fills).toEqual(["somebody asked for it", "it is new"]);
});

test("what was acknowledged to a file that was restored is nothing to the one it becomes", async () => {
  start();
  const { dbId } = file.store;
  const last = { batchId: 99, hash: "0" };
  say({ kind: "moved", peer: A, through: 0, ackedBatchId: 5 });
  say({ kind: "mark-differs", peer: A, db: DB, prev: 5, last });
  // Two peers say so at once.
  say({ kind: "mark-differs", peer: A, db: DB, prev: 4, last });
  await until(() => starts.length === 3);
  const [, second, third] = starts.map(({ config }) => config);
  expect(second!.dbId).not.toBe(dbId);
  expect(third!.dbId).toBe(second!.dbId);
  expect([second!.peers, third!.peers].map(([one]) => one!.prev)).toEqual([0, 0]);
});

test("a mark that is doubted shows that this file was restored, and never that the peer lost something", async () => {
  start();
  await file.store.needNoFill(A);
  const { dbId } = file.store;
  say({ kind: "moved", peer: A, through: 0, ackedBatchId: 5 });
  say({ kind: "mark-doubted", peer: A, db: DB, mark: { batchId: 0, hash: "0" } });
  await file.settle();
  expect([starts.length, fills]).toEqual([1, []]);
  say({ kind: "mark-doubted", peer: A, db: DB, mark: { batchId: 99, hash: "0" } });
  await until(() => starts.length === 2);
  expect(file.store.dbId).not.toBe(dbId);
});

test("a peer that lost what it had acknowledged is filled, and shipped to as one that has nothing", async () => {
  start();
  await file.store.needNoFill(A);
  say({ kind: "moved", peer: A, through: 0, ackedBatchId: 5 });
  say({ kind: "mark-differs", peer: A, db: DB, prev: 5, last: { batchId: 2, hash: "0" } });
  await until(() => starts.length === 2);
  expect(peer().isFilling).toBe(true);
  expect(starts[1]!.config).toMatchObject({ targeted: true, peers: [{ url: A, prev: 0 }] });
});

test("what comes late of a file that its node has no more is a reason to compare", async () => {
  start();
  const identity = { db: DB };
  const health = { url: A, identity, nodeId: "a", itemCount: 1, pendingChanges: 0, hub: false };
  say({ kind: "peer-health", health });
  await until(() => peer().isFilling);
  doubts = 0;
  const look = async () => {
    file.clock.ms += 60_000;
    await mesh.look();
    return doubts;
  };
  mesh.heard(identity, "a");
  mesh.heard({ db: REPAIR_DB }, "a");
  mesh.heard({ db: "bb".repeat(16) }, "b");
  expect(await look()).toBe(0);
  mesh.heard({ db: "bb".repeat(16) }, "a");
  expect(await look()).toBe(1);
  // Or it is two nodes of one name: then it is not compared all the time.
  mesh.heard({ db: "bb".repeat(16) }, "a");
  expect(await look()).toBe(1);
  file.clock.ms += 600_000;
  expect(await look()).toBe(2);
});

test("a node of another make that ships here for the first time is a reason to compare, once", async () => {
  start();
  mesh.heard(undefined, "go");
  mesh.heard(undefined, "go");
  mesh.heard({ db: DB }, "ours");
  mesh.heard(undefined, undefined);
  expect(doubts).toBe(1);
  await file.settle();
  await mesh.stop(0);
  start();
  mesh.heard(undefined, "go");
  expect(doubts).toBe(1);
  mesh.heard(undefined, "node");
  expect(doubts).toBe(2);
});

test("a peer that was asked for stays when the configuration names it no more", async () => {
  start();
  const kept = () => JSON.parse(file.store.keptSetting("peers") ?? "{}");
  expect(await mesh.add(A)).toBe(false);
  expect(kept()).toEqual({ added: [A], removed: [] });
  expect(starts).toHaveLength(1);
  await mesh.remove(A);
  expect(mesh.urls).toEqual([]);
  expect(await mesh.add(A)).toBe(true);
  expect(kept()).toEqual({ added: [A], removed: [] });
  expect(mesh.urls).toEqual([A]);
});

test("changes of the peers that are asked for at once all count, in their order", async () => {
  start();
  const [b, c] = ["http://b:1", "http://c:1"];
  await Promise.all([mesh.add(b), mesh.add(c), mesh.remove(A), mesh.remove(b), mesh.add(b)]);
  expect(mesh.urls).toEqual([c, b]);
});

test("joining through this very node is told once, and tried again: its name may be one of several nodes", async () => {
  start();
  const identity = formatIdentity({ db: file.store.dbId });
  let asked = 0;
  using self = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: ({ method, url }) => {
      asked++;
      if (method === "POST") return Response.json({ error: "that is me" }, { status: 400 });
      const isHealth = new URL(url).pathname === "/health";
      if (!isHealth) return Response.json({ peers: [] });
      return Response.json({}, { headers: { [IDENTITY_HEADER]: identity } });
    },
  });
  const through = `http://127.0.0.1:${self.port}`;
  const timersBefore = timers;
  await mesh.join(through);
  expect(errors).toEqual([expect.stringContaining(`${through}: that is this node itself`)]);
  expect(mesh.warnings()).toEqual(errors);
  expect([mesh.urls, timers - timersBefore, asked]).toEqual([[A], 1, 3]);
  await mesh.join(through, 2);
  expect([errors.length, asked]).toEqual([1, 6]);
});
