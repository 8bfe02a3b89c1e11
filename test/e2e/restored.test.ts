/**
 * A node that comes back with an old file, without one, or as two, while everybody writes: all end equal
 * without anyone asking, and no answered write is lost. `RESTORE_ROWS=100000 RESTORE_WRITES=5000 bun test
 * test/e2e/restored` for a larger table and a longer time since the backup.
 */
import { expect, test } from "bun:test";
import { copyFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { run } from "../cli/run.ts";
import { connectAll, Fleet, type Member, settled, until } from "../interop/support/fleet.ts";
import { valuesOf, Writer } from "./support/writer.ts";

const ROWS = Number(process.env["RESTORE_ROWS"] ?? 2_000);
/** Of each node, between the backup and the loss, and again after it. */
const WRITES = Number(process.env["RESTORE_WRITES"] ?? 40);
const LIMIT_MS = 60_000 + ROWS + WRITES * 40;
/** Peers are asked often, so that nobody waits for a minute; comparing by itself is on, as it is. */
const FLAGS = ["--health-ms", "200", "--tables", "items"];
const PAUSE_MS = 5;

const TABLE =
  "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT)";

function ours(fleet: Fleet, id: string): Member {
  return fleet.declare("ours", id, { flags: FLAGS });
}

function removeFile(path: string): void {
  for (const end of ["", "-wal", "-shm"]) rmSync(path + end, { force: true });
}

async function written(writers: readonly Writer[], count: number): Promise<void> {
  const from = writers.map((writer) => writer.count);
  await until(
    `${count} writes each`,
    () => writers.every((writer, at) => writer.count >= from[at]! + count),
    LIMIT_MS,
  );
}

/** The others have what it answered for. */
async function delivered(node: Member): Promise<void> {
  await until(
    `${node.id} has shipped all`,
    async () => {
      const health = (await (await node.call("GET", "/health")).json()) as {
        peers: { pending: number; last_acked: number }[];
        last_change_id: number;
      };
      return health.peers.every((peer) => peer.last_acked >= health.last_change_id);
    },
    LIMIT_MS,
  );
}

interface Scene {
  readonly fleet: Fleet;
  readonly nodes: Member[];
  /** The node that something happens to; it is down meanwhile, and has shipped what it answered. */
  readonly victim: Member;
  readonly backup: string;
}

const LOSSES: readonly (readonly [string, (scene: Scene) => Promise<Member[]>])[] = [
  [
    "its file was restored from an old backup",
    async ({ victim, backup }) => {
      removeFile(victim.dbPath);
      copyFileSync(backup, victim.dbPath);
      await victim.start();
      return [];
    },
  ],
  [
    "its file was deleted",
    async ({ victim }) => {
      removeFile(victim.dbPath);
      victim.write(TABLE);
      await victim.start();
      return [];
    },
  ],
  [
    "its file was copied to a node under another --id, and both go on",
    async ({ fleet, victim, nodes }) => {
      const copy = ours(fleet, "copy");
      for (const end of ["", "-wal"]) copyFileSync(victim.dbPath + end, copy.dbPath + end);
      copy.peers = nodes.map(({ url }) => url);
      await Promise.all([victim.start(), copy.start()]);
      for (const node of nodes) await node.call("POST", "/peers", { url: copy.url });
      return [copy];
    },
  ],
  [
    "its old backup went to a node under another --id, and both go on",
    async ({ fleet, victim, nodes, backup }) => {
      const copy = ours(fleet, "copy");
      copyFileSync(backup, copy.dbPath);
      copy.peers = nodes.map(({ url }) => url);
      await Promise.all([victim.start(), copy.start()]);
      for (const node of nodes) await node.call("POST", "/peers", { url: copy.url });
      return [copy];
    },
  ],
];

test.each(LOSSES)(
  "%s: all end equal, and every answered write is there",
  async (_, lose) => {
    await using fleet = new Fleet();
    const nodes = ["a", "b", "c"].map((id) => ours(fleet, id));
    const [a, victim] = nodes as [Member, Member];
    connectAll(nodes);
    a.write(`${TABLE};
      WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${ROWS})
      INSERT INTO items SELECT printf('%08x-old', i * 2654435761 % 4294967296), 'name ' || i, i, i, 1600000000000 + i, 'app' FROM n`);
    for (const node of nodes.slice(1)) node.write(TABLE);
    await Promise.all(nodes.map((node) => node.start()));
    await settled(nodes, { limitMs: LIMIT_MS });

    const writers = nodes.map((node) => Writer.start(node, { pauseMs: PAUSE_MS }));
    const [, onVictim] = writers as [Writer, Writer];
    const others = writers.filter((writer) => writer !== onVictim);
    await written(writers, WRITES);
    const backup = join(fleet.dir, "backup.db");
    const made = await run(["snapshot", "--node", victim.url, backup], { msMax: LIMIT_MS });
    expect([made.err, made.code]).toEqual(["", 0]);
    await written(writers, WRITES);
    await onVictim.stop();
    await delivered(victim);
    await victim.stop();
    await written(others, 20);

    const more = await lose({ fleet, nodes, victim, backup });
    const beganMs = performance.now();
    const after = [victim, ...more].map((node) => Writer.start(node, { pauseMs: PAUSE_MS }));
    await written([...others, ...after], WRITES);
    await Promise.all([...others, ...after].map((writer) => writer.stop()));
    const rows = await settled([...nodes, ...more], { limitMs: LIMIT_MS });
    const values = valuesOf(a);
    expect(rows).toHaveLength(values.size);
    const all = [...writers, ...after];
    expect(all.flatMap((writer) => writer.lostFrom(values))).toEqual([]);
    const answered = all.reduce((sum, { count }) => sum + count, 0);
    console.log(
      `${ROWS} rows and ${answered} answered writes: all equal ${Math.round(performance.now() - beganMs)} ms after it was back`,
    );
  },
  3 * LIMIT_MS,
);
