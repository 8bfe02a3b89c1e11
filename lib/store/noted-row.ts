/**
 * A row whose columns have versions of their own (protocol/winner.ts), as the changes that bring another
 * node to the same row and the same notes: the row's own change, and each change that a note comes from,
 * oldest first.
 */
import { formatRowJson, type Value } from "../protocol/values.ts";
import { type ColumnNote, type Content, VERSION_NEVER } from "../protocol/winner.ts";
import { integer } from "./log-row.ts";

/** One stored row, read at one moment with its notes. */
export interface NotedRow {
  readonly id: string;
  /** Of the row; 0 where its stamp is no integer. */
  readonly version: number;
  /** Its stored columns by key, id and version left out. */
  readonly values: ReadonlyMap<string, { readonly name: string; readonly value: Value }>;
  /** By column key; those of columns that are not stored here have their value in the note. */
  readonly notes: ReadonlyMap<string, ColumnNote>;
}

interface Change {
  readonly version: number;
  readonly source: Content | undefined;
  readonly cells: Map<string, Value>;
}

/** Rows as the log holds them. `names` are those of the table's two own columns. */
export function rowsByVersion(
  row: NotedRow,
  names: { readonly id: string; readonly version: string },
): Uint8Array<ArrayBuffer>[] {
  const own: Change = { version: row.version, source: undefined, cells: new Map() };
  const changes = [own];
  for (const [key, { value }] of row.values) if (!row.notes.has(key)) own.cells.set(key, value);
  for (const [key, { version, value, source, isOwn }] of row.notes) {
    // No change ever carried it: the other node knows that by not hearing of it.
    if (version === VERSION_NEVER) continue;
    // Its source may be another change of that version, which lost against the row as it is.
    if (isOwn && version === row.version) {
      own.cells.set(key, value);
      continue;
    }
    let change = changes.find((other) => other.version === version && other.source === source);
    if (change === undefined) {
      change = { version, source, cells: new Map(source) };
      changes.push(change);
    }
    change.cells.set(key, value);
  }
  return changes
    .sort((left, right) => left.version - right.version)
    .map(({ version, cells }) =>
      formatRowJson([
        [names.id, { kind: "text", value: row.id }],
        [names.version, integer(version)],
        ...[...cells].map(([key, value]) => [row.values.get(key)?.name ?? key, value] as const),
      ]),
    );
}
