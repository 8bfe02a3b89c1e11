/**
 * Runs of whole rows of one table and shape, which a multi-row statement can take: found and bound
 * here, without SQL. What is unusual in any way ends a run; the row path of apply.ts decides it.
 */
import { isObject, type JsonValue, member, type ReceivedChange } from "../protocol/batch.ts";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import type { Survey } from "./catalog.ts";
import type { SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";
import type { Binding } from "./table-writer.ts";

/** Shorter runs are not worth a statement of their own. */
const RUN_ROWS_MIN = 8;

export interface Run {
  readonly shape: Shape;
  readonly count: number;
  readonly ids: readonly string[];
  /** Row after row, all columns of the table in order. */
  readonly bindings: Binding[];
}

/** The names that a run's rows have in common. */
export interface Shape {
  readonly table: SyncedTable;
  /** As the changes spell it. */
  readonly tableName: string;
  readonly names: readonly string[];
  /** For each column of the table, how the rows call it. */
  readonly nameByColumn: readonly string[];
  readonly idName: string;
  readonly versionName: string;
}

type JsonObject = { readonly [member: string]: JsonValue };

/** Whole rows only: every column of the table, and no other but generated ones. */
function shapeOf(change: ReceivedChange, survey: Survey): Shape | undefined {
  const { value } = change;
  if (!isObject(value)) return undefined;
  const tableName = member(value, "table");
  const row = member(value, "row");
  if (typeof tableName !== "string" || !isObject(row)) return undefined;
  const table = survey.synced.get(nameKey(tableName));
  if (!table || table.userTriggers.length > 0) return undefined;
  const names = Object.keys(row);
  const byKey = new Map(names.map((name) => [nameKey(name), name]));
  if (byKey.size !== names.length) return undefined;
  const nameByColumn = table.columns.map((column) => byKey.get(column.key));
  if (nameByColumn.includes(undefined)) return undefined;
  const isKnown = (name: string) =>
    table.columnByKey.has(nameKey(name)) || table.generated.has(nameKey(name));
  if (!names.every(isKnown)) return undefined;
  return {
    table,
    tableName,
    names,
    nameByColumn: nameByColumn as string[],
    idName: byKey.get(table.id.key)!,
    versionName: byKey.get(table.version.key)!,
  };
}

function rowInShape(change: ReceivedChange, shape: Shape): JsonObject | undefined {
  const value = change.value as JsonObject | null;
  if (value === null || typeof value !== "object" || change.repeatsMember || change.surrogates)
    return undefined;
  if (value["table"] !== shape.tableName) return undefined;
  const op = value["op"];
  if (op !== "INSERT" && op !== "UPDATE") return undefined;
  if (Object.hasOwn(value, "blobs") || Object.hasOwn(value, "texts")) return undefined;
  const row = value["row"];
  if (!isObject(row)) return undefined;
  let i = 0;
  for (const name in row) {
    if (name !== shape.names[i]) return undefined;
    i++;
  }
  if (i !== shape.names.length) return undefined;
  // With a delicate number in it, only columns whose affinity makes a plain binding exact will do.
  return change.delicate &&
    !shape.table.columns.every((c) =>
      bindsExactly(row[shape.nameByColumn[shape.table.columns.indexOf(c)]!], c.affinity),
    )
    ? undefined
    : row;
}

/** Whether JSON.parse and Bun's binding lose nothing for this column (DESIGN.md, "Values on the wire"). */
function bindsExactly(value: JsonValue | undefined, affinity: string): boolean {
  if (typeof value !== "number") return true;
  if (Math.abs(value) > Number.MAX_SAFE_INTEGER || Object.is(value, -0)) return false;
  return (
    !Number.isInteger(value) ||
    affinity === "real" ||
    affinity === "integer" ||
    affinity === "numeric"
  );
}

function bindRow(row: JsonObject, shape: Shape, bindings: Binding[], isOurs: boolean): boolean {
  const start = bindings.length;
  for (const [i, name] of shape.nameByColumn.entries()) {
    const value = row[name]!;
    const isBytes =
      !isOurs &&
      typeof value === "string" &&
      value.startsWith("\\x") &&
      shape.table.columns[i]!.affinity === "blob";
    if ((typeof value === "object" && value !== null) || typeof value === "boolean" || isBytes) {
      bindings.length = start;
      return false;
    }
    bindings.push(value as Binding);
  }
  return true;
}

/** The run that begins at `from`, or undefined where it is too short to be worth it. */
export function readRun(
  batch: readonly ReceivedChange[],
  from: number,
  to: number,
  context: { readonly survey: Survey; readonly nowMs: number; readonly isOurs: boolean },
): Run | undefined {
  if (to - from < RUN_ROWS_MIN) return undefined;
  const shape = shapeOf(batch[from]!, context.survey);
  if (!shape) return undefined;
  const ids = new Set<string>();
  const bindings: Binding[] = [];
  const aheadMs = context.nowMs + VERSION_AHEAD_MS_MAX;
  for (let i = from; i < to; i++) {
    const row = rowInShape(batch[i]!, shape);
    if (row === undefined) break;
    const id = row[shape.idName];
    const version = row[shape.versionName];
    if (typeof id !== "string" || id === "" || ids.has(id)) break;
    if (typeof version !== "number" || !Number.isSafeInteger(version) || version > aheadMs) break;
    if (!bindRow(row, shape, bindings, context.isOurs)) break;
    ids.add(id);
  }
  return ids.size < RUN_ROWS_MIN ? undefined : { shape, count: ids.size, ids: [...ids], bindings };
}
