/** What bun:sqlite says of a table's columns: the same for a copy and for the file that is followed. */
import type { Database } from "bun:sqlite";
import { quoteName } from "../base/sql-text.ts";
import type { SchemaColumn } from "./schema-digest.ts";

/** The stored ones, in their order; none where there is no such table. */
export function columnsOf(db: Database, table: string): SchemaColumn[] {
  return db.query<SchemaColumn, []>(`PRAGMA table_info(${quoteName(table)})`).all();
}

/** Generated ones, too: they can hide the rowid. */
export function allColumnNames(db: Database, table: string): string[] {
  return db
    .query<{ name: string }, []>(`PRAGMA table_xinfo(${quoteName(table)})`)
    .all()
    .map(({ name }) => name);
}

/** A temporary table of that name is another. */
export function hasRowids(db: Database, table: string): boolean {
  const row = db
    .query<{ wr: number }, [string]>(
      "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE",
    )
    .get(table);
  return row?.wr !== 1;
}

/** PRAGMA schema_version. */
export function schemaVersion(db: Database): number {
  return db.query<{ schema_version: number }, []>("PRAGMA schema_version").get()!.schema_version;
}
