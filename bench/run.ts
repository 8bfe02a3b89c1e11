/**
 * `npm run bench -- [NAME…] [--quick] [--json]`: runs the benches named, or all that are not opt-in, and
 * prints one table. A target that is missed is a line in it, not a failure: the exit code is 1 only
 * where a bench could not be carried out.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { type Bench, ROUNDS } from "./support/bench.ts";
import { machine, machineLine, type Report, table } from "./support/report.ts";

const { values: flags, positionals: wanted } = readWords();

function readWords() {
  const flag = { type: "boolean" } as const;
  try {
    return parseArgs({
      args: process.argv.slice(2),
      allowPositionals: true,
      options: { quick: flag, json: flag, list: flag, help: { ...flag, short: "h" } },
    });
  } catch (error) {
    console.error(`${(error as Error).message}; see --help`);
    process.exit(2);
  }
}

const names = [...new Bun.Glob("*.ts").scanSync(import.meta.dir)]
  .map((file) => file.replace(/\.ts$/, ""))
  .filter((name) => name !== "run")
  .sort();

/** The first line of a bench is the question it answers. */
function questionOf(name: string): string {
  const [first] = readFileSync(join(import.meta.dir, `${name}.ts`), "utf8").split("\n", 1);
  return first!.replace(/^\/\*\*\s*|\s*\*\/$/g, "");
}

const unknown = wanted.filter((name) => !names.includes(name));
if (flags.help) console.log("npm run bench -- [NAME…] [--quick] [--json]");
if (unknown.length > 0 || flags.list || flags.help) {
  if (unknown.length > 0) console.error(`no such bench: ${unknown.join(", ")}. There are:`);
  for (const name of names) console.log(`${name.padEnd(20)} ${questionOf(name)}`);
  process.exit(unknown.length > 0 ? 2 : 0);
}

const scratch = mkdtempSync(join(tmpdir(), "hook-sync-bench-"));
process.on("exit", () => rmSync(scratch, { recursive: true, force: true }));

const loadBefore = loadavg()[0]!;
const reports: Report[] = [];
let failed = false;
for (const name of wanted.length > 0 ? wanted : names) {
  const { bench }: { bench: Bench } = await import(`./${name}.ts`);
  if (bench.isOptIn && !wanted.includes(name)) continue;
  const dir = join(scratch, name);
  mkdirSync(dir);
  console.error(`${name}: ${questionOf(name)}`);
  try {
    const results = await bench.run({
      dir,
      rounds: ROUNDS,
      size: (usual, short) => (flags.quick ? short : usual),
      say: (text) => console.error(`  ${text}`),
    });
    reports.push({ name, question: questionOf(name), results });
  } catch (error) {
    failed = true;
    console.error(error);
  }
  rmSync(dir, { recursive: true, force: true });
}

const about = machine(loadBefore);
if (flags.json) console.log(JSON.stringify({ machine: about, benches: reports }, null, 2));
else console.log(`\n${table(reports)}\n\n${machineLine(about)}`);
process.exit(failed ? 1 : 0);
