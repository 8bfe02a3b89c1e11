/** `hook-sync snapshot`: whole copies of files in use, from which a node starts as another one. */
import { expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Fleet, type Member, settled, until } from "../interop/support/fleet.ts";
import { run } from "./run.ts";

const FLAGS = ["--verify-every", "0", "--health-ms", "200"];

/** Writes all the time until it is told to stop; says how many rows were answered. */
function writer(node: Member) {
  let count = 0;
  let isOver = false;
  const writing = (async () => {
    while (!isOver) {
      await node.createMany(20, "written meanwhile");
      count += 20;
    }
  })();
  return {
    get count() {
      return count;
    },
    async stop() {
      isOver = true;
      await writing;
      return count;
    },
  };
}

test.each(["--node", "--db"])(
  "%s: a copy while the node is written to, whole",
  async (source) => {
    await using fleet = new Fleet();
    const a = await fleet.node("ours", [], { flags: FLAGS });
    await a.createMany(5_000);
    const writing = writer(a);
    await until("some writes", () => writing.count >= 100);
    const before = writing.count;
    const out = join(fleet.dir, "copy.db");
    const argv = ["snapshot", source, source === "--db" ? a.dbPath : a.url, out];
    const { code, out: said, err } = await run(argv, { msMax: 20_000 });
    const written = await writing.stop();
    expect([err, code]).toEqual(["", 0]);
    expect(said).toMatch(/copy\.db: \d+\.\d MiB, checked\n$/);

    const copy = fleet.declare("ours", "copy", { flags: FLAGS });
    copy.dbPath = out;
    const [found] = copy.sql<{ n: number }>("SELECT count(*) AS n FROM items");
    expect(found!.n).toBeWithin(5_000 + before, 5_000 + written + 1);
    expect(found!.n % 20).toBe(0);
    // Nothing is left beside either.
    const left = readdirSync(fleet.dir).filter((name) => /copy-|part/.test(name));
    expect(left).toEqual([]);
  },
  30_000,
);

test("a node that starts on a copy gets only what is newer, and sends what it wrote itself", async () => {
  await using fleet = new Fleet();
  const [a, b, c] = ["a", "b", "c"].map((id) => fleet.declare("ours", id, { flags: FLAGS }));
  a!.peers = [c!.url];
  c!.peers = [a!.url];
  await Promise.all([a!.start(), c!.start()]);
  await a!.createMany(2_000);
  await c!.createMany(1_000);
  await settled([a!, c!]);
  const taps = [fleet.tap(b!), fleet.tap(b!)];
  // Added first, so that the logs are kept for it.
  for (const [at, node] of [a!, c!].entries())
    await node.call("POST", "/peers", { url: taps[at]!.url });
  const { code } = await run(["snapshot", "--node", a!.url, b!.dbPath], { msMax: 20_000 });
  expect(code).toBe(0);
  await a!.createMany(7, "newer");
  await c!.createMany(6, "newer");
  b!.peers = [a!.url, c!.url];
  await b!.start();
  await b!.create("by the copy", 1);
  expect(await settled([a!, b!, c!], { limitMs: 20_000 })).toHaveLength(3_014);
  const peers = async (node: Member) => {
    const answer = await node.call("GET", "/peers");
    return ((await answer.json()) as { peers: { node_id: string | null }[] }).peers;
  };
  for (const node of [a!, c!]) {
    await until("it has looked at how b is", async () =>
      (await peers(node)).every(({ node_id }) => node_id !== null),
    );
  }
  await settled([a!, b!, c!], { limitMs: 20_000 });
  for (const node of [a!, b!, c!]) expect(node.said()).not.toContain("filling");
  expect(taps.flatMap(({ changes }) => changes).length).toBeLessThan(300);
  // Its file named it as a peer of its own.
  await until("only the others are left", async () => {
    return (await peers(b!)).map(({ node_id }) => node_id).join() === "a,c";
  });
}, 40_000);

test("OUT is never overwritten, and never there when something failed", async () => {
  await using fleet = new Fleet();
  const a = await fleet.node("ours", [], { flags: FLAGS });
  const taken = join(fleet.dir, "taken.db");
  writeFileSync(taken, "something");
  const refused = await run(["snapshot", "--node", a.url, taken]);
  expect([refused.code, refused.err]).toEqual([
    1,
    `hook-sync: ${taken} is there already. Give another name, or remove it first; a node may be using it.\n`,
  ]);
  const nowhere = await run(["snapshot", "--db", a.dbPath, join(fleet.dir, "none", "x.db")]);
  expect([nowhere.code, nowhere.err.includes("mkdir -p")]).toEqual([1, true]);

  const broken = join(fleet.dir, "broken.db");
  writeFileSync(broken, `SQLite format 3\0${"x".repeat(5_000)}`);
  for (const argv of [
    ["--db", broken],
    ["--db", join(fleet.dir, "none.db")],
    ["--node", "http://127.0.0.1:1"],
  ]) {
    const out = join(fleet.dir, "out.db");
    const { code, err } = await run(["snapshot", ...argv, out]);
    expect([argv, code, existsSync(out), existsSync(`${out}.part`)]).toEqual([
      argv,
      1,
      false,
      false,
    ]);
    expect(err).toStartWith("hook-sync: ");
  }
});

test.each(["-wal", "-journal"])(
  "what is left of another file as OUT%s is not made part of it",
  async (suffix) => {
    await using fleet = new Fleet();
    const a = fleet.declare("ours", "a");
    a.write("CREATE TABLE t(id TEXT PRIMARY KEY)");
    const out = join(fleet.dir, "out.db");
    writeFileSync(`${out}${suffix}`, "of another");
    const { code, err } = await run(["snapshot", "--db", a.dbPath, out]);
    expect([code, err, existsSync(out)]).toEqual([
      1,
      expect.stringContaining(`${out}${suffix} is there already`),
      false,
    ]);
  },
);

test("what a node is not, sends no copy", async () => {
  await using fleet = new Fleet();
  using portal = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response("<html>") });
  const out = join(fleet.dir, "out.db");
  const { code, err } = await run(["snapshot", "--node", `http://127.0.0.1:${portal.port}`, out]);
  expect([code, err]).toEqual([
    1,
    "hook-sync: what came is not an SQLite database. Is that the address of a node?\n",
  ]);
  expect(readdirSync(fleet.dir)).toEqual([]);
});

test("a copy that its check finds damaged does not get the name", async () => {
  await using fleet = new Fleet();
  const a = fleet.declare("ours", "a");
  a.write("CREATE TABLE t(id TEXT PRIMARY KEY, v TEXT /*    */); INSERT INTO t VALUES('a', NULL)");
  // A rule that its rows break, written into the schema itself.
  const bytes = readFileSync(a.dbPath);
  bytes.write("NOT NULL", bytes.indexOf("/*    */"), "latin1");
  writeFileSync(a.dbPath, bytes);
  const out = join(fleet.dir, "out.db");
  const { code, err } = await run(["snapshot", "--db", a.dbPath, out]);
  expect(err).toBe(
    "hook-sync: the copy is damaged: NULL value in t.v. Check the original with PRAGMA integrity_check, and the disk.\n",
  );
  expect([code, existsSync(out), existsSync(`${out}.part`)]).toEqual([1, false, false]);
});

test("through a node only with its token, where it has one and asks for it", async () => {
  await using fleet = new Fleet();
  const token = "a-token-of-enough-letters";
  const a = await fleet.node("ours", [], { flags: [...FLAGS, "--admin-token", token] });
  const out = join(fleet.dir, "out.db");
  const wrong = await run([
    "snapshot",
    "--node",
    a.url,
    "--admin-token",
    "another-of-16-letters",
    out,
  ]);
  expect([wrong.code, wrong.err.includes("admin token")]).toEqual([1, true]);
  const env = { HOOK_SYNC_ADMIN_TOKEN: token };
  expect((await run(["snapshot", "--node", a.url, out], { env })).code).toBe(0);
});

test.each([
  [[], "--node: missing; expected --node or --db"],
  [["--node", "http://a:1"], "OUT: missing"],
  [["--node", "http://a:1", "--db", "a.db", "x"], "either --db or --node"],
  [["--db", "a.db", "x", "y"], "expected no such word here"],
])("a wrong command line %j: exit 2", async (argv, reason) => {
  const { code, err } = await run(["snapshot", ...argv]);
  expect([code, err.includes(reason)]).toEqual([2, true]);
});

test("its help shows no default for what must be given", async () => {
  const { code, out } = await run(["help", "snapshot"]);
  expect(code).toBe(0);
  expect(out).toMatch(/--node URL +copy the file of this running node\n/);
  expect(out).not.toContain("127.0.0.1");
});
