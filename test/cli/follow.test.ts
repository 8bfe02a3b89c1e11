/** A node with a log, and followers of it, as processes of their own. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Database as Turso } from "@tursodatabase/database/compat";
import { enableCdc } from "../../lib/cdc/index.ts";
import { contentOf } from "../cdc/support/content.ts";
import { run, type Started, start } from "./run.ts";

const MS_MAX = 60_000;
let folder = "";
let path = "";
let copy = "";
let started: Started[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cdc-follow-"));
  path = join(folder, "node.db");
  copy = join(folder, "copy.db");
});
afterEach(async () => {
  for (const each of started) each.kill("SIGKILL");
  await Promise.all(started.map((each) => each.exited));
  started = [];
  rmSync(folder, { recursive: true, force: true });
});

function begin(...argv: string[]): Started {
  const each = start(argv, { msMax: MS_MAX });
  started.push(each);
  return each;
}

/** A running node's address. */
async function node(...flags: string[]): Promise<{ url: string; process: Started }> {
  const each = begin("--id", "n", "--db", path, "--listen", "127.0.0.1:0", ...flags);
  const text = await each.printed("out", "no peers");
  return { url: /listening on (\S+)/.exec(text)![1]!, process: each };
}

function withDb<T>(file: string, use: (db: Database) => T): T {
  using db = new Database(file);
  db.run("PRAGMA busy_timeout = 5000");
  return use(db);
}

async function until(probe: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = performance.now() + MS_MAX / 2; performance.now() < end; ) {
    if (await probe()) return;
    await Bun.sleep(20);
  }
  throw new Error("it did not become so");
}

async function untilEqual(source = path): Promise<void> {
  using from = new Database(source, { readonly: true });
  using to = new Database(copy);
  to.run("PRAGMA busy_timeout = 5000");
  const known = () => to.query("SELECT 1 FROM sqlite_schema WHERE name = '_cdc_watermark'").get();
  let [expected, found]: unknown[] = [];
  const digest = "";
  try {
    await until(async () => {
      if (known() === null) return false;
      expected = await contentOf(from, digest);
      found = await contentOf(to, digest);
      return Bun.deepEquals(expected, found);
    });
  } catch {
    expect(found).toEqual(expected);
  }
}

describe("a node with --cdc", () => {
  test(
    "is followed: rows by REST, by others, in tables that are not synced, and a new schema",
    async () => {
      const { url } = await node("--cdc");
      const follower = begin(
        "follow",
        url,
        "--db",
        copy,
        "--name",
        "copy1",
        "--listen",
        "127.0.0.1:0",
      );
      const text = await follower.printed("out", "health at");
      const health = /health at (\S+)/.exec(text)![1]!;
      await follower.printed("out", "copied");
      const post = { method: "POST", headers: { "content-type": "application/json" } };
      await fetch(`${url}/api/items`, { ...post, body: JSON.stringify({ name: "a", value: 1 }) });
      withDb(path, (db) => {
        db.exec("CREATE TABLE other (x, y UNIQUE); INSERT INTO other VALUES (1.0, 'u')");
        db.exec("ALTER TABLE items ADD COLUMN extra; UPDATE items SET extra = x'00ff'");
        db.exec("BEGIN; INSERT INTO other VALUES (2, 'v'); DELETE FROM other WHERE x = 1; COMMIT");
      });
      await untilEqual();
      withDb(copy, (db) => {
        expect(db.query("SELECT x, y FROM other").values()).toEqual([[2, "v"]]);
        expect(db.query("SELECT name, hex(extra) FROM items").values()).toEqual([["a", "00FF"]]);
        expect(db.query("SELECT name FROM sqlite_schema WHERE name = '_changes'").all()).toEqual(
          [],
        );
        expect(db.query("SELECT name FROM _cdc_trigger").all()).toEqual([]);
      });
      const said = async () => (await (await fetch(health)).json()) as Record<string, unknown>;
      await until(async () => (await said())["lag_transactions"] === 0);
      expect(await said()).toMatchObject({ ok: true, copies: 1, state: "following" });
      expect(await said()).toMatchObject({ last_error: null, lag_ms: 0, foreign_keys_hold: null });
      withDb(path, (db) =>
        db.exec("CREATE TABLE child (p REFERENCES other(y)); INSERT INTO child VALUES ('none')"),
      );
      await untilEqual();
      withDb(path, (db) => db.exec("INSERT INTO child VALUES ('nobody')"));
      await until(async () => (await said())["foreign_keys_hold"] === false);
      const items = await (await fetch(health.replace("health", "api/items"))).json();
      expect(items).toMatchObject([{ name: "a", extra: "\\x00ff" }]);
      const refused = await fetch(health.replace("health", "api/items"), { ...post, body: "{}" });
      expect(refused.status).toBe(405);
      const known = async () => {
        const { followers } = (await (await fetch(`${url}/health`)).json()) as {
          followers: Record<string, unknown>[];
        };
        return followers;
      };
      await until(async () => (await known())[0]?.["behind"] === 0);
      expect(await known()).toMatchObject([{ name: "copy1", connected: true }]);
      expect((await run(["status", "--node", url])).out).toContain("copy1");
      follower.kill("SIGTERM");
      expect((await follower.ended()).code).toBe(0);
      await until(async () => (await run(["status", "--node", url])).out.includes("away"));
    },
    MS_MAX,
  );

  test(
    "a follower whose copy is removed ends and says so, instead of writing where nobody reads",
    async () => {
      const { url } = await node("--cdc");
      const follower = begin("follow", url, "--db", copy);
      await follower.printed("out", "copied");
      for (const end of ["", "-wal", "-shm"]) rmSync(copy + end, { force: true });
      withDb(path, (db) => db.run("INSERT INTO items(id, name) VALUES ('a', 'late')"));
      const { code, err } = await follower.ended();
      expect([code, err]).toEqual([
        1,
        expect.stringMatching(/was removed or replaced.*Start it again/),
      ]);
      const again = begin("follow", url, "--db", copy);
      await again.printed("out", "copied");
      await untilEqual();
    },
    MS_MAX,
  );

  test(
    "a follower whose source is gone says how old its copy is",
    async () => {
      const { url, process } = await node("--cdc");
      const follower = begin("follow", url, "--db", copy, "--listen", "127.0.0.1:0");
      const text = await follower.printed("out", "health at");
      const health = /health at (\S+)/.exec(text)![1]!;
      const lag = async () => (await (await fetch(health)).json()) as Record<string, unknown>;
      await until(async () => (await lag())["lag_transactions"] === 0);
      process.kill("SIGKILL");
      await until(async () => (await lag())["lag_transactions"] === null);
      const before = Number((await lag())["lag_ms"]);
      await until(async () => Number((await lag())["lag_ms"]) > before);
      expect((await lag())["ok"]).toBe(false);
    },
    MS_MAX,
  );

  test(
    "rows from peers are in the log, too",
    async () => {
      const { url } = await node("--cdc");
      begin("follow", url, "--db", copy);
      const row = { id: "x", name: "far", value: 1, created_at: 1, updated_at: 5, node_id: "m" };
      const change = { op: "INSERT", table: "items", row, old_id: null };
      const answer = await fetch(`${url}/sync`, {
        method: "POST",
        headers: { "content-type": "application/json", "x-node-id": "m" },
        body: JSON.stringify({ batch_id: 1, changes: [change] }),
      });
      expect(await answer.json()).toMatchObject({ applied: 1, ack: 1 });
      await untilEqual();
      withDb(copy, (db) => expect(db.query("SELECT name FROM items").values()).toEqual([["far"]]));
      const kinds = "SELECT change_type FROM _cdc ORDER BY change_id DESC LIMIT 2";
      expect(withDb(path, (db) => db.query(kinds).values())).toEqual([[2], [1]]);
    },
    MS_MAX,
  );

  test(
    "followers that are killed, and nodes that are, go on where they were",
    async () => {
      let running = await node("--cdc");
      const port = new URL(running.url).port;
      let follower = begin("follow", running.url, "--db", copy);
      await follower.printed("out", "copied");
      for (let round = 0; round < 3; round++) {
        withDb(path, (db) => {
          db.run("CREATE TABLE IF NOT EXISTS pair (a, b)");
          for (let n = 0; n < 50; n++) db.run("INSERT INTO pair (a, b) VALUES (?, ?)", [n, round]);
        });
        follower.kill("SIGKILL");
        await follower.exited;
        if (round === 1) {
          running.process.kill("SIGKILL");
          await running.process.exited;
          withDb(path, (db) => db.exec("ALTER TABLE pair ADD COLUMN c; UPDATE pair SET c = a"));
          const again = begin("--id", "n", "--db", path, "--listen", `127.0.0.1:${port}`, "--cdc");
          await again.printed("out", "no peers");
          running = { url: running.url, process: again };
        }
        follower = begin("follow", running.url, "--db", copy);
      }
      await untilEqual();
      follower.kill("SIGTERM");
      expect((await follower.ended()).out).not.toContain("copied");
    },
    MS_MAX,
  );

  test(
    "a source that is restored from a backup, or whose log began anew, is copied again",
    async () => {
      const backup = join(folder, "backup.db");
      let running = await node("--cdc");
      const listen = `127.0.0.1:${new URL(running.url).port}`;
      /** Stops the node, does something to its file, and starts it again where it was. */
      const again = async (change: () => void, ...flags: string[]) => {
        running.process.kill("SIGTERM");
        await running.process.exited;
        change();
        const each = begin("--id", "n", "--db", path, "--listen", listen, ...flags);
        await each.printed("out", "no peers");
        running = { url: running.url, process: each };
      };
      const add = (name: string, count: number) =>
        withDb(path, (db) => {
          for (let n = 0; n < count; n++) {
            db.run("INSERT INTO items (id, name, updated_at) VALUES (?, ?, 1)", [
              `${name}${n}`,
              name,
            ]);
          }
        });
      const follower = begin("follow", running.url, "--db", copy);
      add("kept", 3);
      await untilEqual();
      await again(() => copyFileSync(path, backup), "--cdc");
      add("lost", 10);
      await untilEqual();
      await again(() => {
        copyFileSync(backup, path);
        // As many changes as were lost, so that every number is there again.
        add("other", 20);
      }, "--cdc");
      await untilEqual();
      await again(() => {});
      add("unseen", 1);
      await again(() => {}, "--cdc");
      await untilEqual();
      follower.kill("SIGTERM");
      const { out } = await follower.ended();
      expect(out.match(/copied up to/g)?.length).toBe(3);
      withDb(copy, (db) => {
        const names = db.query("SELECT DISTINCT name FROM items ORDER BY name").values();
        expect(names).toEqual([["kept"], ["other"], ["unseen"]]);
      });
    },
    MS_MAX,
  );

  test(
    "whose log another program drops goes on: no write fails for long, and followers copy again",
    async () => {
      const { url, process } = await node("--cdc");
      const follower = begin("follow", url, "--db", copy);
      await untilEqual();
      withDb(path, (db) => db.run("DROP TABLE _cdc"));
      const body = JSON.stringify({ name: "a", value: 1 });
      const headers = { "content-type": "application/json" };
      const post = () => fetch(`${url}/api/items`, { method: "POST", headers, body });
      await until(async () => (await post()).ok);
      await process.printed("err", "takes a new copy");
      await untilEqual();
      withDb(path, (db) => db.run("UPDATE items SET value = 2"));
      await untilEqual();
      const health = await (await fetch(`${url}/health`)).json();
      expect(health).toMatchObject({ ok: true, warnings: [expect.stringContaining("_cdc")] });
      follower.kill("SIGTERM");
      const { out } = await follower.ended();
      expect(out.match(/copied up to/g)?.length).toBe(2);
    },
    MS_MAX,
  );

  test(
    "without it nothing of it is left in the file, and followers are told",
    async () => {
      const first = await node("--cdc");
      withDb(path, (db) => db.run("CREATE TABLE _cdc_notes (a)"));
      first.process.kill("SIGTERM");
      await first.process.exited;
      const count = (db: Database) =>
        db.query("SELECT name FROM sqlite_schema WHERE name LIKE '%cdc%'").all().length;
      expect(withDb(path, count)).toBeGreaterThan(5);
      const { url } = await node();
      // A table of the application's, whatever its name.
      expect(withDb(path, count)).toBe(1);
      const answer = await fetch(`${url}/cdc/stream`);
      expect([answer.status, await answer.text()]).toEqual([404, expect.stringContaining("--cdc")]);
      const follower = begin("follow", url, "--db", copy);
      await follower.printed("err", "--cdc");
    },
    MS_MAX,
  );

  test(
    "a copy alone, a position that is none, and strangers",
    async () => {
      const { url } = await node("--cdc", "--admin-token", "0123456789abcdef");
      const snapshot = await (await fetch(`${url}/cdc/snapshot`)).bytes();
      expect(new TextDecoder().decode(snapshot)).toContain('"kind":"copy"');
      expect((await fetch(`${url}/cdc/stream?log=x`)).status).toBe(400);
      expect((await fetch(`${url}/cdc/stream?name=${"x".repeat(129)}`)).status).toBe(400);
      const forwarded = { headers: { "x-forwarded-for": "10.0.0.1" } };
      expect((await fetch(`${url}/cdc/stream`, forwarded)).status).toBe(403);
    },
    MS_MAX,
  );

  test(
    "a column is dropped, and the log taken out, by the commands for that",
    async () => {
      const { url, process } = await node("--cdc");
      begin("follow", url, "--db", copy);
      withDb(path, (db) =>
        db.exec(
          "ALTER TABLE items ADD COLUMN gone; INSERT INTO items (id, updated_at) VALUES ('a', 1)",
        ),
      );
      await untilEqual();
      const altered = await run(["alter", "--db", path, "ALTER TABLE items DROP COLUMN gone"]);
      expect(altered).toMatchObject({ code: 0 });
      await untilEqual();
      process.kill("SIGTERM");
      await process.exited;
      expect((await run(["detach", "--db", path, "--force"])).code).toBe(0);
      const left = withDb(path, (db) =>
        db.query("SELECT name FROM sqlite_schema WHERE name LIKE '\\_%' ESCAPE '\\'").all(),
      );
      expect(left).toEqual([]);
    },
    MS_MAX,
  );
});

test(
  "a file that Turso has closed is followed to its end, again and again",
  async () => {
    const file = join(folder, "app.db");
    const turso = new Turso(file);
    await enableCdc(turso);
    turso.exec("CREATE TABLE t (k INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 2.0)");
    turso.close();
    const source = `turso-file:${file}`;
    expect((await run(["follow", source, "--db", copy])).out).toContain("copied");
    await untilEqual(file);
    const again = new Turso(file);
    await enableCdc(again);
    again.exec("INSERT INTO t VALUES (2, 'x'); ALTER TABLE t ADD COLUMN w");
    again.close();
    expect((await run(["follow", source, "--db", copy])).out).toContain("2 transactions applied");
    await untilEqual(file);
  },
  MS_MAX,
);

test.each<[string, string[]]>([
  ["SOURCE", []],
  ["--db", ["http://127.0.0.1:1"]],
  ["SOURCE", ["ftp://x", "--db", "c.db"]],
  ["--listen", ["http://127.0.0.1:1", "--db", "c.db", "--listen", "x:y"]],
])("a mistake at %s: %p", async (where, argv) => {
  const { code, err } = await run(["follow", ...argv], { cwd: folder });
  expect(code).toBe(2);
  expect(err).toContain(where);
});

test(
  "whatever ends a follower is one line that says what to do",
  async () => {
    const { url } = await node("--cdc");
    const follower = begin("follow", url, "--db", copy);
    await follower.printed("out", "copied");
    withDb(copy, (db) =>
      db.exec(`
        ALTER TABLE _cdc_watermark RENAME TO former;
        CREATE TABLE _cdc_watermark (one, log, commit_id, mark, source_time_ms);
        INSERT INTO _cdc_watermark (log) VALUES ('spoilt')`),
    );
    withDb(path, (db) => db.run("INSERT INTO items (id) VALUES ('a')"));
    const { code, err } = await follower.ended();
    expect([code, err]).toEqual([1, expect.stringMatching(/^hook-sync: .*Start it again.*\n$/)]);
    const again = await run(["follow", url, "--db", copy]);
    expect([again.code, again.err]).toEqual([code, err]);
  },
  MS_MAX,
);

test("a file with tables of its own is not made a copy", async () => {
  withDb(path, (db) => db.run("CREATE TABLE mine (x)"));
  const { code, err } = await run(["follow", "http://127.0.0.1:1", "--db", path]);
  expect([code, err]).toEqual([1, expect.stringContaining("is no copy")]);
  expect(withDb(path, (db) => db.query("SELECT * FROM mine").all())).toEqual([]);
});

test("a file that is not there is not made", async () => {
  const { code, err } = await run(["follow", "turso-file:none.db", "--db", copy], { cwd: folder });
  expect([code, err]).toEqual([1, "hook-sync: there is no file none.db\n"]);
});
