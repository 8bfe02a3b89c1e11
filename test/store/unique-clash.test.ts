/** Rows that clash on a unique key besides `id`: waiting, trading places, and the decision. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { compareRivals, type Rival } from "../../lib/store/unique-clash.ts";
import { Mesh } from "../support/mesh.ts";
import {
  removeNodeFiles,
  T,
  type TestChange,
  TestNode,
  VirtualTime,
} from "../support/receive-fixture.ts";
import { forSeeds, permutations, type Seeded } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

const SCHEMA =
  "CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT UNIQUE, a INTEGER, updated_at INTEGER);";

function row(id: string, email: string | null, version = T, a = 0): TestChange {
  return { op: "UPDATE", table: "t", row: { id, email, a, updated_at: version }, old_id: null };
}

function removal(id: string, email: string, version = T): TestChange {
  return { op: "DELETE", table: "t", row: { id, email, a: 0, updated_at: version }, old_id: id };
}

const owners = (node: TestNode) =>
  node.db
    .query<{ o: string }, []>("SELECT id || '=' || coalesce(email, 'NULL') AS o FROM t ORDER BY id")
    .all()
    .map(({ o }) => o);

async function waitAMinute(node: TestNode): Promise<void> {
  for (let i = 0; i < 13; i++) {
    node.time.pass(5_000);
    await node.tick();
  }
}

describe("what clashes on a key", () => {
  const low = "low TEXT AS (lower(email)) VIRTUAL";
  const one = ["A@x", 1] as const;
  test.each([
    ["a generated column", `${low} UNIQUE`, "", one, ["a@X", 2], true],
    ["a generated column", `${low} UNIQUE`, "", one, ["b@X", 1], false],
    ["a generated column and a stored one", `${low}, UNIQUE(a, low)`, "", one, ["a@x", 1], true],
    ["a generated column and a stored one", `${low}, UNIQUE(a, low)`, "", one, ["b@x", 1], false],
    ["two of a generated one", `${low}, two AS (low || a) UNIQUE`, "", one, ["a@x", 1], true],
    ["two of a generated one", `${low}, two AS (low || a) UNIQUE`, "", one, ["a@x", 2], false],
    ["an expression", low, "UNIQUE INDEX u ON t(lower(email) || a)", one, ["a@x", 1], true],
    ["a part of the rows", low, "UNIQUE INDEX u ON t(a) WHERE low = 'a@x'", one, ["a@X", 1], true],
    ["a part of the rows", low, "UNIQUE INDEX u ON t(a) WHERE low = 'a@x'", one, ["b@x", 1], false],
    ["a column by NOCASE", low, "UNIQUE INDEX u ON t(email COLLATE NOCASE)", one, ["a@x", 2], true],
    [
      "two columns with words of SQL for names",
      `"case" AS (email), "end" AS (a), UNIQUE("case", "end")`,
      "",
      one,
      ["A@x", 1],
      true,
    ],
  ] as const)(
    "%s: %s %s, %p, %p: %p",
    async (_, columns, index, [mail, a], [other, b], clashes) => {
      const node = new TestNode({
        schema: `CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT, a INTEGER, updated_at INTEGER, ${columns}); ${index && `CREATE ${index};`}`,
      });
      await node.sync([row("a", mail, T, a)]);
      await node.sync([row("b", other, T + 1, b)]);
      expect(node.parked().map(({ code }) => code)).toEqual(clashes ? ["unique"] : []);
      await waitAMinute(node);
      expect(owners(node)).toEqual(clashes ? [`b=${other}`] : [`a=${mail}`, `b=${other}`]);
      expect(node.parked().map(({ code }) => code)).toEqual(clashes ? ["lost"] : []);
      await node.close();
    },
  );
});

describe("a change that clashes waits", () => {
  test("until the other gives the value up, by an edit, a delete or a change of its own", async () => {
    for (const giveUp of [row("a", "z", T + 1), removal("a", "x", T), row("a", null, T + 1)]) {
      const node = new TestNode({ schema: SCHEMA });
      await node.sync([row("a", "x")]);
      expect(await node.sync([row("b", "x", T + 5)])).toBe(0);
      expect(node.parked().map(({ code }) => code)).toEqual(["unique"]);
      node.time.pass(50_000);
      await node.sync([giveUp]);
      expect(owners(node)).toContain("b=x");
      expect(node.parked()).toEqual([]);
      await node.close();
    }
  });

  test("a chain comes loose from its end, in whatever order it came", async () => {
    const chain = [
      row("a", "2", T + 1),
      row("b", "3", T + 1),
      row("c", "4", T + 1),
      row("d", "5", T + 1),
    ];
    for (const order of permutations(chain)) {
      const node = new TestNode({ schema: SCHEMA });
      await node.sync([row("a", "1"), row("b", "2"), row("c", "3"), row("d", "4")]);
      for (const change of order) await node.sync([change]);
      expect(owners(node)).toEqual(["a=2", "b=3", "c=4", "d=5"]);
      expect([node.parked(), node.log()]).toEqual([[], []]);
      await node.close();
    }
  });

  test.each([
    ["two", 2],
    ["a ring of five", 5],
  ])("rows that trade places are written at once: %s", async (_, count) => {
    const start = Array.from({ length: count }, (_, i) => row(`r${i}`, `${i}`));
    const moved = Array.from({ length: count }, (_, i) =>
      row(`r${i}`, `${(i + 1) % count}`, T + 1, 5),
    );
    for (const together of [true, false]) {
      const node = new TestNode({ schema: SCHEMA });
      await node.sync(start);
      if (together) await node.sync(moved);
      else for (const change of moved) await node.sync([change]);
      expect(owners(node)).toEqual(moved.map((_, i) => `r${i}=${(i + 1) % count}`));
      expect([node.parked(), node.log(), node.tombstones()]).toEqual([[], [], []]);
      await node.close();
    }
  });

  test("a trade that something else forbids changes nothing", async () => {
    const node = new TestNode({
      schema:
        "CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT UNIQUE, a INTEGER CHECK (a < 5), updated_at INTEGER);",
    });
    await node.sync([row("a", "x"), row("b", "y")]);
    await node.sync([row("a", "y", T + 1), row("b", "x", T + 1, 9)]);
    expect(owners(node)).toEqual(["a=x", "b=y"]);
    expect(node.parked().length).toBe(2);
    await node.close();
  });

  test("deletes made in a trade are none: no trigger logs them, no tombstone stays", async () => {
    const node = new TestNode({
      schema: `${SCHEMA} CREATE TABLE seen(what); CREATE TRIGGER log AFTER DELETE ON t BEGIN INSERT INTO seen VALUES (OLD.id); END;`,
      tables: ["t"],
    });
    await node.sync([row("a", "x"), row("b", "y")]);
    await node.sync([row("a", "y", T + 1), row("b", "x", T + 1)]);
    expect([owners(node), node.tombstones(), node.log()]).toEqual([["a=y", "b=x"], [], []]);
    await node.close();
  });
});

describe("after a minute the lower one goes", () => {
  test.each<[string, TestChange, TestChange, string]>([
    ["the newcomer is newer", row("a", "x", T), row("b", "x", T + 5), "b=x"],
    ["the newcomer is older", row("a", "x", T + 5), row("b", "x", T), "a=x"],
    ["content decides at one version", row("a", "x", T, 1), row("b", "x", T, 2), "b=x"],
    ["the id decides at one content", row("a", "x"), row("b", "x"), "b=x"],
  ])("%s, whichever came first", async (_, first, second, winner) => {
    for (const order of permutations([first, second])) {
      const node = new TestNode({ schema: SCHEMA });
      for (const change of order) await node.sync([change]);
      await waitAMinute(node);
      expect(owners(node)).toEqual([winner]);
      const loser = winner.startsWith("a") ? "b" : "a";
      const lost = JSON.parse(JSON.stringify(winner.startsWith("a") ? second : first)) as {
        row: Record<string, unknown>;
      };
      // Deleted like a row deleted here, at the version and with the content of the losing change.
      expect(
        node.log().map(({ op, row_id, row_data }) => [op, row_id, JSON.parse(row_data)]),
      ).toEqual([["DELETE", loser, lost.row]]);
      expect(node.tombstones()).toEqual([`t/${loser}@${lost.row["updated_at"]}`]);
      expect(
        node.parked().map(({ code, row_id, reason }) => [code, row_id, reason.includes("clashed")]),
      ).toEqual([["lost", loser, true]]);
      await node.close();
    }
  });

  test("not a moment before", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([row("a", "x"), row("b", "x", T + 5)]);
    node.time.pass(59_999);
    await node.tick();
    expect(owners(node)).toEqual(["a=x"]);
    node.time.pass(5_000);
    await node.tick();
    expect(owners(node)).toEqual(["b=x"]);
    await node.close();
  });

  test("against the highest of several; all of them go where it is higher", async () => {
    const schema =
      "CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT UNIQUE, a INTEGER UNIQUE, updated_at INTEGER);";
    for (const [version, left] of [
      [T + 1, ["a=x", "b=y"]],
      [T + 9, ["c=x"]],
    ] as const) {
      const node = new TestNode({ schema });
      await node.sync([row("a", "x", T, 1), row("b", "y", T + 5, 2)]);
      await node.sync([row("c", "x", version, 2)]);
      await waitAMinute(node);
      expect(owners(node)).toEqual([...left]);
      await node.close();
    }
  });

  test("a decision makes room for another change, which is then no loser", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([row("q", "3"), row("r", "1")]);
    await node.sync([row("r", "3", T + 9), row("p", "1", T + 5)]);
    expect(node.parked().length).toBe(2);
    await waitAMinute(node);
    expect(owners(node)).toEqual(["p=1", "r=3"]);
    await node.close();
  });

  test("an edit that the decision had not seen brings the loser back", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([row("a", "x"), row("b", "x", T + 5)]);
    await waitAMinute(node);
    expect(await node.sync([row("a", "z", T + 6)])).toBe(1);
    expect(owners(node)).toEqual(["a=z", "b=x"]);
    await node.close();
  });

  test("where a trigger forbids deleting the loser nothing is half done, and other batches go on", async () => {
    const node = new TestNode({
      schema: `${SCHEMA} CREATE TRIGGER keep BEFORE DELETE ON t BEGIN SELECT RAISE(ABORT, 'never'); END;`,
      tables: ["t"],
    });
    await node.sync([row("a", "x"), row("b", "x", T + 5)]);
    await waitAMinute(node);
    expect(await node.sync([row("c", "z")])).toBe(1);
    expect([owners(node), node.tombstones(), node.log()]).toEqual([["a=x", "c=z"], [], []]);
    expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([["b", "trigger"]]);
    await node.close();
  });

  test("a winner that another constraint refuses costs nobody a row", async () => {
    const node = new TestNode({
      schema:
        "CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT UNIQUE, a INTEGER CHECK (a < 5), updated_at INTEGER);",
    });
    await node.sync([row("a", "x")]);
    await node.sync([row("b", "x", T + 5, 1)]);
    await node.write(
      "CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.id = 'b' BEGIN SELECT RAISE(ABORT, 'not b'); END",
    );
    await waitAMinute(node);
    expect([owners(node), node.log()]).toEqual([["a=x"], []]);
    expect(node.parked().map(({ row_id }) => row_id)).toEqual(["b"]);
    await node.close();
  });
});

test.each(["NULL", "x'6f'", "CAST(x'6fff' AS TEXT)", "''"])(
  "against a row with the id %s nothing is decided, and other batches go on",
  async (id) => {
    const node = new TestNode({ schema: SCHEMA });
    await node.write(`INSERT INTO t VALUES(${id}, 'e', 1, ${T})`);
    expect(await node.sync([row("a", "e", T + 5)])).toBe(0);
    await waitAMinute(node);
    expect(await node.sync([row("b", "f")])).toBe(1);
    expect(node.parked()).toMatchObject([{ row_id: "a", code: "constraint" }]);
    expect(node.parked()[0]!.reason).toContain("stays out of syncing");
    expect(node.count("SELECT count(*) AS n FROM t WHERE email = 'e'")).toBe(1);
    expect(node.row("a", "t")).toBeNull();
    await node.write("DELETE FROM t WHERE email = 'e'");
    node.time.pass(25 * 3_600_000);
    await node.tick();
    expect(owners(node)).toEqual(["a=e", "b=f"]);
    expect(node.parked()).toEqual([]);
    await node.close();
  },
);

describe("keys of every kind", () => {
  test.each([
    ["a collation", "email TEXT COLLATE NOCASE UNIQUE", "", "X", "x", true],
    ["an expression", "email TEXT", "CREATE UNIQUE INDEX u ON t(lower(email));", "X", "x", true],
    [
      "a partial index, inside",
      "email TEXT",
      "CREATE UNIQUE INDEX u ON t(email) WHERE a < 5;",
      "x",
      "x",
      true,
    ],
    [
      "a partial index, outside",
      "email TEXT",
      "CREATE UNIQUE INDEX u ON t(email) WHERE a > 5;",
      "x",
      "x",
      false,
    ],
    ["several columns", "email TEXT", "CREATE UNIQUE INDEX u ON t(email, a);", "x", "x", true],
    ["NULL, which equals nothing", "email TEXT UNIQUE", "", null, null, false],
  ])("%s", async (_, column, index, first, second, clashes) => {
    const node = new TestNode({
      schema: `CREATE TABLE t(id TEXT PRIMARY KEY, ${column}, a INTEGER, updated_at INTEGER); ${index}`,
    });
    await node.sync([row("a", first), row("b", second, T + 5)]);
    expect(node.parked().map(({ code }) => code)).toEqual(clashes ? ["unique"] : []);
    await waitAMinute(node);
    expect(node.count("SELECT count(*) AS n FROM t")).toBe(clashes ? 1 : 2);
    await node.close();
  });
});

test("of rivals one is higher, on every node the same, whatever columns each knows of", () => {
  const rival = (id: string, version: number, content: Record<string, number>): Rival => ({
    id,
    version,
    content: new Map(
      Object.entries(content).map(([name, value]) => [
        name,
        { kind: "integer", value: BigInt(value) },
      ]),
    ),
  });
  const [low, high] = [rival("a", 1, { a: 1, b: 9 }), rival("b", 1, { a: 2, b: 0 })];
  expect(compareRivals(low, high)).toBeLessThan(0);
  expect(compareRivals(high, low)).toBeGreaterThan(0);
  expect(compareRivals(rival("a", 2, { a: 0 }), high)).toBeGreaterThan(0);
  // Of a column that one side lacks nothing can be said.
  expect(compareRivals(rival("a", 1, { b: 5 }), rival("b", 1, { a: 1, b: 5 }))).toBeLessThan(0);
  expect(
    compareRivals(rival("a", 1, { updated_at: 9 }), rival("b", 1, { updated_at: 1 })),
  ).toBeLessThan(0);
});

// ── Meshes ────────────────────────────────────────────────────────────────────────────────────────

async function writeSomething(random: Seeded, node: TestNode): Promise<void> {
  const id = random.pick(["p", "q", "r"]);
  const email = random.chance(0.1) ? "NULL" : `'${random.pick(["1", "2", "3"])}'`;
  const stamp = node.time.ms - random.below(2);
  const a = random.below(2);
  const statement = random.pick([
    `INSERT OR IGNORE INTO t VALUES ('${id}', ${email}, ${a}, ${stamp})`,
    `INSERT OR REPLACE INTO t VALUES ('${id}', ${email}, ${a}, ${stamp})`,
    `UPDATE OR IGNORE t SET email = ${email}, updated_at = ${stamp} WHERE id = '${id}'`,
    `UPDATE OR REPLACE t SET email = ${email} WHERE id = '${id}'`,
    `DELETE FROM t WHERE id = '${id}'`,
    `UPDATE OR IGNORE t SET email = CASE id WHEN 'p' THEN email || 'x' ELSE email END`,
  ]);
  await node.write(statement);
}

test("two and three nodes that write, swap and delete end equal in every order", async () => {
  await forSeeds(15, async (random) => {
    const time = new VirtualTime();
    const nodes = Array.from(
      { length: 2 + random.below(2) },
      () => new TestNode({ schema: SCHEMA, time }),
    );
    const mesh = new Mesh(nodes, random, 0.1);
    for (let step = 8 + random.below(25); step > 0; step--) {
      const at = random.below(nodes.length);
      time.pass(random.pick([0, 1, 1, 2, 20_000]));
      if (random.chance(0.45)) await writeSomething(random, nodes[at]!);
      else if (random.chance(0.9)) await mesh.deliverSome(at);
      else await nodes[at]!.tick();
      mesh.collect(at);
    }
    const isWaiting = () =>
      nodes.some((node) => node.parked().some(({ code }) => code === "unique"));
    for (let i = 0; i < 60 && (i < 3 || isWaiting() || !mesh.isQuiet); i++) {
      await mesh.deliverAll();
      time.pass(10_000);
      for (const [at, node] of nodes.entries()) {
        await node.tick();
        mesh.collect(at);
      }
    }
    const [first, ...others] = nodes.map((node) => node.rows("t"));
    for (const other of others) expect(other).toEqual(first!);
    expect(isWaiting()).toBe(false);
    await mesh.close();
  });
});
