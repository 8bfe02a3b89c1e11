/** What does a node with 100 configured peers cost while nothing happens? */
import { type Bench, median, type Result, within } from "./support/bench.ts";
import { BenchNode, freePort } from "./support/nodes.ts";

const PEERS = 100;
const SHARE_MAX = 0.01;
/** Starting, asking everyone for /health and, where nobody answers, the quick attempts are over. */
const SETTLE_MS = 8_000;

/** A peer that has nothing to say and counts what it is asked. */
function startPeers(): { urls: string[]; posts: () => number; gets: () => number; stop(): void } {
  let posts = 0;
  let gets = 0;
  const servers = Array.from({ length: PEERS }, (_, i) =>
    Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      fetch(request) {
        if (request.method === "POST") posts++;
        else gets++;
        return Response.json({ ok: true, node_id: `peer${i}`, item_count: 0, pending_changes: 0 });
      },
    }),
  );
  return {
    urls: servers.map((server) => `http://127.0.0.1:${server.port}`),
    posts: () => posts,
    gets: () => gets,
    stop: () => {
      for (const server of servers) void server.stop(true);
    },
  };
}

async function cpuShare(node: BenchNode, seconds: number): Promise<number> {
  const before = node.cpuSeconds;
  const beganMs = performance.now();
  await Bun.sleep(seconds * 1_000);
  return (node.cpuSeconds - before) / ((performance.now() - beganMs) / 1_000);
}

export const bench: Bench = {
  async run(context) {
    const seconds = context.size(10, 4);
    const up = startPeers();
    await using alive = await BenchNode.start(context.dir, "ours", { peers: up.urls });
    const down = Array.from({ length: PEERS }, () => `http://127.0.0.1:${freePort()}`);
    await using alone = await BenchNode.start(context.dir, "ours", { peers: down });
    await Bun.sleep(SETTLE_MS);
    const [postsBefore, getsBefore] = [up.posts(), up.gets()];
    const shares: { alive: number[]; alone: number[] } = { alive: [], alone: [] };
    for (let round = 0; round < context.rounds; round++) {
      context.say(`round ${round + 1} of ${context.rounds}`);
      const [one, other] = await Promise.all([cpuShare(alive, seconds), cpuShare(alone, seconds)]);
      shares.alive.push(one);
      shares.alone.push(other);
    }
    const posts = up.posts() - postsBefore;
    const gets = up.gets() - getsBefore;
    up.stop();
    const results: Result[] = [
      within({
        what: "share of a core, all 100 peers answering",
        measured: median(shares.alive) * 100,
        limit: SHARE_MAX * 100,
        unit: "% of a core",
        more: `${gets} GETs in ${context.rounds * seconds} s`,
      }),
      within({
        what: "share of a core, all 100 peers down",
        measured: median(shares.alone) * 100,
        limit: SHARE_MAX * 100,
        unit: "% of a core",
      }),
      {
        what: "POSTs in that time",
        numbers: `${posts} of 0`,
        ratio: posts,
        target: { atMost: 0 },
      },
    ];
    return results;
  },
};
