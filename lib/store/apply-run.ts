/**
 * Changes that a statement for many rows can take: found and bound here, without SQL. Whole rows of one
 * table and shape, and plain deletes; whatever is unusual in any way is for the row path to decide.
 */
import { isObject, type JsonValue, type ReceivedChange } from "../protocol/batch.ts";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import type { Survey } from "./catalog.ts";
import type { SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";
import type { Binding } from "./table-writer.ts";

/** Changes of one table, of each row one at most, so that their order does not matter. */
export interface Run {
  readonly table: SyncedTable;
  readonly upserts: Upserts;
  readonly deletes: Deletes;
}

/** Columns of a statement, not objects: rows are bound as they lie here. */
export interface Upserts {
  /** Places in the batch; `ids` and `versions` go with them. */
  readonly at: number[];
  readonly ids: string[];
  readonly versions: number[];
  /** Row after row, all columns of the table in order. */
  readonly bindings: Binding[];
}

/** Side by side like Upserts; `versions` are those of the deletes. */
export interface Deletes {
  readonly at: number[];
  readonly ids: string[];
  readonly versions: number[];
}

/** What holds for every change of the part of a batch that is taken at one go. */
export interface RunContext {
  readonly survey: Survey;
  readonly nowMs: number;
  readonly isOurs: boolean;
}

/** The names that rows have in common. */
interface Shape {
  readonly table: SyncedTable;
  readonly names: readonly string[];
  /** For each column of the table, how the rows call it. */
  readonly nameByColumn: readonly string[];
  readonly idName: string;
  readonly versionName: string;
}

type JsonObject = { readonly [member: string]: JsonValue };

/** What waits to be written of one table. */
interface Pending {
  /** In the order in which they must be written: a row's second change is in the second run. */
  readonly runs: Run[];
  /** How many runs hold a change of this row. */
  readonly runsById: Map<string, number>;
}

/** A row that changes more often in one slice is written in between. */
const RUNS_PER_TABLE_MAX = 16;
/** A table whose senders spell it in more ways than this has its other rows decided one by one. */
const SHAPES_PER_TABLE_MAX = 8;

/** Sorts the changes of a batch into runs, one per table at a time. */
export class RunReader {
  readonly #context: RunContext;
  readonly #aheadMs: number;
  readonly #shapes = new Map<string, Shape[]>();
  readonly #pending = new Map<SyncedTable, Pending>();

  constructor(context: RunContext) {
    this.#context = context;
    this.#aheadMs = context.nowMs + VERSION_AHEAD_MS_MAX;
  }

  /**
   * Whether a change of this row, decided alone, would overtake one that waits. Rows of one table may
   * change places, but not a row with itself, and not with one in its way.
   */
  overtakes(table: SyncedTable, id: string): boolean {
    const pending = this.#pending.get(table);
    if (pending === undefined) return false;
    return pending.runsById.has(id) || table.uniqueKeys.length > 0;
  }

  /** Takes and forgets what waits: of one table, or of all. */
  take(table?: SyncedTable): Run[] {
    if (table === undefined) {
      const runs = [...this.#pending.values()].flatMap((pending) => pending.runs);
      this.#pending.clear();
      return runs;
    }
    const runs = this.#pending.get(table)?.runs ?? [];
    this.#pending.delete(table);
    return runs;
  }

  /**
   * Adds the change to a run of its table. `unfit`: it is for the row path. `full`: what waits of its
   * table must be written first.
   */
  add(change: ReceivedChange, at: number): "added" | "unfit" | { readonly full: SyncedTable } {
    const { value } = change;
    if (!isObject(value) || change.repeatsMember || change.surrogates) return "unfit";
    // None of these names is one of Object's own, so nothing inherited can answer.
    const row = value["row"];
    const tableName = value["table"];
    if (typeof tableName !== "string" || !isObject(row)) return "unfit";
    const shape = this.#shapeOf(tableName, row);
    if (shape === undefined) return "unfit";
    const op = value["op"];
    const isDelete = op === "DELETE";
    if (!isDelete && op !== "INSERT" && op !== "UPDATE") return "unfit";
    const oldId = isDelete ? value["old_id"] : undefined;
    const id = typeof oldId === "string" && oldId !== "" ? oldId : row[shape.idName];
    const version = row[shape.versionName];
    if (typeof id !== "string" || id === "") return "unfit";
    if (names(value["blobs"], shape.idName) || names(value["texts"], shape.idName)) return "unfit";
    if (typeof version !== "number" || !Number.isSafeInteger(version) || version > this.#aheadMs) {
      return "unfit";
    }
    const { table } = shape;
    const pending = this.#pendingOf(table);
    const before = pending.runsById.get(id) ?? 0;
    const runsMax = table.uniqueKeys.length > 0 ? 1 : RUNS_PER_TABLE_MAX;
    if (before >= runsMax) return { full: table };
    const run = pending.runs[before] ?? newRun(table, pending);
    const list = isDelete ? run.deletes : run.upserts;
    if (!isDelete && !this.#bind(change, value, row, shape, run.upserts.bindings)) return "unfit";
    list.at.push(at);
    list.ids.push(id);
    list.versions.push(version);
    pending.runsById.set(id, before + 1);
    return "added";
  }

  #pendingOf(table: SyncedTable): Pending {
    let pending = this.#pending.get(table);
    if (pending === undefined) {
      pending = { runs: [], runsById: new Map() };
      this.#pending.set(table, pending);
    }
    return pending;
  }

  #shapeOf(tableName: string, row: JsonObject): Shape | undefined {
    let shapes = this.#shapes.get(tableName);
    if (shapes === undefined) {
      shapes = [];
      this.#shapes.set(tableName, shapes);
    }
    for (const shape of shapes) if (hasShape(row, shape)) return shape;
    if (shapes.length >= SHAPES_PER_TABLE_MAX) return undefined;
    const shape = readShape(tableName, row, this.#context.survey);
    if (shape) shapes.push(shape);
    return shape;
  }

  /** Adds the row's values, or nothing where one of them is not what it seems. */
  #bind(
    change: ReceivedChange,
    value: JsonObject,
    row: JsonObject,
    shape: Shape,
    bindings: Binding[],
  ): boolean {
    if (value["blobs"] !== undefined || value["texts"] !== undefined) return false;
    const start = bindings.length;
    const { columns } = shape.table;
    for (let i = 0; i < columns.length; i++) {
      const each = row[shape.nameByColumn[i]!]!;
      const isBound =
        typeof each === "string"
          ? !(!this.#context.isOurs && columns[i]!.affinity === "blob" && each.startsWith("\\x"))
          : typeof each === "number"
            ? !change.delicate || bindsExactly(each, columns[i]!.affinity)
            : each === null;
      if (!isBound) {
        bindings.length = start;
        return false;
      }
      bindings.push(each as Binding);
    }
    return true;
  }
}

function newRun(table: SyncedTable, pending: Pending): Run {
  const run = {
    table,
    upserts: { at: [], ids: [], versions: [], bindings: [] },
    deletes: { at: [], ids: [], versions: [] },
  };
  pending.runs.push(run);
  return run;
}

/** Whole rows only: every column of the table, and no other but generated ones. */
function readShape(tableName: string, row: JsonObject, survey: Survey): Shape | undefined {
  const table = survey.synced.get(nameKey(tableName));
  // A user's trigger may refuse or change any row: each is looked at afterwards.
  if (!table || table.userTriggers.length > 0) return undefined;
  const names = Object.keys(row);
  const byKey = new Map(names.map((name) => [nameKey(name), name]));
  if (byKey.size !== names.length) return undefined;
  const nameByColumn = table.columns.map((column) => byKey.get(column.key));
  if (nameByColumn.includes(undefined)) return undefined;
  const isKnown = (key: string) => table.columnByKey.has(key) || table.generated.has(key);
  if (![...byKey.keys()].every(isKnown)) return undefined;
  return {
    table,
    names,
    nameByColumn: nameByColumn as string[],
    idName: byKey.get(table.id.key)!,
    versionName: byKey.get(table.version.key)!,
  };
}

function hasShape(row: JsonObject, shape: Shape): boolean {
  const { names } = shape;
  let i = 0;
  for (const name in row) {
    if (name !== names[i]) return false;
    i++;
  }
  return i === names.length;
}

function names(columns: JsonValue | undefined, column: string): boolean {
  return Array.isArray(columns) && columns.includes(column);
}

/** Whether JSON.parse and Bun's binding lose nothing for this column (DESIGN.md, "Values on the wire"). */
function bindsExactly(value: number, affinity: string): boolean {
  if (Math.abs(value) > Number.MAX_SAFE_INTEGER || Object.is(value, -0)) return false;
  return !Number.isInteger(value) || (affinity !== "blob" && affinity !== "text");
}
