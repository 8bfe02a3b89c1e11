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
