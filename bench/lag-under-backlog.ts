/** While a backlog of 500,000 rows drains, how long do new writes take, and when do they arrive? */
import { type Bench, compare, interleave, median, type Result, within } from "./support/bench.ts";
import { equal, write } from "./support/bulk.ts";
import { Client } from "./support/client.ts";
import { quantile } from "./support/lag.ts";
import { ITEM } from "./support/load.ts";
import { BenchNode, freePort } from "./support/nodes.ts";

const PAUSE_MS = 2;
const WRITE_MS_MAX = 30;

interface Drain {
  readonly writeP50Ms: number;
  readonly writeP99Ms: number;
  readonly drainMs: number;
  /** The longest that a row written meanwhile took to arrive. */
  readonly lagMs: number;
}

async function drainWhileWriting(dir: string, rows: number): Promise<Drain> {
  const port = freePort();
  const peers = [`http://127.0.0.1:${port}`];
  await using from = await BenchNode.start(dir, "ours", { peers });
  await write(from, rows);
  const client = new Client(from.url, ITEM);
  for (let i = 0; i < 200; i++) await client.createItem();
  const backlog = from.rowsInserted();
  await using to = await BenchNode.start(dir, "ours", { port });
  const beganMs = performance.now();
  const look = to.reader.query<unknown, [string]>("SELECT 1 FROM items WHERE id = ?");
  const writesMs: number[] = [];
  const onTheWay: { id: string; answeredMs: number }[] = [];
  let lagMs = 0;
  let drainMs: number | undefined;
  while (drainMs === undefined || onTheWay.length > 0) {
    if (drainMs === undefined) {
      const { id, answer } = await client.createItem();
      writesMs.push(answer.answeredMs - answer.sentMs);
      onTheWay.push({ id, answeredMs: answer.answeredMs });
      if (to.rowsInserted() >= backlog) drainMs = performance.now() - beganMs;
    }
    // The log is in order: what was written first arrives first.
    while (onTheWay[0] !== undefined && look.get(onTheWay[0].id) !== null) {
      lagMs = Math.max(lagMs, performance.now() - onTheWay.shift()!.answeredMs);
    }
    await Bun.sleep(PAUSE_MS);
  }
  await equal(to, from.rowsInserted());
  return {
    writeP50Ms: quantile(writesMs, 0.5),
    writeP99Ms: quantile(writesMs, 0.99),
    drainMs,
    lagMs,
  };
}

export const bench: Bench = {
  async run(context) {
    const rows = context.size(500_000, 100_000);
    const { ours } = await interleave(context, {
      ours: () => drainWhileWriting(context.dir, rows),
    });
    const results: Result[] = [
      within({
        what: `p99 of writes to the sender while ${rows / 1_000} k rows drain`,
        measured: median(ours.map((drain) => drain.writeP99Ms)),
        limit: WRITE_MS_MAX,
        unit: "ms",
        more: `median ${median(ours.map((drain) => drain.writeP50Ms)).toFixed(1)}`,
      }),
      compare({
        what: "longest lag of a row written meanwhile, against the whole drain",
        ours: ours.map((drain) => drain.lagMs),
        theirs: ours.map((drain) => drain.drainMs),
        unit: "ms",
        target: { atMost: 1.2 },
      }),
    ];
    return results;
  },
};
