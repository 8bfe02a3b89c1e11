/**
 * A plain SQLite file against a follower that is killed again and again: two programs that know
 * nothing of the log and one that ends its transactions there write the file, with triggers, foreign
 * keys and every kind of ALTER. A reader of the follower's file never sees two tables apart that are
 * always changed together, and in the end everything is equal. `SEEDS=500` searches longer
 * (`FROM=400` goes on there), `SEED=7` replays one.
 */
import { Database } from "bun:sqlite";
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SqliteCapture } from "../../lib/cdc/sqlite-capture.ts";
import { parseWatermark, serveCdc } from "../../lib/cdc/stream.ts";
import { readLogEnd } from "../../lib/cdc/tailer.ts";
import { Seeded, seedsAsked } from "../support/seeded.ts";
import { contentOf } from "./support/content.ts";
import { Reader, startApplier, turn } from "./support/killed-follower.ts";
import { SqliteWorkload } from "./support/sqlite-workload.ts";
import { PAIR_SQL } from "./support/workload.ts";

const ROUNDS = 4;
const STEPS = 30;
const WAIT_MS = 300_000;

let checked = 0;
afterAll(() => expect(checked).toBeGreaterThan(0));

describe.each(seedsAsked(20))("seed %d", (seed) => {
  test(
    "follower and file are equal",
    async () => {
      const folder = mkdtempSync(join(tmpdir(), "cdc-sqlite-"));
      try {
        checked += await run(seed, folder);
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    },
    WAIT_MS,
  );
});

const BIG_ROWS = 200_000;
/** Where its follower is killed, of 120 frames or so. */
const KILLED_AT = [5, 40, 110];

test(
  "a transaction of 200,000 rows is there or not, whenever its follower is killed",
  async () => {
    const folder = mkdtempSync(join(tmpdir(), "cdc-sqlite-"));
    const path = join(folder, "copy.db");
    using program = open(join(folder, "source.db"));
    program.exec("CREATE TABLE t (k INTEGER PRIMARY KEY, v, w); CREATE TABLE u (x)");
    SqliteCapture.open(program);
    using source = open(join(folder, "source.db"));
    using reader = new Reader(path);
    let frames = 0;
    using server = Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      fetch: (request) => {
        const after = parseWatermark(new URL(request.url).searchParams);
        const options = { pollMs: 2, frameBytesMax: 100_000, memoryBytesMax: 1_000_000, folder };
        const connect = () => new Database(join(folder, "source.db"), { readonly: true });
        const counted = new TransformStream<Uint8Array, Uint8Array>({
          transform: (frame, controller) => {
            frames++;
            controller.enqueue(frame);
          },
        });
        return new Response(serveCdc(connect, after, options).pipeThrough(counted));
      },
    });
    let applier = startApplier(server.url.href, path);
    try {
      program.run("INSERT INTO u VALUES (1)");
      await reader.until((await readLogEnd(source)).commit);
      program.run(`
        WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${BIG_ROWS})
        INSERT INTO t SELECT i, 'row ' || i, i / 2.0 FROM n`);
      const end = await readLogEnd(source);
      for (const at of KILLED_AT) {
        frames = 0;
        while (frames < at && reader.commit() < end.commit) {
          expect([0, BIG_ROWS]).toContain(reader.count("t"));
          await Bun.sleep(1);
        }
        applier.kill("SIGKILL");
        await applier.exited;
        expect([0, BIG_ROWS]).toContain(reader.count("t"));
        applier = startApplier(server.url.href, path);
      }
      await reader.until(end.commit);
      expect(await reader.content()).toEqual(await contentOf(source));
    } finally {
      applier.kill("SIGKILL");
      await applier.exited;
      rmSync(folder, { recursive: true, force: true });
    }
  },
  WAIT_MS,
);

function open(path: string): Database {
  const db = new Database(path);
  db.run("PRAGMA busy_timeout = 5000");
  db.run("PRAGMA journal_mode = WAL");
  db.run("PRAGMA synchronous = OFF");
  return db;
}

/** SQLite itself can damage a file by some mixtures of triggers, UPSERT and REPLACE. */
function isWhole(db: Database): boolean {
  const [row] = db.query<{ integrity_check: string }, []>("PRAGMA integrity_check").all();
  return row!.integrity_check === "ok";
}

async function run(seed: number, folder: string): Promise<number> {
  const random = new Seeded(seed);
  const source = join(folder, "source.db");
  const path = join(folder, "copy.db");
  using first = open(source);
  using second = open(source);
  using knowing = open(source);
  using node = open(source);
  first.exec(PAIR_SQL);
  const capture = SqliteCapture.open(node);
  const reader = new Reader(path);
  let laterCopies = 0;
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch: (request) => {
      const after = parseWatermark(new URL(request.url).searchParams);
      if (after === null && reader.commit() > 0n) laterCopies++;
      const options = random.chance(0.5) ? { frameBytesMax: 20_000, memoryBytesMax: 50_000 } : {};
      const connect = () => new Database(source, { readonly: true });
      return new Response(serveCdc(connect, after, { pollMs: 2, ...options }));
    },
  });
  const workload = new SqliteWorkload(random, [first, second], [knowing]);
  let applier = startApplier(server.url.href, path);
  try {
    for (let round = 0; round < ROUNDS; round++) {
      for (let step = 0; step < STEPS; step++) {
        workload.step();
        if (!isWhole(node)) return reader.checks;
        if (random.chance(0.3)) capture.settlePart(1 + random.below(4));
        if (step % 5 === 0) await turn();
        reader.check();
      }
      if (random.chance(0.5)) capture.prune(reader.commit());
      applier.kill("SIGKILL");
      await applier.exited;
      applier = startApplier(server.url.href, path);
    }
    capture.settle();
    const end = await readLogEnd(node);
    await reader.until(end.commit);
    expect(await reader.content()).toEqual(await contentOf(node));
    expect(reader.mark()).toBe(end.mark);
    expect(laterCopies).toBe(0);
    return reader.checks;
  } finally {
    applier.kill("SIGKILL");
    await applier.exited;
    await server.stop(true);
    reader.close();
  }
}
