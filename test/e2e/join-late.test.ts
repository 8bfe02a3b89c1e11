/**
 * A fleet of all makes that is at work, and two that join it: one of ours by itself, a Go node by hand.
 * `JOIN_ROWS=200000 bun test test/e2e/join-late` for the size of the issue; it says how long writes took.
 */
import { expect, test } from "bun:test";
import {
  available,
  connectAll,
  Fleet,
  type Member,
  settled,
  until,
} from "../interop/support/fleet.ts";
import { p99, valuesOf, Writer } from "./support/writer.ts";

const ROWS = Number(process.env["JOIN_ROWS"] ?? 5_000);
/** A delete that overtakes an edit on a foreign node is made up for after a minute (test/interop). */
const LIMIT_MS = 150_000 + ROWS * 2;
const FLAGS = ["--health-ms", "200", "--verify-every", "0", "--tables", "items"];
const PAUSE_MS = 10;

const TABLE =
  "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT)";

async function isFilling(node: Member): Promise<boolean> {
  const { peers } = (await (await node.call("GET", "/health")).json()) as {
    peers: { filling: unknown }[];
  };
  return peers.some(({ filling }) => filling !== null);
}

test.skipIf(!available("go", "node"))(
  `ours, Go and Node hold ${ROWS} rows and are written to; a node of ours and a Go node join: all end equal`,
  async () => {
    await using fleet = new Fleet();
    const a = fleet.declare("ours", "a", { flags: [...FLAGS, "--url", ""] });
    a.flags[a.flags.length - 1] = a.url;
    const [go, node] = [fleet.declare("go", "go"), fleet.declare("node", "node")];
    connectAll([a, go, node]);
    a.write(`${TABLE};
      WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${ROWS})
      INSERT INTO items SELECT printf('%08x-old', i * 2654435761 % 4294967296), 'name ' || i, i, i, 1600000000000 + i, 'app' FROM n`);
    await Promise.all([a, go, node].map((member) => member.start()));
    expect(await settled([a, go, node], { limitMs: LIMIT_MS })).toHaveLength(ROWS);

    const writers = [a, go, node].map((member) => Writer.start(member, { pauseMs: PAUSE_MS }));
    const [onA] = writers as [Writer];
    await until("everybody writes", () => writers.every(({ count }) => count >= 100));
    const before = onA.latenciesMs.splice(0);

    // Nodes of other makes are told first: what they write from then on, they send to the new ones, too,
    // and what they wrote before comes from ours.
    const beganMs = performance.now();
    const ours = fleet.declare("ours", "late", { flags: [...FLAGS, "--join", a.url] });
    ours.flags.push("--url", ours.url);
    ours.write(TABLE);
    const lateGo = fleet.declare("go", "late-go");
    const everyone = [a, go, node, ours, lateGo];
    lateGo.peers = everyone.filter((other) => other !== lateGo).map(({ url }) => url);
    for (const member of [go, node]) {
      member.peers.push(ours.url, lateGo.url);
      await member.restart();
    }
    await Promise.all([ours.start(), lateGo.start()]);
    await until("the new one has joined", () => ours.said().includes("joined the mesh"));
    for (const member of [a, ours]) {
      expect((await member.call("POST", "/peers", { url: lateGo.url })).status).toBe(201);
    }
    writers.push(...[ours, lateGo].map((member) => Writer.start(member, { pauseMs: PAUSE_MS })));
    await until(
      "both have everything",
      async () => {
        const filling = await Promise.all([isFilling(a), isFilling(ours)]);
        const counts = [ours, lateGo].map(
          (member) => member.sql<{ n: number }>("SELECT count(*) AS n FROM items")[0]!.n,
        );
        return counts.every((count) => count >= ROWS) && !filling.includes(true);
      },
      LIMIT_MS,
    );
    const tookMs = performance.now() - beganMs;
    const during = onA.latenciesMs.slice();
    const onLate = writers[3]!.latenciesMs.slice();
    await until("the new ones write, too", () => writers.every(({ count }) => count >= 100));
    await Promise.all(writers.map((writer) => writer.stop()));
    const endedMs = performance.now();
    const rows = await settled(everyone, { limitMs: LIMIT_MS });
    const settledMs = performance.now() - endedMs;

    const values = valuesOf(a);
    expect(rows).toHaveLength(values.size);
    expect(writers.flatMap((writer) => writer.lostFrom(values))).toEqual([]);
    console.log(
      [
        `${ROWS} rows came to two new nodes in ${Math.round(tookMs)} ms, while ${writers.length} clients wrote`,
        `writes on the node that fills: before ${p99(before)}; meanwhile ${p99(during)}`,
        `on the node of ours that is filled: ${p99(onLate)}`,
        `all equal ${Math.round(settledMs)} ms after the last write`,
      ].join("\n  "),
    );
  },
  2 * LIMIT_MS + 60_000,
);
