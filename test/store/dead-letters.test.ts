/** What is parked: how long, in how many entries, and when it is tried again. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { HookSyncError } from "../../lib/base/errors.ts";
import {
  ITEMS_SQL,
  insert,
  rawChange,
  remove,
  removeNodeFiles,
  T,
  TestNode,
  update,
} from "../support/receive-fixture.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

const HOUR = 3_600_000;
const elsewhere = (id: string, version = T, cells: Record<string, unknown> = {}) => ({
  op: "UPDATE",
  table: "later",
  row: { id, ...cells, updated_at: version },
  old_id: null,
});
const LATER_SQL = "CREATE TABLE later(id TEXT PRIMARY KEY, a TEXT, b BLOB, updated_at INTEGER)";

describe("each reason has its time to try again", () => {
  test("no such table: when it is there, with everything that came for it, and its deletes", async () => {
    const node = new TestNode();
    const changes = Array.from({ length: 700 }, (_, i) => elsewhere(`r${i}`, T, { a: "x" }));
    expect(await node.sync(changes)).toBe(0);
    await node.sync([
      elsewhere("r0", T + 1, { a: "newer" }),
      { op: "DELETE", table: "later", row: { id: "r1", a: "x", updated_at: T }, old_id: "r1" },
    ]);
    node.time.pass(48 * HOUR);
    await node.tick();
    expect(node.parked().every(({ retry_count }) => retry_count === 0)).toBe(true);
    await node.write(LATER_SQL);
    for (let i = 0; i < 4; i++) await node.tick();
    expect(node.count("SELECT count(*) AS n FROM later")).toBe(699);
    expect(node.row("r0", "later")).toMatchObject({ a: "newer", updated_at: T + 1 });
    expect(node.parked()).toEqual([]);
    await node.close();
  });

  test("another table that appears wakes nothing that does not wait for it", async () => {
    const node = new TestNode();
    await node.sync([elsewhere("r")]);
    await node.write("CREATE TABLE other(id TEXT PRIMARY KEY, updated_at INTEGER)");
    await node.tick();
    expect(node.parked().map(({ retry_count }) => retry_count)).toEqual([0]);
    await node.close();
  });

  test("a table that is there and that nobody left out on purpose: kept", async () => {
    const node = new TestNode({ tables: "found" });
    await node.write(LATER_SQL);
    await node.sync([elsewhere("r")], { from: "peer" });
    expect(node.parked()).toMatchObject([{ row_id: "r", code: "unknown-table" }]);
    await node.close();
  });

  test("a table that --tables leaves out, once it is there: what was kept stays kept", async () => {
    const node = new TestNode({ tables: ["items"] });
    await node.sync([elsewhere("r")], { from: "peer" });
    await node.write(LATER_SQL);
    await node.tick();
    expect(node.parked()).toMatchObject([
      { row_id: "r", code: "unknown-table", reason: "--tables leaves the table out" },
    ]);
    await node.close();
  });

  test.each([
    ["a table", "CREATE TABLE later(id INTEGER PRIMARY KEY, a TEXT, updated_at INTEGER)"],
    ["a view", "CREATE VIEW later AS SELECT 1 AS id"],
  ])(
    "%s that nobody asked for, and that could not be synced, is not said to be missing",
    async (_, sql) => {
      const node = new TestNode({ tables: ["items"] });
      await node.sync([elsewhere("r")]);
      await node.write(sql);
      await node.sync([elsewhere("s")]);
      await node.tick();
      const reasons = new Set(node.parked().map(({ reason }) => reason));
      expect([...reasons]).toEqual([
        expect.stringMatching(/^the table is here, but is not synced.*--tables/),
      ]);
      await node.close();

      const kind = sql.split(" ")[1]!;
      const again = new TestNode({ path: node.path, tables: ["items", "later"] });
      expect(again.parked()).toMatchObject([{ row_id: "r" }, { row_id: "s" }]);
      await again.write(`DROP ${kind} later; ${LATER_SQL}`);
      for (let i = 0; i < 3; i++) await again.tick();
      expect([again.count("SELECT count(*) AS n FROM later"), again.parked()]).toEqual([2, []]);
      await again.close();
    },
  );

  test("too far ahead: when our clock is an hour behind it", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { updated_at: T + 2 * HOUR })]);
    expect(node.parked().map(({ code, retry_at }) => [code, retry_at])).toEqual([
      ["ahead", T + HOUR],
    ]);
    node.time.pass(HOUR - 1);
    await node.tick();
    expect(node.row("a")).toBeNull();
    node.time.pass(1);
    await node.tick();
    expect([node.row("a") !== null, node.parked()]).toEqual([true, []]);
    await node.close();
  });

  test("a constraint: at the end of the batch, then with growing pauses", async () => {
    const node = new TestNode({
      schema: "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n < 5), updated_at INTEGER);",
    });
    await node.sync([{ op: "INSERT", table: "t", row: { id: "r", n: 9, updated_at: T } }]);
    const pauses: number[] = [];
    for (let i = 0; i < 7; i++) {
      const { retry_at: at } = node.parked()[0]!;
      pauses.push(at! - node.time.ms);
      node.time.pass(at! - node.time.ms);
      await node.tick();
    }
    expect(pauses).toEqual([10_000, 60_000, 600_000, HOUR, 24 * HOUR, 24 * HOUR, 24 * HOUR]);
    await node.close();
  });

  test("what can never apply is never tried", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { updated_at: "x" })]);
    node.time.pass(400 * 24 * HOUR);
    await node.write("CREATE TABLE other(id TEXT PRIMARY KEY, updated_at INTEGER)");
    await node.tick();
    expect(node.parked().map(({ code, retry_count }) => [code, retry_count])).toEqual([
      ["malformed", 0],
    ]);
    await node.close();
  });

  test("what is stale by then is done with", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { updated_at: T + 2 * HOUR })]);
    node.time.pass(2 * HOUR);
    await node.sync([update("a", { updated_at: T + 2 * HOUR + 1 })]);
    await node.tick();
    expect([node.row<{ updated_at: number }>("a")?.updated_at, node.parked()]).toEqual([
      T + 2 * HOUR + 1,
      [],
    ]);
    await node.close();
  });

  test("after a restart, too", async () => {
    const first = new TestNode();
    await first.sync([elsewhere("r"), insert("a", { updated_at: T + 2 * HOUR })]);
    await first.close();
    const node = new TestNode({ path: first.path });
    await node.write(LATER_SQL);
    await node.tick();
    node.time.pass(HOUR);
    await node.tick();
    expect([node.row("r", "later") !== null, node.row("a") !== null, node.parked()]).toEqual([
      true,
      true,
      [],
    ]);
    await node.close();
  });
});

describe("whose it was is remembered", () => {
  const change = rawChange("later", {
    id: '"r"',
    a: '"x"',
    b: '"\\\\x00ff"',
    updated_at: String(T),
  });

  test.each([
    ["ours: a string that looks like bytes is a string", undefined, "text"],
    ["another make: the member may have been lost on the way", null, "blob"],
  ])("%s", async (_, identity, kind) => {
    const node = new TestNode();
    await node.sync([change], identity === null ? { identity } : {});
    await node.write(LATER_SQL);
    await node.tick();
    expect(node.value("r", "b", "later")[0]).toBe(kind);
    await node.close();
  });

  test("what a foreign node sent is answered as its own when it loses in the end", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { updated_at: T + 2 * HOUR, name: "theirs" })], {
      identity: null,
      from: "go",
    });
    node.time.pass(2 * HOUR);
    await node.sync([update("a", { updated_at: T + 2 * HOUR + 1, name: "ours" })]);
    expect(node.log().map(({ op, row_data }) => [op, JSON.parse(row_data).name])).toEqual([
      ["UPDATE", "ours"],
    ]);
    await node.close();
  });

  test("what ours sent is not, with a foreign peer about", async () => {
    const node = new TestNode();
    await node.sync([], { identity: null });
    await node.sync([insert("a", { updated_at: T + 2 * HOUR, name: "one" })]);
    node.time.pass(2 * HOUR);
    await node.sync([update("a", { updated_at: T + 2 * HOUR + 1, name: "other" })]);
    await node.tick();
    expect(node.log()).toEqual([]);
    await node.close();
  });
});

describe("one entry per table, id and reason", () => {
  const names = (node: TestNode) =>
    node.parked().map(({ change }) => (JSON.parse(change) as { row: { a: string } }).row.a);

  test("the newest version stays, from whichever peer", async () => {
    const node = new TestNode();
    await node.sync([elsewhere("r", T + 1, { a: "one" })], { from: "x" });
    await node.sync([elsewhere("r", T + 3, { a: "three" })], { from: "y" });
    await node.sync([elsewhere("r", T + 2, { a: "two" })], { from: "x" });
    expect(names(node)).toEqual(["three"]);
    expect(node.parked()[0]!.peer).toBe("y");
    await node.close();
  });

  test("both sides of a tie stay, and so do an update and the delete after it; a repeat is one", async () => {
    const node = new TestNode();
    const gone = {
      op: "DELETE",
      table: "later",
      row: { id: "r", a: "a", updated_at: T },
      old_id: "r",
    };
    for (const change of [elsewhere("r", T, { a: "a" }), elsewhere("r", T, { a: "b" }), gone]) {
      await node.sync([change]);
      await node.sync([change]);
    }
    expect(node.parked().map(({ op }) => op)).toEqual(["UPDATE", "UPDATE", "DELETE"]);
    await node.write(LATER_SQL);
    await node.tick();
    expect([node.rows("later"), node.parked(), node.tombstones()]).toEqual([
      [],
      [],
      [`later/r@${T}`],
    ]);
    await node.close();
  });

  test.each([
    ["in order", [0, 1]],
    ["out of order", [1, 0]],
  ])(
    "a delete stays beside the row that was made after it: what columns here held goes, %s",
    async (_, order) => {
      const node = new TestNode({
        schema: `${ITEMS_SQL}; ALTER TABLE items ADD COLUMN size INTEGER DEFAULT 5`,
      });
      await node.sync([insert("a", { size: 2 })]);
      const later = T + 2 * HOUR;
      const changes = [remove("a", { updated_at: later }), insert("a", { updated_at: later + 1 })];
      for (const at of order) await node.sync([changes[at]!]);
      expect(node.parked().map(({ code }) => code)).toEqual(["ahead", "ahead"]);
      node.time.pass(2 * HOUR);
      await node.tick();
      expect([node.row("a")?.["size"], node.parked()]).toEqual([5, []]);
      await node.close();
    },
  );

  test("changes that do not say which row they mean are all kept", async () => {
    const node = new TestNode();
    const changes = [
      '{"op":1}',
      '{"op":2}',
      '{"op":1}',
      '{"op":"INSERT","table":"items","row":{"name":"x"}}',
      '{"op":"INSERT","table":"items","row":{"name":"y"}}',
    ];
    await node.sync(changes);
    expect(node.parked().map(({ change }) => change)).toEqual([
      changes[0]!,
      changes[1]!,
      changes[3]!,
      changes[4]!,
    ]);
    await node.close();
  });

  test("a reason says nothing of the value: what is sent again and again stays one entry", async () => {
    const node = new TestNode();
    for (let i = 0; i < 50; i++) await node.sync([insert("a", { updated_at: `2026-01-${i}` })]);
    expect(
      node
        .parked()
        .map(
          ({ change }) => (JSON.parse(change) as { row: { updated_at: string } }).row.updated_at,
        ),
    ).toEqual(["2026-01-49"]);
    await node.close();
  });

  test("other rows, other tables and other reasons have their own", async () => {
    const node = new TestNode();
    await node.sync([
      elsewhere("a"),
      elsewhere("b"),
      { ...elsewhere("a"), table: "third" },
      insert("a", { updated_at: T + 9 * HOUR }),
    ]);
    expect(node.parked().length).toBe(4);
    await node.close();
  });

  test("a new reason that another version of the row has already leaves the newer of the two", async () => {
    const schema =
      "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n < 5), updated_at INTEGER);";
    const row = (n: number, version: number) => ({
      op: "UPDATE",
      table: "t",
      row: { id: "r", n, updated_at: version },
    });
    const node = new TestNode({ schema });
    await node.sync([row(8, T + 2 * HOUR)]);
    await node.sync([row(9, T)]);
    expect(node.parked().map(({ code, version }) => [code, version])).toEqual([
      ["ahead", T + 2 * HOUR],
      ["constraint", T],
    ]);
    node.time.pass(HOUR);
    await node.tick();
    expect(node.parked().map(({ code, version }) => [code, version])).toEqual([
      ["constraint", T + 2 * HOUR],
    ]);
    await node.close();
  });

  test("the change is kept as it came, to the digit", async () => {
    const node = new TestNode();
    const change =
      ' { "op" : "INSERT","table":"later", "row":{"id":"r","n":9223372036854775807,"x":1.50},"old_id":null , "later":[1] } ';
    await node.sync([change]);
    expect(node.parked()[0]!.change).toBe(change.trim());
    await node.close();
  });
});

describe("counts", () => {
  test("of all dead letters, and of those received", async () => {
    const node = new TestNode();
    await node.sync([elsewhere("a"), elsewhere("b"), insert("c", { updated_at: "x" })]);
    await node.write("INSERT INTO items(id) VALUES ('own')");
    const moved = node.store.recordMoves([
      { peer: "http://b", through: 0, refusal: { changeIds: [1], reason: "no", attempts: 5 } },
    ]);
    node.time.pass(1_000);
    await moved;
    expect(node.store.deadLetters.counts()).toEqual({ all: 4, parked: 3 });
    await node.close();
  });

  test("one event per change, with peer, table and reason", async () => {
    const node = new TestNode();
    await node.sync([elsewhere("a"), elsewhere("b")], { from: "peer" });
    expect(node.events.filter(({ kind }) => kind === "parked")).toEqual(
      Array.from({ length: 2 }, () => ({
        kind: "parked" as const,
        peer: "peer",
        table: "later",
        reason: "there is no such table here",
      })),
    );
    await node.close();
  });
});

describe("the limit", () => {
  const big = (id: string) => elsewhere(id, T, { a: "x".repeat(400) });
  const code = async (work: Promise<unknown>) => {
    try {
      await work;
      return "fine";
    } catch (error) {
      return error instanceof HookSyncError ? error.code : String(error);
    }
  };

  test("above it the batch is not acknowledged, and nothing of it is done", async () => {
    const node = new TestNode({ parkedBytesMax: 1_000 });
    expect(await code(node.sync([big("a"), big("b")]))).toBe("fine");
    expect(await code(node.sync([insert("good"), big("c")], { batchId: 77 }))).toBe("disk-full");
    expect([node.rows(), node.parked().length]).toEqual([[], 2]);
    expect(node.store.peers.mark("00112233445566778899aabbccddeeff").batchId).toBeLessThan(77);
    // What needs no parking still comes in, and a repeat of what is there takes no room.
    expect(await node.sync([insert("good"), big("a")])).toBe(1);
    await node.close();
  });

  test("room that is made counts: by a change that applies, by a person, by a newer version", async () => {
    const node = new TestNode({ parkedBytesMax: 1_000 });
    await node.sync([big("a"), big("b")]);
    expect(await code(node.sync([big("c")]))).toBe("disk-full");
    node.app.run("DELETE FROM _dead_letter WHERE row_id = 'a'");
    expect(await code(node.sync([big("c")]))).toBe("fine");
    expect(await code(node.sync([big("d")]))).toBe("disk-full");
    await node.sync([elsewhere("b", T + 1, { a: "short" })]);
    expect(await code(node.sync([elsewhere("d", T, { a: "x".repeat(200) })]))).toBe("fine");
    await node.write(LATER_SQL);
    await node.tick();
    expect(node.parked()).toEqual([]);
    await node.write("DROP TABLE later");
    expect(await code(node.sync([big("a"), big("b")]))).toBe("fine");
    await node.close();
  });

  test("a transaction that fails gives back what it had counted", async () => {
    const node = new TestNode({ parkedBytesMax: 1_000 });
    for (let i = 0; i < 5; i++) {
      expect(await code(node.sync([big("a"), big("b"), big("c")]))).toBe("disk-full");
    }
    expect(await code(node.sync([big("a"), big("b")]))).toBe("fine");
    const again = new TestNode({ path: node.path, parkedBytesMax: 1_000 });
    expect(await code(again.sync([big("c")]))).toBe("disk-full");
    await again.close();
    await node.close();
  });
});

test("a great many that wait cost the next batch nothing", async () => {
  const node = new TestNode({ schema: ITEMS_SQL });
  for (let i = 0; i < 20; i++) {
    await node.sync(Array.from({ length: 1_000 }, (_, k) => elsewhere(`${i} ${k}`)));
  }
  const plans = node.db
    .query<{ detail: string }, []>(
      "EXPLAIN QUERY PLAN SELECT min(retry_at) AS at FROM _dead_letter WHERE retry_at IS NOT NULL",
    )
    .all();
  expect(plans.map(({ detail }) => detail).join()).toContain("_hooksync_parked_due");
  const start = Bun.nanoseconds();
  for (let i = 0; i < 50; i++) await node.sync([insert(`a${i}`), remove(`b${i}`)]);
  // Reading them all takes 20 ms or more each time.
  expect((Bun.nanoseconds() - start) / 50e6).toBeLessThan(10);
  await node.close();
});

test("a newer version of a row costs what its columns cost, however many, and not their square", async () => {
  const node = new TestNode();
  const wide = (columns: number, version: number) =>
    elsewhere(
      `wide ${columns}`,
      version,
      Object.fromEntries(Array.from({ length: columns }, (_, i) => [`column ${i}`, i])),
    );
  const cpuMs = async (columns: number) => {
    await node.sync([wide(columns, T)]);
    let best = Number.POSITIVE_INFINITY;
    for (let version = T + 1; version < T + 8; version++) {
      const change = wide(columns, version);
      const before = process.cpuUsage();
      await node.sync([change]);
      const { user, system } = process.cpuUsage(before);
      best = Math.min(best, (user + system) / 1_000);
    }
    return best;
  };
  const [narrow, broad] = [await cpuMs(95), await cpuMs(1_900)];
  // Twenty times the columns; four hundred times the work if each were looked for among all.
  expect(broad).toBeLessThan(100 * Math.max(narrow, 0.3));
  expect(node.parked().map(({ version }) => version)).toEqual([T + 7, T + 7]);
  await node.close();
});

test("any number of changes of one version stay side by side, without being read each time", async () => {
  const node = new TestNode();
  const sides = Array.from({ length: 2_000 }, (_, i) => elsewhere("tie", T, { a: `side ${i}` }));
  const startMs = process.cpuUsage();
  await node.sync(sides);
  const { user, system } = process.cpuUsage(startMs);
  expect(node.parked()).toHaveLength(2_000);
  // Comparing the columns of every two of them takes many times as long.
  expect((user + system) / 1_000).toBeLessThan(5_000);
  await node.close();
});
