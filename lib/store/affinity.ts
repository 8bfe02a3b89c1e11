/**
 * What a column holds after SQLite's type affinity (https://www.sqlite.org/datatype3.html, section 3),
 * for the values where that is plain; test/store/affinity.test.ts compares with SQLite itself.
 */
import type { Value } from "../protocol/values.ts";
import type { Affinity } from "./schema.ts";

/** The value as stored, or undefined where only SQLite should say (numbers from text and back). */
export function afterAffinity(value: Value, affinity: Affinity): Value | undefined {
  if (affinity === "blob") return value;
  switch (value.kind) {
    case "integer":
      if (affinity === "text") return { kind: "text", value: value.value.toString() };
      return affinity === "real" ? { kind: "real", value: Number(value.value) } : value;
    case "real":
      if (affinity === "text") return undefined;
      return affinity === "real" ? value : wholeAsInteger(value);
    case "text":
      return affinity === "text" || !mayBeNumber(value.value) ? value : undefined;
    default:
      return value;
  }
}

/** SQLite leaves out both ends of the range. */
function wholeAsInteger(value: Value & { kind: "real" }): Value {
  const isWhole = Number.isInteger(value.value) && Math.abs(value.value) < 2 ** 63;
  return isWhole ? { kind: "integer", value: BigInt(value.value) } : value;
}

function mayBeNumber(text: string): boolean {
  return /^\s*[+-]?\.?\d/.test(text);
}
