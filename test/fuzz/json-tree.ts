/**
 * JSON as it is spelled: a strict reader and a writer that keep what JSON.parse forgets, the text of
 * numbers, repeated members and their order. Written apart from lib's own reading, to be held against it.
 */
import type { Seeded } from "../support/seeded.ts";

export type Json =
  /** null, true, false or a number, as it stands. */
  | { readonly kind: "token"; readonly text: string }
  | { readonly kind: "string"; readonly value: string }
  | { readonly kind: "array"; readonly items: readonly Json[] }
  | { readonly kind: "object"; readonly members: readonly Member[] };

export interface Member {
  readonly name: string;
  readonly value: Json;
}

export const token = (text: string): Json => ({ kind: "token", text });
export const text = (value: string): Json => ({ kind: "string", value });
export const array = (items: readonly Json[]): Json => ({ kind: "array", items });
export const object = (members: readonly (readonly [string, Json])[]): Json => ({
  kind: "object",
  members: members.map(([name, value]) => ({ name, value })),
});

/** Of repeated members the last, as JSON.parse has it. */
export function memberOf(json: Json | undefined, name: string): Json | undefined {
  if (json?.kind !== "object") return undefined;
  return json.members.findLast((member) => member.name === name)?.value;
}

// ── Reading ─────────────────────────────────────────────────────────────────────────────────────

export class JsonError extends Error {
  override name = "JsonError";
}

/** Past it nothing is read any more; lib refuses much earlier. */
const DEPTH_MAX = 1_000;
const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const WORD = /null|true|false/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids them in strings.
const STRING = /"((?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"/y;

/** Throws a JsonError for what RFC 8259 does not allow. */
export function readJson(source: string): Json {
  let at = 0;
  const take = (pattern: RegExp): RegExpExecArray | null => {
    pattern.lastIndex = at;
    const match = pattern.exec(source);
    if (match) at = pattern.lastIndex;
    return match;
  };
  const skip = (character: string): boolean => {
    take(SPACE);
    if (source[at] !== character) return false;
    at++;
    return true;
  };
  const fail = (): never => {
    throw new JsonError(`not JSON at ${at}`);
  };
  const readString = (): string => {
    take(SPACE);
    const match = take(STRING) ?? fail();
    return match[1]!.replace(/\\(?:u(....)|(.))/g, (_, hex, letter) =>
      hex === undefined
        ? (ESCAPES[letter as keyof typeof ESCAPES] ?? letter)
        : String.fromCharCode(Number.parseInt(hex, 16)),
    );
  };
  const read = (depth: number): Json => {
    if (depth > DEPTH_MAX) throw new JsonError("too deep");
    take(SPACE);
    if (source[at] === '"') return text(readString());
    if (skip("[")) {
      const items: Json[] = [];
      if (skip("]")) return array(items);
      do items.push(read(depth + 1));
      while (skip(","));
      return skip("]") ? array(items) : fail();
    }
    if (skip("{")) {
      const members: Member[] = [];
      if (skip("}")) return { kind: "object", members };
      do {
        const name = readString();
        if (!skip(":")) fail();
        members.push({ name, value: read(depth + 1) });
      } while (skip(","));
      return skip("}") ? { kind: "object", members } : fail();
    }
    return token((take(WORD) ?? take(NUMBER) ?? fail())[0]!);
  };
  const json = read(0);
  take(SPACE);
  return at === source.length ? json : fail();
}

const ESCAPES = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

/** How many objects and arrays stand in each other. */
export function depthOf(json: Json): number {
  if (json.kind === "array") return 1 + Math.max(0, ...json.items.map(depthOf));
  if (json.kind === "object")
    return 1 + Math.max(0, ...json.members.map(({ value }) => depthOf(value)));
  return 0;
}

// ── Writing ─────────────────────────────────────────────────────────────────────────────────────

/** The plainest spelling. */
export function plain(json: Json): string {
  return write(json, JSON.stringify, () => "");
}

/** As some writer somewhere might spell it: blanks, and any character as an escape. */
export function spelled(json: Json, random: Seeded): string {
  const spaces = random.chance(0.2) ? ["", "", " ", "\n", "\t\r\n "] : [""];
  const escapes = random.pick([0, 0, 0.05, 0.5]);
  const string = (value: string) => {
    if (!random.chance(escapes)) return JSON.stringify(value);
    let escaped = "";
    for (let i = 0; i < value.length; i++) {
      const hex = value.charCodeAt(i).toString(16).padStart(4, "0");
      escaped += `\\u${random.chance(0.5) ? hex : hex.toUpperCase()}`;
    }
    return `"${escaped}"`;
  };
  return write(json, string, () => random.pick(spaces));
}

function write(json: Json, string: (value: string) => string, space: () => string): string {
  const list = (open: string, parts: readonly string[], close: string) =>
    `${open}${space()}${parts.join(`${space()},${space()}`)}${space()}${close}`;
  const of = (value: Json): string => write(value, string, space);
  switch (json.kind) {
    case "token":
      return json.text;
    case "string":
      return string(json.value);
    case "array":
      return list("[", json.items.map(of), "]");
    case "object":
      return list(
        "{",
        json.members.map(({ name, value }) => `${string(name)}${space()}:${space()}${of(value)}`),
        "}",
      );
  }
}
