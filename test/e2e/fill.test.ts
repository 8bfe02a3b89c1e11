/**
 * Joining late, coming back from a backup, and ending equal: real processes, killed and restored at
 * bad moments, seen only from outside. `FILL_ROWS=100000 bun test …` for the size of the issue.
 */
import { describe, expect, test } from "bun:test";
import { copyFileSync, rmSync } from "node:fs";
import { Fleet, type Member, settled, TEST_MS_MAX, until } from "../interop/support/fleet.ts";

const ROWS = Number(process.env["FILL_ROWS"] ?? 20_000);
/** Points of a fill at which a node is killed; 20 in the issue. */
const KILLS = Number(process.env["FILL_KILLS"] ?? 4);
/** Peers are asked often, so that nobody sleeps for a minute; nothing but the fill itself repairs. */
const QUICK = ["--health-ms", "200"];
const FLAGS = [...QUICK, "--verify-every", "0"];
const LIMITS = { limitMs: 40_000 };

function ours(fleet: Fleet, id: string, ...flags: string[]): Member {
  return fleet.declare("ours", id, { flags: [...FLAGS, ...flags] });
}

/** Two that ship to each other, started. */
async function pair(fleet: Fleet, ...flags: string[]): Promise<[Member, Member]> {
  const [a, b] = [ours(fleet, "a", ...flags), ours(fleet, "b", ...flags)];
  a.peers = [b.url];
  b.peers = [a.url];
  await Promise.all([a.start(), b.start()]);
  return [a, b];
}

/** How often filling began, as the log of a node says that was not restarted. */
function fills(...nodes: Member[]): number {
  return nodes.reduce((sum, node) => sum + node.said().split("filling a peer").length - 1, 0);
}

interface PeerStatus {
  readonly url: string;
  readonly node_id: string | null;
  readonly pending: number;
  readonly filling: { readonly reason: string; readonly changes: number } | null;
}

interface Health {
  readonly pending_changes: number;
  readonly peers: readonly PeerStatus[];
  readonly warnings: readonly string[];
  readonly verified: { readonly repaired_in_all: number } | null;
}

async function health(node: Member): Promise<Health> {
  return (await (await node.call("GET", "/health")).json()) as Health;
}

/** Changes made for the peer that is being filled, as the file has it; undefined: none is. */
function entriesMade(node: Member): number | undefined {
  const [row] = node.sql<{ n: number }>(
    "SELECT json_extract(fill, '$.entries') AS n FROM _peer_state WHERE fill IS NOT NULL",
  );
  return row?.n;
}

async function isFilling(node: Member): Promise<boolean> {
  return (await health(node)).peers.some(({ filling }) => filling !== null);
}

async function filled(...nodes: Member[]): Promise<void> {
  for (const node of nodes) {
    await until(`${node.id} fills nobody`, async () => !(await isFilling(node)), 40_000);
  }
}

/** An address of a node through a proxy that says where requests come from, and may hold some back. */
function proxyTo(node: Member) {
  let held: string | undefined;
  let waiting = 0;
  const gate = Promise.withResolvers<void>();
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: async (request) => {
      const { pathname } = new URL(request.url);
      if (pathname === held) {
        waiting++;
        await gate.promise;
      }
      const headers = new Headers(request.headers);
      headers.delete("host");
      headers.set("X-Forwarded-For", "10.0.0.1");
      const body = request.method === "GET" ? null : await request.bytes();
      return fetch(node.url + pathname, { method: request.method, headers, body });
    },
  });
  return {
    url: `http://127.0.0.1:${server.port}`,
    holdBack(path: string) {
      held = path;
      return {
        get waiting() {
          return waiting;
        },
        letGo: () => gate.resolve(),
      };
    },
    [Symbol.asyncDispose]: () => server.stop(true),
  };
}

const OLD_TABLES = `
  CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE notes(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER) WITHOUT ROWID;
  CREATE TABLE files(id TEXT PRIMARY KEY, body BLOB, updated_at INTEGER)`;

/** A database that an application kept for years: odd ids, rows without stamps, rows of a MiB. */
const OLD_FILE = `${OLD_TABLES};
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${ROWS})
  INSERT INTO items SELECT 'key ' || i, 'name ' || i, i, i, CASE WHEN i % 10 THEN 1600000000000 + i END, 'app' FROM n;
  INSERT INTO notes VALUES('ünïcode \u{1f600} "quoted"', 'x', NULL), ('back\\slash', char(10) || char(0) || 'y', 5), ('n', CAST(x'ff' AS TEXT), 6);
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12)
  INSERT INTO files SELECT 'file ' || i, randomblob(1048576), i FROM n`;

describe("a peer that comes late", () => {
  test(
    "an old database and an empty node: equal, also what has no stamp, and writes go on meanwhile",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = [ours(fleet, "a", "--tables", "*"), ours(fleet, "b", "--tables", "*")];
      a.peers = [b.url];
      b.peers = [a.url];
      a.write(OLD_FILE);
      b.write(OLD_TABLES);
      await Promise.all([a.start(), b.start()]);
      await until("the fill begins", () => isFilling(a));

      // A write made meanwhile does not wait for the rest.
      const delays: number[] = [];
      for (let at = 0; await isFilling(a); at++) {
        const beganMs = performance.now();
        const id = await a.create("live", at);
        await until("a live write arrives", () => b.item(id));
        delays.push(performance.now() - beganMs);
      }
      console.log(
        `${delays.length} writes during a fill of ${ROWS} rows arrived after at most ${Math.round(Math.max(...delays))} ms`,
      );
      expect(delays.length).toBeGreaterThan(1);
      expect(await settled([a, b], LIMITS)).toHaveLength(ROWS + delays.length);
      for (const table of ["notes", "files"]) await settled([a, b], { table });
      const unstamped = "SELECT count(*) AS n FROM items WHERE updated_at = 0";
      expect(b.sql(unstamped)).toEqual([{ n: ROWS / 10 }]);
      expect(fills(a, b)).toBe(1);
    },
    TEST_MS_MAX,
  );

  test(
    "a table that is synced later brings what was in it before, to peers that have all the rest",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = [ours(fleet, "a", "--tables", "items"), ours(fleet, "b", "--tables", "items")];
      a.peers = [b.url];
      b.peers = [a.url];
      a.write(OLD_FILE.replace(`i < ${ROWS}`, "i < 50"));
      b.write(OLD_TABLES);
      await Promise.all([a.start(), b.start()]);
      await settled([a, b], LIMITS);
      await filled(a);
      expect([b.content("notes"), fills(a, b)]).toEqual([[], 1]);
      for (const node of [a, b]) {
        node.flags[node.flags.indexOf("items")] = "items,notes,files";
        await node.stop("SIGTERM");
        await node.start();
      }
      await until("b has the notes", () => b.content("notes").length === 3);
      for (const table of ["notes", "files"])
        expect(await settled([a, b], { table, ...LIMITS })).not.toEqual([]);
      expect(fills(a, b)).toBeLessThanOrEqual(1);
    },
    TEST_MS_MAX,
  );

  test(
    "a new peer whose /health comes late is filled all the same: nothing is shipped to it before",
    async () => {
      await using fleet = new Fleet();
      const nodes = ["a", "b", "c"].map((id) => ours(fleet, id, "--tables", "*"));
      const [a, b, c] = nodes as [Member, Member, Member];
      a.peers = [c.url];
      a.write(OLD_FILE);
      for (const node of [b, c]) node.write(OLD_TABLES);
      await Promise.all(nodes.map((node) => node.start()));
      await settled([a, c], LIMITS);
      await a.createMany(20);
      await using front = proxyTo(b);
      const health = front.holdBack("/health");
      await a.call("POST", "/peers", { url: front.url });
      await until("b is asked how it is", () => health.waiting > 0);
      await a.createMany(20);
      await until("c has them", () => c.content().length === ROWS + 40);
      expect(b.content()).toEqual([]);
      health.letGo();
      await until("b has all", () => b.content().length === ROWS + 40, LIMITS.limitMs);
      expect(b.content()).toEqual(a.content());
    },
    TEST_MS_MAX,
  );

  test(
    "a peer added while the node runs gets what left the log, deletes included; a removed one holds nothing",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet);
      await a.createMany(500);
      const gone = await a.create("gone", 1);
      await settled([a, b]);
      await a.remove(gone);
      await settled([a, b]);
      const c = ours(fleet, "c");
      c.write(
        "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT)",
      );
      c.write(`INSERT INTO items(id, name, updated_at) VALUES('${gone}', 'an old copy', 1)`);
      c.flags.push("--tables", "items");
      await c.start();
      await a.call("POST", "/peers", { url: c.url });
      expect(await settled([a, b, c], LIMITS)).toHaveLength(500);
      await filled(a);

      await c.stop();
      await a.createMany(10);
      await until("changes wait for c", async () => (await health(a)).pending_changes > 0);
      const removed = await a.call("DELETE", `/peers/${encodeURIComponent(c.url)}`);
      expect(removed.status).toBe(200);
      await until("the log is empty", async () => (await health(a)).pending_changes === 0);
      expect((await health(a)).peers.map(({ url }) => url)).toEqual([b.url]);
    },
    TEST_MS_MAX,
  );

  test(
    "--join: everyone takes the new node in, it gets everything, and strangers are told of it",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet);
      const stranger = fleet.recorder();
      await a.call("POST", "/peers", { url: stranger.url });
      await a.createMany(300);
      await until("a knows what the stranger is", () => stranger.changes.length >= 300);
      const c = ours(fleet, "c");
      c.flags.push("--join", a.url, "--url", c.url);
      await c.start();
      expect(await settled([a, b, c], LIMITS)).toHaveLength(300);
      await filled(a, b, c);
      const everyone = [a, b, c];
      for (const node of everyone) {
        const ours = everyone.filter((other) => other !== node).map(({ url }) => url);
        const expected = (node === b ? ours : [...ours, stranger.url]).sort();
        // The rows may be there before the last of the mesh was asked to take the new node in.
        await until(`${node.id} has its peers`, async () => {
          const urls = (await health(node)).peers.map(({ url }) => url).sort();
          return Bun.deepEquals(urls, expected);
        });
      }
      expect(c.said()).toContain(`--peer ${c.url}`);
      // It came with nothing: what it has, it has from them, and they from each other.
      expect(fills(c)).toBe(0);
      await c.restart();
      await c.create("by the new one", 1);
      await settled(everyone, LIMITS);
    },
    TEST_MS_MAX,
  );

  test(
    "--join through an address where something else answers first is tried again",
    async () => {
      await using fleet = new Fleet();
      const a = ours(fleet, "a");
      await a.start();
      let isPortal = true;
      await using portal = Bun.serve({
        hostname: "127.0.0.1",
        port: 0,
        fetch: async (request) => {
          if (isPortal) return new Response("<html>please log in</html>");
          const { pathname } = new URL(request.url);
          const { method, headers } = request;
          return fetch(a.url + pathname, { method, headers, body: await request.bytes() });
        },
      });
      const c = ours(fleet, "c", "--join", `http://127.0.0.1:${portal.port}`);
      c.flags.push("--url", c.url);
      await c.start();
      await until("it says why not", async () =>
        JSON.stringify(await c.health()).includes("not as a node does"),
      );
      isPortal = false;
      await until("it has joined", () => c.said().includes("joined the mesh"));
      await a.createMany(3);
      expect(await settled([a, c], LIMITS)).toHaveLength(3);
    },
    TEST_MS_MAX,
  );

  test(
    "--join from another machine needs the token of the mesh; without it nobody takes the node in",
    async () => {
      await using fleet = new Fleet();
      const token = "0123456789abcdefgh";
      const a = ours(fleet, "a", "--admin-token", token);
      await a.start();
      await a.createMany(30);
      // What comes from elsewhere is told by what a proxy adds.
      await using far = proxyTo(a);
      const c = ours(fleet, "c", "--join", far.url);
      c.flags.push("--url", c.url);
      for (const wrong of [[], ["--admin-token", "another-token-of-16"]]) {
        const flags = c.flags.length;
        c.flags.push(...wrong);
        await c.start();
        await until("c says why", async () =>
          (await health(c)).warnings.some((text) => text.includes("admin token")),
        );
        expect((await health(a)).peers).toEqual([]);
        expect((await health(c)).peers).toEqual([]);
        await c.stop();
        c.flags.length = flags;
      }
      c.flags.push("--admin-token", token);
      await c.start();
      expect(await settled([a, c], LIMITS)).toHaveLength(30);
      expect((await health(a)).peers.map(({ url }) => url)).toEqual([c.url]);
    },
    TEST_MS_MAX,
  );

  test(
    "a peer of another make, without /health, gets every row and every delete",
    async () => {
      await using fleet = new Fleet();
      const a = ours(fleet, "a");
      await a.start();
      await a.createMany(200);
      const gone = await a.create("gone", 1);
      await a.remove(gone);
      const stranger = fleet.recorder();
      await a.call("POST", "/peers", { url: stranger.url });
      await until("the stranger has all", async () => {
        const ids = new Set(
          stranger.changes.filter(({ op }) => op !== "DELETE").map(({ row }) => row?.["id"]),
        );
        const deleted = stranger.changes.some(
          ({ op, old_id }) => op === "DELETE" && old_id === gone,
        );
        return ids.size >= 200 && deleted && !(await isFilling(a));
      });
      expect(Math.min(...stranger.requests.map(({ batchId }) => batchId))).toBeGreaterThan(0);
      // Asked for, it gets all of it once more.
      stranger.requests.length = 0;
      const asked = await a.call("POST", "/peers/backfill", { peer: stranger.url });
      expect(asked.status).toBe(202);
      await until("all of it again", () => stranger.changes.length >= 201);
    },
    TEST_MS_MAX,
  );

  test(
    "beyond --log-max the slowest peer is cut off, and filled when it returns",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet, "--log-max", "1MiB");
      await a.createMany(10);
      await settled([a, b]);
      await b.stop();
      for (let at = 0; at < 4; at++) await a.createMany(2_500, `a long name ${"x".repeat(100)}`);
      await until("the log is cut", async () => {
        const { warnings } = await health(a);
        return warnings.some((text) => text.includes("--log-max"));
      });
      await a.createMany(10, "after the cut");
      await b.start();
      expect(await settled([a, b], LIMITS)).toHaveLength(10_020);
      await filled(a);
    },
    TEST_MS_MAX,
  );
});

describe("a peer that was removed", () => {
  test(
    "in the middle of its fill gets everything when it comes back, though its mark is high",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = [ours(fleet, "a", "--tables", "*"), ours(fleet, "b", "--tables", "*")];
      a.peers = [b.url];
      // Rows of which the log never knew.
      a.write(OLD_FILE);
      b.write(OLD_TABLES);
      await Promise.all([a.start(), b.start()]);
      await until("b has some", () => b.content().length > 0);
      const path = `/peers/${encodeURIComponent(b.url)}`;
      expect((await a.call("DELETE", path)).status).toBe(200);
      expect(b.content().length).toBeLessThan(ROWS);
      await a.createMany(5);
      await a.call("POST", "/peers", { url: b.url });
      expect(await settled([a, b], LIMITS)).toHaveLength(ROWS + 5);
      await filled(a);
    },
    TEST_MS_MAX,
  );

  test(
    "goes on where it was, if the log has all since: nothing is sent again but that",
    async () => {
      await using fleet = new Fleet();
      const a = ours(fleet, "a");
      const c = ours(fleet, "c");
      const away = ours(fleet, "away");
      const tap = fleet.tap(c);
      // One that is away keeps the log.
      a.peers = [tap.url, away.url];
      await Promise.all([a.start(), c.start()]);
      await a.createMany(500);
      await until("c has them", () => c.content().length === 500);
      const path = `/peers/${encodeURIComponent(tap.url)}`;
      expect((await a.call("DELETE", path)).status).toBe(200);
      await a.createMany(20, "while it was removed");
      await a.call("POST", "/peers", { url: tap.url });
      await until("c has the rest", () => c.content().length === 520);
      expect(fills(a)).toBe(0);
    },
    TEST_MS_MAX,
  );
});

describe("kill -9 in the middle of a fill", () => {
  test.each(["the sender", "the receiver"])(
    "of %s, again and again: it goes on where it was, and ends equal",
    async (victim) => {
      await using fleet = new Fleet();
      const [a, b] = [ours(fleet, "a", "--tables", "*"), ours(fleet, "b", "--tables", "*")];
      // A tap slows nothing, but counts what passes.
      const tap = fleet.tap(b);
      a.peers = [tap.url];
      b.peers = [a.url];
      const rows = KILLS * 10_000;
      a.write(OLD_FILE.replace(`i < ${ROWS}`, `i < ${rows}`));
      b.write(OLD_TABLES);
      await Promise.all([a.start(), b.start()]);
      const killed = victim === "the sender" ? a : b;
      let last = 0;
      for (let kill = 1; kill <= KILLS; kill++) {
        const wanted = ((kill - 0.5) * rows) / KILLS;
        const entries = await until(
          `the fill comes to ${wanted} changes`,
          () => {
            const now = entriesMade(a);
            return now !== undefined && now >= wanted ? now : undefined;
          },
          LIMITS.limitMs,
        );
        expect(entries).toBeGreaterThanOrEqual(last);
        last = entries;
        await killed.stop("SIGKILL");
        await killed.start();
        // The cursor is where it was.
        expect(entriesMade(a) ?? rows).toBeGreaterThanOrEqual(last);
      }
      expect(await settled([a, b], LIMITS)).toHaveLength(rows);
      for (const table of ["notes", "files"]) await settled([a, b], { table, ...LIMITS });
      await filled(a, b);
      // Each kill may cost what was in flight once more, and never all that went before.
      const batches = new Map(tap.requests.map((request) => [request.batchId, request.changes]));
      const sent = [...batches.values()].flat().filter(({ table }) => table === "items").length;
      expect(sent).toBeLessThan(rows + KILLS * 10_000);
    },
    60_000 + KILLS * 15_000,
  );
});

describe("a node that comes back from a backup", () => {
  test(
    "as receiver: it gets what it once acknowledged, and what it wrote after the backup",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet);
      await a.createMany(100);
      await settled([a, b]);
      await b.stop("SIGTERM");
      copyFileSync(b.dbPath, `${b.dbPath}.backup`);
      await b.start();
      await a.createMany(50, "after the backup, by a");
      await b.createMany(20, "after the backup, by b");
      const known = await a.create("deleted later", 1);
      await settled([a, b]);
      await a.remove(known);
      const rows = await settled([a, b]);
      await b.stop("SIGTERM");
      copyFileSync(`${b.dbPath}.backup`, b.dbPath);
      await b.start();
      expect(await settled([a, b], LIMITS)).toEqual(rows);
      expect(rows).toHaveLength(170);
      await filled(a, b);
      // Once for what it acknowledged, once more for what it wrote itself: then it is another file.
      expect(fills(a)).toBeWithin(1, 3);
    },
    TEST_MS_MAX,
  );

  test(
    "as sender: nothing that it acknowledged is lost, nor what it, or another program, writes after that",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet);
      await a.createMany(100);
      await settled([a, b]);
      await a.stop("SIGTERM");
      copyFileSync(a.dbPath, `${a.dbPath}.backup`);
      await a.start();
      await a.createMany(50, "lost, but for b");
      await settled([a, b]);
      await a.stop("SIGTERM");
      copyFileSync(`${a.dbPath}.backup`, a.dbPath);
      a.write("INSERT INTO items(id, name, updated_at) VALUES('by another program', 'x', 5)");
      await a.start();
      const ids = await Promise.all(Array.from({ length: 60 }, (_, at) => a.create("new", at)));
      expect(await settled([a, b], LIMITS)).toHaveLength(100 + 50 + 1 + 60);
      await filled(a, b);
      await b.update(ids[0]!, "by b", 1);
      await settled([a, b]);
      await a.update(ids[1]!, "by a", 1);
      await settled([a, b]);
    },
    TEST_MS_MAX,
  );

  test(
    "as sender, whose place in the log another program has written over and over",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet);
      const id = await a.create("changed later", 1);
      await settled([a, b]);
      await a.stop("SIGTERM");
      copyFileSync(a.dbPath, `${a.dbPath}.backup`);
      await a.start();
      await a.createMany(40, "lost, but for b");
      await settled([a, b]);
      await a.stop("SIGTERM");
      copyFileSync(`${a.dbPath}.backup`, a.dbPath);
      // They become one entry: where b's mark is, there is none.
      for (let n = 0; n < 70; n++) a.write(`UPDATE items SET value = ${n} WHERE id = '${id}'`);
      await a.start();
      await a.create("new", 1);
      expect(await settled([a, b], LIMITS)).toHaveLength(42);
      await filled(a, b);
    },
    TEST_MS_MAX,
  );

  test(
    "both at once, each from its own old copy, and a third that has all",
    async () => {
      await using fleet = new Fleet();
      const nodes = ["a", "b", "c"].map((id) => ours(fleet, id));
      for (const node of nodes)
        node.peers = nodes.filter((other) => other !== node).map(({ url }) => url);
      await Promise.all(nodes.map((node) => node.start()));
      const [a, b, c] = nodes as [Member, Member, Member];
      await a.createMany(50);
      await settled(nodes);
      for (const node of [a, b]) {
        await node.stop("SIGTERM");
        copyFileSync(node.dbPath, `${node.dbPath}.backup`);
        await node.start();
      }
      for (const node of nodes) await node.createMany(30, `later, by ${node.id}`);
      await settled(nodes);
      for (const node of [a, b]) {
        await node.stop("SIGTERM");
        copyFileSync(`${node.dbPath}.backup`, node.dbPath);
      }
      await Promise.all([a.start(), b.start()]);
      expect(await settled([a, b, c], LIMITS)).toHaveLength(140);
      await filled(...nodes);
    },
    TEST_MS_MAX,
  );

  test(
    "with its file deleted: it gets everything",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet);
      await a.createMany(200);
      await b.createMany(100);
      const rows = await settled([a, b]);
      await b.stop("SIGTERM");
      for (const end of ["", "-wal", "-shm"]) rmSync(b.dbPath + end, { force: true });
      await b.start();
      expect(await settled([a, b], LIMITS)).toEqual(rows);
      await filled(a, b);
      // Once, as another file; that it also lacks what the old one acknowledged goes without saying.
      expect([fills(a), (await health(a)).warnings]).toEqual([1, []]);
    },
    TEST_MS_MAX,
  );

  test(
    "the file of one copied to another node: both go on, under names of their own",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = await pair(fleet);
      await a.createMany(200);
      await settled([a, b]);
      await b.stop("SIGTERM");
      const c = ours(fleet, "c");
      copyFileSync(b.dbPath, c.dbPath);
      c.peers = [a.url, b.url];
      await Promise.all([b.start(), c.start()]);
      for (const node of [a, b]) await node.call("POST", "/peers", { url: c.url });
      await Promise.all([a, b, c].map((node) => node.createMany(20, `by ${node.id}`)));
      expect(await settled([a, b, c], LIMITS)).toHaveLength(260);
      await filled(a, b, c);
    },
    TEST_MS_MAX,
  );

  test(
    "two nodes of one name: a warning on both",
    async () => {
      await using fleet = new Fleet();
      const [a, twin] = [ours(fleet, "same"), ours(fleet, "same")];
      twin.dbPath = `${a.dbPath}.twin`;
      a.peers = [twin.url];
      twin.peers = [a.url];
      await Promise.all([a.start(), twin.start()]);
      for (const node of [a, twin]) {
        await until("a warning", async () =>
          (await health(node)).warnings.some((text) => text.includes("the same --id")),
        );
      }
    },
    TEST_MS_MAX,
  );
});

describe("network faults alone", () => {
  test(
    "cut lines and late answers start no fill",
    async () => {
      await using fleet = new Fleet();
      const [a, b] = [ours(fleet, "a", "--request-timeout-ms", "500"), ours(fleet, "b")];
      b.peers = [a.url];
      await b.start();
      const wire = await fleet.wire(b);
      a.peers = [wire.url];
      await a.start();
      for (let round = 0; round < 8; round++) {
        wire.set((["pass", "down", "lose-replies", "hang"] as const)[round % 4]!);
        const lost = wire.repliesLost;
        await Promise.all([a.createMany(50), b.createMany(5)]);
        if (round % 4 === 2) await until("a reply is lost", () => wire.repliesLost > lost);
      }
      wire.set("pass");
      await settled([a, b], LIMITS);
      expect(fills(a, b)).toBe(0);
    },
    TEST_MS_MAX,
  );
});

describe("comparing with the neighbours by itself", () => {
  test(
    "what only one node has, and is in nobody's log, comes to the others after a removal",
    async () => {
      await using fleet = new Fleet();
      const nodes = ["a", "b", "c"].map((id) => fleet.declare("ours", id, { flags: QUICK }));
      for (const node of nodes)
        node.peers = nodes.filter((other) => other !== node).map(({ url }) => url);
      await Promise.all(nodes.map((node) => node.start()));
      const [a, b, c] = nodes as [Member, Member, Member];
      const id = await a.create("kept", 1);
      await settled(nodes);
      const plant = (node: Member, sql: string) =>
        node.write(`UPDATE _meta SET value = 1; ${sql}; UPDATE _meta SET value = 0`);
      plant(
        b,
        "INSERT INTO items(id, name, updated_at) VALUES('of the late c', 'only b heard of it', 7)",
      );
      plant(a, `UPDATE items SET value = 2, updated_at = updated_at + 1 WHERE id = '${id}'`);
      await c.stop();
      expect((await b.call("DELETE", `/peers/${encodeURIComponent(c.url)}`)).status).toBe(200);
      // Also a node that is there for the first time is compared: it may have been then.
      const repaired = async (node: Member) => (await health(node)).verified?.repaired_in_all ?? 0;
      await until("both rows are repaired", async () => {
        return (await repaired(a)) + (await repaired(b)) >= 2;
      });
      expect(await settled([a, b])).toHaveLength(2);
      expect((await b.item(id))?.value).toBe(2);
      expect(a.said() + b.said()).toContain("rows differed, and were repaired");
    },
    TEST_MS_MAX,
  );
});

describe("who may ask for a fill", () => {
  test("programs on this machine, in JSON, not through a proxy; and whoever has the token", async () => {
    await using fleet = new Fleet();
    const token = "0123456789abcdefgh";
    const [a, b] = await pair(fleet, "--admin-token", token);
    const ask = async (headers: Record<string, string>, body = JSON.stringify({ peer: b.url })) => {
      const init = { method: "POST", headers, body };
      return (await fetch(`${a.url}/peers/backfill`, init)).status;
    };
    const json = { "Content-Type": "application/json" };
    expect(await ask(json)).toBe(202);
    expect(await ask({ "Content-Type": "text/plain" })).toBe(415);
    expect(await ask({ ...json, "X-Forwarded-For": "10.0.0.1" })).toBe(403);
    expect(await ask({ ...json, Forwarded: "for=10.0.0.1" })).toBe(403);
    expect(await ask({ ...json, Authorization: "Bearer wrong" })).toBe(403);
    const authorised = { ...json, Authorization: `Bearer ${token}` };
    expect(await ask({ ...authorised, "X-Forwarded-For": "10.0.0.1" })).toBe(202);
    expect(await ask(json, JSON.stringify({ peer: "http://stranger:1" }))).toBe(404);
    expect(await ask(json, JSON.stringify({ peer: 5 }))).toBe(400);
    expect(await ask(json, JSON.stringify({ peer: "nonsense" }))).toBe(400);
  });
});
