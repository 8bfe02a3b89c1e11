/**
 * Rows that cannot both be there, because a UNIQUE key besides `id` forbids it: which ones clash, and
 * which of two is the lower (DESIGN.md, "UNIQUE").
 */
import type { Database, SQLQueryBindings } from "bun:sqlite";
import { isUtf8 } from "node:buffer";
import type { Value } from "../protocol/values.ts";
import { compareContent } from "../protocol/winner.ts";
import type { Upsert } from "./read-change.ts";
import { type Column, columnsIn, type SyncedTable, type UniqueKey } from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";
import { bindingOf, markSql } from "./table-writer.ts";

/** One of the rows that clash. */
export interface Rival {
  readonly id: string;
  readonly version: number;
  /** By column key. */
  readonly content: ReadonlyMap<string, Value>;
}

/**
 * Ids of stored rows that stand in the way of this change; `stored` is its own row as it is now. Undefined
 * for a row that only this node can have: its id is NULL, empty, a BLOB or not UTF-8.
 */
export function clashingIds(
  db: Database,
  read: Upsert,
  stored: ReadonlyMap<string, Value> | undefined,
): (string | undefined)[] {
  const { table } = read;
  const id = quoteName(table.id.name);
  const ids = new Set<string | undefined>();
  const merged = new Map([...(stored ?? new Map<string, Value>()), ...read.cells]);
  for (const key of table.uniqueKeys) {
    const { sql, columns } = freshRow(table, key, (column) => merged.get(column.key) ?? NULL);
    const fresh = (term: string) => `(SELECT ${term} FROM _hooksync_fresh)`;
    const clashes = key.terms.map(
      (term) => `(${term.sql}) = ${fresh(term.sql)} COLLATE ${quoteName(term.collation)}`,
    );
    if (key.where !== undefined) clashes.push(`(${key.where})`, fresh(key.where));
    // As bytes: see textOfHexSql.
    const select = db.prepare<{ id: Uint8Array | null }, SQLQueryBindings[]>(
      `WITH _hooksync_fresh AS MATERIALIZED (${sql})
       SELECT CASE typeof(${id}) WHEN 'text' THEN CAST(${id} AS BLOB) END AS id FROM ${quoteName(table.name)}
       WHERE ${clashes.join(" AND ")}`,
    );
    for (const row of select.all(...columns.map(bindingOf))) {
      const other = idOf(row.id);
      if (other !== read.id) ids.add(other);
    }
    select.finalize();
  }
  return [...ids];
}

function idOf(bytes: Uint8Array | null): string | undefined {
  return bytes === null || bytes.length === 0 || !isUtf8(bytes)
    ? undefined
    : Buffer.from(bytes).toString();
}

/**
 * What a key reads of the row that comes, as SQL: stored columns with marks for their values, generated
 * ones computed from these. Expressions stay as they are written: a column's name may also be a word of
 * SQL in them.
 */
function freshRow(
  table: SyncedTable,
  key: UniqueKey,
  contentOf: (column: Column) => Value,
): { sql: string; columns: Value[] } {
  const generated = generatedFor(table, key.columns);
  const names = new Set(key.columns.map(nameKey));
  for (const { reads } of generated) for (const name of reads) names.add(name);
  const stored = table.columns.filter((column) => names.has(column.key));
  const columns = stored.map(contentOf);
  const marks = stored.map((column, i) => `${markSql(columns[i]!)} AS ${quoteName(column.name)}`);
  let sql = `SELECT ${marks.join(", ") || "1"}`;
  for (const { key, expression } of generated)
    sql = `SELECT *, (${expression}) AS ${quoteName(key)} FROM (${sql})`;
  return { sql, columns };
}

interface Generated {
  readonly key: string;
  readonly expression: string;
  /** Keys of the columns it is computed from. */
  readonly reads: readonly string[];
}

/** The generated columns among `names` and those that they read, each after what it needs. */
function generatedFor(table: SyncedTable, names: readonly string[]): Generated[] {
  const all = [...table.columns.map((column) => column.key), ...table.generated.keys()];
  const found = new Map<string, Generated>();
  const visit = (key: string) => {
    const expression = table.generated.get(key);
    if (expression === undefined || found.has(key)) return;
    const reads = columnsIn(expression, all).filter((name) => name !== key);
    for (const name of reads) visit(name);
    found.set(key, { key, expression, reads });
  };
  for (const name of names) visit(nameKey(name));
  return [...found.values()];
}

const NULL: Value = { kind: "null" };

/**
 * By (version, content, id); positive where `left` is the higher. Different ids never tie. Of the content
 * only what both have: nodes may know of different columns.
 */
export function compareRivals(left: Rival, right: Rival): number {
  const common = (rival: Rival, other: Rival) =>
    new Map([...rival.content].filter(([name]) => other.content.has(name) && !isKey(name)));
  return (
    left.version - right.version ||
    compareContent(common(left, right), common(right, left)) ||
    (left.id < right.id ? -1 : left.id > right.id ? 1 : 0)
  );
}

function isKey(name: string): boolean {
  return name === "id" || name === "updated_at";
}
