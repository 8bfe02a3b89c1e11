/** How long does a single POST /api/items take on one connection, with nobody to share a commit with? */
import { type Bench, compare, interleave, type Result } from "./support/bench.ts";
import { postItems } from "./support/load.ts";
import { BenchNode } from "./support/nodes.ts";

export const bench: Bench = {
  async run(context) {
    const seconds = context.size(3, 0.7);
    await using nodes = new AsyncDisposableStack();
    const results: Result[] = [];
    for (const synchronous of ["full", "normal"] as const) {
      const ours = nodes.use(await BenchNode.start(context.dir, "ours", { synchronous }));
      const old = nodes.use(await BenchNode.start(context.dir, "old", { synchronous }));
      const rates = await interleave(context, {
        ours: async () => (await postItems(ours.url, 1, seconds)).perSecond,
        old: async () => (await postItems(old.url, 1, seconds)).perSecond,
      });
      results.push(
        compare({
          what: `POST/s on one connection, both at ${synchronous.toUpperCase()}, against the old way`,
          ours: rates.ours,
          theirs: rates.old,
          unit: "/s",
          target: { atLeast: 1 },
        }),
      );
    }
    return results;
  },
};
