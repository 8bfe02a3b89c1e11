/**
 * What has to move when a synced table or a column of it gets another name or shape: what was logged and
 * not yet sent, what is noted of its rows, and the selection. Used when settling finds that another
 * program did it, and by `hook-sync alter`. Everything runs inside the caller's transaction.
 */
import type { Database } from "bun:sqlite";
import {
  captureTriggerSql,
  type KnownTable,
  readSelection,
  renamedTo,
  writeSelection,
} from "./catalog.ts";
import { dropSetting, setSetting, setting } from "./migrations.ts";
import { jsonPath, loggedRowSql } from "./row-json.ts";
import { readTables, type SyncedTable } from "./schema.ts";
import { nameKey, quoteName, quoteText } from "./sql.ts";

/** Both names as they are written, not as keys. */
export interface Renamed {
  readonly from: string;
  readonly to: string;
}

/** Tables of ours, by key, that are keyed by a table's name. */
const KEYED_BY_TABLE = [
  "_hooksync_tombstones",
  "_hooksync_columns",
  "_hooksync_origins",
  "_hooksync_contested",
];

/**
 * Finds known tables that were renamed with their triggers, and carries over what is theirs. `known`
 * follows.
 */
export function followTableRenames(
  db: Database,
  known: Map<string, KnownTable>,
  settledThrough: number,
): Renamed[] {
  const tables = readTables(db);
  const renamed: Renamed[] = [];
  for (const [key, table] of [...known]) {
    if (tables.has(key)) continue;
    const to = renamedTo(db, table, tables);
    if (to === undefined || known.has(nameKey(to))) continue;
    renameTable(db, table.name, to, settledThrough);
    known.delete(key);
    known.set(nameKey(to), { name: to, columns: table.columns });
    renamed.push({ from: table.name, to });
  }
  return renamed;
}

/** Peers may go on calling it by the old name, and it may get that back. */
export function renameTable(db: Database, from: string, to: string, settledThrough: number): void {
  carryTable(db, from, to, settledThrough);
  setSetting(db, `renamed:${nameKey(to)}`, from);
}

/** What was settled leaves under the old name: that is the one that peers know. */
function carryTable(db: Database, from: string, to: string, settledThrough: number): void {
  const key = nameKey(from);
  db.prepare("UPDATE _changes SET table_name = ? WHERE change_id > ? AND table_name = ?").run(
    to,
    settledThrough,
    from,
  );
  for (const own of KEYED_BY_TABLE) {
    db.prepare(`UPDATE OR REPLACE ${own} SET tbl = ? WHERE tbl = ?`).run(nameKey(to), key);
  }
  db.prepare("UPDATE _hooksync_noted SET tbl = ? WHERE tbl = ?").run(to, from);
  for (const about of ["announce", "zeroed"]) {
    db.prepare("UPDATE OR REPLACE _hooksync SET key = ? WHERE key = ?").run(
      `${about}:${nameKey(to)}`,
      `${about}:${key}`,
    );
  }
  const selection = readSelection(db);
  if (!selection?.names.includes(key)) return;
  writeSelection(db, {
    ...selection,
    names: selection.names.map((asked) => (asked === key ? nameKey(to) : asked)),
    former: [...new Set([...(selection.former ?? []), key])],
  });
}

/**
 * The old way to migrate: rename the table away, make it anew, copy, drop the old one. Seen in between, it
 * was a rename; once the old one is gone and the name is there again, everything goes back to it. The name
 * it has again, or undefined where this table is simply gone.
 */
export function returnedAs(db: Database, gone: string, settledThrough: number): string | undefined {
  const former = setting(db, `renamed:${nameKey(gone)}`);
  if (typeof former !== "string" || !readTables(db).has(nameKey(former))) return undefined;
  const name = readTables(db).get(nameKey(former))!.name;
  carryTable(db, gone, name, settledThrough);
  dropSetting(db, `renamed:${nameKey(gone)}`);
  const selection = readSelection(db);
  if (selection) {
    const isOver = (key: string) => key !== nameKey(gone) && key !== nameKey(former);
    writeSelection(db, { ...selection, former: (selection.former ?? []).filter(isOver) });
  }
  return name;
}

/**
 * The table's columns are others than `before`: keys of renamed ones are put right in everything that
 * was not sent, and what was logged since is captured again. Returns whether settled entries changed.
 */
export function followColumns(
  db: Database,
  table: SyncedTable,
  before: readonly string[],
  settledThrough: number,
): boolean {
  const isRename = renameColumns(db, table, before);
  captureAgain(db, table, settledThrough);
  return isRename;
}

/** RENAME COLUMN leaves the JSON keys of what was captured under the old name. Says whether there was one. */
export function renameColumns(
  db: Database,
  table: SyncedTable,
  before: readonly string[],
): boolean {
  const columns = table.columns.map((column) => column.name);
  // Added ones stand at the end, and none can go while triggers name it: the rest was renamed in place.
  if (columns.length < before.length) return false;
  const renames = before
    .map((from, i) => ({ from, to: columns[i]! }))
    .filter(({ from, to }) => from !== to);
  const isSwap = renames.some(({ to }) => before.some((from) => nameKey(from) === nameKey(to)));
  for (const [i, { from, to }] of renames.entries()) {
    renameColumn(db, table, from, isSwap ? `${PASSING_NAME}${i}` : to);
  }
  if (isSwap) {
    for (const [i, { to }] of renames.entries()) renameColumn(db, table, `${PASSING_NAME}${i}`, to);
  }
  return renames.length > 0;
}

/**
 * Whether columns that differ by position were renamed by ALTER TABLE, which rewrites the names in our
 * trigger and leaves the JSON keys in it. Anything else (a table made anew with other columns, or with the
 * same ones in another order) must not be taken for a rename: values would leave under wrong names.
 */
export function areRenamesProven(
  db: Database,
  table: SyncedTable,
  before: readonly string[],
): boolean {
  const columns = table.columns.map((column) => column.name);
  const renames = before
    .map((from, i) => ({ from, to: columns[i] }))
    .filter(({ from, to }) => from !== to);
  if (renames.length === 0) return true;
  const trigger = captureTriggerSql(db, table);
  return renames.every(({ from, to }) => {
    const rewritten = `${quoteText(from)}, CASE typeof(NEW.${quoteName(to ?? "")})`;
    return to !== undefined && trigger.includes(rewritten);
  });
}

/** Where columns take over each other's names, all leave their own before any gets its new one. */
const PASSING_NAME = "_hooksync_renamed_";

function renameColumn(db: Database, table: SyncedTable, from: string, to: string): void {
  const path = quoteText(jsonPath(from));
  for (const [log, row, name] of [
    ["_changes", "row_data", "table_name"],
    ["_hooksync_noted", "row", "tbl"],
  ]) {
    db.prepare(
      `UPDATE ${log}
       SET ${row} = json_set(json_remove(${row}, ${path}), ?, json(${row} -> ${path}))
       WHERE ${name} = ? AND json_valid(${row}) AND json_type(${row}, ${path}) IS NOT NULL`,
    ).run(jsonPath(to), table.name);
  }
  renameColumnNotes(db, table, nameKey(from), nameKey(to));
}

/**
 * The column brings its version along. Peers that had renamed it before may have sent newer values
 * under the new name: those stay noted and are written; older ones go.
 */
function renameColumnNotes(db: Database, table: SyncedTable, from: string, to: string): void {
  const version = `t.${quoteName(table.version.name)}`;
  db.prepare(
    `DELETE FROM _hooksync_columns AS n
     WHERE n.tbl = ?1 AND n.col = ?3 AND n.version <= coalesce(
       (SELECT o.version FROM _hooksync_columns AS o WHERE o.tbl = ?1 AND o.id = n.id AND o.col = ?2),
       (SELECT ${version} FROM ${quoteName(table.name)} AS t WHERE t.${quoteName(table.id.name)} = n.id))`,
  ).run(table.key, from, to);
  db.prepare("UPDATE OR IGNORE _hooksync_columns SET col = ?3 WHERE tbl = ?1 AND col = ?2").run(
    table.key,
    from,
    to,
  );
  db.prepare("DELETE FROM _hooksync_columns WHERE tbl = ? AND col = ?").run(table.key, from);
  const renamed = new Set([...readRenamed(db, table), to]);
  setSetting(db, renamedKey(table), JSON.stringify([...renamed]));
}

function renamedKey(table: SyncedTable): string {
  return `renamed-columns:${table.key}`;
}

function readRenamed(db: Database, table: SyncedTable): string[] {
  const text = setting(db, renamedKey(table));
  return typeof text === "string" ? (JSON.parse(text) as string[]) : [];
}

/** Keys of columns that were renamed since the last call: what is noted for them is to be written. */
export function takeRenamed(db: Database, table: SyncedTable): string[] {
  const renamed = readRenamed(db, table);
  if (renamed.length > 0) dropSetting(db, renamedKey(table));
  return renamed;
}

/** Entries logged by triggers of another shape or make: the row as it is now replaces what they captured. */
export function captureAgain(db: Database, table: SyncedTable, settledThrough: number): void {
  const t = quoteName(table.name);
  const id = quoteName(table.id.name);
  db.prepare(
    `UPDATE _changes SET row_data = (SELECT ${loggedRowSql("t", table.columns)} FROM ${t} AS t WHERE t.${id} = row_id)
     WHERE change_id > ? AND table_name = ? AND op <> 'DELETE'
       AND row_id IN (SELECT ${id} FROM ${t})`,
  ).run(settledThrough, table.name);
}
