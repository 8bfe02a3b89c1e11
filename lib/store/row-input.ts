/**
 * What a REST client may write into a row: JSON becomes values for SQLite here, or a 400 that names
 * the column. Without it a mistyped column would vanish, a text would settle in an INTEGER column on
 * every node, and digits beyond 2^53 would be lost in JSON.parse.
 *
 * How values are written in JSON (the same forms that answers have, so that what was read can be
 * written back):
 *   INTEGER     digits, -2^63 to 2^63-1, every one kept; 1.0 and 1e3 count as integers
 *   REAL        any number; 9e999 is infinity
 *   TEXT        a string without lone surrogates
 *   BLOB        the string `\x` + hex
 *   NUMERIC     (DATE, DECIMAL, BOOLEAN and the like) a number or a string
 *   no type     a number (1.0 stays REAL), a string, or a BLOB as `\x` + hex
 * A boolean is taken only by a column declared BOOLEAN, as 1 or 0. Arrays and objects are refused.
 *
 * Other programs store other things: what a change gives as it was read stays as it is (Doubt).
 *
 * `updated_at`, `created_at` (where it is INTEGER) and `node_id` (where it is TEXT) are made by the
 * server: given ones are ignored, so that a row that was read can be sent back whole.
 */
import { UUID } from "uuidv7";
import { RequestError } from "../base/errors.ts";
import { wireHex } from "../protocol/values.ts";
import type { Column, SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";

/** What bun:sqlite binds as it is; `asReal` of the slot says where a number must become REAL. */
export type Binding = string | number | bigint | Uint8Array | null;

/** A row, or a change of one, as a client gave it: columns and values that SQLite takes as they are. */
export interface RowInput {
  /** Undefined: to be made. */
  readonly id: string | undefined;
  /** One character for each given column (see `readShape`): which statement takes the values. */
  readonly shape: string;
  readonly values: readonly Binding[];
  /** Of a change: what has to be compared with the row first. They are in neither of the other two. */
  readonly doubts?: readonly Doubt[];
}

/**
 * A value that its column does not take, or takes as something else than what may be there: other
 * programs store a text in an INTEGER column, a BLOB in a TEXT one. Sent back as it was read it stays.
 */
export interface Doubt {
  readonly name: string;
  /** As parseJson makes it. */
  readonly given: unknown;
  /** For the shape. */
  readonly code: string;
  /** What is stored where the row holds something else, or why that cannot be. */
  readonly otherwise: Binding | RequestError;
}

/** How a column takes and shows its values through REST. */
export type ColumnKind = "integer" | "real" | "text" | "numeric" | "blob" | "any";

/** BLOB and no type are one affinity for SQLite; clients write their values differently. */
export function columnKind(column: Column): ColumnKind {
  if (column.affinity !== "blob") return column.affinity;
  return column.declaredType.toUpperCase().includes("BLOB") ? "blob" : "any";
}

/** By its declared name alone: SQLite has no such type. */
export function isBoolean(column: Column): boolean {
  return column.declaredType.toUpperCase().startsWith("BOOL");
}

/** What the server writes into a row it makes. */
export interface RowStamps {
  readonly version: number;
  readonly nowMs: number;
  readonly nodeId: string;
}

/** The columns besides `id` and `updated_at` that the server fills, where the table has them. */
export interface ServerMade {
  readonly createdAt: Column | undefined;
  readonly nodeId: Column | undefined;
}

/** A column of that name and another type is the client's to fill. */
export function serverMade(table: SyncedTable): ServerMade {
  const createdAt = table.columnByKey.get("created_at");
  const nodeId = table.columnByKey.get("node_id");
  return {
    createdAt: createdAt?.affinity === "integer" ? createdAt : undefined,
    nodeId: nodeId?.affinity === "text" ? nodeId : undefined,
  };
}

/** One given column of a shape. */
export interface Slot {
  readonly column: Column;
  /** The value was written as REAL and the column would not make it one by itself. */
  readonly asReal: boolean;
}

/** The columns of a RowInput's `shape`, in the order of its values. */
export function readShape(table: SyncedTable, shape: string): Slot[] {
  return Array.from(shape, (_, at) => {
    const code = shape.charCodeAt(at);
    return { column: table.columns[code >> 1]!, asReal: (code & 1) === 1 };
  });
}

interface InputColumn {
  readonly name: string;
  readonly role: "id" | "server" | "given";
  readonly kind: ColumnKind;
  readonly takesBoolean: boolean;
  readonly code: string;
  readonly codeAsReal: string;
}

/** A number written with a point or an exponent that JSON.parse would take for an integer. */
class RealNumber {
  readonly value: number;
  constructor(value: number) {
    this.value = value;
  }
}

/** An int64 has at most 19 digits and a sign. (BigInt of a million digits would take minutes.) */
const INT64_LENGTH_MAX = 20;
const INT64_MAX = 9_223_372_036_854_775_807n;
const INT64_MIN = -9_223_372_036_854_775_808n;
/** Numbers whose text must be looked at: many digits, `1.0`, an exponent. Also met in strings; harmless. */
const DELICATE = /\d{16}|\d\.0+(?!\d)|\d[eE]/;

/** JSON with every digit kept: integers beyond 2^53 become BigInt, `1.0` stays REAL. */
export function parseJson(text: string): unknown {
  try {
    return DELICATE.test(text) ? JSON.parse(text, exactNumber) : JSON.parse(text);
  } catch (error) {
    if (error instanceof RangeError) throw new RequestError(400, "the body is nested too deeply");
    throw new RequestError(400, `the body is not JSON: ${(error as Error).message}`);
  }
}

function exactNumber(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || (Number.isFinite(value) && !Number.isInteger(value)))
    return value;
  const source = context!.source!;
  if (!/^-?\d+$/.test(source) || source.length > INT64_LENGTH_MAX) return new RealNumber(value);
  return Number.isSafeInteger(value) ? value : BigInt(source);
}

/** Reads rows of one table. */
export class RowReader {
  readonly #table: SyncedTable;
  readonly #columns: ReadonlyMap<string, InputColumn>;

  constructor(table: SyncedTable) {
    this.#table = table;
    this.#columns = new Map(
      table.columns.map((column, index) => [column.name, toInputColumn(table, column, index)]),
    );
  }

  /** A row to be created. */
  newRow(value: unknown): RowInput {
    return this.#read(value, (id) => readNewId(id));
  }

  /** All of them, or a 400 that names the first wrong one. */
  newRows(values: readonly unknown[]): RowInput[] {
    return values.map((value, index) => {
      try {
        return this.newRow(value);
      } catch (error) {
        throw error instanceof RequestError ? atIndex(error, index) : error;
      }
    });
  }

  /** New values for some columns of the row `id`. */
  change(value: unknown, id: string): RowInput {
    const doubts: Doubt[] = [];
    const readId = (given: unknown) => {
      if (given !== id) throw wrong(this.#table.id.name, "an id cannot be changed");
      return id;
    };
    const input = this.#read(value, readId, doubts);
    if (doubts.length > 0) return { ...input, doubts };
    if (input.shape === "")
      throw new RequestError(
        400,
        "no column to change is given; id, updated_at and the like are made by the server",
      );
    return input;
  }

  #read(value: unknown, readId: (id: unknown) => string, doubts?: Doubt[]): RowInput {
    if (
      typeof value !== "object" ||
      value === null ||
      Array.isArray(value) ||
      value instanceof RealNumber
    ) {
      throw new RequestError(400, "expected a JSON object of columns and values");
    }
    const members = value as Readonly<Record<string, unknown>>;
    let id: string | undefined;
    let shape = "";
    const values: Binding[] = [];
    let otherSpelling = false;
    for (const name of Object.keys(members)) {
      let column = this.#columns.get(name);
      if (column === undefined) {
        column = this.#columnByKey(name);
        otherSpelling = true;
      }
      if (column.role === "server") continue;
      const given = members[name];
      if (column.role === "id") {
        id = readId(given);
        continue;
      }
      const doubt = doubts && doubtOf(column, given);
      if (doubt) {
        doubts.push(doubt);
        continue;
      }
      values.push(toBinding(column, given));
      shape +=
        column.kind === "any" && given instanceof RealNumber ? column.codeAsReal : column.code;
    }
    if (otherSpelling) {
      const doubted = doubts?.map((doubt) => doubt.code) ?? [];
      this.#refuseRepeats(shape + doubted.join(""));
    }
    return { id, shape, values };
  }

  #columnByKey(name: string): InputColumn {
    const key = nameKey(name);
    const column = this.#table.columnByKey.get(key);
    if (column) return this.#columns.get(column.name)!;
    if (this.#table.generated.has(key)) throw wrong(name, "this column is generated; leave it out");
    throw wrong(name, `${this.#table.name} has no such column`);
  }

  /** `{"name": 1, "NAME": 2}`: SQLite would silently take one of them. */
  #refuseRepeats(shape: string): void {
    const slots = readShape(this.#table, shape);
    const twice = slots.find(
      (slot, at) => slots.findIndex((other) => other.column === slot.column) < at,
    );
    if (twice) throw wrong(twice.column.name, "this column is given twice");
  }
}

/** What cannot be decided without the row; undefined where the value is what it seems, or can be in no row. */
function doubtOf(column: InputColumn, given: unknown): Doubt | undefined {
  const isScalar = typeof given !== "object" || given instanceof RealNumber;
  if (!isScalar || typeof given === "boolean") return undefined;
  if (typeof given === "string" && !given.isWellFormed()) return undefined;
  const otherwise = bindingOrRefusal(column, given);
  // A text of these characters, a BLOB and a text that is not UTF-8 are read as the same string.
  const mayBeBytes = typeof given === "string" && wireHex(given) !== undefined;
  if (!mayBeBytes && !(otherwise instanceof RequestError)) return undefined;
  return { name: column.name, given, code: column.code, otherwise };
}

function bindingOrRefusal(column: InputColumn, given: unknown): Binding | RequestError {
  try {
    return toBinding(column, given);
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    return error;
  }
}

/**
 * The change with its doubts decided by the row as answers have it: what is there already is left as it
 * is, and is no part of the change.
 */
export function withoutDoubts(
  row: RowInput,
  doubts: readonly Doubt[],
  storedJson: string,
): RowInput | RequestError {
  const stored = parseJson(storedJson) as Readonly<Record<string, unknown>>;
  const values = [...row.values];
  let { shape } = row;
  for (const { name, given, code, otherwise } of doubts) {
    if (isSame(stored[name], given)) continue;
    if (otherwise instanceof RequestError) return otherwise;
    values.push(otherwise);
    shape += code;
  }
  return { id: row.id, shape, values };
}

function isSame(stored: unknown, given: unknown): boolean {
  if (stored instanceof RealNumber && given instanceof RealNumber)
    return Object.is(stored.value, given.value);
  return stored === given;
}

/** Says which row of a batch was wrong. */
export function atIndex(error: RequestError, index: number): RequestError {
  return new RequestError(error.status, `[${index}]: ${error.message}`);
}

function toInputColumn(table: SyncedTable, column: Column, index: number): InputColumn {
  const made = serverMade(table);
  const isServerMade = [table.version, made.createdAt, made.nodeId].includes(column);
  return {
    name: column.name,
    role: column === table.id ? "id" : isServerMade ? "server" : "given",
    kind: columnKind(column),
    takesBoolean: isBoolean(column),
    code: String.fromCharCode(index << 1),
    codeAsReal: String.fromCharCode((index << 1) | 1),
  };
}

function wrong(place: string, what: string): RequestError {
  return new RequestError(400, `${place}: ${what}`);
}

const UUID_LENGTH = 36;

/** Ids that clients choose must be as unlikely to clash as ours. Written in lower case, as RFC 9562 says. */
function readNewId(value: unknown): string {
  if (typeof value === "string" && value.length === UUID_LENGTH) {
    try {
      return UUID.parse(value).toString();
    } catch {
      // Falls through to the same refusal.
    }
  }
  throw wrong(
    "id",
    "expected a UUID such as 0189dcd5-5311-7d40-8db0-9496a2eef37b; leave it out to have one made",
  );
}

function toBinding(column: InputColumn, value: unknown): Binding {
  if (value === null) return null;
  switch (typeof value) {
    case "string":
      return fromString(column, value);
    case "number":
      return fromNumber(column, value);
    case "bigint":
      return fromBigInt(column, value);
    case "boolean":
      if (column.takesBoolean) return value ? 1 : 0;
      throw wrong(column.name, `expected ${EXPECTED[column.kind]}, not true or false`);
    default:
      if (value instanceof RealNumber) return fromReal(column, value.value);
      throw wrong(column.name, `expected ${EXPECTED[column.kind]}, not an array or object`);
  }
}

const EXPECTED: Readonly<Record<ColumnKind, string>> = {
  integer: "an integer",
  real: "a number",
  text: "a string",
  numeric: "a number or a string",
  blob: 'a BLOB as a string such as "\\x00ff"',
  any: "a number or a string",
};

function fromString(column: InputColumn, value: string): Binding {
  switch (column.kind) {
    case "integer":
    case "real":
      throw wrong(column.name, `expected ${EXPECTED[column.kind]}, not a string`);
    case "text":
    case "numeric":
      break;
    case "blob":
    case "any": {
      const hex = wireHex(value);
      if (hex !== undefined) return Uint8Array.fromHex(hex);
      if (column.kind === "blob") throw wrong(column.name, `expected ${EXPECTED.blob}`);
    }
  }
  // SQLite would store U+FFFD in its place, and two different texts would become one.
  if (!value.isWellFormed()) throw wrong(column.name, "the string has half of a surrogate pair");
  return value;
}

function fromNumber(column: InputColumn, value: number): Binding {
  if (column.kind === "text" || column.kind === "blob") {
    throw wrong(column.name, `expected ${EXPECTED[column.kind]}, not a number`);
  }
  if (column.kind === "integer" && !Number.isInteger(value)) {
    throw wrong(column.name, "expected an integer, not a fraction");
  }
  // -0 is an integer in JSON and would be bound as REAL.
  return value === 0 && column.kind !== "real" ? 0 : value;
}

function fromBigInt(column: InputColumn, value: bigint): Binding {
  if (column.kind === "text" || column.kind === "blob") {
    throw wrong(column.name, `expected ${EXPECTED[column.kind]}, not a number`);
  }
  if (column.kind === "real") return Number(value);
  // Bun would bind what is left of it after a cut to 64 bits.
  if (value >= INT64_MIN && value <= INT64_MAX) return value;
  if (column.kind === "integer") throw outside64Bits(column);
  return Number(value);
}

function fromReal(column: InputColumn, value: number): Binding {
  if (column.kind !== "integer") return fromNumber(column, value);
  if (!Number.isInteger(value) || value >= 2 ** 63 || value < -(2 ** 63))
    throw outside64Bits(column);
  return BigInt(value);
}

function outside64Bits(column: InputColumn): RequestError {
  return wrong(
    column.name,
    "expected an integer of at most 64 bits (-9223372036854775808 to 9223372036854775807)",
  );
}
