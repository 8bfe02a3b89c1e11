/** How fast do 500,000 rows written to one node reach the other, and how much memory does that take? */
import {
  type Bench,
  compare,
  interleave,
  median,
  type Result,
  show,
  within,
} from "./support/bench.ts";
import { bulk } from "./support/bulk.ts";
import { available, MAKE_NAMES, type Make } from "./support/nodes.ts";

const OPPONENTS: readonly (readonly [Make, number])[] = [
  ["go", 4],
  ["old", 3],
];

const RSS_MB_MAX = 150;

export const bench: Bench = {
  async run(context) {
    const rows = context.size(500_000, 100_000);
    const makes: Make[] = ["ours"];
    for (const [make] of OPPONENTS) if (await available(make)) makes.push(make);
    const runs = await interleave(
      context,
      Object.fromEntries(makes.map((make) => [make, () => bulk(context.dir, make, rows)])),
    );
    const rates = (make: Make) => runs[make]!.map((run) => run.rowsPerSecond);
    const cpu = (make: Make) => show(median(runs[make]!.map((run) => run.cpuSecondsPerMillion)));
    const results: Result[] = OPPONENTS.filter(([make]) => makes.includes(make)).map(
      ([make, atLeast]) => {
        const result = compare({
          what: `rows/s until equal, ours at FULL, against a pair of ${MAKE_NAMES[make]}`,
          ours: rates("ours"),
          theirs: rates(make),
          unit: "rows/s",
          target: { atLeast },
        });
        return {
          ...result,
          numbers: `${result.numbers}; ${cpu("ours")} against ${cpu(make)} s of CPU for a million`,
        };
      },
    );
    const peaks = (make: Make) => median(runs[make]!.map((run) => run.peakRssMb));
    const others = makes
      .filter((make) => make !== "ours")
      .map((make) => `${MAKE_NAMES[make]} ${show(peaks(make))}`);
    results.push(
      within({
        what: "peak RSS of the larger node",
        measured: peaks("ours"),
        limit: RSS_MB_MAX,
        unit: "MB",
        more: others.join(", "),
      }),
    );
    return results;
  },
};
