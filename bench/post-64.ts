/** How many single POST /api/items a second are answered on 64 connections, and against whom? */
import {
  type Bench,
  compare,
  interleave,
  median,
  type Result,
  show,
  type Target,
} from "./support/bench.ts";
import { postItems } from "./support/load.ts";
import { available, BenchNode, MAKE_NAMES, type Make } from "./support/nodes.ts";

const CONNECTIONS = 64;

const OPPONENTS: readonly (readonly [Make, Target])[] = [
  ["go", { atLeast: 3.0 }],
  ["node", { atLeast: 3.0 }],
  ["old", { atLeast: 2.5 }],
  ["empty", { atLeast: 0.4 }],
];

export const bench: Bench = {
  async run(context) {
    const makes: Make[] = ["ours"];
    for (const [make] of OPPONENTS) {
      if (await available(make)) makes.push(make);
      else context.say(`left out: ${MAKE_NAMES[make]}`);
    }
    // All of them stay up and warm; an idle one costs nothing.
    await using nodes = new AsyncDisposableStack();
    const running = new Map<Make, BenchNode>();
    for (const make of makes) {
      running.set(make, nodes.use(await BenchNode.start(context.dir, make)));
    }
    const seconds = context.size(3, 0.7);
    const perCpuSecond: number[] = [];
    const cpuMicroseconds = new Map<Make, number[]>();
    const rates = await interleave(
      context,
      Object.fromEntries(
        makes.map((make) => [
          make,
          async () => {
            const node = running.get(make)!;
            const before = node.cpuSeconds;
            const result = await postItems(node.url, CONNECTIONS, seconds);
            perCpuSecond.push(result.perCpuSecond);
            // Warming up counts on both sides of it, so this is the rate of the whole run.
            const perRequest = (node.cpuSeconds - before) / (result.perSecond * (seconds + 0.5));
            cpuMicroseconds.set(make, [...(cpuMicroseconds.get(make) ?? []), perRequest * 1e6]);
            return result.perSecond;
          },
        ]),
      ),
    );
    const results: Result[] = OPPONENTS.filter(([make]) => makes.includes(make)).map(
      ([make, target]) => {
        const cpu = (which: Make) => show(median(cpuMicroseconds.get(which)!));
        const result = compare({
          what: `POST/s at FULL, against ${MAKE_NAMES[make]}`,
          ours: rates["ours"]!,
          theirs: rates[make]!,
          unit: "/s",
          target,
        });
        return {
          ...result,
          numbers: `${result.numbers}; ${cpu("ours")} against ${cpu(make)} µs of CPU each`,
        };
      },
    );
    const fastest = Math.max(...makes.map((make) => median(rates[make]!)));
    results.push({
      what: "the load generator's ceiling, against the fastest of them",
      numbers: `${show(median(perCpuSecond))} requests for a second of its CPU`,
      ratio: median(perCpuSecond) / fastest,
    });
    return results;
  },
};
