/**
 * Pairs under everything a network and a power cut do: partitions, crashes, lost replies, a side that is
 * away. Whatever was answered to a writer is on both sides in the end, and nothing is dead-lettered.
 */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  available,
  Fleet,
  type Make,
  type Member,
  nextMillisecond,
  settled,
  TEST_MS_MAX,
  until,
} from "./support/fleet.ts";
import type { Wire } from "./support/wire.ts";

setDefaultTimeout(TEST_MS_MAX);

const PAIRS: readonly (readonly [Make, Make])[] = [
  ["ours", "go"],
  ["ours", "node"],
  ["go", "node"],
];

interface WiredPair {
  a: Member;
  b: Member;
  /** The links a to b and b to a. */
  wires: Wire[];
}

/** Two started nodes whose links to each other can be cut. */
async function wiredPair(fleet: Fleet, left: Make, right: Make): Promise<WiredPair> {
  const [a, b] = [fleet.declare(left), fleet.declare(right)];
  const wires = [await fleet.wire(b), await fleet.wire(a)];
  a.peers = [wires[0]?.url ?? ""];
  b.peers = [wires[1]?.url ?? ""];
  await Promise.all([a.start(), b.start()]);
  return { a, b, wires };
}

function setAll(wires: Wire[], mode: Parameters<Wire["set"]>[0]): void {
  for (const wire of wires) wire.set(mode);
}

async function expectNoDeadLetters(members: Member[]): Promise<void> {
  for (const member of members) {
    expect([member.id, (await member.health()).dead_letter]).toEqual([member.id, 0]);
  }
}

describe.each(PAIRS)("%s and %s", (left, right) => {
  const here = test.skipIf(!available(left, right));

  here("split brain: inserts merge, the newer update wins, also over a delete", async () => {
    await using fleet = new Fleet();
    const { a, b, wires } = await wiredPair(fleet, left, right);
    const [shared, deleted, saved] = [
      await a.create("shared", 0),
      await a.create("deleted by both", 0),
      await b.create("saved", 0),
    ];
    await settled([a, b]);
    for (const [first, second] of [
      [a, b],
      [b, a],
    ] as const) {
      setAll(wires, "down");
      await nextMillisecond();
      await first.update(shared, `older, by ${first.id}`, 1);
      await first.remove(saved);
      await first.create(`only on ${first.id}`, 1);
      await nextMillisecond();
      await second.update(shared, `newer, by ${second.id}`, 2);
      await second.update(saved, `saved by ${second.id}`, 2);
      await second.create(`only on ${second.id}`, 1);
      setAll(wires, "pass");
      await settled([a, b]);
      for (const member of [a, b]) {
        expect((await member.item(shared))?.name).toBe(`newer, by ${second.id}`);
        expect((await member.item(saved))?.name).toBe(`saved by ${second.id}`);
      }
    }
    setAll(wires, "down");
    await a.remove(deleted);
    await b.remove(deleted);
    setAll(wires, "pass");
    expect(await settled([a, b])).toHaveLength(6);
    await expectNoDeadLetters([a, b]);
  });

  here("either side is killed again and again while both are written", async () => {
    await using fleet = new Fleet();
    const { a, b } = await wiredPair(fleet, left, right);
    const answered: string[] = [];
    let writing = true;
    const writer = async (member: Member) => {
      for (let i = 0; writing; i++) {
        const id = await member.create(member.id, i).catch(() => undefined); // killed just now
        if (id !== undefined) answered.push(id);
        else await Bun.sleep(5);
      }
    };
    const writers = [writer(a), writer(b)];
    for (const victim of [a, b, a, b]) {
      const before = answered.length;
      await until("traffic", () => answered.length > before + 30);
      await victim.restart();
    }
    writing = false;
    await Promise.all(writers);
    const rows = (await settled([a, b])).join("\n");
    for (const id of answered) expect(rows).toContain(id);
    await expectNoDeadLetters([a, b]);
    for (const member of [a, b]) {
      expect(member.sql("PRAGMA integrity_check")).toEqual([{ integrity_check: "ok" }]);
    }
  });

  here("replies that get lost are answered by sending again", async () => {
    await using fleet = new Fleet();
    const { a, b, wires } = await wiredPair(fleet, left, right);
    const [edited, removed] = [await a.create("edited", 1), await a.create("removed", 2)];
    await settled([a, b]);
    setAll(wires, "lose-replies");
    await a.update(edited, "edited", 3);
    await a.remove(removed);
    await Promise.all([a.createMany(100), b.createMany(100)]);
    await until("lost replies both ways", () => wires.every(({ repliesLost }) => repliesLost >= 3));
    // Everything has arrived; only the senders do not know it.
    await until("all rows", () => [a, b].every((member) => member.content().length === 201));
    expect((await a.health()).pending_changes).toBeGreaterThan(0);
    setAll(wires, "pass");
    expect(await settled([a, b])).toHaveLength(201);
    await expectNoDeadLetters([a, b]);
  });

  here("a side that was down gets everything without a further write", async () => {
    await using fleet = new Fleet();
    const { a, b } = await wiredPair(fleet, left, right);
    const [kept, removed] = [await a.create("kept", 1), await a.create("removed", 2)];
    await settled([a, b]);
    for (const [away, here] of [
      [b, a],
      [a, b],
    ] as const) {
      await away.stop("SIGTERM");
      await nextMillisecond();
      await here.update(kept, `written while ${away.id} was away`, 3);
      await here.createMany(300);
      if (away === b) await here.remove(removed);
      // Past the five attempts, so that it is the next round that brings the rows.
      await Bun.sleep(2_000);
      expect((await here.health()).pending_changes).toBeGreaterThan(300);
      await away.start();
      await settled([a, b]);
      expect((await away.item(kept))?.name).toBe(`written while ${away.id} was away`);
    }
    expect(a.content()).toHaveLength(601);
    await expectNoDeadLetters([a, b]);
  });

  here("10,000 rows each way at once through the batch endpoint", async () => {
    await using fleet = new Fleet();
    const { a, b } = await wiredPair(fleet, left, right);
    await Promise.all([a.createMany(10_000), b.createMany(10_000)]);
    expect(await settled([a, b], { limitMs: 30_000 })).toHaveLength(20_000);
    await expectNoDeadLetters([a, b]);
  });
});

describe.each(PAIRS.slice(0, 2))("%s and %s, in bulk", (left, right) => {
  test.skipIf(!available(left, right)).each(["out", "in"])("100,000 rows %s", async (direction) => {
    await using fleet = new Fleet();
    const members = await fleet.mesh(left, right);
    const writer = members[direction === "out" ? 0 : 1];
    await writer?.createMany(100_000);
    expect(await settled(members, { limitMs: 45_000 })).toHaveLength(100_000);
    await expectNoDeadLetters(members);
  });
});

test.skipIf(!available("ours", "go", "node"))(
  "a peer that never answers does not hold up ours",
  async () => {
    await using fleet = new Fleet();
    const [ours, go, node] = [fleet.declare("ours"), fleet.declare("go"), fleet.declare("node")];
    const silent = await fleet.wire(go);
    silent.set("hang");
    ours.peers = [silent.url, node.url];
    await Promise.all([ours.start(), go.start(), node.start()]);
    for (let i = 0; i < 10; i++) {
      const id = await ours.create("not held up", i);
      await until("the row on the peer that answers", () => node.item(id), 2_000);
    }
    expect(go.content()).toEqual([]);
    silent.set("pass");
    expect(await settled([ours, go, node])).toHaveLength(10);
  },
);
