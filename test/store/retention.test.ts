/** How long deletes are remembered, and what becomes of a file that was away for longer. */
import { expect, test } from "bun:test";
import { HookSyncError } from "../../lib/base/errors.ts";
import { StoreFile, T } from "../support/open-store.ts";

const DAY_MS = 24 * 3_600_000;
const RETENTION_MS = 30 * DAY_MS;

async function withDelete(): Promise<StoreFile> {
  const file = new StoreFile(
    "CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER); CREATE TABLE other(n)",
  );
  file.open({ asked: ["t"], tombstoneRetentionMs: RETENTION_MS });
  file.write(`INSERT INTO t VALUES ('gone', ${T}); DELETE FROM t`);
  await file.settle();
  return file;
}

const remembered = (file: StoreFile) => file.rows("SELECT id FROM _hooksync_tombstones").length;

test("a delete is remembered, however long, while somebody may not know of it", async () => {
  await using file = await withDelete();
  for (let days = 0; days < 100; days += 10) {
    file.clock.ms += 10 * DAY_MS;
    expect(await file.store.forgetTombstones(false, false)).toBe(0);
  }
  expect(remembered(file)).toBe(1);
});

test("it is forgotten a retention after everybody knew of it, behind a hub ten times as long after", async () => {
  await using file = await withDelete();
  file.clock.ms += 1_000;
  expect(await file.store.forgetTombstones(true, false)).toBe(0);
  file.clock.ms += RETENTION_MS - 1;
  expect(await file.store.forgetTombstones(true, false)).toBe(0);
  file.clock.ms += 1;
  expect(await file.store.forgetTombstones(true, true)).toBe(0);
  expect(await file.store.forgetTombstones(true, false)).toBe(1);
  expect(remembered(file)).toBe(0);
});

test("what was deleted after everybody knew all stays when that moment is past", async () => {
  await using file = await withDelete();
  file.clock.ms += 1_000;
  await file.store.forgetTombstones(true, false);
  file.clock.ms += 1_000;
  file.write(`INSERT INTO t VALUES ('later', ${T}); DELETE FROM t`);
  await file.settle();
  file.clock.ms += RETENTION_MS;
  expect(await file.store.forgetTombstones(false, false)).toBe(1);
  expect(file.rows("SELECT id FROM _hooksync_tombstones")).toEqual([{ id: "later" }]);
});

test("deletes are known again after a restart: an older row that comes late stays out", async () => {
  await using file = await withDelete();
  await file.close();
  file.open();
  file.write(`INSERT INTO t VALUES ('gone', ${T - 5})`);
  await file.settle();
  // Written here, so it is meant: above its delete, and not below it again.
  expect(file.rows<{ u: number }>("SELECT updated_at AS u FROM t")[0]!.u).toBeGreaterThan(T);
  expect(remembered(file)).toBe(1);
});

test("a file that was not open for longer than the retention is refused, and opened on demand", async () => {
  await using file = await withDelete();
  await file.close();
  file.clock.ms += RETENTION_MS;
  file.open({ tombstoneRetentionMs: RETENTION_MS });
  await file.close();
  file.clock.ms += RETENTION_MS + 1;
  let refusal: unknown;
  try {
    file.open({ tombstoneRetentionMs: RETENTION_MS });
  } catch (error) {
    refusal = error;
  }
  expect(refusal).toBeInstanceOf(HookSyncError);
  expect(refusal).toMatchObject({
    code: "file-too-old",
    message: expect.stringContaining("was not open for 30 days"),
  });
  file.open({ tombstoneRetentionMs: RETENTION_MS, acceptOldFile: true });
  expect([...file.store.survey.synced.keys()]).toEqual(["t"]);
});
