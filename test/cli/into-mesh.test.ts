/** A node that follows a source into its mesh: source, bridge and another node as processes of their own. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Database as Turso } from "@tursodatabase/database/compat";
import { type SourceHealth, whyOfMesh } from "../../lib/bridge.ts";
import { enableCdc } from "../../lib/cdc/index.ts";
import { run, type Started, start } from "./run.ts";

const MS_MAX = 90_000;
const NOTES = "CREATE TABLE notes (id TEXT PRIMARY KEY, body, n INTEGER, updated_at INTEGER)";

let folder = "";
let started: Started[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "into-mesh-"));
});
afterEach(async () => {
  for (const each of started) each.kill("SIGKILL");
  await Promise.all(started.map((each) => each.exited));
  started = [];
  rmSync(folder, { recursive: true, force: true });
});

const file = (name: string) => join(folder, `${name}.db`);

interface Running {
  readonly url: string;
  readonly process: Started;
}

async function begin(...argv: string[]): Promise<Running> {
  const process = start(argv, { msMax: MS_MAX });
  started.push(process);
  const text = await process.printed("out", "peers");
  return { url: /listening on (\S+)/.exec(text)![1]!, process };
}

function node(id: string, ...flags: string[]): Promise<Running> {
  return begin("--id", id, "--db", file(id), "--listen", "127.0.0.1:0", ...flags);
}

function bridge(source: string, ...flags: string[]): Promise<Running> {
  const own = ["--id", "bridge", "--db", file("bridge"), "--listen", "127.0.0.1:0"];
  return begin("follow", source, "--into-mesh", ...own, ...flags);
}

function withDb<T>(name: string, use: (db: Database) => T): T {
  using db = new Database(file(name));
  db.run("PRAGMA busy_timeout = 20000");
  return use(db);
}

/** Another program at work on a node's file. */
function write(name: string, sql: string): void {
  withDb(name, (db) => db.exec(`BEGIN IMMEDIATE; ${sql}; COMMIT`));
}

function rows(name: string, sql: string): unknown[][] {
  return withDb(name, (db) => db.query(sql).values());
}

async function until(probe: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = performance.now() + MS_MAX / 2; performance.now() < end; ) {
    if (await probe()) return;
    await Bun.sleep(20);
  }
  throw new Error("it did not become so");
}

async function untilRows(name: string, sql: string, wanted: unknown[][]): Promise<void> {
  let found: unknown[][] = [];
  try {
    await until(() => {
      try {
        found = rows(name, sql);
      } catch (error) {
        // The table comes with the source's.
        if (!/no such (?:table|column)/.test(String(error))) throw error;
      }
      return Bun.deepEquals(found, wanted);
    });
  } catch {
    expect(found).toEqual(wanted);
  }
}

interface Health {
  readonly ok: boolean;
  readonly last_change_id: number;
  readonly reasons: readonly string[];
  readonly tables: { readonly synced: readonly string[] };
  readonly followers?: readonly { readonly name: string }[];
  readonly following: {
    readonly state: string;
    readonly commit: string | null;
    readonly transactions: number;
    readonly lag_transactions: number | null;
    readonly copies: number;
    readonly remarks: readonly string[];
  };
}

async function health({ url }: Running): Promise<Health> {
  return (await (await fetch(`${url}/health`)).json()) as Health;
}

const post = (url: string, body: unknown) => {
  const headers = { "content-type": "application/json" };
  return fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
};

const ALL = "SELECT id, body, n FROM notes ORDER BY id";

describe("a source belongs to the mesh", () => {
  const own = { dbIds: new Set(["d1"]), urls: new Set(["http://far:1", "http://127.0.0.1:9"]) };
  test.each<[string, SourceHealth, string | undefined]>([
    ["http://far:1", { peers: [] }, "peers"],
    ["http://s:1", { dbId: "d1", peers: [] }, "file"],
    ["http://s:1", { dbId: "d2", peers: ["http://x:1", "http://far:1"] }, "http://far:1"],
    ["http://127.0.0.1:8", { peers: ["http://127.0.0.1:9"] }, "http://127.0.0.1:9"],
    // That is a node on the source's own machine.
    ["http://s:1", { peers: ["http://127.0.0.1:9"] }, undefined],
    ["http://s:1", { dbId: "d2", peers: ["http://other:1"] }, undefined],
  ])("%s with %j: %p", (url, source, why) => {
    const found = whyOfMesh(url, source, own);
    if (why === undefined) expect(found).toBeUndefined();
    else expect(found).toContain(why);
  });
});

describe("a node that follows another into its mesh", () => {
  test(
    "source, bridge and a further node have the same rows, whoever is killed when",
    async () => {
      const source = await node("source", "--cdc");
      write("source", `${NOTES}; INSERT INTO notes VALUES ('a', 1.0, 1, 5), ('b', x'00', 2, 6)`);
      withDb("far", (db) => db.exec(NOTES));
      const far = await node("far", "--tables", "notes");
      let running = await bridge(source.url, "--peer", far.url);
      await untilRows("far", ALL, [
        ["a", 1, 1],
        ["b", new Uint8Array([0]), 2],
      ]);
      for (let round = 0; round < 4; round++) {
        for (let n = 0; n < 30; n++) {
          const id = `r${round}-${n}`;
          write(
            "source",
            `INSERT INTO notes VALUES ('${id}', 'x', 1, ${n}); INSERT INTO notes VALUES ('${id}+', 'y', 1, 1);
             UPDATE notes SET n = n + 1 WHERE id = 'a'; DELETE FROM notes WHERE id = 'r${round}-${n - 3}+'`,
          );
        }
        running.process.kill("SIGKILL");
        await running.process.exited;
        write("source", `UPDATE notes SET body = 'round ${round}' WHERE id LIKE 'r${round}%0'`);
        running = await bridge(source.url, "--peer", far.url);
      }
      const wanted = rows("source", ALL);
      expect(wanted.length).toBe(2 + 4 * (30 + 3));
      await untilRows("bridge", ALL, wanted);
      await untilRows("far", ALL, wanted);
      // Nothing was copied anew: what was taken before the first kill counts.
      expect((await health(running)).following).toMatchObject({ copies: 0, state: "following" });
      expect((await health(source)).followers).toMatchObject([{ name: "bridge" }]);
      expect((await run(["status", "--node", source.url])).out).toContain("bridge");
    },
    MS_MAX,
  );

  test(
    "the mesh keeps its own rows, edits come and go, and the later write wins",
    async () => {
      const source = await node("source", "--cdc");
      write("source", `${NOTES}; INSERT INTO notes VALUES ('a', 'source', 1, 5)`);
      withDb("far", (db) => {
        db.exec(`${NOTES}; INSERT INTO notes VALUES ('mine', 'far', 1, 7), ('a', 'older', 0, 3)`);
      });
      const far = await node("far", "--tables", "notes");
      const running = await bridge(source.url, "--peer", far.url);
      await post(`${far.url}/peers`, { url: running.url });
      await untilRows("far", ALL, [
        ["a", "source", 1],
        ["mine", "far", 1],
      ]);
      write("far", "UPDATE notes SET body = 'edited', updated_at = 0 WHERE id = 'a'");
      await untilRows("bridge", "SELECT body FROM notes WHERE id = 'a'", [["edited"]]);
      await until(async () => (await health(running)).following.lag_transactions === 0);
      // The source does not hear of it, and what it writes afterwards wins.
      expect(rows("source", "SELECT body FROM notes")).toEqual([["source"]]);
      write("source", "UPDATE notes SET n = 2 WHERE id = 'a'");
      await untilRows("far", ALL, [
        ["a", "source", 2],
        ["mine", "far", 1],
      ]);
      write("source", "DELETE FROM notes WHERE id = 'a'");
      await untilRows("far", ALL, [["mine", "far", 1]]);
    },
    MS_MAX,
  );

  test(
    "tables and columns are made, and tables that cannot be in a mesh are named",
    async () => {
      const source = await node("source", "--cdc");
      const running = await bridge(source.url);
      await until(async () => (await health(running)).following.copies === 1);
      write(
        "source",
        `CREATE TABLE plain (id TEXT PRIMARY KEY, v); INSERT INTO plain VALUES ('p', 1.0);
         CREATE TABLE counted (id INTEGER PRIMARY KEY, v); INSERT INTO counted VALUES (1, 2)`,
      );
      await untilRows("bridge", "SELECT id, v, updated_at > 1e12 FROM plain", [["p", 1, 1]]);
      write("source", "ALTER TABLE plain ADD COLUMN w DEFAULT 'w'; UPDATE plain SET v = 2");
      await untilRows("bridge", "SELECT id, v, w FROM plain", [["p", 2, "w"]]);
      write(
        "source",
        "DROP TABLE counted; DELETE FROM plain; INSERT INTO plain VALUES ('q', 3, 4)",
      );
      await untilRows("bridge", "SELECT id, v, w FROM plain", [["q", 3, 4]]);
      write("source", "CREATE TABLE odd (id INTEGER PRIMARY KEY)");
      await until(async () => (await health(running)).following.remarks.length === 1);
      const { tables, following } = await health(running);
      expect(tables.synced).toContain("plain");
      expect(following.remarks).toEqual([expect.stringContaining("odd is not taken in")]);
    },
    MS_MAX,
  );

  test(
    "a bridge has followers of its own, and none of what it remembers is in their copies",
    async () => {
      const source = await node("source", "--cdc");
      const running = await bridge(source.url, "--cdc");
      const copy = start(["follow", running.url, "--db", file("copy")], { msMax: MS_MAX });
      started.push(copy);
      write("source", `${NOTES}; INSERT INTO notes VALUES ('a', 1.0, 1, 5), ('b', 'x', 2, 6)`);
      write("source", "UPDATE notes SET n = n + 1; DELETE FROM notes WHERE id = 'b'");
      await untilRows("copy", ALL, [["a", 1, 2]]);
      const tables = "SELECT name FROM sqlite_schema WHERE name LIKE '%hooksync%'";
      expect(rows("copy", tables)).toEqual([]);
    },
    MS_MAX,
  );

  test(
    "a source that is restored from a backup takes back what it sent since, and nothing else",
    async () => {
      let source = await node("source", "--cdc");
      const listen = `127.0.0.1:${new URL(source.url).port}`;
      write("source", `${NOTES}; INSERT INTO notes VALUES ('a', 'x', 1, 1), ('b', 'x', 1, 1)`);
      const running = await bridge(source.url);
      await untilRows("bridge", ALL, rows("source", ALL));
      write("bridge", "INSERT INTO notes VALUES ('mine', 'm', 1, 1)");
      write("bridge", "UPDATE notes SET body = 'edited' WHERE id = 'b'");
      source.process.kill("SIGTERM");
      await source.process.exited;
      const backup = readFileSync(file("source"));
      const start = () =>
        begin("--id", "source", "--db", file("source"), "--listen", listen, "--cdc");
      source = await start();
      write(
        "source",
        "INSERT INTO notes VALUES ('lost', 'x', 1, 1); UPDATE notes SET n = 2 WHERE id = 'a'",
      );
      await untilRows("bridge", "SELECT n FROM notes WHERE id IN ('a', 'lost')", [[2], [1]]);
      source.process.kill("SIGTERM");
      await source.process.exited;
      writeFileSync(file("source"), backup);
      for (let n = 0; n < 9; n++) write("source", `UPDATE notes SET body = '${n}' WHERE id = 'a'`);
      await start();
      await untilRows("bridge", ALL, [
        ["a", "8", 1],
        ["b", "edited", 1],
        ["mine", "m", 1],
      ]);
      expect((await health(running)).following.copies).toBe(2);
      expect((await run(["status", "--node", running.url])).out).toContain("has everything");
    },
    MS_MAX,
  );

  test(
    "a source of its own mesh is refused, at once where that is seen, and it falls silent where not",
    async () => {
      const source = await node("source", "--cdc");
      const far = await node("far", "--peer", source.url);
      await post(`${source.url}/peers`, { url: far.url });
      const own = ["--id", "b", "--db", file("b"), "--listen", "127.0.0.1:0"];
      for (const peer of [source.url, far.url]) {
        const refused = await run(["follow", source.url, "--into-mesh", ...own, "--peer", peer]);
        expect([refused.code, refused.err]).toEqual([1, expect.stringContaining("own mesh")]);
      }
      write("source", "INSERT INTO items (id, name, updated_at) VALUES ('a', '0', 1)");
      // Another spelling of the same address.
      const spelled = source.url.replace("127.0.0.1", "localhost");
      const running = await bridge(source.url, "--peer", spelled);
      await post(`${source.url}/peers`, { url: running.url });
      let n = 0;
      await until(async () => {
        write("source", `UPDATE items SET name = '${++n}', updated_at = 1 WHERE id = 'a'`);
        return (await health(running)).following.state === "refused";
      });
      expect((await health(running)).reasons).toEqual([expect.stringContaining("own mesh")]);
      const name = "SELECT name, updated_at FROM items";
      // It may be refused before it has made the table.
      const hasTable = "SELECT 1 FROM sqlite_schema WHERE name = 'items'";
      await until(
        () =>
          rows("bridge", hasTable).length === 0 ||
          Bun.deepEquals(rows("source", name), rows("bridge", name)),
      );
      const before = [await health(source), await health(running)].map((h) => h.last_change_id);
      await Bun.sleep(500);
      const after = [await health(source), await health(running)].map((h) => h.last_change_id);
      expect(after).toEqual(before);
    },
    MS_MAX,
  );

  test(
    "a file that Turso has closed is read to its end, and the next time from there",
    async () => {
      const path = file("app");
      const turso = new Turso(path);
      await enableCdc(turso);
      turso.exec(`${NOTES}; INSERT INTO notes VALUES ('a', 2.0, 1, NULL)`);
      turso.close();
      withDb("far", (db) => db.exec(NOTES));
      const far = await node("far", "--tables", "notes");
      const first = await bridge(`turso-file:${path}`, "--peer", far.url);
      await untilRows("far", ALL, [["a", 2, 1]]);
      first.process.kill("SIGTERM");
      expect((await first.process.ended()).code).toBe(0);
      const again = new Turso(path);
      await enableCdc(again);
      again.exec(
        "INSERT INTO notes VALUES ('b', 'x', 2, 9); UPDATE notes SET n = 3 WHERE id = 'a'",
      );
      again.exec("DELETE FROM notes WHERE id = 'b'");
      again.close();
      const second = await bridge(`turso-file:${path}`, "--peer", far.url);
      await untilRows("far", ALL, [["a", 2, 3]]);
      await until(async () => (await health(second)).following.state === "done");
      const { following } = await health(second);
      expect(following).toMatchObject({ copies: 0, transactions: 3, lag_transactions: 0 });
    },
    MS_MAX,
  );

  test(
    "another source does not delete what the first one sent, unless it took its place",
    async () => {
      const first = await node("first", "--cdc");
      write("first", `${NOTES}; INSERT INTO notes VALUES ('a', 'x', 1, 1), ('b', 'x', 1, 1)`);
      const own = await bridge(first.url);
      await untilRows("bridge", ALL, rows("first", ALL));
      own.process.kill("SIGTERM");
      await own.process.exited;
      const second = await node("second", "--cdc");
      write("second", `${NOTES}; INSERT INTO notes VALUES ('a', 'y', 2, 2)`);
      const wrong = await bridge(second.url);
      await until(async () => (await health(wrong)).following.state === "refused");
      expect((await health(wrong)).reasons).toEqual([expect.stringContaining("--new-source")]);
      expect(rows("bridge", ALL)).toEqual(rows("first", ALL));
      wrong.process.kill("SIGTERM");
      expect((await wrong.process.ended()).code).toBe(0);
      await bridge(second.url, "--new-source");
      await untilRows("bridge", ALL, [["a", "y", 2]]);
    },
    MS_MAX,
  );
});

test.each<[string, string[]]>([
  ["SOURCE", []],
  ["SOURCE", ["ftp://x", "--id", "b", "--db", "b.db"]],
  ["--id", ["http://127.0.0.1:1", "--db", "b.db"]],
  ["--db", ["http://127.0.0.1:1", "--id", "b"]],
  ["argument", ["http://127.0.0.1:1", "more", "--id", "b", "--db", "b.db"]],
  ["--batch-ms", ["http://127.0.0.1:1", "--id", "b", "--db", "b.db", "--batch-ms", "x"]],
  ["--nosuch", ["http://127.0.0.1:1", "--id", "b", "--db", "b.db", "--nosuch"]],
])("a mistake at %s: %p", async (where, argv) => {
  const { code, err } = await run(["follow", "--into-mesh", ...argv], { cwd: folder });
  expect([code, err]).toEqual([2, expect.stringContaining(where)]);
});
