/**
 * SQLite's values on their way into a statement, each as exactly what it is. bun:sqlite binds 1.0 as
 * INTEGER, loses the sign of -0.0, and has no way to bind bytes as TEXT: there the statement says it.
 */

/** A bigint is INTEGER, a number is REAL; `bytes` of a TEXT that is not UTF-8. */
export type SqlValue =
  | null
  | bigint
  | number
  | string
  | Uint8Array
  | { readonly bytes: Uint8Array };

/** What stands for the value in the statement, with one `?`. */
export function placeOf(value: SqlValue): string {
  if (typeof value === "number") return "CAST(? AS REAL)";
  return isBrokenText(value) ? "CAST(? AS TEXT)" : "?";
}

/** What is bound there. */
export function boundTo(value: SqlValue): null | bigint | number | string | Uint8Array {
  if (isBrokenText(value)) return value.bytes;
  return Object.is(value, -0) ? "-0.0" : value;
}

/** Whether it is a TEXT that no string can hold. */
export function isBrokenText(value: SqlValue): value is { readonly bytes: Uint8Array } {
  return typeof value === "object" && value !== null && !(value instanceof Uint8Array);
}
