/** Does a row cost the same when four million of them are written as when it is 500,000? */
import { type Bench, compare, interleave, median, within } from "./support/bench.ts";
import { bulk } from "./support/bulk.ts";

const RSS_MB_MAX = 150;

export const bench: Bench = {
  isOptIn: true,
  async run(context) {
    const many = context.size(4_000_000, 1_000_000);
    const runs = await interleave(context, {
      many: () => bulk(context.dir, "ours", many),
      few: () => bulk(context.dir, "ours", many / 8),
    });
    return [
      compare({
        what: `rows/s until equal: ${many / 1_000_000} million against an eighth of them`,
        ours: runs.many.map((run) => run.rowsPerSecond),
        theirs: runs.few.map((run) => run.rowsPerSecond),
        unit: "rows/s",
        target: { atLeast: 0.8 },
      }),
      within({
        what: "peak RSS of the larger node",
        measured: median(runs.many.map((run) => run.peakRssMb)),
        limit: RSS_MB_MAX,
        unit: "MB",
      }),
    ];
  },
};
