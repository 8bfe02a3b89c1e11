/**
 * SQLite's values as JSON text carries them, exactly: the readers' side of lib/store/row-json.ts.
 * A row's JSON becomes values here wherever digits, REAL against INTEGER, or BLOB against text
 * matter: deciding ties, restoring parked changes, comparing nodes.
 */

/** One value of a row, with everything that SQLite tells apart. */
export type Value =
  | { readonly kind: "null" }
  | { readonly kind: "integer"; readonly value: bigint }
  | { readonly kind: "real"; readonly value: number }
  | { readonly kind: "text"; readonly value: string }
  /** Bytes as lower-case hex: a BLOB, or a text that is not UTF-8. */
  | { readonly kind: "blob"; readonly hex: string }
  | { readonly kind: "broken-text"; readonly hex: string };

/** Of a pair at a time it takes a second for a MiB. */
const WIRE_HEX = /^\\x[0-9a-f]*$/i;

/** The digits of what a BLOB or a broken text is on the wire, `\x` + hex; undefined where it is none. */
export function wireHex(text: string): string | undefined {
  return text.length % 2 === 0 && WIRE_HEX.test(text) ? text.slice(2) : undefined;
}

const INT64_MAX = 9_223_372_036_854_775_807n;
const INT64_MIN = -9_223_372_036_854_775_808n;

/** A number token of JSON as SQLite reads it: digits that fit 64 bits are an integer, all else REAL. */
export function readNumber(token: string): Value {
  if (/^-?\d+$/.test(token)) {
    const value = BigInt(token);
    if (value >= INT64_MIN && value <= INT64_MAX) return { kind: "integer", value };
  }
  return { kind: "real", value: Number(token) };
}

/**
 * What survives a node that keeps numbers as float64 and BLOBs as wire text (DESIGN.md, "Winner"):
 * null, a number, or a string. Two values with equal reduced forms must never make nodes disagree.
 */
export function reduce(value: Value): null | number | string {
  switch (value.kind) {
    case "null":
      return null;
    case "integer":
      return Number(value.value);
    case "real":
      return value.value;
    case "text":
      return value.value;
    case "blob":
    case "broken-text":
      return `\\x${value.hex}`;
  }
}

/** NULL < numbers < text, as BINARY orders; negative, 0 or positive. */
export function compareReduced(
  left: null | number | string,
  right: null | number | string,
): number {
  const rank = (value: null | number | string) =>
    value === null ? 0 : typeof value === "number" ? 1 : 2;
  if (rank(left) !== rank(right)) return rank(left) - rank(right);
  if (typeof left === "number" && typeof right === "number")
    return left < right ? -1 : left > right ? 1 : 0;
  if (typeof left === "string" && typeof right === "string") return compareUtf8(left, right);
  return 0;
}

/** By UTF-8 bytes, which JS's own comparison (UTF-16) is not for characters beyond the first plane. */
export function compareUtf8(left: string, right: string): number {
  if (left === right) return 0;
  return Buffer.compare(Buffer.from(left), Buffer.from(right));
}

/**
 * Of two values with equal reduced forms, whether `left` is the richer: what lost digits or its kind
 * on the way through a float64 node must never win over what it was. Total: 0 only for the same value.
 */
export function compareRichness(left: Value, right: Value): number {
  const difference = richness(left) - richness(right);
  if (difference !== 0) return difference;
  if (left.kind === "integer" && right.kind === "integer") {
    return left.value < right.value ? -1 : left.value > right.value ? 1 : 0;
  }
  return KINDS.indexOf(left.kind) - KINDS.indexOf(right.kind);
}

const KINDS: readonly Value["kind"][] = ["null", "integer", "real", "text", "blob", "broken-text"];

/**
 * A float64 node gives an integer back in one of two ways: with the fewest digits that tell its float
 * from others (a hub that writes JSON from it), or as the integer that its float is (a node that
 * stored it in SQLite). Integers that are such a form already rank below those that are not. One that
 * happens to be of the first form and not of the second cannot be told from an echo.
 */
function richness(value: Value): number {
  switch (value.kind) {
    case "integer": {
      const float = Number(value.value);
      const rewritten = readNumber(String(float));
      if (rewritten.kind === "integer" && rewritten.value === value.value) return 0;
      return BigInt(float) === value.value ? 1 : 2;
    }
    case "blob":
    case "broken-text":
      return 1;
    default:
      return 0;
  }
}

/** The value as JSON text, as row-json.ts writes it. */
export function formatValue(value: Value): string {
  switch (value.kind) {
    case "null":
      return "null";
    case "integer":
      return value.value.toString();
    case "real":
      if (!Number.isFinite(value.value)) return value.value > 0 ? "9.0e+999" : "-9.0e+999";
      return /[.e]/.test(String(value.value)) ? String(value.value) : `${value.value}.0`;
    case "text":
      return JSON.stringify(value.value);
    case "blob":
      return `"\\u005cx${value.hex}"`;
    case "broken-text":
      return JSON.stringify(`\\x${value.hex}`);
  }
}

/**
 * A row's JSON from its members, as row-json.ts writes it: bytes, since a text that is not UTF-8 stands in
 * them as it is. Spelled in hex it would come back as another text.
 */
export function formatRowJson(
  members: Iterable<readonly [name: string, value: Value]>,
): Uint8Array<ArrayBuffer> {
  const parts: Buffer[] = [];
  for (const [name, value] of members) {
    parts.push(Buffer.from(`${parts.length === 0 ? "{" : ","}${JSON.stringify(name)}:`));
    parts.push(value.kind === "broken-text" ? rawText(value.hex) : Buffer.from(formatValue(value)));
  }
  return new Uint8Array(Buffer.concat([...parts, Buffer.from(parts.length === 0 ? "{}" : "}")]));
}

/** (latin1 keeps each byte as one character.) */
function rawText(hex: string): Buffer {
  return Buffer.from(JSON.stringify(Buffer.from(hex, "hex").toString("latin1")), "latin1");
}

/**
 * The members of a row's JSON as row-json.ts writes it, in order. Takes bytes, since a text that is
 * not UTF-8 stands in them as it is.
 */
export function readRowJson(json: Uint8Array): Map<string, Value> {
  const row = new Map<string, Value>();
  let at = 1;
  while (at < json.length && json[at] === QUOTE) {
    const keyEnd = endOfString(json, at);
    const key = decodeString(json, at, keyEnd);
    at = keyEnd + 1; // the colon
    const end = json[at] === QUOTE ? endOfString(json, at) : endOfToken(json, at);
    row.set(key, json[at] === QUOTE ? readString(json, at, end) : readToken(json, at, end));
    at = end + 1;
  }
  return row;
}

const QUOTE = 34;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function endOfString(json: Uint8Array, at: number): number {
  let i = at + 1;
  while (json[i] !== QUOTE) i += json[i] === 92 ? 2 : 1;
  return i + 1;
}

function endOfToken(json: Uint8Array, at: number): number {
  let i = at;
  while (json[i] !== 44 && json[i] !== 125) i++;
  return i;
}

function decodeString(json: Uint8Array, at: number, end: number): string {
  return JSON.parse(utf8.decode(json.subarray(at, end)));
}

const BLOB_START = new TextEncoder().encode('"\\u005cx');

function readString(json: Uint8Array, at: number, end: number): Value {
  if (BLOB_START.every((byte, i) => json[at + i] === byte)) {
    return {
      kind: "blob",
      hex: new TextDecoder().decode(json.subarray(at + BLOB_START.length, end - 1)),
    };
  }
  try {
    return { kind: "text", value: decodeString(json, at, end) };
  } catch {
    // Not UTF-8: undo the escapes byte by byte. (latin1 keeps each byte as one character.)
    const characters: string = JSON.parse(Buffer.from(json.subarray(at, end)).toString("latin1"));
    return { kind: "broken-text", hex: Buffer.from(characters, "latin1").toString("hex") };
  }
}

function readToken(json: Uint8Array, at: number, end: number): Value {
  const token = new TextDecoder().decode(json.subarray(at, end)).trim();
  if (token === "null") return { kind: "null" };
  if (token === "true") return { kind: "integer", value: 1n };
  if (token === "false") return { kind: "integer", value: 0n };
  return readNumber(token);
}
