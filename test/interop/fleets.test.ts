/**
 * Mixed fleets of three and more: meshes, a star through the hub, two regions joined by their hubs. All
 * members write, and all end with the same rows.
 */
import { describe, expect, test } from "bun:test";
import { available, connectAll, Fleet, type Make, type Member, settled } from "./support/fleet.ts";

const MESHES: readonly (readonly Make[])[] = [
  ["ours", "ours", "go"],
  ["ours", "ours", "node"],
  ["ours", "go", "go"],
  ["ours", "node", "node"],
  ["ours", "go", "node"],
  ["ours", "go", "node", "ours"],
];

/** Rows that every member makes, changes and removes, and rows of one that others change. */
async function writeOnAll(members: Member[]): Promise<void> {
  await Promise.all(
    members.map(async (member) => {
      for (let i = 0; i < 20; i++) {
        const id = await member.create(`${member.id} ${i}`, i);
        if (i % 3 === 0) await member.update(id, `${member.id} ${i}, changed`, -i);
        if (i % 5 === 0) await member.remove(id);
      }
      await member.createMany(200, member.id);
    }),
  );
}

/** What one writer of `writeOnAll` leaves. */
const ROWS_PER_WRITER = 216;

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
      await writeOnAll(members);
      expect(await settled(members)).toHaveLength(ROWS_PER_WRITER * members.length);
      await changeEachOthers(members);
      const rows = await settled(members);
      for (const member of members) expect(rows.join("\n")).toContain(`changed by ${member.id}`);
      for (const member of members) expect((await member.health()).dead_letter).toBe(0);
    });
  },
);

describe.each(["with", "without"])("spokes of one Go hub, ours %s --url", (url) => {
  test.skipIf(!available("ours", "go", "node", "hub"))("end equal when all write", async () => {
    await using fleet = new Fleet();
    const hub = fleet.declare("hub");
    const spokes = (["ours", "go", "node", "ours"] as const).map((make) => fleet.declare(make));
    hub.peers = spokes.map((spoke) => spoke.url);
    for (const spoke of spokes) {
      spoke.peers = [hub.url];
      if (url === "with" && spoke.make === "ours") spoke.flags.push("--url", spoke.url);
    }
    await Promise.all([hub, ...spokes].map((member) => member.start()));
    await writeOnAll(spokes);
    expect(await settled([hub, ...spokes])).toHaveLength(ROWS_PER_WRITER * spokes.length);
    await changeEachOthers(spokes);
    const rows = await settled([hub, ...spokes]);
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
    await writeOnAll(nodes);
    const all = [north, south, ...nodes];
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
