/**
 * Some hundred seeds of the simulator, always the same ones: what a commit breaks shows here, with the
 * command that replays it. Longer runs: `npm run sim -- --seeds 100000 --from 1000`.
 */
import { afterAll, expect, test } from "bun:test";
import { drawPlan, type Incident } from "./plan.ts";
import { cleanUp, simulate, type TraceLine } from "./simulation.ts";

const SEEDS = 200;
const BLOCK = 20;
/** One seed takes 70 ms on a quiet machine. */
const BLOCK_MS_MAX = 60_000;

afterAll(cleanUp);

function nameOf(what: Incident): string {
  switch (what.kind) {
    case "crash":
      return `crash ${what.point}`;
    case "peer":
      return `peer ${what.does}`;
    case "file":
      if (typeof what.source === "number") return "file copied";
      return what.source === "backup" ? "file restored" : "file lost";
    default:
      return what.kind;
  }
}

const blocks = Array.from({ length: SEEDS / BLOCK }, (_, block) => 1 + block * BLOCK);

test.each(blocks)(
  "fleets of 20 seeds from %i on keep their promises, and end equal and silent",
  (first) => {
    const failed: string[] = [];
    for (let seed = first; seed < first + BLOCK; seed++) {
      const { failure } = simulate(drawPlan(seed));
      if (failure !== undefined) failed.push(`npm run sim -- --seed ${seed}: ${failure}`);
    }
    expect(failed).toEqual([]);
  },
  BLOCK_MS_MAX,
);

test("a seed is the same every time, to the last event", () => {
  const run = () => {
    const lines: TraceLine[] = [];
    const { events, deliveries } = simulate(drawPlan(7), (line) => lines.push(line));
    return { events, deliveries, lines };
  };
  const once = run();
  expect(once.lines.length).toBeGreaterThan(20);
  expect(run()).toEqual(once);
});

test("the seeds together have faults of every kind", () => {
  const plans = Array.from({ length: SEEDS }, (_, n) => drawPlan(n + 1));
  const incidents = new Set(
    plans.flatMap(({ incidents }) => incidents.map(({ what }) => nameOf(what))),
  );
  expect([...incidents].sort()).toEqual([
    "alter",
    "backup",
    "clock",
    "crash after-commit",
    "crash between",
    "crash in-transaction",
    "crash while-opening",
    "disk-full",
    "file copied",
    "file lost",
    "file restored",
    "locked",
    "partition",
    "peer add",
    "peer remove",
    "restart",
    "vacuum",
  ]);
  const faults = Object.keys(plans[0]!.network) as (keyof (typeof plans)[0]["network"])[];
  const missing = faults.filter((fault) => plans.every(({ network }) => !network[fault]));
  expect(missing).toEqual([]);
  expect(plans.some(({ aliases }) => aliases.length > 0)).toBe(true);
  expect(new Set(plans.map(({ topology }) => topology)).size).toBe(3);
  expect(new Set(plans.map(({ schema }) => schema.name)).size).toBe(3);
});
