/**
 * A row whose columns have versions of their own (column-notes.ts), as the changes that bring another
 * node to the same row and the same versions: one for each version, oldest first.
 */
import { formatValue, type Value } from "../protocol/values.ts";
import type { ColumnNote } from "./column-notes.ts";

export interface NotedRow {
  readonly id: string;
  /** Of the row; 0 where its stamp is no integer. */
  readonly version: number;
  /** Its stored columns by key, id and version left out. */
  readonly values: ReadonlyMap<string, { readonly name: string; readonly value: Value }>;
  /** By column key; those of columns that are not stored here have their value in the note. */
  readonly notes: ReadonlyMap<string, ColumnNote>;
}

/** Rows as the log holds them. `names` are those of the table's two own columns. */
export function rowsByVersion(
  row: NotedRow,
  names: { readonly id: string; readonly version: string },
): string[] {
  const membersOf = new Map<number, string[]>([[row.version, []]]);
  const put = (version: number, name: string, value: Value) => {
    const member = `,${JSON.stringify(name)}:${formatValue(value)}`;
    membersOf.set(version, [...(membersOf.get(version) ?? []), member]);
  };
  for (const [key, { name, value }] of row.values) {
    put(row.notes.get(key)?.version ?? row.version, name, value);
  }
  for (const [key, { version, value }] of row.notes) {
    if (!row.values.has(key)) put(version, key, value);
  }
  const versions = [...membersOf.keys()].sort((left, right) => left - right);
  return versions.map(
    (version) =>
      `{${JSON.stringify(names.id)}:${JSON.stringify(row.id)},` +
      `${JSON.stringify(names.version)}:${version}${membersOf.get(version)!.join("")}}`,
  );
}
