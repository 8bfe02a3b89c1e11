import { Database } from "bun:sqlite";
import { afterEach, beforeEach, expect, test } from "bun:test";
import { ChangeLog } from "../../lib/store/change-log.ts";
import { migrate } from "../../lib/store/migrations.ts";
import { Peers } from "../../lib/store/peers.ts";

let db: Database;
let log: ChangeLog;
let peers: Peers;

beforeEach(() => {
  db = new Database(":memory:", { strict: true });
  migrate(db);
  log = new ChangeLog(db);
  peers = new Peers(db);
});

afterEach(() => db.close());

function fill(count: number): void {
  db.query(
    `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
     INSERT INTO _changes(op, table_name, row_id, row_data) SELECT 'INSERT', 't', i, '{}' FROM n`,
  ).run(count);
}

test("without peers the whole log is pending", () => {
  expect(log.pending()).toBe(0);
  fill(7);
  expect(log.pending()).toBe(7);
});

test("with peers it is what the one furthest behind lacks, whatever is still in the log", () => {
  peers.configure(["http://a", "http://b"], (url) => url);
  fill(100);
  expect(log.pending()).toBe(100);
  peers.move("http://a", 100, 100);
  peers.move("http://b", 30, 30);
  expect(log.pending()).toBe(70);
  peers.move("http://b", 100, 100);
  expect(log.pending()).toBe(0);
  db.run("DELETE FROM _changes");
  expect(log.pending()).toBe(0);
});

test("gaps are not counted where few wait", () => {
  fill(100);
  db.run("DELETE FROM _changes WHERE change_id % 2 = 0");
  expect(log.pending()).toBe(50);
});

test("of many the span is given", () => {
  fill(50_000);
  db.run("DELETE FROM _changes WHERE change_id = 7");
  expect(log.pending()).toBe(50_000);
});
