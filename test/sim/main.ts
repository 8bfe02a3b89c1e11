/**
 * Runs simulations from the command line:
 *
 *   npm run sim -- --seeds 1000 [--from 1]     many seeds; ends with 1 if any failed
 *   npm run sim -- --seeds 1000 --only files   as many of those in which nodes come back with other files
 *   npm run sim -- --seeds 1000 --only restores    made hard on restored nodes (restores.ts)
 *   npm run sim -- --seed 42 [--trace]         one seed, and everything that happened in it
 *
 * A failing seed is run once more to print its plan, what was found, and the last events of the
 * rows that it is about.
 */
import { parseArgs } from "node:util";
import { drawPlan, type Plan } from "./plan.ts";
import { drawRestores } from "./restores.ts";
import { cleanUp, simulate, type TraceLine, type Verdict } from "./simulation.ts";

const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "1000" },
    from: { type: "string", default: "1" },
    seed: { type: "string" },
    trace: { type: "boolean", default: false },
    only: { type: "string" },
    "failures-max": { type: "string", default: "10" },
  },
});

const EVENTS_SHOWN = 40;
const PROGRESS_MS = 10_000;

let unhandled: unknown;
process.on("unhandledRejection", (error) => {
  unhandled ??= error;
});

async function runSeed(seed: number): Promise<Verdict> {
  unhandled = undefined;
  const verdict = simulate(planOf(seed));
  // Rejections that nobody took are told only now.
  await new Promise((resolve) => setImmediate(resolve));
  return unhandled === undefined ? verdict : { ...verdict, failure: unhandled };
}

function show(seed: number, failure: unknown, isWhole: boolean): void {
  const plan = planOf(seed);
  const lines: TraceLine[] = [];
  const again = simulate(plan, (line) => lines.push(line));
  const found = again.failure ?? failure;
  const text = found instanceof Error ? (found.stack ?? found.message) : String(found);
  console.log(`\nseed ${seed} failed: ${text.replaceAll(/x{20,}|(?:78){20,}/g, "xx…")}`);
  const only = values.only === "restores" ? " --only restores" : "";
  console.log(`replay: npm run sim -- --seed ${seed}${only} --trace`);
  console.log(describe(plan));
  const keys = new Set(again.rows.length > 0 ? again.rows : keysIn(String(found)));
  const about = lines.filter(
    ({ key }) => isWhole || keys.size === 0 || key === undefined || keys.has(key),
  );
  const shown = isWhole ? about : about.slice(-EVENTS_SHOWN);
  for (const { atMs, text, key } of shown) {
    const about = key === undefined ? "" : `   [${key}]`;
    console.log(`  ${String(atMs).padStart(9)} ms  ${shorten(text)}${about}`);
  }
}

function shorten(text: string): string {
  return text.replaceAll(/x{20,}/g, "xx…").slice(0, 600);
}

function keysIn(text: string): string[] {
  return [...text.matchAll(/\b(?:items|notes|accounts)\/[\w-]+/g)].map(([key]) => key);
}

function describe(plan: Plan): string {
  const { nodes, workload, network, incidents, schema, ...rest } = plan;
  const drawn = { ...rest, schema: schema.name, nodes, workload, network, incidents };
  return JSON.stringify(drawn, undefined, 1)
    .replaceAll(/\n {2,}/g, " ")
    .replaceAll(/\n \}/g, " }");
}

function planOf(seed: number): Plan {
  return values.only === "restores" ? drawRestores(seed) : drawPlan(seed);
}

function isAsked(seed: number): boolean {
  return values.only === undefined || planOf(seed).hasFileFaults;
}

async function main(): Promise<number> {
  if (values.only !== undefined && !["files", "restores"].includes(values.only)) {
    console.error("--only takes: files, restores");
    return 2;
  }
  if (values.seed !== undefined) {
    const seed = Number(values.seed);
    const verdict = await runSeed(seed);
    if (verdict.failure !== undefined || values.trace) show(seed, verdict.failure, values.trace);
    else console.log(`seed ${seed}: fine`, Object.fromEntries(verdict.faults));
    return verdict.failure === undefined ? 0 : 1;
  }
  const from = Number(values.from);
  const count = Number(values.seeds);
  const total = new Map<string, number>();
  const failed: number[] = [];
  let writes = 0;
  let deliveries = 0;
  let slowestMs = 0;
  let done = 0;
  const startedMs = performance.now();
  let toldMs = startedMs;
  let seed = from - 1;
  while (done < count) {
    seed++;
    if (!isAsked(seed)) continue;
    const verdict = await runSeed(seed);
    done++;
    for (const [fault, times] of verdict.faults) total.set(fault, (total.get(fault) ?? 0) + times);
    writes += verdict.writes;
    deliveries += verdict.deliveries;
    slowestMs = Math.max(slowestMs, verdict.equalAfterMs ?? 0);
    if (verdict.failure !== undefined) {
      failed.push(seed);
      show(seed, verdict.failure, false);
      if (failed.length >= Number(values["failures-max"])) break;
    }
    if (performance.now() - toldMs > PROGRESS_MS) {
      toldMs = performance.now();
      console.log(`${done} seeds, up to ${seed}, ${failed.length} failed`);
    }
    if (done % 200 === 0) Bun.gc(true);
  }
  const seconds = (performance.now() - startedMs) / 1_000;
  console.log(
    `\n${done} seeds from ${from} to ${seed} in ${seconds.toFixed(1)} s (${(done / seconds).toFixed(1)} a second), ` +
      `${writes} writes, ${deliveries} batches delivered; the slowest fleet was equal after ${(slowestMs / 1_000).toFixed(0)} s`,
  );
  console.log("faults injected:");
  for (const [fault, times] of [...total].sort()) console.log(`  ${fault}: ${times}`);
  console.log(failed.length === 0 ? "none failed" : `failed: ${failed.join(" ")}`);
  return failed.length === 0 ? 0 : 1;
}

const code = await main();
cleanUp();
process.exit(code);
