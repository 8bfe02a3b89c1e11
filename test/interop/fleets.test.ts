/**
 * Mixed fleets of three and more: meshes, a star through the hub, two regions joined by their hubs. All
 * members write, and all end with the same rows.
 */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  available,
  connectAll,
  Fleet,
  type Make,
  type Member,
  nextMillisecond,
  settled,
  TEST_MS_MAX,
} from "./support/fleet.ts";
import { ROWS_PER_WRITER, star, writeOnAll } from "./support/traffic.ts";

setDefaultTimeout(TEST_MS_MAX);

const MESHES: readonly (readonly Make[])[] = [
  ["ours", "ours", "go"],
  ["ours", "ours", "node"],
  ["ours", "go", "go"],
  ["ours", "node", "node"],
  ["ours", "go", "node"],
  ["ours", "go", "node", "ours"],
];

/** Every member changes a row that another one made, when all have it. */
async function changeEachOthers(members: Member[]): Promise<void> {
  for (const [i, member] of members.entries()) {
    const other = members[(i + 1) % members.length];
    const [own] =
      other?.sql<{ id: string }>(
        "SELECT id FROM items WHERE node_id = ? ORDER BY id LIMIT 1",
        other.id,
      ) ?? [];
    if (own === undefined) throw new Error("no row to change");
    await member.update(own.id, `changed by ${member.id}`, i);
  }
}

describe.each(MESHES.map((makes) => [makes.join(", "), makes] as const))(
  "a mesh of %s",
  (_, makes) => {
    test.skipIf(!available(...makes))("ends equal when all write", async () => {
      await using fleet = new Fleet();
      const members = await fleet.mesh(...makes);
      await writeOnAll(members, nextMillisecond);
      expect(await settled(members)).toHaveLength(ROWS_PER_WRITER * members.length);
      await changeEachOthers(members);
      const rows = await settled(members);
      for (const member of members) expect(rows.join("\n")).toContain(`changed by ${member.id}`);
      for (const member of members) expect((await member.health()).dead_letter).toBe(0);
    });
  },
);

describe.each(["with", "without"])("spokes of one Go hub, ours %s --url", (url) => {
  const here = test.skipIf(!available("ours", "go", "node", "hub"));
  const makes = ["ours", "go", "node", "ours"] as const;

  here("end equal when all write, one step after the other", async () => {
    await using fleet = new Fleet();
    const { all, spokes } = await star(fleet, makes, { url: url === "with" });
    await writeOnAll(spokes, () => settled(all));
    expect(await settled(all)).toHaveLength(ROWS_PER_WRITER * spokes.length);
    await changeEachOthers(spokes);
    const rows = await settled(all);
    for (const spoke of spokes) expect(rows.join("\n")).toContain(`changed by ${spoke.id}`);
  });
});

test.skipIf(!available("ours", "go", "node", "hub"))(
  "two regions joined by their hubs end equal",
  async () => {
    await using fleet = new Fleet();
    const [north, south] = [fleet.declare("hub", "north"), fleet.declare("hub", "south")];
    const inNorth = [fleet.declare("ours"), fleet.declare("go")];
    const inSouth = [fleet.declare("ours"), fleet.declare("node")];
    // Within a region the nodes know each other, too; what goes to the other region goes by the hubs.
    for (const [hub, other, nodes] of [
      [north, south, inNorth],
      [south, north, inSouth],
    ] as const) {
      connectAll(nodes);
      for (const node of nodes) node.peers.push(hub.url);
      hub.peers = [other.url, ...nodes.map((node) => node.url)];
    }
    const nodes = [...inNorth, ...inSouth];
    await Promise.all([north, south, ...nodes].map((member) => member.start()));
    const all = [north, south, ...nodes];
    await writeOnAll(nodes, () => settled(all));
    expect(await settled(all, { limitMs: 30_000 })).toHaveLength(ROWS_PER_WRITER * nodes.length);
    // The other hub is away for a while: this side's hub keeps what it acknowledged.
    await south.stop();
    await Promise.all(nodes.map((node) => node.create(`while south was away, by ${node.id}`, 1)));
    await south.start();
    expect(await settled(all, { limitMs: 30_000 })).toHaveLength(
      (ROWS_PER_WRITER + 1) * nodes.length,
    );
  },
);
