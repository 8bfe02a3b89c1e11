import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { migrate } from "../../lib/store/migrations.ts";
import { Peers } from "../../lib/store/peers.ts";

let db: Database;
let peers: Peers;

beforeEach(() => {
  db = new Database(":memory:", { strict: true });
  migrate(db);
  peers = new Peers(db);
  peers.configure(["http://a", "http://b"], (url) => url);
});

afterEach(() => db.close());

function fill(count: number): void {
  db.query(
    `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
     INSERT INTO _changes(op, table_name, row_id, row_data) SELECT 'INSERT', 't', i, '{}' FROM n`,
  ).run(count);
}

function left(): number {
  return db.query<{ n: number }, []>("SELECT count(*) AS n FROM _changes").get()!.n;
}

describe("pruning", () => {
  test("deletes what every peer has acknowledged, and nothing more", () => {
    fill(100);
    peers.move("http://a", 80, 80);
    expect(peers.prune()).toEqual({ through: 0, moreRemains: false });
    peers.move("http://b", 60, 60);
    expect(peers.prune()).toEqual({ through: 60, moreRemains: false });
    expect(left()).toBe(40);
    expect(peers.prune()).toEqual({ through: 0, moreRemains: false });
  });

  test("deletes a large amount in parts, so that no transaction is long", () => {
    fill(20_000);
    for (const url of ["http://a", "http://b"]) peers.move(url, 17_000, 17_000);
    const steps: number[] = [];
    for (;;) {
      const before = left();
      const { moreRemains } = peers.prune();
      steps.push(before - left());
      if (!moreRemains) break;
    }
    expect(Math.max(...steps)).toBeLessThanOrEqual(5_001);
    expect(left()).toBe(3_000);
  });

  test("without peers nothing is deleted", () => {
    fill(10);
    peers.configure([], (url) => url);
    expect(peers.prune()).toEqual({ through: 0, moreRemains: false });
    expect(left()).toBe(10);
  });
});
