/**
 * Makes the executable: `bun .ci/build.ts` for this platform, `--all` for every platform, into
 * dist/. The workers are entries of their own, or the executable would look for them on the disk of
 * whoever runs it; and the executable reads no .env and no bunfig.toml of the folder it stands in.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";

const ROOT = join(import.meta.dir, "..");
const ENTRIES = ["server.ts", "lib/shipper/worker.ts", "lib/shipper/digest-worker.ts"];

/** Bun's names of the platforms, by what stands in the file's name. */
const TARGETS = {
  "linux-x64": "bun-linux-x64",
  "linux-arm64": "bun-linux-arm64",
  "linux-x64-musl": "bun-linux-x64-musl",
  "linux-arm64-musl": "bun-linux-arm64-musl",
  "macos-arm64": "bun-darwin-arm64",
  "macos-x64": "bun-darwin-x64",
  "windows-x64": "bun-windows-x64",
} as const satisfies Record<string, Bun.Build.CompileTarget>;

/** Builds one executable; without a target for the platform this runs on. */
export async function build(outfile: string, target?: Bun.Build.CompileTarget): Promise<void> {
  await rm(outfile, { force: true });
  const { success, logs } = await Bun.build({
    entrypoints: ENTRIES.map((entry) => join(ROOT, entry)),
    root: ROOT,
    target: "bun",
    sourcemap: "none",
    compile: {
      outfile,
      autoloadDotenv: false,
      autoloadBunfig: false,
      ...(target === undefined ? {} : { target }),
    },
  });
  if (!success) throw new AggregateError(logs, `cannot build ${outfile}`);
  // A runtime that could not be fetched must not pass for an executable that was made.
  const { size } = await Bun.file(outfile).stat();
  console.log(`${outfile.padEnd(40)} ${(size / 1e6).toFixed(0)} MB`);
}

if (import.meta.main) {
  process.chdir(ROOT);
  if (Bun.argv.includes("--all")) {
    for (const [name, target] of Object.entries(TARGETS)) {
      await build(`dist/hook-sync-${name}${name.startsWith("windows") ? ".exe" : ""}`, target);
    }
  } else await build(process.platform === "win32" ? "dist/hook-sync.exe" : "dist/hook-sync");
}
