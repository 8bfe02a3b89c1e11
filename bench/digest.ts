/** How many rows a second does a digest hash, and what do writes feel while a whole table is read? */
import { Database } from "bun:sqlite";
import { join } from "node:path";
import { digestRange, digestTableOf } from "../lib/store/digest.ts";
import { readTables, type SyncedTable } from "../lib/store/schema.ts";
import { type Bench, interleave, median, type Result, show } from "./support/bench.ts";
import { postItems } from "./support/load.ts";
import { BenchNode } from "./support/nodes.ts";

const ROWS_PER_SECOND_MIN = 500_000;
/** Ids that rise with time, as nodes make them. */
const ID = "printf('%012x-7000-8000-%012x', 1800000000000 + i, i * 2654435761 % 281474976710656)";

function makeFile(path: string, rows: number): void {
  const db = new Database(path);
  db.run("PRAGMA journal_mode = WAL");
  db.run(
    "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT)",
  );
  db.run(
    `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${rows})
     INSERT INTO items SELECT ${ID}, 'a name of some length', i, 1700000000000 + i, 1700000000000 + i, 'node1' FROM n`,
  );
  db.close();
}

export const bench: Bench = {
  async run(context) {
    const rows = context.size(1_000_000, 100_000);
    const path = join(context.dir, "items.db");
    makeFile(path, rows);
    const db = new Database(path, { readonly: true });
    const table = digestTableOf(syncedTable(db));
    const scan = db.prepare<{ row: string }, []>("SELECT id || name AS row FROM items ORDER BY id");
    const rates = await interleave(context, {
      digest: () => perSecond(rows, () => digestRange(db, table)),
      scan: () =>
        perSecond(rows, () => {
          let hash = 0;
          for (const { row } of scan.iterate()) hash ^= Bun.hash.xxHash32(row);
          return hash;
        }),
    });
    scan.finalize();
    db.close();
    const results: Result[] = [
      {
        what: "rows hashed in a second of one core, every value with its type, against the aim",
        numbers: `${show(median(rates.digest))} of ${show(ROWS_PER_SECOND_MIN)} rows/s; reading id and name alone: ${show(median(rates.scan))}`,
        ratio: median(rates.digest) / ROWS_PER_SECOND_MIN,
        target: { atLeast: 1 },
      },
    ];

    await using node = await BenchNode.start(context.dir, "ours", {
      dbPath: path,
      flags: ["--tables", "items", "--verify-every", "0"],
    });
    const seconds = context.size(3, 1);
    const waits = await interleave(context, {
      quiet: async () => (await postItems(node.url, 8, seconds)).p99Ms,
      read: async () => {
        let isOver = false;
        const reading = (async () => {
          while (!isOver) await (await fetch(`${node.url}/sync/digest`)).text();
        })();
        const { p99Ms } = await postItems(node.url, 8, seconds);
        isOver = true;
        await reading;
        return p99Ms;
      },
    });
    results.push({
      what: "p99 of POST while the table is read again and again, against when it is not",
      numbers: `${show(median(waits.read))} against ${show(median(waits.quiet))} ms`,
      ratio: median(waits.read) / median(waits.quiet),
    });
    return results;
  },
};

function syncedTable(db: Database): SyncedTable {
  const table = readTables(db).get("items")!;
  const columnByKey = new Map(table.columns.map((column) => [column.key, column]));
  return {
    ...table,
    columnByKey,
    id: columnByKey.get("id")!,
    version: columnByKey.get("updated_at")!,
  };
}

/** Of one core: a busy machine gives a thread less than a second a second. */
async function perSecond(rows: number, work: () => unknown): Promise<number> {
  const before = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(before);
  return (rows * 1_000_000) / (user + system);
}
