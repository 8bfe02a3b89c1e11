import { describe, expect, setDefaultTimeout, test } from "bun:test";
import type { Value } from "../../lib/protocol/values.ts";
import {
  type ColumnNote,
  type Content,
  compareContent,
  type Held,
  type Incoming,
  merge,
  resetNotes,
  VERSION_NEVER,
} from "../../lib/protocol/winner.ts";
import { randomValue, throughFloat64Node } from "../support/random-values.ts";
import { sameValue } from "../support/same-value.ts";
import { forSeeds, permutations, type Seeded } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

const integer = (value: number): Value => ({ kind: "integer", value: BigInt(value) });
const content = (cells: Record<string, Value | number>): Content =>
  new Map(
    Object.entries(cells).map(([name, value]) => [
      name,
      typeof value === "number" ? integer(value) : value,
    ]),
  );
const NULL: Value = { kind: "null" };

/** A node that has these columns, and what its row is after these changes in this order. */
function arrive(columns: readonly string[], changes: readonly Incoming[]): Held {
  const [first, ...rest] = changes;
  let held = born(columns, first!);
  for (const change of rest) held = absorb(held, change).held;
  return held;
}

/** An insert: columns that did not come were never carried. */
function born(columns: readonly string[], change: Incoming): Held {
  const cells = new Map(columns.map((name) => [name, change.cells.get(name) ?? NULL]));
  const notes = new Map<string, ColumnNote>();
  for (const name of columns) {
    if (!change.cells.has(name)) notes.set(name, { version: VERSION_NEVER, value: NULL });
  }
  for (const [name, value] of change.cells) {
    if (!cells.has(name)) {
      notes.set(name, { version: change.version, value, source: change.cells, isOwn: true });
    }
  }
  return { version: change.version, cells, notes };
}

function absorb(held: Held, change: Incoming): { held: Held; outcome: string } {
  const { outcome, version, write, notes } = merge(held, change);
  return { held: { version, cells: new Map([...held.cells, ...write]), notes }, outcome };
}

/** The rule itself: of every column, the value of the greatest change that carried it. */
function expected(columns: readonly string[], changes: readonly Incoming[]): Map<string, Value> {
  const result = new Map<string, Value>(columns.map((name) => [name, NULL]));
  const order = (a: Incoming, b: Incoming) =>
    a.version - b.version || compareContent(a.cells, b.cells);
  const names = new Set([...columns, ...changes.flatMap((change) => [...change.cells.keys()])]);
  for (const name of names) {
    const carriers = changes.filter((change) => change.cells.has(name));
    if (carriers.length === 0) continue;
    const greatest = carriers.reduce((best, next) => (order(next, best) > 0 ? next : best));
    result.set(name, greatest.cells.get(name)!);
  }
  return result;
}

/** Of columns it has and of those it lacks. */
function valuesOf(held: Held): Map<string, Value> {
  const noted = [...held.notes].map(([name, note]) => [name, note.value] as const);
  return new Map([...held.cells, ...noted.filter(([name]) => !held.cells.has(name))]);
}

const sorted = (values: ReadonlyMap<string, Value>) =>
  [...values].sort(([a], [b]) => (a < b ? -1 : 1));

describe("between two rows of one version", () => {
  test.each([
    [{ a: 2, b: 0 }, { a: 1, b: 9 }, "the first column in the order of names that differs decides"],
    [{ a: 1, b: 1 }, { a: 1, b: 0 }, "later columns decide when earlier ones are equal"],
    [{ a: { kind: "text", value: "" } as Value }, { a: 9 }, "text is above numbers"],
    [{ a: -9 }, { a: NULL }, "numbers are above NULL"],
    [{ a: NULL }, {}, "NULL is above a column that did not come"],
    [
      { a: { kind: "text", value: "😀" } as Value },
      { a: { kind: "text", value: "\uffff" } as Value },
      "text compares by its UTF-8 bytes",
    ],
  ])("%j is above %j: %s", (high, low) => {
    const [left, right] = [content(high), content(low)];
    expect(compareContent(left, right)).toBeGreaterThan(0);
    expect(compareContent(right, left)).toBeLessThan(0);
  });

  test("the winner takes the whole row, never some of its columns", () => {
    const low = { version: 5, cells: content({ a: 1, b: 9 }) };
    const high = { version: 5, cells: content({ a: 2, b: 0 }) };
    for (const order of [
      [low, high],
      [high, low],
    ]) {
      const held = arrive(["a", "b"], order);
      expect(sorted(held.cells)).toEqual(sorted(high.cells));
      expect(held.notes.size).toBe(0);
    }
  });

  test("a tie of different contents is contested, whoever wins; other meetings are not", () => {
    const held = arrive(["a"], [{ version: 5, cells: content({ a: 1 }) }]);
    const meet = (version: number, a: number) => {
      const { outcome, isContested } = merge(held, { version, cells: content({ a }) });
      return [outcome, isContested];
    };
    expect(meet(5, 2)).toEqual(["took", true]);
    expect(meet(5, 0)).toEqual(["stale", true]);
    expect(meet(5, 1)).toEqual(["same", false]);
    expect(meet(6, 0)).toEqual(["took", false]);
    expect(meet(4, 9)).toEqual(["stale", false]);
  });

  test("what lost digits on the way is the same row: digits come back and nothing is contested", () => {
    const exact = {
      version: 5,
      cells: content({
        a: { kind: "integer", value: 2n ** 53n + 1n },
        b: { kind: "blob", hex: "00" },
      }),
    };
    const echo = {
      version: 5,
      cells: content({
        a: { kind: "integer", value: 2n ** 53n },
        b: { kind: "text", value: "\\x00" },
      }),
    };
    const restored = merge(arrive(["a", "b"], [echo]), exact);
    expect([restored.outcome, restored.isContested]).toEqual(["took", false]);
    expect(sorted(restored.write)).toEqual(sorted(exact.cells));
    const repeated = merge(arrive(["a", "b"], [exact]), echo);
    expect([repeated.outcome, repeated.isContested, repeated.write.size]).toEqual([
      "same",
      false,
      0,
    ]);
  });
});

describe("columns that not every node has", () => {
  const withC = { version: 5, cells: content({ a: 1, c: 7 }) };
  const newer = { version: 6, cells: content({ a: 2 }) };

  test("a newer change that lacks a column leaves its value and remembers its version", () => {
    const held = arrive(["a", "c"], [withC, newer]);
    expect(sorted(valuesOf(held))).toEqual(sorted(content({ a: 2, c: 7 })));
    expect(held.notes.get("c")?.version).toBe(5);
    expect(held.version).toBe(6);
  });

  test("an older change writes a column that was last carried before it, though the row is newer", () => {
    const held = arrive(["a", "c"], [newer]);
    const { outcome, write, version } = merge(held, withC);
    expect([outcome, [...write.keys()], version]).toEqual(["took", ["c"], 6]);
    expect(merge(arrive(["a", "c"], [newer, withC]), withC).outcome).toBe("stale");
  });

  test("a node that lacks the column keeps it in a note, and gives it up when a winner carries it", () => {
    const held = arrive(["a"], [withC]);
    expect([...held.notes.keys()]).toEqual(["c"]);
    const next = absorb(held, { version: 8, cells: content({ a: 3, c: 9 }) }).held;
    expect(next.notes.get("c")).toMatchObject({ version: 8, value: integer(9), isOwn: true });
  });

  test("of a tie, the lower change keeps only the columns that the higher one lacks", () => {
    const low = { version: 5, cells: content({ a: 1, b: 9, c: 3 }) };
    const high = { version: 5, cells: content({ a: 2, b: 0 }) };
    for (const order of permutations([low, high])) {
      expect(sorted(valuesOf(arrive(["a", "b", "c"], order)))).toEqual(
        sorted(content({ a: 2, b: 0, c: 3 })),
      );
    }
  });

  test("three changes of one version, two column sets: deciding each column alone would depend on the order", () => {
    const changes = [
      { version: 5, cells: content({ a: 1, b: 9 }) },
      { version: 5, cells: content({ a: 2, b: 0 }) },
      { version: 5, cells: content({ a: 0, b: 5, c: 1 }) },
    ];
    for (const order of permutations(changes)) {
      expect(sorted(valuesOf(arrive(["a", "b", "c"], order)))).toEqual(
        sorted(content({ a: 2, b: 0, c: 1 })),
      );
    }
  });

  test("the value that a lower change left in a tie gives way to a less low one that carried it", () => {
    const changes = [
      { version: 5, cells: content({ a: 5 }) },
      { version: 5, cells: content({ a: 3, c: 1 }) },
      { version: 5, cells: content({ a: 2, c: 9 }) },
    ];
    for (const order of permutations(changes)) {
      expect(sorted(valuesOf(arrive(["a", "c"], order)))).toEqual(sorted(content({ a: 5, c: 1 })));
    }
  });

  test("where the change behind a note is not known any more, the larger value stands", () => {
    const held: Held = {
      version: 6,
      cells: content({ a: 1, c: 5 }),
      notes: new Map([["c", { version: 4, value: integer(5) }]]),
    };
    const meet = (c: Value) =>
      sorted(absorb(held, { version: 4, cells: new Map([["c", c]]) }).held.cells);
    expect(meet(integer(6))).toEqual(sorted(content({ a: 1, c: 6 })));
    expect(meet(integer(4))).toEqual(sorted(content({ a: 1, c: 5 })));
    expect(meet({ kind: "real", value: 5 })).toEqual(
      sorted(content({ a: 1, c: { kind: "real", value: 5 } })),
    );
  });

  test("a delete below the row resets what was last carried at or below it", () => {
    const notes = arrive(["a", "c"], [withC, newer]).notes;
    expect(resetNotes(notes, 5).gone).toEqual(["c"]);
    expect(resetNotes(notes, 4).gone).toEqual([]);
    expect([...resetNotes(notes, 4).kept.keys()]).toEqual(["c"]);
  });
});

// ── All orders of random changes ──────────────────────────────────────────────────────────────────

const COLUMNS = ["a", "b", "c"];

/** Near each other in everything: versions, column sets and contents tie often. */
function randomChanges(random: Seeded, count: number, versions: number): Incoming[] {
  const palette = Array.from({ length: 3 }, () => randomValue(random));
  const changes: Incoming[] = [];
  while (changes.length < count) {
    const echoed = changes.length > 0 && random.chance(0.25) ? random.pick(changes) : undefined;
    if (echoed) {
      const how = random.pick(["rewritten", "stored"] as const);
      const cells = [...echoed.cells].map(
        ([name, value]) => [name, throughFloat64Node(value, how)] as const,
      );
      changes.push({ version: echoed.version, cells: new Map(cells) });
      continue;
    }
    const names = COLUMNS.filter((name) => name === "a" || random.chance(0.6));
    changes.push({
      version: 10 + random.below(versions),
      cells: new Map(names.map((name) => [name, random.pick(palette)])),
    });
  }
  return changes;
}

test("content order is total: antisymmetric, transitive, 0 only for equal reduced rows", async () => {
  await forSeeds(4_000, (random) => {
    const [a, b, c] = randomChanges(random, 3, 1).map(({ cells }) => cells) as [
      Content,
      Content,
      Content,
    ];
    expect(Math.sign(compareContent(a, b)) + Math.sign(compareContent(b, a))).toBe(0);
    if (compareContent(a, b) <= 0 && compareContent(b, c) <= 0) {
      expect(compareContent(a, c)).toBeLessThanOrEqual(0);
    }
    if (compareContent(a, b) === 0) expect([...a.keys()].sort()).toEqual([...b.keys()].sort());
  });
});

test("W1: every order of arrival ends the same, on nodes with and without each column", async () => {
  await forSeeds(1_500, (random) => {
    const changes = randomChanges(random, 2 + random.below(3), random.pick([1, 2, 4]));
    const results = permutations(changes).flatMap((order) => [
      sorted(valuesOf(arrive(COLUMNS, order))),
      sorted(valuesOf(arrive(["a", "b"], order))),
      sorted(valuesOf(arrive(["a"], order))),
    ]);
    const present = new Set(changes.flatMap(({ cells }) => [...cells.keys()]));
    const relevant = results.map((values) => values.filter(([name]) => present.has(name)));
    for (const values of relevant) expect(values).toEqual(relevant[0]!);
  });
});

test("each column ends with the value of the greatest change that carried it", async () => {
  await forSeeds(1_500, (random) => {
    // Without echoes: of changes with equal reduced contents the richer values are put together.
    const seen: Incoming[] = [];
    for (const change of randomChanges(random, 6, 3)) {
      const isEcho = seen.some(
        (other) =>
          other.version === change.version && compareContent(other.cells, change.cells) === 0,
      );
      if (!isEcho) seen.push(change);
    }
    const held = arrive(COLUMNS, random.shuffled(seen));
    expect(sorted(valuesOf(held))).toEqual(sorted(expected(COLUMNS, seen)));
    expect(held.version).toBe(Math.max(...seen.map(({ version }) => version)));
  });
});

test("W2: a change seen again changes nothing, and is the same or stale", async () => {
  await forSeeds(1_500, (random) => {
    const changes = randomChanges(random, 4, 3);
    const held = arrive(COLUMNS.slice(0, 1 + random.below(3)), changes);
    const again = absorb(held, random.pick(changes));
    expect(again.outcome).not.toBe("took");
    expect(sorted(valuesOf(again.held))).toEqual(sorted(valuesOf(held)));
    expect([...again.held.notes.keys()].sort()).toEqual([...held.notes.keys()].sort());
  });
});

test("a value never loses to what a float64 node made of it", async () => {
  await forSeeds(1_000, (random) => {
    const value = randomValue(random);
    const echo = throughFloat64Node(value, "rewritten");
    for (const order of permutations([value, echo])) {
      const held = arrive(
        ["a"],
        order.map((each) => ({ version: 1, cells: new Map([["a", each]]) })),
      );
      expect(sameValue(held.cells.get("a")!, value)).toBe(true);
    }
  });
});
