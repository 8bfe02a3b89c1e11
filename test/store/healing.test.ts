/** Pulling foreign peers to the common winner (DESIGN.md, "Healing"). */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { parseBatch } from "../../lib/protocol/batch.ts";
import { LegacyModel } from "../support/legacy-model.ts";
import { Mesh } from "../support/mesh.ts";
import {
  insert,
  itemRow,
  OURS,
  remove,
  removeNodeFiles,
  type Send,
  T,
  type TestChange,
  TestNode,
  update,
  VirtualTime,
} from "../support/receive-fixture.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);
afterAll(removeNodeFiles);

const MINUTE = 60_000;
const GO: Send = { identity: null, from: "go" };
const JS: Send = { identity: null, from: "js" };
const OTHER: Send = { identity: { db: "ffeeddccbbaa99887766554433221100" }, from: "c" };

const many = (count: number, make: (id: string) => TestChange) =>
  Array.from({ length: count }, (_, i) => make(`k${i}`));

/** What was announced since, as op, id, name and version; the log is empty afterwards. */
function announced(node: TestNode): string[] {
  const entries = node.log().map(({ op, row_id, row_data }) => {
    const row = JSON.parse(row_data) as { name?: string; updated_at: number };
    return `${op} ${row_id} ${row.name ?? "-"} +${row.updated_at - T}`;
  });
  node.db.run("DELETE FROM _changes");
  return entries;
}

/** Lets `ms` pass and says what was announced by itself. */
async function after(node: TestNode, ms: number): Promise<string[]> {
  node.time.pass(ms);
  await node.tick();
  return announced(node);
}

const contested = (node: TestNode) => node.count("SELECT count(*) AS n FROM _hooksync_contested");

describe("rule 1: a foreign change that loses is answered", () => {
  test.each([1, 30])("by the row that stands here (%i at once)", async (count) => {
    const node = new TestNode();
    await node.sync(many(count, (id) => insert(id, { name: "ours", updated_at: T + 5 })));
    expect(
      await node.sync(
        many(count, (id) => update(id, { name: "theirs" })),
        GO,
      ),
    ).toBe(0);
    expect(announced(node)).toEqual(
      Array.from({ length: count }, (_, i) => `UPDATE k${i} ours +5`),
    );
    await node.close();
  });

  test("a delete below the row, too", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { name: "ours", updated_at: T + 5 })]);
    await node.sync([remove("a")], GO);
    expect(announced(node)).toEqual(["UPDATE a ours +5"]);
    await node.close();
  });

  test.each([1, 30])(
    "a write at or below a tombstone: by the DELETE, carrying the refused row (%i at once)",
    async (count) => {
      const node = new TestNode();
      await node.sync(many(count, (id) => remove(id, { updated_at: T + 5 })));
      for (const version of [T, T + 5]) {
        node.time.pass(2_000);
        await node.sync(
          many(count, (id) => insert(id, { name: "theirs", updated_at: version })),
          GO,
        );
        expect(announced(node)).toEqual(
          Array.from({ length: count }, (_, i) => `DELETE k${i} theirs +5`),
        );
      }
      await node.close();
    },
  );

  test("a delete below the tombstone, too", async () => {
    const node = new TestNode();
    await node.sync([remove("a", { updated_at: T + 5 })]);
    await node.sync([remove("a", { name: "theirs" })], GO);
    expect(announced(node)).toEqual(["DELETE a theirs +5"]);
    await node.close();
  });

  test("not what comes from ours, also with a foreign peer about", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { updated_at: T + 5 }), remove("b", { updated_at: T + 5 })]);
    await node.sync([], GO);
    await node.sync([
      update("a"),
      remove("a"),
      insert("b"),
      remove("b"),
      ...many(20, (id) => insert(id)),
    ]);
    await node.sync(many(20, (id) => update(id, { updated_at: T - 1 })));
    expect([announced(node), contested(node)]).toEqual([[], 0]);
    await node.close();
  });
});

describe("rule 2: a tie of different contents is announced one version above", () => {
  const low = { name: "a" };
  const high = { name: "b" };

  test.each<[string, Record<string, unknown>, Record<string, unknown>, Send]>([
    ["a foreign change wins", low, high, GO],
    ["a foreign change loses", high, low, GO],
    ["a change of ours wins, a foreign peer being about", low, high, {}],
    ["a change of ours loses, a foreign peer being about", high, low, {}],
  ])("%s", async (_, stored, incoming, send) => {
    const node = new TestNode();
    await node.sync([], GO);
    await node.sync([insert("t", stored)], OTHER);
    announced(node);
    await node.sync([insert("t", incoming)], send);
    expect(announced(node)).toEqual(["UPDATE t b +1"]);
    expect(node.row<{ updated_at: number }>("t")?.updated_at).toBe(T + 1);
    await node.close();
  });

  test("one that differs in digits only is none", async () => {
    const node = new TestNode();
    await node.sync([insert("t", { value: 5 })], OTHER);
    await node.sync([JSON.stringify(insert("t")).replace('"value":1', '"value":5.0')], GO);
    expect([announced(node), contested(node)]).toEqual([[], 0]);
    await node.close();
  });

  test("between ours alone nothing is announced and the version stays", async () => {
    const node = new TestNode();
    await node.sync([insert("t", low)], OTHER);
    await node.sync([insert("t", high)]);
    expect([announced(node), node.row<{ updated_at: number }>("t")?.updated_at]).toEqual([[], T]);
    await node.close();
  });
});

describe("rule 3: contested rows are announced again", () => {
  const contestedRow = async () => {
    const node = new TestNode();
    await node.sync([insert("a", { name: "first" })], GO);
    await node.sync([update("a", { name: "second", updated_at: T + 1 })], JS);
    expect(announced(node)).toEqual([]);
    return node;
  };

  test("after a minute, ten, an hour, then daily", async () => {
    const node = await contestedRow();
    const pauses: number[] = [];
    let since = node.time.ms;
    for (let minutes = 0; minutes < 3 * 24 * 60; minutes++) {
      if ((await after(node, MINUTE)).length === 0) continue;
      pauses.push((node.time.ms - since) / MINUTE);
      since = node.time.ms;
    }
    expect(pauses).toEqual([1, 10, 60, 24 * 60, 24 * 60]);
    await node.close();
  });

  test("with the row as it stands then, or its delete", async () => {
    const node = await contestedRow();
    await node.sync([update("a", { name: "third", updated_at: T + 2 })], JS);
    expect(await after(node, MINUTE)).toEqual(["UPDATE a third +2"]);
    await node.sync([remove("a", { updated_at: T + 3 })], JS);
    expect(await after(node, MINUTE)).toEqual(["DELETE a - +3"]);
    await node.close();
  });

  test("once more after every foreign peer was quiet, and then no longer", async () => {
    const node = await contestedRow();
    expect(await after(node, MINUTE)).toEqual(["UPDATE a second +1"]);
    await node.store.endRepeats(node.time.ms);
    expect(await after(node, MINUTE)).toEqual(["UPDATE a second +1"]);
    expect(contested(node)).toBe(0);
    expect(await after(node, 48 * 60 * MINUTE)).toEqual([]);
    await node.close();
  });

  test("so is a delete of a row that a foreign peer was sent by a fill meanwhile", async () => {
    const node = new TestNode();
    const url = "http://go";
    const health = { url, identity: undefined, nodeId: "go", itemCount: 1, pendingChanges: 0 };
    const fillAndTake = async () => {
      await node.store.fill(url, "asked");
      for (let n = 0; n < 5; n++) {
        const noted = node.store.recordMoves([{ peer: url, through: node.store.settledThrough }]);
        node.time.pass(50);
        await noted;
      }
      expect(announced(node)).toEqual([]);
    };
    node.store.configurePeers([url], (same) => same);
    await node.store.learnPeer({ ...health, hub: false });
    await node.sync([insert("a"), insert("b")], OTHER);
    await fillAndTake();
    // The author may have told the foreign peer of its delete before that.
    await node.sync([remove("a")], OTHER);
    expect(await after(node, MINUTE)).toEqual(["DELETE a - +0"]);
    await node.store.endRepeats(node.time.ms);
    expect(await after(node, MINUTE)).toEqual(["DELETE a - +0"]);
    // Everybody was quiet since.
    await node.sync([remove("b")], OTHER);
    expect([await after(node, MINUTE), contested(node)]).toEqual([[], 0]);
    await node.close();
  });

  test("quiet from before it was contested ends nothing", async () => {
    const node = await contestedRow();
    await node.store.endRepeats(node.time.ms);
    expect(await after(node, MINUTE)).toEqual(["UPDATE a second +1"]);
    expect(await after(node, 10 * MINUTE)).toEqual(["UPDATE a second +1"]);
    await node.close();
  });

  test.each<[string, Send[], boolean]>([
    ["two foreign nodes", [GO, JS], true],
    ["a foreign node and one of ours", [GO, {}], true],
    ["one of ours and a foreign node", [{}, GO], true],
    ["the same foreign node twice", [GO, GO], false],
    ["two of ours", [{}, OTHER], false],
    [
      "a hub twice: each change through it is an origin of its own",
      [
        { identity: null, from: "hub", url: "http://hub" },
        { identity: null, from: "hub", url: "http://hub" },
      ],
      true,
    ],
  ])("the last two changes came from %s", async (_, [first, second], isContested) => {
    for (const count of [1, 30]) {
      const node = new TestNode();
      await node.sync([], GO);
      await node.sync(
        many(count, (id) => insert(id)),
        first,
      );
      node.time.pass(30 * 24 * 60 * MINUTE);
      await node.sync(
        many(count, (id) => update(id, { updated_at: T + 1 })),
        second,
      );
      expect(contested(node)).toBe(isContested ? count : 0);
      await node.close();
    }
  });

  test("however long apart, until a quiet came between", async () => {
    const node = new TestNode();
    await node.sync([insert("a")], GO);
    node.time.pass(1);
    await node.store.endRepeats(node.time.ms);
    await node.sync([update("a", { updated_at: T + 1 })], JS);
    expect(contested(node)).toBe(0);
    await node.close();
  });

  test.each([1, 30])("an exact repeat contests nothing (%i at once)", async (count) => {
    const node = new TestNode();
    await node.sync(
      many(count, (id) => insert(id)),
      GO,
    );
    await node.sync(
      many(count, (id) => insert(id)),
      JS,
    );
    await node.sync(many(count, (id) => insert(id)));
    expect([contested(node), announced(node)]).toEqual([0, []]);
    await node.close();
  });

  test.each<[string, Send, Send, boolean]>([
    ["ours over a foreign row", GO, {}, true],
    ["foreign over one of ours", {}, GO, true],
    ["ours over another of ours, a foreign peer being about", OTHER, {}, true],
    ["of the one that wrote the row", GO, GO, false],
  ])(
    "a tombstone whose delete and last change had two origins: %s",
    async (_, first, second, isContested) => {
      for (const count of [1, 30]) {
        const node = new TestNode();
        await node.sync([], JS);
        await node.sync(
          many(count, (id) => insert(id)),
          first,
        );
        await node.sync(
          many(count, (id) => remove(id)),
          second,
        );
        expect(contested(node)).toBe(isContested ? count : 0);
        await node.close();
      }
    },
  );

  test("a local write is an origin, too", async () => {
    const node = new TestNode();
    await node.sync([insert("a")], GO);
    await node.write("UPDATE items SET name = 'mine' WHERE id = 'a'");
    expect(contested(node)).toBe(1);
    await node.close();
  });

  test("what waited parked and applied later", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { updated_at: T + 120 * MINUTE })], GO);
    node.time.pass(60 * MINUTE);
    await node.tick();
    expect([node.row("a") !== null, contested(node)]).toEqual([true, 1]);
    await node.close();
  });
});

describe("rule 4: at most one announcement per row per second", () => {
  test("one held back goes out when the second is over, with the row as it is then", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { name: "ours", updated_at: T + 50 })]);
    for (let i = 0; i < 20; i++) {
      await node.sync([update("a", { updated_at: T + i })], GO);
      node.time.pass(10);
    }
    expect(announced(node)).toEqual(["UPDATE a ours +50"]);
    await node.sync([update("a", { name: "newer", updated_at: T + 60 })]);
    expect(await after(node, 700)).toEqual([]);
    expect(await after(node, 200)).toEqual(["UPDATE a newer +60"]);
    expect(await after(node, 5_000)).toEqual([]);
    // The schedule goes on from there.
    expect(await after(node, MINUTE)).toEqual(["UPDATE a newer +60"]);
    await node.close();
  });

  test("contesting a row that is held back does not hold it longer", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { name: "ours", updated_at: T + 50 })], JS);
    await node.sync([update("a")], GO);
    await node.sync([update("a")], GO);
    await node.sync([update("a", { name: "new", updated_at: T + 51 })], GO);
    announced(node);
    expect(await after(node, 1_000)).toEqual(["UPDATE a new +51"]);
    expect(await after(node, MINUTE)).toEqual(["UPDATE a new +51"]);
    await node.close();
  });

  test("ties, answers and deletes of one row share the second", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { name: "b" })], GO);
    await node.sync([insert("a", { name: "a" })], JS);
    await node.sync([insert("a", { name: "c" })], JS);
    expect(announced(node)).toEqual(["UPDATE a b +1"]);
    await node.sync([remove("a", { updated_at: T + 9 })], GO);
    await node.sync([insert("a", { name: "d" })], JS);
    expect(announced(node)).toEqual([]);
    expect(await after(node, 1_000)).toEqual(["DELETE a - +9"]);
    await node.close();
  });
});

describe("among ours alone", () => {
  test("nothing is noted, announced or remembered, whatever happens", async () => {
    await forSeeds(5, async (random) => {
      const time = new VirtualTime();
      const nodes = Array.from({ length: 3 }, () => new TestNode({ time }));
      const mesh = new Mesh(nodes, random);
      let written = 0;
      for (let step = 0; step < 60; step++) {
        const at = random.below(3);
        time.pass(random.below(2));
        const id = random.pick(["p", "q"]);
        const before = nodes[at]!.count("SELECT count(*) AS n FROM _changes");
        if (random.chance(0.4)) {
          await nodes[at]!.write(
            `INSERT OR REPLACE INTO items(id, name, updated_at) VALUES ('${id}', '${random.below(3)}', ${time.ms})`,
          );
          written++;
        } else {
          await mesh.deliverSome(at);
          expect(nodes[at]!.count("SELECT count(*) AS n FROM _changes")).toBe(before);
        }
        mesh.collect(at);
      }
      await mesh.deliverAll();
      const logged = nodes.map((node) => node.count("SELECT count(*) AS n FROM _changes"));
      expect(logged.reduce((sum, n) => sum + n)).toBe(written);
      for (const node of nodes) {
        time.pass(10 * MINUTE);
        await node.tick();
        expect(
          node.count(
            "SELECT (SELECT count(*) FROM _hooksync_contested) + (SELECT count(*) FROM _hooksync_origins) AS n",
          ),
        ).toBe(0);
        expect(node.rows()).toEqual(nodes[0]!.rows());
      }
      await mesh.close();
    });
  });
});

// ── Meshes of ours and others ─────────────────────────────────────────────────────────────────────

interface Post {
  readonly from: number;
  readonly change: string;
}

/** Ours first, then the others; everyone sends everyone else what it logged. */
class MixedMesh {
  readonly ours: readonly TestNode[];
  readonly legacy: readonly LegacyModel[];
  readonly mailboxes: Post[][];
  readonly #random: Seeded;
  readonly #collected: number[];

  constructor(ours: readonly TestNode[], legacy: readonly LegacyModel[], random: Seeded) {
    this.ours = ours;
    this.legacy = legacy;
    this.#random = random;
    this.mailboxes = Array.from({ length: ours.length + legacy.length }, () => []);
    this.#collected = this.mailboxes.map(() => 0);
  }

  get isQuiet(): boolean {
    return this.mailboxes.every((box) => box.length === 0);
  }

  collect(at: number): void {
    for (const change of this.#logged(at)) {
      for (const [to, box] of this.mailboxes.entries())
        if (to !== at) box.push({ from: at, change });
    }
  }

  #logged(at: number): string[] {
    const node = this.ours[at];
    if (!node) {
      const log = this.legacy[at - this.ours.length]!.log.splice(0);
      return log.map((entry) => LegacyModel.format(entry));
    }
    const batch = node.batchAfter(this.#collected[at]!);
    if (!batch) return [];
    this.#collected[at] = batch.through;
    return parseBatch(batch.body).changes.map((change) => change.source());
  }

  /** One change, of any sender; each link keeps its order, and may send again what was not answered. */
  async deliverOne(to: number): Promise<void> {
    const box = this.mailboxes[to]!;
    if (box.length === 0) return;
    const sent = this.#random.pick(box).from;
    const i = box.findIndex((post) => post.from === sent);
    const { from, change } = box[i]!;
    if (!this.#random.chance(0.1)) box.splice(i, 1);
    const node = this.ours[to];
    if (!node) {
      this.legacy[to - this.ours.length]!.receive(change);
      return;
    }
    const sender = this.ours[from];
    await node.sync([change], {
      from: `node-${from}`,
      identity: sender ? { db: sender.store.dbId } : null,
    });
    this.collect(to);
  }

  async deliverAll(): Promise<void> {
    for (let rounds = 0; !this.isQuiet; rounds++) {
      if (rounds > 20_000) throw new Error("the mesh does not come to rest");
      const waiting = this.mailboxes.flatMap((box, at) => (box.length > 0 ? [at] : []));
      await this.deliverOne(this.#random.pick(waiting));
    }
  }

  contents(): string[][] {
    const ours = this.ours.map((node) =>
      node.db
        .query<{ row: string }, []>(
          "SELECT json_array(id, name, value, updated_at) AS row FROM items ORDER BY 1",
        )
        .all()
        .map(({ row }) => JSON.stringify(JSON.parse(row)))
        .sort(),
    );
    return [...ours, ...this.legacy.map((model) => model.content())];
  }
}

test("meshes of ours and others end equal: ties, slow clocks, deletes and any order of arrival", async () => {
  await forSeeds(20, async (random) => {
    const time = new VirtualTime();
    const ours = Array.from({ length: 1 + random.below(2) }, () => new TestNode({ time }));
    const legacy = Array.from({ length: 1 + random.below(3) }, () => new LegacyModel());
    const mesh = new MixedMesh(ours, legacy, random);
    const lateness = legacy.map(() => random.pick([0, 0, 2, 50]));
    for (let step = 10 + random.below(40); step > 0; step--) {
      const at = random.below(mesh.mailboxes.length);
      time.pass(random.pick([0, 1, 1, 700]));
      const id = random.pick(["p", "q"]);
      const model = legacy[at - ours.length];
      if (random.chance(0.5)) await mesh.deliverOne(at);
      else if (model) {
        const stamp = time.ms - lateness[at - ours.length]!;
        if (random.chance(0.25)) model.delete(id);
        else {
          const cells = { name: random.pick(["a", "b"]), value: random.pick([1, 2 ** 53]) };
          model.put({ ...itemRow(id), ...cells, updated_at: stamp } as never);
        }
      } else if (random.chance(0.25)) await ours[at]!.write(`DELETE FROM items WHERE id = '${id}'`);
      else {
        const value = random.pick(["1", "9007199254740993"]);
        await ours[at]!.write(
          `INSERT OR REPLACE INTO items VALUES ('${id}', '${random.pick(["a", "b"])}', ${value}, ${T - 1_000}, ${time.ms}, 'x')`,
        );
      }
      for (const node of random.chance(0.2) ? ours : []) await node.tick();
      for (const member of mesh.mailboxes.keys()) mesh.collect(member);
    }
    // The schedule, with everyone quiet from the first minute on.
    for (let minutes = 0; minutes < 30; minutes++) {
      await mesh.deliverAll();
      time.pass(MINUTE);
      for (const [at, node] of ours.entries()) {
        await node.tick();
        mesh.collect(at);
      }
      await mesh.deliverAll();
      for (const node of ours) await node.store.endRepeats(time.ms - 1);
      if (minutes > 3 && ours.every((node) => contested(node) === 0)) break;
    }
    const [first, ...others] = mesh.contents();
    for (const other of others) expect(other).toEqual(first!);
    for (const node of ours) {
      expect(contested(node)).toBe(0);
      await node.close();
    }
  });
});

test("a row that is hot behind a hub makes no storm", async () => {
  const node = new TestNode();
  const hub: Send = { identity: null, from: "hub", url: "http://hub" };
  let messages = 0;
  for (let i = 0; i < 500; i++) {
    await node.sync([update("hot", { name: `n${i % 7}`, updated_at: T + Math.floor(i / 5) })], hub);
    node.time.pass(20);
    await node.tick();
    messages += announced(node).length;
  }
  // 10 s of virtual time.
  expect(messages).toBeLessThanOrEqual(11);
  await node.close();
});

test("what a foreign peer got before it was heard of is remembered when it leaves the log", async () => {
  const node = new TestNode();
  const peer = "http://go";
  node.store.configurePeers([peer], (same) => same);
  await node.write(`INSERT INTO items(id, updated_at) VALUES ('a', ${T})`);
  const through = node.store.settledThrough;
  const noted = node.store.recordMoves([{ peer, through, make: "foreign", ackedBatchId: through }]);
  node.time.pass(50);
  await noted;
  expect(announced(node)).toEqual([]);
  // It may have deleted that row before it got ours.
  await node.sync([remove("a")], GO);
  expect(await after(node, MINUTE)).toEqual(["DELETE a - +0"]);
  await node.close();
});

test("who is foreign is learned from what comes in, and remembered over a restart", async () => {
  const first = new TestNode();
  await first.sync([insert("a", { updated_at: T + 5 })], { identity: OURS });
  expect(first.store.healing.isActive).toBe(false);
  await first.sync([], GO);
  await first.close();
  const node = new TestNode({ path: first.path });
  expect(node.store.healing.isActive).toBe(true);
  await node.close();
});
