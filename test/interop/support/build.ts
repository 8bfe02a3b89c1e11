/**
 * Makes the reference peers runnable: the Go node and hub are compiled, the Node peer's driver is
 * installed. Without this the suite would test ours against nothing, so a missing toolchain is an
 * error where the suite is asked for (CI, or HOOK_SYNC_INTEROP=required); for everybody else it is
 * said plainly and the tests that need the peer are left out. A toolchain that is there and fails is
 * always an error.
 *
 * What is up to date is told by a hash of the sources, kept beside the results. Run this file by
 * itself to build ahead of the tests.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

const PEERS = join(import.meta.dir, "..", "peers");
const GO = join(PEERS, "go");
const NODE = join(PEERS, "node");

/** The command that starts each foreign peer; absent where its toolchain is. */
export interface PeerCommands {
  go?: string[];
  hub?: string[];
  node?: string[];
}

/** Whether a missing toolchain is an error instead of something left out. */
export const interopRequired =
  (process.env["CI"] ?? "") !== "" || process.env["HOOK_SYNC_INTEROP"] === "required";

/** Builds what is out of date, both toolchains side by side, and says how to start the peers. */
export async function buildPeers(): Promise<PeerCommands> {
  const [go, node] = await Promise.all([buildGo(), buildNode()]);
  return { ...go, ...node };
}

async function buildGo(): Promise<PeerCommands> {
  const compiler = ["gcc", "cc", "clang"].find((name) => Bun.which(name) !== null);
  if (Bun.which("go") === null) return leftOut("the Go node and the Go hub", "no command `go`");
  if (compiler === undefined) return leftOut("the Go node and the Go hub", "no C compiler");
  const go = join(GO, "bin", "go-node");
  const hub = join(GO, "bin", "go-hub");
  const hash = hashOf(["main.go", "hub/main.go", "go.mod", "go.sum"].map((name) => join(GO, name)));
  await unlessBuilt(join(GO, "bin"), hash, [go, hub], async () => {
    const env = { CGO_ENABLED: "1", GOTOOLCHAIN: "local" };
    await run(GO, ["go", "build", "-o", go, "."], env);
    await run(GO, ["go", "build", "-o", hub, "./hub"], env);
  });
  return { go: [go], hub: [hub] };
}

async function buildNode(): Promise<PeerCommands> {
  const node = Bun.which("node");
  if (node === null || Bun.which("npm") === null) {
    return leftOut("the Node node", "no commands `node` and `npm`");
  }
  const version = Bun.spawnSync([node, "--version"]).stdout.toString();
  const hash = hashOf([join(NODE, "package.json"), join(NODE, "package-lock.json")], version);
  await unlessBuilt(join(NODE, "node_modules"), hash, [], () => run(NODE, ["npm", "ci"]));
  return { node: [node, join(NODE, "node.mjs")] };
}

function leftOut(what: string, why: string): PeerCommands {
  if (interopRequired) throw new Error(`interop: ${what} cannot be built: ${why}`);
  console.warn(`interop: left out ${what} (${why}); every test with it is skipped`);
  return {};
}

function hashOf(files: string[], more = ""): string {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const file of files) hasher.update(readFileSync(file));
  return hasher.update(more).digest("hex");
}

async function unlessBuilt(
  folder: string,
  hash: string,
  results: string[],
  build: () => Promise<void>,
): Promise<void> {
  const stamp = join(folder, ".built-from");
  const current = existsSync(stamp) && readFileSync(stamp, "utf8") === hash;
  if (current && results.every((path) => existsSync(path))) return;
  // Silence of minutes would look like a test that hangs.
  console.warn(`interop: building ${dirname(folder)}, once; that takes minutes`);
  await build();
  mkdirSync(folder, { recursive: true });
  writeFileSync(stamp, hash);
}

async function run(
  cwd: string,
  command: string[],
  env: Record<string, string> = {},
): Promise<void> {
  const child = Bun.spawn(command, {
    cwd,
    env: { ...process.env, ...env },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0)
    throw new Error(`interop: ${command.join(" ")} ended with ${code}:\n${out}${err}`);
}

if (import.meta.main) {
  const built = await buildPeers();
  console.log(`interop peers: ${Object.keys(built).join(", ") || "none"}`);
}
