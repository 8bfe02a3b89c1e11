/**
 * Nodes that get a column at different times (DESIGN.md, "Unknown columns"): whatever is written and
 * deleted between, and in whatever order it arrives, all end with the same rows, by value and kind.
 */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { Mesh } from "../support/mesh.ts";
import { removeNodeFiles, T, TestNode, VirtualTime } from "../support/receive-fixture.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

const LATE_COLUMNS = ["c TEXT", "d INTEGER DEFAULT 7", "e"];
const VALUES = ["NULL", "1", "2", "1.0", "'x'", "'y'", "x'00ff'", "9007199254740993", "''"];

function nameOf(declaration: string): string {
  return declaration.split(" ")[0]!;
}

async function writeSomething(
  random: Seeded,
  node: TestNode,
  columns: readonly string[],
): Promise<void> {
  const id = `'${random.pick(["p", "q"])}'`;
  const names = ["a", "b", ...columns.map(nameOf)];
  const stamp = node.time.ms - random.below(3);
  switch (random.below(5)) {
    case 0:
      await node.write(`DELETE FROM t WHERE id = ${id}`);
      return;
    case 1:
    case 2: {
      const set = random.shuffled(names).slice(0, 1 + random.below(names.length));
      const sets = set.map((name) => `${name} = ${random.pick(VALUES)}`).join(", ");
      await node.write(`UPDATE t SET ${sets}, updated_at = ${stamp} WHERE id = ${id}`);
      return;
    }
    default: {
      const values = names.map(() => random.pick(VALUES));
      await node.write(
        `INSERT OR REPLACE INTO t(id, ${names.join(", ")}, updated_at) VALUES (${id}, ${values.join(", ")}, ${stamp})`,
      );
    }
  }
}

test("all orders of writes, deletes, schema changes and deliveries end equal", async () => {
  await forSeeds(25, async (random) => {
    const count = 2 + random.below(3);
    const columns = Array.from({ length: count }, () =>
      LATE_COLUMNS.filter(() => random.chance(0.3)),
    );
    const nodes = columns.map((own) => {
      const time = new VirtualTime();
      time.ms = T + random.below(3);
      const schema = `CREATE TABLE t(id TEXT PRIMARY KEY, a, b TEXT, updated_at INTEGER${own.map((column) => `, ${column}`).join("")})`;
      return new TestNode({ schema, time });
    });
    const mesh = new Mesh(nodes, random);
    const addColumn = async (at: number, column: string) => {
      if (columns[at]!.includes(column)) return;
      columns[at]!.push(column);
      await nodes[at]!.write(`ALTER TABLE t ADD COLUMN ${column}`);
    };
    for (let step = 15 + random.below(30); step > 0; step--) {
      const at = random.below(count);
      const node = nodes[at]!;
      node.time.pass(random.below(3));
      const action = random.next();
      if (action < 0.45) await writeSomething(random, node, columns[at]!);
      else if (action < 0.9) await mesh.deliverSome(at);
      else if (action < 0.97) await addColumn(at, random.pick(LATE_COLUMNS));
      else mesh.prune(at);
      mesh.collect(at);
    }
    // The column comes before or after the last changes that carry it.
    for (const column of random.shuffled(LATE_COLUMNS)) {
      for (const at of random.shuffled([...nodes.keys()])) {
        await mesh.deliverSome(at);
        await addColumn(at, column);
        mesh.collect(at);
      }
    }
    await mesh.deliverAll();
    const [first, ...others] = nodes.map((node) => [...node.rows("t"), ...node.tombstones()]);
    for (const other of others) expect(other).toEqual(first!);
    for (const node of nodes) expect(node.parked()).toEqual([]);
    await mesh.close();
  });
});
