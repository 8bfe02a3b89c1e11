/**
 * A life: a node that is sent hostile bodies through the real app, and beside it a second one that is sent
 * only what is left of them where they are valid, spelled plainly. After each body both must hold the same.
 * Everything comes from the seed, so a life can be lived again with parts left out.
 */
import type { Hono } from "hono";
import { createApp } from "../../lib/http/app.ts";
import type { DigestSource } from "../../lib/http/digest-routes.ts";
import type { HealthReport } from "../../lib/http/health-routes.ts";
import type { Membership } from "../../lib/http/peer-routes.ts";
import type { CopySource } from "../../lib/http/snapshot-routes.ts";
import { parseBatch } from "../../lib/protocol/batch.ts";
import { BODY_BYTES_MAX, VERSION_AHEAD_MS_MAX } from "../../lib/protocol/limits.ts";
import { OURS, T, TestNode, VirtualTime } from "../support/receive-fixture.ts";
import { Seeded } from "../support/seeded.ts";
import { randomBody, randomStyle } from "./bodies.ts";
import { type Json, memberOf, plain, readJson } from "./json-tree.ts";
import { cleanBody, type Judged, Oracle, rowIds, shownSql } from "./oracle.ts";
import { foldName, SCHEMA, SYNCED, TABLES } from "./tables.ts";

export interface Step {
  readonly body: Uint8Array;
  readonly sender: "ours" | "foreign" | "hub";
  readonly pauseMs: number;
  /** The same body comes again. */
  readonly repeats: boolean;
}

export interface Life {
  /** What the applications of both nodes write first, and into which rows. */
  readonly sql: string;
  readonly written: readonly string[];
  readonly steps: readonly Step[];
}

/** What should never be. */
export class Finding extends Error {
  override name = "Finding";
}

const STEPS = 10;
/** The time of the first of them; parked changes that clash are decided after a minute. */
const PAUSES_MS = [0, 0, 0, 500, 2_000, 61_000];

export function randomLife(seed: number): Life {
  const random = new Seeded(seed);
  const style = randomStyle(random);
  const senders = random.pick<readonly Step["sender"][]>([
    ["ours"],
    ["ours"],
    ["foreign"],
    ["hub"],
    ["ours", "foreign", "hub"],
  ]);
  const written = style.ids.filter((id) => /^[^\0]+$/.test(id) && random.chance(0.2)).slice(0, 5);
  const sql = written
    .map((id) => `('${id.replaceAll("'", "''")}', 'own', ${T - 500})`)
    .map((row) => `INSERT OR IGNORE INTO items(id, name, updated_at) VALUES ${row};`)
    .join("\n");
  const steps = Array.from({ length: STEPS }, (_, i) => ({
    body: randomBody(random, style, i + 1),
    sender: random.pick(senders),
    pauseMs: random.pick(PAUSES_MS),
    repeats: random.chance(0.2),
  }));
  return { sql, written, steps };
}

/** What was met, so that a search that finds nothing can be seen to have searched. */
export interface Tally {
  bodies: number;
  refused: number;
  changes: number;
  invalid: number;
  applied: number;
}

/** Throws a Finding. */
export async function live({ sql, written, steps }: Life, tally?: Tally): Promise<void> {
  const time = new VirtualTime();
  const [hostile, clean] = [new FuzzNode(time), new FuzzNode(time)];
  const oracle = new Oracle();
  const doubt = new Doubt(steps.some(({ sender }) => sender !== "ours"));
  const sent = new Sent(
    written.map((id) => `items/${id}`),
    doubt.isHealing,
  );
  try {
    for (const { node } of [hostile, clean]) await node.write(`SELECT 1; ${sql}`);
    for (const step of steps) await take(step, hostile, clean, oracle, doubt, sent, tally);
    for (const { node } of [hostile, clean]) {
      const damage = node.db.query<{ integrity_check: string }, []>("PRAGMA integrity_check").all();
      same("integrity_check", damage, [{ integrity_check: "ok" }]);
    }
  } finally {
    oracle.close();
    await hostile.node.close();
    await clean.node.close();
  }
}

async function take(
  step: Step,
  hostile: FuzzNode,
  clean: FuzzNode,
  oracle: Oracle,
  doubt: Doubt,
  sent: Sent,
  tally: Tally | undefined,
): Promise<void> {
  const { time } = hostile.node;
  time.ms += step.pauseMs;
  for (const each of [hostile, clean]) await each.runDue();
  const verdict = oracle.judge(step.body, step.sender === "ours");
  const before = hostile.state();
  const logged = hostile.lastChangeId();
  const answer = await hostile.post(step.body, step.sender);
  if (tally) tally.bodies++;
  if (verdict.kind === "no batch") {
    if (tally) tally.refused++;
    same("status of what is no batch", answer.status, 400);
    same("error of what is no batch", typeof answer.json?.error, "string");
    same("state after what is no batch", hostile.state(), before);
    return;
  }
  same("status", answer.status, 200);
  same("ack", answer.json?.ack, verdict.batchId);
  agreesWithJsonParse(step.body);
  doubt.add(verdict.changes);
  sent.add(verdict.changes);
  const cleanAnswer = await clean.post(cleanBody(verdict.batchId, verdict.changes), step.sender);
  same("status of the valid subset", cleanAnswer.status, 200);
  if (!verdict.changes.some((change) => doubt.has(change.row))) {
    same("applied", answer.json.applied, cleanAnswer.json.applied);
  }
  compare(hostile, clean, doubt);
  sent.check(hostile);
  isKept(hostile, verdict.changes);
  if (step.sender === "ours" && !doubt.isHealing) {
    nothingCaptured(hostile, logged, verdict.changes);
  }
  if (tally) {
    tally.changes += verdict.changes.length;
    tally.invalid += verdict.changes.filter((change) => change.clean === undefined).length;
    tally.applied += answer.json.applied;
  }
  // A delete without a row takes whatever is there, also what came after it the first time.
  if (!step.repeats || verdict.changes.some((change) => change.isRowlessDelete)) return;
  const once = hostile.contents();
  same("status of a repeat", (await hostile.post(step.body, step.sender)).status, 200);
  same("rows after a repeat", hostile.contents(), once);
  await clean.post(cleanBody(verdict.batchId, verdict.changes), step.sender);
}

// ── Properties ──────────────────────────────────────────────────────────────────────────────────

function same(what: string, found: unknown, expected: unknown): void {
  if (Bun.deepEquals(found, expected, true)) return;
  throw new Finding(`${what}: ${shown(found, expected)}`);
}

/** Of long lists only what differs. */
function shown(found: unknown, expected: unknown): string {
  if (!Array.isArray(found) || !Array.isArray(expected)) {
    return `${Bun.inspect(found)} instead of ${Bun.inspect(expected)}`;
  }
  const texts = [found, expected].map((list) => list.map((each) => Bun.inspect(each)));
  const [left, right] = texts as [string[], string[]];
  const only = (list: string[], other: string[]) => {
    const rest = [...other];
    return list
      .filter((each) => {
        const at = rest.indexOf(each);
        if (at >= 0) rest.splice(at, 1);
        return at < 0;
      })
      .slice(0, 3);
  };
  return `found ${only(left, right).join(" ; ") || "nothing more"}, missing ${only(right, left).join(" ; ") || "nothing"}`;
}

function agreesWithJsonParse(body: Uint8Array): void {
  const { changes } = JSON.parse(new TextDecoder().decode(body));
  same(
    "changes as JSON.parse reads them",
    parseBatch(body).changes.map((change) => change.value),
    changes ?? [],
  );
}

/**
 * Rows of which a refused change cannot be taken out without a trace: where a part of it could be written,
 * or where its tie with the row is answered.
 */
class Doubt {
  readonly isHealing: boolean;
  readonly #refused = new Set<string>();
  readonly #partial = new Set<string>();

  constructor(isHealing: boolean) {
    this.isHealing = isHealing;
  }

  add(changes: readonly Judged[]): void {
    for (const change of changes) {
      if (change.isRefused) this.#refused.add(change.row);
      if (!change.isWhole) this.#partial.add(change.row);
    }
  }

  has(row: string): boolean {
    return this.#refused.has(row) && (this.isHealing || this.#partial.has(row));
  }
}

/** What valid changes carried, as SQLite stores it: no row may hold anything else. */
class Sent {
  /** Rows that hold what several changes carried, or what nobody sent. */
  readonly #mixed: Set<string>;
  /** By row, and its version where that is what was sent, then by column. */
  readonly #stored = new Map<string, Map<string, Set<string>>>();

  readonly #isHealing: boolean;

  constructor(written: readonly string[], isHealing: boolean) {
    this.#mixed = new Set(written);
    this.#isHealing = isHealing;
  }

  add(changes: readonly Judged[]): void {
    for (const { row, version, stored, isWhole } of changes) {
      if (!isWhole) this.#mixed.add(row);
      if (stored === undefined) continue;
      // A version that healing lifted says nothing of where its row came from.
      const key = this.#isHealing ? row : `${version} ${row}`;
      const columns = this.#stored.get(key) ?? new Map<string, Set<string>>();
      this.#stored.set(key, columns);
      for (const [column, value] of stored) {
        columns.set(column, (columns.get(column) ?? new Set()).add(value));
      }
    }
  }

  check(hostile: FuzzNode): void {
    const aheadMs = hostile.node.time.ms + VERSION_AHEAD_MS_MAX;
    for (const { row, version, cells } of hostile.cells()) {
      if (version > aheadMs) throw new Finding(`${row} is too far ahead: ${version}`);
      if (this.#mixed.has(row)) continue;
      const columns = this.#stored.get(this.#isHealing ? row : `${version} ${row}`);
      if (columns === undefined) throw new Finding(`nobody sent ${row} at version ${version}`);
      for (const [column, value] of cells) {
        // Digits that were lost on the way may come back from an equal change.
        const expected = columns.get(column);
        if (!expected?.has(value)) {
          throw new Finding(`${row} holds ${column} = ${value}, sent was ${[...(expected ?? [])]}`);
        }
      }
    }
  }
}

function compare(hostile: FuzzNode, clean: FuzzNode, doubt: Doubt): void {
  const sure = (list: readonly Held[]) => list.filter(({ row }) => !doubt.has(row));
  same("rows", sure(hostile.contents()), sure(clean.contents()));
  same("tombstones", sure(hostile.tombstones()), sure(clean.tombstones()));
  same("notes of columns", sure(hostile.notes()), sure(clean.notes()));
  // Who waits for whom on a unique key, and so what is said meanwhile, depends on the order of writing; what
  // stands in the end does not.
  const said = (list: readonly Held[]) => sure(list).filter(({ row }) => !row.startsWith("uniq/"));
  same("what is contested", said(hostile.contested()), said(clean.contested()));
  same("log", said(hostile.log()), said(clean.log()));
  same("the flag, other tables, the schema", hostile.rest(), clean.rest());
}

/** Whatever did not apply left a trace. */
function isKept({ node }: FuzzNode, changes: readonly Judged[]): void {
  const parked = node.parked();
  const texts = new Set(parked.map(({ change }) => plain(readJson(change))));
  const rows = new Set(parked.map((entry) => `${entry.table_name ?? ""}/${entry.row_id}`));
  for (const { json, clean, isLeftOut, isRefused } of changes) {
    // What a constraint would refuse is not even tried where it is stale.
    if (clean !== undefined || isLeftOut || isRefused || texts.has(plain(json))) continue;
    const table = memberOf(json, "table");
    // As it is stored: half a surrogate pair is no text.
    const named = table?.kind === "string" ? table.value.toWellFormed() : "";
    // Of several changes of one row that are refused for one reason one is kept.
    if (!rowIds(json).some((id) => hasRow(rows, named, id))) {
      throw new Finding(`no trace of ${plain(json)}`);
    }
  }
}

function hasRow(rows: ReadonlySet<string>, named: string, id: string): boolean {
  const declared = SYNCED.find((name) => name.toLowerCase() === named.toLowerCase()) ?? named;
  return rows.has(`${named}/${id}`) || rows.has(`${declared}/${id}`);
}

/** Among ours nothing is passed on but what a delete must take along. */
function nothingCaptured(hostile: FuzzNode, after: number, changes: readonly Judged[]): void {
  const deleted = new Set(
    changes
      .filter(({ json, clean }) => clean && plain(json).includes("DELETE"))
      .map(({ row }) => row),
  );
  const wrong = hostile
    .log(after)
    .filter(({ row, held }) => !held.startsWith("DELETE") || !deleted.has(row))
    .filter(({ row }) => !row.startsWith("uniq/"));
  if (wrong.length > 0) throw new Finding(`captured: ${Bun.inspect(wrong)}`);
}

// ── A node behind its app ───────────────────────────────────────────────────────────────────────

/** Something held of one row, `table/id`. */
interface Held {
  readonly row: string;
  readonly held: string;
}

const HEADERS: Readonly<Record<Step["sender"], Readonly<Record<string, string>>>> = {
  ours: { "X-Node-Id": "a", "X-Hook-Sync": `v=1; db=${OURS.db}; rest=0` },
  foreign: { "X-Node-Id": "go" },
  hub: { "X-Node-Id": "go", "X-Node-Url": "http://hub:9000" },
};

/** What a client reads of an answer to /sync: an acknowledgement or an error. */
interface Posted {
  readonly status: number;
  readonly json: { readonly applied: number; readonly ack: number; readonly error?: string };
}

class FuzzNode {
  readonly node: TestNode;
  readonly #app: Hono;
  readonly #reported: unknown[] = [];

  constructor(time: VirtualTime) {
    this.node = new TestNode({ schema: SCHEMA, tables: SYNCED, time });
    const { store, receiver } = this.node;
    this.#app = createApp({
      version: "1.2.3",
      queue: store.queue,
      repository: store.repository,
      bodyBytesMax: BODY_BYTES_MAX,
      tables: () => [...store.survey.synced.values()],
      sync: { apply: (request) => receiver.receive(request) },
      identity: () => store.identity(),
      nodeId: "b",
      // No body of /sync reaches these.
      health: () => ({}) as HealthReport,
      digests: {} as DigestSource,
      copies: {} as CopySource,
      membership: {} as Membership,
      reportError: (error) => this.#reported.push(error),
    });
    // Nothing here is about a power cut.
    this.node.db.run("PRAGMA synchronous = OFF");
    this.node.app.run("PRAGMA synchronous = OFF");
    // Rows of a table that is not synced, for whoever should get at them.
    this.node.app.run("INSERT INTO secrets VALUES ('row 0', 'secret', 1)");
  }

  async post(body: Uint8Array, sender: Step["sender"]): Promise<Posted> {
    const response = await this.#app.fetch(
      new Request("http://b/sync", {
        method: "POST",
        headers: { "Content-Type": "application/json", ...HEADERS[sender] },
        body: new Uint8Array(body),
      }),
    );
    if (this.#reported.length > 0) {
      throw new Finding(`${response.status}: ${Bun.inspect(this.#reported[0])}`);
    }
    return { status: response.status, json: (await response.json()) as Posted["json"] };
  }

  /** All of it: of what is due at once only so much is done in one go. */
  async runDue(): Promise<void> {
    const { time, store } = this.node;
    do await this.node.tick();
    while ((store.healing.nextDueMs() ?? Number.POSITIVE_INFINITY) <= time.ms);
  }

  state(): unknown {
    return [this.contents(), this.tombstones(), this.notes(), this.log(), this.rest()];
  }

  contents(): Held[] {
    return SYNCED.flatMap((table) =>
      this.#held(`
        SELECT lower('${table}') || '/' || id AS row, ${this.#shown(table)} AS held
        FROM "${table}" ORDER BY id`),
    );
  }

  #shown(table: string): string {
    const columns = this.node.db
      .query<{ name: string }, [string]>("SELECT name FROM pragma_table_xinfo(?) ORDER BY name")
      .all(table);
    return columns
      .map(({ name }) => `'${name}=' || typeof("${name}") || ':' || hex("${name}")`)
      .join(" || ' ' || ");
  }

  /** Every row of every synced table, value by value. */
  cells(): { row: string; version: number; cells: [column: string, value: string][] }[] {
    return TABLES.flatMap(({ name, id, columns }) => {
      const shown = columns.map((column) => shownSql(`"${column}"`));
      return this.node.db
        .query(`SELECT "${id}", updated_at, ${shown} FROM "${name}"`)
        .values()
        .map(([key, version, ...values]) => ({
          row: `${foldName(name)}/${key}`,
          version: Number(version),
          cells: columns.map((column, i): [string, string] => [column, String(values[i])]),
        }));
    });
  }

  tombstones(): Held[] {
    return this.#held(
      "SELECT tbl || '/' || id AS row, version AS held FROM _hooksync_tombstones ORDER BY tbl, id",
    );
  }

  notes(): Held[] {
    return this.#held(`
      SELECT tbl || '/' || id AS row, json_array(col, version) AS held
      FROM _hooksync_columns WHERE id <> '' ORDER BY tbl, id, col`);
  }

  contested(): Held[] {
    return this.#held(`
      SELECT tbl || '/' || id AS row, json_array(step, announced_at, due_at) AS held
      FROM _hooksync_contested ORDER BY tbl, id`);
  }

  /** Of a delete only that it is one: what it says of the row may be the hostile sender's own words. */
  log(after = 0): Held[] {
    return this.#held(`
      SELECT lower(table_name) || '/' || row_id AS row,
        op || CASE op WHEN 'DELETE' THEN '' ELSE row_data END AS held
      FROM _changes WHERE change_id > ${after} ORDER BY row, held`);
  }

  lastChangeId(): number {
    return this.node.count("SELECT coalesce(max(change_id), 0) AS n FROM _changes");
  }

  rest(): unknown {
    const { db } = this.node;
    return [
      db.query("SELECT * FROM _meta").all(),
      db.query("SELECT * FROM secrets").all(),
      db.query("SELECT type, name, sql FROM sqlite_master ORDER BY name").all(),
    ];
  }

  #held(sql: string): Held[] {
    return this.node.db.query<Held, []>(sql).all();
  }
}

// ── Making a finding small ──────────────────────────────────────────────────────────────────────

/** Leaves out steps, then changes, then members, as long as something is found. */
export async function shrink(life: Life, attemptsMax: number): Promise<Life> {
  let best = life;
  let attempts = 0;
  const tryLife = async (candidate: Life): Promise<boolean> => {
    if (attempts++ >= attemptsMax) return false;
    try {
      await live(candidate);
      return false;
    } catch (error) {
      if (!(error instanceof Finding)) return false;
      best = candidate;
      return true;
    }
  };
  const without = async (parts: number, make: (isKept: (at: number) => boolean) => Life) => {
    const gone = new Set<number>();
    for (let size = parts; size >= 1; size = Math.floor(size / 2)) {
      for (let from = 0; from < parts; from += size) {
        const more = new Set(gone);
        for (let at = from; at < Math.min(from + size, parts); at++) more.add(at);
        if (more.size === gone.size) continue;
        if (await tryLife(make((at) => !more.has(at)))) for (const at of more) gone.add(at);
      }
    }
  };
  await tryLife({ ...best, sql: "", written: [] });
  const { steps } = best;
  await without(steps.length, (isKept) => ({
    ...best,
    steps: steps.filter((_, at) => isKept(at)),
  }));
  for (const what of ["changes", "members"] as const) {
    for (let i = 0; i < best.steps.length; i++) {
      const step = best.steps[i]!;
      const json = treeOf(step.body);
      if (json === undefined) continue;
      const { steps: now } = best;
      await without(countParts(json, what), (isKept) => ({
        ...best,
        steps: now.with(i, { ...step, body: bytesOf(keepParts(json, what, isKept)) }),
      }));
    }
  }
  return best;
}

function treeOf(body: Uint8Array): Json | undefined {
  try {
    return readJson(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    return undefined;
  }
}

function bytesOf(json: Json): Uint8Array {
  return new TextEncoder().encode(plain(json));
}

function countParts(json: Json, what: "changes" | "members"): number {
  let count = 0;
  keepParts(json, what, () => {
    count++;
    return true;
  });
  return count;
}

/** The body with those of its changes, or of their and their rows' members, that are to be kept. */
function keepParts(json: Json, what: "changes" | "members", isKept: (at: number) => boolean): Json {
  let at = 0;
  const prune = (each: Json, depth: number): Json => {
    if (each.kind === "array" && depth === 1) {
      const items = what === "changes" ? each.items.filter(() => isKept(at++)) : each.items;
      return { kind: "array", items: items.map((item) => prune(item, 2)) };
    }
    if (each.kind !== "object" || depth > 3) return each;
    const members =
      depth < 2 || what === "changes" ? each.members : each.members.filter(() => isKept(at++));
    return {
      kind: "object",
      members: members.map((member) => ({ ...member, value: prune(member.value, depth + 1) })),
    };
  };
  return prune(json, 0);
}

/** For people, and to be put into a test. */
export function describe({ sql, steps }: Life): string {
  const lines = steps.map(({ body, sender, pauseMs, repeats }) => {
    const shown = JSON.stringify(Buffer.from(body).toString("latin1"));
    return `${pauseMs} ms later, ${sender}${repeats ? ", twice" : ""}: ${shown.slice(0, 4_000)}`;
  });
  return [...(sql === "" ? [] : [sql]), ...lines].join("\n");
}
