import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { BATCH_BYTES_MAX } from "../../lib/protocol/limits.ts";
import { type BatchSource, LogBatchSource } from "../../lib/shipper/batch.ts";
import type { FromShipper, PeerStart, PeerStatus } from "../../lib/shipper/messages.ts";
import type { BatchWindow } from "../../lib/shipper/peer-link.ts";
import { Shipper } from "../../lib/shipper/shipper.ts";
import type {
  HealthOutcome,
  Outcome,
  Reply,
  SyncRequest,
  Transport,
  Verdict,
} from "../../lib/shipper/transport.ts";
import { LogFile, seededRandom } from "./support.ts";
import { VirtualTime } from "./virtual-time.ts";

const DB = "00000000000000aa";
const FOREIGN: Reply = { identity: undefined, serverTimeMs: undefined };
const A = "http://a";
const B = "http://b";

const ACK = (): Verdict => ({ kind: "acked", applied: 0 });
const DOWN = (): Verdict => ({
  kind: "failed",
  reason: "ECONNREFUSED",
  retryAfterMs: 0,
  cutOff: false,
});
const NEVER = () => new Promise<Verdict>(() => {});

type Answer = (request: SyncRequest) => Verdict | Promise<Verdict>;

/** A network in which each peer answers as it is told; by default all acknowledge. */
class ScriptedTransport implements Transport {
  readonly sent: SyncRequest[] = [];
  readonly healthReads: string[] = [];
  readonly answers = new Map<string, Answer>();
  readonly inFlight = new Map<string, number>();
  inFlightMost = 0;
  reply: Reply = FOREIGN;
  health: (peer: string) => HealthOutcome | Promise<HealthOutcome> = (peer) => ({
    kind: "no-health",
    reason: `404 ${peer}`,
    reply: this.reply,
  });

  async send(request: SyncRequest, signal: AbortSignal): Promise<Outcome> {
    this.sent.push(request);
    const { peer } = request;
    const inFlight = (this.inFlight.get(peer) ?? 0) + 1;
    this.inFlight.set(peer, inFlight);
    this.inFlightMost = Math.max(this.inFlightMost, inFlight);
    const stopped = new Promise<Verdict>((resolve) => {
      if (signal.aborted) resolve(DOWN());
      signal.addEventListener("abort", () => resolve(DOWN()));
    });
    const verdict = await Promise.race([(this.answers.get(peer) ?? ACK)(request), stopped]);
    this.inFlight.set(peer, inFlight - 1);
    return { ...verdict, reply: verdict.kind === "failed" ? undefined : this.reply };
  }

  async readHealth(peer: string): Promise<HealthOutcome> {
    this.healthReads.push(peer);
    return this.health(peer);
  }

  to(peer: string): SyncRequest[] {
    return this.sent.filter((request) => request.peer === peer);
  }
}

/** Passes on, notes what is read, and fails when told to. */
class WatchedSource implements BatchSource {
  readonly windows: BatchWindow[] = [];
  failing = false;
  forgotten = 0;
  readonly #source: BatchSource;

  constructor(source: BatchSource) {
    this.#source = source;
  }

  read(window: BatchWindow, settledThrough: number) {
    if (this.failing) throw Object.assign(new Error("database is locked"), { code: "SQLITE_BUSY" });
    this.windows.push(window);
    return this.#source.read(window, settledThrough);
  }

  changeIds(after: number, through: number) {
    return this.#source.changeIds(after, through);
  }

  count(after: number, through: number, countMax: number) {
    return this.#source.count(after, through, countMax);
  }

  forget() {
    this.forgotten += 1;
    this.#source.forget();
  }
}

let log: LogFile;
let reader: Database;
let base: LogBatchSource;
let source: WatchedSource;
let time: VirtualTime;
let network: ScriptedTransport;
let posted: FromShipper[];
let shipper: Shipper;

const CHANGES_MAX = 100;

beforeEach(() => {
  log = new LogFile();
  reader = new Database(log.path, { readonly: true });
  base = new LogBatchSource({
    db: reader,
    batchChangesMax: CHANGES_MAX,
    batchBytesMax: BATCH_BYTES_MAX,
  });
  source = new WatchedSource(base);
  time = new VirtualTime();
  network = new ScriptedTransport();
  posted = [];
});

afterEach(() => {
  shipper.stop();
  base.close();
  reader.close(true);
  log[Symbol.dispose]();
});

async function start(peers: readonly (string | PeerStart)[] = [A], settledThrough = log.newest()) {
  shipper = new Shipper({
    config: {
      dbId: DB,
      batchChangesMax: CHANGES_MAX,
      settledThrough,
      peers: peers.map((peer) =>
        typeof peer === "string" ? { url: peer, watermark: 0, prev: 0 } : peer,
      ),
    },
    clock: time,
    random: seededRandom(1),
    timers: time,
    transport: network,
    source,
    post: (message) => posted.push(message),
  });
  shipper.start();
  await time.settle();
}

async function write(count = 1): Promise<number> {
  const through = log.fill(count);
  shipper.settled(through);
  await time.settle();
  return through;
}

function of<K extends FromShipper["kind"]>(kind: K): Extract<FromShipper, { kind: K }>[] {
  return posted.filter(
    (message): message is Extract<FromShipper, { kind: K }> => message.kind === kind,
  );
}

async function status(url = A): Promise<PeerStatus> {
  await time.advance(100);
  return of("status")
    .at(-1)!
    .peers.find((peer) => peer.url === url)!;
}

const lines = () => of("log").map(({ level, message }) => `${level}: ${message}`);

describe("shipping", () => {
  test("what waits at the start goes out; what is settled later goes at once", async () => {
    log.fill(3);
    await start();
    expect(network.sent.map(({ batchId }) => batchId)).toEqual([3]);
    await write();
    expect(network.sent.map(({ batchId }) => batchId)).toEqual([3, 4]);
    expect(of("moved")).toEqual([
      { kind: "moved", peer: A, through: 3, make: "foreign", ackedBatchId: 3 },
      { kind: "moved", peer: A, through: 4, make: "foreign", ackedBatchId: 4 },
    ]);
    expect(time.monotonicMs()).toBe(0);
  });

  test("each peer goes on from its own watermark", async () => {
    log.fill(5);
    await start([
      { url: A, watermark: 3, prev: 3 },
      { url: B, watermark: 5, prev: 5 },
    ]);
    expect(network.sent.map(({ peer }) => peer)).toEqual([A]);
    expect(of("moved").map(({ peer, through }) => [peer, through])).toEqual([[A, 5]]);
  });

  test("nothing past settledThrough leaves (S2)", async () => {
    log.fill(10);
    await start([A], 4);
    expect(network.sent.map(({ batchId }) => batchId)).toEqual([4]);
    shipper.settled(7);
    await time.settle();
    expect(network.sent.map(({ batchId }) => batchId)).toEqual([4, 7]);
    shipper.settled(5);
    await time.settle();
    expect(network.sent).toHaveLength(2);
  });

  test("to a peer that is held nothing goes, however it is asked, until it is released (S5)", async () => {
    log.fill(3);
    network.health = () => ({ kind: "failed", reason: "ECONNREFUSED" });
    await start([{ url: A, watermark: 0, prev: 0, isHeld: true }, B]);
    await write(2);
    await time.advance(600_000);
    shipper.drain(1_000);
    await time.settle();
    expect([network.to(A), network.to(B).map(({ batchId }) => batchId)]).toEqual([[], [3, 5]]);
    // It waits for the peer to say who it is, and asks.
    expect(network.healthReads.filter((peer) => peer === A).length).toBeGreaterThan(10);
    expect(await status(A)).toMatchObject({ pending: 5, lastError: "ECONNREFUSED" });
    expect(of("drained")).toEqual([{ kind: "drained", pending: 5 }]);

    shipper.release(B);
    shipper.release(A);
    shipper.release(A);
    await time.settle();
    expect(network.to(A).map(({ batchId }) => batchId)).toEqual([5]);
    await write();
    expect(network.to(A).map(({ batchId }) => batchId)).toEqual([5, 6]);
  });

  test("while a batch is in flight later changes gather for the next one", async () => {
    const gates: (() => void)[] = [];
    network.answers.set(A, () => new Promise((resolve) => gates.push(() => resolve(ACK()))));
    await start();
    await write();
    await write();
    await write();
    expect(network.sent).toHaveLength(1);
    gates.shift()!();
    await time.settle();
    expect(network.sent.map(({ batchId }) => batchId)).toEqual([1, 3]);
  });

  test("a silent peer delays nobody and has one request in flight (S1)", async () => {
    network.answers.set(A, NEVER);
    await start([A, B]);
    for (let n = 0; n < 20; n++) await write();
    expect(network.to(B)).toHaveLength(20);
    expect(network.to(A)).toHaveLength(1);
    expect(network.inFlightMost).toBe(1);
  });

  test("peers at the same place are sent the same bytes", async () => {
    log.fill(10);
    await start([A, B]);
    expect(network.sent[0]!.body).toBe(network.sent[1]!.body);
  });

  test("the next body is made while one is in flight", async () => {
    log.fill(CHANGES_MAX * 3);
    let open = () => {};
    network.answers.set(A, () => new Promise((resolve) => (open = () => resolve(ACK()))));
    await start();
    expect(network.sent).toHaveLength(1);
    expect(source.windows.map(({ after }) => after)).toEqual([0, CHANGES_MAX]);
    const ahead = source.read(source.windows[1]!, log.newest());
    open();
    await time.settle();
    expect(ahead).toMatchObject({ kind: "batch", batch: { body: network.sent[1]!.body } });
  });

  test("a rewritten log is read again", async () => {
    log.fill(CHANGES_MAX * 3);
    let open = () => {};
    network.answers.set(A, () => new Promise((resolve) => (open = () => resolve(ACK()))));
    await start();
    log.db.run(`UPDATE _changes SET row_data = '{"renamed":1}'`);
    shipper.settled(log.newest(), true);
    open();
    await time.settle();
    expect(new TextDecoder().decode(network.sent[1]!.body)).toContain("renamed");
  });

  test("when all peers have all, no body is kept", async () => {
    log.fill(10);
    await start([A, B]);
    expect(source.forgotten).toBeGreaterThan(0);
  });
});

describe("the identity header", () => {
  test("rest is what waits after the batch, and 0 only when nothing does", async () => {
    log.fill(CHANGES_MAX * 2 + 5);
    await start();
    expect(network.sent.map(({ identity }) => identity.rest)).toEqual([CHANGES_MAX + 5, 5, 0]);
  });

  test("rest is 0 when only ids without entries follow", async () => {
    log.fill(3);
    await start([A], 50);
    expect(network.sent[0]!.identity).toEqual({ db: DB, prev: 0, rest: 0 });
  });

  test("rest is not 0 while something waits, even where the count is not to be trusted", async () => {
    log.fill(CHANGES_MAX + 5);
    const count = source.count.bind(source);
    source.count = (after, through, countMax) =>
      countMax > 1 ? 0 : count(after, through, countMax);
    await start([{ url: A, watermark: 0, prev: 0 }], 0);
    shipper.settled(log.newest());
    await time.settle();
    expect(network.sent.map(({ identity }) => identity.rest)).toEqual([1, 0]);
  });

  test("prev does not go back when a change was taken out of turn", async () => {
    network.answers.set(A, () => ({ kind: "refused", reason: "400" }));
    await start();
    await write(40);
    await time.advance(2_000);
    expect(await status()).toMatchObject({ state: "refusing" });
    let takes = false;
    network.answers.set(A, ({ batchId }) => {
      takes ||= batchId >= 30 && batchId < 40;
      return takes ? ACK() : { kind: "refused", reason: "400" };
    });
    await time.advance(5_000);
    const acked = of("moved").map(({ ackedBatchId }) => ackedBatchId!);
    expect(acked.length).toBeGreaterThan(2);
    expect(acked).toEqual([...acked].sort((a, b) => a - b));
    expect(acked[0]).toBeGreaterThanOrEqual(30);
    expect(of("moved")[0]!.through).toBe(0);
    expect(of("moved").at(-1)!.through).toBe(40);
  });

  test("prev is what the peer acknowledged, not what it refused", async () => {
    await start([{ url: A, watermark: 0, prev: 0 }]);
    await write();
    network.answers.set(A, () => ({ kind: "mismatched", reason: "no" }));
    await write();
    await time.advance(2_000);
    network.answers.set(A, ACK);
    await write();
    expect(network.sent.at(-1)!.identity.prev).toBe(1);
    expect(of("moved").at(-1)).toMatchObject({ through: 3, ackedBatchId: 3 });
  });
});

describe("failures", () => {
  test("a peer that goes down is one line, and one when it comes back; nothing is lost", async () => {
    network.answers.set(A, DOWN);
    await start();
    await write(2);
    await time.advance(60_000);
    expect(lines()).toEqual(["warn: peer cannot be reached; its changes are kept"]);
    expect(await status()).toMatchObject({ state: "waiting", pending: 2, lastAcked: 0 });
    expect((await status()).lastError).toBe("ECONNREFUSED");
    network.answers.set(A, ACK);
    const health = network.healthReads.length;
    await time.advance(4_000);
    expect(lines().slice(1)).toEqual(["info: peer answers again"]);
    expect(await status()).toMatchObject({ state: "idle", pending: 0, lastAcked: 2 });
    expect((await status()).lastError).toBeUndefined();
    expect(network.healthReads.length).toBe(health + 1);
    expect(of("moved").some(({ refusal }) => refusal !== undefined)).toBe(false);
  });

  test("a hiccup is no line", async () => {
    let calls = 0;
    network.answers.set(A, () => (calls++ < 4 ? DOWN() : ACK()));
    await start();
    await write();
    await time.advance(10_000);
    expect(calls).toBe(5);
    expect(lines()).toEqual([]);
  });

  test("the refused change is named, with the reason and once in the log of this node", async () => {
    network.answers.set(A, ({ body }) =>
      /"value":(7|9)[,}]/.test(new TextDecoder().decode(body))
        ? { kind: "refused", reason: "400: no" }
        : ACK(),
    );
    await start();
    await write(20);
    await time.advance(5_000);
    const refusals = of("moved").flatMap(({ refusal }) => refusal ?? []);
    expect(refusals).toEqual([
      { changeIds: [7], reason: "400: no", attempts: 5 },
      { changeIds: [9], reason: "400: no", attempts: 5 },
    ]);
    expect(of("log").map(({ fields }) => fields)).toEqual([
      { peer: A, changes: 2, reason: "400: no" },
    ]);
    expect(await status()).toMatchObject({ state: "idle", pending: 0, lastAcked: 20 });
    const through = of("moved").map((message) => message.through);
    expect(through).toEqual([...through].sort((a, b) => a - b));
  });

  test("a wrong acknowledgement sets the whole batch aside after five attempts", async () => {
    const wrong: Verdict = { kind: "mismatched", reason: "acknowledged 9 instead of 3" };
    network.answers.set(A, ({ batchId }) => (batchId === 3 ? wrong : NEVER()));
    await start();
    await write(3);
    await write(2);
    await time.advance(750);
    expect(network.sent.map(({ batchId }) => batchId)).toEqual([3, 3, 3, 3, 3, 5]);
    expect(of("moved")).toEqual([
      {
        kind: "moved",
        peer: A,
        through: 3,
        make: "foreign",
        refusal: { changeIds: [1, 2, 3], reason: "acknowledged 9 instead of 3", attempts: 5 },
      },
    ]);
    expect(await status()).toMatchObject({ lastAcked: 3, pending: 2 });
  });

  test("refusing and not admitted are lines and states, and pass", async () => {
    network.answers.set(A, () => ({ kind: "refused", reason: "400: what is this" }));
    network.answers.set(B, () => ({ kind: "not-admitted", reason: "401", retryAfterMs: 0 }));
    await start([A, B]);
    await write(10);
    await time.advance(30_000);
    expect(await status(A)).toMatchObject({ state: "refusing", pending: 10 });
    expect(await status(B)).toMatchObject({ state: "not-admitted", pending: 10, lastError: "401" });
    expect(lines().sort()).toEqual([
      "warn: peer does not admit this node; its changes are kept",
      "warn: peer refuses all changes; they are kept",
    ]);
    network.answers.clear();
    await time.advance(60_000);
    expect(lines().slice(2).sort()).toEqual([
      "info: peer admits this node again",
      "info: peer takes changes again",
    ]);
    expect(
      of("moved")
        .map(({ peer, through }) => [peer, through])
        .sort(),
    ).toEqual([
      [A, 10],
      [B, 10],
    ]);
  });

  test("a change that no peer takes is set aside without being sent", async () => {
    await start();
    log.db.run(
      `INSERT INTO _changes(op, table_name, row_id, row_data)
       VALUES('INSERT', 'items', 'huge', '"' || printf('%.*c', 140000000, 'x') || '"')`,
    );
    await write();
    expect(network.sent.map(({ batchId }) => batchId)).toEqual([2]);
    expect(of("moved")[0]).toMatchObject({ through: 1, refusal: { changeIds: [1], attempts: 1 } });
  });

  test("a log that is busy is read again soon; one that stays so is two lines, and shows in the status", async () => {
    await start();
    source.failing = true;
    await write();
    source.failing = false;
    await time.advance(50);
    expect(network.sent).toHaveLength(1);
    expect(lines()).toEqual([]);
    source.failing = true;
    await write();
    await time.advance(30_000);
    expect(lines()).toEqual(["error: the change log cannot be read"]);
    expect((await status()).lastError).toStartWith("the change log here cannot be read: ");
    source.failing = false;
    await time.advance(5_000);
    expect((await status()).lastError).toBeUndefined();
    expect(lines().slice(1)).toEqual(["info: the change log can be read again"]);
    expect(network.sent).toHaveLength(2);
  });

  test("a mistake of ours is not taken for a busy file", async () => {
    await start();
    source.read = () => {
      throw new TypeError("undefined is not a function");
    };
    log.fill(1);
    expect(() => shipper.settled(1)).toThrow("undefined is not a function");
  });
});

describe("who the peers are", () => {
  const ours: Reply = { identity: { db: "bb00000000000000" }, serverTimeMs: undefined };

  test("ours name themselves; what only answers like a peer is foreign", async () => {
    await start();
    expect((await status()).make).toBeUndefined();
    network.reply = ours;
    await write();
    expect(await status()).toMatchObject({ make: "ours", dbId: "bb00000000000000" });
    network.reply = FOREIGN;
    await write();
    expect(await status()).toMatchObject({ make: "foreign", dbId: undefined });
  });

  test("what one file acknowledged is not asked of another file that answers in its place", async () => {
    const last = { batchId: 0, hash: "0" };
    network.reply = { identity: { db: "cc00000000000000", last }, serverTimeMs: undefined };
    await start([{ url: A, watermark: 0, prev: 40, dbId: "bb00000000000000" }]);
    const asked = network.healthReads.length;
    log.fill(50);
    await write();
    expect(network.sent.map(({ identity }) => identity.prev)).toEqual([40]);
    expect(of("mark-differs")).toEqual([]);
    // The main thread hears of another file by its /health.
    expect(network.healthReads.length).toBe(asked + 1);
    await write();
    await time.advance(100);
    await write();
    // The first of its own is the second batch: for the first it was told of what was not its.
    expect(network.sent.slice(1).map(({ identity }) => identity.prev)).toEqual([0, 52]);
    expect(of("moved").map(({ dbId }) => dbId)).toEqual(Array(3).fill("cc00000000000000"));
    expect(of("mark-differs").map(({ db, prev }) => [db, prev])).toEqual([
      ["cc00000000000000", 52],
    ]);
  });

  test("what another file has of this one is still compared: this one may have been restored", async () => {
    const last = { batchId: 99, hash: "ff" };
    const db = "cc00000000000000";
    network.reply = { identity: { db, last }, serverTimeMs: undefined };
    await start([{ url: A, watermark: 0, prev: 40, dbId: "bb00000000000000" }]);
    await write();
    expect(of("mark-differs")).toEqual([{ kind: "mark-differs", peer: A, db, prev: 0, last }]);
  });

  test("a mark that is doubted is passed on, also where the last one is as it should be", async () => {
    const db = "cc00000000000000";
    const doubt = { batchId: 3, hash: "ff" };
    const last = { batchId: 40, hash: "0" };
    network.reply = { identity: { db, last, doubt }, serverTimeMs: undefined };
    await start([{ url: A, watermark: 0, prev: 40, dbId: db }]);
    await write();
    expect(of("mark-doubted")).toEqual([{ kind: "mark-doubted", peer: A, db, mark: doubt }]);
    expect(of("mark-differs")).toEqual([]);
  });

  test("a proxy's error page does not make a node of ours foreign", async () => {
    network.reply = ours;
    await start();
    await write();
    network.reply = FOREIGN;
    network.answers.set(A, () => ({ kind: "refused", reason: "400 from a proxy" }));
    await write();
    expect((await status()).make).toBe("ours");
  });

  test("/health is read at the start, again until it answers, and on request", async () => {
    network.health = () => ({ kind: "failed", reason: "ECONNREFUSED" });
    await start();
    await time.advance(5_000);
    const tries = network.healthReads.length;
    expect(tries).toBeGreaterThan(5);
    expect(lines()).toEqual(["warn: peer cannot be reached; its changes are kept"]);
    const health = {
      url: A,
      identity: undefined,
      nodeId: "a1",
      itemCount: 5,
      pendingChanges: 0,
      hub: false,
    };
    network.health = () => ({ kind: "health", health, reply: FOREIGN });
    await time.advance(120_000);
    expect(network.healthReads.length).toBe(tries + 1);
    expect(of("peer-health")).toEqual([{ kind: "peer-health", health }]);
    expect(lines().slice(1)).toEqual(["info: peer answers again"]);
    expect(await status()).toMatchObject({ nodeId: "a1", make: "foreign", lastError: undefined });
    shipper.readHealth([A]);
    shipper.readHealth(["http://nobody"]);
    await time.settle();
    expect(of("peer-health")).toHaveLength(2);
  });

  test("a peer that answered once is not asked again by itself (S3)", async () => {
    await start();
    network.health = () => ({ kind: "failed", reason: "ECONNREFUSED" });
    shipper.readHealth();
    await time.advance(60_000);
    expect(network.healthReads).toHaveLength(2);
    expect(time.waiting).toBe(0);
  });

  test("not more than sixteen are in flight at once: batches need the places", async () => {
    const release: (() => void)[] = [];
    network.health = (peer) =>
      new Promise((resolve) =>
        release.push(() => resolve({ kind: "no-health", reason: peer, reply: FOREIGN })),
      );
    const urls = Array.from({ length: 40 }, (_, n) => `http://peer${n}`);
    await start(urls);
    expect(network.healthReads).toHaveLength(16);
    await write();
    expect(network.sent).toHaveLength(40);
    while (release.length > 0) {
      for (const answer of release.splice(0)) answer();
      await time.settle();
    }
    expect(network.healthReads).toEqual(urls);
  });

  test("one reading of /health is in flight per peer", async () => {
    network.health = () => new Promise(() => {});
    await start();
    shipper.readHealth();
    shipper.readHealth();
    expect(network.healthReads).toEqual([A]);
  });

  test("the clock's offset comes from the Date of replies, and small ones are none", async () => {
    network.reply = { identity: undefined, serverTimeMs: time.nowMs() + 90_000 };
    await start();
    await write();
    expect(await status()).toMatchObject({
      clockOffsetMs: 90_500,
      lastContactMs: expect.any(Number),
    });
    network.reply = { identity: undefined, serverTimeMs: time.nowMs() - 900 };
    await write();
    expect((await status()).clockOffsetMs).toBe(0);
  });
});

describe("the status", () => {
  test("comes at most every 100 ms, and the last word is true", async () => {
    await start();
    posted.length = 0;
    for (let n = 0; n < 50; n++) {
      await write();
      await time.advance(10);
    }
    expect(of("status").length).toBeLessThanOrEqual(6);
    expect(await status()).toMatchObject({ state: "idle", lastAcked: 50, pending: 0 });
  });

  test("pending counts settled changes past the watermark, not ids", async () => {
    network.answers.set(A, NEVER);
    log.fill(3);
    log.add({ changeId: 1_000 });
    await start();
    expect(await status()).toMatchObject({ state: "sending", pending: 4 });
    await write(6);
    expect((await status()).pending).toBe(10);
  });

  test("an idle shipper has no timers, and after stop it is silent (S3, S4)", async () => {
    network.answers.set(B, DOWN);
    await start([A]);
    await write();
    await time.advance(1_000);
    expect(time.waiting).toBe(0);
    shipper.stop();
    await start([A, B]);
    await write();
    expect(time.waiting).toBeGreaterThan(0);
    network.answers.set(A, NEVER);
    await write();
    shipper.stop();
    posted.length = 0;
    shipper.settled(99);
    shipper.readHealth();
    shipper.drain(100);
    await time.advance(60_000);
    expect(posted).toEqual([]);
    expect(time.waiting).toBe(0);
  });
});

describe("draining", () => {
  test("with nothing waiting it is over at once", async () => {
    await start([A, B]);
    shipper.drain(2_000);
    expect(of("drained")).toEqual([{ kind: "drained", pending: 0 }]);
  });

  test("it ends when the last peer has all", async () => {
    log.fill(CHANGES_MAX * 5);
    await start([A, B]);
    shipper.drain(2_000);
    await time.settle();
    expect(of("drained")).toEqual([{ kind: "drained", pending: 0 }]);
    expect(of("moved").filter(({ through }) => through === CHANGES_MAX * 5)).toHaveLength(2);
  });

  test("a pause of our own making is cut short", async () => {
    let down = true;
    network.answers.set(A, () => (down ? DOWN() : ACK()));
    await start();
    await write();
    await time.advance(20_000);
    down = false;
    const before = time.monotonicMs();
    shipper.drain(2_000);
    await time.settle();
    expect(of("drained")).toEqual([{ kind: "drained", pending: 0 }]);
    expect(time.monotonicMs()).toBe(before);
  });

  test("a peer that was down and still is, is not waited for", async () => {
    network.answers.set(A, DOWN);
    await start([A, B]);
    await write(3);
    await time.advance(20_000);
    const attempts = network.to(A).length;
    shipper.drain(2_000);
    await time.settle();
    expect(network.to(A).length).toBe(attempts + 1);
    expect(of("drained")).toEqual([{ kind: "drained", pending: 3 }]);
  });

  test("a peer that asked for time is not waited for", async () => {
    network.answers.set(A, () => ({ ...DOWN(), reason: "503", retryAfterMs: 60_000 }) as Verdict);
    await start();
    await write(3);
    shipper.drain(2_000);
    expect(of("drained")).toEqual([{ kind: "drained", pending: 3 }]);
    expect(network.to(A)).toHaveLength(1);
  });

  test("a silent peer is waited for until the time is over", async () => {
    network.answers.set(A, NEVER);
    await start([A, B]);
    await write(3);
    shipper.drain(2_000);
    await time.advance(1_999);
    expect(of("drained")).toEqual([]);
    await time.advance(1);
    expect(of("drained")).toEqual([{ kind: "drained", pending: 3 }]);
  });

  test("writers that go on do not make it endless", async () => {
    await start();
    network.answers.set(A, async () => {
      // Each answer finds one more change settled.
      shipper.settled(log.fill(1));
      await new Promise<void>((resolve) => time.after(10, resolve));
      return ACK();
    });
    await write();
    shipper.drain(2_000);
    await time.advance(2_000);
    expect(of("drained")).toHaveLength(1);
    expect(of("drained")[0]!.pending).toBeGreaterThan(0);
  });

  test("asked for twice, it is answered once per time", async () => {
    network.answers.set(A, NEVER);
    await start();
    await write();
    shipper.drain(1_000);
    shipper.drain(500);
    await time.advance(3_000);
    expect(of("drained")).toHaveLength(1);
  });
});
