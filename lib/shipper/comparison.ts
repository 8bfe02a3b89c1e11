/**
 * Compares the content of nodes of ours and, where asked, makes it equal: what `hook-sync verify` does,
 * and what a node does by itself with its neighbours.
 *
 * One hash per table tells that all is equal. Where it is not, only ranges that differ are gone down
 * into, in the snapshots that made the hashes, down to a handful of keys; those are then looked at as
 * they are now, again and again while changes are on their way, since a change in flight is no difference.
 * To repair, each row that lost gets the winner, as POST /sync of the node that lacks it: applying a row
 * twice or late is harmless, and what has become newer meanwhile wins there.
 *
 * Invariants (test/cli/verify.test.ts):
 *   D1  a key is called different only when every change that the nodes had when it was seen has arrived.
 *   D2  after the first pass no more rows are read than lie in the finest ranges that differ.
 *   D3  repairing never makes a row older anywhere.
 */
import type { Clock, Timers } from "../base/clock.ts";
import { BatchError, isObject, type JsonValue, member, parseBatch } from "../protocol/batch.ts";
import {
  type Bucket,
  differingKeys,
  differingRanges,
  isDifferent,
  type KeyRange,
  type KeyState,
} from "../protocol/digest.ts";
import { formatIdentity, IDENTITY_HEADER, NODE_ID_HEADER } from "../protocol/identity.ts";
import { compareUtf8, formatValue } from "../protocol/values.ts";
import { type Content, compareContent } from "../protocol/winner.ts";
import { wireContent } from "../protocol/wire-content.ts";
import { callNode, complaint, type NodeAnswer, type NodeCall } from "./node-client.ts";

/** What a comparison works with; network and time come in from outside. */
export interface CompareOptions {
  /** Base URLs, at least two. */
  readonly nodes: readonly string[];
  /** Take half of a core at most on every node. */
  readonly isSlow: boolean;
  /** Under which X-Node-Id winners are sent; undefined: nothing is changed. */
  readonly repairAs: string | undefined;
  /** How long to wait for what is in flight. */
  readonly waitMs: number;
  readonly clock: Pick<Clock, "monotonicMs">;
  readonly timers: Timers;
  /** How nodes are asked, if not over sockets. */
  readonly call?: ((call: NodeCall) => Promise<NodeAnswer>) | undefined;
}

/** What was found; lists by node are in the order of `nodes`. */
export interface Comparison {
  readonly nodes: readonly ComparedNode[];
  readonly tables: readonly ComparedTable[];
  /** What was still on its way in the end: then a difference may be none. For people. */
  readonly inFlight: readonly string[];
}

/** Where it was asked, and the --id it gave for itself. */
export interface ComparedNode {
  readonly url: string;
  readonly id: string;
}

/** One table; lists have a place for each node, undefined where the table is not synced. */
export interface ComparedTable {
  readonly table: string;
  readonly rows: readonly (number | undefined)[];
  /** The nodes that do not sync it, with what they say of it. */
  readonly missing: readonly { readonly node: number; readonly reason: string }[];
  readonly tombstones: readonly (number | undefined)[];
  /** Columns that not all have, with who has them; they are not compared. */
  readonly partColumns: readonly { readonly column: string; readonly nodes: readonly number[] }[];
  readonly differing: readonly DifferingKey[];
  /** There are more than were looked at. */
  readonly hasMore: boolean;
  /** Rows that each node read after its first pass. */
  readonly rowsRead: readonly number[];
}

/** A row that was not the same everywhere when it was last looked at. */
export interface DifferingKey {
  readonly id: string;
  /** What each node has; undefined: nothing. */
  readonly states: readonly (KeyState | undefined)[];
  /** For rows of one version: the columns in which they differ, with each node's value as JSON. */
  readonly columns: readonly { readonly column: string; readonly values: readonly string[] }[];
  readonly isRepaired: boolean;
}

/** The comparison could not be made; `message` says why, for people. */
export class ComparisonError extends Error {
  override name = "ComparisonError";
}

/** Whether everything is the same, or was made so: rows, and what they are made of. */
export function isEqual({ tables }: Comparison): boolean {
  return tables.every(
    ({ missing, partColumns, differing, hasMore }) =>
      missing.length === 0 &&
      partColumns.length === 0 &&
      !hasMore &&
      differing.every(({ isRepaired }) => isRepaired),
  );
}

/** Tables and columns that not all nodes have, a line each. */
export function notCompared({ nodes, tables }: Comparison): string[] {
  const idsOf = (places: readonly number[]) => places.map((at) => nodes[at]!.id).join(", ");
  return tables.flatMap(({ table, missing, partColumns }) => [
    ...missing.map(({ node, reason }) => `${table} is not synced on ${idsOf([node])}: ${reason}`),
    ...partColumns.map((part) => `${table}.${part.column} is only on ${idsOf(part.nodes)}`),
  ]);
}

/** Throws ComparisonError. */
export async function compareNodes(options: CompareOptions): Promise<Comparison> {
  try {
    return await new Comparer(options).run();
  } catch (error) {
    // A hash that is no number, a batch that is none: whoever answered so is not what it seems.
    if (!(error instanceof BatchError) && !(error instanceof SyntaxError)) throw error;
    throw new ComparisonError(`an answer is not that of a node of ours: ${error.message}`);
  }
}

/** Readings of whole tables answer within 20 s, or say that they go on. */
const TIMEOUT_MS = 60_000;
const POLL_MS = 200;
/** A node says at most this late how far its peers are. */
const STATUS_LAG_MS = 300;
/** Ranges in one question, as their keys fit into an address that every server takes. */
const ADDRESS_LENGTH_MAX = 6_000;
const RANGES_MAX = 64;
/** So a million rows take three steps. */
const BUCKETS = 256;
/** Beyond it the nodes do not differ by some rows, they are different: that is for a fill. */
const DIFFERING_MAX = 20_000;
/** A row that changes faster than it can be compared is looked at so often. */
const LOOKS_MAX = 5;
/** Keys asked for at once; some 400 KB of an answer. */
const KEYS_AT_ONCE = 5_000;
const ROWS_AT_ONCE = 500;
/** Rows of which the columns that differ are shown. */
const EXPLAINED_MAX = 20;
/** A snapshot may be gone when it is asked for: the node was restarted, or compares with many. */
const ATTEMPTS_MAX = 3;
/** What can be said where a node does not mention the table. */
const NOT_THERE = "there is no such table, or it was not asked for (--tables)";
/** Under which repaired rows arrive: the file of no node. */
export const REPAIR_DB = "0000000000000000";

interface Side extends ComparedNode {
  /** Its place among the nodes. */
  readonly at: number;
  readonly run: string | undefined;
  readonly notSynced: Health["notSynced"];
}

interface Summary {
  readonly table: string;
  readonly columns: readonly string[];
  readonly rows: number;
  readonly hash: string;
  readonly tombstones: number;
  readonly snapshot: string;
}

/** The sides that have the table, with what each found in it. */
interface TableSides {
  readonly table: string;
  readonly sides: readonly Side[];
  readonly summaries: readonly Summary[];
  /** Set where not all have the same columns. */
  readonly columns: readonly string[] | undefined;
}

/** What a node answered to its health being asked. */
interface Health {
  readonly nodeId: string;
  /** Of the process; an older node does not say it. */
  readonly run: string | undefined;
  /** By the key of a table's name: why it is not synced. */
  readonly notSynced: ReadonlyMap<string, string>;
  readonly lastChangeId: number;
  /** Above `lastChangeId` where another program's changes have not been looked at; an older node does not say it. */
  readonly newestChangeId: number;
  readonly peers: readonly PeerProgress[];
}

interface PeerProgress {
  readonly url: string;
  readonly nodeId: string | undefined;
  readonly lastAcked: number;
  readonly pending: number;
  readonly isFilling: boolean;
}

/** A row as it travels: as several changes where its columns have versions of their own. */
interface TravellingRow {
  readonly changes: readonly string[];
  readonly content: Content;
}

/** By id, what each side has that has the table. */
type States = Map<string, (KeyState | undefined)[]>;

class SnapshotGone extends Error {}

class Comparer {
  readonly #options: CompareOptions;
  #sides: readonly Side[] = [];
  /** What kept differences from being certain. */
  readonly #unsettled: string[] = [];

  constructor(options: CompareOptions) {
    this.#options = options;
  }

  async run(): Promise<Comparison> {
    this.#sides = await Promise.all(
      this.#options.nodes.map(async (url, at) => {
        const { nodeId, run, notSynced } = await this.#health(url);
        return { url, at, id: nodeId, run, notSynced };
      }),
    );
    refuseSame(this.#sides);
    await this.#waitUntilArrived();
    const summaries = await Promise.all(this.#sides.map((side) => this.#readAll(side)));
    const names = new Map(summaries.flat().map(({ table }) => [keyOf(table), table]));
    const tables: ComparedTable[] = [];
    for (const [key, table] of [...names].sort()) {
      const found = summaries.map((list) => list.find((summary) => keyOf(summary.table) === key));
      tables.push(await this.#compareTable(table, found));
    }
    return {
      nodes: this.#sides.map(({ url, id }) => ({ url, id })),
      tables,
      inFlight: [...new Set(this.#unsettled)],
    };
  }

  // ── One table ───────────────────────────────────────────────────────────────────────────────

  async #compareTable(
    table: string,
    summaries: readonly (Summary | undefined)[],
  ): Promise<ComparedTable> {
    const sides = this.#sides.filter(({ at }) => summaries[at] !== undefined);
    const present = summaries.filter((summary) => summary !== undefined);
    const shared = sharedColumns(present);
    const partColumns = [...new Set(present.flatMap(({ columns }) => columns))]
      .filter((column) => !shared.includes(column))
      .map((column) => ({
        column,
        nodes: sides
          .filter(({ at }) => summaries[at]!.columns.includes(column))
          .map(({ at }) => at),
      }));
    const columns = partColumns.length > 0 ? shared : undefined;
    let found: TableSides = { table, sides, summaries: present, columns };
    const rowsRead = this.#sides.map(() => 0);
    let looked = { ids: [] as string[], hasMore: false };
    for (let attempt = 1; sides.length > 1; attempt++) {
      try {
        if (columns !== undefined || attempt > 1) found = await this.#readAgain(found);
        looked = await this.#findKeys(found, rowsRead);
        break;
      } catch (error) {
        if (!(error instanceof SnapshotGone)) throw error;
        if (attempt === ATTEMPTS_MAX) throw new ComparisonError(error.message);
      }
    }
    const differing = await this.#settleKeys(found, looked.ids);
    return {
      table,
      rows: this.#sides.map(({ at }) => summaries[at]?.rows),
      missing: this.#sides
        .filter(({ at }) => summaries[at] === undefined)
        .map(({ at, notSynced }) => ({
          node: at,
          reason: notSynced.get(keyOf(table)) ?? NOT_THERE,
        })),
      tombstones: this.#sides.map(({ at }) => summaries[at]?.tombstones),
      partColumns,
      differing,
      hasMore: looked.hasMore,
      rowsRead,
    };
  }

  /** D2: down the ranges that differ, then the keys in the last of them. */
  async #findKeys(
    found: TableSides,
    rowsRead: number[],
  ): Promise<{ ids: string[]; hasMore: boolean }> {
    const ids: string[] = [];
    let open: readonly KeyRange[] = hasOneHash(found.summaries) ? [] : [{ from: "", to: "" }];
    const finest: KeyRange[] = [];
    while (open.length > 0) {
      const next: KeyRange[] = [];
      for (const ranges of inQuestions(open)) {
        const answers = await Promise.all(
          found.sides.map((side, at) => this.#buckets(side, found.summaries[at]!, ranges)),
        );
        for (const [at, range] of ranges.entries()) {
          const cuts = answers.map((answer) => answer[at]!);
          const isFinest = cuts.every((cut) => cut.isFinest);
          const differing = differingRanges(
            range,
            cuts.map(({ buckets }) => buckets),
          );
          for (const part of differing) {
            const isWhole = part.from === range.from && part.to === range.to;
            (isFinest || (isWhole && differing.length === 1) ? finest : next).push(part);
          }
        }
      }
      open = next;
    }
    let rest: readonly KeyRange[] = finest;
    while (rest.length > 0 && ids.length <= DIFFERING_MAX) {
      const [ranges = []] = inQuestions(rest);
      const answers = await Promise.all(
        found.sides.map((side, at) => this.#keysIn(side, found.summaries[at]!, ranges)),
      );
      for (const [place, { at }] of found.sides.entries()) {
        rowsRead[at]! += answers[place]!.reduce((sum, { keys }) => sum + keys.length, 0);
      }
      const { differing, left } = keysOfAnswers(ranges, answers);
      ids.push(...differing);
      rest = [...left, ...rest.slice(ranges.length)];
    }
    return { ids: ids.slice(0, DIFFERING_MAX), hasMore: ids.length > DIFFERING_MAX };
  }

  /** D1: what still differs when everything has arrived; repaired where that is asked. */
  async #settleKeys(found: TableSides, seen: readonly string[]): Promise<DifferingKey[]> {
    let states: States = new Map();
    let moving = seen;
    for (let look = 1; moving.length > 0 && look <= LOOKS_MAX; look++) {
      const waiting = await this.#waitUntilArrived();
      const before = states;
      states = await this.#statesOf(found, look === 1 ? seen : [...before.keys()]);
      moving = [...states.keys()].filter((id) => !isSame(before.get(id), states.get(id)));
      if (waiting.length === 0) continue;
      if (states.size > 0) this.#unsettled.push(...waiting);
      moving = [];
    }
    if (moving.length > 0) {
      this.#unsettled.push(`${moving.length} rows of ${found.table} change all the time`);
      for (const id of moving) states.delete(id);
    }
    if (states.size === 0) return [];
    const explained = await this.#explain(found, states);
    const left = this.#options.repairAs === undefined ? states : await this.#repair(found, states);
    return [...states].map(([id, each]) => ({
      id,
      states: this.#sides.map(({ at }) => each[found.sides.findIndex((side) => side.at === at)]),
      columns: explained.get(id) ?? [],
      isRepaired: this.#options.repairAs !== undefined && !left.has(id),
    }));
  }

  /** Of these keys, those that differ now, with what each side has. */
  async #statesOf(found: TableSides, ids: readonly string[]): Promise<States> {
    const differing: States = new Map();
    for (let at = 0; at < ids.length; at += KEYS_AT_ONCE) {
      const some = ids.slice(at, at + KEYS_AT_ONCE);
      const answers = await Promise.all(found.sides.map((side) => this.#keysOf(side, found, some)));
      for (const [place, id] of some.entries()) {
        const states = answers.map((keys) => known(keys[place]));
        if (isDifferent(states)) differing.set(id, states);
      }
    }
    return differing;
  }

  /** Rows of one version: which columns differ, for the first few. */
  async #explain(
    found: TableSides,
    states: Readonly<States>,
  ): Promise<Map<string, DifferingKey["columns"]>> {
    const tied = [...states]
      .filter(([, each]) => isTieOfRows(each))
      .map(([id]) => id)
      .slice(0, EXPLAINED_MAX);
    const explained = new Map<string, DifferingKey["columns"]>();
    if (tied.length === 0) return explained;
    const rows = await Promise.all(found.sides.map((side) => this.#rows(side, found.table, tied)));
    for (const id of tied) {
      const contents = rows.map((some) => some.get(id)?.content ?? new Map());
      const names = found.columns ?? [...(contents[0]?.keys() ?? [])];
      const columns = names
        .map((column) => ({ column, values: contents.map((content) => shown(content, column)) }))
        .filter(({ values }) => new Set(values).size > 1);
      explained.set(id, columns);
    }
    return explained;
  }

  // ── Repairing ───────────────────────────────────────────────────────────────────────────────

  /** Sends winners to where they are missing; returns what differs after that. */
  async #repair(found: TableSides, states: Readonly<States>): Promise<States> {
    const ids = [...states.keys()];
    for (let at = 0; at < ids.length; at += ROWS_AT_ONCE) {
      const some = ids.slice(at, at + ROWS_AT_ONCE);
      const ties = some.filter((id) => isTieOfRows(states.get(id)!));
      // Rows are read where they may win.
      const rows = await Promise.all(
        found.sides.map((side, place) => {
          const wanted = some.filter((id) => mayWin(states.get(id)!, place));
          return this.#rows(side, found.table, wanted);
        }),
      );
      const parcels = found.sides.map((): string[] => []);
      for (const id of some) {
        const each = states.get(id)!;
        const tied = ties.includes(id) ? rows.map((part) => part.get(id)) : undefined;
        for (const winner of winnersOf(each, tied)) {
          const row = rows[winner]?.get(id);
          if (row === undefined) continue;
          for (const [place, parcel] of parcels.entries()) {
            if (isDifferent([each[winner], each[place]])) parcel.push(...row.changes);
          }
        }
      }
      await Promise.all(found.sides.map((side, place) => this.#send(side, parcels[place]!)));
    }
    return this.#statesOf(found, ids);
  }

  async #send(side: Side, changes: readonly string[]): Promise<void> {
    const headers = {
      [NODE_ID_HEADER]: this.#options.repairAs!,
      [IDENTITY_HEADER]: formatIdentity({ db: REPAIR_DB }),
    };
    for (const some of inParcels(changes)) {
      const json = `{"batch_id":1,"changes":[${some.join(",")}]}`;
      const answer = await this.#call({
        node: side.url,
        method: "POST",
        path: "/sync",
        json,
        headers,
      });
      expectStatus(side.url, answer, 200);
    }
  }

  /** Rows and deletes of these ids as they travel, by id. */
  async #rows(
    side: Side,
    table: string,
    ids: readonly string[],
  ): Promise<Map<string, TravellingRow>> {
    const rows = new Map<string, TravellingRow>();
    for (let at = 0; at < ids.length; ) {
      const body = { table, ids: ids.slice(at) };
      const answer = await this.#call({ node: side.url, method: "POST", path: "/sync/rows", body });
      const { json, text } = expectStatus(side.url, answer, 200);
      for (const change of parseBatch(new TextEncoder().encode(text)).changes) {
        const id = idOf(change.value);
        const { changes = [], content = new Map() } = rows.get(id) ?? {};
        // A delete below the row says nothing of what is in it.
        const cells = changes.length > 0 && isDelete(change.value) ? [] : wireContent(change);
        rows.set(id, {
          changes: [...changes, change.source()],
          content: new Map([...content, ...cells]),
        });
      }
      at += Math.max(1, numberIn(json, "next"));
    }
    return rows;
  }

  // ── Asking ──────────────────────────────────────────────────────────────────────────────────

  /** The first pass of one node: every table, one hash each. */
  async #readAll(side: Side): Promise<Summary[]> {
    return this.#read(side, "/sync/digest");
  }

  async #readAgain(found: TableSides): Promise<TableSides> {
    const columns = (found.columns ?? []).map((column) => `&column=${encodeURIComponent(column)}`);
    const path = `/sync/digest?table=${encodeURIComponent(found.table)}${columns.join("")}`;
    const summaries = await Promise.all(
      found.sides.map(async (side) => (await this.#read(side, path))[0]!),
    );
    return { ...found, summaries };
  }

  async #read(side: Side, path: string): Promise<Summary[]> {
    const slow = this.#options.isSlow ? `${path.includes("?") ? "&" : "?"}pace=low` : "";
    let ask = path + slow;
    for (;;) {
      const answer = await this.#call({ node: side.url, method: "GET", path: ask });
      if (answer.kind === "answered" && answer.status === 202) {
        ask = `/sync/digest?snapshot=${textIn(answer.json, "snapshot")}`;
        continue;
      }
      const { json } = expectStatus(side.url, answer, 200);
      const snapshot = textIn(json, "snapshot");
      return listIn(json, "tables").map((table) => ({
        table: textIn(table, "table"),
        columns: listIn(table, "columns").map(String),
        rows: numberIn(table, "rows"),
        hash: textIn(table, "hash"),
        tombstones: numberIn(table, "tombstones"),
        snapshot,
      }));
    }
  }

  async #buckets(
    side: Side,
    { table, snapshot }: Summary,
    ranges: readonly KeyRange[],
  ): Promise<{ buckets: Bucket[]; isFinest: boolean }[]> {
    const json = await this.#ranges(side, table, snapshot, ranges, `buckets=${BUCKETS}`);
    return listIn(json, "ranges").map((range) => ({
      isFinest: fieldOf(range, "finest") === true,
      buckets: listIn(range, "buckets").map((bucket) => ({
        to: textIn(bucket, "to"),
        rows: numberIn(bucket, "rows"),
        hash: textIn(bucket, "hash"),
      })),
    }));
  }

  async #keysIn(
    side: Side,
    { table, snapshot }: Summary,
    ranges: readonly KeyRange[],
  ): Promise<AnsweredKeys[]> {
    const json = await this.#ranges(side, table, snapshot, ranges, "keys=true");
    return listIn(json, "ranges").map((range) => {
      const through = fieldOf(range, "through");
      return {
        keys: listIn(range, "keys").map(readKey),
        through: typeof through === "string" ? through : undefined,
      };
    });
  }

  async #ranges(
    side: Side,
    table: string,
    snapshot: string,
    ranges: readonly KeyRange[],
    what: string,
  ): Promise<unknown> {
    const path = `/sync/digest?table=${encodeURIComponent(table)}&snapshot=${snapshot}&${what}`;
    const bounds = ranges.map(rangeText).join("");
    const answer = await this.#call({ node: side.url, method: "GET", path: path + bounds });
    if (answer.kind === "answered" && answer.status === 409) {
      throw new SnapshotGone(`${side.url}: ${complaint(answer)}`);
    }
    return expectStatus(side.url, answer, 200).json;
  }

  async #keysOf(
    side: Side,
    { table, columns }: TableSides,
    ids: readonly string[],
  ): Promise<KeyState[]> {
    const body = { table, ids, ...(columns === undefined ? {} : { columns }) };
    const answer = await this.#call({ node: side.url, method: "POST", path: "/sync/keys", body });
    return listIn(expectStatus(side.url, answer, 200).json, "keys").map(readKey);
  }

  async #health(url: string): Promise<Health> {
    const answer = await this.#call({ node: url, method: "GET", path: "/health" });
    const { json, identity } = expectStatus(url, answer, 200);
    if (typeof fieldOf(json, "last_change_id") !== "number") {
      throw new ComparisonError(`${url} is no node of ours, or an older one: it has no digests`);
    }
    return {
      nodeId: textIn(json, "node_id"),
      run: identity?.run,
      notSynced: notSyncedIn(json),
      lastChangeId: numberIn(json, "last_change_id"),
      newestChangeId: Number(fieldOf(json, "newest_change_id") ?? numberIn(json, "last_change_id")),
      peers: listIn(json, "peers").map((peer) => {
        const nodeId = fieldOf(peer, "node_id");
        return {
          url: textIn(peer, "url"),
          nodeId: typeof nodeId === "string" ? nodeId : undefined,
          lastAcked: numberIn(peer, "last_acked"),
          pending: numberIn(peer, "pending"),
          isFilling: fieldOf(peer, "filling") !== null,
        };
      }),
    };
  }

  #call(call: NodeCall): Promise<NodeAnswer> {
    return (this.#options.call ?? callNode)({ ...call, timeoutMs: TIMEOUT_MS });
  }

  // ── What is in flight ───────────────────────────────────────────────────────────────────────

  /** Until the nodes have what the others among them have now; returns what has not arrived in time. */
  async #waitUntilArrived(): Promise<string[]> {
    const { clock, timers, waitMs } = this.#options;
    const sinceMs = clock.monotonicMs();
    const first = await this.#healths();
    /** Since when each has looked at what was in its log at first. */
    const lookedMs = new Map<number, number>();
    for (let health = first; ; health = await this.#healths()) {
      const nowMs = clock.monotonicMs();
      for (const [at, now] of health.entries())
        if (hasLooked(first[at]!, now) && !lookedMs.has(at)) lookedMs.set(at, nowMs);
      const isTold = (at: number) => nowMs - (lookedMs.get(at) ?? nowMs) >= STATUS_LAG_MS;
      const waiting = this.#notArrived(first, health, isTold);
      if (waiting.length === 0 || nowMs - sinceMs >= waitMs) return waiting;
      await new Promise<void>((resolve) => void timers.after(POLL_MS, resolve));
    }
  }

  #healths(): Promise<Health[]> {
    return Promise.all(this.#sides.map(({ url }) => this.#health(url)));
  }

  /** `isTold`: the status of its peers is newer than what it had at first: nothing pending is nothing pending. */
  #notArrived(
    first: readonly Health[],
    now: readonly Health[],
    isTold: (at: number) => boolean,
  ): string[] {
    const ids = new Set(this.#sides.map(({ id }) => id));
    const urls = new Set(this.#sides.map(({ url }) => url));
    const waiting: string[] = [];
    for (const [at, health] of now.entries()) {
      const { peers, nodeId } = health;
      const { newestChangeId } = first[at]!;
      if (!hasLooked(first[at]!, health)) {
        waiting.push(`${nodeId} has not looked yet at what another program wrote`);
      }
      for (const peer of peers) {
        if (!urls.has(peer.url) && !(peer.nodeId !== undefined && ids.has(peer.nodeId))) continue;
        if (peer.isFilling) waiting.push(`${nodeId} is filling ${peer.url}`);
        else if (peer.lastAcked < newestChangeId && !(isTold(at) && peer.pending === 0)) {
          waiting.push(`${nodeId} has ${peer.pending} changes for ${peer.url}`);
        }
      }
    }
    return waiting;
  }
}

// ── Deciding ──────────────────────────────────────────────────────────────────────────────────

interface AnsweredKeys {
  readonly keys: readonly KeyState[];
  readonly through: string | undefined;
}

/** Whether what was in its log at first is settled by now, or gone from it. */
function hasLooked(first: Health, now: Health): boolean {
  return now.lastChangeId >= Math.min(first.newestChangeId, now.newestChangeId);
}

/** Compares as far as all sides have answered; what is left is asked again. */
function keysOfAnswers(
  ranges: readonly KeyRange[],
  answers: readonly (readonly AnsweredKeys[])[],
): { differing: string[]; left: KeyRange[] } {
  const differing: string[] = [];
  const answered = Math.min(...answers.map((answer) => answer.length));
  for (const [at, range] of ranges.slice(0, answered).entries()) {
    const sides = answers.map((answer) => answer[at]!);
    const [end] = sides
      .flatMap(({ through }) => through ?? [])
      .sort((left, right) => compareUtf8(left, right));
    const upToEnd = sides.map(({ keys }) =>
      keys.filter(({ id }) => end === undefined || compareUtf8(id, end) <= 0),
    );
    differing.push(...differingKeys(upToEnd).keys());
    if (end !== undefined) {
      const left = [{ from: end, to: range.to }, ...ranges.slice(at + 1)];
      return { differing, left };
    }
  }
  return { differing, left: ranges.slice(answered) };
}

/** Positive where `left` wins: the higher version, then the delete; rows without a version lose. */
function compareStates(left: KeyState | undefined, right: KeyState | undefined): number {
  if (left === undefined || right === undefined) {
    return Number(left !== undefined) - Number(right !== undefined);
  }
  const versions = (left.version ?? -1) - (right.version ?? -1);
  return versions === 0 ? Number(left.deleted) - Number(right.deleted) : versions;
}

function mayWin(states: readonly (KeyState | undefined)[], place: number): boolean {
  const state = states[place];
  return state !== undefined && states.every((other) => compareStates(state, other) >= 0);
}

/** Whether rows of one version, and nothing newer, say different things. */
function isTieOfRows(states: readonly (KeyState | undefined)[]): boolean {
  const best = states.filter((_, place) => mayWin(states, place));
  return best.some((state) => state?.deleted === false) && isDifferent(best);
}

/**
 * The places of what wins; several where the rows have different columns, or columns with versions of
 * their own, and each node decides.
 */
function winnersOf(
  states: readonly (KeyState | undefined)[],
  tied: readonly (TravellingRow | undefined)[] | undefined,
): number[] {
  const candidates = states.flatMap((_, place) => (mayWin(states, place) ? [place] : []));
  if (tied === undefined) return candidates.slice(0, 1);
  const [first, ...others] = candidates;
  let winner = first;
  for (const place of others) {
    const [stored, incoming] = [tied[winner!], tied[place]];
    if (stored === undefined || incoming === undefined) return candidates;
    if (stored.changes.length > 1 || incoming.changes.length > 1) return candidates;
    if (stored.content.size !== incoming.content.size) return candidates;
    const order = compareContent(incoming.content, stored.content);
    // The same but for digits: each node keeps the richer value of every column.
    if (order === 0) return candidates;
    if (order > 0) winner = place;
  }
  return winner === undefined ? [] : [winner];
}

function sharedColumns(summaries: readonly Summary[]): string[] {
  const [first, ...others] = summaries;
  return (first?.columns ?? []).filter((column) =>
    others.every(({ columns }) => columns.includes(column)),
  );
}

function hasOneHash(summaries: readonly Summary[]): boolean {
  return summaries.every(
    ({ rows, hash }) => rows === summaries[0]!.rows && hash === summaries[0]!.hash,
  );
}

function isSame(
  left: readonly (KeyState | undefined)[] | undefined,
  right: readonly (KeyState | undefined)[] | undefined,
): boolean {
  return JSON.stringify(left) === JSON.stringify(right);
}

/** Of a key of which nothing is known, nothing. */
function known(state: KeyState | undefined): KeyState | undefined {
  return state === undefined || (state.hash === null && !state.deleted) ? undefined : state;
}

function shown(content: Content, column: string): string {
  const value = content.get(column);
  return value === undefined ? "nothing" : formatValue(value).replace('"\\u005cx', '"\\x');
}

/** A node under two addresses is equal to itself, which says nothing of others. */
function refuseSame(sides: readonly Side[]): void {
  const byRun = new Map<string, string>();
  for (const { run, url } of sides) {
    const other = run === undefined ? undefined : byRun.get(run);
    if (other !== undefined) throw new ComparisonError(`${other} and ${url} are one node`);
    if (run !== undefined) byRun.set(run, url);
  }
}

/** The ranges in groups that fit into one question each. */
function inQuestions(ranges: readonly KeyRange[]): KeyRange[][] {
  const groups: KeyRange[][] = [];
  let length = 0;
  for (const range of ranges) {
    const size = rangeText(range).length;
    const group = groups.at(-1);
    if (group === undefined || group.length >= RANGES_MAX || length + size > ADDRESS_LENGTH_MAX) {
      groups.push([range]);
      length = size;
    } else {
      group.push(range);
      length += size;
    }
  }
  return groups;
}

function rangeText({ from, to }: KeyRange): string {
  return `&from=${encodeURIComponent(from)}&to=${encodeURIComponent(to)}`;
}

/** Half of the smallest body limit met in the field. */
const PARCEL_LENGTH_MAX = 8 * 1024 * 1024;

function inParcels(changes: readonly string[]): string[][] {
  const parcels: string[][] = [];
  let length = 0;
  for (const change of changes) {
    if (parcels.length === 0 || length + change.length > PARCEL_LENGTH_MAX) {
      parcels.push([]);
      length = 0;
    }
    parcels.at(-1)!.push(change);
    length += change.length;
  }
  return parcels;
}

// ── Reading answers ───────────────────────────────────────────────────────────────────────────

function expectStatus(
  url: string,
  answer: NodeAnswer,
  status: number,
): Extract<NodeAnswer, { kind: "answered" }> {
  if (answer.kind === "answered" && answer.status === status) return answer;
  throw new ComparisonError(`${url}: ${complaint(answer)}`);
}

function fieldOf(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null && Object.hasOwn(value, name)
    ? (value as Readonly<Record<string, unknown>>)[name]
    : undefined;
}

function listIn(value: unknown, name: string): readonly unknown[] {
  const list = fieldOf(value, name);
  if (Array.isArray(list)) return list;
  throw new ComparisonError(`an answer has no list ${name}: is that a node of ours?`);
}

function textIn(value: unknown, name: string): string {
  const text = fieldOf(value, name);
  if (typeof text === "string") return text;
  throw new ComparisonError(`an answer has no text ${name}: is that a node of ours?`);
}

function numberIn(value: unknown, name: string): number {
  const number = fieldOf(value, name);
  if (typeof number === "number") return number;
  throw new ComparisonError(`an answer has no number ${name}: is that a node of ours?`);
}

/** An older node may not say it. */
function notSyncedIn(health: unknown): ReadonlyMap<string, string> {
  const list = fieldOf(fieldOf(health, "tables"), "not_synced");
  const tables: readonly unknown[] = Array.isArray(list) ? list : [];
  return new Map(
    tables.map((table) => [keyOf(textIn(table, "name")), textIn(table, "reason")] as const),
  );
}

function readKey(value: unknown): KeyState {
  const version = fieldOf(value, "version");
  const hash = fieldOf(value, "hash");
  return {
    id: textIn(value, "id"),
    version: typeof version === "number" ? version : null,
    hash: typeof hash === "string" ? hash : null,
    deleted: fieldOf(value, "deleted") === true,
  };
}

function isDelete(change: JsonValue): boolean {
  return isObject(change) && member(change, "op") === "DELETE";
}

function idOf(change: JsonValue): string {
  const oldId = isObject(change) ? member(change, "old_id") : undefined;
  if (typeof oldId === "string") return oldId;
  const row = isObject(change) ? member(change, "row") : undefined;
  const id = isObject(row)
    ? Object.entries(row).find(([name]) => keyOf(name) === "id")?.[1]
    : undefined;
  return typeof id === "string" ? id : "";
}

function keyOf(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}
