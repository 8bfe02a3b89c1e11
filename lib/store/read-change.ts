/**
 * One received change, from JSON to what SQLite will be asked to write, or why it must be parked.
 * Whatever is wrong inside a change ends here, never in a 400 and never in an exception: a foreign
 * sender would send the same batch again for ever.
 */
import { isObject, type JsonValue, member, type ReceivedChange } from "../protocol/batch.ts";
import { VERSION_AHEAD_MS_MAX, VERSION_MAX } from "../protocol/limits.ts";
import { readNumber, type Value, wireHex } from "../protocol/values.ts";
import { type Survey, tableCalled } from "./catalog.ts";
import { isInternalTable, type SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";

/** Decides when a parked change is tried again; kept with it in the file. */
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

/** What could be read of the change is told as far as it goes; null where it could not. */
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

/** A row to be there: INSERT and UPDATE mean the same to a receiver. */
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

/** A row to be gone; `cells` are those it had, as far as the sender told. */
export interface Delete {
  readonly kind: "delete";
  readonly table: SyncedTable;
  readonly id: string;
  /** Undefined: an older sender gave no row; whatever is there goes, as a local delete. */
  readonly version: number | undefined;
  readonly cells: Cells;
}

/** What the meaning of a change depends on besides itself. */
export interface ReadContext {
  readonly survey: Survey;
  readonly nowMs: number;
  /** The sender is ours: a missing `blobs` means none. Else it may have been lost on the way. */
  readonly isOurs: boolean;
}

/** What SQLite itself takes at most; a row that has more is no row of any table. */
const COLUMNS_MAX = 2_000;

const AHEAD_REASON = "its updated_at is more than an hour ahead of this node's clock";
const TWICE_REASON = "a member stands twice; nodes would read different ones";

type JsonObject = { readonly [member: string]: JsonValue };

/** A member of the row, with its name as SQLite compares names. */
interface Member {
  readonly name: string;
  readonly key: string;
  readonly json: JsonValue;
}

/** Reasons hold nothing of the change itself, which is kept: there is one entry per row and reason. */
export function readChange(
  change: ReceivedChange,
  context: ReadContext,
): Upsert | Delete | Parking | LeftOut {
  const whole = isObject(change.value) ? change.value : {};
  const op = member(whole, "op");
  const named = member(whole, "table");
  const row = member(whole, "row");
  const oldId = member(whole, "old_id");
  const members = isObject(row) ? readMembers(row) : [];
  const rowId = find(members, "id");
  const park = (code: ParkCode, reason: string, version: number | null = null): Parking => ({
    kind: "park",
    code,
    reason,
    op: typeof op === "string" ? op.slice(0, 64) : null,
    table: typeof named === "string" ? named.slice(0, 256) : null,
    id: [rowId, oldId].find(isText) ?? null,
    version,
  });

  if (!isObject(change.value)) return park("malformed", "the change is not an object");
  if (change.repeatsMember) return park("malformed", TWICE_REASON);
  if (typeof named !== "string") return park("malformed", "table is not a string");
  if (op !== "INSERT" && op !== "UPDATE" && op !== "DELETE") {
    return park("malformed", "op is not INSERT, UPDATE or DELETE");
  }
  const version = readVersion(find(members, "updated_at"));
  const atVersion = typeof version === "number" ? version : null;
  const table = tableCalled(context.survey, named);
  if (!table)
    return parkUnknown(named, context, (reason) => park("unknown-table", reason, atVersion));

  const isDelete = op === "DELETE";
  const id = isDelete && typeof oldId === "string" && oldId !== "" ? oldId : rowId;
  if (typeof id !== "string" || id === "") {
    return park("malformed", `id is ${describe(id)}; expected a text that is not empty`);
  }
  if (!id.isWellFormed()) return park("malformed", "the id holds half a surrogate pair");
  const ownName = members.find(({ key }) => key === table.id.key)?.name;
  const bytes = [
    ...(namesOf(member(whole, "blobs")) ?? []),
    ...(namesOf(member(whole, "texts")) ?? []),
  ];
  if (ownName !== undefined && bytes.includes(ownName)) {
    return park("malformed", "the id is no UTF-8 text; rows are told apart by text");
  }
  if (isDelete && (row === null || row === undefined)) {
    return { kind: "delete", table, id, version: undefined, cells: new Map() };
  }
  if (!isObject(row)) return park("malformed", `row is ${describe(row)}; expected an object`);
  if (members.length > COLUMNS_MAX) return park("malformed", "the row has too many columns");
  if (new Set(members.map(({ key }) => key)).size !== members.length) {
    return park("malformed", "a column stands twice, in different case");
  }
  if (typeof version === "string") return park("malformed", version);
  if (version > context.nowMs + VERSION_AHEAD_MS_MAX) return park("ahead", AHEAD_REASON, version);
  const cells = readCells(change, whole, members, table, context.isOurs);
  if (isDelete) {
    // What the row held is only passed on; it must not keep the delete from being one.
    const known = typeof cells === "string" ? new Map<string, Value>() : cells.known;
    return { kind: "delete", table, id, version, cells: known };
  }
  if (typeof cells === "string") return park("malformed", cells, version);
  return { kind: "upsert", table, id, version, cells: cells.known, unknown: cells.unknown };
}

/** Half a surrogate pair would be stored as U+FFFD, and two ids as one. */
function isText(value: JsonValue | undefined): value is string {
  return typeof value === "string" && value.isWellFormed();
}

function readMembers(row: JsonObject): Member[] {
  return Object.entries(row).map(([name, json]) => ({ name, key: nameKey(name), json }));
}

function find(members: readonly Member[], key: string): JsonValue | undefined {
  return members.find((each) => each.key === key)?.json;
}

function parkUnknown(
  named: string,
  { survey }: ReadContext,
  park: (reason: string) => Parking,
): Parking | LeftOut {
  const key = nameKey(named);
  if (isInternalTable(named)) return park("the table is internal and never synced");
  if (survey.notAsked.some((other) => other.key === key)) {
    if (survey.isChosen) return { kind: "left-out", table: named };
    return park("the table is here, but is not synced: start the node with --tables to sync it");
  }
  const unfit = survey.unfit.find((other) => nameKey(other.name) === key);
  if (unfit !== undefined) {
    const remedy =
      "hook-sync check names what mends it; then start the node with --tables to sync it";
    return park(
      `the table is here, but is not synced, and could not be: ${unfit.reason}; ${remedy}`,
    );
  }
  const why = survey.notSynced.find((other) => nameKey(other.name) === key);
  return park(why ? `the table is not synced here: ${why.reason}` : "there is no such table here");
}

/** The version, or why it is none. NULL and a missing stamp are version 0. */
function readVersion(stamp: JsonValue | undefined): number | string {
  if (stamp === null || stamp === undefined) return 0;
  if (typeof stamp !== "number" || !Number.isInteger(stamp)) {
    return `updated_at is ${describe(stamp)}; expected an integer`;
  }
  if (Math.abs(stamp) > VERSION_MAX) return "updated_at is beyond 2^53";
  return stamp;
}

function readCells(
  change: ReceivedChange,
  whole: JsonObject,
  members: readonly Member[],
  table: SyncedTable,
  isOurs: boolean,
): { known: Cells; unknown: Cells } | string {
  const blobs = namesOf(member(whole, "blobs"));
  const texts = namesOf(member(whole, "texts"));
  const tokens = change.delicate ? change.rowTokens() : undefined;
  const known = new Map<string, Value>();
  const unknown = new Map<string, Value>();
  for (const { name, key, json } of members) {
    if (table.generated.has(key)) continue;
    const column = table.columnByKey.get(key);
    // Two such names would be noted as one.
    if (!column && !key.isWellFormed()) return "the name of a column holds half a surrogate pair";
    const value = readCell(json, tokens?.get(name), {
      isBlob: blobs?.has(name) ?? (!isOurs && column?.affinity === "blob"),
      isBlobCertain: blobs?.has(name) ?? false,
      isBrokenText: texts?.has(name) ?? false,
    });
    if (typeof value === "string") return `a value of ${key.slice(0, 128)} ${value}`;
    (column ? known : unknown).set(key, value);
  }
  return { known, unknown };
}

function namesOf(names: JsonValue | undefined): ReadonlySet<string> | undefined {
  if (!Array.isArray(names)) return undefined;
  return new Set(names.filter((name) => typeof name === "string"));
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
      return readNumber(token ?? String(json));
    case "string": {
      if (hints.isBlob || hints.isBrokenText) {
        const hex = wireHex(json)?.toLowerCase();
        if (hex !== undefined) return { kind: hints.isBrokenText ? "broken-text" : "blob", hex };
        if (hints.isBlobCertain || hints.isBrokenText) {
          return "is named as bytes, but is not \\x and hex";
        }
      }
      return json.isWellFormed()
        ? { kind: "text", value: json }
        : "holds half a surrogate pair, which is no text";
    }
    default:
      return `is ${describe(json)}; columns hold single values`;
  }
}

function describe(value: JsonValue | undefined): string {
  if (value === undefined) return "missing";
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  switch (typeof value) {
    case "string":
      return value === "" ? "an empty text" : "a text";
    case "number":
      return Number.isInteger(value) ? "a number" : "a number with a fraction";
    case "boolean":
      return "true or false";
    default:
      return "an object";
  }
}
