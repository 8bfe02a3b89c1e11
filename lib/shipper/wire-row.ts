/**
 * What a captured row needs on the wire besides its text, found in the bytes of that text.
 *
 * BLOBs: the log marks them (store/row-json.ts), the wire names their columns in "blobs".
 * Text that is not valid UTF-8: SQLite stores any bytes as text and its JSON functions pass them on
 * as they are, but a body must be UTF-8: receivers of every make would put U+FFFD in place of the
 * bytes, and the nodes would differ for ever. Such a value travels as the string `\x` + hex of its
 * bytes, and its column is named in "texts" (DESIGN.md, "Capture triggers").
 *
 * Nearly all rows need neither, and a look at the finished body tells.
 */
import { isUtf8 } from "node:buffer";
import { BLOB_MARK } from "../store/row-json.ts";

/** A captured row whose text can be sent, and the columns that were spelled in hex for it. */
export interface SpelledRow {
  readonly text: string;
  readonly texts: readonly string[];
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const COMMA = 0x2c;
const BRACE_OPEN = 0x7b;
const BRACE_CLOSE = 0x7d;
const BRACKET_OPEN = 0x5b;
const BRACKET_CLOSE = 0x5d;
const LETTER_U = 0x75;

/** What a one-letter escape stands for. */
const ESCAPES: Readonly<Record<number, number>> = {
  98: 0x08,
  102: 0x0c,
  110: 0x0a,
  114: 0x0d,
  116: 0x09,
};

/** Whether a BLOB is somewhere in this body. */
export function hasBlobMark(json: Uint8Array): boolean {
  return Buffer.from(json.buffer, json.byteOffset, json.length).includes(BLOB_MARK);
}

/**
 * The columns whose value is a BLOB. The mark cannot be inside a string: a quote in there is escaped,
 * and what follows it begins with two backslashes where the text has one.
 */
export function blobColumns(change: string): string[] {
  const columns: string[] = [];
  let at = change.indexOf(BLOB_MARK);
  for (; at >= 0; at = change.indexOf(BLOB_MARK, at + BLOB_MARK.length)) {
    const colon = skipSpaceBack(change, at - 1);
    const end = skipSpaceBack(change, colon - 1);
    if (change[colon] !== ":" || change[end] !== '"') continue;
    const name: unknown = JSON.parse(change.slice(startOfString(change, end), end + 1));
    columns.push(String(name));
  }
  return columns;
}

function skipSpaceBack(json: string, from: number): number {
  let at = from;
  while (at > 0 && json.charCodeAt(at) <= 0x20) at -= 1;
  return at;
}

/** The place of the quote that opens the string whose closing quote is here. */
function startOfString(json: string, end: number): number {
  for (let at = json.lastIndexOf('"', end - 1); ; at = json.lastIndexOf('"', at - 1)) {
    let backslashes = 0;
    while (json[at - 1 - backslashes] === "\\") backslashes += 1;
    if (at <= 0 || backslashes % 2 === 0) return Math.max(at, 0);
  }
}

/**
 * Spells every text of the row that is not UTF-8. Bytes that are wrong elsewhere (a column's name, a
 * row that is no object) have no such way out: they become U+FFFD.
 */
export function spellRow(row: Uint8Array): SpelledRow {
  const texts: string[] = [];
  let text = "";
  let keptFrom = 0;
  for (const member of membersOf(row)) {
    const value = row.subarray(member.from, member.to);
    if (row[member.from] !== QUOTE || isUtf8(value)) continue;
    text += lossy(row.subarray(keptFrom, member.from)) + spellText(unescaped(value));
    keptFrom = member.to;
    texts.push(String(JSON.parse(lossy(row.subarray(member.nameFrom, member.nameTo)))));
  }
  return { text: text + lossy(row.subarray(keptFrom)), texts };
}

/** The JSON string that stands for these bytes. */
export function spellText(bytes: Uint8Array): string {
  return `"\\\\x${bytes.toHex()}"`;
}

/** Text for people and for what cannot be spelled: wrong bytes become U+FFFD. */
export function lossy(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

interface Member {
  readonly nameFrom: number;
  readonly nameTo: number;
  readonly from: number;
  readonly to: number;
}

/** The members of a JSON object, as far as it is one. */
function* membersOf(json: Uint8Array): Generator<Member> {
  let at = skipSpace(json, 0);
  if (json[at] !== BRACE_OPEN) return;
  for (;;) {
    const nameFrom = skipSpace(json, at + 1);
    if (json[nameFrom] !== QUOTE) return;
    const nameTo = endOfString(json, nameFrom);
    const colon = skipSpace(json, nameTo);
    if (json[colon] !== COLON) return;
    const from = skipSpace(json, colon + 1);
    const to = endOfValue(json, from);
    yield { nameFrom, nameTo, from, to };
    at = skipSpace(json, to);
    if (json[at] !== COMMA) return;
  }
}

function skipSpace(json: Uint8Array, from: number): number {
  let at = from;
  while (json[at] === 0x20 || json[at] === 0x09 || json[at] === 0x0a || json[at] === 0x0d) at += 1;
  return at;
}

/** The place after the string that starts here. Long ones are BLOBs, which have no escapes. */
function endOfString(json: Uint8Array, from: number): number {
  for (let at = from + 1; ; at += 1) {
    at = json.indexOf(QUOTE, at);
    if (at < 0) return json.length;
    let backslashes = 0;
    while (json[at - 1 - backslashes] === BACKSLASH) backslashes += 1;
    if (backslashes % 2 === 0) return at + 1;
  }
}

/** The place after the value that starts here; objects and arrays are skipped whole. */
function endOfValue(json: Uint8Array, from: number): number {
  let at = from;
  let depth = 0;
  while (at < json.length) {
    const byte = json[at];
    if (byte === QUOTE) {
      at = endOfString(json, at);
      if (depth === 0) return at;
      continue;
    }
    if (depth === 0 && (byte === COMMA || byte === BRACE_CLOSE)) return at;
    if (byte === BRACE_OPEN || byte === BRACKET_OPEN) depth += 1;
    if (byte === BRACE_CLOSE || byte === BRACKET_CLOSE) depth -= 1;
    at += 1;
  }
  return at;
}

/** The bytes that a JSON string stands for. */
function unescaped(literal: Uint8Array): Uint8Array {
  const bytes: number[] = [];
  let at = 1;
  const end = literal.length - 1;
  while (at < end) {
    const byte = literal[at]!;
    if (byte !== BACKSLASH) {
      bytes.push(byte);
      at += 1;
    } else if (literal[at + 1] === LETTER_U) {
      const run = unicodeRun(literal, at);
      bytes.push(...new TextEncoder().encode(run.text));
      at = run.to;
    } else {
      const letter = literal[at + 1]!;
      bytes.push(ESCAPES[letter] ?? letter);
      at += 2;
    }
  }
  return Uint8Array.from(bytes);
}

/** Escapes in a row are read together: a character outside the first plane takes two of them. */
function unicodeRun(literal: Uint8Array, from: number): { text: string; to: number } {
  let text = "";
  let at = from;
  while (literal[at] === BACKSLASH && literal[at + 1] === LETTER_U) {
    const digits = String.fromCharCode(...literal.subarray(at + 2, at + 6));
    text += String.fromCharCode(Number.parseInt(digits, 16));
    at += 6;
  }
  return { text, to: at };
}
