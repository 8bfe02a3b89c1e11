import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { migrate } from "../../lib/store/migrations.ts";
import { Peers, pruneStep } from "../../lib/store/peers.ts";

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

test("what a fill had made for a peer goes with the peer", () => {
  fill(2);
  db.run("UPDATE _changes SET only_for = 'http://b' WHERE change_id = 2");
  db.run("UPDATE _peer_state SET fill = '{}' WHERE peer_url = 'http://b'");
  peers.configure(["http://a"], (url) => url);
  expect(db.query("SELECT change_id FROM _changes").values()).toEqual([[1]]);
});

test("a watermark that is no number counts as none", () => {
  db.run("UPDATE _peer_state SET last_acked = 'abc' WHERE peer_url = 'http://a'");
  const { starts } = peers.configure(["http://a"], (url) => url);
  expect(starts.map(({ watermark }) => watermark)).toEqual([0]);
});

describe("pruning", () => {
  test("deletes what every peer has acknowledged, and nothing more", () => {
    fill(100);
    peers.move("http://a", 80, 80);
    expect(peers.prune(false)).toEqual({ through: 0, moreRemains: false });
    peers.move("http://b", 60, 60);
    expect(peers.prune(false)).toEqual({ through: 60, moreRemains: false });
    expect(left()).toBe(40);
    expect(peers.prune(false)).toEqual({ through: 0, moreRemains: false });
  });

  test("empties the log when everybody has everything, also while the node is busy", () => {
    fill(100);
    for (const url of ["http://a", "http://b"]) peers.move(url, 100, 100);
    expect(peers.prune(true)).toEqual({ through: 100, moreRemains: false });
    expect(left()).toBe(0);
    // Numbers are not given out again.
    db.run(
      "INSERT INTO _changes(op, table_name, row_id, row_data) VALUES ('INSERT', 't', 'x', '{}')",
    );
    expect(db.query("SELECT change_id FROM _changes").values()).toEqual([[101]]);
  });

  test("waits while the node is busy and somebody lacks something, and is made up for", () => {
    fill(100);
    for (const url of ["http://a", "http://b"]) peers.move(url, 60, 60);
    expect(peers.prune(true)).toEqual({ through: 0, moreRemains: true });
    expect(left()).toBe(100);
    expect(peers.prune(false)).toEqual({ through: 60, moreRemains: false });
    expect(left()).toBe(40);
  });

  test("deletes a large amount in parts, so that no transaction is long", () => {
    fill(40_000);
    for (const url of ["http://a", "http://b"]) peers.move(url, 37_000, 37_000);
    const steps: number[] = [];
    for (;;) {
      const before = left();
      const { moreRemains } = peers.prune(false);
      steps.push(before - left());
      if (!moreRemains) break;
    }
    expect(Math.max(...steps)).toBeLessThanOrEqual(5_001);
    expect(left()).toBe(3_000);
  });

  test("without peers nothing is deleted", () => {
    fill(10);
    peers.configure([], (url) => url);
    expect(peers.prune(false)).toEqual({ through: 0, moreRemains: false });
    expect(left()).toBe(10);
  });

  test.each([
    ["a busy node keeps some", { least: 400_000, oldest: 1, newest: 500_000 }, true, 0, true],
    ["but not without end", { least: 600_000, oldest: 1, newest: 700_000 }, true, 5_001, true],
    ["one at rest none", { least: 400_000, oldest: 1, newest: 500_000 }, false, 5_001, true],
    [
      "a long log is not emptied at once",
      { least: 30_000, oldest: 1, newest: 30_000 },
      true,
      5_001,
      true,
    ],
    ["its end is", { least: 30_000, oldest: 20_000, newest: 30_000 }, true, 30_000, false],
    ["an empty log is left alone", { least: 5, oldest: null, newest: null }, false, 0, false],
  ])("%s", (_, standing, isBusy, through, moreRemains) => {
    expect(pruneStep(standing, isBusy)).toEqual({ through, moreRemains });
  });
});
