/** The log of a node's file: who is remembered, and what is deleted when. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemTimers } from "../../lib/base/clock.ts";
import { readCopy } from "../../lib/cdc/copy.ts";
import { applyBatch } from "../../lib/cdc/replica.ts";
import { CdcService } from "../../lib/cdc/service.ts";
import { SqliteCommits } from "../../lib/cdc/sqlite-commits.ts";
import { CdcTailer } from "../../lib/cdc/tailer.ts";
import { Seeded } from "../support/seeded.ts";
import { Follower, follow } from "./support/turso-source.ts";

/** An engine is loaded, and files are written, while others work as well. */
setDefaultTimeout(60_000);

const DAY_MS = 86_400_000;
let folder = "";
let seed = 0;
let program: Database;
let service: CdcService;
/** The log's own times are SQLite's, so that this clock is moved from the real one. */
let aheadMs = 0;
let begunAnew = 0;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cdc-service-"));
  aheadMs = 0;
  begunAnew = 0;
  program = new Database(join(folder, "node.db"));
  program.exec(
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; CREATE TABLE t (k INTEGER PRIMARY KEY, v)",
  );
});
afterEach(() => {
  service.close();
  program.close();
  rmSync(folder, { recursive: true, force: true });
});

function open(keepBytes = 1e9): void {
  const startedMs = Date.now();
  const nowMs = () => startedMs + aheadMs;
  service = CdcService.open({
    path: join(folder, "node.db"),
    keepMs: DAY_MS,
    keepBytes,
    clock: { nowMs, monotonicMs: nowMs },
    timers: systemTimers,
    random: new Seeded(++seed),
    onBegunAnew: () => void begunAnew++,
  });
}

function write(rows: number): void {
  for (let n = 0; n < rows; n++) program.run("INSERT INTO t (v) VALUES ('some text of a row')");
}

/** A step of the node's timer, when the time for pruning has come, until nothing is left to do. */
function look(): void {
  for (let n = 0; n < 5; n++) {
    aheadMs += 20_000;
    service.look();
  }
}

const oldest = () =>
  program.query<{ id: number | null }, []>("SELECT min(change_id) AS id FROM _cdc").get()!.id;

async function position(): Promise<Follower> {
  const follower = new Follower();
  using reader = new Database(join(folder, "node.db"), { readonly: true });
  const copy = await readCopy(reader, 0);
  applyBatch(follower.replica, copy);
  copy.close();
  return follower;
}

test("what all named followers have goes; what the slowest lacks stays", async () => {
  open();
  write(10);
  const slow = await position();
  write(10);
  const quick = await position();
  await service.stream(slow.replica.watermark(), "slow", false).cancel();
  await service.stream(quick.replica.watermark(), "quick", false).cancel();
  write(5);
  look();
  expect(oldest()).toBe(9);
  expect(service.followers()).toMatchObject([
    { name: "quick", position: 20, behind: 5 },
    { name: "slow", position: 10, behind: 15 },
  ]);
  using reader = new Database(join(folder, "node.db"), { readonly: true });
  expect(await follow(new CdcTailer(reader, slow.replica.watermark()), slow.replica)).toBe(1);
  await service.stream(slow.replica.watermark(), "slow", false).cancel();
  look();
  expect(oldest()).toBe(19);
});

test("who had all before its end was marked lacks nothing", async () => {
  open();
  write(1);
  const follower = await position();
  await service.stream(follower.replica.watermark(), "f", false).cancel();
  new SqliteCommits(program).end();
  expect(service.followers()).toMatchObject([{ position: 1, behind: 0 }]);
  write(1);
  expect(service.followers()).toMatchObject([{ position: 1, behind: 2 }]);
});

test("without named followers the log is kept for its time", () => {
  open();
  write(10);
  look();
  expect(oldest()).toBe(1);
  aheadMs += DAY_MS + 60_000;
  write(1);
  look();
  // The newest row stays for ever: ids would begin anew in an empty log.
  expect(oldest()).toBe(10);
});

test("one that comes while somebody holds the file is noted before anything goes", async () => {
  open();
  write(10);
  const slow = await position();
  program.run("BEGIN IMMEDIATE");
  await service.stream(slow.replica.watermark(), "slow", false).cancel();
  program.run("COMMIT");
  write(10);
  const quick = await position();
  await service.stream(quick.replica.watermark(), "quick", false).cancel();
  look();
  expect(service.followers()).toMatchObject([{ name: "quick" }, { name: "slow", position: 10 }]);
  expect(oldest()).toBe(9);
});

test("one that was not seen for so long is forgotten", async () => {
  open();
  write(10);
  const slow = await position();
  await service.stream(slow.replica.watermark(), "slow", false).cancel();
  aheadMs += DAY_MS + 60_000;
  look();
  expect(service.followers()).toEqual([]);
});

test("beyond its size the oldest goes, whoever lacks it", async () => {
  open(20_000);
  const first = await position();
  await service.stream(first.replica.watermark(), "first", false).cancel();
  write(1_000);
  look();
  const { n } = program.query<{ n: number }, []>("SELECT count(*) AS n FROM _cdc").get()!;
  expect(n).toBeGreaterThan(50);
  expect(n).toBeLessThan(400);
});

test("its size is that of all its rows, not of the newest", () => {
  open(200_000);
  for (let n = 0; n < 100; n++) program.run("INSERT INTO t (v) VALUES (zeroblob(5000))");
  write(100);
  look();
  const { n } = program.query<{ n: number }, []>("SELECT count(*) AS n FROM _cdc").get()!;
  expect(n).toBeGreaterThan(100);
  expect(n).toBeLessThan(125);
});

test("a file that somebody holds is looked at in the next step", () => {
  open();
  program.run("BEGIN IMMEDIATE");
  program.run("ALTER TABLE t ADD COLUMN w");
  expect(() => look()).not.toThrow();
  program.run("COMMIT");
  look();
  write(1);
  const row = program
    .query<{ after: string }, []>(`SELECT "after" FROM _cdc ORDER BY change_id DESC`)
    .get()!;
  expect(JSON.parse(row.after).length).toBe(3);
});

test.each(["", "_object", "_state", "_log", "_canary", "_rebuild"])(
  "where somebody drops _cdc%s it begins anew, and nobody goes on from a place in the other one",
  async (table) => {
    open();
    write(3);
    const follower = await position();
    await service.stream(follower.replica.watermark(), "f", false).cancel();
    program.run(`DROP TABLE _cdc${table}`);
    expect(service.followers()).toEqual([]);
    service.look();
    // A connection that dropped the table goes on without it until it reads anything.
    program.query("SELECT 1 FROM t").get();
    // As many changes as there were, so that every number is there again.
    write(4);
    service.look();
    expect([begunAnew, service.followers()]).toEqual([1, []]);
    using reader = new Database(join(folder, "node.db"), { readonly: true });
    const going = follow(new CdcTailer(reader, follower.replica.watermark()), follower.replica);
    expect(await going.catch((error) => error.code)).toBe("other-log");
    const again = await position();
    write(1);
    await follow(new CdcTailer(reader, again.replica.watermark()), again.replica);
    expect(again.db.query("SELECT count(*) FROM t").values()).toEqual([[8]]);
  },
);

test("where somebody drops the list of followers it begins empty", async () => {
  open();
  write(3);
  const follower = await position();
  await service.stream(follower.replica.watermark(), "f", false).cancel();
  program.run("DROP TABLE _cdc_follower");
  expect(service.followers()).toEqual([]);
  service.look();
  await service.stream(follower.replica.watermark(), "f", false).cancel();
  expect([begunAnew, service.followers().length]).toEqual([0, 1]);
});

describe("opened again", () => {
  test("it goes on", async () => {
    open();
    write(3);
    const follower = await position();
    service.close();
    write(2);
    program.run("ALTER TABLE t ADD COLUMN w");
    open();
    using reader = new Database(join(folder, "node.db"), { readonly: true });
    await follow(new CdcTailer(reader, follower.replica.watermark()), follower.replica);
    expect(follower.db.query("SELECT count(w), count(*) FROM t").values()).toEqual([[0, 5]]);
  });
});
