/**
 * Rows that cannot both be there, because a UNIQUE key besides `id` forbids it: which ones clash, and
 * which of two is the lower (DESIGN.md, "UNIQUE").
 */
import type { Database } from "bun:sqlite";
import { compareReduced, formatValue, reduce, type Value } from "../protocol/values.ts";
import type { Upsert } from "./read-change.ts";
import { qualify, type SyncedTable } from "./schema.ts";
import { quoteName, quoteText } from "./sql.ts";
import type { Stamp } from "./versions.ts";

/** One of the rows that clash. */
export interface Rival {
  readonly id: string;
  readonly version: Stamp;
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
    const columns = table.columns.map(
      (column) =>
        `${literalSql(merged.get(column.key) ?? { kind: "null" })} AS ${quoteName(column.name)}`,
    );
    const terms = key.terms.map(
      (term) =>
        `(${qualifyTerm(term.sql, table, "o")}) = (${qualifyTerm(term.sql, table, "n")}) COLLATE ${quoteName(term.collation)}`,
    );
    const where =
      key.where === undefined
        ? ""
        : ` AND (${qualifyTerm(key.where, table, "o")}) AND (${qualifyTerm(key.where, table, "n")})`;
    const rows = db
      .query<{ id: string }, []>(
        `SELECT o.${id} AS id FROM ${quoteName(table.name)} AS o, (SELECT ${columns.join(", ")}) AS n WHERE ${terms.join(" AND ")}${where}`,
      )
      .all();
    for (const row of rows) if (row.id !== read.id) ids.add(row.id);
  }
  return [...ids];
}

/** By (version, content, id); positive where `left` is the higher. */
export function compareRivals(
  left: { version: number | "odd"; content: ReadonlyMap<string, Value>; id: string },
  right: { version: number | "odd"; content: ReadonlyMap<string, Value>; id: string },
): number {
  const number = (version: number | "odd") => (version === "odd" ? 0 : version);
  if (left.version !== right.version) return number(left.version) - number(right.version);
  for (const column of [...left.content.keys()].filter((name) => name !== "id").sort()) {
    const other = right.content.get(column);
    if (!other) continue;
    const order = compareReduced(reduce(left.content.get(column)!), reduce(other));
    if (order !== 0) return order;
  }
  return left.id < right.id ? -1 : left.id > right.id ? 1 : 0;
}

function literalSql(value: Value): string {
  switch (value.kind) {
    case "null":
      return "NULL";
    case "integer":
      return value.value.toString();
    case "real":
      return formatValue(value);
    case "text":
      return quoteText(value.value);
    case "blob":
      return `x'${value.hex}'`;
    case "broken-text":
      return `CAST(x'${value.hex}' AS TEXT)`;
  }
}

function qualifyTerm(sql: string, table: SyncedTable, alias: string): string {
  return qualify(sql, table.columns, alias);
}
