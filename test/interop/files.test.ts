/**
 * Files handed back and forth: what a foreign node wrote, ours opens and carries on with, and the other
 * way round, changes that are still unsent included, while the other node of the pair keeps running.
 */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  available,
  Fleet,
  type Make,
  type Member,
  settled,
  TEST_MS_MAX,
  until,
} from "./support/fleet.ts";
import type { Wire } from "./support/wire.ts";

setDefaultTimeout(TEST_MS_MAX);

const T = 1_700_000_000_000;

/** The make whose file it is, and the make that runs beside it all the time. */
const PAIRS: readonly (readonly [file: Make, other: Make])[] = [
  ["go", "node"],
  ["node", "go"],
  ["go", "ours"],
  ["node", "ours"],
];

interface Handover {
  fleet: Fleet;
  other: Member;
  /** The link from the node whose file it is to the other. */
  out: Wire;
}

/** A started node of the given make that ships through a wire to one that runs beside it. */
async function besideEachOther(fleet: Fleet, file: Make, otherMake: Make) {
  const [member, other] = [fleet.declare(file, "handed"), fleet.declare(otherMake, "other")];
  const out = await fleet.wire(other);
  member.peers = [out.url];
  other.peers = [member.url];
  await Promise.all([member.start(), other.start()]);
  return { member, handover: { fleet, other, out } };
}

/**
 * Leaves changes unsent in the file, of every operation, ends the node (by kill or by request), and
 * starts the next make on the file.
 */
async function handOver(
  from: Member,
  to: Make,
  how: "SIGKILL" | "SIGTERM",
  { fleet, out }: Handover,
) {
  const [edited, removed] = [await from.create("edited", 1), await from.create("removed", 2)];
  await until("the log to be empty", async () => (await from.health()).pending_changes === 0);
  out.set("down");
  await from.update(edited, `edited by ${from.make}`, 3);
  await from.remove(removed);
  await from.createMany(50, `unsent by ${from.make}`);
  expect((await from.health()).pending_changes).toBe(52);
  await from.stop(how);
  const next = fleet.handOver(from, to);
  await next.start();
  out.set("pass");
  return { next, edited, removed };
}

describe.each(PAIRS)("a file of %s, with %s beside it", (file, otherMake) => {
  const here = test.skipIf(!available("ours", file, otherMake));

  here("goes to ours, back, and to ours again, with unsent changes each time", async () => {
    await using fleet = new Fleet();
    const { member, handover } = await besideEachOther(fleet, file, otherMake);
    const { other } = handover;
    await other.createMany(20, "before");
    await settled([member, other]);

    let current = member;
    let rows = 20;
    for (const [to, how] of [
      ["ours", "SIGKILL"],
      [file, "SIGTERM"],
      ["ours", "SIGTERM"],
      [file, "SIGKILL"],
      ["ours", "SIGKILL"],
    ] as const) {
      const { next, edited, removed } = await handOver(current, to, how, handover);
      // The other side wrote while nobody was at the address, and writes on.
      await other.createMany(10, "meanwhile");
      await other.update(edited, "edited by the other", 4);
      const made = await next.create(`first write after the handover to ${to}`, 5);
      rows += 1 + 50 + 10 + 1;
      expect(await settled([next, other])).toHaveLength(rows);
      expect((await other.item(edited))?.name).toBe("edited by the other");
      expect(await other.item(removed)).toBeUndefined();
      expect(await other.item(made)).toBeDefined();
      expect(next.sql("PRAGMA integrity_check")).toEqual([{ integrity_check: "ok" }]);
      for (const node of [next, other]) expect((await node.health()).dead_letter).toBe(0);
      current = next;
    }
  });

  here("a row that came back while the foreign node had the file stays", async () => {
    await using fleet = new Fleet();
    const { member, handover } = await besideEachOther(fleet, file, otherMake);
    const { other } = handover;
    await member.stop("SIGTERM");
    const ours = await fleet.handOver(member, "ours").start();
    ours.write(`INSERT INTO items VALUES('back', 'first life', 1, ${T}, ${T}, 'sql')`);
    await settled([ours, other]);
    ours.write("DELETE FROM items WHERE id = 'back'");
    await until("the delete", async () => (await other.item("back")) === undefined);
    await settled([ours, other]);
    await ours.stop("SIGTERM");
    // The foreign node knows nothing of our tombstone, and writes with an older stamp than it.
    const foreign = await fleet.handOver(ours, file).start();
    handover.out.set("down");
    foreign.write(`INSERT INTO items VALUES('back', 'second life', 2, ${T}, ${T - 5}, 'sql')`);
    await foreign.stop("SIGKILL");
    const again = await fleet.handOver(foreign, "ours").start();
    handover.out.set("pass");
    await until("the row on the other side", async () => (await other.item("back")) !== undefined);
    await settled([again, other]);
    expect((await other.item("back"))?.name).toBe("second life");
  });
});

/** A file of the time when nodes had a single table: their log does not name it. */
const OLD_LAYOUT = `
  CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER,
    created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER);
  INSERT INTO _meta VALUES('syncing', 0);
  CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT);
  CREATE TABLE _dead_letter(dead_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT,
    failed_at INTEGER, retry_count INTEGER DEFAULT 0);
  CREATE TABLE _peer_state(peer_url TEXT PRIMARY KEY, last_acked INTEGER DEFAULT 0);
  ${[
    ["ai", "INSERT", "NEW"],
    ["au", "UPDATE", "NEW"],
    ["ad", "DELETE", "OLD"],
  ]
    .map(
      ([suffix, op, side]) => `CREATE TRIGGER items_${suffix} AFTER ${op} ON items
        WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
        BEGIN
          INSERT INTO _changes(op, row_id, row_data) VALUES('${op}', ${side}.id, json_object(
            'id', ${side}.id, 'name', ${side}.name, 'value', ${side}.value,
            'created_at', ${side}.created_at, 'updated_at', ${side}.updated_at, 'node_id', ${side}.node_id));
        END;`,
    )
    .join("\n")}
  INSERT INTO items VALUES('sent', 'x', 1, ${T}, ${T}, 'old'), ('unsent', 'x', 2, ${T}, ${T}, 'old'),
    ('removed', 'x', 3, ${T}, ${T}, 'old');
  DELETE FROM items WHERE id = 'removed'`;

test.skipIf(!available("ours", "go"))(
  "a file of the oldest layout is carried on with",
  async () => {
    await using fleet = new Fleet();
    const old = fleet.declare("ours");
    const go = await fleet.node("go", [old]);
    go.write(
      `INSERT INTO items VALUES('sent', 'x', 1, ${T}, ${T}, 'old'), ('removed', 'x', 3, ${T}, ${T}, 'old')`,
    );
    old.write(
      `${OLD_LAYOUT}; INSERT INTO _peer_state VALUES('${go.url}', 1); DELETE FROM _changes WHERE change_id = 1`,
    );
    old.peers = [go.url];
    await old.start();
    expect((await settled([old, go])).map((row) => row.match(/id=text:(\S+)/)?.[1])).toEqual([
      "sent",
      "unsent",
    ]);
    old.write("UPDATE items SET name = 'after' WHERE id = 'sent'");
    await until("the first write after", async () => (await go.item("sent"))?.name === "after");
    await settled([old, go]);
  },
);
