import { expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SETTINGS } from "../../lib/config.ts";
import manifest from "../../package.json" with { type: "json" };
import { run } from "./run.ts";

test.each([["--version"], ["-version"], ["-v"], ["-V"], ["version"]])("%s", async (word) => {
  const { code, out, err } = await run([word]);
  expect([out, err, code]).toEqual([`hook-sync ${manifest.version}\n`, "", 0]);
});

test.each([[["--help"]], [["-h"]], [["-help"]], [["help"]], [["--id", "a", "--help"]]])(
  "%p shows the commands and every flag",
  async (argv) => {
    const { code, out, err } = await run(argv);
    for (const { name } of SETTINGS) expect(out).toContain(`  --${name} `);
    expect(out).toContain("Commands:\n  serve ");
    expect([err, code]).toEqual(["", 0]);
  },
);

test.each([[["help", "serve"]], [["serve", "--help"]], [["serve", "-h", "--id"]]])(
  "%p shows how serve is used",
  async (argv) => {
    const { code, out } = await run(argv);
    expect(out).toStartWith("Usage: hook-sync [serve] --id NAME --db FILE [flags]\n");
    expect(code).toBe(0);
  },
);

test("no line of the usage is wider than a terminal of 100 columns", async () => {
  const { out } = await run(["--help"]);
  expect(out.split("\n").filter((line) => line.length > 100)).toEqual([]);
});

test.each([
  [["srve"], '"srve": no such command; did you mean serve?'],
  [["frobnicate", "--id", "a"], '"frobnicate": no such command'],
  [["help", "srve"], "did you mean serve?"],
])("%p is refused with what was meant", async (argv, expected) => {
  const { code, out, err } = await run(argv);
  expect(err).toContain(expected);
  expect(err).toEndWith("Try: hook-sync help\n");
  expect([out, code]).toEqual(["", 2]);
});

test("a wrong configuration: all mistakes at once, exit 2, nothing touched", async () => {
  const folder = mkdtempSync(join(tmpdir(), "hook-sync-cli-"));
  try {
    writeFileSync(join(folder, "node.toml"), 'bacth-size = 5\nlog = "xml"\n');
    const argv = [
      "--db=a.db",
      "--listen=:99999",
      "-peer",
      "b:9002",
      "-peer=http://localhost:7",
      "--x",
    ];
    const { code, out, err } = await run([...argv, "--config", "node.toml"], {
      cwd: folder,
      env: { HOOK_SYNC_BATCH_MS: "fast" },
    });
    expect(err.trimEnd().split("\n")).toEqual([
      "hook-sync: --x: no such flag",
      "hook-sync: node.toml: bacth-size: no such setting; did you mean batch-size?",
      "hook-sync: --id: missing; expected a name for this node: --id node1",
      'hook-sync: --listen ":99999": expected a port from 0 to 65535',
      'hook-sync: --peer "b:9002": expected an address with http:// or https://, such as http://b:9002',
      'hook-sync: HOOK_SYNC_BATCH_MS "fast": expected a whole number of milliseconds from 1 to 60000',
      'hook-sync: node.toml: log "xml": expected text or json',
      "Try: hook-sync help serve",
    ]);
    expect([out, code]).toEqual(["", 2]);
    expect(readdirSync(folder)).toEqual(["node.toml"]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test.each([[[]], [["serve"]]])("%p without anything says what is missing", async (argv) => {
  const { code, err } = await run(argv);
  expect(err).toContain("--id: missing");
  expect(err).toContain("--db: missing");
  expect(code).toBe(2);
});
