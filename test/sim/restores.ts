/**
 * Seeds that are hard on one rule: that a restored node is found out whatever replies are lost. What shows it is
 * told in replies; here many are lost, one node comes back with one backup again and again, within seconds of its
 * writes, and other programs write to the file before it starts, so that numbers are given out twice. A plain
 * seed has all of that at once too seldom.
 */
import { Chance } from "./chance.ts";
import { drawPlan, type Incident, type Plan, type Timed } from "./plan.ts";

const ACTIVE_MS = 8_000;
const NODES_MAX = 3;

/** Draws a plan from a seed: the plain one where nothing else is said. */
export function drawRestores(seed: number): Plan {
  const plan = drawPlan(seed);
  const chance = new Chance(seed, 8);
  const nodes = plan.nodes.slice(0, NODES_MAX).map((node) => ({
    ...node,
    make: "ours" as const,
    offsetMs: 0,
    drift: 0,
    slowMs: 0,
  }));
  return {
    ...plan,
    nodes,
    topology: "mesh",
    hasForeign: false,
    hasFileFaults: true,
    unknown: [],
    aliases: [],
    incidents: drawIncidents(chance),
    activeMs: ACTIVE_MS,
    verifies: true,
    waitsForDays: false,
    workload: {
      ...plan.workload,
      writes: chance.between(12, 36),
      program: 0.5,
      deletes: 0.2,
      legacyKeepsStamps: false,
    },
    network: {
      ...plan.network,
      delayMs: chance.spread(5, 100),
      late: chance.next() * 0.2,
      lateMs: 2_000,
      loseRequest: chance.next() * 0.2,
      loseReply: 0.3 + chance.next() * 0.4,
      repeat: chance.next() * 0.3,
      cutReply: chance.next() * 0.3,
      portal: 0,
      refuse: 0,
      notAdmitted: 0,
      mismatch: chance.hits(0.3) ? 0.1 : 0,
      bodyBytesMax: undefined,
    },
  };
}

function drawIncidents(chance: Chance): Timed<Incident>[] {
  let atMs = chance.between(1_000, 3_000);
  const incidents: Timed<Incident>[] = [{ atMs, what: { kind: "backup", node: 0 } }];
  for (let n = chance.between(1, 3); n > 0; n--) {
    atMs += chance.between(200, 2_200);
    const what: Incident = {
      kind: "file",
      node: 0,
      source: "backup",
      forMs: chance.between(20, 800),
      programWrites: chance.hits(0.8),
    };
    if (atMs < ACTIVE_MS) incidents.push({ atMs, what });
  }
  if (chance.hits(0.3)) {
    const point = chance.pick(["between", "in-transaction", "after-commit"] as const);
    const what: Incident = { kind: "crash", node: 0, point, forMs: 100 };
    incidents.push({ atMs: chance.below(ACTIVE_MS), what });
  }
  return incidents;
}
