/**
 * What foreign nodes leave different among themselves ends equal once one of ours is in the mesh. Every
 * story is played twice with the same script: by foreign nodes alone, where it must end in a
 * difference (or the test would mean nothing), and with one of ours beside them.
 *
 * Some orders of arrival cannot be mended by an answer to a message: there ours repeats what is
 * contested a minute later. Those stories run side by side, so that the suite waits for one minute only.
 */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  available,
  Fleet,
  type Make,
  type Member,
  type MemberOptions,
  nextMillisecond,
  quiet,
  settled,
  TEST_MS_MAX,
  until,
} from "./support/fleet.ts";
import { ROWS_PER_WRITER, star, writeOnAll } from "./support/traffic.ts";
import type { Wire } from "./support/wire.ts";

setDefaultTimeout(TEST_MS_MAX);

const T = 1_700_000_000_000;

/** Above the minute after which ours repeats what is contested. */
const HEALING_MS_MAX = 90_000;

/** Above the second for which ours holds back a repeated announcement, twice. */
const SILENCE_MS = 2_500;

interface Mesh {
  members: Member[];
  /** The link on which one member sends to another, by their places. */
  link(from: number, to: number): Wire;
  links: Wire[];
}

/**
 * A started full mesh in which every link can be cut. Foreign nodes ship to one peer after the other;
 * they are told of ours first, so that ours hears everything in the order in which it was written, and
 * not from a stale message that there is something to mend.
 */
async function wiredMesh(
  fleet: Fleet,
  makes: readonly (readonly [Make, MemberOptions?])[],
): Promise<Mesh> {
  const members = makes.map(([make, options]) => fleet.declare(make, undefined, options));
  const oursFirst = [...members.entries()].sort(
    ([, a], [, b]) => Number(b.make === "ours") - Number(a.make === "ours"),
  );
  const wires = new Map<string, Wire>();
  for (const [from, sender] of members.entries()) {
    for (const [to, receiver] of oursFirst) {
      if (from === to) continue;
      const wire = await fleet.wire(receiver);
      wires.set(`${from} to ${to}`, wire);
      sender.peers.push(wire.url);
    }
  }
  await Promise.all(members.map((member) => member.start()));
  return {
    members,
    links: [...wires.values()],
    link(from, to) {
      const wire = wires.get(`${from} to ${to}`);
      if (wire === undefined) throw new Error(`no link from ${from} to ${to}`);
      return wire;
    },
  };
}

/** Members by place; a story names the places it uses. */
function at(mesh: Mesh, place: number): Member {
  const member = mesh.members[place];
  if (member === undefined) throw new Error(`no member at ${place}`);
  return member;
}

interface Story {
  name: string;
  makes: readonly (readonly [Make, MemberOptions?])[];
  play(mesh: Mesh): Promise<void>;
}

const row = (id: string, name: string, stamp = T) =>
  `INSERT INTO items VALUES('${id}', '${name}', 1, ${T}, ${stamp}, 'sql')`;

/** Two nodes write the same row with the same stamp before they hear of each other. */
async function tie(mesh: Mesh): Promise<void> {
  for (const link of mesh.links) link.set("down");
  at(mesh, 0).write(row("tie", "from the first"));
  at(mesh, 1).write(row("tie", "from the second"));
  for (const link of mesh.links) link.set("pass");
}

/** The second node's clock is slow: it overwrites a row with a stamp below the one it replaces. */
async function slowClock(mesh: Mesh): Promise<void> {
  const id = await at(mesh, 0).create("right clock", 1);
  await settled(mesh.members);
  await at(mesh, 1).update(id, "slow clock", 2);
}

/** The third node hears of the second's delete before it hears of the update that was deleted. */
async function deleteOvertakesUpdate(mesh: Mesh): Promise<void> {
  const [first, second, third] = [at(mesh, 0), at(mesh, 1), at(mesh, 2)];
  const id = await first.create("made", 1);
  await settled(mesh.members);
  mesh.link(0, 2).set("down");
  await first.update(id, "changed", 2);
  await until("the update", async () => (await second.item(id))?.name === "changed");
  await second.remove(id);
  await until("the delete", async () => (await third.item(id)) === undefined);
  mesh.link(0, 2).set("pass");
}

/** The same with the insert itself: the third node is told to delete what it has not got yet. */
async function deleteOvertakesInsert(mesh: Mesh): Promise<void> {
  const [first, second, third] = [at(mesh, 0), at(mesh, 1), at(mesh, 2)];
  mesh.link(0, 2).set("down");
  const id = await first.create("late", 1);
  await until("the insert", () => second.item(id));
  await second.remove(id);
  await until("the delete has gone out", async () => (await second.health()).pending_changes === 0);
  expect(await third.item(id)).toBeUndefined();
  mesh.link(0, 2).set("pass");
}

const slow: MemberOptions = { clockOffsetMs: -60_000 };

const AT_ONCE: readonly Story[] = [
  { name: "equal stamps, Go and Node", makes: [["go"], ["node"]], play: tie },
  { name: "equal stamps, two Go", makes: [["go"], ["go"]], play: tie },
  { name: "equal stamps, two Node", makes: [["node"], ["node"]], play: tie },
  { name: "a Go node 60 s slow", makes: [["node"], ["go", slow]], play: slowClock },
  { name: "a Node node 60 s slow", makes: [["go"], ["node", slow]], play: slowClock },
];

const AFTER_A_MINUTE: readonly Story[] = [
  {
    name: "a delete that overtakes an update, on Go",
    makes: [["node"], ["go"], ["go"]],
    play: deleteOvertakesUpdate,
  },
  {
    name: "a delete that overtakes an update, on Node",
    makes: [["go"], ["go"], ["node"]],
    play: deleteOvertakesUpdate,
  },
  {
    name: "a delete that overtakes an insert, on Go",
    makes: [["go"], ["node"], ["go"]],
    play: deleteOvertakesInsert,
  },
  {
    name: "a delete that overtakes an insert, on Node",
    makes: [["node"], ["go"], ["node"]],
    play: deleteOvertakesInsert,
  },
];

async function playAlone({ makes, play }: Story): Promise<void> {
  await using fleet = new Fleet();
  const mesh = await wiredMesh(fleet, makes);
  await play(mesh);
  await quiet(mesh.members);
  const [first] = mesh.members;
  const other = mesh.members.find((member) => !Bun.deepEquals(member.content(), first?.content()));
  expect(other).toBeDefined();
}

async function playWithOurs({ makes, play }: Story, limitMs: number): Promise<void> {
  await using fleet = new Fleet();
  const mesh = await wiredMesh(fleet, [...makes, ["ours"]]);
  await play(mesh);
  await settled(mesh.members, { limitMs });
}

/** A slow clock behind the hub, where ours hears of nobody but the hub. */
async function slowClockBehindTheHub(fleet: Fleet, more: readonly Make[]): Promise<Member[]> {
  const hub = fleet.declare("hub");
  const [right, wrong] = [fleet.declare("node"), fleet.declare("go", undefined, slow)];
  const spokes = [right, wrong, ...more.map((make) => fleet.declare(make))];
  for (const spoke of spokes) spoke.peers = [hub.url];
  hub.peers = spokes.map((spoke) => spoke.url);
  await Promise.all([hub, ...spokes].map((member) => member.start()));
  const id = await right.create("right clock", 1);
  await settled([hub, ...spokes]);
  await wrong.update(id, "slow clock", 2);
  await quiet([hub, ...spokes]);
  return [hub, ...spokes];
}

describe("a Go node 60 s slow behind the hub", () => {
  test.skipIf(!available("go", "node", "hub"))("differ without ours", async () => {
    await using fleet = new Fleet();
    const [, right, wrong] = await slowClockBehindTheHub(fleet, []);
    expect(right?.content()).not.toEqual(wrong?.content() ?? []);
  });
  test.skipIf(!available("ours", "go", "node", "hub"))("end equal with ours", async () => {
    await using fleet = new Fleet();
    await settled(await slowClockBehindTheHub(fleet, ["ours"]));
  });
});

describe.each(AT_ONCE)("$name", (story) => {
  const makes = story.makes.map(([make]) => make);
  test.skipIf(!available(...makes))("differ without ours", () => playAlone(story));
  test.skipIf(!available("ours", ...makes))("end equal with ours", () =>
    playWithOurs(story, 15_000),
  );
});

describe.each(AFTER_A_MINUTE)("$name", (story) => {
  const makes = story.makes.map(([make]) => make);
  test.concurrent.skipIf(!available(...makes))("differ without ours", () => playAlone(story));
  test.concurrent.skipIf(!available("ours", ...makes))(
    "end equal with ours",
    () => playWithOurs(story, HEALING_MS_MAX),
    HEALING_MS_MAX + 20_000,
  );
});

// The hub lets inserts, updates and deletes of one row overtake each other, and repeats them.
describe.each(["with", "without"])("around one hub, ours %s --url", (url) => {
  test.concurrent.skipIf(!available("ours", "go", "node", "hub"))(
    "all end equal when all write at once",
    async () => {
      await using fleet = new Fleet();
      const makes = ["ours", "go", "node", "ours"] as const;
      const { all, spokes } = await star(fleet, makes, { url: url === "with" });
      await writeOnAll(spokes, nextMillisecond);
      const rows = await settled(all, { limitMs: HEALING_MS_MAX });
      expect(rows).toHaveLength(ROWS_PER_WRITER * spokes.length);
    },
    HEALING_MS_MAX + 20_000,
  );
});

/**
 * A Go node writes twice with one stamp. Foreign nodes take it in the order of arrival, which a mesh does
 * not keep: so with ours, what came in one batch is taken in its order, and across batches the content
 * decides, for every node alike. `with ours` says what is left.
 */
const ONE_STAMP: readonly (readonly [
  name: string,
  write: string,
  left: Record<string, string[]>,
])[] = [
  [
    "an edit that forgets its stamp",
    "UPDATE items SET name = 'edited' WHERE id = 'row'",
    { node: ["edited"], ours: ["not yet edited"] },
  ],
  [
    "a row made, edited and removed with one stamp",
    `${row("brief", "made")}; UPDATE items SET name = 'edited' WHERE id = 'brief';
     DELETE FROM items WHERE id = 'brief'`,
    { node: ["not yet edited"], ours: ["not yet edited"] },
  ],
];

describe.each(ONE_STAMP)("%s on a Go node", (_, write, left) => {
  for (const third of ["node", "ours"] as const) {
    test.skipIf(!available("go", "node", third))(`with a third node of ${third}`, async () => {
      await using fleet = new Fleet();
      const mesh = await wiredMesh(fleet, [["go"], ["node"], [third]]);
      const go = at(mesh, 0);
      go.write(row("row", "not yet edited"));
      await settled(mesh.members);
      go.write(write);
      await until("the log to be empty", async () => (await go.health()).pending_changes === 0);
      await settled(mesh.members);
      expect(go.sql("SELECT name FROM items")).toEqual(left[third]!.map((name) => ({ name })));
    });
  }
});

const ORDERS = [
  [0, 1, 2],
  [0, 2, 1],
  [1, 0, 2],
  [1, 2, 0],
  [2, 0, 1],
  [2, 1, 0],
] as const;

test.skipIf(!available("ours", "go", "node"))(
  "ties of three end equal in every order of arrival",
  async () => {
    await using fleet = new Fleet();
    const mesh = await wiredMesh(fleet, [["go"], ["node"], ["ours"]]);
    for (const [round, order] of ORDERS.entries()) {
      for (const link of mesh.links) link.set("down");
      for (const [place, member] of mesh.members.entries()) {
        member.write(row(`order ${round}`, `version ${(place + round) % 3}`, T + round));
      }
      for (const from of order) {
        for (const to of [0, 1, 2].filter((place) => place !== from))
          mesh.link(from, to).set("pass");
        const sender = at(mesh, from);
        await until(
          "its changes have arrived",
          async () => (await sender.health()).pending_changes === 0,
        );
      }
      expect(await settled(mesh.members)).toHaveLength(round + 1);
    }
  },
);

/** What float64 cannot hold, in columns of every kind. */
const RICH_VALUES = `
  INSERT INTO items VALUES('odd', 'x', 9007199254740993, ${T}, ${T}, 'sql');
  INSERT INTO items VALUES('max', 'x', 9223372036854775807, ${T}, ${T}, 'sql');
  INSERT INTO items VALUES('blob', x'00ff10', 1, ${T}, ${T}, 'sql');
  INSERT INTO loose VALUES('real', 1.0, x'00', ${T});
  INSERT INTO loose VALUES('integer', 1, x'', ${T});
  INSERT INTO loose VALUES('digits', 9007199254740993, NULL, ${T})`;

const TABLES = `
  CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER,
    created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE loose(id TEXT PRIMARY KEY, v, photo BLOB, updated_at INTEGER)`;

/** A star of an origin and two foreign nodes around the hub; what the origin sends is kept. */
async function starAround(fleet: Fleet, originMake: Make, flags: (url: string) => string[]) {
  const hub = fleet.declare("hub");
  const spokes = ([originMake, "go", "node"] as const).map((make) => fleet.declare(make));
  const origin = spokes[0];
  if (origin === undefined) throw new Error("no origin");
  origin.flags.push(...flags(origin.url));
  for (const spoke of spokes) {
    spoke.write(TABLES);
    spoke.peers = [hub.url];
  }
  const tap = fleet.tap(hub);
  origin.peers = [tap.url];
  hub.peers = spokes.map((spoke) => spoke.url);
  await Promise.all([hub, ...spokes].map((member) => member.start()));
  return { hub, origin, spokes, tap };
}

describe.each(["with", "without"] as const)("through the hub %s --url", (url) => {
  test.skipIf(!available("ours", "go", "node", "hub"))(
    "ours loses no digit and does not loop",
    async () => {
      await using fleet = new Fleet();
      const { hub, origin, spokes, tap } = await starAround(fleet, "ours", (address) => [
        ...["--tables", "items,loose"],
        ...(url === "with" ? ["--url", address] : []),
      ]);
      origin.write(RICH_VALUES);
      const written = [origin.content(), origin.content("loose")];
      await until("everybody has the rows", () =>
        spokes.every((spoke) => spoke.content("loose").length === 3),
      );
      await quiet([hub, ...spokes]);
      // An announcement that was held back for its second would go out now, and again, if it looped.
      const sent = tap.requests.length;
      await Bun.sleep(SILENCE_MS);
      await quiet([hub, ...spokes]);
      expect(tap.requests.length).toBe(sent);
      expect([origin.content(), origin.content("loose")]).toEqual(written);
      expect((await origin.health()).dead_letter).toBe(0);
    },
  );
});

test.skipIf(!available("go", "node", "hub"))(
  "a Go node in the place of ours loses the digits",
  async () => {
    await using fleet = new Fleet();
    const { hub, origin, spokes } = await starAround(fleet, "go", () => []);
    origin.write(`INSERT INTO items VALUES('odd', 'x', 9007199254740993, ${T}, ${T}, 'sql')`);
    await until("everybody has the row", () =>
      spokes.every((spoke) => spoke.content().length === 1),
    );
    await quiet([hub, ...spokes]);
    await until("the echo", () => {
      const [kept] = origin.sql<{ v: string }>("SELECT CAST(value AS TEXT) v FROM items");
      return kept?.v === "9007199254740992";
    });
  },
);
