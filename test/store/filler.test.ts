/** Filling a peer, and what makes one unnecessary. */
import { expect, test } from "bun:test";
import type { PeerHealth } from "../../lib/protocol/peer.ts";
import { StoreFile, T } from "../support/open-store.ts";

const A = "http://a";
const B = "http://b";
const DB = "aa".repeat(16);

function open(file: StoreFile, nodeId = "node-a", peers = [A, B]): void {
  file.open({ asked: ["notes"], nodeId }).configurePeers(peers, (url) => url);
}

/** A file with two rows that every peer has. */
async function opened(peers = [A, B]): Promise<StoreFile> {
  const file = new StoreFile(
    `CREATE TABLE notes(id TEXT PRIMARY KEY, n, updated_at INTEGER); INSERT INTO notes VALUES('old', 0, ${T})`,
  );
  open(file, "node-a", peers);
  for (const url of peers) await file.store.needNoFill(url);
  return file;
}

function health(db: string): PeerHealth {
  const identity = { db };
  return { url: B, identity, nodeId: "b", itemCount: 1, pendingChanges: 0, hub: false };
}

const fillOf = (file: StoreFile) =>
  file.rows<{ entries: number }>(
    "SELECT count(*) AS entries FROM _changes WHERE only_for = ?",
    B,
  )[0]!.entries;

test("one that begins again leaves nothing in the log of the one before", async () => {
  await using file = await opened();
  await file.store.fill(B, "asked for");
  expect(fillOf(file)).toBe(1);
  await file.store.fill(B, "asked for again");
  for (let step = 0; step < 4; step++) {
    await file.store.recordMoves([{ peer: B, through: file.store.settledThrough }]);
  }
  expect(file.entries()).toEqual([]);
});

test("what is made for it stays its own after a write that did nothing", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes VALUES('gone', 0, ${T}), ('in the way', 0, ${T})`);
  file.write("DELETE FROM notes WHERE id = 'gone'");
  await file.settle();
  const through = file.store.settledThrough;
  await file.store.recordMoves([A, B].map((peer) => ({ peer, through })));
  file.write("INSERT OR IGNORE INTO notes(id) VALUES('in the way')");
  await file.store.fill(B, "asked for");
  expect([fillOf(file), file.entries().length]).toEqual([3, 3]);
});

test("a stamp that no node takes is sent as version 0", async () => {
  await using file = await opened();
  const odd = "('low', 0, -9007199254740992), ('real', 0, 1.5), ('high', 0, 9007199254740992)";
  file.write(`UPDATE _meta SET value = 1; INSERT INTO notes VALUES ${odd}, ('none', 0, NULL);
    UPDATE _meta SET value = 0`);
  await file.store.fill(B, "asked for");
  const sent = file.entries().map(({ row_id, row_data }) => [row_id, JSON.parse(row_data)]);
  expect(sent.map(([id, row]) => [id, row.updated_at])).toEqual([
    ["high", 0],
    ["low", 0],
    ["none", null],
    ["old", T],
    ["real", 0],
  ]);
});

test("ids that are not UTF-8, of rows and of deletes, neither stop it nor stand for others", async () => {
  await using file = await opened();
  const odd = ["x'61ff'", "x'61fe62'", "x'ff'", "x'6100'", "x'efbfbd'"].map(
    (bytes) => `(CAST(${bytes} AS TEXT), 1, ${T})`,
  );
  const gone = ["x'62ff'", "x'fe'"].map((bytes) => `(CAST(${bytes} AS TEXT), 1, ${T})`);
  file.write(`INSERT INTO notes VALUES ${[...odd, ...gone].join()}`);
  await file.settle();
  file.write("DELETE FROM notes WHERE hex(id) IN ('62FF', 'FE')");
  await file.settle();
  const through = file.store.settledThrough;
  await file.store.recordMoves([A, B].map((peer) => ({ peer, through })));
  await file.store.fill(B, "asked for");
  for (let step = 0; step < 3; step++) await file.runDue();
  const sent = file.rows<{ op: string; id: string; row: string }>(
    `SELECT op, hex(row_id) AS id, hex(json_extract(row_data, '$.id')) AS row FROM _changes
     WHERE only_for = ? ORDER BY change_id`,
    B,
  );
  expect(sent.map(({ op, id }) => `${op} ${id}`)).toEqual([
    ...["6100", "61FE62", "61FF", "6F6C64", "EFBFBD", "FF"].map((id) => `INSERT ${id}`),
    ...["62FF", "FE"].map((id) => `DELETE ${id}`),
  ]);
  expect(sent.map(({ row }) => row)).toEqual(sent.map(({ id }) => id));
});

test("a fill that an earlier version began goes on where it was", async () => {
  await using file = await opened();
  file.write(`INSERT INTO notes VALUES('é', 1, ${T}), ('z', 1, ${T})`);
  await file.settle();
  const fill = { reason: "asked for", phase: "rows", table: "notes", after: "z" };
  const rest = { before: 0, through: 0, dropped: 0, entries: 3 };
  file.store.db
    .query("UPDATE _peer_state SET fill = ? WHERE peer_url = ?")
    .run(JSON.stringify({ ...fill, ...rest }), B);
  await file.close();
  open(file);
  await file.runDue();
  expect(file.rows("SELECT row_id FROM _changes WHERE only_for = ?", B)).toEqual([{ row_id: "é" }]);
});

test("what everybody has leaves the log with the last of a fill, also while the node is busy", async () => {
  await using file = await opened();
  const more = Array.from({ length: 700 }, (_, n) => `('more${n}', 0, ${T})`).join(", ");
  file.write(`INSERT INTO notes VALUES ${more}; DELETE FROM _changes`);
  await file.settle();
  await file.store.queue.run("local", () => {
    file.store.db.run("INSERT INTO notes(id) VALUES ('new')");
  });
  await file.settle();
  const written = file.store.settledThrough;
  await file.store.fill(B, "asked for");
  await file.store.runDue();
  await file.store.recordMoves([
    { peer: A, through: written },
    { peer: B, through: file.store.settledThrough },
  ]);
  await file.store.runDue();
  expect(file.store.queue.isBusy).toBe(true);
  expect(file.entries()).toEqual([]);
});

test("from its beginning nothing that the peer acknowledged is relied on", async () => {
  await using file = await opened();
  await file.store.recordMoves([{ peer: B, through: 0, ackedBatchId: 7 }]);
  const prev = () =>
    file.rows("SELECT prev FROM _peer_state WHERE peer_url = ?", B) as { prev: number }[];
  expect(prev()).toEqual([{ prev: 7 }]);
  await file.store.fill(B, "asked for");
  expect(prev()).toEqual([{ prev: 0 }]);
});

test("who has another file than before wants one from the moment on at which that is known", async () => {
  await using file = await opened();
  expect(await file.store.learnPeer(health(DB))).toEqual({ fillWanted: null, isFirst: true });
  expect(await file.store.learnPeer(health(DB))).toEqual({ fillWanted: null, isFirst: false });
  const fillWanted = "its file is another one than before";
  expect(await file.store.learnPeer(health("bb".repeat(16)))).toEqual({
    fillWanted,
    isFirst: false,
  });
  await file.close();
  open(file);
  expect(file.store.peers.rows().find(({ url }) => url === B)).toMatchObject({ fillWanted });
  expect(await file.store.learnPeer({ ...health(DB), url: "http://gone" })).toBeUndefined();
});

test("what another file acknowledged meanwhile, the one that comes back lacks", async () => {
  await using file = await opened();
  const standing = () =>
    file.rows("SELECT prev, db_id, fill_wanted FROM _peer_state WHERE peer_url = ?", B)[0];
  await file.store.learnPeer(health(DB));
  const move = { peer: B, through: 0, ackedBatchId: 7 };
  await file.store.recordMoves([{ ...move, dbId: DB }]);
  expect(standing()).toEqual({ prev: 7, db_id: DB, fill_wanted: null });
  const dbId = "bb".repeat(16);
  const fillWanted = "its file is another one than before";
  // Gone again before anybody asked who it is.
  await file.store.recordMoves([{ ...move, dbId, ackedBatchId: 9 }]);
  expect(standing()).toEqual({ prev: 0, db_id: dbId, fill_wanted: fillWanted });
  expect(await file.store.learnPeer(health(DB))).toEqual({ fillWanted, isFirst: false });
  await file.store.recordMoves([{ ...move, dbId: file.store.dbId }]);
  expect(standing()).toMatchObject({ db_id: DB });
});

test("which file acknowledged is known before anybody asked who it is", async () => {
  await using file = await opened();
  const standing = () =>
    file.rows("SELECT prev, db_id, fill_wanted FROM _peer_state WHERE peer_url = ?", B)[0];
  await file.store.recordMoves([{ peer: B, through: 0, ackedBatchId: 7, dbId: DB }]);
  expect(standing()).toEqual({ prev: 7, db_id: DB, fill_wanted: null });
  const fillWanted = "its file is another one than before";
  expect(await file.store.learnPeer(health("bb".repeat(16)))).toEqual({
    fillWanted,
    isFirst: true,
  });
  expect(standing()).toMatchObject({ prev: 0 });
});

test("a copy's mark for its original is of a change that the original made for everybody", async () => {
  await using file = await opened();
  file.write("INSERT INTO notes(id) VALUES('new')");
  await file.settle();
  const { dbId, settledThrough: written } = file.store;
  await file.store.fill(B, "asked for");
  expect(file.store.settledThrough).toBeGreaterThan(written);
  await file.close();
  open(file, "node-copy", [A]);
  const mark = { batchId: written, hash: file.store.log.hashOf(written)! };
  expect(file.store.peers.mark(dbId)).toEqual(mark);
});

test("the original of a copy needs none until something written in the copy has left its log", async () => {
  await using file = await opened([A]);
  const { dbId } = file.store;
  await file.close();
  open(file, "node-copy", [A]);
  expect(file.store.isCopyOf(dbId)).toBe(true);
  file.write("INSERT INTO notes(id) VALUES('new')");
  await file.settle();
  expect(file.store.isCopyOf(dbId)).toBe(true);
  await file.store.recordMoves([{ peer: A, through: file.store.settledThrough }]);
  expect(file.store.isCopyOf(dbId)).toBe(false);
});

test("it is made in small parts, two slices ahead of the peer, and leaves the log in small parts (F1, F4, F5)", async () => {
  const rows = 6_500;
  await using file = new StoreFile(
    `CREATE TABLE notes(id TEXT PRIMARY KEY, n, updated_at INTEGER);
     WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ${rows})
     INSERT INTO notes SELECT 'row ' || n, n, ${T} FROM i`,
  );
  open(file, "node-a", [B]);
  const { store } = file;
  const advance = async () => {
    const before = fillOf(file);
    const step = await store.queue.run("apply", (transaction) => {
      const made = store.filler.advance(store.survey.synced);
      transaction.logged(made.logged);
      return made;
    });
    return { ...step, dropped: before + step.logged - fillOf(file) };
  };
  const take = (through: number) =>
    store.queue.run("apply", () => store.peers.move(B, through, undefined));
  /** Until there is nothing to do but wait for the peer; says how much that made and dropped. */
  async function advanceAll(): Promise<{ made: number; dropped: number; isComplete: boolean }> {
    const sum = { made: 0, dropped: 0, isComplete: false };
    for (let moreRemains = true; moreRemains; ) {
      const step = await advance();
      expect(Math.max(step.logged, step.dropped)).toBeLessThanOrEqual(500);
      sum.made += step.logged;
      sum.dropped += step.dropped;
      sum.isComplete ||= step.complete.length > 0;
      ({ moreRemains } = step);
    }
    return sum;
  }

  await store.fill(B, "asked for");
  const began = fillOf(file);
  expect(began).toBeWithin(1, 501);
  const { made, isComplete } = await advanceAll();
  expect([began + made, isComplete]).toEqual([5_000, false]);
  const first = file.rows<{ id: number }>("SELECT min(change_id) AS id FROM _changes")[0]!.id;

  // A part of a slice taken makes room for nothing; the whole of it does, for what is left.
  await take(first + 1_249);
  expect(await advanceAll()).toEqual({ made: 0, dropped: 1_250, isComplete: false });
  await take(first + 2_499);
  expect(await advanceAll()).toEqual({ made: 1_500, dropped: 1_250, isComplete: false });
  await take(first + 6_498);
  expect(await advanceAll()).toEqual({ made: 0, dropped: 3_999, isComplete: false });
  await take(first + 6_499);
  expect(await advanceAll()).toEqual({ made: 0, dropped: 1, isComplete: true });
  expect(fillOf(file)).toBe(0);
});

test.each([1, 499, 500, 501, 1_000, 5_000, 10_000])(
  "several peers that take %d rows each leave nothing behind, and each has had all",
  async (rows) => {
    await using file = new StoreFile(
      `CREATE TABLE notes(id TEXT PRIMARY KEY, n, updated_at INTEGER);
       WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ${rows})
       INSERT INTO notes SELECT 'row ' || n, n, ${T} FROM i`,
    );
    open(file);
    const { store } = file;
    for (const url of [A, B]) await store.fill(url, "asked for");
    // As the shipper says it: each has what is for it, and no entry of the other is ever acknowledged.
    const newestFor = (url: string) =>
      file.rows<{ id: number }>(
        "SELECT max(change_id) AS id FROM _changes WHERE only_for = ?",
        url,
      )[0]!.id;
    for (let turn = 0; turn < 20 && store.isFilling; turn++) {
      for (const url of turn % 2 === 0 ? [A, B] : [B, A]) {
        const through = newestFor(url);
        if (through !== null)
          await store.recordMoves([{ peer: url, through, ackedBatchId: through }]);
      }
      await store.runDue();
    }
    expect([store.isFilling, file.entries()]).toEqual([false, []]);
    const filled = file.events.filter(({ kind }) => kind === "filled");
    expect(filled.map((event) => ("text" in event ? event.text : "")).sort()).toEqual(
      [A, B].map((url) => `${url} has everything now (${rows} changes)`),
    );
  },
);
