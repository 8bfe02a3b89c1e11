/** Under light load, how long after the answer to the writer is a row visible on the other node? */
import { type Bench, compare, interleave, median, within } from "./support/bench.ts";
import { measureLag, quantile } from "./support/lag.ts";
import { available, MAKE_NAMES, type Make, startPair } from "./support/nodes.ts";

const PAUSE_MS = 5;
/** Connections are open and code is compiled before it counts. */
const WARM_ROWS = 100;

export const bench: Bench = {
  async run(context) {
    const rows = context.size(300, 100);
    const makes: Make[] = ["ours", "old"];
    if (await available("go")) makes.push("go");
    await using nodes = new AsyncDisposableStack();
    const pairs = new Map<Make, Awaited<ReturnType<typeof startPair>>>();
    for (const make of makes) {
      const pair = await startPair(context.dir, make);
      for (const node of pair) nodes.use(node);
      await measureLag(pair[0], pair[1], make === "ours" ? WARM_ROWS : 5, 0);
      pairs.set(make, pair);
    }
    const runs = await interleave(
      context,
      Object.fromEntries(
        makes.map((make) => [
          make,
          // The others answer in tens of milliseconds; fewer rows tell as much.
          () => measureLag(...pairs.get(make)!, make === "ours" ? rows : rows / 4, PAUSE_MS),
        ]),
      ),
    );
    const lags = (make: Make, share: number) =>
      runs[make]!.map((samples) =>
        quantile(
          samples.map((sample) => sample.lagMs),
          share,
        ),
      );
    return [
      within({
        what: "lag in the median, FULL on both",
        measured: median(lags("ours", 0.5)),
        limit: 1,
        unit: "ms",
      }),
      within({
        what: "lag at p99, FULL on both",
        measured: median(lags("ours", 0.99)),
        limit: 5,
        unit: "ms",
      }),
      ...makes
        .filter((make) => make !== "ours")
        .map((make) =>
          compare({
            what: `lag in the median, against a pair of ${MAKE_NAMES[make]}`,
            ours: lags("ours", 0.5),
            theirs: lags(make, 0.5),
            unit: "ms",
          }),
        ),
    ];
  },
};
