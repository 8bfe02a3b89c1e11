/**
 * One pass over the bytes of a batch, before JSON.parse sees them: where each change and each row
 * stands, how many members they have, and whether something in a row needs a closer look. JSON.parse
 * alone forgets digits, repeated members and the text of a change, and is not for nested bombs.
 *
 * The scan follows JSON's grammar only as far as it needs to find its way. Where it loses it, it ends
 * early, and JSON.parse, which is asked next, says what is wrong. So its findings count only for a body
 * that JSON.parse accepts (test/protocol/batch.test.ts compares the two on every kind of damage).
 */
import { JSON_DEPTH_MAX } from "./limits.ts";

/** Where in the body one element of `changes` stands; ends are exclusive. */
export interface ChangeSpan {
  readonly start: number;
  readonly end: number;
  /** Members of the change, repeated ones counted again; 0 where it is no object. */
  readonly members: number;
  /** 0 where it has no row, or one that is no object. */
  readonly rowStart: number;
  readonly rowEnd: number;
  readonly rowMembers: number;
  readonly isDelicate: boolean;
  readonly hasSurrogates: boolean;
}

/** Deeper than any reader should follow. `at` is the byte where it goes too far. */
export class DepthError extends Error {
  override name = "DepthError";
  readonly at: number;
  constructor(at: number) {
    super(`nested deeper than ${JSON_DEPTH_MAX} levels at byte ${at}`);
    this.at = at;
  }
}

const QUOTE = 34;
const PLUS = 43;
const COMMA = 44;
const MINUS = 45;
const POINT = 46;
const ZERO = 48;
const NINE = 57;
const COLON = 58;
const OPEN_BRACKET = 91;
const BACKSLASH = 92;
const CLOSE_BRACKET = 93;
const OPEN_BRACE = 123;
const CLOSE_BRACE = 125;

const CHANGES = [...new TextEncoder().encode("changes")];
const ROW = [...new TextEncoder().encode("row")];
/** Above 15 digits a float64 may not tell two integers apart. */
const DIGITS_EXACT_MAX = 15;
/** What has no place in the grammar; a position otherwise. */
const LOST = -1;

/** The spans of the last member called `changes`: JSON.parse keeps the last of repeated members, too. */
export function scanBatch(body: Uint8Array): ChangeSpan[] {
  return new Scanner(body).scanEnvelope();
}

/** The number tokens of a row's own members, by name; the row is a valid JSON object. */
export function numberTokens(body: Uint8Array, start: number, end: number): Map<string, string> {
  const row = body.subarray(start, end);
  const tokens = new Map<string, string>();
  const scanner = new Scanner(row);
  let at = scanner.skipSpace(1);
  while (row[at] === QUOTE) {
    const keyEnd = scanner.skipString(at);
    const from = scanner.skipSpace(scanner.skipSpace(keyEnd) + 1);
    const to = scanner.skipValue(from, 0);
    if (isNumberStart(row[from])) {
      tokens.set(readString(row, at, keyEnd), decoder.decode(row.subarray(from, to)));
    }
    at = scanner.skipSpace(scanner.skipSpace(to) + 1);
  }
  return tokens;
}

class Scanner {
  readonly #body: Uint8Array;
  /** What the row or change being scanned turned out to hold. */
  #isDelicate = false;
  #hasSurrogates = false;
  #rowStart = 0;
  #rowEnd = 0;
  #rowMembers = 0;

  constructor(body: Uint8Array) {
    this.#body = body;
  }

  scanEnvelope(): ChangeSpan[] {
    const body = this.#body;
    let spans: ChangeSpan[] = [];
    let at = this.skipSpace(0);
    if (body[at] !== OPEN_BRACE) {
      this.skipValue(at, 0);
      return spans;
    }
    at = this.skipSpace(at + 1);
    while (body[at] === QUOTE) {
      const keyStart = at;
      const keyEnd = this.skipString(at);
      if (keyEnd === LOST) break;
      at = this.skipSpace(keyEnd);
      if (body[at] !== COLON) break;
      at = this.skipSpace(at + 1);
      if (body[at] === OPEN_BRACKET && this.#isKey(keyStart, keyEnd, CHANGES, "changes")) {
        spans = [];
        at = this.#scanChanges(at, spans);
      } else at = this.skipValue(at, 1);
      if (at === LOST) break;
      at = this.skipSpace(at);
      if (body[at] !== COMMA) break;
      at = this.skipSpace(at + 1);
    }
    return spans;
  }

  #scanChanges(open: number, spans: ChangeSpan[]): number {
    const body = this.#body;
    let at = this.skipSpace(open + 1);
    if (body[at] === CLOSE_BRACKET) return at + 1;
    for (;;) {
      const start = at;
      this.#isDelicate = false;
      this.#hasSurrogates = false;
      this.#rowStart = 0;
      this.#rowEnd = 0;
      this.#rowMembers = 0;
      let members = 0;
      if (body[at] === OPEN_BRACE) {
        at = this.skipSpace(at + 1);
        while (body[at] === QUOTE) {
          members++;
          at = this.#scanChangeMember(at);
          if (at === LOST) return LOST;
          if (body[at] !== COMMA) break;
          at = this.skipSpace(at + 1);
        }
        if (body[at] !== CLOSE_BRACE) return LOST;
        at++;
      } else {
        at = this.skipValue(at, 2);
        if (at === LOST) return LOST;
      }
      spans.push({
        start,
        end: at,
        members,
        rowStart: this.#rowStart,
        rowEnd: this.#rowEnd,
        rowMembers: this.#rowMembers,
        isDelicate: this.#isDelicate,
        hasSurrogates: this.#hasSurrogates,
      });
      at = this.skipSpace(at);
      if (body[at] !== COMMA) return body[at] === CLOSE_BRACKET ? at + 1 : LOST;
      at = this.skipSpace(at + 1);
    }
  }

  /** From the opening quote of a key to what follows its value. */
  #scanChangeMember(keyStart: number): number {
    const body = this.#body;
    const keyEnd = this.skipString(keyStart);
    if (keyEnd === LOST) return LOST;
    let at = this.skipSpace(keyEnd);
    if (body[at] !== COLON) return LOST;
    at = this.skipSpace(at + 1);
    if (this.#isKey(keyStart, keyEnd, ROW, "row")) {
      // Of repeated rows the last counts, whatever it is.
      this.#isDelicate = false;
      this.#rowStart = 0;
      this.#rowEnd = 0;
      if (body[at] === OPEN_BRACE) {
        const end = this.#scanRow(at);
        if (end === LOST) return LOST;
        this.#rowStart = at;
        this.#rowEnd = end;
        return this.skipSpace(end);
      }
    }
    at = this.skipValue(at, 3);
    return at === LOST ? LOST : this.skipSpace(at);
  }

  #scanRow(open: number): number {
    const body = this.#body;
    let members = 0;
    let at = this.skipSpace(open + 1);
    while (body[at] === QUOTE) {
      members++;
      at = this.skipString(at);
      if (at === LOST) return LOST;
      at = this.skipSpace(at);
      if (body[at] !== COLON) return LOST;
      at = this.skipSpace(at + 1);
      const byte = body[at]!;
      if (byte === QUOTE) at = this.skipString(at);
      else if (isNumberStart(byte)) at = this.#scanNumber(at);
      else at = this.skipValue(at, 4);
      if (at === LOST) return LOST;
      at = this.skipSpace(at);
      if (body[at] !== COMMA) break;
      at = this.skipSpace(at + 1);
    }
    if (body[at] !== CLOSE_BRACE) return LOST;
    this.#rowMembers = members;
    return at + 1;
  }

  /** A number of the row: whether JSON.parse and a plain binding lose nothing of it. */
  #scanNumber(start: number): number {
    const body = this.#body;
    let at = body[start] === MINUS ? start + 1 : start;
    if (at > start && body[at] === ZERO) this.#isDelicate = true;
    const digits = at;
    while (body[at]! >= ZERO && body[at]! <= NINE) at++;
    if (at - digits > DIGITS_EXACT_MAX) this.#isDelicate = true;
    const end = this.#skipNumber(at);
    if (end > at) this.#isDelicate = true;
    return end;
  }

  /** Past the white space at `at`; rows of every make have none, so the first look decides. */
  skipSpace(at: number): number {
    const body = this.#body;
    let i = at;
    while (body[i]! <= 32 && i < body.length) i++;
    return i;
  }

  /** From an opening quote to the byte after the closing one. */
  skipString(open: number): number {
    const body = this.#body;
    const { length } = body;
    let i = open + 1;
    for (; i < length; i++) {
      const byte = body[i]!;
      if (byte === QUOTE) return i + 1;
      if (byte !== BACKSLASH) continue;
      i++;
      if (body[i] === 117 && isSurrogate(body[i + 1], body[i + 2])) this.#hasSurrogates = true;
    }
    return LOST;
  }

  /** Any value; `depth` is how many objects and arrays it stands in. */
  skipValue(start: number, depth: number): number {
    const body = this.#body;
    const byte = body[start];
    if (byte === QUOTE) return this.skipString(start);
    if (byte === OPEN_BRACE || byte === OPEN_BRACKET) return this.#skipNested(start, depth);
    if (isNumberStart(byte)) return this.#skipNumber(start);
    let at = start;
    while (body[at]! >= 97 && body[at]! <= 122) at++;
    return at === start ? LOST : at;
  }

  #skipNested(start: number, depth: number): number {
    const body = this.#body;
    let inside = depth;
    for (let at = start; at < body.length; at++) {
      const byte = body[at]!;
      if (byte === QUOTE) {
        at = this.skipString(at);
        if (at === LOST) return LOST;
        at--;
      } else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
        inside++;
        if (inside > JSON_DEPTH_MAX) throw new DepthError(at);
      } else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) {
        inside--;
        if (inside === depth) return at + 1;
      }
    }
    return LOST;
  }

  #skipNumber(start: number): number {
    const body = this.#body;
    let at = start;
    while (isNumberByte(body[at])) at++;
    return at;
  }

  /** Whether a key is `name`; one with escapes in it must be read to know. */
  #isKey(start: number, end: number, bytes: readonly number[], name: string): boolean {
    const body = this.#body;
    const { length } = bytes;
    if (end - start === length + 2) {
      for (let i = 0; i < length; i++) if (body[start + 1 + i] !== bytes[i]) return false;
      return true;
    }
    // An escape makes a key longer than what it stands for.
    if (end - start < length + 2 || end - start > 6 * length + 2) return false;
    for (let i = start; i < end; i++) {
      if (body[i] === BACKSLASH) return readString(body, start, end) === name;
    }
    return false;
  }
}

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** The string whose quotes stand at `start` and before `end`; empty where it is none. */
function readString(body: Uint8Array, start: number, end: number): string {
  try {
    return String(JSON.parse(decoder.decode(body.subarray(start, end))));
  } catch {
    // The body is not JSON, which JSON.parse will say of all of it.
    return "";
  }
}

/** Of `\uXXXX`, whether its first two digits are those of half a surrogate pair (D8 to DF). */
function isSurrogate(first: number | undefined, second: number | undefined): boolean {
  if (first === undefined || second === undefined || (first | 32) !== 100) return false;
  return second === 56 || second === NINE || ((second | 32) >= 97 && (second | 32) <= 102);
}

function isNumberStart(byte: number | undefined): boolean {
  return byte !== undefined && (byte === MINUS || (byte >= ZERO && byte <= NINE));
}

function isNumberByte(byte: number | undefined): boolean {
  if (byte === undefined) return false;
  if (byte >= ZERO && byte <= NINE) return true;
  return byte === POINT || byte === PLUS || byte === MINUS || (byte | 32) === 101;
}
