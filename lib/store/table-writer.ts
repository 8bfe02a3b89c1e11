/**
 * The statements by which received rows reach one table. Prepared once per shape of the table: when
 * the schema changes, a new SyncedTable comes with a new writer. Conflict clauses are stated, so that
 * those of the table's own declaration (ON CONFLICT REPLACE) never throw rows out.
 */
import type { Database, SQLQueryBindings, Statement } from "bun:sqlite";
import { readRowJson, type Value } from "../protocol/values.ts";
import type { Cells } from "./read-change.ts";
import { rowJsonSql } from "./row-json.ts";
import type { Column, SyncedTable } from "./schema.ts";
import { nameKey, quoteName, quoteText } from "./sql.ts";
import type { Stamp } from "./versions.ts";

/** Rows per multi-row statement: more gains nothing, and longer statements cost memory. */
const CHUNK_ROWS = 100;
const VARIABLES_MAX = 32_766;
/** Shapes of partial rows whose statements are kept; a hostile sender could make any number. */
const SHAPES_MAX = 64;

export type Binding = string | number | bigint | null | Uint8Array;

export class TableWriter {
  readonly table: SyncedTable;
  /** How many whole rows `upsertChunk` takes at once. */
  readonly chunkRows: number;
  readonly #db: Database;
  readonly #stored: Statement<{ stamp: number | null; kind: string }, [string]>;
  readonly #row: Statement<{ json: Uint8Array }, [string]>;
  readonly #delete: Statement<unknown, [string]>;
  readonly #shapes = new Map<string, Statement<unknown, SQLQueryBindings[]>>();
  #chunk: Statement<unknown, SQLQueryBindings[]> | undefined;
  #chunkEqual: Statement<{ equal: number }, SQLQueryBindings[]> | undefined;

  constructor(db: Database, table: SyncedTable) {
    this.#db = db;
    this.table = table;
    this.chunkRows = Math.max(
      1,
      Math.min(CHUNK_ROWS, Math.floor(VARIABLES_MAX / table.columns.length)),
    );
    const t = quoteName(table.name);
    const id = quoteName(table.id.name);
    const version = quoteName(table.version.name);
    this.#stored = db.prepare(
      `SELECT ${version} AS stamp, typeof(${version}) AS kind FROM ${t} WHERE ${id} = ?`,
    );
    this.#row = db.prepare(
      `SELECT CAST(${rowJsonSql("t", table.columns)} AS BLOB) AS json FROM ${t} AS t WHERE t.${id} = ?`,
    );
    this.#delete = db.prepare(`DELETE FROM ${t} WHERE ${id} = ?`);
  }

  /** The stored stamp, or undefined where there is no such row. */
  stamp(id: string): Stamp | undefined {
    const row = this.#stored.get(id);
    if (row === null) return undefined;
    return row.kind === "integer" && row.stamp !== null ? row.stamp : "odd";
  }

  /** The stored row by column key, exact, or undefined. */
  content(id: string): Map<string, Value> | undefined {
    const row = this.#row.get(id);
    if (row === null) return undefined;
    return new Map([...readRowJson(row.json)].map(([name, value]) => [nameKey(name), value]));
  }

  delete(id: string): void {
    this.#delete.run(id);
  }

  /** Inserts a row that is not there; columns that did not come get their defaults. */
  insert(cells: Cells): void {
    const columns = this.#columnsOf(cells);
    const marks = columns.map((column) => markSql(cells.get(column.key)!));
    this.#statement(
      `INSERT OR ABORT INTO ${quoteName(this.table.name)}(${columns.map((c) => quoteName(c.name)).join(", ")}) VALUES (${marks.join(", ")})`,
    ).run(...columns.map((column) => bindingOf(cells.get(column.key)!)));
  }

  /** Sets these columns of a row that is there. */
  update(id: string, cells: Cells): void {
    const columns = this.#columnsOf(cells).filter((column) => column.key !== this.table.id.key);
    if (columns.length === 0) return;
    const sets = columns.map(
      (column) => `${quoteName(column.name)} = ${markSql(cells.get(column.key)!)}`,
    );
    this.#statement(
      `UPDATE OR ABORT ${quoteName(this.table.name)} SET ${sets.join(", ")} WHERE ${quoteName(this.table.id.name)} = ?`,
    ).run(...columns.map((column) => bindingOf(cells.get(column.key)!)), id);
  }

  setVersion(id: string, version: number): void {
    this.update(
      id,
      new Map([[this.table.version.key, { kind: "integer", value: BigInt(version) }]]),
    );
  }

  /**
   * Upserts `chunkRows` whole rows (all columns, in order, row after row), each only where its version
   * is above the stored one. Returns how many rows were written.
   */
  upsertChunk(bindings: Binding[]): number {
    this.#chunk ??= this.#db.prepare(upsertSql(this.table, this.chunkRows));
    return this.#chunk.run(...bindings).changes;
  }

  /** How many of these rows are stored exactly as they stand here. */
  countEqual(bindings: Binding[]): number {
    this.#chunkEqual ??= this.#db.prepare(countEqualSql(this.table, this.chunkRows));
    return this.#chunkEqual.get(...bindings)!.equal;
  }

  /**
   * What the columns would hold after SQLite's own type affinity: from a table in memory with the same
   * declared types. Only ties need it.
   */
  afterAffinity(cells: Cells): Map<string, Value> {
    const columns = this.#columnsOf(cells);
    const shadow = `temp.${quoteName(`_hooksync_affinity_${this.table.key}`)}`;
    this.#db.run(`DROP TABLE IF EXISTS ${shadow}`);
    this.#db.run(
      `CREATE TABLE ${shadow}(${columns.map((c) => `${quoteName(c.name)} ${affinityName(c)}`).join(", ")})`,
    );
    const marks = columns.map((column) => markSql(cells.get(column.key)!));
    const insert = this.#db.prepare(`INSERT INTO ${shadow} VALUES (${marks.join(", ")})`);
    insert.run(...columns.map((column) => bindingOf(cells.get(column.key)!)));
    insert.finalize();
    const select = this.#db.prepare<{ json: Uint8Array }, []>(
      `SELECT CAST(${rowJsonSql(
        "t",
        columns.map((c) => ({ name: c.name, holds: "anything" })),
      )} AS BLOB) AS json FROM ${shadow} AS t`,
    );
    const row = select.get()!;
    select.finalize();
    return new Map([...readRowJson(row.json)].map(([name, value]) => [nameKey(name), value]));
  }

  finalize(): void {
    for (const statement of [this.#stored, this.#row, this.#delete, this.#chunk, this.#chunkEqual])
      statement?.finalize();
    for (const statement of this.#shapes.values()) statement.finalize();
  }

  #columnsOf(cells: Cells): Column[] {
    return this.table.columns.filter((column) => cells.has(column.key));
  }

  #statement(sql: string): Statement<unknown, SQLQueryBindings[]> {
    let statement = this.#shapes.get(sql);
    if (!statement) {
      if (this.#shapes.size >= SHAPES_MAX) {
        for (const old of this.#shapes.values()) old.finalize();
        this.#shapes.clear();
      }
      statement = this.#db.prepare(sql);
      this.#shapes.set(sql, statement);
    }
    return statement;
  }
}

function upsertSql(table: SyncedTable, rows: number): string {
  const version = quoteName(table.version.name);
  const t = quoteName(table.name);
  const sets = table.columns
    .filter((column) => column.key !== table.id.key)
    .map((column) => `${quoteName(column.name)} = excluded.${quoteName(column.name)}`);
  const marks = `(${table.columns.map(() => "?").join(", ")})`;
  return (
    `INSERT OR ABORT INTO ${t}(${table.columns.map((c) => quoteName(c.name)).join(", ")}) ` +
    `VALUES ${new Array(rows).fill(marks).join(", ")} ` +
    `ON CONFLICT(${quoteName(table.id.name)}) DO UPDATE SET ${sets.join(", ")} ` +
    `WHERE excluded.${version} > ${t}.${version} OR typeof(${t}.${version}) <> 'integer'`
  );
}

function countEqualSql(table: SyncedTable, rows: number): string {
  const marks = `(${table.columns.map(() => "?").join(", ")})`;
  const same = table.columns.map((column, i) => {
    const stored = `t.${quoteName(column.name)}`;
    if (column.key === table.id.key) return `${stored} = v.column${i + 1}`;
    return `${stored} IS v.column${i + 1}`;
  });
  return (
    `SELECT count(*) AS equal FROM (VALUES ${new Array(rows).fill(marks).join(", ")}) AS v ` +
    `CROSS JOIN ${quoteName(table.name)} AS t ON ${same.join(" AND ")}`
  );
}

function affinityName(column: Column): string {
  return { integer: "INTEGER", text: "TEXT", blob: "BLOB", real: "REAL", numeric: "NUMERIC" }[
    column.affinity
  ];
}

/** Bun binds a whole number as INTEGER and bytes as BLOB; where the value is something else, SQL says so. */
function markSql(value: Value): string {
  if (value.kind === "real" && Number.isInteger(value.value)) return "CAST(? AS REAL)";
  if (value.kind === "broken-text") return "CAST(? AS TEXT)";
  return "?";
}

function bindingOf(value: Value): Binding {
  switch (value.kind) {
    case "null":
      return null;
    case "blob":
    case "broken-text":
      return Uint8Array.fromHex(value.hex);
    default:
      return value.value;
  }
}

/** SQL over `t` that is the row's JSON; for log entries made without a trigger. */
export function rowJsonOf(table: SyncedTable): string {
  return rowJsonSql("t", table.columns);
}

/** `json_set` of the version into a row's JSON given as SQL. */
export function withVersionSql(table: SyncedTable, json: string, version: string): string {
  return `json_set(${json}, ${quoteText(`$.${JSON.stringify(table.version.name)}`)}, ${version})`;
}
