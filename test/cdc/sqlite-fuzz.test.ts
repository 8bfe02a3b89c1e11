/**
 * A plain SQLite file as a source, written by programs that know nothing of its log and by one that
 * ends its transactions in it: a follower is always as the file was between two transactions, and after
 * every settle it has what the file has, whatever triggers, foreign keys, ALTERs and VACUUMs did.
 * `SEEDS=500 bun test test/cdc/sqlite-fuzz.test.ts` searches longer, `SEED=7` replays one.
 */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readCopy } from "../../lib/cdc/copy.ts";
import { applyBatch } from "../../lib/cdc/replica.ts";
import { SqliteCapture } from "../../lib/cdc/sqlite-capture.ts";
import { CdcTailer } from "../../lib/cdc/tailer.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";
import { contentOf } from "./support/content.ts";
import { SqliteWorkload } from "./support/sqlite-workload.ts";
import { Follower } from "./support/turso-source.ts";
import { PAIR_CHECK_SQL, PAIR_SQL } from "./support/workload.ts";

const STEPS = 60;

test(
  "the follower has what the file has",
  () =>
    forSeeds(12, async (random) => {
      const folder = mkdtempSync(join(tmpdir(), "cdc-sqlite-"));
      try {
        await run(random, join(folder, "source.db"));
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    }),
  600_000,
);

function open(path: string): Database {
  const db = new Database(path);
  db.run("PRAGMA journal_mode = WAL");
  db.run("PRAGMA synchronous = OFF");
  return db;
}

async function run(random: Seeded, path: string): Promise<void> {
  using node = open(path);
  using first = open(path);
  using second = open(path);
  using knowing = open(path);
  using reader = open(path);
  using follower = new Follower();
  let capture = SqliteCapture.open(node);
  first.exec(PAIR_SQL);
  capture.settle();
  const workload = new SqliteWorkload(random, [first, second], [knowing]);
  const history = new History();
  history.was(await contentOf(reader));
  let tailer = new CdcTailer(reader, null);
  for (let step = 0; step < STEPS; step++) {
    workload.step();
    // SQLite itself can damage a file by some mixtures of triggers, UPSERT and REPLACE.
    if (!isWhole(reader)) return;
    history.was(await contentOf(reader));
    const dice = random.next();
    if (dice < 0.15) capture.settle();
    else if (dice < 0.3) capture.settlePart(1 + random.below(4));
    else if (dice < 0.33) capture = SqliteCapture.open(node);
    else if (dice < 0.36) tailer = new CdcTailer(reader, follower.replica.watermark());
    else if (dice < 0.4) capture.prune(follower.replica.watermark()?.commit ?? 0n);
    if (random.chance(0.5)) await pump(tailer, follower, history);
    if (random.chance(0.1)) {
      capture.settle();
      await pump(tailer, follower, history);
      expect(await contentOf(follower.db, follower.replica.schemaDigest())).toEqual(
        await contentOf(reader),
      );
    }
  }
  capture.settle();
  await pump(tailer, follower, history);
  const content = await contentOf(reader);
  expect(await contentOf(follower.db, follower.replica.schemaDigest())).toEqual(content);
  using copied = new Follower();
  applyBatch(copied.replica, await readCopy(reader, 0));
  expect(await contentOf(copied.db, copied.replica.schemaDigest())).toEqual(content);
  expect(workload.counts.done).toBeGreaterThan(STEPS);
}

function isWhole(db: Database): boolean {
  const [row] = db.query<{ integrity_check: string }, []>("PRAGMA integrity_check").all();
  return row!.integrity_check === "ok";
}

type Content = Awaited<ReturnType<typeof contentOf>>;

/** Tables come in the order in which they were made, on either side. */
function hashOf(content: Content): string {
  return Bun.hash(JSON.stringify(Object.entries(content).sort())).toString();
}

/** What the file held after each of its transactions. */
class History {
  readonly #states: string[] = [];
  #at = 0;

  was(content: Content): void {
    this.#states.push(hashOf(content));
  }

  /** A follower does not go back, either. */
  expectHad(content: Content): void {
    const at = this.#states.indexOf(hashOf(content), this.#at);
    expect(at).toBeGreaterThanOrEqual(this.#at);
    this.#at = at;
  }
}

async function pump(tailer: CdcTailer, follower: Follower, history: History): Promise<void> {
  for (let batch = await tailer.pollBatch(); batch !== null; batch = await tailer.pollBatch()) {
    applyBatch(follower.replica, batch);
    batch.close();
    const row = follower.db.query<{ difference: number }, []>(PAIR_CHECK_SQL).get();
    expect(row!.difference).toBe(0);
    history.expectHad(await contentOf(follower.db, follower.replica.schemaDigest()));
  }
}
