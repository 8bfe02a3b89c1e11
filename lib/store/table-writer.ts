/**
 * The statements by which received rows reach one table. Prepared once per shape of the table: when
 * the schema changes, a new SyncedTable comes with a new writer. Conflict clauses are stated where the
 * table's own declaration has any (ON CONFLICT REPLACE), so that those never throw rows out.
 */
import type { Database, SQLQueryBindings, Statement } from "bun:sqlite";
import { readRowJson, type Value } from "../protocol/values.ts";
import { afterAffinity } from "./affinity.ts";
import type { Cells } from "./read-change.ts";
import { loggedRowSql, rowJsonSql } from "./row-json.ts";
import type { Column, SyncedTable } from "./schema.ts";
import { nameKey, quoteName, quoteText, statesConflictClause } from "./sql.ts";
import { isOddSql, type Stamp, stampOf } from "./versions.ts";

/**
 * Rows per statement, largest first: more gains nothing, and longer ones cost memory. One alone has a
 * statement here, too, since a single change that arrives is what the lag is made of.
 */
const CHUNK_ROWS: readonly number[] = [100, 25, 8, 1];
const VARIABLES_MAX = 32_766;
/** Shapes of partial rows whose statements are kept; a hostile sender could make any number. */
const SHAPES_MAX = 64;

/** A value that bun:sqlite binds as it is. */
export type Binding = string | number | bigint | null | Uint8Array;

/** How a row that a chunk did not write stands to the stored one. */
export type ChunkVerdict = "equal" | "stale" | "other";

/** Belongs to one SyncedTable object; inside the caller's transaction. */
export class TableWriter {
  readonly table: SyncedTable;
  readonly #db: Database;
  readonly #stored: Statement<{ stamp: number | null; kind: string }, [string]>;
  readonly #row: Statement<{ json: Uint8Array }, [string]>;
  readonly #delete: Statement<unknown, [string]>;
  readonly #statements = new Map<string, Statement<unknown, SQLQueryBindings[]>>();
  readonly #chunkStatements = new Map<string, Statement<unknown, SQLQueryBindings[]>>();
  readonly #chunkSizes: readonly number[];

  constructor(db: Database, table: SyncedTable) {
    this.#db = db;
    this.table = table;
    this.#chunkSizes = CHUNK_ROWS.filter((rows) => rows * table.columns.length <= VARIABLES_MAX);
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
    return stampOf(row.stamp, row.kind);
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
      `INSERT ${orAbort(this.table)} INTO ${quoteName(this.table.name)}(${columns.map((c) => quoteName(c.name)).join(", ")}) VALUES (${marks.join(", ")})`,
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
      `UPDATE ${orAbort(this.table)} ${quoteName(this.table.name)} SET ${sets.join(", ")} WHERE ${quoteName(this.table.id.name)} = ?`,
    ).run(...columns.map((column) => bindingOf(cells.get(column.key)!)), id);
  }

  setVersion(id: string, version: number): void {
    this.update(
      id,
      new Map([[this.table.version.key, { kind: "integer", value: BigInt(version) }]]),
    );
  }

  /** Gives columns their defaults again; one that must have a value and has no default keeps what it has. */
  resetToDefault(id: string, columns: readonly Column[]): void {
    const sets = columns
      .filter((column) => column.defaultSql !== null || !column.notNull)
      .map(
        ({ name, defaultSql }) =>
          `${quoteName(name)} = ${defaultSql === null ? "NULL" : `(${defaultSql})`}`,
      );
    if (sets.length === 0) return;
    this.#statement(
      `UPDATE ${orAbort(this.table)} ${quoteName(this.table.name)} SET ${sets.join(", ")} WHERE ${quoteName(this.table.id.name)} = ?`,
    ).run(id);
  }

  // ── Many rows at once ───────────────────────────────────────────────────────────────────────

  /** How many of `rows` rows one statement takes. */
  chunkSize(rows: number): number {
    return this.#chunkSizes.find((size) => size <= rows) ?? 1;
  }

  /**
   * Upserts `rows` whole rows (all columns, in order, row after row), each only where its version is
   * above the stored one. Returns how many rows were written.
   */
  upsertChunk(rows: number, bindings: Binding[]): number {
    return this.#chunk("upsert", rows, () => upsertSql(this.table, rows)).run(...bindings).changes;
  }

  /** The same, and says which. */
  upsertChunkReturning(rows: number, bindings: Binding[]): string[] {
    const id = quoteName(this.table.id.name);
    const written = this.#chunk(
      "returning",
      rows,
      () => `${upsertSql(this.table, rows)} RETURNING ${id}`,
    ).values(...bindings);
    return written.map(([written]) => String(written));
  }

  /** How the rows of a chunk stand to what is stored; one that was just written is equal. */
  compareChunk(rows: number, bindings: Binding[]): ChunkVerdict[] {
    const verdicts: ChunkVerdict[] = new Array(rows).fill("other");
    const compared = this.#chunk("compare", rows, () => compareSql(this.table, rows)).values(
      ...bindings,
    );
    for (const [row, verdict] of compared) {
      verdicts[Number(row)] = verdict === 1 ? "equal" : verdict === 0 ? "stale" : "other";
    }
    return verdicts;
  }

  /** The stored stamps of those of these rows that are there. */
  stamps(ids: readonly string[]): Map<string, Stamp> {
    const id = quoteName(this.table.id.name);
    const version = `t.${quoteName(this.table.version.name)}`;
    const rows = this.#chunk(
      "stamps",
      0,
      () =>
        `SELECT e.value, CASE WHEN NOT ${isOddSql(version)} THEN ${version} END
         FROM json_each(?) AS e CROSS JOIN ${quoteName(this.table.name)} AS t ON t.${id} = e.value`,
    ).values(JSON.stringify(ids));
    return new Map(
      rows.map(([found, stamp]) => [String(found), stamp === null ? "odd" : Number(stamp)]),
    );
  }

  deleteMany(ids: readonly string[]): void {
    this.#chunk(
      "delete",
      0,
      () =>
        `DELETE FROM ${quoteName(this.table.name)} WHERE ${quoteName(this.table.id.name)} IN (SELECT value FROM json_each(?))`,
    ).run(JSON.stringify(ids));
  }

  // ── Affinity ────────────────────────────────────────────────────────────────────────────────

  /** What the columns would hold after SQLite's own type affinity; cells of other columns stay. */
  afterAffinity(cells: Cells): Map<string, Value> {
    const result = new Map(cells);
    const unsure: Column[] = [];
    for (const column of this.#columnsOf(cells)) {
      const value = afterAffinity(cells.get(column.key)!, column.affinity);
      if (value === undefined) unsure.push(column);
      else result.set(column.key, value);
    }
    if (unsure.length > 0) {
      for (const [key, value] of this.#askSqlite(unsure, cells)) result.set(key, value);
    }
    return result;
  }

  /** From a table in memory with the same affinities. */
  #askSqlite(columns: readonly Column[], cells: Cells): Map<string, Value> {
    const shadow = `temp.${quoteName(`_hooksync_affinity_${this.table.key}`)}`;
    const all = this.table.columns;
    // Not there after a rollback, perhaps.
    this.#db.run(
      `CREATE TABLE IF NOT EXISTS ${shadow}(${all.map((c) => `${quoteName(c.name)} ${c.affinity}`).join(", ")})`,
    );
    this.#db.run(`DELETE FROM ${shadow}`);
    const names = columns.map((column) => quoteName(column.name)).join(", ");
    const marks = columns.map((column) => markSql(cells.get(column.key)!)).join(", ");
    this.#statement(`INSERT INTO ${shadow}(${names}) VALUES (${marks})`).run(
      ...columns.map((column) => bindingOf(cells.get(column.key)!)),
    );
    const shown = columns.map(({ name }) => ({ name, holds: "anything" }) as const);
    const row = this.#statement(
      `SELECT CAST(${rowJsonSql("t", shown)} AS BLOB) AS json FROM ${shadow} AS t`,
    ).get() as { json: Uint8Array };
    return new Map([...readRowJson(row.json)].map(([name, value]) => [nameKey(name), value]));
  }

  finalize(): void {
    for (const statement of [this.#stored, this.#row, this.#delete]) statement.finalize();
    for (const statement of this.#statements.values()) statement.finalize();
    for (const statement of this.#chunkStatements.values()) statement.finalize();
  }

  #columnsOf(cells: Cells): Column[] {
    return this.table.columns.filter((column) => cells.has(column.key));
  }

  #statement(sql: string): Statement<unknown, SQLQueryBindings[]> {
    let statement = this.#statements.get(sql);
    if (!statement) {
      if (this.#statements.size >= SHAPES_MAX) {
        for (const old of this.#statements.values()) old.finalize();
        this.#statements.clear();
      }
      statement = this.#db.prepare(sql);
      this.#statements.set(sql, statement);
    }
    return statement;
  }

  #chunk(
    name: string,
    rows: number,
    makeSql: () => string,
  ): Statement<unknown, SQLQueryBindings[]> {
    const key = `${name} ${rows}`;
    let statement = this.#chunkStatements.get(key);
    if (!statement) {
      statement = this.#db.prepare(makeSql());
      this.#chunkStatements.set(key, statement);
    }
    return statement;
  }
}

/**
 * What must stand between INSERT or UPDATE and the table. Only where it must: it is handed down to the
 * statements in the user's triggers, whose own OR IGNORE and OR REPLACE would then count for nothing.
 */
export function orAbort(table: SyncedTable): string {
  return statesConflictClause(table.sql) ? "OR ABORT" : "";
}

function rowMarks(table: SyncedTable, rows: number): string {
  const marks = `(${table.columns.map(() => "?").join(", ")})`;
  return new Array(rows).fill(marks).join(", ");
}

function upsertSql(table: SyncedTable, rows: number): string {
  const version = quoteName(table.version.name);
  const t = quoteName(table.name);
  const sets = table.columns
    .filter((column) => column.key !== table.id.key)
    .map((column) => `${quoteName(column.name)} = excluded.${quoteName(column.name)}`);
  return (
    `INSERT OR ABORT INTO ${t}(${table.columns.map((c) => quoteName(c.name)).join(", ")}) ` +
    `VALUES ${rowMarks(table, rows)} ` +
    `ON CONFLICT(${quoteName(table.id.name)}) DO UPDATE SET ${sets.join(", ")} ` +
    `WHERE excluded.${version} > ${t}.${version} OR ${isOddSql(`${t}.${version}`)}`
  );
}

/** 1 for equal, 0 for stale, NULL otherwise. The column's affinity applies, its collation must not. */
function compareSql(table: SyncedTable, rows: number): string {
  const at = (key: string) => table.columns.findIndex((column) => column.key === key) + 1;
  const same = table.columns
    .filter((column) => column.key !== table.id.key)
    .map((column) => `t.${quoteName(column.name)} IS v.column${at(column.key)} COLLATE BINARY`);
  const version = `t.${quoteName(table.version.name)}`;
  const numbered = Array.from(
    { length: rows },
    (_, row) => `(${table.columns.map(() => "?").join(", ")}, ${row})`,
  );
  return (
    `SELECT v.column${table.columns.length + 1}, CASE ` +
    `WHEN NOT ${isOddSql(version)} AND ${version} > v.column${at(table.version.key)} THEN 0 ` +
    `WHEN ${same.join(" AND ")} THEN 1 END ` +
    `FROM (VALUES ${numbered.join(", ")}) AS v ` +
    `CROSS JOIN ${quoteName(table.name)} AS t ON t.${quoteName(table.id.name)} = v.column${at(table.id.key)}`
  );
}

/** Bun binds a whole number as INTEGER and bytes as BLOB; where the value is something else, SQL says so. */
export function markSql(value: Value): string {
  if (value.kind === "real" && Number.isInteger(value.value)) return "CAST(? AS REAL)";
  if (value.kind === "broken-text") return "CAST(? AS TEXT)";
  return "?";
}

/** Text that is not UTF-8 is bound as its bytes: the statement must cast it. */
export function bindingOf(value: Value): Binding {
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

/**
 * SQL over `t` that is the row's JSON; for log entries made without a trigger. A stamp that no node
 * takes may still be there, where the application forbids another.
 */
export function loggedRowOf(table: SyncedTable): string {
  const columns = table.columns.map((column) =>
    column === table.version ? { name: column.name, holds: "stamp" as const } : column,
  );
  return loggedRowSql("t", columns);
}

/** `json_set` of the version into a row's JSON given as SQL. */
export function withVersionSql(table: SyncedTable, json: string, version: string): string {
  return `json_set(${json}, ${quoteText(`$.${JSON.stringify(table.version.name)}`)}, ${version})`;
}
