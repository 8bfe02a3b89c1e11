/** What a peer's mark says of this file: nothing, that the peer went back in time, or that this file did. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import { StoreFile, T } from "../support/open-store.ts";

const B = "http://b";

let file: StoreFile;

beforeEach(async () => {
  file = new StoreFile(
    `CREATE TABLE notes(id TEXT PRIMARY KEY, n, updated_at INTEGER); INSERT INTO notes VALUES('old', 0, ${T})`,
  );
  file.open({ asked: ["notes"] }).configurePeers([B], (url) => url);
  await file.store.needNoFill(B);
  // Entries 1 to 3.
  for (const id of ["one", "two", "three"]) file.write(`INSERT INTO notes(id) VALUES('${id}')`);
  await file.settle();
});

afterEach(() => file[Symbol.asyncDispose]());

/** The mark that a peer sets for the batch that ends here. */
function mark(batchId: number): { batchId: number; hash: string } {
  return { batchId, hash: file.store.log.hashOf(batchId) ?? "0" };
}

const newest = () => file.store.settledThrough;

test("what it has more than it acknowledged was acknowledged in vain, if this file has it, too", () => {
  expect(file.store.judgeMark(0, mark(newest()))).toBe("fine");
  expect(file.store.judgeMark(1, mark(2))).toBe("fine");
});

test("less than it acknowledged: it was restored", () => {
  expect(file.store.judgeMark(3, mark(2))).toBe("lost");
});

test("more than there is, or something else: this file was", () => {
  expect(file.store.judgeMark(1, { batchId: newest() + 1, hash: "0" })).toBe("restored");
  expect(file.store.judgeMark(1, { batchId: newest(), hash: "0" })).toBe("restored");
});

test("nothing where settling made one entry of several: this file was, and another program wrote to it", async () => {
  const before = newest();
  for (let n = 0; n < 5; n++) file.write(`UPDATE notes SET n = ${n} WHERE id = 'old'`);
  await file.settle();
  const { store } = file;
  const gap = [1, 2, 3, 4].map((n) => before + n).find((id) => !store.log.has(id));
  expect(gap).toBeDefined();
  expect(store.judgeMark(before, { batchId: gap!, hash: "0" })).toBe("restored");
});

test("nothing where everybody had it: then it has left the log, and says nothing", async () => {
  const last = mark(newest());
  await file.store.recordMoves([{ peer: B, through: newest(), ackedBatchId: 1 }]);
  expect(file.entries()).toEqual([]);
  expect(file.store.judgeMark(1, { ...last, hash: "0" })).toBe("fine");
});

test("entries of a fill, there, taken, or given up: they say nothing", async () => {
  const { store } = file;
  await store.fill(B, "asked for");
  const inFill = newest();
  expect(store.judgeMark(1, { batchId: inFill, hash: "0" })).toBe("fine");
  // Another peer is far behind and holds the log; the answer to the last batch was lost.
  store.configurePeers([B, "http://c"], (url) => url);
  await store.fill(B, "asked for once more");
  expect(store.log.has(inFill)).toBe(false);
  expect(store.judgeMark(1, { batchId: inFill, hash: "0" })).toBe("fine");
  const taken = newest();
  await store.recordMoves([{ peer: B, through: taken, ackedBatchId: taken }]);
  expect(store.log.has(taken)).toBe(false);
  expect(store.judgeMark(1, { batchId: taken, hash: "0" })).toBe("fine");
});

test("entries of a fill whose peer was removed: they say nothing, either", async () => {
  const { store } = file;
  await store.fill(B, "asked for");
  const inFill = newest();
  store.configurePeers(["http://c"], (url) => url);
  expect(store.log.has(inFill)).toBe(false);
  expect(store.judgeMark(0, { batchId: inFill, hash: "0" })).toBe("fine");
});
