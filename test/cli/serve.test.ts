/** `serve` with a real node: what it says when it starts, when it cannot, and how it leaves. */
import { Database } from "bun:sqlite";
import { afterAll, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run, type Started, start } from "./run.ts";

const SCRATCH = mkdtempSync(join(tmpdir(), "hook-sync-serve-"));
afterAll(() => rmSync(SCRATCH, { recursive: true, force: true }));

const folder = () => mkdtempSync(join(SCRATCH, "node-"));

interface Node extends Started {
  readonly url: string;
  readonly port: number;
}

/** A node in its folder, once it says where it listens. */
async function node(cwd: string, ...argv: string[]): Promise<Node> {
  const started = start(["--id", "a", "--db", "a.db", "--listen", "127.0.0.1:0", ...argv], { cwd });
  const out = await started.printed("out", "peers");
  const url = /http:\/\/127\.0\.0\.1:(\d+)/.exec(out)!;
  return { ...started, url: url[0], port: Number(url[1]) };
}

/** What a start in this folder says when it cannot. */
function refusal(cwd: string, path: string, port = 0) {
  return run(["--id", "b", "--db", path, "--listen", `127.0.0.1:${port}`], { cwd });
}

const post = (url: string, body: unknown) =>
  fetch(`${url}/api/items`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

test("it says where it listens, its file, its tables and its peers", async () => {
  const cwd = folder();
  writeFileSync(
    join(cwd, "schema.sql"),
    `CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER, body TEXT);
     CREATE TABLE tags(id INTEGER PRIMARY KEY, name TEXT);`,
  );
  const a = await node(cwd, "--schema", "schema.sql", "--peer", "http://127.0.0.1:9/");
  a.kill("SIGTERM");
  const { out, code } = await a.ended();
  expect(out).toContain(`listening on ${a.url}`);
  expect(out).toContain(join(cwd, "a.db"));
  expect(out).toContain("notes");
  expect(out).toMatch(/tags: .*id/);
  expect(out).toContain("http://127.0.0.1:9");
  expect(code).toBe(0);
});

test.each(["SIGTERM", "SIGINT"] as const)(
  "%s closes the file: no -wal is left, nothing is lost",
  async (signal) => {
    const cwd = folder();
    const a = await node(cwd);
    const posts = await Promise.all(
      Array.from({ length: 50 }, (_, value) => post(a.url, { name: "n", value })),
    );
    expect(posts.map(({ status }) => status)).toEqual(Array.from({ length: 50 }, () => 201));
    a.kill(signal);
    const { code, err } = await a.ended();
    expect([code, err]).toEqual([0, expect.stringContaining("stopped")]);
    expect(readdirSync(cwd).filter((name) => /-wal|-shm/.test(name))).toEqual([]);
    const db = new Database(join(cwd, "a.db"), { readonly: true });
    expect(db.query("SELECT count(*) AS n FROM items").get()).toEqual({ n: 50 });
    db.close();
  },
);

test("it stops in time while a peer does not answer and clients keep their connections", async () => {
  const silent = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: () => new Promise<Response>(() => {}),
  });
  try {
    const a = await node(folder(), "--peer", `http://127.0.0.1:${silent.port}`);
    expect((await post(a.url, { name: "n", value: 1 })).status).toBe(201);
    a.kill("SIGTERM");
    expect((await a.ended()).code).toBe(0);
  } finally {
    await silent.stop(true);
  }
});

test("a port in use: exit 1, the port named, no file made", async () => {
  const a = await node(folder());
  const cwd = folder();
  const { code, out, err } = await refusal(cwd, "b.db", a.port);
  expect(err).toMatch(/^hook-sync: .*in use.*\n$/);
  expect(err).toContain(String(a.port));
  expect([out, code, existsSync(join(cwd, "b.db"))]).toEqual(["", 1, false]);
  a.kill("SIGTERM");
  await a.exited;
});

test("a file in use by another node: exit 1, and the other goes on", async () => {
  const cwd = folder();
  const a = await node(cwd);
  const { code, err } = await refusal(cwd, "./a.db");
  expect(err).toMatch(/^hook-sync: .*a\.db.*in use.*\n$/);
  expect(code).toBe(1);
  expect((await post(a.url, { name: "n", value: 1 })).status).toBe(201);
  a.kill("SIGKILL");
  await a.exited;
  // Killed, it holds nothing any more.
  const again = await node(cwd);
  again.kill("SIGTERM");
  expect((await again.ended()).code).toBe(0);
});

test.each([
  ["text", "just text, long enough to be more than a header would be, and then some more of it"],
  ["a damaged header", `SQLite format 3\0${"x".repeat(4_080)}`],
])("a file that is no database (%s): exit 1, the file as it was", async (_, text) => {
  const cwd = folder();
  writeFileSync(join(cwd, "b.db"), text);
  const { code, out, err } = await refusal(cwd, "b.db");
  expect(err).toMatch(/^hook-sync: .*b\.db.*\n$/);
  expect([out, code]).toEqual(["", 1]);
  expect(readFileSync(join(cwd, "b.db"), "utf8")).toBe(text);
});

test.each([
  ["a folder that is not there", "none/b.db", /none.*does not exist/],
  ["a folder in its place", "sub", /sub is a folder/],
])("%s: exit 1 and one line", async (_, path, said) => {
  const cwd = folder();
  mkdirSync(join(cwd, "sub"));
  const { code, out, err } = await refusal(cwd, path);
  expect(err).toMatch(/^hook-sync: .*\n$/);
  expect(err).toMatch(said);
  expect([out, code]).toEqual(["", 1]);
  expect(existsSync(join(cwd, "none"))).toBe(false);
});

test("a file of a newer version: exit 1, the file as it was", async () => {
  const cwd = folder();
  const a = await node(cwd);
  a.kill("SIGTERM");
  await a.exited;
  const db = new Database(join(cwd, "a.db"));
  db.run("UPDATE _hooksync SET value = 999 WHERE key = 'level'");
  db.close();
  const before = readFileSync(join(cwd, "a.db"));
  const { code, out, err } = await refusal(cwd, "a.db");
  expect(err).toMatch(/^hook-sync: .*newer.*999.*\n$/);
  expect([out, code]).toEqual(["", 1]);
  expect(readFileSync(join(cwd, "a.db")).equals(before)).toBe(true);
});

test("an application's file that was never synced: exit 1, with what --tables could be", async () => {
  const cwd = folder();
  const db = new Database(join(cwd, "b.db"));
  db.run("CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER)");
  db.run("CREATE TABLE sessions(token TEXT)");
  db.close();
  const before = readFileSync(join(cwd, "b.db"));
  const { code, out, err } = await refusal(cwd, "b.db");
  expect(err).toContain("--tables notes");
  expect([out, code]).toEqual(["", 1]);
  expect(readFileSync(join(cwd, "b.db")).equals(before)).toBe(true);
});

test("one row without a stamp is one row", async () => {
  const cwd = folder();
  using db = new Database(join(cwd, "a.db"));
  db.run("CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER)");
  db.run("INSERT INTO notes VALUES ('n', NULL)");
  const a = await node(cwd, "--tables", "notes");
  a.kill("SIGTERM");
  expect((await a.ended()).out).toContain("notes: 1 row without a stamp got version 0, which");
});

test.each([
  ["renamed into its place", "ALTER TABLE other RENAME TO items", "it was called other"],
  [
    "made anew, in another case",
    "CREATE TABLE Items(id TEXT PRIMARY KEY, updated_at INTEGER)",
    "Items: it is synced from now on",
  ],
])("a table that was dropped is no reason any more once it is %s", async (_, sql, said) => {
  const cwd = folder();
  const a = await node(cwd, "--tables", "*");
  const health = async () => (await (await fetch(`${a.url}/health`)).json()) as { ok: boolean };
  using db = new Database(join(cwd, "a.db"));
  db.run("PRAGMA busy_timeout = 5000");
  db.run("CREATE TABLE other(id TEXT PRIMARY KEY, updated_at INTEGER)");
  await a.printed("err", "other: it is synced from now on");
  db.run("DROP TABLE items");
  await a.printed("err", "items is not synced any more");
  expect(await health()).toMatchObject({ ok: false });
  db.run(sql);
  await a.printed("err", said);
  expect(await health()).toMatchObject({ ok: true, reasons: [] });
  a.kill("SIGTERM");
  expect((await a.ended()).code).toBe(0);
});

test("a trigger that changed received rows is no warning any more once it is gone and they apply", async () => {
  const cwd = folder();
  writeFileSync(
    join(cwd, "schema.sql"),
    `CREATE TABLE items(id TEXT PRIMARY KEY, updated_at INTEGER);
     CREATE TRIGGER never BEFORE INSERT ON items BEGIN SELECT RAISE(IGNORE); END;`,
  );
  const a = await node(cwd, "--schema", "schema.sql");
  const warnings = async () => {
    const health = await (await fetch(`${a.url}/health`)).json();
    return (health as { warnings: string[] }).warnings;
  };
  const changes = [{ op: "INSERT", table: "items", row: { id: "r", updated_at: 1 }, old_id: null }];
  await fetch(`${a.url}/sync`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ batch_id: 1, changes }),
  });
  expect(await warnings()).toEqual([expect.stringContaining("never")]);
  using db = new Database(join(cwd, "a.db"));
  db.run("PRAGMA busy_timeout = 5000");
  db.run("DROP TRIGGER never");
  while (db.query("SELECT 1 FROM items").get() === null) await Bun.sleep(10);
  expect(await warnings()).toEqual([]);
  a.kill("SIGTERM");
  expect((await a.ended()).code).toBe(0);
});

test("a file of no bytes is a new one", async () => {
  const cwd = folder();
  writeFileSync(join(cwd, "a.db"), "");
  const a = await node(cwd);
  expect((await post(a.url, { name: "n", value: 1 })).status).toBe(201);
  a.kill("SIGTERM");
  expect((await a.ended()).code).toBe(0);
});

test("settings from the environment and a file reach the node", async () => {
  const cwd = folder();
  writeFileSync(join(cwd, "node.toml"), 'db = "from-file.db"\nlisten = "127.0.0.1:0"\n');
  const started = start(["--config", "node.toml"], { cwd, env: { HOOK_SYNC_ID: "from-env" } });
  const out = await started.printed("out", "peers");
  expect(out).toContain("from-file.db");
  const url = /http:\/\/127\.0\.0\.1:\d+/.exec(out)![0];
  const health = await (await fetch(`${url}/health`)).json();
  expect(health).toMatchObject({ ok: true, node_id: "from-env" });
  started.kill("SIGTERM");
  expect((await started.ended()).code).toBe(0);
});
