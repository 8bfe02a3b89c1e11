/**
 * Which tables are synced, and their capture triggers. The selection (`--tables`) is asked for once and
 * kept in the file; what the tables looked like when their triggers were made is kept too, so that
 * a schema changed by another program, even while the node was down, is seen for what it was: a column
 * renamed, a table renamed, a table rebuilt without its triggers.
 */
import type { Database } from "bun:sqlite";
import { setSetting, setting, wasOurs } from "./migrations.ts";
import { holdsOddStamps, qualifyTable } from "./qualify.ts";
import {
  hasForeignKeys,
  isCaptureTrigger,
  readOtherRelations,
  readTables,
  readUserTriggers,
  type SyncedTable,
  type Table,
  TRIGGER_MARK,
  type Unqualified,
  type UserTrigger,
} from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";
import { captureTriggers } from "./triggers.ts";

/** What the user asked for. */
export interface Selection {
  /** `'*'`: every table that qualifies, also those made later. */
  readonly all: boolean;
  /** nameKeys of tables asked for by name. */
  readonly names: readonly string[];
  /** nameKeys that asked-for tables had before they were renamed: asked for where there is one again. */
  readonly former?: readonly string[];
  /** Somebody said so (`--tables`), now or before; else it is what was found in the file. */
  readonly isChosen?: boolean;
}

/** The file's tables at one moment, sorted by whether they are synced. */
export interface Survey {
  readonly synced: ReadonlyMap<string, SyncedTable>;
  /** Asked for but not possible, with reason and remedy. */
  readonly notSynced: readonly Unqualified[];
  /** Those of them whose stamps are odd; writing others may make them fit. */
  readonly oddlyStamped: readonly Table[];
  /** nameKeys of qualifying tables that nobody asked for. */
  readonly notAsked: readonly SyncedTable[];
  /** Nobody asked for them, and they could not be synced. */
  readonly unfit: readonly Unqualified[];
  /** Whether any table at all has foreign keys. */
  readonly foreignKeys: boolean;
  /** Whether tables that are not asked for are left out on purpose. */
  readonly isChosen: boolean;
  /** nameKeys that synced tables had before they were renamed, where no table has them now. */
  readonly formerNames: ReadonlyMap<string, SyncedTable>;
}

/** The synced table that is called so, or was until it was renamed: peers may not have followed yet. */
export function tableCalled(survey: Survey, name: string): SyncedTable | undefined {
  const key = nameKey(name);
  return survey.synced.get(key) ?? survey.formerNames.get(key);
}

/** A table as it was when its triggers were made. */
export interface KnownTable {
  readonly name: string;
  readonly columns: readonly string[];
}

/** `adopted`: keys of the tables that are synced already, whatever their stamps hold now. */
export function survey(
  db: Database,
  selection: Selection,
  adopted: ReadonlySet<string> = adoptedTables(db),
): Survey {
  const tables = readTables(db);
  const asked = (key: string) =>
    selection.all || selection.names.includes(key) || selection.former?.includes(key) === true;
  const synced = new Map<string, SyncedTable>();
  const notSynced: Unqualified[] = [];
  const oddlyStamped: Table[] = [];
  const notAsked: SyncedTable[] = [];
  const unfit: Unqualified[] = [];
  const shadows = shadowTables(db);
  const reached = reachOfTriggers(db);
  const isSynced = syncedWhereAsked(db, tables, (key) => asked(key) && !shadows.has(key));
  for (const table of tables.values()) {
    if (shadows.has(table.key)) continue;
    const verdict = qualifyTable(db, table, {
      writesSynced: (trigger) =>
        [...reached(trigger)].filter((key) => key === table.key || isSynced(key)),
      isAdopted: adopted.has(table.key),
    });
    if ("reason" in verdict) {
      if (!asked(table.key)) {
        unfit.push(verdict);
        continue;
      }
      notSynced.push(verdict);
      if (holdsOddStamps(db, table)) oddlyStamped.push(table);
    } else if (asked(table.key)) synced.set(table.key, verdict);
    else notAsked.push(verdict);
  }
  const others = readOtherRelations(db);
  for (const name of selection.names) {
    if (tables.has(name)) continue;
    const other = others.find((relation) => nameKey(relation.name) === name);
    const missing = {
      name,
      reason: "there is no such table",
      remedy: "Create it, or correct --tables.",
    };
    notSynced.push(other ? notATable(other) : missing);
  }
  const isNamed = ({ name }: Relation) => selection.names.includes(nameKey(name));
  unfit.push(...others.filter((other) => !isNamed(other)).map(notATable));
  return {
    synced,
    notSynced,
    oddlyStamped,
    notAsked,
    unfit,
    foreignKeys: hasForeignKeys(tables.values()),
    isChosen: selection.isChosen === true,
    formerNames: formerNames(db, synced, tables),
  };
}

type Relation = ReturnType<typeof readOtherRelations>[number];

function notATable({ name, type }: Relation): Unqualified {
  const reason = `it is a ${type === "view" ? "view" : "virtual table"}`;
  return { name, reason, remedy: "Sync the tables it stands on." };
}

function formerNames(
  db: Database,
  synced: ReadonlyMap<string, SyncedTable>,
  tables: ReadonlyMap<string, Table>,
): Map<string, SyncedTable> {
  const names = new Map<string, SyncedTable>();
  if (!wasOurs(db)) return names;
  for (const table of synced.values()) {
    let former = setting(db, `renamed:${table.key}`);
    while (typeof former === "string") {
      const key = nameKey(former);
      if (tables.has(key) || names.has(key)) break;
      names.set(key, table);
      former = setting(db, `renamed:${key}`);
    }
  }
  return names;
}

/**
 * Whether a table that some trigger writes is a synced one. With `'*'` everything is asked for, also
 * an FTS5 index or an audit table that can never be synced: triggers that write those are fine, and
 * guarding them would leave received rows out of the index.
 */
function syncedWhereAsked(
  db: Database,
  tables: ReadonlyMap<string, Table>,
  asked: (key: string) => boolean,
): (key: string) => boolean {
  const fits = new Map<string, boolean>();
  return (key) => {
    const table = tables.get(key);
    if (table === undefined || !asked(key)) return false;
    const known = fits.get(key);
    if (known !== undefined) return known;
    const writesSynced = ({ writes }: UserTrigger) => (writes.has(key) ? [key] : []);
    const isFit = !("reason" in qualifyTable(db, table, { writesSynced, isAdopted: true }));
    fits.set(key, isFit);
    return isFit;
  };
}

/**
 * What a trigger writes, itself or through the triggers of the tables and views that it writes: a
 * counter table that nobody syncs may have a trigger that writes back.
 */
function reachOfTriggers(db: Database): (trigger: UserTrigger) => ReadonlySet<string> {
  const written = new Map<string, readonly string[]>();
  const writtenBehind = (key: string) => {
    const known = written.get(key);
    if (known) return known;
    const loud = readUserTriggers(db, key).filter((trigger) => !trigger.guarded);
    const keys = loud.flatMap((trigger) => [...trigger.writes]);
    written.set(key, keys);
    return keys;
  };
  return (trigger) => {
    const reached = new Set(trigger.writes);
    // A Set goes on over what is added meanwhile.
    for (const key of reached) for (const next of writtenBehind(key)) reached.add(next);
    return reached;
  };
}

/** Tables that belong to a virtual table (FTS5 and the like). */
function shadowTables(db: Database): Set<string> {
  const rows = db
    .prepare<{ name: string }, []>(
      "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'",
    )
    .all();
  return new Set(rows.map((row) => nameKey(row.name)));
}

/** Every user table, with why it would or would not qualify: for `check` and for refusals. */
export function surveyAll(db: Database): Survey {
  return survey(db, { all: true, names: [] });
}

/** Undefined before the first start. Only for a file that has our tables: see `wasOurs`. */
export function readSelection(db: Database): Selection | undefined {
  const text = setting(db, "tables");
  return typeof text === "string" ? (JSON.parse(text) as Selection) : undefined;
}

/** For this start and all later ones, until another --tables is given. */
export function writeSelection(db: Database, selection: Selection): void {
  setSetting(db, "tables", JSON.stringify(selection));
}

/** By nameKey, as of the last `writeKnown`; empty before the first. */
export function readKnown(db: Database): Map<string, KnownTable> {
  const text = setting(db, "known");
  const known = typeof text === "string" ? (JSON.parse(text) as KnownTable[]) : [];
  return new Map(known.map((table) => [nameKey(table.name), table]));
}

/** Whether a node of ours has looked at the file's tables before, perhaps to find that none can be synced. */
export function wasSurveyed(db: Database): boolean {
  return setting(db, "known") !== null;
}

/** nameKeys of the tables that a node of ours synced before. */
function adoptedTables(db: Database): ReadonlySet<string> {
  return wasOurs(db) ? new Set(readKnown(db).keys()) : new Set();
}

/** Replaces what was known: a table that is not given is forgotten. */
export function writeKnown(db: Database, tables: Iterable<SyncedTable>): void {
  const known = [...tables].map((table) => ({
    name: table.name,
    columns: table.columns.map((column) => column.name),
  }));
  writeKnownTables(db, known);
}

/** The same for tables that were read from there, not surveyed. */
export function writeKnownTables(db: Database, known: Iterable<KnownTable>): void {
  setSetting(db, "known", JSON.stringify([...known]));
}

/** The text of our trigger that captures inserts, or nothing. */
export function captureTriggerSql(db: Database, table: SyncedTable): string {
  const own = readTriggers(db).find(
    (trigger) =>
      nameKey(trigger.tbl_name) === table.key &&
      trigger.sql.includes(TRIGGER_MARK) &&
      trigger.name.toLowerCase().endsWith("_ai"),
  );
  return own?.sql ?? "";
}

interface TriggerRow {
  readonly name: string;
  readonly tbl_name: string;
  readonly sql: string;
}

function readTriggers(db: Database): TriggerRow[] {
  return db
    .prepare<TriggerRow, []>("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
    .all();
}

/** Ours, or those of an existing node, which ours replace. */
function isOursOrForeign(trigger: TriggerRow): boolean {
  if (trigger.sql.includes(TRIGGER_MARK)) return true;
  return /_(ai|au|ad)$/i.test(trigger.name) && isCaptureTrigger(trigger.sql);
}

/** nameKeys of the tables that carry capture triggers of any make. */
export function capturedTables(db: Database): Set<string> {
  return new Set(
    readTriggers(db)
      .filter(isOursOrForeign)
      .map((trigger) => nameKey(trigger.tbl_name)),
  );
}

/** Whether capture can be trusted, and if not, how far. */
export type TriggerState =
  | "fine"
  /** All there, for another shape of the table or of an older version. */
  | "outdated"
  /** One of them is missing: writes, or rows that REPLACE threw out, may have gone unseen. */
  | "missing";

/** What stands in the file against what should. `name` finds the triggers by the table's current name. */
export function triggerState(db: Database, table: SyncedTable): TriggerState {
  const all = readTriggers(db);
  const present = all.filter(
    (trigger) => nameKey(trigger.tbl_name) === table.key && trigger.sql.includes(TRIGGER_MARK),
  );
  const expected = captureTriggers(table, isTaken(all));
  const captures = (suffix: string) =>
    present.some((trigger) => trigger.name.toLowerCase().endsWith(suffix));
  if (!["_bi", "_bu", "_ai", "_au", "_ad"].every(captures)) return "missing";
  const texts = new Set(present.map((trigger) => trigger.sql));
  return present.length === expected.length && expected.every((trigger) => texts.has(trigger.sql))
    ? "fine"
    : "outdated";
}

/**
 * Whether a node of another make, which had the file meanwhile, captures every write in place of our
 * triggers: some drop ours and make their own.
 */
export function isCapturedByOthers(db: Database, table: SyncedTable): boolean {
  const capturing = readTriggers(db).filter(
    (trigger) => nameKey(trigger.tbl_name) === table.key && isOursOrForeign(trigger),
  );
  const captures = (suffix: string) =>
    capturing.some((trigger) => trigger.name.toLowerCase().endsWith(suffix));
  return (
    ["_ai", "_au", "_ad"].every(captures) &&
    capturing.some((trigger) => !trigger.sql.includes(TRIGGER_MARK))
  );
}

/** Replaces whatever captures this table by our triggers. */
export function installTriggers(db: Database, table: SyncedTable): void {
  const wanted = captureTriggers(table, isTaken(readTriggers(db)));
  const names = new Set(wanted.map((trigger) => nameKey(trigger.name)));
  // One of that name may stand on a table that was put aside under another name.
  dropTriggers(
    db,
    (trigger) => nameKey(trigger.tbl_name) === table.key || names.has(nameKey(trigger.name)),
  );
  for (const trigger of wanted) db.run(trigger.sql);
}

/** Takes capture triggers out of the file: of one table (nameKey), or all. */
export function removeTriggers(db: Database, tableKey?: string): void {
  dropTriggers(db, (trigger) => tableKey === undefined || nameKey(trigger.tbl_name) === tableKey);
}

function dropTriggers(db: Database, which: (trigger: TriggerRow) => boolean): void {
  for (const trigger of readTriggers(db)) {
    if (isOursOrForeign(trigger) && which(trigger))
      db.run(`DROP TRIGGER ${quoteName(trigger.name)}`);
  }
}

function isTaken(all: readonly TriggerRow[]): (name: string) => boolean {
  const taken = new Set(
    all.filter((trigger) => !isOursOrForeign(trigger)).map((trigger) => nameKey(trigger.name)),
  );
  return (name) => taken.has(nameKey(name));
}

/** The new name of a table that was renamed with its triggers, or undefined. */
export function renamedTo(
  db: Database,
  known: KnownTable,
  tables: ReadonlyMap<string, Table>,
): string | undefined {
  const captured = `${known.name}_ai`;
  const moved = readTriggers(db).find(
    (trigger) =>
      trigger.sql.includes(TRIGGER_MARK) &&
      (nameKey(trigger.name) === nameKey(captured) ||
        nameKey(trigger.name) === nameKey(`_hooksync_${captured}`)),
  );
  if (!moved || nameKey(moved.tbl_name) === nameKey(known.name)) return undefined;
  return tables.get(nameKey(moved.tbl_name))?.name;
}
