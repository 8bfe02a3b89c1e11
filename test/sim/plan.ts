/**
 * What one seed is about. Each seed draws which kinds of faults it has at all (a swarm): a fault that is
 * always there hides what only shows without it.
 */

import { Chance } from "./chance.ts";
import type { Make } from "./legacy-node.ts";
import type { NetworkFaults } from "./network.ts";
import type { CrashPoint } from "./our-node.ts";
import { SCHEMAS, type Schema } from "./schema.ts";

export interface NodePlan {
  readonly make: "ours" | Make;
  readonly offsetMs: number;
  readonly drift: number;
  readonly batchMs: number;
  readonly namesItself: boolean;
  /** Adds this to every way to and from it. */
  readonly slowMs: number;
}

/** Something that happens at a moment besides the workload. */
export type Incident =
  | {
      readonly kind: "crash";
      readonly node: number;
      readonly point: CrashPoint;
      readonly forMs: number;
    }
  | { readonly kind: "restart"; readonly node: number; readonly forMs: number }
  | {
      readonly kind: "partition";
      readonly from: readonly number[];
      readonly to: readonly number[];
      readonly wall: "refused" | "silent";
      readonly forMs: number;
    }
  | { readonly kind: "clock"; readonly node: number; readonly byMs: number }
  | { readonly kind: "disk-full"; readonly node: number; readonly forMs: number }
  | { readonly kind: "locked"; readonly node: number; readonly forMs: number }
  | { readonly kind: "alter"; readonly node: number; readonly statement: number }
  | { readonly kind: "vacuum"; readonly node: number }
  /** A copy of its file is kept: what it is restored from later. */
  | { readonly kind: "backup"; readonly node: number }
  /** It is ended, and comes back with another file. */
  | {
      readonly kind: "file";
      readonly node: number;
      /** Its last backup, an empty one, or a copy of this other node's. */
      readonly source: "backup" | "nothing" | number;
      readonly forMs: number;
      /** Another program writes to the file before the node starts. */
      readonly programWrites: boolean;
    }
  | {
      readonly kind: "peer";
      readonly does: "add" | "remove";
      readonly node: number;
      readonly peer: number;
    };

export interface Timed<T> {
  readonly atMs: number;
  readonly what: T;
}

/** Which kinds of writes the workload has. */
export interface WorkloadPlan {
  readonly writes: number;
  /** Rows that everybody writes. */
  readonly hotRows: number;
  /** Share of writes that come from another program. */
  readonly program: number;
  /** Share of moments at which several nodes write at once. */
  readonly together: number;
  readonly deletes: number;
  readonly forgetsStamps: boolean;
  readonly oddStamps: boolean;
  readonly replaces: boolean;
  readonly changesIds: boolean;
  readonly oddValues: boolean;
  /** Values that need two nodes of ours to survive: infinities, text that is not UTF-8. */
  readonly oursOnlyValues: boolean;
  readonly batches: boolean;
  readonly longTexts: boolean;
  readonly legacyKeepsStamps: boolean;
}

export interface Plan {
  readonly seed: number;
  readonly nodes: readonly NodePlan[];
  readonly topology: "mesh" | "hub" | "mesh and hub";
  readonly schema: Schema;
  readonly workload: WorkloadPlan;
  readonly network: NetworkFaults;
  readonly incidents: readonly Timed<Incident>[];
  /** Peers that nodes do not know of at first. */
  readonly unknown: readonly { readonly node: number; readonly peer: number }[];
  /** Nodes with a second address, which some of the others have as a second peer. */
  readonly aliases: readonly { readonly node: number; readonly of: number }[];
  /** Nodes come back with other files. */
  readonly hasFileFaults: boolean;
  /** Nodes compare themselves with their neighbours, as they do unless told otherwise. */
  readonly verifies: boolean;
  /** How long phase one lasts. */
  readonly activeMs: number;
  readonly batchChangesMax: number;
  readonly batchBytesMax: number;
  readonly tombstoneRetentionMs: number;
  /** Fills are made of many slices, so that they are interrupted. */
  readonly fillSliceRows: number | undefined;
  /** Triggers are paused for so few rows. */
  readonly pauseRowsMin: number | undefined;
  readonly hasForeign: boolean;
  /** The silence is listened to for a day, not just for some minutes. */
  readonly waitsForDays: boolean;
}

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** Draws a plan from a seed. */
export function drawPlan(seed: number): Plan {
  const chance = new Chance(seed, 1);
  const on = (probability: number) => chance.hits(probability);
  const hasForeign = on(0.45);
  const hasHub = hasForeign && on(0.35);
  const count = chance.weighted([
    [30, 2],
    [35, 3],
    [18, 4],
    [9, 5],
    [5, 6],
    [3, 7],
  ]);
  const makes = drawMakes(chance, count, hasForeign, hasHub);
  const schema = hasForeign
    ? SCHEMAS.plain
    : chance.weighted<Schema>([
        [50, SCHEMAS.plain],
        [30, SCHEMAS.unique],
        [20, SCHEMAS.growing],
      ]);
  const activeMs = chance.spread(500, 60_000);
  const skewMs = on(0.5) ? 0 : chance.spread(10, 20 * MINUTE_MS);
  const hasFarClocks = skewMs > 0 && on(0.08);
  const nodes = makes.map((make): NodePlan => {
    const isFar = hasFarClocks && on(0.4);
    return {
      make,
      offsetMs: Math.round((chance.next() * 2 - 1) * (isFar ? 5 * HOUR_MS : skewMs)),
      drift: on(0.2) ? (chance.next() - 0.5) * 2e-3 : 0,
      batchMs: chance.pick([1, 10, 50, 50, 50, 500]),
      namesItself: on(0.5),
      slowMs: on(0.1) ? chance.spread(100, 4_000) : 0,
    };
  });
  // A clock that steps further than the retention lasts is not what retention is for.
  // Nor is one that ends while a hub's repeats, which take a day, are still going on.
  const forgetsSoon = !hasFarClocks && !hasHub && on(0.1);
  const identity = drawIdentityFaults(seed, makes, activeMs, {
    arePossible: !hasHub && !forgetsSoon,
    // What a restored node had written, and only one of another make has, nobody can bring back.
    ofFiles: !hasForeign,
  });
  const hasFileFaults = identity.incidents.some(({ what }) => what.kind === "file");
  return {
    seed,
    nodes,
    topology: hasHub ? (on(0.5) ? "hub" : "mesh and hub") : "mesh",
    schema,
    workload: drawWorkload(chance, hasForeign),
    network: drawNetwork(chance, hasForeign),
    incidents: inOrder([
      ...drawIncidents(chance, nodes, schema, activeMs, forgetsSoon),
      ...identity.incidents,
    ]),
    unknown: identity.unknown,
    aliases: identity.aliases,
    hasFileFaults,
    verifies: identity.incidents.length > 0 || seed % 10 === 0,
    activeMs,
    batchChangesMax: on(0.4) ? chance.pick([1, 2, 3, 7]) : 10_000,
    batchBytesMax: on(0.2) ? chance.spread(300, 4_000) : 8 * 1024 * 1024,
    tombstoneRetentionMs: forgetsSoon ? chance.spread(2 * MINUTE_MS, HOUR_MS) : 30 * DAY_MS,
    fillSliceRows: seed % 3 === 0 ? undefined : 1 + (seed % 5),
    pauseRowsMin: seed % 4 === 0 ? undefined : 1 + (seed % 3),
    hasForeign,
    // What waits for its time with one node alone comes when it comes, and then to the others.
    waitsForDays: on(hasForeign ? 0.2 : 0.05) && !hasFileFaults,
  };
}

function drawMakes(
  chance: Chance,
  count: number,
  hasForeign: boolean,
  hasHub: boolean,
): ("ours" | Make)[] {
  const makes: ("ours" | Make)[] = ["ours"];
  while (makes.length < count) {
    makes.push(
      hasForeign
        ? chance.weighted([
            [40, "ours"],
            [35, "go"],
            [25, "js"],
          ])
        : "ours",
    );
  }
  if (hasForeign && !hasHub && !makes.some((make) => make !== "ours"))
    makes[makes.length - 1] = "go";
  return makes;
}

function drawWorkload(chance: Chance, hasForeign: boolean): WorkloadPlan {
  const on = (probability: number) => chance.hits(probability);
  return {
    writes: chance.spread(3, 40),
    hotRows: chance.spread(1, 8),
    program: on(0.8) ? chance.next() : 0,
    together: on(0.5) ? chance.next() * 0.6 : 0,
    deletes: on(0.8) ? chance.next() * 0.5 : 0,
    forgetsStamps: on(0.6),
    oddStamps: on(0.4),
    replaces: on(0.5),
    changesIds: on(0.3),
    oddValues: on(0.4),
    oursOnlyValues: !hasForeign && on(0.3),
    batches: on(0.3),
    longTexts: on(0.2),
    legacyKeepsStamps: on(0.3),
  };
}

function drawNetwork(chance: Chance, hasForeign: boolean): NetworkFaults {
  const hasFaults = chance.hits(0.75);
  const rate = (probability: number, most: number) =>
    hasFaults && chance.hits(probability) ? chance.next() * most : 0;
  return {
    delayMs: chance.spread(1, 200),
    late: rate(0.4, 0.3),
    // A request that is still on its way when its sender has given it up and gone on would revive a deleted
    // row on a node without tombstones; nobody could tell.
    lateMs: chance.spread(300, hasForeign ? 10_000 : 29_000),
    loseRequest: rate(0.4, 0.3),
    loseReply: rate(0.5, 0.4),
    repeat: rate(0.5, 0.5),
    cutReply: rate(0.3, 0.2),
    proxyAnswers: rate(0.3, 0.3),
    proxyAnswersLate: rate(0.3, 0.3),
    portal: rate(0.2, 0.2),
    mismatch: rate(0.2, 0.2),
    refuse: rate(0.2, 0.2),
    notAdmitted: rate(0.1, 0.1),
    bodyBytesMax: rate(0.15, 1) > 0 ? chance.between(5_000, 9_000) : undefined,
  };
}

function drawIncidents(
  chance: Chance,
  nodes: readonly NodePlan[],
  schema: Schema,
  activeMs: number,
  forgetsSoon: boolean,
): Timed<Incident>[] {
  const incidents: Timed<Incident>[] = [];
  const ours = nodes.flatMap(({ make }, index) => (make === "ours" ? [index] : []));
  const all = nodes.map((_, index) => index);
  const add = (probability: number, most: number, make: () => Incident) => {
    if (!chance.hits(probability)) return;
    for (let n = chance.between(1, most); n > 0; n--) {
      incidents.push({ atMs: chance.below(activeMs), what: make() });
    }
  };
  const forMs = (most: number) => chance.spread(20, Math.max(40, Math.min(most, activeMs)));
  add(0.35, 6, () => ({
    kind: "crash",
    node: chance.pick(ours),
    point: chance.pick(["between", "in-transaction", "after-commit", "while-opening"]),
    forMs: forMs(20_000),
  }));
  add(0.15, 3, () => ({ kind: "restart", node: chance.pick(ours), forMs: forMs(20_000) }));
  add(0.35, 4, () => {
    const some = all.filter(() => chance.hits(0.5));
    const from = some.length > 0 ? some : [chance.pick(all)];
    const isOneWay = chance.hits(0.4);
    return {
      kind: "partition",
      from,
      to: isOneWay ? [chance.pick(all)] : all.filter((node) => !from.includes(node)),
      wall: chance.pick(["refused", "silent"]),
      forMs: forMs(60_000),
    };
  });
  add(forgetsSoon ? 0 : 0.2, 4, () => ({
    kind: "clock",
    node: chance.pick(all),
    byMs: Math.round((chance.hits(0.5) ? 1 : -1) * chance.spread(1, 20 * MINUTE_MS)),
  }));
  add(0.12, 2, () => ({ kind: "disk-full", node: chance.pick(ours), forMs: forMs(3_000) }));
  add(0.15, 3, () => ({ kind: "locked", node: chance.pick(ours), forMs: forMs(7_000) }));
  add(0.1, 2, () => ({ kind: "vacuum", node: chance.pick(ours) }));
  for (const statement of schema.later.keys()) {
    for (const node of ours) {
      // Those that are left out get the column when the faults are over.
      if (!chance.hits(0.7)) continue;
      incidents.push({
        atMs: chance.below(activeMs),
        what: { kind: "alter", node, statement },
      });
    }
  }
  return incidents;
}

function inOrder(incidents: readonly Timed<Incident>[]): Timed<Incident>[] {
  return [...incidents].sort((left, right) => left.atMs - right.atMs);
}

/** Of files and of who is whose peer. Drawn on their own, so that all else of a seed stays as it was. */
function drawIdentityFaults(
  seed: number,
  makes: readonly NodePlan["make"][],
  activeMs: number,
  { arePossible, ofFiles }: { readonly arePossible: boolean; readonly ofFiles: boolean },
): Pick<Plan, "incidents" | "unknown" | "aliases"> {
  const chance = new Chance(seed, 7);
  const incidents: Timed<Incident>[] = [];
  const unknown: { node: number; peer: number }[] = [];
  const aliases: { node: number; of: number }[] = [];
  if (!arePossible || !chance.hits(0.4)) return { incidents, unknown, aliases };
  const all = makes.map((_, index) => index);
  const pair = () => {
    const node = chance.pick(all);
    return [node, chance.pick(all.filter((other) => other !== node))] as const;
  };
  const add = (most: number, make: () => Incident) => {
    for (let n = chance.between(1, most); n > 0; n--) {
      incidents.push({ atMs: chance.below(activeMs), what: make() });
    }
  };
  const file = (node: number, source: "backup" | "nothing" | number): Incident => ({
    kind: "file",
    node,
    source,
    forMs: chance.spread(20, 20_000),
    programWrites: chance.hits(0.3),
  });
  if (chance.hits(0.6) && ofFiles) {
    // Several nodes restored in one seed are often those that had acknowledged the same.
    add(2, () => ({ kind: "backup", node: chance.pick(all) }));
    add(2, () => file(chance.pick(all), "backup"));
    for (const { atMs, what } of [...incidents]) {
      if (what.kind !== "backup") continue;
      const laterMs = atMs + chance.below(activeMs - atMs);
      incidents.push({ atMs: laterMs, what: file(what.node, "backup") });
    }
  }
  if (chance.hits(0.25) && ofFiles) add(2, () => file(chance.pick(all), "nothing"));
  if (chance.hits(0.25) && ofFiles) {
    add(2, () => {
      const [node, from] = pair();
      return file(node, from);
    });
  }
  if (chance.hits(0.35)) {
    add(4, () => {
      const [node, peer] = pair();
      return { kind: "peer", does: chance.pick(["add", "remove"]), node, peer };
    });
    for (const node of all) {
      for (const peer of all) {
        if (node !== peer && chance.hits(0.2)) unknown.push({ node, peer });
      }
    }
  }
  if (chance.hits(0.2)) {
    const [node, of] = pair();
    aliases.push({ node, of });
  }
  return { incidents, unknown, aliases };
}
