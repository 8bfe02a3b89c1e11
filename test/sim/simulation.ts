/**
 * One seed from its plan to its verdict.
 *
 * Phase one: the workload and all faults of the plan; safety.ts looks on. Phase two: the faults are over;
 * within a bounded time every node must hold the same, by value and type (as much as survives them on
 * nodes of other makes), and then there must be silence, also after the repeats of healing have had
 * their days.
 */

import { drainMicrotasks } from "bun:jsc";
import { Database } from "bun:sqlite";
import { mkdirSync, readFileSync, rmSync } from "node:fs";
import { Store } from "../../lib/store/store.ts";
import { Chance } from "./chance.ts";
import { type Content, difference, readContent } from "./content.ts";
import { LegacyHub } from "./legacy-hub.ts";
import { LegacyNode } from "./legacy-node.ts";
import { type FaultCounts, Network, QUIET_NETWORK } from "./network.ts";
import { type KeptFile, OurNode } from "./our-node.ts";
import type { Incident, Plan } from "./plan.ts";
import { Safety, splitKey } from "./safety.ts";
import type { Schema } from "./schema.ts";
import { hasColumn, Workload } from "./workload.ts";
import { EPOCH_MS, Finding, WallClock, World } from "./world.ts";

export interface Verdict {
  readonly seed: number;
  /** Undefined where all is well. */
  readonly failure: unknown;
  /** Rows that differ at the end. */
  readonly rows: readonly string[];
  readonly faults: FaultCounts;
  readonly events: number;
  readonly writes: number;
  readonly deliveries: number;
  /** Virtual time from the last fault until all nodes were equal, ms. */
  readonly equalAfterMs: number | undefined;
}

export interface TraceLine {
  readonly atMs: number;
  readonly text: string;
  readonly key: string | undefined;
}

const SECOND_MS = 1_000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
/** Retries pause for up to 4 s (slow ones for a minute), a clash on a unique key waits a minute. */
const EQUAL_MS_MAX = 6 * MINUTE_MS;
/** A comparison that could not be made is tried again, less and less often. */
const EQUAL_COMPARED_MS_MAX = HOUR_MS;
/** Beside other makes an answer may come late: the repeats after a minute, ten minutes, an hour, a day. */
const EQUAL_FOREIGN_MS_MAX = 4 * DAY_MS;
/** Repeats end when the foreign peers have nothing left: behind a hub a day later. */
const REPEATS_MS_MAX = 10 * DAY_MS;

/** Peers are looked at once a minute, and who is filled again is made to wait. */
const FILLS_MS_MAX = 15 * MINUTE_MS;

const FOLDER = `/dev/shm/hook-sync-sim-${process.pid}`;

/** Runs a plan to its end. `onTrace` gets a line for everything that happens. */
export function simulate(plan: Plan, onTrace?: (line: TraceLine) => void): Verdict {
  const folder = `${FOLDER}/${plan.seed}`;
  mkdirSync(folder, { recursive: true });
  const simulation = new Simulation(plan, folder, onTrace);
  let failure: unknown;
  try {
    simulation.run();
  } catch (error) {
    failure = error;
  } finally {
    simulation.close();
    rmSync(folder, { recursive: true, force: true });
  }
  return simulation.verdict(failure);
}

class Simulation {
  readonly #plan: Plan;
  readonly #world = new World();
  readonly #network: Network;
  readonly #safety: Safety;
  readonly #workload: Workload;
  readonly #faults: FaultCounts = new Map();
  readonly #nodes: (OurNode | LegacyNode)[] = [];
  readonly #hub: LegacyHub | undefined;
  readonly #ends = new Set<() => void>();
  readonly #backups = new Map<OurNode, KeptFile>();
  #isOver = false;
  #writes = 0;
  #differing: string[] = [];
  #equalAfterMs: number | undefined;

  constructor(plan: Plan, folder: string, onTrace: ((line: TraceLine) => void) | undefined) {
    this.#plan = plan;
    if (onTrace) this.#world.onTrace = (atMs, text, key) => onTrace({ atMs, text, key });
    const world = this.#world;
    const { seed, nodes, schema } = plan;
    this.#network = new Network(world, new Chance(seed, 2), plan.network, this.#faults);
    this.#safety = new Safety({ world, network: this.#network, isOursOnly: !plan.hasForeign });
    this.#workload = new Workload(plan, new Chance(seed, 3));
    const hubUrl = "http://hub";
    const urlOf = (index: number) => `http://n${index}`;
    const aliasOf = (index: number) => `http://n${index}.alias`;
    for (const [index, node] of nodes.entries()) {
      const others = nodes.flatMap((_, other) => (other === index ? [] : [urlOf(other)]));
      for (const alias of plan.aliases) if (alias.of === index) others.push(aliasOf(alias.node));
      const peers = {
        mesh: others,
        hub: [hubUrl],
        "mesh and hub": [...others, hubUrl],
      }[plan.topology];
      const common = {
        world,
        chance: new Chance(seed, 100 + index),
        network: this.#network,
        clock: new WallClock(world, node.offsetMs, node.drift),
        url: urlOf(index),
        peers,
      };
      const isUnknown = (peer: string) =>
        plan.unknown.some((one) => one.node === index && urlOf(one.peer) === peer);
      if (node.slowMs > 0) this.#network.slowMs.set(common.url, node.slowMs);
      if (node.make !== "ours") {
        this.#nodes.push(new LegacyNode({ ...common, make: node.make, schema }));
        continue;
      }
      const { batchMs, namesItself } = node;
      const { batchChangesMax, batchBytesMax, tombstoneRetentionMs, fillSliceRows, pauseRowsMin } =
        plan;
      this.#nodes.push(
        new OurNode({
          ...common,
          peers: peers.filter((peer) => !isUnknown(peer)),
          nodeAt: (url) => this.#ours.find((one) => url.startsWith(one.url)),
          verifies: plan.verifies,
          onFill: (reason) => this.#count(`fill: ${reason}`),
          safety: this.#safety,
          namesItself,
          folder,
          image: imageOf(schema),
          tables: schema.tables.map(({ name }) => name),
          batchMs,
          batchChangesMax,
          batchBytesMax,
          tombstoneRetentionMs,
          fillSliceRows,
          pauseRowsMin,
        }),
      );
    }
    for (const node of this.#nodes) this.#network.add(node);
    for (const { node } of plan.aliases) this.#network.addAlias(aliasOf(node), this.#nodes[node]!);
    if (plan.topology !== "mesh") {
      this.#hub = new LegacyHub({
        world,
        chance: new Chance(seed, 4),
        network: this.#network,
        url: hubUrl,
        peers: nodes.map((_, index) => urlOf(index)),
      });
      this.#network.add(this.#hub);
    }
  }

  get #ours(): OurNode[] {
    return this.#nodes.filter((node) => node instanceof OurNode);
  }

  get #legacy(): LegacyNode[] {
    return this.#nodes.filter((node) => node instanceof LegacyNode);
  }

  run(): void {
    this.#scheduleStart();
    this.#scheduleWrites();
    for (const { atMs, what } of this.#plan.incidents) {
      this.#world.at(atMs, () => this.#befall(what));
    }
    this.#world.runUntil(this.#plan.activeMs);
    this.#endFaults();
    this.#waitForEquality();
    this.#waitForSilence();
    this.#checkEnd();
  }

  // ── Phase one ───────────────────────────────────────────────────────────────────────────────

  #scheduleStart(): void {
    const chance = new Chance(this.#plan.seed, 5);
    for (const node of this.#ours) {
      this.#world.at(chance.hits(0.8) ? 0 : chance.below(this.#plan.activeMs), () => node.start());
    }
  }

  #scheduleWrites(): void {
    const chance = new Chance(this.#plan.seed, 6);
    const { workload, activeMs } = this.#plan;
    for (let n = 0; n < workload.writes; n++) {
      const together = chance.hits(workload.together) ? chance.between(2, 3) : 1;
      const atMs = chance.below(activeMs);
      for (let m = 0; m < together; m++) {
        const node = chance.pick(this.#nodes);
        this.#world.at(atMs, () => {
          this.#writes++;
          this.#workload.act(node);
        });
      }
    }
  }

  #count(what: string): void {
    this.#faults.set(what, (this.#faults.get(what) ?? 0) + 1);
  }

  #befall(incident: Incident): void {
    const count = (what: string) => this.#count(what);
    if (incident.kind === "partition") {
      const url = (index: number) => this.#nodes[index]!.url;
      for (const from of incident.from) {
        for (const to of incident.to) {
          if (from === to) continue;
          this.#for(incident.forMs, this.#network.separate(url(from), url(to), incident.wall));
        }
      }
      return;
    }
    const node = this.#nodes[incident.node]!;
    if (incident.kind === "clock") {
      count("clock step");
      node.clock.offsetMs += incident.byMs;
      this.#world.trace(`${node.url} clock steps by ${incident.byMs} ms`);
      return;
    }
    if (!(node instanceof OurNode)) return;
    switch (incident.kind) {
      case "alter":
        count("column added");
        this.#addColumn(node, this.#plan.schema.later[incident.statement]!);
        return;
      case "vacuum":
        count("vacuum");
        try {
          node.program.run("VACUUM");
          node.running?.wake();
        } catch {
          // Locked or full: a program would try again later.
        }
        return;
      case "backup":
        count("backup");
        this.#backups.set(node, node.backUp());
        return;
      case "file":
        this.#changeFile(node, incident);
        return;
    }
    if (!node.isUp) return;
    switch (incident.kind) {
      case "peer":
        count(`peer: ${incident.does}`);
        void node.running!.changePeer(incident.does, this.#nodes[incident.peer]!.url);
        return;
      case "crash":
        count(`crash ${incident.point}`);
        node.crash(incident.point, incident.forMs);
        return;
      case "restart":
        count("restart");
        node.restart(incident.forMs);
        return;
      case "disk-full": {
        count("disk full");
        const running = node.running!;
        const { db } = running.store;
        const pages = db.query<{ page_count: number }, []>("PRAGMA page_count").get()!.page_count;
        db.run(`PRAGMA max_page_count = ${pages}`);
        running.hindrances++;
        this.#for(incident.forMs, () => {
          running.hindrances--;
          if (running.isAlive) db.run("PRAGMA max_page_count = 1000000");
        });
        return;
      }
      case "locked": {
        const running = node.running!;
        const { program } = node;
        try {
          program.run("BEGIN IMMEDIATE");
        } catch {
          return;
        }
        count("locked");
        running.hindrances++;
        this.#for(incident.forMs, () => {
          running.hindrances--;
          // A crash of the node closed the program's connection with it.
          if (running.isAlive && program.inTransaction) program.run("ROLLBACK");
        });
      }
    }
  }

  /** The node goes, and comes back with another file. */
  #changeFile(node: OurNode, incident: Extract<Incident, { kind: "file" }>): void {
    const { source, forMs, programWrites } = incident;
    const from = typeof source === "number" ? this.#nodes[source] : undefined;
    if (from instanceof OurNode) {
      const file = from.backUp();
      // Whoever it was copied from has all that is in it.
      const acknowledged = new Map([...file.acknowledged, [from.url, from.newestChange] as const]);
      this.#count("file: copied from another node");
      node.putFile({ ...file, acknowledged }, forMs);
      this.#network.setAcknowledged(from.url, node.url, from.newestChange);
    } else {
      const backup = source === "backup" ? this.#backups.get(node) : undefined;
      this.#count(backup === undefined ? "file: lost" : "file: restored");
      node.putFile(backup ?? node.emptyFile(), forMs);
    }
    this.#world.trace(`${node.url} has another file (${source})`);
    this.#safety.owes(
      node,
      this.#ours.filter((other) => other !== node),
    );
    if (!programWrites) return;
    this.#world.at(forMs / 2, () => {
      if (!node.isUp) this.#workload.writeProgram(node);
    });
  }

  /** Undoes a fault when its time is over, or when all faults end. */
  #for(forMs: number, undo: () => void): void {
    const end = () => {
      if (this.#ends.delete(end)) undo();
    };
    this.#ends.add(end);
    this.#world.at(forMs, end);
  }

  // ── Phase two ───────────────────────────────────────────────────────────────────────────────

  #endFaults(): void {
    this.#world.trace("the faults are over");
    for (const end of [...this.#ends]) end();
    this.#network.faults = QUIET_NETWORK;
    this.#network.slowMs.clear();
    for (const node of this.#ours) {
      node.disarm();
      for (const later of this.#plan.schema.later) this.#addColumn(node, later);
    }
    if (!this.#isMembershipFixed) for (const node of this.#ours) this.#joinAll(node);
  }

  get #isMembershipFixed(): boolean {
    const { unknown, incidents } = this.#plan;
    return unknown.length === 0 && !incidents.some(({ what }) => what.kind === "peer");
  }

  /** A file from elsewhere may have it. */
  #addColumn(node: OurNode, { table, column, sql }: Schema["later"][number]): void {
    if (!hasColumn(node.program, table, column)) node.runProgram([], [sql]);
  }

  /** In the end everybody is everybody's peer again. */
  #joinAll(node: OurNode): void {
    const { running } = node;
    const join = async () => {
      if (running === undefined || running.isStopping) return false;
      for (const { url } of this.#nodes) {
        if (url !== node.url && !(await running.changePeer("add", url))) return false;
      }
      return true;
    };
    void join().then((isDone) => {
      if (!isDone) this.#world.at(SECOND_MS, () => this.#joinAll(node));
    });
  }

  #waitForEquality(): void {
    const { activeMs } = this.#plan;
    const clocks = this.#nodes.map((node) => node.clock.peekMs());
    const apartMs = Math.max(...clocks) - Math.min(...clocks);
    // What is more than an hour ahead of a node's clock waits there until it is due.
    const waitMs = this.#boundMs(apartMs) + 2 * apartMs;
    this.#advance(waitMs, () => this.#isEqual());
    if (!this.#isEqual()) {
      this.#differing = this.#compare();
      throw new Finding(`not equal ${waitMs / SECOND_MS} s after the faults: ${this.#describe()}`);
    }
    this.#equalAfterMs = this.#world.nowMs - activeMs;
    this.#world.trace("all nodes are equal");
  }

  #boundMs(apartMs: number): number {
    const { hasForeign, hasFileFaults, schema, workload } = this.#plan;
    if (hasForeign) return EQUAL_FOREIGN_MS_MAX;
    if (!hasFileFaults) return EQUAL_MS_MAX;
    // What waits on the one node that has it is found by the first comparison after its time.
    const mayWait = apartMs > HOUR_MS || schema.name === "unique" || workload.oddStamps;
    return mayWait ? EQUAL_COMPARED_MS_MAX + DAY_MS : EQUAL_COMPARED_MS_MAX;
  }

  #waitForSilence(): void {
    const { hasForeign, waitsForDays } = this.#plan;
    const silentMs = waitsForDays ? 26 * HOUR_MS : 12 * MINUTE_MS;
    // What comes due in the silence to come, equal as all may be, may be answered to foreign nodes.
    const isHealing = () =>
      this.#ours.some(
        (node) =>
          node.running?.store.healing.isWaiting !== false ||
          comesDue(node.running.store.db, node.clock.peekMs() + 2 * silentMs),
      );
    if (hasForeign) {
      this.#advance(REPEATS_MS_MAX, () => !isHealing());
      if (isHealing()) throw new Finding(`repeats go on for ${REPEATS_MS_MAX / DAY_MS} days`);
    }
    // What came due just now is still on its way; who has another file is noticed within a minute or so.
    const restMs = this.#plan.hasFileFaults ? FILLS_MS_MAX : MINUTE_MS;
    this.#advance(restMs, () => false);
    const before = this.#network.deliveries;
    this.#advance(silentMs, () => false);
    const after = this.#network.deliveries - before;
    if (after > 0) throw new Finding(`${after} batches were sent when there was nothing to send`);
  }

  /** Lets time pass in growing steps, until this is so or the time is over. */
  #advance(forMs: number, isDone: () => boolean): void {
    const untilMs = this.#world.nowMs + forMs;
    let stepMs = 200;
    while (!isDone() && this.#world.nowMs < untilMs) {
      for (const node of this.#ours) node.idleMsMax = Math.max(node.idleMsMax, stepMs);
      this.#world.runUntil(Math.min(untilMs, this.#world.nowMs + stepMs));
      stepMs = Math.min(Math.round(stepMs * 1.5), 20 * MINUTE_MS);
    }
  }

  #isEqual(): boolean {
    if (this.#network.inFlight > 0 || (this.#hub?.waiting ?? 0) > 0) return false;
    for (const node of this.#nodes) {
      if (node instanceof OurNode && node.running === undefined) return false;
      const db = node instanceof OurNode ? node.running!.store.db : node.db;
      if (db.query("SELECT 1 FROM _changes LIMIT 1").get() !== null) return false;
      if (this.#plan.hasFileFaults && node instanceof OurNode && this.#waits(node, db))
        return false;
    }
    return this.#compare().length === 0;
  }

  /** Something received, that its author may have lost, is about to be tried again. */
  #waits(node: OurNode, db: Database): boolean {
    const find = db.query(
      `SELECT 1 FROM _dead_letter WHERE direction = 'received' AND code <> 'lost'
         AND NOT (code = 'ahead' AND retry_at > ?)`,
    );
    return find.get(node.clock.peekMs() + HOUR_MS) !== null;
  }

  /** Rows that are not the same everywhere. */
  #compare(): string[] {
    const tables = this.#plan.schema.tables.map(({ name }) => name);
    const [first, ...rest] = this.#ours;
    const read = (node: OurNode | LegacyNode, exact: boolean): Content => {
      const db = node instanceof OurNode ? node.running?.store.db : node.db;
      return db === undefined ? new Map() : readContent(db, tables, exact);
    };
    // A hub between ours takes numbers as doubles, too.
    const isExact = this.#plan.topology !== "hub";
    const own = read(first!, isExact);
    const differing = new Set(rest.flatMap((node) => difference(own, read(node, isExact))));
    if (this.#legacy.length > 0) {
      const reduced = read(first!, false);
      for (const node of this.#legacy) {
        for (const key of difference(reduced, read(node, false))) differing.add(key);
      }
    }
    return [...differing];
  }

  #describe(): string {
    const tables = this.#plan.schema.tables.map(({ name }) => name);
    const lines = this.#nodes.map((node) => {
      const db = node instanceof OurNode ? node.running?.store.db : node.db;
      if (db === undefined) return `${node.url} is down`;
      const content = readContent(db, tables, node instanceof OurNode);
      const { waiting } = db
        .query<{ waiting: number }, []>("SELECT count(*) AS waiting FROM _changes")
        .get()!;
      const rows = this.#differing.map((key) => `    ${key}: ${content.get(key) ?? "none"}`);
      const left = waiting === 0 || node instanceof LegacyNode ? [] : describeLog(db);
      return [`  ${node.url}, ${waiting} in its log`, ...left, ...rows].join("\n");
    });
    return `\n${lines.join("\n")}`;
  }

  #checkEnd(): void {
    this.#differing = this.#compare();
    if (this.#differing.length > 0) {
      throw new Finding(`equal, and then not any more: ${this.#describe()}`);
    }
    for (const node of this.#ours) {
      const { db } = node.running!.store;
      // What lost against another row on a unique key stays; what is far ahead waits until it is due.
      const letters = db
        .query<{ reason: string }, [number]>(
          `SELECT direction || ' ' || code || ': ' || reason AS reason FROM _dead_letter
           WHERE code <> 'lost' AND NOT (code = 'ahead' AND retry_at > ?)`,
        )
        .all(node.clock.peekMs() - HOUR_MS);
      if (letters.length > 0) {
        throw new Finding(
          `${node.url} has dead letters: ${letters.map((l) => l.reason).join("; ")}`,
        );
      }
      this.#checkPromised(node);
      if (this.#isMembershipFixed) this.#safety.checkOwed(node);
      const check = db.query<{ integrity_check: string }, []>("PRAGMA integrity_check").get()!;
      if (check.integrity_check !== "ok")
        throw new Finding(`${node.url}: ${check.integrity_check}`);
    }
  }

  /** What any node of ours promised, all of ours have. */
  #checkPromised(node: OurNode): void {
    const { db } = node.running!.store;
    // All have the same rows, also who promised them. A delete whose author lost it may be known to some,
    // and what is ahead of its time may wait with some.
    const { hasFileFaults } = this.#plan;
    const promised = hasFileFaults ? this.#safety.promisedBy(node) : this.#safety.promised;
    for (const [key, version] of promised) {
      const [table, id] = splitKey(key);
      const standing = this.#safety.versionAt(db, table, id);
      // With a short retention the delete may have been forgotten since.
      if (standing === undefined && this.#plan.tombstoneRetentionMs < DAY_MS) continue;
      if (this.#safety.isParked(db, table, id)) continue;
      if (standing === undefined || standing < version) {
        throw new Finding(`${node.url} has ${key} at ${standing}; ${version} was promised (X1)`);
      }
    }
  }

  verdict(failure: unknown): Verdict {
    return {
      seed: this.#plan.seed,
      failure,
      rows: this.#differing,
      faults: this.#faults,
      events: this.#world.events,
      writes: this.#writes,
      deliveries: this.#network.deliveries,
      equalAfterMs: this.#equalAfterMs,
    };
  }

  close(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const node of this.#nodes) node.close();
    drainMicrotasks();
    // What was ended closes its file a moment later; nothing else happens any more.
    try {
      this.#world.runUntil(this.#world.nowMs);
    } catch {
      // The failure that is being reported.
    }
  }
}

/** What waits, and for whom. */
/** Whether what was ahead of this node's clock is tried before then. */
function comesDue(db: Database, beforeMs: number): boolean {
  const find = db.query("SELECT 1 FROM _dead_letter WHERE code = 'ahead' AND retry_at < ?");
  return find.get(beforeMs) !== null;
}

function describeLog(db: Database): string[] {
  const entries = db
    .query<{ text: string }, []>(
      `SELECT change_id || ' ' || op || ' ' || table_name || '/' || row_id
         || coalesce(' only for ' || only_for, '') AS text FROM _changes LIMIT 10`,
    )
    .all();
  const peers = db
    .query<{ text: string }, []>(
      `SELECT peer_url || ' has ' || last_acked || coalesce(', is filled: ' || fill, '')
         || coalesce(', wants all: ' || fill_wanted, '') AS text FROM _peer_state`,
    )
    .all();
  return [...entries, ...peers].map(({ text }) => `    ${text}`);
}

const images = new Map<Schema, Uint8Array>();

/** A file of ours with these tables, as it is after its first start. */
function imageOf(schema: Schema): Uint8Array {
  let image = images.get(schema);
  if (image === undefined) {
    mkdirSync(FOLDER, { recursive: true });
    const path = `${FOLDER}/${schema.name}.db`;
    const soon: (() => void)[] = [];
    const store = Store.open({
      path,
      nodeId: "image",
      asked: undefined,
      schemaSql: schema.tables.map(({ sql }) => `${sql};`).join("\n"),
      synchronous: "normal",
      parkedBytesMax: 1,
      tombstoneRetentionMs: 1,
      acceptOldFile: true,
      clock: { nowMs: () => EPOCH_MS, monotonicMs: () => 0 },
      timers: { after: () => () => {}, soon: (run) => void soon.push(run) },
      random: new Chance(0),
      onEvent: () => {},
      onCommit: () => {},
    });
    let isClosed = false;
    void store.close().then(() => {
      isClosed = true;
    });
    while (!isClosed) {
      for (const run of soon.splice(0)) run();
      drainMicrotasks();
    }
    // What names a file is not part of it: every node begins with one of its own.
    const db = new Database(path);
    db.run("DELETE FROM _hooksync WHERE key IN ('db_id', 'node_id')");
    db.close(true);
    image = readFileSync(path);
    images.set(schema, image);
    rmSync(path);
  }
  return image;
}

/** Takes away what simulations of this process left. */
export function cleanUp(): void {
  rmSync(FOLDER, { recursive: true, force: true });
}
