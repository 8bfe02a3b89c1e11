/**
 * One row of a change log and what it means, without a database. Everything that was measured about
 * Turso's log (version 2) and that a row alone can tell is here; what takes the rows around it or
 * the schema is in tailer.ts.
 */
import { quoteName } from "../base/sql-text.ts";
import type { CdcChange, CdcValue } from "./change.ts";
import { readInt64 } from "./change-text.ts";
import { CdcError } from "./error.ts";
import { decodeRecord } from "./record.ts";
import { isInternalName } from "./statement.ts";

/** A row of the log as SELECT_LOG gives it: 64-bit numbers as text, so that no driver rounds them. */
export interface LogRow {
  readonly change_id: string;
  readonly change_time: number;
  readonly change_txn_id: string | null;
  readonly change_type: number;
  readonly table_name: string | null;
  readonly id: string | null;
  readonly before: Uint8Array | null;
  readonly after: Uint8Array | null;
  readonly updates: Uint8Array | null;
}

/** The columns of a LogRow. */
export const LOG_COLUMNS = `
  CAST(change_id AS TEXT) AS change_id, change_time, CAST(change_txn_id AS TEXT) AS change_txn_id,
  change_type, table_name, CAST(id AS TEXT) AS id,
  CAST("before" AS BLOB) AS "before", CAST("after" AS BLOB) AS "after",
  CAST("updates" AS BLOB) AS "updates"`;

/** What a row of the log says. */
export type LogEntry =
  | { readonly kind: "commit" }
  /** About a table of the engine's or of ours. */
  | { readonly kind: "internal" }
  | {
      readonly kind: "row";
      readonly change: Extract<CdcChange, { kind: "insert" | "update" | "delete" }>;
    }
  | {
      readonly kind: "schema";
      readonly action: "create" | "alter" | "drop";
      readonly type: string;
      readonly name: string;
      readonly table: string;
      /** The object's rowid in sqlite_schema. */
      readonly id: bigint;
      readonly sql: string;
    };

const [INSERT, UPDATE, DELETE] = [1, 0, -1];

/** The change_type that ends a transaction. */
export const COMMIT = 2;

/** What the row says; a CdcError where it says nothing that can be followed. */
export function readLogEntry(row: LogRow): LogEntry {
  if (row.change_type === COMMIT) return { kind: "commit" };
  const table = row.table_name;
  if (table === null || row.id === null) throw unreadable(row, "no table or id");
  if (table === "sqlite_schema") return readSchemaEntry(row);
  if (isInternalName(table)) return { kind: "internal" };
  const rowid = readInt64(row.id);
  switch (row.change_type) {
    case DELETE:
      return { kind: "row", change: { kind: "delete", table, rowid } };
    case INSERT:
      return { kind: "row", change: { kind: "insert", table, rowid, values: imageOf(row) } };
    case UPDATE:
      return { kind: "row", change: { kind: "update", table, rowid, values: imageOf(row) } };
    default:
      throw unreadable(row, `change_type ${row.change_type}`);
  }
}

function unreadable(row: LogRow, what: string): CdcError {
  return new CdcError("malformed", `row ${row.change_id} of the log: ${what}`);
}

/** An UPDATE that changes the key is logged as DELETE and INSERT, whose image stands in `before`. */
function imageOf(row: LogRow): CdcValue[] {
  const image = row.after ?? row.before;
  if (image === null) throw unreadable(row, "no image");
  return decodeRecord(image);
}

function readSchemaEntry(row: LogRow): LogEntry {
  const [type, name, table, , sql] = imageOf(row);
  if (typeof type !== "string" || typeof name !== "string" || typeof table !== "string") {
    throw unreadable(row, "no row of sqlite_schema");
  }
  if (isInternalName(name) || isInternalName(table)) return { kind: "internal" };
  // What a constraint makes by itself comes and goes with its table.
  if (sql === null) return { kind: "internal" };
  if (typeof sql !== "string") throw unreadable(row, "no statement");
  const common = { kind: "schema", type, name, table, id: readInt64(row.id) } as const;
  switch (row.change_type) {
    case INSERT:
      refuseCopiedTable(type, name, sql);
      return { ...common, action: "create", sql };
    case DELETE:
      return { ...common, action: "drop", sql: `DROP ${type.toUpperCase()} ${quoteName(name)}` };
    default:
      return { ...common, action: "alter", sql: alterOf(row, name) };
  }
}

/**
 * The rows that CREATE TABLE … AS SELECT makes are not in the log. Turso writes a blank before the
 * columns of every other table, and none there; the self-test holds it to that.
 */
export function isCopiedTable(sql: string): boolean {
  return /^CREATE TABLE (?:"(?:[^"]|"")*"|[^\s("]+)\(/.test(sql);
}

function refuseCopiedTable(type: string, name: string, sql: string): void {
  if (type !== "table" || !isCopiedTable(sql)) return;
  throw new CdcError(
    "log-incomplete",
    `the rows of ${name} were made by CREATE TABLE … AS SELECT and are not in the log`,
  );
}

/** The statement is the last value of `updates`; `after` holds a CREATE of a table that exists. */
function alterOf(row: LogRow, name: string): string {
  const statement = row.updates === null ? null : decodeRecord(row.updates).at(-1);
  if (typeof statement === "string" && /^\s*alter\b/i.test(statement)) return statement;
  throw new CdcError("log-incomplete", `how ${name} was altered is not in the log`);
}

/**
 * A hash of a position: its row, and the row before it. A log that was restored from a backup and
 * went on has another time or another change there.
 */
export function markOf(row: LogRow, previous: LogRow | undefined): string {
  const hasher = new Bun.CryptoHasher("sha256");
  for (const each of previous === undefined ? [row] : [row, previous]) {
    // Member by member: one driver gives its rows more members than these.
    const { change_id, change_time, change_txn_id, change_type, table_name, id } = each;
    const known = [change_id, change_time, change_txn_id, change_type, table_name, id];
    hasher.update(JSON.stringify(known));
    for (const image of [each.before, each.after, each.updates]) {
      hasher.update(`|${image?.length ?? "-"}|`);
      if (image !== null) hasher.update(image);
    }
  }
  return hasher.digest("hex").slice(0, 16);
}

/** Tells one row of a log from another without its images, which a caller may have left out. */
export function sameLogRow(left: LogRow, right: LogRow): boolean {
  return (
    left.change_id === right.change_id &&
    left.change_time === right.change_time &&
    left.change_type === right.change_type &&
    left.change_txn_id === right.change_txn_id &&
    left.table_name === right.table_name &&
    left.id === right.id
  );
}
