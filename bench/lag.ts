/** Under light load, how long after the answer to the writer is a row visible on the other node? */
import { type Bench, compare, interleave, median, show, within } from "./support/bench.ts";
import { type LagSample, measureLag, quantile } from "./support/lag.ts";
import { available, MAKE_NAMES, type Make, startPair } from "./support/nodes.ts";

/** A row each time the processors have gone to sleep, and one as soon as the one before is there. */
const PAUSES_MS = { "a row every 5 ms": 5, "a row after the other": 0 } as const;
type Pace = keyof typeof PAUSES_MS;
/** Connections are open and code is compiled before it counts. */
const WARM_ROWS = 2_000;

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
    const measure = (make: Make, pace: Pace) =>
      // The others answer in tens of milliseconds; fewer rows tell as much.
      measureLag(...pairs.get(make)!, make === "ours" ? rows : rows / 4, PAUSES_MS[pace]);
    const paces = Object.keys(PAUSES_MS) as Pace[];
    const sides: [string, () => Promise<LagSample[]>][] = [
      ...makes.map((make): [string, () => Promise<LagSample[]>] => [
        make,
        () => measure(make, "a row every 5 ms"),
      ]),
      ["close", () => measure("ours", "a row after the other")],
    ];
    const runs = await interleave(context, Object.fromEntries(sides));
    const quantiles = (run: string, share: number, what: "lagMs" | "writeMs" = "lagMs") =>
      runs[run]!.map((samples) =>
        quantile(
          samples.map((sample) => sample[what]),
          share,
        ),
      );
    const results = paces.flatMap((pace) => {
      const run = pace === "a row every 5 ms" ? "ours" : "close";
      const writeMs = show(median(quantiles(run, 0.5, "writeMs")));
      return [
        within({
          what: `lag in the median, FULL on both, ${pace}`,
          measured: median(quantiles(run, 0.5)),
          limit: 1,
          unit: "ms",
          more: `the write itself ${writeMs}`,
        }),
        within({
          what: `lag at p99, FULL on both, ${pace}`,
          measured: median(quantiles(run, 0.99)),
          limit: 5,
          unit: "ms",
        }),
      ];
    });
    const others = makes.filter((make) => make !== "ours");
    return [
      ...results,
      ...others.map((make) =>
        compare({
          what: `lag in the median, against a pair of ${MAKE_NAMES[make]}`,
          ours: quantiles("ours", 0.5),
          theirs: quantiles(make, 0.5),
          unit: "ms",
        }),
      ),
    ];
  },
};
