/**
 * The executable, as somebody who downloaded it has it: alone in a folder that also holds files
 * which Bun would read by itself.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "../../.ci/build.ts";
import manifest from "../../package.json" with { type: "json" };

const SCRATCH = mkdtempSync(join(tmpdir(), "hook-sync-binary-"));
const BINARY = join(SCRATCH, "hook-sync");

/** Building takes a second or two, on a busy machine some more. */
const BUILD_MS_MAX = 60_000;

beforeAll(() => build(BINARY), BUILD_MS_MAX);
afterAll(() => rmSync(SCRATCH, { recursive: true, force: true }));

function emptyFolder(files: Record<string, string> = {}): string {
  const folder = mkdtempSync(join(SCRATCH, "folder-"));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  return folder;
}

async function run(cwd: string, ...argv: string[]) {
  const child = Bun.spawn([BINARY, ...argv], {
    cwd,
    env: { PATH: process.env["PATH"] },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
    timeout: 4_000,
    killSignal: "SIGKILL",
  });
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { out, err, code };
}

test("it says its version from an empty folder", async () => {
  const { out, err, code } = await run(emptyFolder(), "--version");
  expect([out, err, code]).toEqual([`hook-sync ${manifest.version}\n`, "", 0]);
});

test("it reads no .env, bunfig.toml, package.json or tsconfig.json of the folder", async () => {
  const folder = emptyFolder({
    ".env": "HOOK_SYNC_ID=from-env-file\nHOOK_SYNC_BATCH_MS=wrong",
    "bunfig.toml": 'preload = ["./none.ts"]',
    "package.json": "{ broken",
    "tsconfig.json": "{ broken",
  });
  const { err, code } = await run(folder, "--listen", ":99999");
  expect(err).toContain("--id: missing");
  expect(err).not.toContain("BATCH_MS");
  expect(err).toContain("from 0 to 65535");
  expect(code).toBe(2);
  expect(readdirSync(folder)).toHaveLength(4);
});

/** A running node of the executable, alone in its folder, and its address. */
async function node(cwd: string, id: string, ...peers: string[]) {
  const argv = ["--id", id, "--db", `${id}.db`, "--listen", "127.0.0.1:0", ...peers];
  const child = Bun.spawn([BINARY, ...argv], {
    cwd,
    env: { PATH: process.env["PATH"] },
    stdin: "ignore",
    stdout: "pipe",
    stderr: Bun.file(join(cwd, "stderr")),
    timeout: 20_000,
    killSignal: "SIGKILL",
  });
  let out = "";
  for await (const chunk of child.stdout) {
    out += new TextDecoder().decode(chunk);
    const url = /http:\/\/127\.0\.0\.1:\d+/.exec(out)?.[0];
    if (url !== undefined) return { url, child };
  }
  throw new Error(`ended without an address: ${readFileSync(join(cwd, "stderr"), "utf8")}`);
}

async function rows(url: string): Promise<unknown[]> {
  const response = await fetch(`${url}/api/items`);
  return (await response.json()) as unknown[];
}

/** Asks again until it is so; the test's own limit ends it otherwise. */
async function until(probe: () => Promise<boolean>): Promise<void> {
  while (!(await probe())) await Bun.sleep(5);
}

test("two executables, each alone in a folder, end with the same rows and stop cleanly", async () => {
  const [here, there] = [emptyFolder(), emptyFolder()];
  const a = await node(here, "a");
  const b = await node(there, "b", "--peer", a.url);
  for (const value of [1, 2, 3]) {
    await fetch(`${b.url}/api/items`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ name: "from b", value }),
    });
  }
  await until(async () => (await rows(a.url)).length === 3);
  expect(await rows(a.url)).toEqual(await rows(b.url));

  // The thread that reads whole tables is in the executable, too.
  const { out, code } = await run(here, "verify", a.url, b.url);
  expect([out, code]).toEqual(["table  a  b\nitems  3  3  equal\n", 0]);

  a.child.kill("SIGTERM");
  b.child.kill("SIGTERM");
  expect(await Promise.all([a.child.exited, b.child.exited])).toEqual([0, 0]);
  const left = [...readdirSync(here), ...readdirSync(there)];
  expect(left.filter((name) => /-wal|-shm/.test(name))).toEqual([]);
});

test("a file that may not be written: exit 1, one line, the file as it was", async () => {
  const folder = emptyFolder();
  const a = await node(folder, "a");
  a.child.kill("SIGTERM");
  await a.child.exited;
  const path = join(folder, "a.db");
  for (const [name, mode] of [
    [SCRATCH, 0o755],
    [BINARY, 0o755],
    [folder, 0o555],
    [path, 0o444],
  ] as const) {
    chmodSync(name, mode);
  }
  const before = readFileSync(path);
  // Root may write everywhere, so somebody else tries.
  const nobody = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : {};
  const argv = ["--id", "a", "--db", path, "--listen", "127.0.0.1:0"];
  const child = spawn(BINARY, argv, {
    ...nobody,
    stdio: ["ignore", "ignore", "pipe"],
    timeout: 4_000,
  });
  let err = "";
  child.stderr.on("data", (chunk) => {
    err += chunk;
  });
  const code = await new Promise((resolve) => child.on("close", resolve));
  chmodSync(folder, 0o755);
  expect(err).toMatch(/^hook-sync: .*a\.db.*read-only.*\n$/);
  expect(code).toBe(1);
  expect(readFileSync(path).equals(before)).toBe(true);
});
