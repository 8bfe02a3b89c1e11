/** What do a million changes cost that wait for a dead peer, and how fast do they leave when it returns? */
import { type Bench, compare, interleave, median, within } from "./support/bench.ts";
import { equal, write } from "./support/bulk.ts";
import { postItems } from "./support/load.ts";
import { BenchNode, freePort } from "./support/nodes.ts";

const CONNECTIONS = 64;
const RSS_MB_MAX = 200;

interface Pending {
  readonly peakRssMb: number;
  /** Single writes a second while they wait. */
  readonly writesPerSecond: number;
  readonly drainedPerSecond: number;
}

/** A node whose peer is down until `rows` wait for it. */
async function pile(dir: string, rows: number, seconds: number): Promise<Pending> {
  const port = freePort();
  await using node = await BenchNode.start(dir, "ours", { peers: [`http://127.0.0.1:${port}`] });
  await write(node, rows);
  const { perSecond } = await postItems(node.url, CONNECTIONS, seconds);
  const waiting = node.rowsInserted();
  await using peer = await BenchNode.start(dir, "ours", { port });
  // The sender's pause may be seconds long by now; it counts from the first row that arrives.
  await equal(peer, 1);
  const before = peer.rowsInserted();
  const beganMs = performance.now();
  await equal(peer, waiting);
  const drainedPerSecond = ((waiting - before) / (performance.now() - beganMs)) * 1_000;
  return { peakRssMb: node.peakRssMb, writesPerSecond: perSecond, drainedPerSecond };
}

export const bench: Bench = {
  async run(context) {
    const rows = context.size(1_000_000, 200_000);
    const seconds = context.size(3, 1);
    const runs = await interleave(context, {
      many: () => pile(context.dir, rows, seconds),
      few: () => pile(context.dir, rows / 20, seconds),
    });
    return [
      within({
        what: `peak RSS with ${rows / 1_000} k changes pending`,
        measured: median(runs.many.map((run) => run.peakRssMb)),
        limit: RSS_MB_MAX,
        unit: "MB",
      }),
      compare({
        what: "POST/s with all of them pending, against a twentieth",
        ours: runs.many.map((run) => run.writesPerSecond),
        theirs: runs.few.map((run) => run.writesPerSecond),
        unit: "/s",
        target: { atLeast: 0.9 },
      }),
      compare({
        what: "rows/s when the peer returns, against a twentieth",
        ours: runs.many.map((run) => run.drainedPerSecond),
        theirs: runs.few.map((run) => run.drainedPerSecond),
        unit: "rows/s",
        target: { atLeast: 0.8 },
      }),
    ];
  },
};
