/**
 * The change log of a plain SQLite file as SQL text: its tables, and the triggers that fill it.
 *
 * A trigger logs what a row is, not what was done to it: it looks the row up when it runs. Other
 * triggers may have changed or removed the row since, in an order that nobody promises; but the last
 * one that runs for a row runs after everything that was done to it, so the last entry is right, and
 * entries are applied as "this row is there, like this" or "it is not there".
 *
 * The triggers live in the file and are run by whatever SQLite the other programs have: 3.24 with
 * JSON1 and newer. They fail no write, but of a BLOB of
 * half a gigabyte, whose image in hex is more than SQLite holds in a value.
 */
import type { Database } from "bun:sqlite";
import { quoteName, quoteText } from "../base/sql-text.ts";

/** What a table is, for the triggers of it. */
export interface LoggedTable {
  readonly name: string;
  /** The stored columns, in order. */
  readonly columns: readonly string[];
  /** A name that reaches the rowid, or undefined for a table WITHOUT ROWID. */
  readonly rowid: string | undefined;
  /** The primary key of a table WITHOUT ROWID, in the order of its columns. */
  readonly key: readonly string[];
}

/** The tables of the log. */
export const CREATE_LOG_SQL = `
  CREATE TABLE _cdc (
    change_id INTEGER PRIMARY KEY AUTOINCREMENT,
    change_time INTEGER,
    change_txn_id INTEGER,
    change_type INTEGER,
    table_name TEXT,
    id INTEGER,
    "before" TEXT,
    "after" TEXT,
    updates TEXT
  );
  CREATE TABLE _cdc_object (
    type TEXT NOT NULL,
    name TEXT NOT NULL,
    tbl_name TEXT NOT NULL,
    sql TEXT NOT NULL,
    columns TEXT NOT NULL,
    PRIMARY KEY (type, name)
  );
  CREATE TABLE _cdc_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema_version INTEGER NOT NULL,
    planned INTEGER NOT NULL,
    settled INTEGER NOT NULL
  );
  CREATE TABLE _cdc_rebuild (
    name TEXT PRIMARY KEY,
    rows_from NOT NULL
  );
  CREATE TABLE _cdc_canary (kept)`;

/**
 * VACUUM gives rows of tables without an INTEGER PRIMARY KEY new rowids, and leaves no other trace
 * than a new schema version. This row is where it would not stay.
 */
export const CANARY_ROWID = 5;

/** Long chains of || are deep expressions, of which builds take 1,000 levels at most. */
const VALUES_PER_GROUP = 50;

const NOW = "CAST(strftime('%s', 'now') AS INTEGER)";

/** The names of a table's three triggers. */
export function triggerNames(table: string): readonly string[] {
  return ["ai", "au", "ad"].map((kind) => `_cdc_${kind}_${table}`);
}

/** Whether a trigger of this name is the log's. */
export const CAPTURE_TRIGGER = /^_cdc_a[iud]_/;

/** Takes them off all tables. */
export function dropCaptureTriggers(db: Database): void {
  const triggers = db
    .query<{ name: string }, []>("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
    .all();
  for (const { name } of triggers) {
    if (CAPTURE_TRIGGER.test(name)) db.run(`DROP TRIGGER ${quoteName(name)}`);
  }
}

/** The triggers of one table: for INSERT, UPDATE and DELETE. */
export function captureTriggers(
  table: LoggedTable,
): readonly { readonly name: string; readonly sql: string }[] {
  const [insert, update, remove] = triggerNames(table.name) as [string, string, string];
  const target = quoteName(table.name);
  const trigger = (name: string, event: string, body: string) => ({
    name,
    sql: `CREATE TRIGGER ${quoteName(name)} AFTER ${event} ON ${target} BEGIN\n${body}END`,
  });
  const same = keyOf(table).map((column) => `OLD.${column} IS NEW.${column}`);
  const gone = `NOT (${same.join(" AND ")})`;
  return [
    trigger(insert, "INSERT", logRowSql(table, "NEW", 1)),
    trigger(update, "UPDATE", logRowSql(table, "OLD", 0, gone) + logRowSql(table, "NEW", 0)),
    trigger(remove, "DELETE", logRowSql(table, "OLD", 0)),
  ];
}

/** Columns that tell a row from all others, as SQL. */
function keyOf(table: LoggedTable): readonly string[] {
  return table.rowid === undefined ? table.key.map(quoteName) : [table.rowid];
}

/** Logs the row with the key of NEW or OLD as it is now: `kind` where it is there, else DELETE. */
function logRowSql(table: LoggedTable, alias: "NEW" | "OLD", kind: 0 | 1, where = "1"): string {
  const key = keyOf(table);
  const names = key.map((_, i) => `k${i}`);
  const keys = key.map((column, i) => `${alias}.${column} AS k${i}`);
  const on = key.map((column, i) => `t.${column} = k.k${i}`);
  const id = table.rowid === undefined ? "NULL" : "k.k0";
  const removed = table.rowid === undefined ? imageSql("k", names) : "NULL";
  const found = `t.${key[0]!} IS NOT NULL`;
  return `  INSERT INTO _cdc (change_time, change_type, table_name, id, "before", "after")
  SELECT ${NOW}, CASE WHEN ${found} THEN ${kind} ELSE -1 END, ${quoteText(table.name)}, ${id},
    CASE WHEN ${found} THEN NULL ELSE ${removed} END,
    CASE WHEN ${found} THEN ${imageSql("t", table.columns)} END
  FROM (SELECT ${keys.join(", ")}) AS k LEFT JOIN ${quoteName(table.name)} AS t ON ${on.join(" AND ")}
  WHERE ${where};
`;
}

/** Logs rows of a table as they are. */
function logRowsSql(table: LoggedTable, where: string): string {
  const id = table.rowid === undefined ? "NULL" : `t.${table.rowid}`;
  return `
  INSERT INTO _cdc (change_time, change_type, table_name, id, "after")
  SELECT ${NOW}, 1, ${quoteText(table.name)}, ${id}, ${imageSql("t", table.columns)}
  FROM ${quoteName(table.name)} AS t
  WHERE ${where}`;
}

/** Logs the rows that were logged behind `since`; the table must have rowids. */
export function logTouchedRowsSql(table: LoggedTable, since: number): string {
  const touched = `SELECT id FROM _cdc WHERE change_id > ${since} AND table_name = ${quoteText(table.name)}`;
  return logRowsSql(table, `t.${table.rowid!} IN (${touched})`);
}

/** Where a part of a table that is to be logged ends, and the part; rowids never leave SQL. */
export function partSql(table: LoggedTable): { readonly end: string; readonly log: string } {
  const row = `t.${table.rowid!}`;
  const name = quoteText(table.name);
  const from = `(SELECT rows_from FROM _cdc_rebuild WHERE name = ${name})`;
  return {
    end: `
  SELECT CAST(max(id) AS TEXT) AS through, count(*) AS n
  FROM (
    SELECT ${row} AS id
    FROM ${quoteName(table.name)} AS t
    WHERE ${row} >= ${from}
    ORDER BY ${row}
    LIMIT ?)`,
    log: logRowsSql(table, `${row} >= ${from} AND ${row} <= CAST(? AS INTEGER)`),
  };
}

/**
 * The same for a table WITHOUT ROWID: where a part ends, the part, and what is left when it has no
 * end. The table `after` has the key of the last row that was logged.
 */
export function keyedPartSql(
  table: LoggedTable,
  after: string | undefined,
): { readonly next: string; readonly log: string; readonly rest: string } {
  const key = table.key.map((column) => `t.${quoteName(column)}`).join(", ");
  const from = after === undefined ? "1" : `(${key}) > (SELECT * FROM temp.${after})`;
  return {
    next: `
  CREATE TEMP TABLE _cdc_next AS
  SELECT ${key}
  FROM ${quoteName(table.name)} AS t
  WHERE ${from}
  ORDER BY ${key}
  LIMIT 1 OFFSET ?`,
    log: logRowsSql(table, `${from} AND (${key}) <= (SELECT * FROM temp._cdc_next)`),
    rest: logRowsSql(table, from),
  };
}

/** Logs a statement that changes the schema. */
export const LOG_STATEMENT_SQL = `
  INSERT INTO _cdc (change_time, change_type, table_name, updates)
  VALUES (${NOW}, 0, 'sqlite_schema', ?)`;

/** Ends a transaction in the log. */
export const LOG_COMMIT_SQL = `
  INSERT INTO _cdc (change_time, change_type)
  VALUES (${NOW}, 2)`;

/** A JSON array of values, exact for each; read by readImage. */
export function imageSql(alias: string, columns: readonly string[]): string {
  const values = columns.map((column) => valueSql(`${alias}.${quoteName(column)}`));
  const groups: string[] = [];
  for (let at = 0; at < values.length; at += VALUES_PER_GROUP) {
    groups.push(`(${values.slice(at, at + VALUES_PER_GROUP).join(" || ',' || ")})`);
  }
  return `'[' || ${groups.join(" || ',' || ")} || ']'`;
}

/** As change-text.ts has it, but for bytes, which old builds can only write as hex. */
function valueSql(value: string): string {
  const safe = "BETWEEN -9007199254740991 AND 9007199254740991";
  const large = `'{"i":"' || ${value} || '"}'`;
  return `CASE typeof(${value})
      WHEN 'integer' THEN CASE WHEN ${value} ${safe} THEN CAST(${value} AS TEXT) ELSE ${large} END
      WHEN 'text' THEN json_quote(${value} || '')
      WHEN 'real' THEN CASE
        WHEN abs(${value}) <= 1.7976931348623157e308 THEN '{"r":"' || printf('%!.20g', ${value}) || '"}'
        WHEN ${value} > 0 THEN '{"r":"Infinity"}' ELSE '{"r":"-Infinity"}' END
      WHEN 'blob' THEN '{"h":"' || hex(${value}) || '"}'
      ELSE 'null' END`;
}
