/** How many single writes a second does a mesh of four take, all of them writing? */
import { type Bench, compare, interleave } from "./support/bench.ts";
import { postItems } from "./support/load.ts";
import { BenchNode, freePort, type Make } from "./support/nodes.ts";

const NODES = 4;
const CONNECTIONS_EACH = 16;
const EQUAL_MS_MAX = 300_000;

interface MeshRun {
  readonly answeredPerSecond: number;
  /** Counting until every node has every row: what is answered and not shipped is a debt. */
  readonly equalPerSecond: number;
}

async function runMesh(
  dir: string,
  make: Make,
  seconds: { readonly warm: number; readonly counted: number },
): Promise<MeshRun> {
  const ports = Array.from({ length: NODES }, freePort);
  await using nodes = new AsyncDisposableStack();
  const mesh = await Promise.all(
    ports.map(async (port) => {
      const peers = ports
        .filter((other) => other !== port)
        .map((other) => `http://127.0.0.1:${other}`);
      return nodes.use(await BenchNode.start(dir, make, { port, peers }));
    }),
  );
  const loads = (lasting: number) =>
    Promise.all(mesh.map((node) => postItems(node.url, CONNECTIONS_EACH, lasting)));
  // Code is compiled meanwhile, of four processes on as many cores as there are.
  await loads(seconds.warm);
  const before = await untilEqual(mesh);
  const beganMs = performance.now();
  const results = await loads(seconds.counted);
  const after = await untilEqual(mesh);
  return {
    answeredPerSecond: results.reduce((sum, result) => sum + result.perSecond, 0),
    equalPerSecond: ((after - before) / (performance.now() - beganMs)) * 1_000,
  };
}

/** Nobody writes any more: waits until all have the same number of rows, and says how many. */
async function untilEqual(mesh: readonly BenchNode[]): Promise<number> {
  const untilMs = performance.now() + EQUAL_MS_MAX;
  let seen = -1;
  for (;;) {
    const counts = mesh.map((node) => node.rowsInserted());
    const [first] = counts;
    const isEqual = counts.every((count) => count === first);
    // Equal twice in a row: rows that are on their way to all would show in between.
    if (isEqual && first === seen) break;
    seen = isEqual ? first! : -1;
    if (performance.now() > untilMs) throw new Error(`still different: ${counts.join(", ")}`);
    await Bun.sleep(10);
  }
  return seen;
}

export const bench: Bench = {
  async run(context) {
    const seconds = { warm: context.size(6, 0.5), counted: context.size(4, 1.5) };
    const runs = await interleave(context, {
      ours: () => runMesh(context.dir, "ours", seconds),
      old: () => runMesh(context.dir, "old", seconds),
    });
    return [
      compare({
        what: "writes/s until all four are equal, ours at FULL, against the old way",
        ours: runs.ours.map((run) => run.equalPerSecond),
        theirs: runs.old.map((run) => run.equalPerSecond),
        unit: "/s",
        target: { atLeast: 2.5 },
      }),
      compare({
        what: "writes/s answered, whatever is still to be shipped",
        ours: runs.ours.map((run) => run.answeredPerSecond),
        theirs: runs.old.map((run) => run.answeredPerSecond),
        unit: "/s",
      }),
    ];
  },
};
