/** `hook-sync peer`, `backfill` and `status` against real nodes. */
import { expect, test } from "bun:test";
import { statusText } from "../../lib/cli/status.ts";
import { Fleet, settled, until } from "../interop/support/fleet.ts";
import { run, start } from "./run.ts";

const FLAGS = ["--verify-every", "0", "--health-ms", "200"];

test("a peer is added and removed while nodes run; both outlive a restart", async () => {
  await using fleet = new Fleet();
  const a = await fleet.node("ours", [], { flags: FLAGS });
  const b = await fleet.node("ours", [], { flags: FLAGS });
  const list = () => run(["peer", "list", "--node", a.url]);
  expect((await list()).out).toBe("no peers\n");

  const added = await run(["peer", "add", "--node", a.url, `${b.url}/`]);
  expect([added.code, added.out]).toEqual([
    0,
    `${a.url} ships to ${b.url} from now on; that node needs this one as a peer, too\n`,
  ]);
  const again = await run(["peer", "add", b.url, "--node", a.url]);
  expect([again.code, again.out]).toEqual([0, `${b.url} was a peer already\n`]);
  const id = await a.create("x", 1);
  await until("the row arrives", () => b.item(id));
  await until("a knows who b is", async () => (await list()).out.includes(b.id));
  expect((await list()).out).toBe(`${b.url}  ${b.id}  hook-sync for Bun  added while running\n`);
  // Who it is is not forgotten by a start, nor by another change of the peers, while it is away.
  await b.stop();
  await a.restart();
  await run(["peer", "add", "http://127.0.0.1:1", "--node", a.url]);
  await run(["peer", "remove", "http://127.0.0.1:1", "--node", a.url]);
  expect((await list()).out).toBe(`${b.url}  ${b.id}  hook-sync for Bun  added while running\n`);
  await b.start();

  const removed = await run(["peer", "remove", b.url, "--node", a.url]);
  expect([removed.code, removed.out]).toEqual([0, `${a.url} no longer ships to ${b.url}\n`]);
  const none = await run(["peer", "remove", b.url, "--node", a.url]);
  expect([none.code, none.err]).toEqual([
    1,
    `hook-sync: ${a.url}: ${b.url} is not a peer of this node\n`,
  ]);
  await a.restart();
  expect((await list()).out).toBe("no peers\n");
}, 30_000);

test("a peer of the configuration that was removed stays so, until it is added again", async () => {
  await using fleet = new Fleet();
  const b = await fleet.node("ours", [], { flags: FLAGS });
  const a = await fleet.node("ours", [b], { flags: FLAGS });
  await run(["peer", "remove", b.url, "--node", a.url]);
  await a.stop("SIGTERM");
  const argv = ["--id", a.id, "--db", a.dbPath, "--listen", "127.0.0.1:0", "--peer", b.url];
  const restarted = start(argv);
  expect(await restarted.printed("out", "no peers")).toContain(
    `not a peer: ${b.url}, it was removed; to have it again: hook-sync peer add ${b.url}\n`,
  );
  restarted.kill("SIGTERM");
  expect((await restarted.ended()).code).toBe(0);
  await a.start();
  const { out } = await run(["peer", "list", "--node", a.url, "--json"]);
  expect(JSON.parse(out).peers).toEqual([]);
  await run(["peer", "add", b.url, "--node", a.url]);
  const { out: back } = await run(["peer", "list", "--node", a.url]);
  expect(back).toContain("from the configuration");
}, 20_000);

test.each(["<html>login</html>", "null", "{}"])(
  "whatever answers 200 with %s did nothing, and is no node",
  async (text) => {
    using portal = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response(text) });
    const url = `http://127.0.0.1:${portal.port}`;
    for (const argv of [
      ["status"],
      ["peer", "list"],
      ["peer", "add", "http://127.0.0.1:1"],
      ["peer", "remove", "http://127.0.0.1:1"],
      ["backfill", "--peer", "http://127.0.0.1:1"],
    ]) {
      const { code, out, err } = await run([...argv, "--node", url]);
      expect([argv, code, out, err]).toEqual([
        argv,
        1,
        "",
        `hook-sync: ${url}: it answered 200, but not as a node does; is the address right?\n`,
      ]);
    }
  },
  30_000,
);

test("the status of a Go node without peers is shown", () => {
  expect(statusText("http://go", { ok: true, node_id: "go", peers: null })).toEndWith("no peers\n");
});

test("a relay hub's status is shown, as far as it tells", () => {
  expect(statusText("http://hub", { ok: true })).toBe(
    "a hub at http://hub: well\nlog      0 changes kept for peers\nno peers\n",
  );
});

test("backfill sends everything once more, also to a peer that lost it without a word", async () => {
  await using fleet = new Fleet();
  const b = await fleet.node("ours", [], { flags: FLAGS });
  const a = await fleet.node("ours", [b], { flags: FLAGS });
  await a.createMany(300);
  await settled([a, b]);
  b.write("UPDATE _meta SET value = 1; DELETE FROM items; UPDATE _meta SET value = 0");
  expect(b.content()).toEqual([]);
  const { code, out } = await run(["backfill", "--peer", b.url, "--node", a.url]);
  expect([code, out]).toEqual([0, `${a.url} sends everything to ${b.url}\n`]);
  expect(await settled([a, b])).toHaveLength(300);

  const stranger = await run(["backfill", "--peer", "http://stranger:1", "--node", a.url]);
  expect([stranger.code, stranger.err]).toEqual([
    1,
    `hook-sync: ${a.url}: http://stranger:1 is not a peer of this node\n`,
  ]);
}, 30_000);

test("status: what a person wants to know, and exit 1 where a node is not well", async () => {
  await using fleet = new Fleet();
  const b = await fleet.node("ours", [], { flags: FLAGS });
  const a = await fleet.node("ours", [b], { flags: FLAGS });
  await a.createMany(1_234);
  await settled([a, b]);
  const status = () => run(["status", "--node", a.url]);
  await until("b is known", async () => (await status()).out.includes(b.id));
  const { code, out } = await status();
  expect(out.replace(/\(hook-sync [^)]*\)/, "(about)")).toBe(`${a.id} at ${a.url}: well (about)
tables   items
rows     1,234
log      0 changes kept for peers
peers
  ${b.url}  ${b.id}  idle  has everything
`);
  expect(code).toBe(0);
  await b.stop();
  await a.createMany(1);
  await until("one waits", async () => (await status()).out.includes("1 change waits"));
  await a.createMany(1);
  await until("a sees that b is away", async () => (await status()).out.includes("2 changes wait"));
  expect((await status()).code).toBe(0);

  a.write("DROP TABLE items");
  await until("the table is missed", async () => (await status()).code === 1);
  expect((await status()).out).toContain("NOT WELL");
  const { out: json } = await run(["status", "--node", a.url, "--json"]);
  expect(JSON.parse(json).ok).toBe(false);
}, 30_000);

test("status says what comparing with the neighbours found, and what could not be compared", () => {
  const verified = {
    at: Date.UTC(2026, 0, 2),
    neighbours: 1,
    differing: 1_200,
    repaired: 1_200,
    not_compared: ["items.extra is only on b"],
  };
  const node = { ok: true, node_id: "a", item_count: 1, pending_changes: 0, dead_letter: 0 };
  expect(statusText("http://a", { ...node, peers: [], verified })).toBe(`a at http://a: well
rows     1
log      0 changes kept for peers
compared 2026-01-02T00:00:00.000Z with 1 neighbour: 1,200 rows differed, 1,200 repaired
         items.extra is only on b
no peers
`);
});

test("where nobody answers: exit 1 and why", async () => {
  for (const argv of [["status"], ["peer", "list"], ["backfill", "--peer", "http://b:1"]]) {
    const { code, out, err } = await run([...argv, "--node", "http://127.0.0.1:1"]);
    expect([code, out]).toEqual([1, ""]);
    expect(err).toStartWith("hook-sync: http://127.0.0.1:1: ");
    expect(err).toEndWith("; does a node run there?\n");
  }
});

test.each([
  [["peer"], "expected list, add, remove"],
  [["peer", "ad", "http://b:1"], "expected list, add, remove"],
  [["peer", "add"], "PEER_URL: missing"],
  [["peer", "add", "b:9001"], "PEER_URL"],
  [["peer", "list", "x"], "expected no such word here"],
  [["peer", "list", "--node", "nonsense"], "--node"],
  [["backfill"], "--peer: missing"],
  [["backfill", "--peer", "ftp://x"], "--peer"],
  [["status", "x"], "expected no such word here"],
])("a wrong command line %j: exit 2", async (argv, reason) => {
  const { code, err } = await run(argv);
  expect([code, err.includes(reason)]).toEqual([2, true]);
  expect(err).toEndWith(`Try: hook-sync help ${argv[0]}\n`);
});

test("a proxy in the environment is for the web, not for nodes", async () => {
  await using fleet = new Fleet();
  const a = await fleet.node("ours", [], { flags: FLAGS });
  const env = { HTTP_PROXY: "http://127.0.0.1:1", http_proxy: "http://127.0.0.1:1", NO_PROXY: "" };
  const { code, err } = await run(["status", "--node", a.url], { env });
  expect([err, code]).toEqual(["", 0]);
});
