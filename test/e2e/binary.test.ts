/**
 * The executable, as somebody who downloaded it has it: alone in a folder that also holds files
 * which Bun would read by itself.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
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
