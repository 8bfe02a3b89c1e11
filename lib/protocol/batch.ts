/**
 * The body of POST /sync, read once at the edge (PROTOCOL.md, "POST /sync").
 *
 * Only a body that is no batch at all is refused (BatchError, a 400): a 400 for one bad change would
 * block a foreign sender for ever. What is wrong inside a change is found later and parked, with
 * the change as it came. JSON.parse alone would not do: it forgets digits, repeated members and the
 * text of a change. So one scan over the bytes notes where each change and row stands, how many
 * members they have, and whether a row holds numbers whose text must be looked at.
 */
import { isUtf8 } from "node:buffer";
import { JSON_DEPTH_MAX } from "./limits.ts";

/** The body is not a batch. `message` names the place. */
export class BatchError extends Error {
  override name = "BatchError";
}

export type JsonValue =
  | null
  | boolean
  | number
  | string
  | readonly JsonValue[]
  | { readonly [member: string]: JsonValue };

export interface ReceivedBatch {
  readonly batchId: number;
  readonly changes: readonly ReceivedChange[];
}

/** One element of `changes`, whatever it is. */
export interface ReceivedChange {
  readonly value: JsonValue;
  /** A member stands twice, in the change or in its row: readers would disagree about it. */
  readonly repeatsMember: boolean;
  /** A number of the row must be read from its text: 16 digits or more, a point, an exponent, -0. */
  readonly delicate: boolean;
  /** A string holds an escaped half of a surrogate pair, perhaps without its other half. */
  readonly surrogates: boolean;
  /** The JSON text of the change as it came. */
  source(): string;
  /** The JSON text of its row as it came; undefined where it has none. */
  rowSource(): string | undefined;
  /** The number tokens of the row's members, by member name. Call only where `delicate`. */
  rowTokens(): ReadonlyMap<string, string>;
}

const QUOTE = 34;
const BACKSLASH = 92;
const COLON = 58;
const OPEN_BRACE = 123;
const CLOSE_BRACE = 125;
const OPEN_BRACKET = 91;
const CLOSE_BRACKET = 93;
const COMMA = 44;
const MINUS = 45;
const DIGITS_EXACT_MAX = 15;

export function parseBatch(body: Uint8Array): ReceivedBatch {
  if (body.length === 0) throw new BatchError("the body is empty; a batch is a JSON object");
  if (!isUtf8(body)) throw new BatchError("the body is not valid UTF-8");
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(body);
  refuseDepth(body);
  let envelope: JsonValue;
  try {
    envelope = JSON.parse(text);
  } catch (error) {
    throw new BatchError(`the body is not JSON: ${(error as Error).message}`);
  }
  if (!isObject(envelope)) throw new BatchError("the body is not a JSON object");
  const batchId = member(envelope, "batch_id");
  if (!Number.isSafeInteger(batchId)) {
    throw new BatchError(
      `batch_id is ${batchId === undefined ? "missing" : "not an integer"}; expected the largest change id of the batch`,
    );
  }
  const changes = member(envelope, "changes");
  if (changes === undefined) throw new BatchError("changes is missing; expected an array");
  if (changes === null) return { batchId: batchId as number, changes: [] };
  if (!Array.isArray(changes)) throw new BatchError("changes is not an array");
  const spans = scanBatch(body, changes.length);
  return {
    batchId: batchId as number,
    changes: changes.map((value, index) => toChange(body, value, spans[index]!)),
  };
}

/** One change that was kept as text, as `parked` changes are. */
export function parseChange(source: string): ReceivedChange {
  return parseBatch(new TextEncoder().encode(`{"batch_id":0,"changes":[${source}]}`)).changes[0]!;
}

export function isObject(
  value: JsonValue | undefined,
): value is { readonly [member: string]: JsonValue } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An own member, never one of the prototype. */
export function member(
  object: { readonly [member: string]: JsonValue },
  name: string,
): JsonValue | undefined {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

interface Span {
  start: number;
  end: number;
  members: number;
  rowStart: number;
  rowEnd: number;
  rowMembers: number;
  delicate: boolean;
  surrogates: boolean;
}

function toChange(body: Uint8Array, value: JsonValue, span: Span): ReceivedChange {
  let repeatsMember = false;
  if (isObject(value)) {
    const row = member(value, "row");
    repeatsMember =
      Object.keys(value).length !== span.members ||
      (isObject(row) && Object.keys(row).length !== span.rowMembers);
  }
  return {
    value,
    repeatsMember,
    delicate: span.delicate,
    surrogates: span.surrogates,
    source: () => new TextDecoder().decode(body.subarray(span.start, span.end)),
    rowSource: () =>
      span.rowEnd === 0
        ? undefined
        : new TextDecoder().decode(body.subarray(span.rowStart, span.rowEnd)),
    rowTokens: () => numberTokens(body, span.rowStart, span.rowEnd),
  };
}

/** Before JSON.parse: a nested bomb must not reach a recursive parser. */
function refuseDepth(body: Uint8Array): void {
  let depth = 0;
  const length = body.length;
  for (let i = 0; i < length; i++) {
    const byte = body[i]!;
    if (byte === QUOTE) i = stringEnd(body, i);
    else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
      depth++;
      if (depth > JSON_DEPTH_MAX) {
        throw new BatchError(
          `the body is nested deeper than ${JSON_DEPTH_MAX} levels at byte ${i}`,
        );
      }
    } else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) depth--;
  }
}

/** Position of the closing quote of the string that opens at `at` (or the end of the body). */
function stringEnd(body: Uint8Array, at: number): number {
  const length = body.length;
  let i = at + 1;
  while (i < length && body[i] !== QUOTE) i += body[i] === BACKSLASH ? 2 : 1;
  return i;
}

/**
 * The body is valid JSON here. Depth 1 is the envelope, 2 its arrays and objects, 3 the elements of
 * `changes`, 4 what they hold.
 */
function scanBatch(body: Uint8Array, expected: number): Span[] {
  const spans: Span[] = [];
  const start = changesStart(body);
  let span: Span | undefined;
  let depth = 0;
  let keyStart = 0;
  let keyEnd = 0;
  let inRow = false;
  for (let i = start; spans.length < expected || span; i++) {
    const byte = body[i]!;
    if (span === undefined && byte !== OPEN_BRACE && depth === 1) {
      // A number, string or the like where a change should be: it is a span without members.
      if (byte === COMMA || byte <= 32) continue;
      const end = valueEnd(body, i);
      spans.push(emptySpan(i, end));
      i = end - 1;
      continue;
    }
    switch (byte) {
      case QUOTE: {
        const end = stringEnd(body, i);
        if (depth === 2) {
          keyStart = i;
          keyEnd = end;
        }
        if (span && hasSurrogateEscape(body, i, end)) span.surrogates = true;
        i = end;
        break;
      }
      case COLON:
        if (depth === 2) span!.members++;
        else if (depth === 3 && inRow) span!.rowMembers++;
        break;
      case OPEN_BRACE:
      case OPEN_BRACKET:
        depth++;
        if (depth === 2) {
          span = emptySpan(i, i);
        } else if (depth === 3 && byte === OPEN_BRACE && isRowKey(body, keyStart, keyEnd)) {
          inRow = true;
          span!.rowStart = i;
          span!.rowMembers = 0;
        }
        break;
      case CLOSE_BRACE:
      case CLOSE_BRACKET:
        depth--;
        if (depth === 2 && inRow) {
          inRow = false;
          span!.rowEnd = i + 1;
        } else if (depth === 1 && span) {
          span.end = i + 1;
          spans.push(span);
          span = undefined;
        }
        break;
      default:
        if (byte === MINUS || (byte >= 48 && byte <= 57)) {
          const end = numberEnd(body, i);
          if (inRow && isDelicate(body, i, end)) span!.delicate = true;
          i = end - 1;
        }
    }
  }
  return spans;
}

function emptySpan(start: number, end: number): Span {
  return {
    start,
    end,
    members: 0,
    rowStart: 0,
    rowEnd: 0,
    rowMembers: 0,
    delicate: false,
    surrogates: false,
  };
}

/** Where the last `changes` member's array opens: JSON.parse takes the last of repeated members, too. */
function changesStart(body: Uint8Array): number {
  let depth = 0;
  let found = 0;
  let key = "";
  for (let i = 0; i < body.length; i++) {
    const byte = body[i]!;
    if (byte === QUOTE) {
      const end = stringEnd(body, i);
      if (depth === 1) key = decodeKey(body, i, end);
      i = end;
    } else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
      depth++;
      if (depth === 2 && byte === OPEN_BRACKET && key === "changes") {
        found = i;
        // Almost always the last member; looking further costs one more pass over a large body.
        const end = skipValue(body, i);
        depth--;
        i = end - 1;
      }
    } else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) depth--;
  }
  return found;
}

function skipValue(body: Uint8Array, at: number): number {
  let depth = 0;
  for (let i = at; i < body.length; i++) {
    const byte = body[i]!;
    if (byte === QUOTE) i = stringEnd(body, i);
    else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++;
    else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) {
      depth--;
      if (depth === 0) return i + 1;
    }
  }
  return body.length;
}

function valueEnd(body: Uint8Array, at: number): number {
  const byte = body[at]!;
  if (byte === QUOTE) return stringEnd(body, at) + 1;
  if (byte === OPEN_BRACKET) return skipValue(body, at);
  let i = at;
  while (i < body.length && body[i] !== COMMA && body[i] !== CLOSE_BRACKET && body[i]! > 32) i++;
  return i;
}

function decodeKey(body: Uint8Array, start: number, end: number): string {
  return JSON.parse(new TextDecoder().decode(body.subarray(start, end + 1)));
}

function isRowKey(body: Uint8Array, start: number, end: number): boolean {
  if (end - start === 4) {
    return body[start + 1] === 114 && body[start + 2] === 111 && body[start + 3] === 119;
  }
  return body.subarray(start, end).includes(BACKSLASH) && decodeKey(body, start, end) === "row";
}

function hasSurrogateEscape(body: Uint8Array, start: number, end: number): boolean {
  for (let i = start + 1; i < end; i++) {
    if (body[i] !== BACKSLASH) continue;
    // \uD8.. to \uDF..
    if (
      body[i + 1] === 117 &&
      (body[i + 2]! | 32) === 100 &&
      !(body[i + 3]! >= 48 && body[i + 3]! <= 55)
    ) {
      return true;
    }
    i++;
  }
  return false;
}

function numberEnd(body: Uint8Array, at: number): number {
  let i = at + 1;
  for (; i < body.length; i++) {
    const byte = body[i]!;
    const inNumber =
      (byte >= 48 && byte <= 57) ||
      byte === 46 ||
      byte === 69 ||
      byte === 101 ||
      byte === 43 ||
      byte === MINUS;
    if (!inNumber) break;
  }
  return i;
}

function isDelicate(body: Uint8Array, start: number, end: number): boolean {
  if (end - start > DIGITS_EXACT_MAX) return true;
  if (body[start] === MINUS && body[start + 1] === 48) return true;
  for (let i = start + 1; i < end; i++) if (body[i]! < 48 || body[i]! > 57) return true;
  return false;
}

/** The row's own numbers by member name; the row is a valid JSON object. */
function numberTokens(body: Uint8Array, start: number, end: number): Map<string, string> {
  const tokens = new Map<string, string>();
  let depth = 0;
  let key = "";
  for (let i = start; i < end; i++) {
    const byte = body[i]!;
    if (byte === QUOTE) {
      const close = stringEnd(body, i);
      if (depth === 1 && isKey(body, close + 1)) key = decodeKey(body, i, close);
      i = close;
    } else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++;
    else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) depth--;
    else if (depth === 1 && (byte === MINUS || (byte >= 48 && byte <= 57))) {
      const close = numberEnd(body, i);
      tokens.set(key, new TextDecoder().decode(body.subarray(i, close)));
      i = close - 1;
    }
  }
  return tokens;
}

function isKey(body: Uint8Array, at: number): boolean {
  let i = at;
  while (body[i]! <= 32) i++;
  return body[i] === COLON;
}
