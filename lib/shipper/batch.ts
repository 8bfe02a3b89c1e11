/**
 * Request bodies, made from the change log by SQLite.
 *
 * The log holds every row as the JSON text that its trigger made. Parsing it here, only to write it
 * again, would halve the speed and lose the digits of large integers; so the text is glued into a
 * body by one statement and never becomes values.
 *
 * Invariants (test/shipper/batch.test.ts):
 *   B1  A batch holds every change of its window up to `through`, in order, and none past
 *       `settledThrough`.
 *   B2  A body is at most `bytesMax` long, unless it holds a single change.
 *   B3  A body is valid UTF-8.
 *   B4  No read transaction is open between two calls: checkpoints and ALTER are never held up.
 */
import type { Database, Statement } from "bun:sqlite";
import { isUtf8 } from "node:buffer";
import { sqliteCode } from "../base/errors.ts";
import { BODY_BYTES_MAX } from "../protocol/limits.ts";
import type { BatchWindow, Sent } from "./peer-link.ts";
import { blobColumns, hasBlobMark, lossy, spellRow, spellText } from "./wire-row.ts";

/** One request body. `through` is its `batch_id`. */
export interface Batch extends Sent {
  readonly body: Uint8Array<ArrayBuffer>;
}

/** What a window of the log holds. */
export type BatchRead =
  | { readonly kind: "batch"; readonly batch: Batch }
  | { readonly kind: "nothing" }
  /** A single change that no peer takes; it is not made into a body at all. */
  | { readonly kind: "oversized"; readonly sent: Sent };

/** Where the shipper's batches come from. Synchronous: a call is one short read of the log. */
export interface BatchSource {
  /** `peer` is given while some entries are for one peer alone; then those of others are left out. */
  read(window: BatchWindow, settledThrough: number, peer?: string): BatchRead;
  /** The ids of the changes after `after` up to `through`, ascending. */
  changeIds(after: number, through: number, peer?: string): number[];
  /** How many changes there are after `after` up to `through`; counting stops at `countMax`. */
  count(after: number, through: number, countMax: number, peer?: string): number;
  /** Settled changes were rewritten: bodies made before are not what the log says now. */
  forget(): void;
}

/** Whether the file, not our code, is why a read failed: busy, its schema changing, or out of order. */
export function isStoreError(error: unknown): error is Error {
  return sqliteCode(error).startsWith("SQLITE_");
}

/** The connection only reads; it is opened and closed by whoever gives it. */
export interface LogBatchSourceOptions {
  readonly db: Database;
  readonly batchChangesMax: number;
  readonly batchBytesMax: number;
}

/** Bodies kept for peers at the same place, for the next attempt, and read ahead. */
const CACHED_BATCHES_MAX = 4;
/** Above it only two are: the one that is sent and the one that was read ahead. */
const CACHED_BYTES_MAX = 4 * 1024 * 1024;

/** `{"batch_id":9007199254740991,"changes":[]}` and a little. */
const ENVELOPE_BYTES = 48;
/** What a change has around its row where nothing is unusual; the exact sum follows where it matters. */
const CHANGE_BYTES_GUESS = 80;

/** A change as it is on the wire. Nothing in it may become NULL: group_concat would leave it out. */
const CHANGE = `
  '{"op":' || json_quote(op) || ',"table":' || json_quote(table_name)
  || ',"row":' || ifnull(row_data, 'null')
  || CASE WHEN op = 'DELETE'
       THEN ',"old_id":' || json_quote(CAST(row_id AS TEXT)) || '}'
       ELSE ',"old_id":null}'
     END`;

/** Its length and that of a comma, without reading the row: octet_length looks at the record's head. */
const CHANGE_BYTES = `
  34 + octet_length(json_quote(op)) + octet_length(json_quote(table_name))
  + ifnull(octet_length(row_data), 4)
  + CASE WHEN op = 'DELETE' THEN octet_length(json_quote(CAST(row_id AS TEXT))) ELSE 4 END`;

/** Entries for another peer alone are passed over; NULL: there are none, and nobody need look. */
const FOR_PEER = "(?4 IS NULL OR only_for IS NULL OR only_for = ?4)";

const EXTENT_SQL = `
  SELECT count(*) AS count, max(change_id) AS through, total(octet_length(row_data)) AS bytes
  FROM _changes
  WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER}`;

const NTH_SQL = `
  SELECT change_id AS id
  FROM _changes
  WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER}
  ORDER BY change_id
  LIMIT 1 OFFSET ?3`;

/** The last change up to which a body is short enough, and the first change with its length. */
const FITTING_SQL = `
  SELECT max(id) FILTER (WHERE running <= ?3) AS through, min(id) AS first,
    min(running) AS firstBytes
  FROM (
    SELECT change_id AS id,
      sum(${CHANGE_BYTES}) OVER (ORDER BY change_id ROWS UNBOUNDED PRECEDING) AS running
    FROM _changes
    WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER})`;

/** The range is walked by its key, so the changes come in its order. */
const BODY_SQL = `
  SELECT count(*) AS count, max(change_id) AS through,
    CAST('{"batch_id":' || max(change_id) || ',"changes":[' || group_concat(${CHANGE}, ',') || ']}'
      AS BLOB) AS body
  FROM _changes
  WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER}`;

const CHANGES_SQL = `
  SELECT ${CHANGE} AS change
  FROM _changes
  WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER}
  ORDER BY change_id`;

const PARTS_SQL = `
  SELECT change_id AS id, op, json_quote(op) AS opJson, json_quote(table_name) AS tableJson,
    CAST(row_id AS BLOB) AS rowId, CAST(row_data AS BLOB) AS row,
    CAST(${CHANGE} AS BLOB) AS change
  FROM _changes
  WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER}
  ORDER BY change_id`;

const IDS_SQL = `
  SELECT change_id AS id
  FROM _changes
  WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER}
  ORDER BY change_id`;

const COUNT_SQL = `
  SELECT count(*) AS count
  FROM (
    SELECT 1
    FROM _changes
    WHERE change_id > ?1 AND change_id <= ?2 AND ${FOR_PEER}
    LIMIT ?3)`;

type Range = [after: number, through: number, third: null, peer: Peer];
type RangeAnd = [after: number, through: number, third: number, peer: Peer];

/** Whose entries are wanted where some are for one peer alone; null: none are. */
type Peer = string | null;

interface Parts {
  readonly id: number;
  readonly op: string;
  readonly opJson: string;
  readonly tableJson: string;
  readonly rowId: Uint8Array | null;
  readonly row: Uint8Array | null;
  readonly change: Uint8Array;
}

interface CachedBatch {
  readonly batch: Batch;
  /** Undefined where a bound ended the batch; else it ended with the log as it was settled then. */
  readonly settledThrough: number | undefined;
}

/** Batches out of the `_changes` of an open file. The connection stays the caller's. */
export class LogBatchSource implements BatchSource {
  readonly #changesMax: number;
  readonly #bytesMax: number;
  readonly #extent: Statement<{ count: number; through: number | null; bytes: number }, Range>;
  readonly #nth: Statement<{ id: number }, RangeAnd>;
  readonly #fitting: Statement<
    { through: number | null; first: number | null; firstBytes: number | null },
    RangeAnd
  >;
  readonly #body: Statement<
    { count: number; through: number | null; body: Uint8Array<ArrayBuffer> },
    Range
  >;
  readonly #changes: Statement<{ change: string }, Range>;
  readonly #parts: Statement<Parts, Range>;
  readonly #ids: Statement<{ id: number }, Range>;
  readonly #count: Statement<{ count: number }, RangeAnd>;
  /** Of the call that is being answered; everything here is synchronous. */
  #peer: Peer = null;
  /** Least recently used first. */
  readonly #cache = new Map<string, CachedBatch>();

  constructor(options: LogBatchSourceOptions) {
    const { db } = options;
    this.#changesMax = options.batchChangesMax;
    this.#bytesMax = options.batchBytesMax;
    this.#extent = db.prepare(EXTENT_SQL);
    this.#nth = db.prepare(NTH_SQL);
    this.#fitting = db.prepare(FITTING_SQL);
    this.#body = db.prepare(BODY_SQL);
    this.#changes = db.prepare(CHANGES_SQL);
    this.#parts = db.prepare(PARTS_SQL);
    this.#ids = db.prepare(IDS_SQL);
    this.#count = db.prepare(COUNT_SQL);
  }

  read(window: BatchWindow, settledThrough: number, peer?: string): BatchRead {
    this.#peer = peer ?? null;
    const changesMax = Math.min(window.changesMax ?? this.#changesMax, this.#changesMax);
    const bytesMax = Math.min(window.bytesMax ?? this.#bytesMax, this.#bytesMax);
    const last = Math.min(window.through ?? settledThrough, settledThrough);
    if (window.skip > 0) {
      const skipped = this.#nth.get(window.after, last, window.skip - 1, this.#peer);
      if (!skipped) return { kind: "nothing" };
      return this.#readUpTo(skipped.id, last, changesMax, bytesMax);
    }
    const key = `${window.after} ${window.through} ${changesMax} ${bytesMax} ${peer ?? ""}`;
    const cached = this.#cached(key, settledThrough);
    if (cached) return { kind: "batch", batch: cached };
    const read = this.#readUpTo(window.after, last, changesMax, bytesMax);
    if (read.kind === "batch") {
      const open = read.batch.count < changesMax && read.batch.through === last;
      this.#keep(
        key,
        read.batch,
        open && window.through === undefined ? settledThrough : undefined,
      );
    }
    return read;
  }

  changeIds(after: number, through: number, peer?: string): number[] {
    this.#peer = peer ?? null;
    return this.#ids.all(after, through, null, this.#peer).map(({ id }) => id);
  }

  count(after: number, through: number, countMax: number, peer?: string): number {
    this.#peer = peer ?? null;
    return this.#count.get(after, through, countMax, this.#peer)!.count;
  }

  forget(): void {
    this.#cache.clear();
  }

  /** Finalizes the statements, without which the file cannot be closed cleanly. */
  close(): void {
    this.forget();
    for (const statement of [this.#extent, this.#nth, this.#fitting, this.#body]) {
      statement.finalize();
    }
    for (const statement of [this.#changes, this.#parts, this.#ids, this.#count]) {
      statement.finalize();
    }
  }

  #readUpTo(after: number, last: number, changesMax: number, bytesMax: number): BatchRead {
    const extent = this.#extentOf(after, last, changesMax);
    if (extent.through === null) return { kind: "nothing" };
    const fits = extent.bytes + extent.count * CHANGE_BYTES_GUESS + ENVELOPE_BYTES <= bytesMax;
    let through = extent.through;
    if (!fits) {
      const fitting = this.#fitting.get(after, through, bytesMax - ENVELOPE_BYTES, this.#peer)!;
      if (fitting.first === null) return { kind: "nothing" };
      const single = fitting.through === null || fitting.through === fitting.first;
      const bytes = fitting.firstBytes! + ENVELOPE_BYTES;
      if (single && bytes > BODY_BYTES_MAX) {
        return { kind: "oversized", sent: { count: 1, through: fitting.first, bytes } };
      }
      through = fitting.through ?? fitting.first;
    }
    return this.#build(after, through, bytesMax);
  }

  /**
   * The changes that a batch may hold by number. Ids are nearly always dense, and then adding to the
   * first one finds the last at half the cost of counting them off.
   */
  #extentOf(
    after: number,
    last: number,
    changesMax: number,
  ): { count: number; through: number | null; bytes: number } {
    const guess = Math.min(last, after + changesMax);
    const extent = this.#extent.get(after, guess, null, this.#peer)!;
    if (guess === last || extent.count > changesMax / 2) return extent;
    const counted = this.#nth.get(after, last, changesMax - 1, this.#peer)?.id ?? last;
    return this.#extent.get(after, counted, null, this.#peer)!;
  }

  #build(after: number, through: number, bytesMax: number): BatchRead {
    const built = this.#body.get(after, through, null, this.#peer)!;
    if (built.through === null) return { kind: "nothing" };
    const { count } = built;
    const body = this.#complete(built.body, after, built.through);
    if (body.length > bytesMax && count > 1) {
      return this.#build(after, this.#shortened(after, built.through, count, bytesMax), bytesMax);
    }
    return { kind: "batch", batch: { count, through: built.through, bytes: body.length, body } };
  }

  /** Where to end instead, when long names or text in hex made a body longer than it looked. */
  #shortened(after: number, through: number, count: number, bytesMax: number): number {
    const fitting = this.#fitting.get(after, through, bytesMax - ENVELOPE_BYTES, this.#peer)!;
    if (fitting.through !== null && fitting.through < through) return fitting.through;
    return this.#nth.get(after, through, Math.ceil(count / 2) - 1, this.#peer)!.id;
  }

  /** The body, where rows need more than their text (wire-row.ts) made again change by change. */
  #complete(
    body: Uint8Array<ArrayBuffer>,
    after: number,
    through: number,
  ): Uint8Array<ArrayBuffer> {
    if (!isUtf8(body))
      return envelope(through, this.#parts.all(after, through, null, this.#peer).map(spellChange));
    if (!hasBlobMark(body)) return body;
    return envelope(
      through,
      this.#changes
        .all(after, through, null, this.#peer)
        .map(({ change }) => withBlobsNamed(change)),
    );
  }

  #cached(key: string, settledThrough: number): Batch | undefined {
    const cached = this.#cache.get(key);
    if (cached === undefined) return undefined;
    this.#cache.delete(key);
    if (cached.settledThrough !== undefined && cached.settledThrough !== settledThrough) {
      return undefined;
    }
    this.#cache.set(key, cached);
    return cached.batch;
  }

  #keep(key: string, batch: Batch, settledThrough: number | undefined): void {
    this.#cache.set(key, { batch, settledThrough });
    let bytes = 0;
    for (const kept of this.#cache.values()) bytes += kept.batch.bytes;
    for (const [oldest, kept] of this.#cache) {
      const { size } = this.#cache;
      if (size <= CACHED_BATCHES_MAX && (bytes <= CACHED_BYTES_MAX || size <= 2)) return;
      this.#cache.delete(oldest);
      bytes -= kept.batch.bytes;
    }
  }
}

function envelope(batchId: number, changes: readonly string[]): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(`{"batch_id":${batchId},"changes":[${changes.join(",")}]}`);
}

/** One change as it is on the wire, from a row as the log holds it; `id` matters to a DELETE. */
export function changeText(
  op: "INSERT" | "UPDATE" | "DELETE",
  table: string,
  row: Uint8Array,
  id: string,
): string {
  const [opJson, tableJson] = [JSON.stringify(op), JSON.stringify(table)];
  const oldId = op === "DELETE" ? JSON.stringify(id) : "null";
  const change = Buffer.concat([
    Buffer.from(`{"op":${opJson},"table":${tableJson},"row":`),
    row,
    Buffer.from(`,"old_id":${oldId}}`),
  ]);
  return spellChange({ id: 0, op, opJson, tableJson, rowId: Buffer.from(id), row, change });
}

function withBlobsNamed(change: string): string {
  return `${change.slice(0, -1)}${namesMember("blobs", blobColumns(change))}}`;
}

function spellChange(parts: Parts): string {
  if (isUtf8(parts.change)) return withBlobsNamed(lossy(parts.change));
  const { text, texts } = parts.row === null ? { text: "null", texts: [] } : spellRow(parts.row);
  const oldId = parts.op === "DELETE" ? spellId(parts.rowId) : "null";
  const change = `{"op":${parts.opJson},"table":${parts.tableJson},"row":${text},"old_id":${oldId}}`;
  return `${withBlobsNamed(change).slice(0, -1)}${namesMember("texts", texts)}}`;
}

function namesMember(member: string, names: readonly string[]): string {
  return names.length === 0 ? "" : `,"${member}":${JSON.stringify(names)}`;
}

function spellId(id: Uint8Array | null): string {
  if (id === null) return "null";
  return isUtf8(id) ? JSON.stringify(lossy(id)) : spellText(id);
}
