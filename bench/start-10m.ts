/** With ten million rows in the file, how soon does a node listen, and how fast is /health? */
import { Database } from "bun:sqlite";
import { join } from "node:path";
import { type Bench, interleave, median, within } from "./support/bench.ts";
import { quantile } from "./support/lag.ts";
import { BenchNode } from "./support/nodes.ts";

const LISTEN_MS_MAX = 500;
const HEALTH_MS_MAX = 20;
const HEALTH_CALLS = 200;
const ROWS_PER_STATEMENT = 500_000;

/** Rows as they would be after years, ids rising with time. */
function fill(path: string, rows: number): void {
  const db = new Database(path);
  db.run("PRAGMA journal_mode = WAL");
  db.run("PRAGMA synchronous = OFF");
  db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
  const insert = db.prepare(
    `WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2)
     INSERT INTO items(id, name, value, created_at, updated_at, node_id)
     SELECT printf('0197a5a0-%04x-7000-8000-%012x', i / 100000, i), 'name number ' || i, i,
       1750000000000 + i, 1750000000000 + i, 'bench' FROM n`,
  );
  for (let at = 0; at < rows; at += ROWS_PER_STATEMENT) {
    insert.run(at, Math.min(at + ROWS_PER_STATEMENT, rows));
  }
  db.run("UPDATE _meta SET value = 0 WHERE key = 'syncing'");
  db.run("PRAGMA wal_checkpoint(TRUNCATE)");
  db.close();
}

export const bench: Bench = {
  async run(context) {
    const rows = context.size(10_000_000, 1_000_000);
    const dbPath = join(context.dir, "large.db");
    const first = await BenchNode.start(context.dir, "ours", { dbPath });
    await first.stop();
    context.say(`filling a file with ${rows / 1_000_000} million rows`);
    fill(dbPath, rows);
    // Where it writes, because other triggers than its own might have: not what is measured.
    await (await BenchNode.start(context.dir, "ours", { dbPath })).stop();
    const { ours } = await interleave(context, {
      ours: async () => {
        await using node = await BenchNode.start(context.dir, "ours", { dbPath });
        const healthMs: number[] = [];
        for (let i = 0; i < HEALTH_CALLS; i++) {
          const beganMs = performance.now();
          await (await fetch(`${node.url}/health`)).text();
          healthMs.push(performance.now() - beganMs);
          await Bun.sleep(2);
        }
        return {
          listenMs: node.listenMs,
          readyMs: node.readyMs,
          healthP50Ms: quantile(healthMs, 0.5),
          healthMaxMs: Math.max(...healthMs),
        };
      },
    });
    return [
      within({
        what: `from the start of the process until it listens, ${rows / 1_000_000} million rows`,
        measured: median(ours.map((run) => run.listenMs)),
        limit: LISTEN_MS_MAX,
        unit: "ms",
      }),
      within({
        what: "and until /health says that all is well",
        measured: median(ours.map((run) => run.readyMs)),
        limit: LISTEN_MS_MAX,
        unit: "ms",
      }),
      within({
        what: `slowest of ${HEALTH_CALLS} calls of /health`,
        measured: median(ours.map((run) => run.healthMaxMs)),
        limit: HEALTH_MS_MAX,
        unit: "ms",
        more: `median ${median(ours.map((run) => run.healthP50Ms)).toFixed(2)}`,
      }),
    ];
  },
};
