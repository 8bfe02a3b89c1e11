/**
 * What the file's tables look like, as much of it as capturing and applying must know. Reads only.
 * Which of them can be synced is decided in qualify.ts.
 */
import type { Database } from "bun:sqlite";
import { isCdcName } from "./cdc-names.ts";
import { isGuarded } from "./guard.ts";
import type { JsonColumn } from "./row-json.ts";
import {
  isWord,
  nameKey,
  quoteName,
  quoteText,
  sourceOf,
  type Token,
  tablesWrittenBy,
  tokenize,
} from "./sql.ts";

/** SQLite's five (sqlite.org/datatype3.html, 3.1): what it makes of a value that is stored. */
export type Affinity = "integer" | "text" | "blob" | "real" | "numeric";

/** A stored column, as declared; generated ones are never among them. */
export interface Column {
  readonly name: string;
  readonly key: string;
  readonly declaredType: string;
  readonly affinity: Affinity;
  readonly notNull: boolean;
  /** The default as SQL that means the same anywhere, or null. */
  readonly defaultSql: string | null;
  readonly holds: JsonColumn["holds"];
}

/** A UNIQUE key besides `id`: rows that clash on it may be thrown out by REPLACE. */
export interface UniqueKey {
  readonly name: string;
  readonly terms: readonly UniqueTerm[];
  /** WHERE of a partial index, as SQL over unqualified columns. */
  readonly where: string | undefined;
  /** Names of the columns that decide what is in it. */
  readonly columns: readonly string[];
}

/** One part of a UNIQUE key. */
export interface UniqueTerm {
  /** SQL over unqualified columns: a quoted column, or an expression. */
  readonly sql: string;
  /** The column's name, where the term is just that. */
  readonly column: string | undefined;
  readonly collation: string;
}

/** A trigger of the application's; guarded: it does nothing while changes are applied. */
export interface UserTrigger {
  readonly name: string;
  readonly sql: string;
  readonly guarded: boolean;
  /** nameKeys of the tables its body writes. */
  readonly writes: ReadonlySet<string>;
}

/** A table of the file, as much of it as syncing needs. */
export interface Table {
  readonly name: string;
  readonly key: string;
  readonly sql: string;
  /** Columns that are stored and shipped, in order. */
  readonly columns: readonly Column[];
  /** Generated columns by key, with their expressions: not shipped, ignored on arrival. */
  readonly generated: ReadonlyMap<string, string>;
  readonly withoutRowid: boolean;
  readonly strict: boolean;
  readonly uniqueKeys: readonly UniqueKey[];
  readonly userTriggers: readonly UserTrigger[];
  readonly hasForeignKeys: boolean;
}

/** A table that qualifies: with the two columns the protocol stands on. */
export interface SyncedTable extends Table {
  readonly id: Column;
  readonly version: Column;
  readonly columnByKey: ReadonlyMap<string, Column>;
}

/** A table that cannot be synced, in words for a person. */
export interface Unqualified {
  readonly name: string;
  readonly reason: string;
  /** SQL that would make it qualify, or what to do instead. */
  readonly remedy: string;
}

/** Our own tables and the ones of the contract: never synced, never served. */
export function isInternalTable(name: string): boolean {
  return /^(_meta|_changes|_dead_letter|_peer_state|_hooksync.*|_cdc|_cdc_.*|sqlite_.*|_litestream.*)$/i.test(
    name,
  );
}

/** Milliseconds reach this in the year 5138, microseconds reached it in 1973. */
export const STAMP_MS_MAX = 100_000_000_000_000;

/** Every table that is not internal, virtual or a view, by nameKey. */
export function readTables(db: Database): Map<string, Table> {
  const rows = db
    .prepare<{ name: string; type: string; wr: number; strict: number; sql: string | null }, []>(
      `SELECT t.name, t.type, t.wr, t.strict, m.sql
       FROM pragma_table_list AS t
       JOIN sqlite_master AS m ON m.type = 'table' AND m.name = t.name
       WHERE t.schema = 'main'
       ORDER BY m.rowid`,
    )
    .all();
  const tables = new Map<string, Table>();
  for (const row of rows) {
    if (row.type !== "table" || isInternalTable(row.name)) continue;
    tables.set(
      nameKey(row.name),
      readTable(db, row.name, row.sql ?? "", row.wr === 1, row.strict === 1),
    );
  }
  return tables;
}

/** Names of views and virtual tables, for the list of what does not qualify. */
export function readOtherRelations(db: Database): { name: string; type: string }[] {
  return db
    .prepare<{ name: string; type: string }, []>(
      `SELECT name, type FROM pragma_table_list
       WHERE schema = 'main' AND type IN ('view', 'virtual') ORDER BY name`,
    )
    .all()
    .filter((relation) => !isInternalTable(relation.name));
}

interface ColumnRow {
  name: string;
  type: string;
  notnull: number;
  dflt_value: string | null;
  pk: number;
  hidden: number;
}

function readTable(
  db: Database,
  name: string,
  sql: string,
  withoutRowid: boolean,
  strict: boolean,
): Table {
  const rows = readColumnRows(db, name);
  const generated = readGenerated(
    sql,
    rows.filter((row) => row.hidden > 1).map((row) => nameKey(row.name)),
  );
  const columns = rows.filter((row) => row.hidden === 0).map((row) => toColumn(row, strict));
  return {
    name,
    key: nameKey(name),
    sql,
    columns,
    generated,
    withoutRowid,
    strict,
    uniqueKeys: readUniqueKeys(
      db,
      name,
      rows.map((row) => row.name),
    ),
    userTriggers: readUserTriggers(db, name),
    hasForeignKeys:
      db.prepare(`SELECT 1 FROM pragma_foreign_key_list(?) LIMIT 1`).get(name) !== null,
  };
}

function readColumnRows(db: Database, table: string): ColumnRow[] {
  return db
    .prepare<ColumnRow, [string]>(
      `SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid`,
    )
    .all(table);
}

/** SQLite has what generates a column only in the text of CREATE TABLE: `… AS (expression) …`. */
function readGenerated(sql: string, keys: readonly string[]): Map<string, string> {
  const generated = new Map<string, string>();
  if (keys.length === 0) return generated;
  const tokens = tokenize(sql);
  let depth = 0;
  let first = 0;
  for (const [i, token] of tokens.entries()) {
    if (isWord(token, "AS") && depth === 1 && tokens[i + 1]?.value === "(") {
      const key = nameKey(tokens[first]!.value);
      const end = closing(tokens, i + 1);
      if (keys.includes(key)) generated.set(key, sourceOf(sql, tokens.slice(i + 2, end)));
    }
    if (token.kind !== "symbol") continue;
    if (token.value === "(" && ++depth === 1) first = i + 1;
    if (token.value === ")") depth--;
    if (token.value === "," && depth === 1) first = i + 1;
  }
  return generated;
}

/** Where the parenthesis that opens at `from` is closed. */
function closing(tokens: readonly Token[], from: number): number {
  let depth = 0;
  return tokens.findIndex((token, i) => {
    if (i < from || token.kind !== "symbol") return false;
    if (token.value === "(") depth++;
    return token.value === ")" && --depth === 0;
  });
}

function toColumn(row: ColumnRow, strict: boolean): Column {
  const affinity = affinityOf(row.type);
  return {
    name: row.name,
    key: nameKey(row.name),
    declaredType: row.type,
    affinity: strict && row.type.toUpperCase() === "ANY" ? "blob" : affinity,
    notNull: row.notnull === 1,
    defaultSql: row.dflt_value === null ? null : defaultSql(row.dflt_value),
    holds: holdsOf(affinity, strict),
  };
}

/** TEXT affinity turns every number into text on the way in; a STRICT integer is only that. */
function holdsOf(affinity: Affinity, strict: boolean): JsonColumn["holds"] {
  if (affinity === "text") return "text";
  return strict && affinity === "integer" ? "integer" : "anything";
}

/**
 * The text of a DEFAULT, as it can stand in an expression: there a bare or double-quoted word, which
 * a column definition takes for a string, would be the name of a column.
 */
function defaultSql(text: string): string {
  const tokens = tokenize(text);
  const isLone = tokens.length === 1;
  let sql = "";
  for (const [i, token] of tokens.entries()) {
    if (i > 0 && tokens[i - 1]!.end < token.start) sql += " ";
    const isString =
      token.kind === "quoted-name" ||
      (token.kind === "name" && isLone && !DEFAULT_WORDS.has(token.value.toUpperCase()));
    sql += isString ? quoteText(token.value) : text.slice(token.start, token.end);
  }
  return isLone ? sql : `(${sql})`;
}

const DEFAULT_WORDS = new Set([
  "NULL",
  "TRUE",
  "FALSE",
  "CURRENT_TIME",
  "CURRENT_DATE",
  "CURRENT_TIMESTAMP",
]);

/** https://www.sqlite.org/datatype3.html, section 3.1 */
function affinityOf(declaredType: string): Affinity {
  const type = declaredType.toUpperCase();
  if (type.includes("INT")) return "integer";
  if (/CHAR|CLOB|TEXT/.test(type)) return "text";
  if (type === "" || type.includes("BLOB")) return "blob";
  if (/REAL|FLOA|DOUB/.test(type)) return "real";
  return "numeric";
}

function readUniqueKeys(db: Database, table: string, columnNames: readonly string[]): UniqueKey[] {
  const indexes = db
    .prepare<{ name: string; sql: string | null }, [string]>(
      `SELECT l.name, m.sql FROM pragma_index_list(?) AS l
       LEFT JOIN sqlite_master AS m ON m.type = 'index' AND m.name = l.name
       WHERE l."unique" = 1 AND l.origin <> 'pk' ORDER BY l.name`,
    )
    .all(table);
  const indexed = db.prepare<{ name: string | null; coll: string }, [string]>(
    `SELECT name, coll FROM pragma_index_xinfo(?) WHERE key = 1 ORDER BY seqno`,
  );
  return indexes.map((index) => {
    const text = index.sql === null ? undefined : splitIndexSql(index.sql);
    const terms = indexed.all(index.name).map(
      (term, position): UniqueTerm => ({
        sql: term.name === null ? text!.terms[position]! : quoteName(term.name),
        column: term.name ?? undefined,
        collation: term.coll,
      }),
    );
    const read = [...terms.map((term) => term.sql), text?.where ?? ""].join(" ");
    return {
      name: index.name,
      where: text?.where,
      terms,
      columns: columnsIn(read, columnNames),
    };
  });
}

/** The indexed terms and the WHERE of a CREATE INDEX, without comments and sort order. */
function splitIndexSql(sql: string): { terms: string[]; where: string | undefined } {
  const tokens = tokenize(sql);
  const on = tokens.findIndex((token) => isWord(token, "ON"));
  const terms: string[] = [];
  let depth = 0;
  let from = 0;
  for (const [i, token] of tokens.entries()) {
    if (i <= on || token.kind !== "symbol") continue;
    if (token.value === "(" && ++depth === 1) from = i + 1;
    if (token.value === ")") depth--;
    if (depth === 0 || (depth === 1 && token.value === ",")) {
      terms.push(sourceOf(sql, withoutOrder(tokens.slice(from, i))));
      from = i + 1;
    }
    if (depth > 0) continue;
    const hasWhere = isWord(tokens[i + 1], "WHERE");
    return { terms, where: hasWhere ? sourceOf(sql, tokens.slice(i + 2)) : undefined };
  }
  return { terms, where: undefined };
}

function withoutOrder(term: readonly Token[]): readonly Token[] {
  const hasOrder = isWord(term.at(-1), "ASC") || isWord(term.at(-1), "DESC");
  return hasOrder ? term.slice(0, -1) : term;
}

/** Names of the columns that `expression` may read; a word that only looks like one does no harm. */
export function columnsIn(expression: string, columnNames: readonly string[]): string[] {
  const words = new Set(
    tokenize(expression)
      .filter((token) => token.kind === "name" || token.kind === "quoted-name")
      .map((token) => nameKey(token.value)),
  );
  return columnNames.filter((name) => words.has(nameKey(name)));
}

/** UNIQUE keys that the version alone decides: no other row may be given the moment that one has. */
export function versionKeys(table: Table): UniqueKey[] {
  return table.uniqueKeys.filter(({ terms }) => {
    const read = columnsRead(table, terms.map(({ sql }) => sql).join(" "));
    return read.length > 0 && read.every((key) => key === "updated_at");
  });
}

/** Keys of the stored columns that decide what `expression` is. */
function columnsRead(table: Table, expression: string): string[] {
  const names = [...table.columns.map(({ key }) => key), ...table.generated.keys()];
  return columnsIn(expression, names).flatMap((key) => {
    const generatedAs = table.generated.get(key);
    return generatedAs === undefined ? [key] : columnsRead(table, generatedAs);
  });
}

/** Marks a trigger as ours, inside its text, where renames by SQLite leave it alone. */
export const TRIGGER_MARK = "/* hook-sync */";

/** Whether a trigger is ours or one of an existing node's: it writes the log. */
export function isCaptureTrigger(sql: string): boolean {
  if (sql.includes(TRIGGER_MARK)) return true;
  const written = tablesWrittenBy(sql);
  return written.has("_changes") || written.has("_hooksync_noted");
}

/** The application's triggers on a table or view, in the order of their names. */
export function readUserTriggers(db: Database, table: string): UserTrigger[] {
  return db
    .prepare<{ name: string; sql: string }, [string]>(
      `SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY name`,
    )
    .all(table)
    .filter((trigger) => !isCaptureTrigger(trigger.sql) && !isCdcName(trigger.name))
    .map((trigger) => ({
      name: trigger.name,
      sql: trigger.sql,
      guarded: isGuarded(trigger.sql),
      writes: tablesWrittenBy(trigger.sql),
    }));
}

/** Whether any table of the file has foreign keys: only then enforcement has to be switched. */
export function hasForeignKeys(tables: Iterable<Table>): boolean {
  for (const table of tables) if (table.hasForeignKeys) return true;
  return false;
}

/** The comma-separated list of a table's columns, quoted. */
export function columnList(columns: readonly Column[]): string {
  return columns.map((column) => quoteName(column.name)).join(", ");
}
