/** Rows as the log holds them, made from values instead of by a trigger. */
import { formatValue, type Value } from "../protocol/values.ts";
import type { SyncedTable } from "./schema.ts";

/** `cells` by column key, with `version` as the stamp; digits kept, BLOBs marked. */
export function formatRow(
  table: SyncedTable,
  cells: ReadonlyMap<string, Value>,
  version: number,
): string {
  const members: string[] = [];
  for (const column of table.columns) {
    const value = column === table.version ? integer(version) : cells.get(column.key);
    if (value) members.push(`${JSON.stringify(column.name)}:${formatValue(value)}`);
  }
  return `{${members.join(",")}}`;
}

/** Throws a RangeError where the number is no integer. */
export function integer(value: number): Value {
  return { kind: "integer", value: BigInt(value) };
}
