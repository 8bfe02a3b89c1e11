/**
 * What the file's tables look like, and which of them can be synced (DESIGN.md, "Schema"). Reads
 * only. A table that does not qualify is named with the reason and with the SQL that would help,
 * and never stops the start.
 */
import type { Database } from "bun:sqlite";
import { isWord, nameKey, quoteName, tablesWrittenBy, tokenize } from "./sql.ts";

export type Affinity = "integer" | "text" | "blob" | "real" | "numeric";

export interface Column {
  readonly name: string;
  readonly key: string;
  readonly declaredType: string;
  readonly affinity: Affinity;
  readonly notNull: boolean;
  /** SQL text of the default, or null. */
  readonly defaultSql: string | null;
  readonly holds: "text" | "anything";
}

/** A UNIQUE key besides `id`: rows that clash on it may be thrown out by REPLACE. */
export interface UniqueKey {
  readonly name: string;
  readonly terms: readonly UniqueTerm[];
  /** WHERE of a partial index, as SQL over unqualified columns. */
  readonly where: string | undefined;
}

export interface UniqueTerm {
  /** SQL over unqualified columns: a quoted column, or an expression. */
  readonly sql: string;
  /** The same over NEW. */
  readonly newSql: string;
  readonly collation: string;
  /** Keys of the columns it reads. */
  readonly columns: readonly string[];
}

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
  /** Keys of generated columns: not shipped, ignored on arrival. */
  readonly generated: ReadonlySet<string>;
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

export interface Unqualified {
  readonly name: string;
  readonly reason: string;
  /** SQL that would make it qualify, or what to do instead. */
  readonly remedy: string;
}

/** Our own tables and the ones of the contract: never synced, never served. */
export function isInternalTable(name: string): boolean {
  return /^(_meta|_changes|_dead_letter|_peer_state|_hooksync.*|sqlite_.*|_litestream.*)$/i.test(
    name,
  );
}

const COLUMNS_MAX = 500;
/** How many stamps are looked at from each end of a table to tell milliseconds from microseconds. */
const STAMP_SAMPLE_ROWS = 1_000;
/** Milliseconds reach this in the year 5138, microseconds reached it in 1973. */
const STAMP_MS_MAX = 100_000_000_000_000;

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
  const generated = new Set(rows.filter((row) => row.hidden > 1).map((row) => nameKey(row.name)));
  const columns = rows.filter((row) => row.hidden === 0).map((row) => toColumn(row, strict));
  return {
    name,
    key: nameKey(name),
    sql,
    columns,
    generated,
    withoutRowid,
    strict,
    uniqueKeys: readUniqueKeys(db, name, columns),
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

function toColumn(row: ColumnRow, strict: boolean): Column {
  const affinity = affinityOf(row.type);
  return {
    name: row.name,
    key: nameKey(row.name),
    declaredType: row.type,
    affinity: strict && row.type.toUpperCase() === "ANY" ? "blob" : affinity,
    notNull: row.notnull === 1,
    defaultSql: row.dflt_value,
    // TEXT affinity turns every number into text on the way in; a STRICT integer is only that.
    holds: affinity === "text" || (strict && affinity === "integer") ? "text" : "anything",
  };
}

/** https://www.sqlite.org/datatype3.html, section 3.1 */
function affinityOf(declaredType: string): Affinity {
  const type = declaredType.toUpperCase();
  if (type.includes("INT")) return "integer";
  if (/CHAR|CLOB|TEXT/.test(type)) return "text";
  if (type === "" || type.includes("BLOB")) return "blob";
  if (/REAL|FLOA|DOUB/.test(type)) return "real";
  return "numeric";
}

function readUniqueKeys(db: Database, table: string, columns: readonly Column[]): UniqueKey[] {
  const indexes = db
    .prepare<{ name: string; origin: string; partial: number; sql: string | null }, [string]>(
      `SELECT l.name, l.origin, l.partial, m.sql FROM pragma_index_list(?) AS l
       LEFT JOIN sqlite_master AS m ON m.type = 'index' AND m.name = l.name
       WHERE l."unique" = 1 AND l.origin <> 'pk' ORDER BY l.name`,
    )
    .all(table);
  const terms = db.prepare<{ name: string | null; cid: number; coll: string }, [string]>(
    `SELECT name, cid, coll FROM pragma_index_xinfo(?) WHERE key = 1 ORDER BY seqno`,
  );
  return indexes.map((index) => {
    const text = index.sql === null ? undefined : splitIndexSql(index.sql);
    return {
      name: index.name,
      where: text?.where,
      terms: terms.all(index.name).map((term, position): UniqueTerm => {
        const expression =
          term.name === null ? (text?.terms[position] ?? "NULL") : quoteName(term.name);
        return {
          sql: expression,
          newSql: qualify(expression, columns, "NEW"),
          collation: term.coll,
          columns: columnsIn(expression, columns),
        };
      }),
    };
  });
}

/** The indexed terms and the WHERE of a CREATE INDEX, as they were written. */
function splitIndexSql(sql: string): { terms: string[]; where: string | undefined } {
  const tokens = tokenize(sql);
  const on = tokens.findIndex((token) => isWord(token, "ON"));
  const open = tokens.findIndex(
    (token, i) => i > on && token.value === "(" && token.kind === "symbol",
  );
  const terms: string[] = [];
  let depth = 0;
  let from = tokens[open]!.end;
  for (let i = open; i < tokens.length; i++) {
    const token = tokens[i]!;
    if (token.kind !== "symbol") continue;
    if (token.value === "(") depth++;
    if (token.value === ")") depth--;
    const ends = depth === 0;
    if (ends || (depth === 1 && token.value === ",")) {
      terms.push(
        sql
          .slice(from, token.start)
          .replace(/\s+(COLLATE\s+\S+|ASC|DESC)\s*$/i, "")
          .trim(),
      );
      from = token.end;
    }
    if (ends) {
      const where = isWord(tokens[i + 1], "WHERE")
        ? sql.slice(tokens[i + 1]!.end).trim()
        : undefined;
      return { terms, where };
    }
  }
  return { terms, where: undefined };
}

function columnsIn(expression: string, columns: readonly Column[]): string[] {
  const known = new Set(columns.map((column) => column.key));
  const found = tokenize(expression)
    .filter((token) => token.kind === "name" || token.kind === "quoted-name")
    .map((token) => nameKey(token.value))
    .filter((key) => known.has(key));
  return [...new Set(found)];
}

/** `expression` with every column of the table read from `alias` (NEW or OLD). */
export function qualify(expression: string, columns: readonly Column[], alias: string): string {
  const known = new Set(columns.map((column) => column.key));
  let text = "";
  let at = 0;
  const tokens = tokenize(expression);
  for (const [i, token] of tokens.entries()) {
    const isColumn =
      (token.kind === "quoted-name" || token.kind === "name") &&
      known.has(nameKey(token.value)) &&
      tokens[i + 1]?.value !== "(" &&
      tokens[i - 1]?.value !== ".";
    if (!isColumn) continue;
    text += `${expression.slice(at, token.start)}${alias}.${quoteName(token.value)}`;
    at = token.end;
  }
  return text + expression.slice(at);
}

/** Marks a trigger as ours, inside its text, where renames by SQLite leave it alone. */
export const TRIGGER_MARK = "/* hook-sync */";

/** Whether a trigger is ours or one of an existing node's: it writes the log. */
export function isCaptureTrigger(sql: string): boolean {
  if (sql.includes(TRIGGER_MARK)) return true;
  const written = tablesWrittenBy(sql);
  return written.has("_changes") || written.has("_hooksync_noted");
}

function readUserTriggers(db: Database, table: string): UserTrigger[] {
  return db
    .prepare<{ name: string; sql: string }, [string]>(
      `SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY name`,
    )
    .all(table)
    .filter((trigger) => !isCaptureTrigger(trigger.sql))
    .map((trigger) => ({
      name: trigger.name,
      sql: trigger.sql,
      guarded: isGuarded(trigger.sql),
      writes: tablesWrittenBy(trigger.sql),
    }));
}

/** Whether the trigger stays quiet while received rows are applied. */
function isGuarded(sql: string): boolean {
  const tokens = tokenize(sql);
  const begin = tokens.findIndex((token) => isWord(token, "BEGIN"));
  const head = tokens.slice(0, begin);
  const when = head.findIndex((token) => isWord(token, "WHEN"));
  if (when < 0) return false;
  const condition = head.slice(when).map((token) => nameKey(token.value));
  return condition.includes("_meta") && condition.some((word) => word.includes("syncing"));
}

/** Why this table cannot be synced, or the table with its two columns named. */
export function qualifyTable(
  db: Database,
  table: Table,
  isSynced: (tableKey: string) => boolean,
): SyncedTable | Unqualified {
  const no = (reason: string, remedy: string): Unqualified => ({
    name: table.name,
    reason,
    remedy,
  });
  const columnByKey = new Map(table.columns.map((column) => [column.key, column]));
  const id = columnByKey.get("id");
  if (!id) {
    return no("it has no column id", rebuildSql(table, "a TEXT PRIMARY KEY named id"));
  }
  const primary = readColumnRows(db, table.name).filter((row) => row.pk > 0);
  if (primary.length !== 1 || nameKey(primary[0]!.name) !== "id") {
    const found = primary.map((row) => row.name).join(", ") || "none";
    return no(
      `its PRIMARY KEY is not id alone (it is: ${found})`,
      rebuildSql(table, "id as the only PRIMARY KEY"),
    );
  }
  if (id.affinity !== "text") {
    return no(
      `its id is ${id.declaredType || "without a type"}, and ids must be TEXT: numbers given out by two machines would clash`,
      rebuildSql(table, "id TEXT PRIMARY KEY"),
    );
  }
  const collation = db
    .prepare<{ coll: string }, [string]>(
      `SELECT x.coll FROM pragma_index_list(?) AS l, pragma_index_xinfo(l.name) AS x
       WHERE l.origin = 'pk' AND x.seqno = 0`,
    )
    .get(table.name)?.coll;
  if (collation !== undefined && collation.toUpperCase() !== "BINARY") {
    return no(
      `its id compares by ${collation}, other nodes compare bytes`,
      rebuildSql(table, "id without COLLATE"),
    );
  }
  const version = columnByKey.get("updated_at");
  const t = quoteName(table.name);
  if (!version) {
    if (table.generated.has("updated_at")) {
      return no(
        "its updated_at is generated",
        rebuildSql(table, "updated_at INTEGER as an ordinary column"),
      );
    }
    return no("it has no column updated_at", `ALTER TABLE ${t} ADD COLUMN updated_at INTEGER;`);
  }
  if (version.affinity !== "integer") {
    return no(
      `its updated_at is ${version.declaredType || "without a type"}, and versions must be INTEGER milliseconds`,
      rebuildSql(table, "updated_at INTEGER (milliseconds since 1970)"),
    );
  }
  if (table.columns.length > COLUMNS_MAX) {
    return no(
      `it has ${table.columns.length} columns, more than ${COLUMNS_MAX}`,
      "Split the table.",
    );
  }
  const odd = oddStamp(db, table.name, version.name);
  if (odd) return no(odd.reason, odd.remedy);
  for (const trigger of table.userTriggers) {
    const written = [...trigger.writes].filter((key) => key === table.key || isSynced(key));
    if (trigger.guarded || written.length === 0) continue;
    return no(
      `its trigger ${trigger.name} writes ${written.join(", ")}, also when received rows are applied: nodes would differ`,
      guardedTriggerSql(trigger),
    );
  }
  return { ...table, id, version, columnByKey };
}

function oddStamp(
  db: Database,
  table: string,
  column: string,
): { reason: string; remedy: string } | undefined {
  const t = quoteName(table);
  const c = quoteName(column);
  const sample = (order: string) =>
    db
      .prepare<{ kind: string; sample: string | null }, []>(
        `SELECT kind, min(stamp) AS sample FROM (
           SELECT CASE WHEN typeof(${c}) IN ('integer', 'null')
                       THEN CASE WHEN ${c} NOT BETWEEN -${STAMP_MS_MAX} AND ${STAMP_MS_MAX}
                                 THEN 'fine' ELSE 'ms' END
                       ELSE typeof(${c}) END AS kind, CAST(${c} AS TEXT) AS stamp
           FROM ${t} ORDER BY ${quoteName("id")} ${order} LIMIT ${STAMP_SAMPLE_ROWS})
         GROUP BY kind`,
      )
      .all();
  for (const { kind, sample: stamp } of [...sample("ASC"), ...sample("DESC")]) {
    if (kind === "ms") continue;
    if (kind === "fine") {
      const divisor = stamp !== null && stamp.length > 17 ? 1_000_000 : 1_000;
      const unit = divisor === 1_000 ? "microseconds" : "nanoseconds";
      return {
        reason: `its updated_at holds ${unit} (${stamp}), and versions are milliseconds`,
        remedy: `UPDATE ${t} SET ${c} = ${c} / ${divisor} WHERE ${c} NOT BETWEEN -${STAMP_MS_MAX} AND ${STAMP_MS_MAX}; -- and let the application write milliseconds`,
      };
    }
    return {
      reason: `its updated_at holds ${kind} values (${stamp}), and versions are integers`,
      remedy:
        kind === "text"
          ? `UPDATE ${t} SET ${c} = CAST(strftime('%s', ${c}) AS INTEGER) * 1000 WHERE typeof(${c}) = 'text'; -- and let the application write milliseconds`
          : `UPDATE ${t} SET ${c} = CAST(${c} AS INTEGER) WHERE typeof(${c}) <> 'integer';`,
    };
  }
  return undefined;
}

function rebuildSql(table: Table, wanted: string): string {
  const fresh = quoteName(`${table.name}_new`);
  const names = table.columns.map((column) => quoteName(column.name));
  const rest = table.columns
    .filter((column) => column.key !== "id" && column.key !== "updated_at")
    .map((column) => `${quoteName(column.name)} ${column.declaredType}`.trim());
  const create = ["id TEXT PRIMARY KEY", ...rest, "updated_at INTEGER"].join(", ");
  const hasId = table.columns.some((column) => column.key === "id");
  const stamps = table.columns.find((column) => column.key === "updated_at");
  const copied = names.filter(
    (name) => nameKey(name) !== '"id"' && nameKey(name) !== '"updated_at"',
  );
  const from = [
    hasId ? "CAST(id AS TEXT)" : "lower(hex(randomblob(16)))",
    ...copied,
    stampSql(stamps?.affinity),
  ];
  const into = ["id", ...copied, "updated_at"];
  return (
    `-- rebuild it with ${wanted}; carry over its constraints and indexes\n` +
    `CREATE TABLE ${fresh}(${create});\n` +
    `INSERT INTO ${fresh}(${into.join(", ")}) SELECT ${from.join(", ")} FROM ${quoteName(table.name)};\n` +
    `DROP TABLE ${quoteName(table.name)}; ALTER TABLE ${fresh} RENAME TO ${quoteName(table.name)};`
  );
}

/** The rows keep the time of their last change where the table knows it. */
function stampSql(affinity: Affinity | undefined): string {
  const now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000";
  if (affinity === "integer") return "updated_at";
  if (affinity !== "text") return now;
  return `coalesce(CAST(strftime('%s', updated_at) AS INTEGER) * 1000, ${now})`;
}

const GUARD = "(SELECT value FROM _meta WHERE key = 'syncing') = 0";

/** Before the first start there is no _meta, and a trigger that reads it would fail every write. */
const FLAG_SQL =
  "CREATE TABLE IF NOT EXISTS _meta(key TEXT PRIMARY KEY, value INTEGER);\n" +
  "INSERT OR IGNORE INTO _meta(key, value) VALUES ('syncing', 0);\n";

/** The trigger's own text with the guard added, to paste. */
function guardedTriggerSql(trigger: UserTrigger): string {
  const tokens = tokenize(trigger.sql);
  const begin = tokens.findIndex((token) => isWord(token, "BEGIN"));
  const when = tokens.findIndex((token, i) => i < begin && isWord(token, "WHEN"));
  const body = trigger.sql.slice(tokens[begin]!.start);
  const guarded =
    when < 0
      ? `${trigger.sql.slice(0, tokens[begin]!.start)}WHEN ${GUARD}\n${body}`
      : `${trigger.sql.slice(0, tokens[when]!.end)} ${GUARD} AND (${trigger.sql.slice(tokens[when]!.end, tokens[begin]!.start).trim()})\n${body}`;
  return `${FLAG_SQL}DROP TRIGGER ${quoteName(trigger.name)};\n${guarded};`;
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
