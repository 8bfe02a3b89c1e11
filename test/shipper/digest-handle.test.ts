/** The thread that reads whole tables, as the node has it: a real worker, a real file. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemTimers } from "../../lib/base/clock.ts";
import { RequestError } from "../../lib/base/errors.ts";
import type { Random } from "../../lib/base/random.ts";
import { DigestHandle } from "../../lib/shipper/digest-handle.ts";
import { Digests } from "../../lib/shipper/digests.ts";
import type { DigestTable } from "../../lib/store/digest.ts";
import { migrate } from "../../lib/store/migrations.ts";
import { VirtualTime } from "./virtual-time.ts";

const WORKER = new URL("../../lib/shipper/digest-worker.ts", import.meta.url);
const TABLE: DigestTable = {
  name: "t",
  key: "t",
  id: "id",
  version: "updated_at",
  columns: [
    { name: "updated_at", key: "updated_at", holds: "anything" },
    { name: "v", key: "v", holds: "anything" },
  ],
};
const WHOLE = { from: "", to: "" };

let folder: string;
let path: string;
let db: Database;
let handle: DigestHandle;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "hook-sync-digests-"));
  path = join(folder, "a.db");
  db = new Database(path);
  db.run("PRAGMA journal_mode = WAL");
  db.run("CREATE TABLE t(id TEXT PRIMARY KEY, v, updated_at INTEGER)");
  migrate(db);
  db.run("INSERT INTO t VALUES('a', 1, 1), ('b', x'00ff', 2), ('c', CAST(x'ff' AS TEXT), 3)");
  db.run("INSERT INTO _hooksync_tombstones VALUES('t', 'gone', 9, 9)");
  handle = new DigestHandle({ workerUrl: WORKER, dbPath: path, timers: systemTimers });
});

afterEach(async () => {
  await handle.stop();
  db.close();
  rmSync(folder, { recursive: true });
});

test("digests, buckets and keys are answered over there", async () => {
  const [summary] = await handle.ask("read", { snapshot: "s", tables: [TABLE], isSlow: false });
  expect(summary).toMatchObject({
    table: "t",
    columns: ["updated_at", "v"],
    rows: 3,
    tombstones: 1,
  });
  const ask = { snapshot: "s", tableKey: "t", ranges: [WHOLE] };
  const [range] = await handle.ask("buckets", { ...ask, most: 1 });
  expect(range).toMatchObject({
    isFinest: true,
    buckets: [{ to: "", rows: 3, hash: summary!.hash }],
  });
  const [keys] = await handle.ask("keysIn", ask);
  expect(keys!.keys.map(({ id, version }) => [id, version])).toEqual([
    ["a", 1],
    ["b", 2],
    ["c", 3],
  ]);
  const states = await handle.ask("keysOf", { table: TABLE, ids: ["gone", "a"] });
  expect(states).toEqual([
    { id: "gone", version: 9, hash: null, deleted: true },
    { ...keys!.keys[0]!, deleted: false },
  ]);
});

test("rows are a batch as POST /sync takes it, values exact, bounded in size", async () => {
  const ids = ["b", "never", "c", "gone", "a"];
  const text = await handle.ask("rows", { table: TABLE, ids, bytesMax: 1_000_000 });
  expect(JSON.parse(text)).toEqual({
    batch_id: 1,
    next: 5,
    changes: [
      {
        op: "INSERT",
        table: "t",
        row: { id: "b", updated_at: 2, v: "\\x00ff" },
        old_id: null,
        blobs: ["v"],
      },
      {
        op: "INSERT",
        table: "t",
        row: { id: "c", updated_at: 3, v: "\\xff" },
        old_id: null,
        texts: ["v"],
      },
      { op: "DELETE", table: "t", row: { id: "gone", updated_at: 9 }, old_id: "gone" },
      { op: "INSERT", table: "t", row: { id: "a", updated_at: 1, v: 1 }, old_id: null },
    ],
  });
  // One at least, or nobody would come further.
  const first = await handle.ask("rows", { table: TABLE, ids, bytesMax: 1 });
  expect(JSON.parse(first).next).toBe(1);
});

test("a copy of the file", async () => {
  const out = join(folder, "copy.db");
  await handle.ask("copy", { path: out });
  const copy = new Database(out, { readonly: true });
  expect(copy.query("SELECT count(*) AS n FROM t").get()).toEqual({ n: 3 });
  copy.close();
});

describe("what goes wrong over there", () => {
  test("a refusal comes as what it was", async () => {
    const ask = { snapshot: "none", tableKey: "t", ranges: [WHOLE], most: 1 };
    const refusal = await handle.ask("buckets", ask).catch((error: unknown) => error);
    expect(refusal).toBeInstanceOf(RequestError);
    expect(refusal).toMatchObject({ status: 409 });
    const gone = { ...TABLE, name: "none" };
    const failure = await handle
      .ask("keysOf", { table: gone, ids: ["a"] })
      .catch((e: unknown) => e);
    expect(failure).toMatchObject({ code: "SQLITE_ERROR", message: "no such table: none" });
    // A failed reading does not hold up the next.
    await handle
      .ask("read", { snapshot: "x", tables: [gone], isSlow: false })
      .catch(() => undefined);
    expect(
      await handle.ask("read", { snapshot: "y", tables: [TABLE], isSlow: false }),
    ).toHaveLength(1);
  });

  test("a thread that cannot start fails the question; the next one starts another", async () => {
    const broken = new DigestHandle({
      workerUrl: new URL("file:///no/such/worker.ts"),
      dbPath: path,
      timers: systemTimers,
    });
    for (let at = 0; at < 2; at++) {
      const failure = await broken
        .ask("keysOf", { table: TABLE, ids: [] })
        .catch((e: unknown) => e);
      expect(failure).toMatchObject({ code: "busy" });
    }
    await broken.stop();
  });
});

test("when nobody asks for five minutes the thread ends; the next question starts it again", async () => {
  const time = new VirtualTime();
  const resting = new DigestHandle({ workerUrl: WORKER, dbPath: path, timers: time });
  await resting.ask("read", { snapshot: "s", tables: [TABLE], isSlow: false });
  const ask = { snapshot: "s", tableKey: "t", ranges: [WHOLE], most: 1 };
  await time.advance(299_000);
  expect(await resting.ask("buckets", ask)).toHaveLength(1);
  await time.advance(301_000);
  // It is another thread: what the first had kept is gone.
  const failure = await resting.ask("buckets", ask).catch((error: unknown) => error);
  expect(failure).toMatchObject({ status: 409 });
  await resting.stop();
});

test("stopping closes its connections first: no -wal is left when the main one closes", async () => {
  await handle.ask("read", { snapshot: "s", tables: [TABLE], isSlow: false });
  await handle.ask("rows", { table: TABLE, ids: ["a"], bytesMax: 1 });
  await handle.stop();
  db.close(true);
  expect(existsSync(`${path}-wal`)).toBe(false);
  db = new Database(path);
  expect(handle.ask("keysOf", { table: TABLE, ids: [] })).rejects.toThrow("stopping");
});

test("a reading that takes longer than a request may is named, and asked for by its name", async () => {
  let name = 0;
  const random: Random = { next: () => 0, uuid: () => "", hex: () => `name${name++}` };
  const digests = new Digests({ handle, timers: systemTimers, random, patienceMs: 0 });
  const first = await digests.read([TABLE], false);
  expect(first).toEqual({ kind: "reading", snapshot: "name0" });
  let answer = first;
  while (answer.kind === "reading") {
    await Bun.sleep(5);
    answer = await digests.result("name0");
  }
  expect(answer.tables[0]).toMatchObject({ table: "t", rows: 3 });
  expect(digests.result("other")).rejects.toMatchObject({ status: 409 });
  for (let at = 0; at < 40; at++) await digests.read([], false);
  expect(digests.result("name0")).rejects.toMatchObject({ status: 409 });
});
