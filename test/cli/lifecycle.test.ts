/** What `serve` owes whatever the node does: messages, exit codes, signals. */
import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { run, start } from "./run.ts";

const ARGV = ["--id", "a", "--db", "a.db"];
const fake = (behaviour: string) => ({
  entry: join(import.meta.dir, "fake-node.ts"),
  env: { FAKE_NODE: behaviour },
});

test.each(["SIGTERM", "SIGINT"] as const)("%s: stops the node, then exit 0", async (signal) => {
  const node = start(ARGV, fake("good"));
  await node.printed("out", "peers: none");
  node.kill(signal);
  const { code, out, err } = await node.ended();
  expect(out).toBe("listening on http://127.0.0.1:9001\npeers: none\nclosed\n");
  expect(err).toMatch(new RegExp(`info +stopping signal=${signal}\n.* info +stopped\n$`));
  expect(code).toBe(0);
});

test.each([
  ["SIGTERM", 143],
  ["SIGINT", 130],
] as const)("a second %s ends a stop that hangs, at once", async (signal, expected) => {
  const node = start(ARGV, fake("hanging-stop"));
  await node.printed("out", "peers: none");
  node.kill("SIGTERM");
  await node.printed("err", "stopping");
  // One that comes at once is taken for the first.
  const again = setInterval(() => node.kill(signal), 5);
  const { code, out } = await node.ended();
  clearInterval(again);
  expect(out).not.toContain("closed");
  expect(code).toBe(expected);
});

test("a signal while the node starts is not lost: it starts, then stops", async () => {
  const node = start(ARGV, fake("slow-start"));
  await node.printed("err", "starting slowly");
  node.kill("SIGTERM");
  const { code, out } = await node.ended();
  expect(out).toEndWith("closed\n");
  expect(code).toBe(0);
});

test("the world in the way: one line with what to do, exit 1", async () => {
  const { code, out, err } = await run(ARGV, fake("port-in-use"));
  expect(err).toBe("hook-sync: port 9001 is in use. Choose another with --listen.\n");
  expect([out, code]).toEqual(["", 1]);
});

/** Linux has it; nothing can be written to it, as to a file on a full disk. */
const FULL = "/dev/full";

test.skipIf(!existsSync(FULL))(
  "a node whose standard output cannot be written runs, and says so where it can",
  async () => {
    const node = start(ARGV, { ...fake("good"), out: Bun.file(FULL) });
    await node.printed("err", "warn  standard output cannot be written error=");
    node.kill("SIGTERM");
    const { code, err } = await node.ended();
    expect(err).toContain("stopped");
    expect(code).toBe(0);
  },
);

test.skipIf(!existsSync(FULL))(
  "the world in the way is exit 1 also where that cannot be told",
  async () => {
    const { code } = await run(ARGV, { ...fake("port-in-use"), err: Bun.file(FULL) });
    expect(code).toBe(1);
  },
);

test("with --log json every line of both streams is an object", async () => {
  const failed = await run([...ARGV, "--log", "json"], fake("port-in-use"));
  expect(JSON.parse(failed.err)).toEqual({
    time: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
    level: "error",
    message: "port 9001 is in use",
    code: "port-in-use",
    hint: "Choose another with --listen.",
  });
  const node = start([...ARGV, "--log=json"], fake("slow-start"));
  await node.printed("out", "peers: none");
  node.kill("SIGTERM");
  const { out, err } = await node.ended();
  const lines = [
    ...out.replace("closed\n", "").trimEnd().split("\n"),
    ...err.trimEnd().split("\n"),
  ];
  expect(lines.map((line) => JSON.parse(line).message)).toEqual([
    "listening on http://127.0.0.1:9001",
    "peers: none",
    "starting slowly",
    "stopping",
    "stopped",
  ]);
});

test.each([
  ["bug-at-start", "undefined is not a start"],
  ["bug-later", "not a function later"],
  ["rejection-later", "rejected later"],
])("a mistake of our own (%s) is told as ours, exit 70", async (behaviour, message) => {
  const { code, err } = await run(ARGV, fake(behaviour));
  expect(err).toContain("a mistake in hook-sync itself");
  expect(err).toContain(message);
  expect(err).toContain("fake-node.ts");
  expect(err.trimEnd().split("\n")).toHaveLength(1);
  expect(code).toBe(70);
});

test("a variable that looks misspelt is a warning, not a failure", async () => {
  const { env, entry } = fake("port-in-use");
  const { err } = await run(ARGV, { entry, env: { ...env, HOOK_SYNC_PEERS: "http://b:9001" } });
  expect(err).toContain("warn  HOOK_SYNC_PEERS is not read; did you mean HOOK_SYNC_PEER?");
});
