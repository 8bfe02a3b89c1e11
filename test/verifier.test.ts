/** When a node compares itself with its neighbours, and what it says of it; neighbours are scripted. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import type { LogFields, Logger } from "../lib/base/log.ts";
import type { PeerStatus } from "../lib/shipper/messages.ts";
import { Verifier } from "../lib/verifier.ts";
import { VirtualTime } from "./shipper/virtual-time.ts";

const DAY_MS = 24 * 3_600_000;

/** A node as far as comparing needs one: no tables, nothing in flight. */
class FakeNode {
  readonly id: string;
  digests = 0;
  isBroken = false;
  tables: readonly unknown[] = [];
  notSynced: readonly unknown[] = [];
  readonly #server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: (request) => {
      const { pathname } = new URL(request.url);
      if (pathname === "/health")
        return Response.json({
          node_id: this.id,
          last_change_id: 0,
          peers: [],
          tables: { not_synced: this.notSynced },
        });
      this.digests++;
      return this.isBroken
        ? Response.json({ error: "broken" }, { status: 500 })
        : Response.json({ snapshot: "s", tables: this.tables });
    },
  });

  constructor(id: string) {
    this.id = id;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#server.port}`;
  }

  stop(): Promise<void> {
    return this.#server.stop(true);
  }
}

let time: VirtualTime;
let own: FakeNode;
let other: FakeNode;
let kept: Map<string, string>;
let lines: string[];
let neighbours: PeerStatus[];
let isBusy: boolean;

beforeEach(() => {
  time = new VirtualTime();
  own = new FakeNode("a");
  other = new FakeNode("b");
  kept = new Map();
  lines = [];
  isBusy = false;
  neighbours = [neighbour(other.url, "b")];
});

afterEach(async () => {
  await Promise.all([own.stop(), other.stop()]);
});

function neighbour(url: string, dbId: string, over: Partial<PeerStatus> = {}): PeerStatus {
  const unknown = { nodeId: "b", lastError: undefined, lastContactMs: 1, clockOffsetMs: 0 };
  return { url, dbId, state: "idle", make: "ours", lastAcked: 0, pending: 0, ...unknown, ...over };
}

function verifier(everyMs = DAY_MS): Verifier {
  const note = (level: string) => (message: string, fields?: LogFields) =>
    void lines.push(
      `${level}: ${message} ${fields?.["error"] ?? fields?.["missing"] ?? ""}`.trim(),
    );
  const log = {
    info: note("info"),
    warn: note("warn"),
    log: (level: string, message: string, fields?: LogFields) => note(level)(message, fields),
  } as unknown as Logger;
  return new Verifier({
    everyMs,
    nodeId: "a",
    ownUrl: own.url,
    neighbours: () => neighbours,
    isBusy: () => isBusy,
    store: {
      dbId: "a",
      keptSetting: (key) => kept.get(key),
      keepSetting: async (key, value) => void kept.set(key, value),
    },
    log,
    clock: time,
    timers: time,
    random: { next: () => 0.5, uuid: () => "", hex: () => "" },
  });
}

/** The node's tick, once an hour, and time for real requests. */
async function pass(one: Verifier, hours: number): Promise<void> {
  for (let hour = 0; hour < hours; hour++) {
    await one.look();
    await settle();
    await time.advance(3_600_000);
  }
  await one.look();
  await settle();
}

async function settle(): Promise<void> {
  const before = lines.length;
  for (let turn = 0; turn < 50 && lines.length === before; turn++) await Bun.sleep(1);
}

async function until(isSo: () => boolean): Promise<void> {
  for (let turn = 0; turn < 5_000 && !isSo(); turn++) await Bun.sleep(1);
}

test("once a day, beginning at a time left to chance, which a restart keeps", async () => {
  const first = verifier();
  await pass(first, 11);
  expect(own.digests).toBe(0);
  const again = verifier();
  await pass(again, 2);
  expect([own.digests, other.digests]).toEqual([1, 1]);
  expect(lines).toEqual(["info: compared with the neighbours: all rows are equal"]);
  expect(again.report).toMatchObject({
    neighbours: 1,
    differing: 0,
    repaired: 0,
    repairedInAll: 0,
  });
  await pass(again, 20);
  expect(other.digests).toBe(1);
  await pass(again, 5);
  expect(other.digests).toBe(2);
});

test("soon after something happened, and then with neighbours whose turn it would not be", async () => {
  neighbours = [neighbour(other.url, "0")];
  const one = verifier();
  await pass(one, 30);
  expect(other.digests).toBe(0);
  one.soon();
  await pass(one, 1);
  expect(other.digests).toBe(1);
});

test("not with nodes of other makes, nor with those in trouble; with nobody there is nothing to say", async () => {
  neighbours = [
    neighbour(other.url, "b", { make: "foreign" }),
    neighbour(other.url, "b", { lastError: "refused" }),
  ];
  const one = verifier();
  one.soon();
  await pass(one, 2);
  expect([other.digests, lines]).toEqual([0, []]);
});

test("tables and columns that not all have are named, in the log and in what /health tells", async () => {
  const table = { table: "items", rows: 0, hash: "0000000000000000", tombstones: 0 };
  own.tables = [
    { ...table, columns: ["name", "updated_at"] },
    { ...table, table: "notes", columns: ["updated_at"] },
  ];
  other.tables = [{ ...table, columns: ["updated_at"] }];
  other.notSynced = [{ name: "Notes", reason: "it has no column id" }];
  const one = verifier();
  one.soon();
  await time.advance(2_000);
  await one.look();
  await until(() => lines.length === 2);
  const missing = ["items.name is only on a", "notes is not synced on b: it has no column id"];
  expect(lines).toEqual([
    "info: compared with the neighbours: all rows are equal",
    `warn: not all neighbours have the same tables and columns; the rest was compared ${missing.join("; ")}`,
  ]);
  expect(one.report?.notCompared).toEqual(missing);
});

test("a node under two addresses is compared once, and this very node not at all", async () => {
  neighbours = [
    neighbour("http://127.0.0.1:1", "b"),
    neighbour(other.url, "b"),
    neighbour(own.url, "a"),
  ];
  const one = verifier();
  one.soon();
  await pass(one, 1);
  expect([own.digests, other.digests]).toEqual([1, 1]);
  expect(one.report).toMatchObject({ neighbours: 1 });
});

test("a neighbour that was away when all were compared is compared when it is back", async () => {
  const third = new FakeNode("c");
  neighbours = [
    neighbour(other.url, "b"),
    neighbour(third.url, "0", { lastError: "refused" }),
    neighbour("http://127.0.0.1:1", "z", { make: "foreign", lastError: "refused" }),
  ];
  const one = verifier();
  one.soon();
  await pass(one, 1);
  expect([other.digests, third.digests]).toEqual([1, 0]);
  neighbours = [neighbour(other.url, "b"), neighbour(third.url, "0")];
  const again = verifier();
  await pass(again, 1);
  expect(third.digests).toBe(1);
  await pass(again, 2);
  expect(third.digests).toBe(1);
  await third.stop();
});

test("what it was asked for is not forgotten by a restart", async () => {
  neighbours = [neighbour(other.url, "0")];
  verifier().soon();
  await pass(verifier(), 1);
  expect(other.digests).toBe(1);
});

test("a neighbour that fails is one line, and tried again, less and less often", async () => {
  other.isBroken = true;
  const one = verifier();
  one.soon();
  await time.advance(2_000);
  await pass(one, 0);
  expect(lines).toEqual([
    `warn: could not compare with the neighbours; tried again later ComparisonError: ${other.url}: broken`,
  ]);
  const digests: number[] = [];
  for (let minute = 0; minute < 8; minute++) {
    await time.advance(60_000);
    await one.look();
    await settle();
    digests.push(other.digests);
  }
  expect(digests).toEqual([2, 2, 3, 3, 3, 3, 4, 4]);
  other.isBroken = false;
  await pass(one, 2);
  expect(lines.at(-1)).toBe("info: compared with the neighbours: all rows are equal");
});

test("0: never, whatever happens; and not while the node stops", async () => {
  const never = verifier(0);
  never.soon();
  await pass(never, 30);
  const stopping = verifier();
  stopping.soon();
  stopping.stop();
  await pass(stopping, 30);
  expect(other.digests).toBe(0);
});

test("what is asked for while rows are written waits for a quiet second, but not for ever", async () => {
  const one = verifier();
  one.soon();
  isBusy = true;
  await time.advance(2_000);
  await one.look();
  await settle();
  expect(own.digests).toBe(0);
  await time.advance(59_000);
  await one.look();
  await settle();
  expect(own.digests).toBe(0);
  isBusy = false;
  await one.look();
  await until(() => own.digests === 1);
  await until(() => lines.length === 1);
  isBusy = true;
  one.soon();
  await time.advance(2_000);
  await one.look();
  await time.advance(60_000);
  await one.look();
  await until(() => own.digests === 2);
  expect(own.digests).toBe(2);
});

test("a wait that ended since its neighbour went away again counts for nothing later", async () => {
  const away = [neighbour(other.url, "b", { lastError: "refused" })];
  const back = neighbours;
  neighbours = away;
  const one = verifier();
  one.soon();
  await pass(one, 1);
  isBusy = true;
  neighbours = back;
  await one.look();
  neighbours = away;
  await time.advance(3_600_000);
  await one.look();
  neighbours = back;
  await one.look();
  await settle();
  expect(own.digests).toBe(0);
  await time.advance(60_000);
  await one.look();
  await until(() => own.digests === 1);
  expect(own.digests).toBe(1);
});
