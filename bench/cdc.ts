/** What does --cdc cost a write, how fast does a follower apply, and how far is it behind? */
import { Database } from "bun:sqlite";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { Database as Turso } from "@tursodatabase/database/compat";
import {
  applyBatch,
  CdcTailer,
  enableCdc,
  encodeFrames,
  FrameReader,
  followCdc,
  formatWatermark,
  Replica,
  readCopy,
  SqliteCapture,
} from "../lib/cdc/index.ts";
import {
  type Bench,
  type BenchContext,
  compare,
  interleave,
  median,
  type Result,
  within,
} from "./support/bench.ts";
import { quantile } from "./support/lag.ts";
import { BenchNode } from "./support/nodes.ts";

const ROWS_PER_TRANSACTION = 100;
const TABLE =
  "CREATE TABLE items (id TEXT PRIMARY KEY, name TEXT, value INTEGER, updated_at INTEGER)";
const INSERT = "INSERT INTO items VALUES (?, ?, ?, ?)";
const LAG_LIMIT_MS = 100;

type Row = [string, string, number, number];

function rowsOf(count: number): Row[] {
  return Array.from({ length: count }, (_, i) => [
    `id-${i}`,
    `name of row ${i}`,
    i,
    1_700_000_000_000 + i,
  ]);
}

function fresh(context: BenchContext, name: string): string {
  const path = join(context.dir, name);
  for (const end of ["", "-wal", "-shm"]) rmSync(path + end, { force: true });
  return path;
}

function open(path: string): Database {
  const db = new Database(path);
  db.run("PRAGMA busy_timeout = 5000");
  db.run("PRAGMA journal_mode = WAL");
  db.run("PRAGMA synchronous = NORMAL");
  return db;
}

interface Writer {
  exec(sql: string): unknown;
  prepare(sql: string): { run(...values: Row): unknown };
}

/** Rows a second, in transactions of a hundred. */
function write(db: Writer, rows: readonly Row[]): number {
  const insert = db.prepare(INSERT);
  const start = performance.now();
  for (let at = 0; at < rows.length; at += ROWS_PER_TRANSACTION) {
    db.exec("BEGIN IMMEDIATE");
    for (const row of rows.slice(at, at + ROWS_PER_TRANSACTION)) insert.run(...row);
    db.exec("COMMIT");
  }
  return rows.length / ((performance.now() - start) / 1000);
}

/** Rows a second out of a log; with `replica` through frames into a follower. */
async function tail(tailer: CdcTailer, rows: number, replica?: Replica): Promise<number> {
  const frames = new FrameReader();
  const start = performance.now();
  let seen = 0;
  for (let batch = await tailer.pollBatch(); batch !== null; batch = await tailer.pollBatch()) {
    if (replica === undefined) for (const _ of batch.changes) seen++;
    else {
      for (const frame of encodeFrames(batch)) {
        for (const event of frames.read(frame)) {
          if (event.kind !== "batch") continue;
          for (const _ of event.batch.changes) seen++;
          applyBatch(replica, event.batch);
          event.batch.close();
        }
      }
    }
    batch.close();
  }
  if (seen < rows) throw new Error(`${seen} of ${rows} rows came`);
  return rows / ((performance.now() - start) / 1000);
}

async function plainFile(context: BenchContext, rows: readonly Row[], what: "write" | "apply") {
  const path = fresh(context, "source.db");
  using db = open(path);
  db.run(TABLE);
  SqliteCapture.open(db);
  using reader = open(path);
  const replica = new Replica(open(fresh(context, "copy.db")));
  const copy = await readCopy(reader, 0);
  applyBatch(replica, copy);
  const written = write(db, rows);
  if (what === "write") return written;
  return await tail(new CdcTailer(reader, replica.watermark()), rows.length, replica);
}

async function turso(context: BenchContext, rows: readonly Row[], what: "decode" | "apply") {
  const path = fresh(context, "turso.db");
  const db = new Turso(path);
  await enableCdc(db);
  db.exec(TABLE);
  write(db, rows);
  const reader = new Turso(path);
  const replica = new Replica(open(fresh(context, "copy.db")));
  const tailer = new CdcTailer(reader, null);
  const rate = await tail(tailer, rows.length, what === "apply" ? replica : undefined);
  reader.close();
  db.close();
  return rate;
}

/** From the commit by another program on the node's file until a reader of the copy sees it. */
async function lags(context: BenchContext, count: number): Promise<number[]> {
  await using node = await BenchNode.start(context.dir, "ours", { flags: ["--cdc"] });
  const copyPath = fresh(context, "followed.db");
  const replica = Replica.open(copyPath);
  const abort = new AbortController();
  const url = `http://127.0.0.1:${node.port}/cdc/stream?${formatWatermark(null)}`;
  const arrived: (() => void)[] = [];
  const answer = await fetch(url, { signal: abort.signal });
  const following = followCdc(replica, answer.body!, { onBatch: () => arrived.shift()?.() });
  using writer = open(node.dbPath);
  const samples: number[] = [];
  await new Promise<void>((resolve) => arrived.push(resolve));
  for (let i = 0; i < count; i++) {
    const seen = new Promise<void>((resolve) => arrived.push(resolve));
    writer.run("INSERT INTO items (id, name, updated_at) VALUES (?, 'n', 1)", [`lag-${i}`]);
    const start = performance.now();
    await seen;
    samples.push(performance.now() - start);
  }
  abort.abort();
  await following.catch(() => undefined);
  replica.close();
  return samples;
}

export const bench: Bench = {
  async run(context) {
    const rows = rowsOf(context.size(100_000, 10_000));
    const runs = await interleave(context, {
      bare: async () => {
        using db = open(fresh(context, "bare.db"));
        db.run(TABLE);
        return write(db, rows);
      },
      logged: () => plainFile(context, rows, "write"),
      applied: () => plainFile(context, rows, "apply"),
      decodedTurso: () => turso(context, rows, "decode"),
      appliedTurso: () => turso(context, rows, "apply"),
    });
    const samples = await lags(context, context.size(300, 50));
    const result = (what: string, ours: readonly number[], theirs: readonly number[]): Result =>
      compare({ what, ours, theirs, unit: "rows/s" });
    return [
      result("writes with a log, against none", runs.logged, runs.bare),
      result(
        "a plain file's log into a follower, against writing the rows",
        runs.applied,
        runs.bare,
      ),
      result("Turso's log into a follower, against writing the rows", runs.appliedTurso, runs.bare),
      result(
        "Turso's log read and decoded, against writing the rows",
        runs.decodedTurso,
        runs.bare,
      ),
      within({
        what: "lag of a follower in the median, others writing the node's file",
        measured: median(samples),
        limit: LAG_LIMIT_MS,
        unit: "ms",
        more: `p99 ${quantile(samples, 0.99).toFixed(0)} ms`,
      }),
    ];
  },
};
