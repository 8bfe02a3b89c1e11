/**
 * Reads a change log transaction by transaction. In Turso's log a batch is what lies between two
 * COMMITs and nothing else: its transaction ids stick or are -1, so they say nothing. In the log of a
 * plain SQLite file, which programs write that put no COMMIT there, a batch also ends where a
 * snapshot ends: there transactions end.
 *
 * Rows are read in pages, each in a read transaction of its own; what a page shows is committed and
 * never changes again. Each page begins with the two rows that were read last (a COMMIT alone looks
 * like any other of its second), so that a log that was emptied, pruned too far, restored or begun
 * anew is noticed before anything of it is taken.
 *
 * Invariants (test/cdc/turso.test.ts):
 *   T1  a batch holds one or more whole transactions' changes, in order, up to where one ends.
 *   T2  each batch follows the one before it: `after` is the last `commit`.
 *   T3  a log that is not the one the watermark was taken from yields an error, never a batch.
 */
import type { Batch, CdcChange, Watermark } from "./change.ts";
import { Breath, type CdcConnection, inSnapshot, selectAll } from "./connection.ts";
import { CdcError } from "./error.ts";
import {
  COMMIT,
  LOG_COLUMNS,
  type LogEntry,
  type LogRow,
  markOf,
  readLogEntry,
  sameLogRow,
} from "./log-entry.ts";
import { readLogIdentity } from "./log-identity.ts";
import { readSourceSchema, refuseUnfit, type SourceSchema } from "./source-schema.ts";
import { ChangeSpool, type SpoolOptions } from "./spool.ts";
import { readSqliteChange } from "./sqlite-image.ts";
import { isInternalName } from "./statement.ts";

/** A page is held in memory, images and all. */
const PAGE_ROWS = 256;

/** From the two rows read last, those without their images: an idle log is looked at often. */
const pageSql = (log: string) => `
  SELECT
    CAST(change_id AS TEXT) AS change_id, change_time,
    CAST(change_txn_id AS TEXT) AS change_txn_id, change_type, table_name, CAST(id AS TEXT) AS id,
    CASE WHEN change_id > CAST(?1 AS INTEGER) THEN CAST("before" AS BLOB) END AS "before",
    CASE WHEN change_id > CAST(?1 AS INTEGER) THEN CAST("after" AS BLOB) END AS "after",
    CASE WHEN change_id > CAST(?1 AS INTEGER) THEN CAST("updates" AS BLOB) END AS "updates"
  FROM ${log} AS log
  WHERE change_id >= CAST(?2 AS INTEGER)
  ORDER BY log.change_id
  LIMIT ${PAGE_ROWS + 2}`;

const newestTwoSql = (log: string) => `
  SELECT ${LOG_COLUMNS}
  FROM ${log} AS log
  WHERE change_id <= CAST(? AS INTEGER)
  ORDER BY log.change_id DESC
  LIMIT 2`;

/** Each by itself: for both at once SQLite reads the whole log. */
const endsSql = (log: string) => `
  SELECT
    CAST((SELECT min(change_id) FROM ${log}) AS TEXT) AS oldest,
    CAST((SELECT max(change_id) FROM ${log}) AS TEXT) AS newest`;

/** In a plain SQLite file: whether somebody altered the schema since it was settled. */
const STATE_SQL = `
  SELECT schema_version AS version, CAST(settled AS TEXT) AS settled
  FROM _cdc_state`;

/** Each row of the log is looked at once in a tailer's life. */
const SCHEMA_ROWS_SQL = `
  SELECT
    CAST(max(CASE WHEN table_name = 'sqlite_schema' THEN change_id END) AS TEXT) AS changed,
    CAST(max(change_id) AS TEXT) AS newest
  FROM turso_cdc
  WHERE change_id > CAST(? AS INTEGER)`;

const DROPS_SQL = `
  SELECT ${LOG_COLUMNS}
  FROM turso_cdc
  WHERE change_id > CAST(? AS INTEGER) AND table_name = 'sqlite_schema' AND change_type = -1`;

const INT64_MAX_TEXT = "9223372036854775807";

/** The position at which a snapshot's log ends. */
export async function readLogEnd(connection: CdcConnection): Promise<Watermark> {
  const { log } = await readLogIdentity(connection);
  const table = await logTable(connection);
  if (table === "_cdc" && (await settledThrough(connection)) === undefined) {
    throw new CdcError("unsettled", "the schema was altered and is not in the log yet: ask again");
  }
  const [row, previous] = await selectAll<LogRow>(connection, newestTwoSql(table), INT64_MAX_TEXT);
  if (row === undefined) return { log, commit: 0n, mark: "" };
  return { log, commit: BigInt(row.change_id), mark: markOf(row, previous) };
}

/** More rows are not looked at to count what is left: their number stands for the rest. */
const COUNTED_ROWS_MAX = 20_000;

const countSql = (log: string) => `
  SELECT count(*) AS rows, count(*) FILTER (WHERE change_type = ${COMMIT}) AS commits,
    CAST(max(change_id) AS TEXT) AS last
  FROM (
    SELECT change_id, change_type
    FROM ${log} AS log
    WHERE change_id > CAST(? AS INTEGER)
    ORDER BY log.change_id
    LIMIT ${COUNTED_ROWS_MAX})`;

/**
 * How many transactions a log holds after a position: exact where each has its COMMIT and they are few,
 * about so many where they are not. Where nothing marks their ends, all that is left counts as one.
 */
export async function countTransactions(connection: CdcConnection, after: bigint): Promise<number> {
  const table = await logTable(connection);
  const [row] = await selectAll<{ rows: number; commits: number; last: string | null }>(
    connection,
    countSql(table),
    after.toString(),
  );
  const [rows, commits] = [Number(row?.rows ?? 0), Number(row?.commits ?? 0)];
  if (row?.last == null) return 0;
  const [ends] = await selectAll<{ newest: string }>(connection, endsSql(table));
  const left = Number(BigInt(ends!.newest) - after);
  return Math.max(1, Math.round((commits * Math.max(left, rows)) / rows));
}

/** Turso's log, or the one that triggers keep in a plain SQLite file. */
type LogTable = "turso_cdc" | "_cdc";

async function logTable(connection: CdcConnection): Promise<LogTable> {
  const [row] = await selectAll(
    connection,
    "SELECT 1 AS one FROM sqlite_schema WHERE name = '_cdc'",
  );
  return row === undefined ? "turso_cdc" : "_cdc";
}

/** Behind it nothing in the log changes the schema; undefined where that was altered since. */
async function settledThrough(connection: CdcConnection): Promise<bigint | undefined> {
  const [now] = await selectAll<{ schema_version: number }>(connection, "PRAGMA schema_version");
  const [state] = await selectAll<{ version: number; settled: string }>(connection, STATE_SQL);
  const isSettled = Number(now?.schema_version) === Number(state?.version);
  return isSettled ? BigInt(state!.settled) : undefined;
}

type SchemaEntry = Extract<LogEntry, { kind: "schema" }>;

interface Drop {
  readonly at: bigint;
  readonly entry: SchemaEntry;
}

/** Where the log of a plain SQLite file ended in a snapshot. Up to there, COMMITs end batches, too. */
interface SnapshotEnd {
  readonly at: bigint;
  readonly schema: string;
  /** From here on `schema` is what the log has led to. */
  readonly settled: bigint;
}

/** What one page's snapshot said about the schema, beside its rows. */
interface PageSchema {
  readonly schema: SourceSchema;
  /** The newest row of the log that changes the schema; 0 for none that was seen. */
  readonly changedAt: bigint;
}

/** One follower's place in a log. The connection must be its own. */
export class CdcTailer {
  readonly #connection: CdcConnection;
  readonly #options: SpoolOptions;
  readonly #breath = new Breath();
  #started = false;
  #log: LogTable = "turso_cdc";
  #end: SnapshotEnd | undefined;
  /** Up to where batches have been given out; undefined until the log's identity is known. */
  #position: Watermark | undefined;
  /** The last row that was read, and with `#previous` what a mark is made of. */
  #last: LogRow | undefined;
  #previous: LogRow | undefined;
  #rows: readonly LogRow[] = [];
  #next = 0;
  /** The file's data_version when there was nothing new. */
  #idleAt: number | undefined;
  #isUnsettled = false;
  #spool: ChangeSpool | undefined;
  #page: PageSchema | undefined;
  #schemaScannedTo: bigint | undefined;
  /** What was dropped from the last page's beginning on; read only where a table is missing. */
  #drops: readonly Drop[] | undefined;
  /** Tables of TEMP or ATTACHed databases, whose rows are in the log though they should not be. */
  readonly #outside = new Set<string>();

  /** `after` is the follower's watermark; null begins at the beginning of a log that has all. */
  constructor(connection: CdcConnection, after: Watermark | null, options: SpoolOptions = {}) {
    this.#connection = connection;
    this.#position = after ?? undefined;
    this.#options = options;
  }

  /** Up to where batches have been given out; null before the first poll from the beginning. */
  get watermark(): Watermark | null {
    return this.#position ?? null;
  }

  /** The next transaction that is complete, or null while there is none. The caller closes it. */
  async pollBatch(): Promise<Batch | null> {
    while (true) {
      const row = this.#rows[this.#next];
      if (row === undefined) {
        if (this.#rows.length >= PAGE_ROWS) await this.#breath.take();
        if (!(await this.#readPage())) return null;
        continue;
      }
      const change = await this.#changeOf(row);
      if (change !== undefined) {
        this.#spool ??= new ChangeSpool(this.#options);
        this.#spool.push(change);
      }
      this.#previous = this.#last;
      this.#last = row;
      this.#next++;
      const position = BigInt(row.change_id);
      const schema = this.#digestAt(position);
      const isEnd = this.#end?.at === position;
      if (isEnd) this.#end = undefined;
      if ((!isEnd && row.change_type !== COMMIT) || this.#spool === undefined) continue;
      return this.#finish(row, this.#spool, schema);
    }
  }

  /**
   * Whether there is something that is no batch yet: a transaction that is being read, or what lies
   * behind a schema that the log has not caught up with.
   */
  get isHoldingBack(): boolean {
    return this.#spool !== undefined || this.#isUnsettled;
  }

  /** Gives back what an unfinished transaction holds. */
  close(): void {
    this.#spool?.close();
    this.#spool = undefined;
  }

  async #changeOf(row: LogRow): Promise<CdcChange | undefined> {
    if (this.#log === "_cdc") return readSqliteChange(row);
    const entry = readLogEntry(row);
    if (entry.kind !== "row" && entry.kind !== "schema") return undefined;
    return await this.#place(entry, BigInt(row.change_id));
  }

  /** A digest is of a snapshot's schema, which is a position's only if none came after it. */
  #digestAt(position: bigint): string | null {
    if (this.#end !== undefined) return position >= this.#end.settled ? this.#end.schema : null;
    const { schema, changedAt } = this.#page!;
    return position >= changedAt ? schema.digest : null;
  }

  #finish(row: LogRow, spool: ChangeSpool, schema: string | null): Batch {
    const { log, commit: after } = this.#position!;
    const commit = BigInt(row.change_id);
    const watermark = { log, commit, mark: markOf(row, this.#previous) };
    this.#position = watermark;
    this.#spool = undefined;
    return {
      kind: "transaction",
      ...watermark,
      after,
      timeMs: row.change_time * 1000,
      schema,
      changes: spool,
      close: () => spool.close(),
    };
  }

  /** Reads on; false when there is nothing new. */
  async #readPage(): Promise<boolean> {
    if (this.#log !== "_cdc") return await this.#readPageInside();
    // An idle file is looked at many times a second by each follower.
    const [now] = await selectAll<{ data_version: number }>(
      this.#connection,
      "PRAGMA data_version",
    );
    const version = Number(now?.data_version);
    if (version === this.#idleAt) return false;
    const isMore = await this.#readPageInside();
    this.#idleAt = isMore ? undefined : version;
    return isMore;
  }

  async #readPageInside(): Promise<boolean> {
    return await inSnapshot(this.#connection, async () => {
      if (!this.#started) await this.#start();
      await this.#checkIdentity();
      // What lies behind an altered schema is not all in the log yet.
      const isPlain = this.#log === "_cdc";
      const settled = isPlain ? await settledThrough(this.#connection) : undefined;
      this.#isUnsettled = isPlain && this.#end === undefined && settled === undefined;
      if (this.#isUnsettled) return false;
      const last = this.#last?.change_id ?? "0";
      const from = this.#previous?.change_id ?? last;
      const rows = await selectAll<LogRow>(this.#connection, pageSql(this.#log), last, from);
      const fresh = await this.#checkContinuity(rows);
      this.#rows = fresh;
      this.#next = 0;
      if (fresh.length === 0) return false;
      if (isPlain) this.#rows = upTo(await this.#findEnd(settled), fresh);
      else await this.#readSchema(fresh);
      return true;
    });
  }

  async #findEnd(settled: bigint | undefined): Promise<bigint> {
    if (this.#end !== undefined) return this.#end.at;
    const schema = await readSourceSchema(this.#connection, this.#page?.schema);
    this.#page = { schema, changedAt: 0n };
    const [ends] = await selectAll<{ newest: string }>(this.#connection, endsSql(this.#log));
    this.#end = { at: BigInt(ends!.newest), schema: schema.digest, settled: settled! };
    return this.#end.at;
  }

  /** Finds the watermark's row and takes it for the last that was read. */
  async #start(): Promise<void> {
    const identity = await readLogIdentity(this.#connection);
    this.#log = await logTable(this.#connection);
    const after = this.#position;
    if (after === undefined) {
      if (!identity.complete) {
        throw new CdcError(
          "log-pruned",
          "the log began when there were tables already: copy first",
        );
      }
      this.#position = { log: identity.log, commit: 0n, mark: "" };
    } else {
      refuseOtherLog(after.log, identity.log);
      if (after.commit > 0n) await this.#find(after);
    }
    this.#started = true;
  }

  async #find(after: Watermark): Promise<void> {
    const position = after.commit.toString();
    const [row, previous] = await selectAll<LogRow>(
      this.#connection,
      newestTwoSql(this.#log),
      position,
    );
    if (row?.change_id !== position) throw await this.#whyMissing(after.commit);
    // One who asks by hand may know the position only.
    const isOther = after.mark !== "" && markOf(row, previous) !== after.mark;
    if (isOther) throw rewound(after.commit);
    this.#last = row;
    this.#previous = previous;
  }

  async #checkIdentity(): Promise<void> {
    const { log } = await readLogIdentity(this.#connection);
    refuseOtherLog(this.#position!.log, log);
  }

  /** The rows after the last one that was read, if the log still is what it was. */
  async #checkContinuity(rows: readonly LogRow[]): Promise<readonly LogRow[]> {
    const known = [this.#previous, this.#last].filter((row) => row !== undefined);
    let expected = BigInt(known[0]?.change_id ?? 1);
    for (const row of rows) {
      if (BigInt(row.change_id) !== expected) throw await this.#whyMissing(expected);
      expected++;
    }
    for (const [i, row] of known.entries()) {
      const found = rows[i];
      if (found === undefined) throw await this.#whyMissing(BigInt(row.change_id));
      if (!sameLogRow(found, row)) throw rewound(BigInt(row.change_id));
    }
    return rows.slice(known.length);
  }

  async #whyMissing(position: bigint): Promise<CdcError> {
    const [ends] = await selectAll<{ oldest: string | null; newest: string | null }>(
      this.#connection,
      endsSql(this.#log),
    );
    const pruned = ends?.oldest != null && BigInt(ends.oldest) > position;
    if (pruned) return new CdcError("log-pruned", `the log begins at ${ends.oldest} only`);
    if (ends?.newest == null || BigInt(ends.newest) < position) return rewound(position);
    return new CdcError("log-pruned", `row ${position} is not in the log, though later ones are`);
  }

  async #readSchema(rows: readonly LogRow[]): Promise<void> {
    const schema = await readSourceSchema(this.#connection, this.#page?.schema);
    if (schema !== this.#page?.schema) await refuseUnfit(this.#connection, schema);
    this.#schemaScannedTo ??= BigInt(rows[0]!.change_id) - 1n;
    const [scan] = await selectAll<{ changed: string | null; newest: string | null }>(
      this.#connection,
      SCHEMA_ROWS_SQL,
      this.#schemaScannedTo.toString(),
    );
    if (scan?.newest != null) this.#schemaScannedTo = BigInt(scan.newest);
    const changedAt = scan?.changed == null ? (this.#page?.changedAt ?? 0n) : BigInt(scan.changed);
    this.#page = { schema, changedAt };
    this.#drops = undefined;
  }

  /** The change, unless it is of a table that is not in this database. */
  async #place(
    entry: Extract<LogEntry, { kind: "row" | "schema" }>,
    at: bigint,
  ): Promise<CdcChange | undefined> {
    if (entry.kind === "schema") return await this.#placeSchema(entry, at);
    const { change } = entry;
    if (this.#outside.has(change.table)) return undefined;
    if (this.#isTable(change.table)) return change;
    if (await this.#isDropped(at, (drop) => drop.name === change.table)) return change;
    throw new CdcError(
      "log-incomplete",
      `the log has rows of ${change.table}, which is not in the database: ` +
        "it was renamed, or is a TEMP or ATTACHed table",
    );
  }

  async #placeSchema(entry: SchemaEntry, at: bigint): Promise<CdcChange | undefined> {
    const { action, type, name, table, sql } = entry;
    if (this.#outside.has(table)) {
      if (action === "drop" && name === table) this.#outside.delete(name);
      return undefined;
    }
    // An index follows its table: dropped with it, it leaves no trace in the log.
    if (action === "create" && type === "table" && (await this.#isOutside(entry, at))) {
      if (this.#isTable(table)) {
        throw new CdcError(
          "log-incomplete",
          `a TEMP or ATTACHed table has the name of ${table}: the log does not tell them apart`,
        );
      }
      this.#outside.add(table);
      return undefined;
    }
    return { kind: "schema", sql };
  }

  #isTable(name: string): boolean {
    return this.#page!.schema.columns.has(name);
  }

  /**
   * Other databases number their schemas on their own: the object is not ours where its number is
   * that of one of the log's own tables, or where ours has none with it. But one that was dropped was
   * ours, whoever has its number now.
   */
  async #isOutside({ id }: SchemaEntry, at: bigint): Promise<boolean> {
    const holder = this.#page!.schema.objects.find((object) => object.id === id.toString());
    if (holder !== undefined && !isInternalName(holder.name)) return false;
    return !(await this.#isDropped(at, (drop) => drop.id === id));
  }

  async #isDropped(after: bigint, is: (entry: SchemaEntry) => boolean): Promise<boolean> {
    this.#drops ??= await this.#readDrops(after);
    return this.#drops.some(({ at, entry }) => at > after && is(entry));
  }

  async #readDrops(after: bigint): Promise<readonly Drop[]> {
    const rows = await selectAll<LogRow>(this.#connection, DROPS_SQL, after.toString());
    return rows.flatMap((row) => {
      const entry = readLogEntry(row);
      return entry.kind === "schema" ? [{ at: BigInt(row.change_id), entry }] : [];
    });
  }
}

/** What came while a long log was being read is another snapshot's. */
function upTo(end: bigint, rows: readonly LogRow[]): readonly LogRow[] {
  const last = rows.at(-1);
  if (last === undefined || BigInt(last.change_id) <= end) return rows;
  return rows.filter((row) => BigInt(row.change_id) <= end);
}

function refuseOtherLog(expected: string, found: string): void {
  if (expected === found) return;
  throw new CdcError("other-log", `the watermark is of the log ${expected}, this is ${found}`);
}

function rewound(position: bigint): CdcError {
  return new CdcError(
    "log-rewound",
    `the log is not the one it was at ${position}: restored from a backup, or begun anew`,
  );
}
