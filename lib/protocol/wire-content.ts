/**
 * The values of a row that a node of ours sent, exact, without knowing its table: what deciding
 * between two nodes' rows needs (winner.ts).
 */
import { isObject, type JsonValue, member, type ReceivedChange } from "./batch.ts";
import { readNumber, type Value, wireHex } from "./values.ts";
import type { Content } from "./winner.ts";

/** By lower-cased name; empty where the change has no row. */
export function wireContent(change: ReceivedChange): Content {
  const { value } = change;
  const row = isObject(value) ? member(value, "row") : undefined;
  if (!isObject(value) || !isObject(row)) return new Map();
  const blobs = namesIn(member(value, "blobs"));
  const texts = namesIn(member(value, "texts"));
  const tokens = change.delicate ? change.rowTokens() : new Map<string, string>();
  const content = new Map<string, Value>();
  for (const [name, json] of Object.entries(row)) {
    const hexKind = blobs.has(name) ? "blob" : texts.has(name) ? "broken-text" : undefined;
    content.set(asKey(name), readCell(json, tokens.get(name), hexKind));
  }
  return content;
}

function namesIn(names: JsonValue | undefined): ReadonlySet<JsonValue> {
  return new Set(Array.isArray(names) ? names : []);
}

function readCell(
  json: JsonValue,
  token: string | undefined,
  hexKind: "blob" | "broken-text" | undefined,
): Value {
  if (typeof json === "number") return readNumber(token ?? String(json));
  if (typeof json !== "string") return { kind: "null" };
  const hex = hexKind === undefined ? undefined : wireHex(json)?.toLowerCase();
  return hexKind === undefined || hex === undefined
    ? { kind: "text", value: json }
    : { kind: hexKind, hex };
}

function asKey(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}
