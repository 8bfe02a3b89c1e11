/**
 * Changes of a foreign node's own batch that a later one of the same row replaced without a new stamp:
 * what its users write twice within a millisecond, or without touching updated_at. Taken one by one they
 * would tie, and the content, not the order they were made in, would decide. Within one batch the order is
 * known; across batches it is not, and there the content decides for every node alike.
 */
import { isObject, type JsonValue, member, type ReceivedChange } from "../protocol/batch.ts";
import { nameKey } from "./sql.ts";

/** Places in a batch. */
export interface Superseded {
  has(at: number): boolean;
  /** What the change at this place replaced, the latest first. */
  by(at: number): readonly number[];
}

/** For batches of ours, and for most others. */
export const NOTHING_SUPERSEDED: Superseded = { has: () => false, by: () => [] };

interface LastOfRow {
  readonly at: number;
  readonly version: number;
}

/** `isSound` tells of a place whether what stands there can be applied; what will be parked replaces nothing. */
export function supersededIn(
  changes: readonly ReceivedChange[],
  isSound: (at: number) => boolean,
): Superseded {
  const replaced = new Map<number, readonly number[]>();
  const gone = new Set<number>();
  const tables = new Map<string, Map<string, LastOfRow>>();
  for (const [at, { value }] of changes.entries()) {
    if (!isObject(value)) continue;
    const row = member(value, "row");
    const op = member(value, "op");
    if (!isObject(row) || (op !== "INSERT" && op !== "UPDATE" && op !== "DELETE")) continue;
    const id = idOf(op, row, member(value, "old_id"));
    const version = column(row, "updated_at");
    const table = member(value, "table");
    if (typeof id !== "string" || !isInteger(version) || typeof table !== "string") continue;
    const name = nameKey(table);
    let rows = tables.get(name);
    if (rows === undefined) {
      rows = new Map();
      tables.set(name, rows);
    }
    let before = rows.get(id);
    if (before !== undefined) {
      if (!isSound(at)) continue;
      if (!isSound(before.at)) before = undefined;
    }
    if (before?.version === version && hasColumnsOf(changes[before.at]!, row)) {
      gone.add(before.at);
      replaced.set(at, [before.at, ...(replaced.get(before.at) ?? [])]);
    }
    rows.set(id, { at, version });
  }
  if (gone.size === 0) return NOTHING_SUPERSEDED;
  return { has: (at) => gone.has(at), by: (at) => replaced.get(at) ?? [] };
}

function isInteger(value: JsonValue | undefined): value is number {
  return Number.isSafeInteger(value);
}

type Row = { readonly [member: string]: JsonValue };

function idOf(op: string, row: Row, oldId: JsonValue | undefined): JsonValue | undefined {
  return op === "DELETE" && typeof oldId === "string" && oldId !== "" ? oldId : column(row, "id");
}

/** By its name as SQLite compares names. */
function column(row: Row, key: string): JsonValue | undefined {
  if (Object.hasOwn(row, key)) return row[key];
  const name = Object.keys(row).find((other) => nameKey(other) === key);
  return name === undefined ? undefined : row[name];
}

function hasColumnsOf(before: ReceivedChange, row: Row): boolean {
  const earlier = isObject(before.value) ? member(before.value, "row") : undefined;
  return isObject(earlier) && Object.keys(earlier).every((name) => Object.hasOwn(row, name));
}
