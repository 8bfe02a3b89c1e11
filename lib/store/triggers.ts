/**
 * The capture triggers of one table, as text (DESIGN.md, "Capture triggers"). They live in the file
 * and are run by whatever SQLite other programs have, so they use nothing newer than 3.24 with JSON1.
 * They only record; what the records mean is decided when they are settled (settle.ts).
 *
 *   bi  before INSERT: note the rows that INSERT OR REPLACE may throw out without firing a trigger
 *   bu  before UPDATE of a unique key: the same
 *   ai  after INSERT, au after UPDATE, ad after DELETE: write the log, in the writer's transaction
 */
import { loggedRowSql } from "./row-json.ts";
import { columnList, type SyncedTable, TRIGGER_MARK, type UniqueKey } from "./schema.ts";
import { nameKey, quoteName, quoteText } from "./sql.ts";

/** `sql` is the whole CREATE TRIGGER; the name is not quoted. */
export interface Trigger {
  readonly name: string;
  readonly sql: string;
}

type Kind = "bi" | "bu" | "ai" | "au" | "ad";

const GUARD = "(SELECT value FROM _meta WHERE key = 'syncing') = 0";

/**
 * The triggers this table should have. `isTaken` says whether a name belongs to a trigger of the
 * application (the customary names of FTS5 triggers are ours, too): then ours gets another.
 */
export function captureTriggers(table: SyncedTable, isTaken: (name: string) => boolean): Trigger[] {
  const kinds: Kind[] = ["bi", "bu", "ai", "au", "ad"];
  return kinds.map((kind) => {
    const customary = `${table.name}_${kind}`;
    const name = isTaken(customary) ? `_hooksync_${table.name}_${kind}` : customary;
    return { name, sql: triggerSql(table, kind, name) };
  });
}

function triggerSql(table: SyncedTable, kind: Kind, name: string): string {
  switch (kind) {
    case "bi":
      return noteBeforeInsert(table, name);
    case "bu":
      return noteBeforeUpdate(table, name);
    case "ai":
      return logInsert(table, name);
    case "au":
      return logUpdate(table, name);
    case "ad":
      return logDelete(table, name);
  }
}

/** Comments at the front of a trigger do not survive in every build; those behind BEGIN do. */
function wrap(table: SyncedTable, name: string, event: string, when: string, body: string): string {
  return (
    `CREATE TRIGGER ${quoteName(name)} ${event} ON ${quoteName(table.name)}\n` +
    `WHEN ${when}\nBEGIN ${TRIGGER_MARK}\n${body}END`
  );
}

// ── Writing the log ───────────────────────────────────────────────────────────────────────────

function logInsert(table: SyncedTable, name: string): string {
  const when = `${GUARD} AND ${isText(`NEW.${quoteName(table.id.name)}`)}`;
  return wrap(table, name, "AFTER INSERT", when, logSql(table, "INSERT", "NEW", "NULL"));
}

function logDelete(table: SyncedTable, name: string): string {
  const when = `${GUARD} AND ${isText(`OLD.${quoteName(table.id.name)}`)}`;
  const was = `OLD.${quoteName(table.version.name)}`;
  return wrap(table, name, "AFTER DELETE", when, logSql(table, "DELETE", "OLD", was));
}

/** A row whose id changes is one that goes and one that comes. */
function logUpdate(table: SyncedTable, name: string): string {
  const id = quoteName(table.id.name);
  const was = `OLD.${quoteName(table.version.name)}`;
  const isSame = `OLD.${id} IS NEW.${id}`;
  const gone = `NOT (${isSame}) AND ${isText(`OLD.${id}`)}`;
  // NULL says that nothing was replaced; a row without a stamp has version 0.
  const replaced = `CASE WHEN ${isSame} THEN coalesce(${was}, 0) END`;
  const body =
    logSql(table, "DELETE", "OLD", was, gone) +
    logSql(table, "UPDATE", "NEW", replaced, isText(`NEW.${id}`));
  return wrap(table, name, "AFTER UPDATE", GUARD, body);
}

function logSql(
  table: SyncedTable,
  op: string,
  alias: "NEW" | "OLD",
  was: string,
  where?: string,
): string {
  const row = loggedRowSql(alias, table.columns);
  const id = `${alias}.${quoteName(table.id.name)}`;
  const values = `'${op}', ${quoteText(table.name)}, ${id}, ${row}, ${was}`;
  const source = where === undefined ? `VALUES (${values})` : `SELECT ${values}\n  WHERE ${where}`;
  return `  INSERT INTO _changes(op, table_name, row_id, row_data, was)\n  ${source};\n`;
}

/** Rows whose id is NULL or a BLOB stay out of syncing. */
function isText(value: string): string {
  return `typeof(${value}) = 'text'`;
}

// ── Noting what REPLACE may throw out ─────────────────────────────────────────────────────────

function noteBeforeInsert(table: SyncedTable, name: string): string {
  const [sameId, ...keys] = clashConditions(table);
  const body =
    noteVersionSql(table, sameId!) + keys.map((key) => noteRowSql(table, key, "NEW")).join("");
  return wrap(table, name, "BEFORE INSERT", anySql(table, [sameId!, ...keys]), body);
}

function noteBeforeUpdate(table: SyncedTable, name: string): string {
  const deciding = new Set([table.id.key, ...table.uniqueKeys.flatMap(keyColumns)]);
  const columns = table.columns.filter((column) => deciding.has(column.key));
  // A generated column changes with columns that SQLite does not tell.
  const isAny = [...deciding].some((key) => table.generated.has(key));
  const event = isAny ? "BEFORE UPDATE" : `BEFORE UPDATE OF ${columnList(columns)}`;
  const clashes = clashConditions(table);
  const others = clashes.map((clash) => otherThan(table, clash, "OLD"));
  const body = clashes.map((clash) => noteRowSql(table, clash, "OLD")).join("");
  return wrap(table, name, event, anySql(table, others), body);
}

/** Asked before all else, since almost every write replaces nothing. */
function anySql(table: SyncedTable, clashes: readonly string[]): string {
  const exists = clashes.map((clash) => `EXISTS (SELECT 1 FROM ${fromSql(table)} WHERE ${clash})`);
  const any = exists.length > 1 ? `(${exists.join(" OR ")})` : exists[0]!;
  return `${any} AND ${GUARD}`;
}

function otherThan(table: SyncedTable, clash: string, own: "NEW" | "OLD"): string {
  const id = quoteName(table.id.name);
  return `${clash} AND o.${id} IS NOT ${own}.${id}`;
}

function keyColumns(key: UniqueKey): string[] {
  return key.columns.map(nameKey);
}

function fromSql(table: SyncedTable): string {
  return `${quoteName(table.name)} AS o`;
}

/** One condition for every way in which a row `o` may stand in the way of NEW. */
function clashConditions(table: SyncedTable): string[] {
  const sameId = `o.${quoteName(table.id.name)} = ${freshSql(table, table.id.name)}`;
  return [sameId, ...table.uniqueKeys.map((key) => keyClashSql(table, key))];
}

function keyClashSql(table: SyncedTable, key: UniqueKey): string {
  const terms = key.terms.map((term) => {
    const collate = `COLLATE ${quoteName(term.collation)}`;
    if (term.column !== undefined) {
      return `o.${quoteName(term.column)} = ${freshSql(table, term.column)} ${collate}`;
    }
    return `(${term.sql}) = ${evaluatedSql(table, term.sql, key.columns)} ${collate}`;
  });
  return [...terms, ...(key.where === undefined ? [] : [`(${key.where})`])].join(" AND ");
}

/** The expression over NEW, its text untouched: a column's name may also be a word of SQL in it. */
function evaluatedSql(table: SyncedTable, expression: string, columns: readonly string[]): string {
  const values = columns.map((name) => `${freshSql(table, name)} AS ${quoteName(name)}`);
  return `(SELECT ${expression} FROM (SELECT ${values.join(", ") || "1"}))`;
}

/** Under OR REPLACE a NULL for a NOT NULL column becomes the default, which is not in NEW yet. */
function freshSql(table: SyncedTable, name: string): string {
  const value = `NEW.${quoteName(name)}`;
  const column = table.columnByKey.get(nameKey(name));
  const isReplaced = column?.notNull && column.defaultSql !== null;
  return isReplaced ? `coalesce(${value}, ${column.defaultSql})` : value;
}

/** A row with the id that comes: it will be there under that id again, so its content is not needed. */
function noteVersionSql(table: SyncedTable, clash: string): string {
  return noteSql(table, clash, "NULL", "DO NOTHING");
}

/** Any other row in the way. The older note stays; one that was made without content gets it. */
function noteRowSql(table: SyncedTable, clash: string, own: "NEW" | "OLD"): string {
  const fill = "DO UPDATE SET row = excluded.row WHERE row IS NULL";
  return noteSql(table, otherThan(table, clash, own), loggedRowSql("o", table.columns), fill);
}

function noteSql(table: SyncedTable, where: string, row: string, again: string): string {
  const id = `o.${quoteName(table.id.name)}`;
  const version = `o.${quoteName(table.version.name)}`;
  return (
    `  INSERT INTO _hooksync_noted(tbl, id, version, row, at)\n` +
    `  SELECT ${quoteText(table.name)}, ${id}, ${version}, ${row}, ` +
    `coalesce((SELECT max(change_id) FROM _changes), 0)\n` +
    `  FROM ${fromSql(table)} WHERE ${where} AND ${isText(id)}\n` +
    `  ON CONFLICT(tbl, id) ${again};\n`
  );
}
