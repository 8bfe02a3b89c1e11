/**
 * Rows that cannot both be there, because a UNIQUE key besides `id` forbids it: which ones clash, and
 * which of two is the lower (DESIGN.md, "UNIQUE").
 */
import type { Database, SQLQueryBindings } from "bun:sqlite";
import type { Value } from "../protocol/values.ts";
import { compareContent } from "../protocol/winner.ts";
import type { Upsert } from "./read-change.ts";
import { qualify } from "./schema.ts";
import { quoteName } from "./sql.ts";
import { bindingOf, markSql } from "./table-writer.ts";

/** One of the rows that clash. */
export interface Rival {
  readonly id: string;
  readonly version: number;
  /** By column key. */
  readonly content: ReadonlyMap<string, Value>;
}

/** Ids of stored rows that stand in the way of this change; `stored` is its own row as it is now. */
export function clashingIds(
  db: Database,
  read: Upsert,
  stored: ReadonlyMap<string, Value> | undefined,
): string[] {
  const { table } = read;
  const ids = new Set<string>();
  const id = quoteName(table.id.name);
  const merged = new Map([...(stored ?? new Map<string, Value>()), ...read.cells]);
  for (const key of table.uniqueKeys) {
    const columns = table.columns.filter((column) => key.columns.includes(column.name));
    const values = columns.map((column) => merged.get(column.key) ?? NULL);
    const fresh = columns.map((column, i) => `${markSql(values[i]!)} AS ${quoteName(column.name)}`);
    const term = (sql: string, alias: string) => qualify(sql, table.columns, alias);
    const clashes = key.terms.map(
      ({ sql, collation }) =>
        `(${term(sql, "o")}) = (${term(sql, "n")}) COLLATE ${quoteName(collation)}`,
    );
    if (key.where !== undefined) {
      clashes.push(`(${term(key.where, "o")})`, `(${term(key.where, "n")})`);
    }
    const select = db.prepare<{ id: string }, SQLQueryBindings[]>(
      `SELECT o.${id} AS id FROM ${quoteName(table.name)} AS o, (SELECT ${fresh.join(", ")}) AS n
       WHERE ${clashes.join(" AND ")}`,
    );
    for (const row of select.all(...values.map(bindingOf))) {
      if (row.id !== read.id) ids.add(row.id);
    }
    select.finalize();
  }
  return [...ids];
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
