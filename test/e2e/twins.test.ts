/**
 * Nodes that are not who they seem: one peer under two addresses, a node among its own peers, two nodes
 * of one name, two processes on copies of one file. Each is said, to everyone whom it concerns, as long as
 * it is so, and whatever it is, all end equal.
 */
import { expect, test } from "bun:test";
import { copyFileSync } from "node:fs";
import { Fleet, type Member, settled, TEST_MS_MAX, until } from "../interop/support/fleet.ts";

const FLAGS = ["--health-ms", "200", "--verify-every", "0"];
const LIMITS = { limitMs: 40_000 };

function ours(fleet: Fleet, id: string): Member {
  return fleet.declare("ours", id, { flags: FLAGS });
}

/** A second process under the name of another, on a file of its own. */
function twinOf(fleet: Fleet, node: Member): Member {
  const twin = ours(fleet, node.id);
  twin.dbPath = `${node.dbPath}.twin`;
  return twin;
}

async function warnings(node: Member): Promise<readonly string[]> {
  const health = (await (await node.call("GET", "/health")).json()) as { warnings: string[] };
  return health.warnings;
}

async function warned(node: Member, text: string): Promise<void> {
  await until(`${node.id} says: ${text}`, async () => (await warnings(node)).includes(text));
}

async function silent(...nodes: Member[]): Promise<void> {
  for (const node of nodes)
    await until(`${node.id} warns of nothing`, async () => (await warnings(node)).length === 0);
}

test(
  "one peer under two addresses: said until one is removed, nothing is filled for it, all is equal",
  async () => {
    await using fleet = new Fleet();
    const [a, b] = [ours(fleet, "a"), ours(fleet, "b")];
    const tap = fleet.tap(b);
    a.peers = [b.url, tap.url];
    b.peers = [a.url];
    await Promise.all([a.start(), b.start()]);
    await warned(
      a,
      `the peers ${b.url} and ${tap.url} are one node under two addresses: remove one of them`,
    );
    for (let round = 0; round < 5; round++)
      await Promise.all([a.createMany(40), b.createMany(10), a.create("alone", round)]);
    expect(await settled([a, b], LIMITS)).toHaveLength(5 * 51);
    await b.restart();
    await a.createMany(10);
    expect(await settled([a, b], LIMITS)).toHaveLength(5 * 51 + 10);
    expect([a.said(), b.said()].join("")).not.toContain("filling a peer");
    await a.call("DELETE", `/peers/${encodeURIComponent(tap.url)}`);
    await silent(a, b);
  },
  TEST_MS_MAX,
);

test(
  "a node among its own peers, under an address that it cannot know: said, and harmless",
  async () => {
    await using fleet = new Fleet();
    const a = ours(fleet, "a");
    const tap = fleet.tap(a);
    a.peers = [tap.url];
    await a.start();
    await warned(a, `the peer ${tap.url} is this very node: remove it from the peers`);
    await a.restart();
    await a.createMany(50);
    await warned(a, `the peer ${tap.url} is this very node: remove it from the peers`);
    expect(await settled([a])).toHaveLength(50);
    await a.call("DELETE", `/peers/${encodeURIComponent(tap.url)}`);
    await silent(a);
  },
  TEST_MS_MAX,
);

test(
  "two nodes of one name: said on both, also where only one of them knows the other, and by a third",
  async () => {
    await using fleet = new Fleet();
    const a = ours(fleet, "same");
    const twin = twinOf(fleet, a);
    const c = ours(fleet, "c");
    a.peers = [twin.url];
    c.peers = [a.url, twin.url];
    await Promise.all([a, twin, c].map((node) => node.start()));
    await a.create("x", 1);
    await warned(a, `the peer ${twin.url} has the same --id as this node: give each its own`);
    await warned(
      twin,
      "a node that ships to this one has the same --id, and is none of its peers: give each its own",
    );
    await warned(c, `the peers ${a.url} and ${twin.url} have the same --id: give each its own`);
    expect(await settled([a, twin])).toHaveLength(1);
  },
  TEST_MS_MAX,
);

test(
  "two processes on copies of one file, under one name: they part, all end equal, and the name is said",
  async () => {
    await using fleet = new Fleet();
    const [a, b] = [ours(fleet, "a"), ours(fleet, "b")];
    a.peers = [b.url];
    b.peers = [a.url];
    await Promise.all([a.start(), b.start()]);
    await a.createMany(300);
    await settled([a, b]);
    await a.stop("SIGTERM");
    const copy = twinOf(fleet, a);
    copyFileSync(a.dbPath, copy.dbPath);
    // What each wrote before they met is in no log of the other.
    a.write("INSERT INTO items(id, name, updated_at) VALUES('of the first', 'x', 5)");
    copy.write("INSERT INTO items(id, name, updated_at) VALUES('of the copy', 'x', 6)");
    a.peers = [b.url, copy.url];
    copy.peers = [a.url, b.url];
    b.peers = [a.url, copy.url];
    await Promise.all([a.start(), copy.start(), b.restart()]);
    await Promise.all([a, copy, b].map((node) => node.createMany(30, `by ${node.id}`)));
    expect(await settled([a, copy, b], LIMITS)).toHaveLength(300 + 2 + 90);
    await warned(a, `the peer ${copy.url} has the same --id as this node: give each its own`);
    await warned(copy, `the peer ${a.url} has the same --id as this node: give each its own`);
    await warned(b, `the peers ${a.url} and ${copy.url} have the same --id: give each its own`);
    for (const node of [a, copy])
      expect((await warnings(node)).join()).not.toContain("this very node");
    const files = [a, copy, b].map(
      (node) => node.sql<{ value: string }>("SELECT value FROM _hooksync WHERE key = 'db_id'")[0],
    );
    expect(new Set(files.map((row) => row?.value)).size).toBe(3);
    // From here on as ever: each change is taken from each, and nobody is filled again.
    await Promise.all([a, copy, b].map((node) => node.create("later", 1)));
    expect(await settled([a, copy, b], LIMITS)).toHaveLength(395);
  },
  TEST_MS_MAX,
);
