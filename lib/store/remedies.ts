/**
 * The SQL that would make a table fit for syncing, to be read and pasted by a person. Each piece does
 * the whole of it: after it ran, the table qualifies, also where more than one thing was in the way.
 */
import type { Database } from "bun:sqlite";
import {
  STAMP_MS_MAX,
  type Table,
  type UniqueKey,
  type UserTrigger,
  versionKeys,
} from "./schema.ts";
import { nameKey, quoteName, tokenize, triggerParts } from "./sql.ts";

/** Where nanoseconds begin: microseconds reach this in the year 5138. */
const STAMP_US_MAX = STAMP_MS_MAX * 1_000;
/** Stamps in between that are REAL, or digits in a text, are seconds (1973 to 5138). */
const STAMP_S_MIN = 100_000_000;
const STAMP_S_MAX = 100_000_000_000;

/** Before the first start there is no _meta, and a trigger that reads it would fail every write. */
const FLAG_SQL =
  "CREATE TABLE IF NOT EXISTS _meta(key TEXT PRIMARY KEY, value INTEGER);\n" +
  "INSERT OR IGNORE INTO _meta(key, value) VALUES ('syncing', 0);\n";

const GUARD = "(SELECT value FROM _meta WHERE key = 'syncing') = 0";

/** 1970 in the milliseconds that SQLite counts days by. */
const JULIAN_1970_MS = 210_866_760_000_000;

/** Milliseconds out of whatever stands in `column`; NULL where it tells no time. */
function millisecondsSql(column: string): string {
  // Compared with a number, a text that is one as a whole counts as it, and any other is above all.
  const number = `CAST(${column} AS NUMERIC)`;
  return (
    `CASE WHEN typeof(${column}) = 'text' AND ${number} <> ${column}` +
    ` THEN CAST(round(julianday(${column}) * 86400000) AS INTEGER) - ${JULIAN_1970_MS}` +
    ` WHEN typeof(${column}) NOT IN ('integer', 'real', 'text') THEN NULL` +
    ` WHEN typeof(${column}) <> 'integer' AND ${number} BETWEEN ${STAMP_S_MIN} AND ${STAMP_S_MAX}` +
    ` THEN CAST(round(${number} * 1000) AS INTEGER)` +
    ` WHEN ${number} NOT BETWEEN -${STAMP_US_MAX} AND ${STAMP_US_MAX}` +
    ` THEN CAST(${number} AS INTEGER) / 1000000` +
    ` WHEN ${number} NOT BETWEEN -${STAMP_MS_MAX} AND ${STAMP_MS_MAX}` +
    ` THEN CAST(${number} AS INTEGER) / 1000` +
    ` ELSE CAST(${number} AS INTEGER) END`
  );
}

/** Puts right every stamp that is no integer of milliseconds, and no other. */
export function stampRemedy(table: string, column: string): string {
  const c = quoteName(column);
  return (
    `UPDATE ${quoteName(table)} SET ${c} = ${millisecondsSql(c)} ` +
    `WHERE typeof(${c}) NOT IN ('integer', 'null') OR ${c} NOT BETWEEN -${STAMP_MS_MAX} AND ${STAMP_MS_MAX}; ` +
    `-- and let the application write milliseconds`
  );
}

/** These indexes as they are, but not UNIQUE. */
export function indexRemedy(db: Database, keys: readonly UniqueKey[]): string {
  const find = db.prepare<{ sql: string }, [string]>(
    "SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?",
  );
  const texts = keys.map(
    ({ name }) => `DROP INDEX ${quoteName(name)};\n${notUnique(find.get(name)!.sql)};`,
  );
  return texts.join("\n");
}

/** SQLite keeps the text of an index from CREATE UNIQUE INDEX on. */
function notUnique(indexSql: string): string {
  const [, unique, index] = tokenize(indexSql);
  return indexSql.slice(0, unique!.start) + indexSql.slice(index!.start);
}

/** These triggers, quiet while received rows are applied. */
export function guardRemedy(triggers: readonly UserTrigger[]): string {
  const texts = triggers.map(
    (trigger) => `DROP TRIGGER ${quoteName(trigger.name)};\n${guarded(trigger)};`,
  );
  return FLAG_SQL + texts.join("\n");
}

function guarded({ sql }: UserTrigger): string {
  const { tokens, when, begin } = triggerParts(sql);
  const body = sql.slice(tokens[begin]!.start);
  if (when === undefined) return `${sql.slice(0, tokens[begin]!.start)}WHEN ${GUARD}\n${body}`;
  const condition = sql.slice(tokens[when]!.end, tokens[begin]!.start).trim();
  // A comment may end the condition: the parenthesis must not become part of it.
  return `${sql.slice(0, tokens[when]!.end)} ${GUARD} AND (${condition}\n)\n${body}`;
}

/**
 * The table made anew with `id` and `updated_at` as they must be. Constraints that SQLite does not tell
 * (CHECK, COLLATE, what generates a column) have to be added by hand, and the text says so.
 */
export function rebuildRemedy(
  db: Database,
  table: Table,
  wanted: string,
  isHarmful: (trigger: UserTrigger) => boolean,
): string {
  const t = quoteName(table.name);
  const fresh = quoteName(freeName(db, `${table.name}_new`));
  const carried = table.columns.filter(({ key }) => key !== "id" && key !== "updated_at");
  const names = carried.map((column) => quoteName(column.name));
  const definitions = [
    // An application that counted on numbers being given out goes on: its rows get random ids.
    `id TEXT PRIMARY KEY DEFAULT (${RANDOM_ID})`,
    ...carried.map((column) =>
      [
        quoteName(column.name),
        column.declaredType,
        column.notNull ? "NOT NULL" : "",
        column.defaultSql === null ? "" : `DEFAULT (${column.defaultSql})`,
      ]
        .filter((part) => part !== "")
        .join(" "),
    ),
    "updated_at INTEGER",
    ...uniqueSql(db, table),
    ...foreignKeySql(db, table),
  ];
  const suffix = [table.withoutRowid ? "WITHOUT ROWID" : "", table.strict ? "STRICT" : ""];
  const options = suffix.filter((option) => option !== "").join(", ");
  const harmful = table.userTriggers.filter((trigger) => !trigger.guarded && isHarmful(trigger));
  const triggers = table.userTriggers.map((trigger) =>
    harmful.includes(trigger) ? guarded(trigger) : trigger.sql,
  );
  return [
    `-- rebuild it with ${wanted}; CHECK, COLLATE and generated columns have to be added by hand`,
    "PRAGMA foreign_keys = OFF;",
    "PRAGMA legacy_alter_table = ON;",
    `BEGIN;${harmful.length > 0 ? `\n${FLAG_SQL.trimEnd()}` : ""}`,
    `CREATE TABLE ${fresh}(${definitions.join(", ")})${options === "" ? "" : ` ${options}`};`,
    `INSERT INTO ${fresh}(${["id", ...names, "updated_at"].join(", ")})`,
    `  SELECT ${[idSql(table), ...names, stampSql(table)].join(", ")} FROM ${t};`,
    `DROP TABLE ${t};`,
    `ALTER TABLE ${fresh} RENAME TO ${t};`,
    ...[...indexSql(db, table), ...triggers].map((sql) => `${sql};`),
    "COMMIT;",
    "PRAGMA legacy_alter_table = OFF;",
  ].join("\n");
}

const RANDOM_ID = "lower(hex(randomblob(16)))";

function freeName(db: Database, wanted: string): string {
  const isTaken = (name: string) =>
    db.prepare("SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE").get(name) !== null;
  return isTaken(wanted) ? freeName(db, `${wanted}_`) : wanted;
}

/** Every id once: what was no key before may repeat or be NULL. */
function idSql(table: Table): string {
  if (!table.columns.some((column) => column.key === "id")) return RANDOM_ID;
  const text = "CASE typeof(id) WHEN 'blob' THEN lower(hex(id)) ELSE CAST(id AS TEXT) END";
  return (
    `CASE WHEN id IS NOT NULL AND row_number() OVER (PARTITION BY ${text}) = 1 ` +
    `THEN ${text} ELSE ${RANDOM_ID} END`
  );
}

/** The rows keep the time of their last change where the table knows it. */
function stampSql(table: Table): string {
  const now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000";
  const isKnown =
    table.columns.some((column) => column.key === "updated_at") ||
    table.generated.has("updated_at");
  return isKnown ? `coalesce(${millisecondsSql("updated_at")}, ${now})` : now;
}

/**
 * Keys that stand in the table's own text, and the PRIMARY KEY that `id` takes the place of; none of
 * updated_at alone.
 */
function uniqueSql(db: Database, table: Table): string[] {
  const primary = db
    .prepare<{ name: string }, [string]>(
      "SELECT name FROM pragma_table_xinfo(?) WHERE pk > 0 ORDER BY pk",
    )
    .all(table.name)
    .map(({ name }) => name);
  const isOld = primary.length > 0 && !(primary.length === 1 && nameKey(primary[0]!) === "id");
  const isVersion = primary.every((name) => nameKey(name) === "updated_at");
  const keys = isOld && !isVersion ? [primary.map(quoteName)] : [];
  const left = new Set(versionKeys(table).map(({ name }) => name));
  const declared = db
    .prepare<{ name: string }, [string]>(
      "SELECT name FROM pragma_index_list(?) WHERE origin = 'u' ORDER BY seq DESC",
    )
    .all(table.name);
  const terms = db.prepare<{ name: string; coll: string }, [string]>(
    "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key = 1 ORDER BY seqno",
  );
  for (const { name } of declared) {
    if (left.has(name)) continue;
    keys.push(
      terms
        .all(name)
        .map(
          (term) =>
            `${quoteName(term.name)}${term.coll === "BINARY" ? "" : ` COLLATE ${quoteName(term.coll)}`}`,
        ),
    );
  }
  return keys.map((key) => `UNIQUE (${key.join(", ")})`);
}

interface ForeignKeyRow {
  readonly id: number;
  readonly table: string;
  readonly from: string;
  readonly to: string | null;
  readonly on_update: string;
  readonly on_delete: string;
}

function foreignKeySql(db: Database, table: Table): string[] {
  const rows = db
    .prepare<ForeignKeyRow, [string]>(
      `SELECT id, "table", "from", "to", on_update, on_delete FROM pragma_foreign_key_list(?) ORDER BY id, seq`,
    )
    .all(table.name);
  return [...new Set(rows.map((row) => row.id))].map((id) => {
    const key = rows.filter((row) => row.id === id);
    const [first] = key;
    const to = first!.to === null ? "" : `(${key.map((row) => quoteName(row.to!)).join(", ")})`;
    return (
      `FOREIGN KEY (${key.map((row) => quoteName(row.from)).join(", ")}) ` +
      `REFERENCES ${quoteName(first!.table)}${to} ` +
      `ON UPDATE ${first!.on_update} ON DELETE ${first!.on_delete}`
    );
  });
}

/** Indexes that are made by statements of their own go with the old table. */
function indexSql(db: Database, table: Table): string[] {
  const left = new Set(versionKeys(table).map(({ name }) => name));
  return db
    .prepare<{ name: string; sql: string }, [string]>(
      "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL ORDER BY name",
    )
    .all(table.name)
    .map(({ name, sql }) => (left.has(name) ? notUnique(sql) : sql));
}
