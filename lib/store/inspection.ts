/**
 * What `hook-sync check` knows of a file: each table, what speaks for and against syncing it, and what
 * a start would change. Reads only, and reads all rows: a start looks at a sample of the stamps.
 */
import { Database } from "bun:sqlite";
import { HookSyncError } from "../base/errors.ts";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import { type AskedTables, decideSelection } from "./adopt.ts";
import { capturedTables, type Survey, survey, surveyAll, triggerState } from "./catalog.ts";
import { migrate, setting, wasOurs, wasSynced } from "./migrations.ts";
import type { FileMode } from "./read-unchanged.ts";
import { readOtherRelations, readTables, STAMP_MS_MAX, type Table } from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";

/** A report, as of one moment; nothing in it is acted upon. */
export interface Inspection {
  /** Which node used the file last; undefined where none did. */
  readonly usedBy:
    | { readonly make: "hook-sync" | "other"; readonly nodeId: string | undefined }
    | undefined;
  /** Why no node starts on this file at all. */
  readonly obstacle: { readonly reason: string; readonly remedy: string } | undefined;
  /** What a start would sync; undefined where it would ask for --tables first. */
  readonly asked: readonly string[] | "*" | undefined;
  readonly tables: readonly TableReport[];
  /** Asked for, and not to be had. */
  readonly missing: readonly Verdict[];
  /** Views and virtual tables: they are never synced. */
  readonly others: readonly { readonly name: string; readonly type: string }[];
  readonly adoption: Adoption;
}

/** Why a table cannot be synced, and the SQL or the step that would change that. */
export interface Verdict {
  readonly name: string;
  readonly reason: string;
  readonly remedy: string;
}

/** One table of the application's, asked for or not. */
export interface TableReport {
  readonly name: string;
  readonly isAsked: boolean;
  /** Undefined where it fits. */
  readonly unfit: Verdict | undefined;
  readonly columns: number;
  readonly generatedColumns: number;
  readonly rows: RowCounts;
  readonly capturedBy: "hook-sync" | "other" | undefined;
  readonly triggers: readonly TriggerReport[];
  readonly foreignKeys: readonly ForeignKey[];
  /** Columns of UNIQUE keys besides id. */
  readonly uniqueKeys: readonly string[];
}

/** Of all rows, by what their stamps and ids are like; a row may be in several. */
export interface RowCounts {
  readonly all: number;
  readonly withoutStamp: number;
  /** Neither an integer nor NULL. */
  readonly withOtherStamp: number;
  /** Micro- or nanoseconds. */
  readonly withFineStamp: number;
  /** Too small for milliseconds of our days: they look like seconds. */
  readonly withStampInSeconds: number;
  /** More than an hour ahead. */
  readonly withStampAhead: number;
  /** NULL or a BLOB; only where id is TEXT, as it must be. */
  readonly withOddId: number;
}

/** A trigger of the application's; capture triggers are not listed. */
export interface TriggerReport {
  readonly name: string;
  readonly writes: readonly string[];
  readonly isGuarded: boolean;
  /** False: it keeps its table from being synced. */
  readonly isFine: boolean;
  /** It has the name that ours would have. */
  readonly hasOurName: boolean;
}

/** As declared; the columns of one that spans several are joined by commas. */
export interface ForeignKey {
  readonly columns: string;
  readonly parent: string;
  readonly onDelete: string;
  readonly onUpdate: string;
  readonly isParentSynced: boolean;
}

/** What the first start with these tables changes; all empty where it was done before. */
export interface Adoption {
  /** It is switched to WAL mode. */
  readonly toWal: boolean;
  readonly tablesAdded: readonly string[];
  /** `table.column` of tables that other nodes made. */
  readonly columnsAdded: readonly string[];
  /** Tables that get capture triggers. */
  readonly tablesCaptured: readonly string[];
  /** Tables whose capture triggers are replaced: another node made them, or the table has changed. */
  readonly tablesRecaptured: readonly string[];
  readonly rowsZeroed: readonly { readonly table: string; readonly rows: number }[];
  /** Logged changes that are carried on. */
  readonly pendingChanges: number;
}

/** 1973 to 5138 in seconds; in milliseconds the first months of the seventies. */
const STAMP_SECONDS_MIN = 100_000_000;
const STAMP_SECONDS_MAX = 100_000_000_000;

/** `asked` as --tables says it, `nowMs` by which a stamp is ahead. */
export interface InspectOptions extends FileMode {
  readonly asked: AskedTables;
  readonly nowMs: number;
}

/** Reads every row, which takes its time. A file no node would take is reported, not thrown. */
export function inspect(db: Database, options: InspectOptions): Inspection {
  const { asked, nowMs, isWal } = options;
  const choice = choose(db, asked);
  const all = surveyAll(db);
  // Where nothing was chosen yet, everything is shown as if all of it were.
  const chosen = choice.selection ? survey(db, choice.selection) : all;
  const askedOf = choice.selection;
  const isAsked = (key: string) =>
    askedOf !== undefined && (askedOf.all || askedOf.names.includes(key));
  const captured = capturedTables(db);
  const tables = [...readTables(db).values()].map((table): TableReport => {
    const survey = isAsked(table.key) ? chosen : all;
    const unfit = survey.notSynced.find((other) => nameKey(other.name) === table.key);
    return {
      name: table.name,
      isAsked: isAsked(table.key),
      unfit,
      columns: table.columns.length + table.generated.size,
      generatedColumns: table.generated.size,
      rows: countRows(db, table, nowMs),
      capturedBy: capturedBy(db, survey, table, captured),
      triggers: describeTriggers(table, survey, unfit),
      foreignKeys: readForeignKeys(db, table, chosen),
      uniqueKeys: table.uniqueKeys.map((key) => key.terms.map(({ sql }) => sql).join(", ")),
    };
  });
  const shown = new Set(tables.map(({ name }) => nameKey(name)));
  return {
    usedBy: usedBy(db),
    obstacle: choice.obstacle,
    asked: askedOf?.all ? "*" : askedOf?.names,
    tables,
    missing: askedOf?.all ? [] : chosen.notSynced.filter(({ name }) => !shown.has(nameKey(name))),
    others: readOtherRelations(db),
    adoption: foresee(db, tables, isWal),
  };
}

interface Choice {
  readonly selection: ReturnType<typeof decideSelection>;
  readonly obstacle: Inspection["obstacle"];
}

function choose(db: Database, asked: AskedTables): Choice {
  try {
    return { selection: decideSelection(db, asked), obstacle: undefined };
  } catch (error) {
    if (!(error instanceof HookSyncError)) throw error;
    const isObstacle = error.code !== "tables-not-chosen";
    const obstacle = isObstacle ? { reason: error.message, remedy: error.hint } : undefined;
    return { selection: undefined, obstacle };
  }
}

function usedBy(db: Database): Inspection["usedBy"] {
  if (!wasSynced(db)) return undefined;
  if (!wasOurs(db)) return { make: "other", nodeId: undefined };
  const nodeId = setting(db, "node_id");
  return { make: "hook-sync", nodeId: nodeId === null ? undefined : String(nodeId) };
}

function countRows(db: Database, table: Table, nowMs: number): RowCounts {
  const stamp = table.columns.find((column) => column.key === "updated_at");
  const id = table.columns.find((column) => column.key === "id" && column.affinity === "text");
  const v = stamp ? quoteName(stamp.name) : "0";
  const isInteger = `typeof(${v}) = 'integer'`;
  const isMilliseconds = `${v} BETWEEN -${STAMP_MS_MAX} AND ${STAMP_MS_MAX}`;
  const count = (condition: string) => `coalesce(sum(${condition}), 0)`;
  return db
    .prepare<RowCounts, [number]>(
      `SELECT count(*) AS "all",
              ${count(`${v} IS NULL`)} AS withoutStamp,
              ${count(`typeof(${v}) NOT IN ('integer', 'null')`)} AS withOtherStamp,
              ${count(`${isInteger} AND NOT (${isMilliseconds})`)} AS withFineStamp,
              ${count(`${isInteger} AND ${v} BETWEEN ${STAMP_SECONDS_MIN} AND ${STAMP_SECONDS_MAX}`)} AS withStampInSeconds,
              ${count(`${isInteger} AND ${isMilliseconds} AND ${v} > ?`)} AS withStampAhead,
              ${count(id ? `typeof(${quoteName(id.name)}) <> 'text'` : "0")} AS withOddId
       FROM ${quoteName(table.name)}`,
    )
    .get(nowMs + VERSION_AHEAD_MS_MAX)!;
}

function capturedBy(
  db: Database,
  { synced }: Survey,
  table: Table,
  captured: ReadonlySet<string>,
): TableReport["capturedBy"] {
  if (!captured.has(table.key)) return undefined;
  const fit = synced.get(table.key);
  return fit && triggerState(db, fit) !== "missing" ? "hook-sync" : "other";
}

function describeTriggers(
  table: Table,
  { synced }: Survey,
  unfit: Verdict | undefined,
): TriggerReport[] {
  const writesSynced = (key: string) => key === table.key || synced.has(key);
  return table.userTriggers.map((trigger) => ({
    name: trigger.name,
    writes: [...trigger.writes],
    isGuarded: trigger.guarded,
    isFine:
      trigger.guarded ||
      !([...trigger.writes].some(writesSynced) || unfit?.reason.includes(`${trigger.name} writes`)),
    hasOurName: ["bi", "bu", "ai", "au", "ad"].some(
      (kind) => nameKey(trigger.name) === nameKey(`${table.name}_${kind}`),
    ),
  }));
}

interface ForeignKeyRow {
  id: number;
  table: string;
  from: string;
  on_update: string;
  on_delete: string;
}

function readForeignKeys(db: Database, table: Table, { synced }: Survey): ForeignKey[] {
  const rows = db
    .prepare<ForeignKeyRow, [string]>(
      `SELECT id, "table", "from", on_update, on_delete FROM pragma_foreign_key_list(?) ORDER BY id, seq`,
    )
    .all(table.name);
  const keys = new Map<number, ForeignKey>();
  for (const row of rows) {
    const known = keys.get(row.id);
    keys.set(row.id, {
      columns: known ? `${known.columns}, ${row.from}` : row.from,
      parent: row.table,
      onDelete: row.on_delete,
      onUpdate: row.on_update,
      isParentSynced: synced.has(nameKey(row.table)),
    });
  }
  return [...keys.values()];
}

/** What Store.open and the first settling do, told beforehand. */
function foresee(db: Database, tables: readonly TableReport[], isWal: boolean): Adoption {
  const adopted = tables.filter(({ isAsked, unfit }) => isAsked && !unfit);
  const wanted = ownTables();
  const present = new Map([...wanted.keys()].map((name) => [name, columnsOf(db, name)]));
  const isZeroed = (name: string) => wasOurs(db) && setting(db, `zeroed:${nameKey(name)}`) !== null;
  return {
    toWal: !isWal,
    tablesAdded: [...wanted.keys()].filter((name) => present.get(name)!.length === 0),
    columnsAdded: [...wanted].flatMap(([name, columns]) => {
      const found = present.get(name)!;
      if (found.length === 0) return [];
      return columns
        .filter((column) => !found.includes(column))
        .map((column) => `${name}.${column}`);
    }),
    tablesCaptured: adopted.filter(({ capturedBy }) => !capturedBy).map(({ name }) => name),
    tablesRecaptured: adopted
      .filter(({ name, capturedBy }) => capturedBy && !isCaptureFine(db, name))
      .map(({ name }) => name),
    rowsZeroed: adopted
      .filter(({ name, rows }) => rows.withoutStamp > 0 && !isZeroed(name))
      .map(({ name, rows }) => ({ table: name, rows: rows.withoutStamp })),
    pendingChanges: wasSynced(db)
      ? db.prepare<{ n: number }, []>("SELECT count(*) AS n FROM _changes").get()!.n
      : 0,
  };
}

function isCaptureFine(db: Database, name: string): boolean {
  const fit = survey(db, { all: false, names: [nameKey(name)] }).synced.get(nameKey(name));
  return fit !== undefined && triggerState(db, fit) === "fine";
}

/** Names and columns of our tables, from what makes them. */
function ownTables(): Map<string, string[]> {
  const db = new Database(":memory:");
  migrate(db);
  const names = db
    .prepare<{ name: string }, []>(
      "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )
    .all();
  const tables = new Map(names.map(({ name }) => [name, columnsOf(db, name)]));
  db.close();
  return tables;
}

function columnsOf(db: Database, table: string): string[] {
  return db
    .prepare<{ name: string }, [string]>("SELECT name FROM pragma_table_info(?)")
    .all(table)
    .map(({ name }) => name);
}
