/** What does --cdc cost a write, how fast does a follower or a mesh take it, and how far is it behind? */
import { Database } from "bun:sqlite";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { Database as Turso } from "@tursodatabase/database/compat";
import { systemClock, systemTimers } from "../lib/base/clock.ts";
import { createLogger } from "../lib/base/log.ts";
import { systemRandom } from "../lib/base/random.ts";
import { Bridge } from "../lib/bridge.ts";
import {
  CdcTailer,
  enableCdc,
  encodeFrames,
  type FollowTarget,
  FrameReader,
  followCdc,
  formatWatermark,
  Replica,
  readCopy,
  SqliteCapture,
} from "../lib/cdc/index.ts";
import { PARKED_BYTES_MAX, TOMBSTONE_RETENTION_MS } from "../lib/protocol/limits.ts";
import { Store } from "../lib/store/store.ts";
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
import { load } from "./support/load.ts";
import { BenchNode } from "./support/nodes.ts";
import { CHANGES_PER_BATCH, makeSyncBodies, SENDER_HEADERS } from "./support/sync-bodies.ts";

const ROWS_PER_TRANSACTION = 100;
const TABLE =
  "CREATE TABLE items (id TEXT PRIMARY KEY, name TEXT, value INTEGER, updated_at INTEGER)";
const INSERT = "INSERT INTO items (id, name, value, updated_at) VALUES (?, ?, ?, ?)";
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

/** Rows a second, in transactions of so many. */
function write(db: Writer, rows: readonly Row[], perTransaction = ROWS_PER_TRANSACTION): number {
  const insert = db.prepare(INSERT);
  const start = performance.now();
  for (let at = 0; at < rows.length; at += perTransaction) {
    db.exec("BEGIN IMMEDIATE");
    for (const row of rows.slice(at, at + perTransaction)) insert.run(...row);
    db.exec("COMMIT");
  }
  return rows.length / ((performance.now() - start) / 1000);
}

/** Rows a second out of a log; with `replica` through frames into a follower. */
async function tail(tailer: CdcTailer, rows: number, replica?: FollowTarget): Promise<number> {
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
          await replica.apply(event.batch);
          event.batch.close();
        }
      }
    }
    batch.close();
  }
  if (seen < rows) throw new Error(`${seen} of ${rows} rows came`);
  return rows / ((performance.now() - start) / 1000);
}

type Use = "write" | "apply" | "bridge";

/** Rows a second through the log of a plain file whose transactions have `perTransaction` rows each. */
async function plainFile(
  context: BenchContext,
  rows: readonly Row[],
  use: Use,
  perTransaction = ROWS_PER_TRANSACTION,
): Promise<number> {
  const path = fresh(context, "source.db");
  using db = open(path);
  db.run(TABLE);
  SqliteCapture.open(db);
  using reader = open(path);
  const copy = await readCopy(reader, 0);
  await using target = use === "bridge" ? bridged(context) : replicated(context);
  await target.apply(copy);
  // Each transaction ends with its COMMIT, as the node's own do.
  const mark = db.prepare(
    "INSERT INTO _cdc (change_time, change_type) VALUES (CAST(strftime('%s', 'now') AS INTEGER), 2)",
  );
  const marked: Writer = {
    prepare: (sql) => db.prepare(sql),
    exec: (sql) => {
      if (sql === "COMMIT") mark.run();
      db.exec(sql);
    },
  };
  const written = write(use === "write" ? db : marked, rows, perTransaction);
  if (use === "write") return written;
  return await tail(new CdcTailer(reader, target.watermark()), rows.length, target);
}

type Target = FollowTarget & AsyncDisposable;

function replicated(context: BenchContext): Target {
  const replica = new Replica(open(fresh(context, "copy.db")));
  return {
    watermark: () => replica.watermark(),
    apply: (batch) => replica.apply(batch),
    [Symbol.asyncDispose]: async () => replica.close(),
  };
}

/** A node's file without its HTTP, at the same `synchronous` as the copy. */
function bridged(context: BenchContext): Target {
  const path = fresh(context, "bridge.db");
  const [clock, timers, random] = [systemClock, systemTimers, systemRandom];
  const store = Store.open({
    path,
    nodeId: "bench",
    asked: undefined,
    makesDefaultTable: false,
    schemaSql: undefined,
    synchronous: "normal",
    parkedBytesMax: PARKED_BYTES_MAX,
    tombstoneRetentionMs: TOMBSTONE_RETENTION_MS,
    acceptOldFile: false,
    clock,
    timers,
    random,
    onEvent: () => {},
    onCommit: () => {},
  });
  const log = createLogger({ level: "error", format: "text", clock, write: () => {} });
  const ownMesh = () => ({ dbIds: new Set<string>(), urls: new Set<string>() });
  const source = { kind: "file", path: "" } as const;
  const bridge = new Bridge({
    source,
    isNew: false,
    store,
    path,
    ownMesh,
    log,
    clock,
    timers,
    random,
  });
  return {
    watermark: () => bridge.watermark(),
    apply: (batch) => bridge.apply(batch),
    [Symbol.asyncDispose]: async () => {
      await bridge.stop();
      await store.close();
    },
  };
}

/** Rows a second that another program writes into a running node's file. */
async function besideNode(context: BenchContext, rows: readonly Row[], flags: string[]) {
  await using node = await BenchNode.start(context.dir, "ours", { flags });
  using db = open(node.dbPath);
  return write(db, rows);
}

/** Changes a second that a node takes from a peer. */
async function meshApply(context: BenchContext, bodyFiles: readonly string[]): Promise<number> {
  await using node = await BenchNode.start(context.dir, "ours", { synchronous: "normal" });
  const headers = SENDER_HEADERS;
  const requests = bodyFiles.length;
  const common = { path: "/sync", connections: 1, warm: false } as const;
  const { perSecond } = await load({ url: node.url, ...common, requests, bodyFiles, headers });
  return perSecond * CHANGES_PER_BATCH;
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
    const few = rows.slice(0, context.size(10_000, 1_000));
    const bodies = makeSyncBodies(context.dir, "cdc", Math.ceil(rows.length / CHANGES_PER_BATCH));
    const runs = await interleave(context, {
      bare: async () => {
        using db = open(fresh(context, "bare.db"));
        db.run(TABLE);
        return write(db, rows);
      },
      logged: () => plainFile(context, rows, "write"),
      nodeBare: () => besideNode(context, rows, []),
      nodeLogged: () => besideNode(context, rows, ["--cdc"]),
      applied: () => plainFile(context, rows, "apply"),
      single: () => plainFile(context, few, "apply", 1),
      bridged: () => plainFile(context, rows, "bridge"),
      mesh: () => meshApply(context, bodies.fresh),
      decodedTurso: () => turso(context, rows, "decode"),
      appliedTurso: () => turso(context, rows, "apply"),
    });
    const samples = await lags(context, context.size(300, 50));
    const result = (what: string, ours: readonly number[], theirs: readonly number[]): Result =>
      compare({ what, ours, theirs, unit: "rows/s" });
    return [
      result("writes with a log, against none", runs.logged, runs.bare),
      result("writes beside a node with --cdc, against without", runs.nodeLogged, runs.nodeBare),
      result(
        "a plain file's log into a follower, against a peer's changes into a node",
        runs.applied,
        runs.mesh,
      ),
      compare({
        what: "the same in transactions of one row, against of a hundred",
        ours: runs.single,
        theirs: runs.applied.map((rate) => rate / ROWS_PER_TRANSACTION),
        unit: "transactions/s",
      }),
      result(
        "a plain file's log into the mesh, against a peer's changes into a node",
        runs.bridged,
        runs.mesh,
      ),
      result(
        "Turso's log into a follower, against a peer's changes into a node",
        runs.appliedTurso,
        runs.mesh,
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
