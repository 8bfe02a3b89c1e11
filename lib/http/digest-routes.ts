/**
 * What other nodes of ours ask to find out whether they hold the same, and to become the same: digests
 * of tables and key ranges, the state of single keys, and rows as a batch. Nothing here changes anything.
 *
 *     GET  /sync/digest                            every table: rows and one hash, as of one moment
 *     GET  /sync/digest?table=T&column=a&column=b  one table, by these columns only
 *     GET  /sync/digest?table=T&snapshot=S&from=A&to=B&buckets=64   that range, cut into buckets
 *     GET  /sync/digest?table=T&snapshot=S&from=A&to=B&keys=true    the keys in it, as they are now
 *     POST /sync/keys {table, ids, columns?}       what this node has of these keys
 *     POST /sync/rows {table, ids}                 a batch of them, as POST /sync takes it
 *
 * A table of millions takes seconds: then the answer is 202 with the name of the snapshot that is being
 * made, and the same question with `snapshot=` waits on. Empty `from` and `to` are the ends of the
 * table; both may stand many times, as pairs.
 */
import { Hono } from "hono";
import { RequestError } from "../base/errors.ts";
import type { KeyRange, KeyState } from "../protocol/digest.ts";
import { type DigestTable, digestTableOf, narrowed } from "../store/digest.ts";
import type { RangeBuckets, RangeKeys, TableSummary } from "../store/digester.ts";
import type { SyncedTable } from "../store/schema.ts";
import type { BodyReader } from "./body.ts";
import { JSON_TYPE } from "./errors.ts";
import { searchParams } from "./path.ts";
import type { TableIndex } from "./table-index.ts";

/** A reading that is done, or the name to ask again by. */
export type DigestReply =
  | { readonly kind: "done"; readonly snapshot: string; readonly tables: readonly TableSummary[] }
  /** Not yet: ask again. */
  | { readonly kind: "reading"; readonly snapshot: string };

/** A snapshot that is unknown, or not kept any more, is a RequestError, 409. */
export interface DigestSource {
  /** Reads these tables whole. */
  read(tables: readonly DigestTable[], isSlow: boolean): Promise<DigestReply>;
  /** The result of a reading that was begun before. */
  result(snapshot: string): Promise<DigestReply>;
  buckets(
    snapshot: string,
    tableKey: string,
    ranges: readonly KeyRange[],
    most: number,
  ): Promise<readonly RangeBuckets[]>;
  keysIn(
    snapshot: string,
    tableKey: string,
    ranges: readonly KeyRange[],
  ): Promise<readonly RangeKeys[]>;
  keysOf(table: DigestTable, ids: readonly string[]): Promise<readonly KeyState[]>;
  /** The body of a batch. */
  rows(table: DigestTable, ids: readonly string[], bytesMax: number): Promise<string>;
}

/** `tables` finds one by its name, `allTables` lists those synced now. */
export interface DigestRoutesOptions {
  readonly digests: DigestSource;
  readonly tables: TableIndex;
  readonly allTables: () => readonly SyncedTable[];
  readonly nodeId: string;
  readonly bodies: BodyReader;
}

/** Ranges in one question; what is longer does not fit into an address anyway. */
const RANGES_MAX = 256;
const BUCKETS_MAX = 1_024;
const IDS_MAX = 10_000;
const BODY_BYTES_MAX = 8 * 1024 * 1024;
/** What a batch of ours holds at most. */
const ROWS_BYTES_MAX = 8 * 1024 * 1024;

/** Open to everyone who can reach the node, as /api is. */
export function digestRoutes(options: DigestRoutesOptions): Hono {
  const { digests, tables, allTables, nodeId, bodies } = options;
  const tableOf = (name: string | undefined): DigestTable => {
    const table = name === undefined ? undefined : tables.find(name);
    if (table === undefined) throw new RequestError(404, "no such table is synced here");
    return digestTableOf(table);
  };

  async function wholeTables(query: URLSearchParams): Promise<Response> {
    const name = query.get("table");
    const columns = query.getAll("column");
    const isSlow = query.get("pace") === "low";
    const asked =
      name === null
        ? allTables().map(digestTableOf)
        : [narrowed(tableOf(name), columns.length === 0 ? undefined : columns)];
    return summary(await digests.read(asked, isSlow));
  }

  function summary(reply: DigestReply): Response {
    if (reply.kind === "reading") return answer(202, { reading: true, snapshot: reply.snapshot });
    const found = reply.tables.map(({ tombstoneHash, ...table }) => ({
      ...table,
      tombstone_hash: tombstoneHash,
    }));
    return answer(200, { node_id: nodeId, snapshot: reply.snapshot, tables: found });
  }

  async function ranges(query: URLSearchParams, snapshot: string): Promise<Response> {
    const { name, key } = tableOf(query.get("table") ?? undefined);
    const asked = readRanges(query);
    if (query.get("keys") === "true") {
      const found = await digests.keysIn(snapshot, key, asked);
      const rows = found.reduce((sum, { keys }) => sum + keys.length, 0);
      const shown = found.map(({ through, ...range }) => ({ ...range, through: through ?? null }));
      return answer(200, { table: name, snapshot, rows_read: rows, ranges: shown });
    }
    const most = readNumber(query.get("buckets") ?? "1", "buckets", BUCKETS_MAX);
    const found = await digests.buckets(snapshot, key, asked, most);
    const shown = found.map(({ isFinest, ...range }) => ({ ...range, finest: isFinest }));
    return answer(200, { table: name, snapshot, rows_read: 0, ranges: shown });
  }

  return new Hono()
    .get("/sync/digest", async (c) => {
      const query = searchParams(c.req.raw);
      const snapshot = query.get("snapshot");
      if (query.has("from") || query.has("to")) {
        if (snapshot === null)
          throw new RequestError(400, "from and to need the snapshot of a digest of the table");
        return ranges(query, snapshot);
      }
      return snapshot === null ? wholeTables(query) : summary(await digests.result(snapshot));
    })
    .post("/sync/keys", async (c) => {
      const asked = await readIds(bodies, c.req.raw);
      const table = narrowed(tableOf(asked.table), asked.columns);
      return answer(200, { keys: await digests.keysOf(table, asked.ids) });
    })
    .post("/sync/rows", async (c) => {
      const { table, ids } = await readIds(bodies, c.req.raw);
      const batch = await digests.rows(tableOf(table), ids, ROWS_BYTES_MAX);
      return new Response(batch, { headers: JSON_TYPE });
    });
}

function readRanges(query: URLSearchParams): KeyRange[] {
  const from = query.getAll("from");
  const to = query.getAll("to");
  if (from.length !== to.length || from.length > RANGES_MAX) {
    throw new RequestError(400, `expected from and to in pairs, at most ${RANGES_MAX}`);
  }
  return from.map((text, at) => ({ from: text, to: to[at]! }));
}

function readNumber(text: string, name: string, max: number): number {
  const number = /^\d{1,6}$/.test(text) ? Number(text) : 0;
  if (number >= 1 && number <= max) return number;
  throw new RequestError(400, `${name}: expected a whole number from 1 to ${max}`);
}

interface AskedIds {
  readonly table: string;
  readonly ids: readonly string[];
  readonly columns: readonly string[] | undefined;
}

async function readIds(bodies: BodyReader, request: Request): Promise<AskedIds> {
  const body = await bodies.json(request, BODY_BYTES_MAX);
  const { table, ids, columns } = (
    typeof body === "object" && body !== null ? body : {}
  ) as Partial<Record<keyof AskedIds, unknown>>;
  if (
    typeof table !== "string" ||
    !isTexts(ids) ||
    ids.length > IDS_MAX ||
    (columns !== undefined && !isTexts(columns))
  ) {
    throw new RequestError(400, `expected {"table": "items", "ids": ["…"]}, at most ${IDS_MAX}`);
  }
  return { table, ids, columns };
}

function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((part) => typeof part === "string");
}

function answer(status: number, body: unknown): Response {
  return new Response(JSON.stringify(body), { status, headers: JSON_TYPE });
}
