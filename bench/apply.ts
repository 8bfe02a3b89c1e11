/** How near does receiving batches of 10,000 changes come to plain inserts without triggers? */
import { type Bench, compare, interleave } from "./support/bench.ts";
import { load } from "./support/load.ts";
import { BenchNode } from "./support/nodes.ts";
import { rawInserts } from "./support/raw.ts";
import { CHANGES_PER_BATCH, makeSyncBodies, SENDER_HEADERS } from "./support/sync-bodies.ts";

export const bench: Bench = {
  async run(context) {
    const batches = context.size(20, 6);
    // First, so that their ids lie below: like the plain inserts, fresh rows come in rising order.
    const warm = makeSyncBodies(context.dir, "warm", 3);
    const bodies = makeSyncBodies(context.dir, "apply", batches);
    const send = async (node: BenchNode, bodyFiles: readonly string[]) => {
      const { perSecond } = await load({
        url: node.url,
        path: "/sync",
        connections: 1,
        requests: bodyFiles.length,
        warm: false,
        bodyFiles,
        headers: SENDER_HEADERS,
      });
      return perSecond * CHANGES_PER_BATCH;
    };
    const rates = await interleave(context, {
      ours: async () => {
        await using node = await BenchNode.start(context.dir, "ours");
        for (const files of [warm.fresh, warm.mixed]) await send(node, files);
        const fresh = await send(node, bodies.fresh);
        const replay = await send(node, bodies.fresh);
        const mixed = await send(node, bodies.mixed);
        return { fresh, replay, mixed };
      },
      raw: () => rawInserts(context.dir, batches * CHANGES_PER_BATCH, false),
    });
    const row = (kind: "fresh" | "replay" | "mixed", what: string, atLeast: number) =>
      compare({
        what: `${what}, at FULL, against plain inserts`,
        ours: rates.ours.map((rate) => rate[kind]),
        theirs: rates.raw,
        unit: "changes/s",
        target: { atLeast },
      });
    return [
      row("fresh", "fresh rows", 0.6),
      row("replay", "replays of them", 0.6),
      row("mixed", "mixed with updates, deletes and tombstones", 0.45),
    ];
  },
};
