/**
 * Versions of single columns (DESIGN.md, "Unknown columns"). Nodes get a column at different times, so
 * changes arrive that lack columns we have, or carry ones we lack. A column's version is that of the
 * newest change that carried it; where that is not the row's, it is noted here with its value. In a
 * fleet of one schema this table is empty, and everything here costs one look at a flag.
 */
import type { Database, Statement } from "bun:sqlite";
import { formatValue, readRowJson, type Value } from "../protocol/values.ts";

export interface ColumnNote {
  readonly version: number;
  readonly value: Value;
}

interface NoteRow {
  readonly col: string;
  readonly version: number;
  readonly value: string;
}

export class ColumnNotes {
  readonly #db: Database;
  readonly #of: Statement<NoteRow, [string, string]>;
  readonly #put: Statement<unknown, [string, string, string, number, string]>;
  readonly #drop: Statement<unknown, [string, string, string]>;
  readonly #dropRow: Statement<unknown, [string, string]>;
  #isEmpty: boolean;

  constructor(db: Database) {
    this.#db = db;
    this.#of = db.prepare(
      "SELECT col, version, value FROM _hooksync_columns WHERE tbl = ? AND id = ?",
    );
    this.#put = db.prepare(
      `INSERT INTO _hooksync_columns(tbl, id, col, version, value) VALUES (?, ?, ?, ?, ?)
       ON CONFLICT(tbl, id, col) DO UPDATE SET version = excluded.version, value = excluded.value`,
    );
    this.#drop = db.prepare("DELETE FROM _hooksync_columns WHERE tbl = ? AND id = ? AND col = ?");
    this.#dropRow = db.prepare("DELETE FROM _hooksync_columns WHERE tbl = ? AND id = ?");
    this.#isEmpty = this.#readIsEmpty();
  }

  get isEmpty(): boolean {
    return this.#isEmpty;
  }

  /** After a rollback. */
  forget(): void {
    this.#isEmpty = this.#readIsEmpty();
  }

  #readIsEmpty(): boolean {
    return this.#db.query("SELECT 1 FROM _hooksync_columns LIMIT 1").get() === null;
  }

  /** Notes of one row by column key. */
  of(tableKey: string, id: string): Map<string, ColumnNote> {
    if (this.#isEmpty) return new Map();
    return new Map(
      this.#of
        .all(tableKey, id)
        .map((row) => [row.col, { version: row.version, value: parseNoted(row.value) }]),
    );
  }

  put(tableKey: string, id: string, column: string, version: number, value: Value): void {
    this.#put.run(tableKey, id, column, version, formatNoted(value));
    this.#isEmpty = false;
  }

  drop(tableKey: string, id: string, column: string): void {
    if (!this.#isEmpty) this.#drop.run(tableKey, id, column);
  }

  dropRow(tableKey: string, id: string): void {
    if (!this.#isEmpty) this.#dropRow.run(tableKey, id);
  }

  /** A local write carries every column of its table: their notes are over. */
  dropLocallyWritten(
    sinceChangeId: number,
    tableName: string,
    tableKey: string,
    columns: readonly string[],
  ): void {
    if (this.#isEmpty) return;
    this.#db
      .query(
        `DELETE FROM _hooksync_columns
         WHERE tbl = ? AND col IN (SELECT value FROM json_each(?))
           AND id IN (SELECT row_id FROM _changes WHERE change_id > ? AND table_name = ?)`,
      )
      .run(tableKey, JSON.stringify(columns), sinceChangeId, tableName);
  }

  /** Rows that wait for a column which is there now. */
  waitingFor(
    tableKey: string,
    columns: readonly string[],
  ): { id: string; col: string; value: Value }[] {
    if (this.#isEmpty) return [];
    return this.#db
      .query<{ id: string; col: string; value: string }, [string, string]>(
        "SELECT id, col, value FROM _hooksync_columns WHERE tbl = ? AND col IN (SELECT value FROM json_each(?))",
      )
      .all(tableKey, JSON.stringify(columns))
      .map((row) => ({ id: row.id, col: row.col, value: parseNoted(row.value) }));
  }
}

function formatNoted(value: Value): string {
  return `{"${value.kind === "broken-text" ? "t" : "v"}":${formatValue(value)}}`;
}

function parseNoted(text: string): Value {
  const [[kind, value]] = [...readRowJson(new TextEncoder().encode(text))] as [[string, Value]];
  if (kind === "t" && value.kind === "text")
    return { kind: "broken-text", hex: value.value.slice(2) };
  return value;
}
