import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import { survey } from "../../lib/store/catalog.ts";
import { ItemCounter } from "../../lib/store/item-counter.ts";
import { migrate } from "../../lib/store/migrations.ts";

const LARGE = 250_000;

function open(rows: number, options = "") {
  const db = new Database(":memory:");
  db.run(`CREATE TABLE items(id TEXT PRIMARY KEY, updated_at INTEGER) ${options}`);
  let made = 0;
  const add = (count: number) => {
    db.query(
      `WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
       INSERT INTO items SELECT printf('%010d', i), 1700000000000 FROM n`,
    ).run(made + 1, made + count);
    made += count;
  };
  add(rows);
  let nowMs = 0;
  const counter = new ItemCounter(db, { nowMs: () => 0, monotonicMs: () => nowMs });
  migrate(db);
  const tables = [...survey(db, { all: true, names: [] }).synced.values()];
  expect(tables).toHaveLength(1);
  return {
    add,
    alter: (sql: string) => db.run(sql),
    remove: (count: number) =>
      db.query("DELETE FROM items WHERE id IN (SELECT id FROM items LIMIT ?)").run(count),
    count: () => counter.count(tables),
    /** As the node's tick does, until a count that was under way is at its end. */
    finish: () => {
      for (let i = 0; i < 100; i++) counter.advance(tables);
    },
    wait: (ms: number) => {
      nowMs += ms;
    },
  };
}

test("a small table is counted every time", () => {
  const { add, remove, count } = open(3);
  expect(count()).toBe(3);
  add(2);
  expect(count()).toBe(5);
  remove(4);
  expect(count()).toBe(1);
});

test.each([
  ["renamed", "ALTER TABLE items RENAME TO things"],
  ["dropped", "DROP TABLE items"],
])("a table that was just %s counts as empty until that is noticed", (_, sql) => {
  const { alter, count } = open(3, "WITHOUT ROWID");
  alter(sql);
  expect(count()).toBe(0);
});

describe("a large table", () => {
  test("has its number from the first call on, and every row that is added", () => {
    const { add, count } = open(LARGE);
    expect(count()).toBe(LARGE);
    add(10);
    expect(count()).toBe(LARGE + 10);
  });

  test("is counted in steps, whatever was deleted before", () => {
    const { add, remove, count, finish } = open(LARGE + 1_000);
    remove(1);
    add(1);
    // In the middle: the span does not show it.
    remove(999);
    count();
    finish();
    expect(count()).toBe(LARGE + 1);
    add(5);
    expect(count()).toBe(LARGE + 6);
  });

  test("is counted again after a while", () => {
    const { remove, count, finish, wait } = open(LARGE);
    count();
    finish();
    remove(1_000);
    expect(count()).toBe(LARGE);
    wait(120_000);
    count();
    finish();
    expect(count()).toBe(LARGE - 1_000);
  });

  test("is a small one again when it has become small", () => {
    const { remove, count } = open(LARGE);
    count();
    remove(LARGE - 2);
    expect(count()).toBe(2);
  });
});

test("a table without rowids is counted in steps, a small one at once", () => {
  const small = open(3, "WITHOUT ROWID");
  expect(small.count()).toBe(3);
  small.add(1);
  expect(small.count()).toBe(4);
  const large = open(LARGE, "WITHOUT ROWID");
  large.count();
  large.finish();
  expect(large.count()).toBe(LARGE);
});

test("ids that are not UTF-8 are counted once, however many there are", () => {
  const { alter, count, finish } = open(2, "WITHOUT ROWID");
  alter(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${LARGE})
    INSERT INTO items SELECT CAST(x'ff' || printf('%010d', i) AS TEXT), 1 FROM n`);
  count();
  finish();
  expect(count()).toBe(LARGE + 2);
});
