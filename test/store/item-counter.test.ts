import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { ItemCounter } from "../../lib/store/item-counter.ts";
import { readTables, type SyncedTable } from "../../lib/store/schema.ts";

function open(rows: number) {
  const db = new Database(":memory:");
  db.run("CREATE TABLE items(id TEXT PRIMARY KEY, updated_at INTEGER)");
  const add = (count: number) =>
    db.run(
      `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count})
       INSERT INTO items SELECT hex(randomblob(8)), 1 FROM n`,
    );
  add(rows);
  let nowMs = 0;
  // Every look at this clock takes a second: each count looks slow.
  const clock = { nowMs: () => 0, monotonicMs: () => (nowMs += 1_000) };
  const counter = new ItemCounter(db, clock);
  const tables = [...readTables(db).values()] as SyncedTable[];
  return { add, count: () => counter.count(tables), wait: (ms: number) => (nowMs += ms) };
}

test("a small table is counted every time, also on a busy machine", () => {
  const { add, count } = open(3);
  expect(count()).toBe(3);
  add(2);
  expect(count()).toBe(5);
});

test("a large table that was slow to count is counted again after a pause in proportion", () => {
  const { add, count, wait } = open(200_001);
  expect(count()).toBe(200_001);
  add(1);
  expect(count()).toBe(200_001);
  wait(200_000);
  expect(count()).toBe(200_002);
});
