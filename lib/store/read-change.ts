/**
 * One received change, from JSON to what SQLite will be asked to write, or why it must be parked.
 * Whatever is wrong inside a change ends here, never in a 400 and never in an exception: a foreign
 * sender would send the same batch again for ever.
 */
import { isObject, type JsonValue, member, type ReceivedChange } from "../protocol/batch.ts";
import { VERSION_AHEAD_MS_MAX, VERSION_MAX } from "../protocol/limits.ts";
import { readNumber, type Value, wireHex } from "../protocol/values.ts";
import type { Survey } from "./catalog.ts";
import { type Column, isInternalTable, type SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";

export type ParkCode =
  /** Can never apply as it is. */
  | "malformed"
  /** Retried when a table of that name is registered. */
  | "unknown-table"
  /** Retried when our clock has reached its version. */
  | "ahead"
  /** Clashes on another unique key: retried after each batch, then decided. */
  | "unique"
  /** Another constraint: retried with growing pauses. */
  | "constraint"
  /** A user's trigger changed or refused it: retried when the schema changes. */
  | "trigger";

export interface Parking {
  readonly kind: "park";
  readonly code: ParkCode;
  readonly reason: string;
  readonly op: string | null;
  readonly table: string | null;
  readonly id: string | null;
  readonly version: number | null;
}

/** The table is in the file, but `--tables` leaves it out: counted, not kept. */
export interface LeftOut {
  readonly kind: "left-out";
  readonly table: string;
}

/** By column key. */
export type Cells = ReadonlyMap<string, Value>;

export interface Upsert {
  readonly kind: "upsert";
  readonly table: SyncedTable;
  readonly id: string;
  readonly version: number;
  /** Known columns that came, id and version among them. */
  readonly cells: Cells;
  /** Columns this node lacks, by lower-cased name. */
  readonly unknown: Cells;
}

export interface Delete {
  readonly kind: "delete";
  readonly table: SyncedTable;
  readonly id: string;
  /** Undefined: an older sender gave no row; whatever is there goes, as a local delete. */
  readonly version: number | undefined;
  readonly cells: Cells;
}

export interface ReadContext {
  readonly survey: Survey;
  readonly nowMs: number;
  /** The sender is ours: a missing `blobs` means none. Else it may have been lost on the way. */
  readonly isOurs: boolean;
}

export function readChange(
  change: ReceivedChange,
  context: ReadContext,
): Upsert | Delete | Parking | LeftOut {
  const { value } = change;
  const op = isObject(value) ? member(value, "op") : undefined;
  const named = isObject(value) ? member(value, "table") : undefined;
  const row = isObject(value) ? member(value, "row") : undefined;
  const oldId = isObject(value) ? member(value, "old_id") : undefined;
  const rowColumns = isObject(row) ? Object.entries(row) : [];
  const find = (key: string) => rowColumns.find(([name]) => nameKey(name) === key)?.[1];
  const rowId = find("id");
  const park = (code: ParkCode, reason: string, version: number | null = null): Parking => ({
    kind: "park",
    code,
    reason,
    op: typeof op === "string" ? op.slice(0, 64) : null,
    table: typeof named === "string" ? named.slice(0, 256) : null,
    id: typeof rowId === "string" ? rowId : typeof oldId === "string" ? oldId : null,
    version,
  });

  if (!isObject(value)) return park("malformed", "the change is not an object");
  if (change.repeatsMember)
    return park("malformed", "a member stands twice; nodes would read different ones");
  if (typeof named !== "string") return park("malformed", "table is not a string");
  if (op !== "INSERT" && op !== "UPDATE" && op !== "DELETE") {
    return park("malformed", `op is ${describe(op)}; expected INSERT, UPDATE or DELETE`);
  }
  const stamp = find("updated_at");
  const version = readVersion(stamp);
  const table = context.survey.synced.get(nameKey(named));
  if (!table) {
    if (isInternalTable(named)) return park("malformed", "the table is internal and never synced");
    if (context.survey.notAsked.some((other) => other.key === nameKey(named))) {
      return { kind: "left-out", table: named };
    }
    const why = context.survey.notSynced.find((other) => nameKey(other.name) === nameKey(named));
    const atVersion = typeof version === "number" ? version : null;
    return park(
      "unknown-table",
      why ? `the table is not synced here: ${why.reason}` : "there is no such table here",
      atVersion,
    );
  }

  if (op === "DELETE") {
    const id = typeof oldId === "string" && oldId !== "" ? oldId : rowId;
    if (typeof id !== "string" || id === "") return park("malformed", "a DELETE without an id");
    if (!id.isWellFormed()) return park("malformed", "the id holds half a surrogate pair");
    if (row === null || row === undefined)
      return { kind: "delete", table, id, version: undefined, cells: new Map() };
    if (!isObject(row)) return park("malformed", `row is ${describe(row)}; expected an object`);
    if (typeof version === "string") return park("malformed", version);
    if (version > context.nowMs + VERSION_AHEAD_MS_MAX) return park("ahead", AHEAD_REASON, version);
    const cells = readCells(change, row, table, context.isOurs);
    return {
      kind: "delete",
      table,
      id,
      version,
      cells: typeof cells === "string" ? new Map() : cells.known,
    };
  }

  if (!isObject(row)) return park("malformed", `row is ${describe(row)}; expected an object`);
  if (typeof rowId !== "string" || rowId === "") {
    return park("malformed", `id is ${describe(rowId)}; expected a text that is not empty`);
  }
  if (typeof version === "string") return park("malformed", version);
  if (version > context.nowMs + VERSION_AHEAD_MS_MAX) return park("ahead", AHEAD_REASON, version);
  const cells = readCells(change, row, table, context.isOurs);
  if (typeof cells === "string") return park("malformed", cells, version);
  return { kind: "upsert", table, id: rowId, version, cells: cells.known, unknown: cells.unknown };
}

const AHEAD_REASON = "its updated_at is more than an hour ahead of this node's clock";

/** The version, or why it is none. NULL and a missing stamp are version 0, below everything. */
function readVersion(stamp: JsonValue | undefined): number | string {
  if (stamp === null || stamp === undefined) return 0;
  if (typeof stamp !== "number" || !Number.isInteger(stamp)) {
    return `updated_at is ${describe(stamp)}; expected an integer`;
  }
  if (Math.abs(stamp) > VERSION_MAX) return `updated_at is ${stamp}, beyond 2^53`;
  return stamp;
}

function readCells(
  change: ReceivedChange,
  row: { readonly [member: string]: JsonValue },
  table: SyncedTable,
  isOurs: boolean,
): { known: Cells; unknown: Cells } | string {
  const whole = change.value as { readonly [member: string]: JsonValue };
  const blobs = namesOf(member(whole, "blobs"));
  const texts = namesOf(member(whole, "texts"));
  const tokens = change.delicate ? change.rowTokens() : undefined;
  const known = new Map<string, Value>();
  const unknown = new Map<string, Value>();
  for (const [name, json] of Object.entries(row)) {
    const key = nameKey(name);
    if (table.generated.has(key)) continue;
    const column = table.columnByKey.get(key);
    const target = column ? known : unknown;
    if (target.has(key)) return `the column ${name} stands twice, in different case`;
    const value = readCell(json, tokens?.get(name), {
      isBlob: blobs?.has(name) ?? (!isOurs && column !== undefined && mayHoldBlob(column)),
      isBlobCertain: blobs?.has(name) ?? false,
      isBrokenText: texts?.has(name) ?? false,
    });
    if (typeof value === "string") return `${name}: ${value}`;
    target.set(key, value);
  }
  return { known, unknown };
}

function namesOf(names: JsonValue | undefined): ReadonlySet<string> | undefined {
  if (!Array.isArray(names)) return undefined;
  return new Set(names.filter((name) => typeof name === "string"));
}

function mayHoldBlob(column: Column): boolean {
  return column.affinity === "blob";
}

function readCell(
  json: JsonValue,
  token: string | undefined,
  hints: { isBlob: boolean; isBlobCertain: boolean; isBrokenText: boolean },
): Value | string {
  if (json === null) return { kind: "null" };
  switch (typeof json) {
    case "boolean":
      return { kind: "integer", value: json ? 1n : 0n };
    case "number":
      return token === undefined ? readNumber(String(json)) : readNumber(token);
    case "string": {
      if (hints.isBlob || hints.isBrokenText) {
        const hex = wireHex(json)?.toLowerCase();
        if (hex !== undefined) return { kind: hints.isBrokenText ? "broken-text" : "blob", hex };
        if (hints.isBlobCertain || hints.isBrokenText)
          return "it is named as bytes, but is not \\x and hex";
      }
      return json.isWellFormed()
        ? { kind: "text", value: json }
        : "it holds half a surrogate pair, which is no text";
    }
    default:
      return `it is ${describe(json)}; columns hold single values`;
  }
}

function describe(value: JsonValue | undefined): string {
  if (value === undefined) return "missing";
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  if (typeof value === "object") return "an object";
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
}
