/**
 * A change as one line of JSON, for frames and for transactions that are held on disk. Exact for
 * every value; 64-bit numbers as text, since JSON readers of other makes lose digits above 2^53.
 *
 *   insert  ["+", table, rowid, [values]]      put     ["*", table, rowid or null, [values]]
 *   update  ["=", table, rowid, [values]]      remove  ["/", table, rowid or null, [values of the key]]
 *   delete  ["-", table, rowid]                schema  ["!", sql]
 *
 * A value is null, a string (TEXT), a number without a fraction (INTEGER) or with one (REAL), or an
 * object for what JSON cannot tell: {"i": digits} {"r": REAL} {"b": base64 BLOB}, also {"h": hex BLOB},
 * {"t": base64 of a TEXT that is not UTF-8}.
 */
import { BrokenText, type CdcChange, type CdcValue } from "./change.ts";
import { CdcError } from "./error.ts";

const KINDS = {
  insert: "+",
  update: "=",
  delete: "-",
  put: "*",
  remove: "/",
  schema: "!",
} as const;

/** The change as JSON, without a line break in it. */
export function encodeChange(change: CdcChange): string {
  const mark = KINDS[change.kind];
  switch (change.kind) {
    case "schema":
      return JSON.stringify([mark, change.sql]);
    case "delete":
      return JSON.stringify([mark, change.table, change.rowid.toString()]);
    default: {
      const values = change.kind === "remove" ? change.key : change.values;
      const rowid = change.rowid?.toString() ?? null;
      return JSON.stringify([mark, change.table, rowid, values.map(encodeValue)]);
    }
  }
}

function encodeValue(value: CdcValue): unknown {
  if (value === null || typeof value === "string") return value;
  if (typeof value === "bigint") {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : { i: value.toString() };
  }
  if (typeof value === "number") {
    if (Number.isFinite(value) && !Number.isInteger(value)) return value;
    return { r: Object.is(value, -0) ? "-0" : String(value) };
  }
  if (value instanceof BrokenText) return { t: Buffer.from(value.bytes).toString("base64") };
  return { b: Buffer.from(value).toString("base64") };
}

/** The change that a line holds. Throws a CdcError for anything else. */
export function decodeChange(line: string): CdcChange {
  let parts: unknown;
  try {
    parts = JSON.parse(line);
  } catch (cause) {
    throw new CdcError("malformed", "a change that is not JSON", cause);
  }
  if (!Array.isArray(parts)) throw malformed("no array");
  const [mark, first, rowid, values] = parts as readonly unknown[];
  if (typeof first !== "string") throw malformed("no name");
  if (mark === "!" && parts.length === 2) return { kind: "schema", sql: first };
  if (mark === "-" && parts.length === 3) {
    return { kind: "delete", table: first, rowid: readInt64(rowid) };
  }
  if ((mark === "+" || mark === "=") && parts.length === 4 && Array.isArray(values)) {
    const kind = mark === "+" ? "insert" : "update";
    return { kind, table: first, rowid: readInt64(rowid), values: values.map(decodeValue) };
  }
  if ((mark === "*" || mark === "/") && parts.length === 4 && Array.isArray(values)) {
    const common = { table: first, rowid: rowid === null ? null : readInt64(rowid) };
    const decoded = values.map(decodeValue);
    if (mark === "*") return { kind: "put", ...common, values: decoded };
    return { kind: "remove", ...common, key: decoded };
  }
  throw malformed("an unknown form");
}

function malformed(what: string): CdcError {
  return new CdcError("malformed", `not a change: ${what}`);
}

const INT64_MAX = 9_223_372_036_854_775_807n;

/** A 64-bit integer from its digits. */
export function readInt64(text: unknown): bigint {
  if (typeof text !== "string" || !/^-?\d{1,19}$/.test(text)) throw malformed("no 64-bit number");
  const value = BigInt(text);
  if (value > INT64_MAX || value < -INT64_MAX - 1n) throw malformed("a number above 64 bits");
  return value;
}

/** A value as JSON.parse gave it. */
export function decodeValue(value: unknown): CdcValue {
  if (value === null || typeof value === "string") return value;
  if (typeof value === "number") return Number.isInteger(value) ? BigInt(value) : value;
  if (typeof value !== "object" || Array.isArray(value)) throw malformed("an unknown value");
  const members = Object.entries(value);
  const [name, content] = members[0] ?? [];
  if (members.length !== 1 || typeof content !== "string") throw malformed("an unknown value");
  switch (name) {
    case "i":
      return readInt64(content);
    case "r":
      return readReal(content);
    case "b":
      return readBase64(content);
    case "h":
      return readHex(content);
    case "t":
      return new BrokenText(readBase64(content));
    default:
      throw malformed("an unknown value");
  }
}

function readReal(text: string): number {
  if (!/^-?(?:Infinity|\d[\d.]*(?:e[+-]?\d+)?)$/.test(text)) throw malformed("no number");
  return Number(text);
}

function readHex(text: string): Uint8Array {
  // No pattern of pairs: it gives up, and says no, on a few million of them.
  if (text.length % 2 !== 0 || /[^0-9A-F]/.test(text)) throw malformed("no hex");
  return new Uint8Array(Buffer.from(text, "hex"));
}

/** Buffer skips what is no base64, which would turn a damaged value into another one. */
function readBase64(text: string): Uint8Array {
  const bytes = Buffer.from(text, "base64");
  if (bytes.toString("base64") !== text) throw malformed("no base64");
  return new Uint8Array(bytes);
}
