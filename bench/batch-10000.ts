/** How near does POST /api/items/batch of 10,000 rows come to the same inserts in one raw transaction? */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Bench, compare, interleave } from "./support/bench.ts";
import { load } from "./support/load.ts";
import { BenchNode, batchBody } from "./support/nodes.ts";
import { rawInserts } from "./support/raw.ts";

const ROWS = 10_000;

export const bench: Bench = {
  async run(context) {
    const batches = context.size(40, 10);
    const bodyFile = join(context.dir, "body.json");
    writeFileSync(bodyFile, batchBody(ROWS));
    const overHttp = async (make: "ours" | "old") => {
      await using node = await BenchNode.start(context.dir, make);
      const send = (requests: number) =>
        load({
          url: node.url,
          path: "/api/items/batch",
          connections: 1,
          requests,
          warm: false,
          bodyFiles: [bodyFile],
        });
      await send(3);
      return (await send(batches)).perSecond * ROWS;
    };
    const rates = await interleave(context, {
      ours: () => overHttp("ours"),
      raw: () => rawInserts(context.dir, batches * ROWS, true),
      old: () => overHttp("old"),
    });
    return [
      compare({
        what: "rows/s at FULL, against one raw transaction with our triggers",
        ours: rates.ours,
        theirs: rates.raw,
        unit: "rows/s",
        target: { atLeast: 0.75 },
      }),
      compare({
        what: "rows/s at FULL, against the old way at NORMAL",
        ours: rates.ours,
        theirs: rates.old,
        unit: "rows/s",
      }),
    ];
  },
};
