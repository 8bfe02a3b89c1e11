/**
 * The prepared statements with which REST reads and writes the rows of one table. They belong to one
 * `SyncedTable` object: when the schema changes there is another object, and these are thrown away.
 * Which columns a client gives varies, so INSERT and UPDATE are prepared once for each `shape` of
 * RowInput and kept in a bounded cache.
 */
import type { Database, Statement } from "bun:sqlite";
import { NewestRows } from "./newest-rows.ts";
import { RowAnswer } from "./row-answer.ts";
import { RowCapture } from "./row-capture.ts";
import {
  type Binding,
  type RowInput,
  RowReader,
  type RowStamps,
  readShape,
  type ServerMade,
  serverMade,
} from "./row-input.ts";
import { rowJsonSql } from "./row-json.ts";
import type { Column, SyncedTable } from "./schema.ts";
import { isWord, quoteName, tokenize } from "./sql.ts";
import { isOddSql } from "./versions.ts";

/** More shapes than an application's code has; a client that sends random subsets must not fill memory. */
const SHAPES_MAX = 64;
/**
 * Rows an INSERT may have, the most first. Measured for captured rows: 4 at a time run 1.25 times as
 * fast as one by one, 16 and more 1.4 times.
 */
const ROWS_PER_INSERT = [100, 16, 4, 1] as const;
/** Wide tables get fewer rows a statement; SQLite takes 32,766 parameters by default. */
const PARAMETERS_MAX = 10_000;

/** Returns no row; how many it changed is in what `run` returns. */
export type WriteStatement = Statement<unknown, Binding[]>;

interface InsertStatements {
  /** By their number of rows; prepared when first needed. */
  readonly byRows: Map<number, WriteStatement>;
  readonly rowsMax: number;
  /** Undefined where only the file can tell what an INSERT makes. */
  readonly answer: RowAnswer | undefined;
}

/** The Repository makes it and finalizes it when another object stands for the table. */
export class RowStatements {
  readonly table: SyncedTable;
  readonly reader: RowReader;
  /**
   * No trigger but ours and no conflict clause of the table's own: a refused statement then undoes
   * itself and leaves nothing, so no savepoint is needed.
   */
  readonly undoesItself: boolean;
  /**
   * `ON CONFLICT REPLACE` in the table throws rows out without a trace but a note: then the store
   * must settle what we wrote like another program's writes.
   */
  readonly mayReplace: boolean;
  readonly newest: NewestRows;
  /** Undefined where rows must be captured one by one. */
  readonly capture: RowCapture | undefined;
  /** Takes the id. */
  readonly remove: WriteStatement;
  readonly #db: Database;
  readonly #made: ServerMade;
  readonly #inserts = new Map<string, InsertStatements>();
  readonly #updates = new Map<string, WriteStatement>();
  readonly #json: Statement<{ json: Uint8Array<ArrayBuffer> }, [string]>;
  readonly #version: Statement<{ version: number }, [string]>;

  constructor(db: Database, table: SyncedTable) {
    this.#db = db;
    this.table = table;
    this.reader = new RowReader(table);
    this.#made = serverMade(table);
    this.mayReplace = tokenize(table.sql).some((token) => isWord(token, "CONFLICT"));
    this.undoesItself = !this.mayReplace && table.userTriggers.length === 0;
    this.newest = new NewestRows(db, table);
    this.capture = this.undoesItself ? RowCapture.of(db, table) : undefined;
    const t = quoteName(table.name);
    const id = quoteName(table.id.name);
    const version = quoteName(table.version.name);
    // As bytes: a text that is not UTF-8 would be changed on its way into a JS string.
    this.#json = db.prepare(
      `SELECT CAST(${rowJsonSql("t", table.columns)} AS BLOB) AS json FROM ${t} AS t WHERE t.${id} = ?`,
    );
    this.#version = db.prepare(
      `SELECT CASE WHEN ${isOddSql(version)} THEN 0 ELSE ${version} END AS version FROM ${t} WHERE ${id} = ?`,
    );
    this.remove = db.prepare(`DELETE FROM ${t} WHERE ${id} = ?`);
  }

  /** The row as row-json.ts writes it, perhaps with bytes that are not UTF-8. */
  json(id: string): Uint8Array<ArrayBuffer> | undefined {
    return this.#json.get(id)?.json;
  }

  /** The version of the row that is there, or undefined. */
  versionOf(id: string): number | undefined {
    return this.#version.get(id)?.version;
  }

  /** The most rows, of `rows`, that one INSERT of this shape takes. */
  rowsPerInsert(shape: string, rows: number): number {
    const { rowsMax } = this.#insertsFor(shape);
    return ROWS_PER_INSERT.find((size) => size <= rows && size <= rowsMax) ?? 1;
  }

  /** Takes what `addBindings` made of that many rows, one after the other. */
  insert(shape: string, rows: number): WriteStatement {
    const { byRows } = this.#insertsFor(shape);
    let statement = byRows.get(rows);
    if (statement === undefined) {
      statement = this.#prepareInsert(shape, rows);
      byRows.set(rows, statement);
    }
    return statement;
  }

  /** The row that an INSERT made, as `json` gives it, where that is known without asking the file. */
  madeJson(id: string, row: RowInput, stamps: RowStamps): Uint8Array<ArrayBuffer> | undefined {
    return this.#insertsFor(row.shape).answer?.json(id, row, stamps);
  }

  /** Appends what an INSERT of this row takes. */
  addBindings(bindings: Binding[], id: string, row: RowInput, stamps: RowStamps): void {
    bindings.push(id);
    for (const value of row.values) bindings.push(value);
    bindings.push(stamps.version);
    if (this.#made.createdAt) bindings.push(stamps.nowMs);
    if (this.#made.nodeId) bindings.push(stamps.nodeId);
  }

  /** Takes the values of the shape, the version and the id. */
  update(shape: string): WriteStatement {
    let statement = this.#updates.get(shape);
    if (statement === undefined) {
      makeRoom(this.#updates, (old) => old.finalize());
      statement = this.#prepareUpdate(shape);
      this.#updates.set(shape, statement);
    }
    return statement;
  }

  finalize(): void {
    clear(this.#inserts, finalizeInserts);
    clear(this.#updates, (statement) => statement.finalize());
    for (const statement of [this.#json, this.#version, this.remove]) statement.finalize();
    this.newest.finalize();
    this.capture?.finalize();
  }

  #insertsFor(shape: string): InsertStatements {
    let inserts = this.#inserts.get(shape);
    if (inserts === undefined) {
      makeRoom(this.#inserts, finalizeInserts);
      const columns = this.#insertColumns(shape);
      inserts = {
        byRows: new Map(),
        rowsMax: Math.floor(PARAMETERS_MAX / columns.length),
        answer: this.undoesItself ? RowAnswer.of(this.table, shape, this.#made) : undefined,
      };
      this.#inserts.set(shape, inserts);
    }
    return inserts;
  }

  /** In the order of `addBindings`. */
  #insertColumns(shape: string): { column: Column; asReal: boolean }[] {
    const { createdAt, nodeId } = this.#made;
    const made = [this.table.version, createdAt, nodeId].filter((column) => column !== undefined);
    const plain = (column: Column) => ({ column, asReal: false });
    return [plain(this.table.id), ...readShape(this.table, shape), ...made.map(plain)];
  }

  /**
   * Plain INSERT: OR ABORT would be handed down to the statements in the user's triggers, whose own
   * OR IGNORE or OR REPLACE would then fail.
   */
  #prepareInsert(shape: string, rows: number): WriteStatement {
    const slots = this.#insertColumns(shape);
    const columns = slots.map((slot) => quoteName(slot.column.name)).join(", ");
    const row = `(${slots.map(placeholder).join(", ")})`;
    return this.#db.prepare(
      `INSERT INTO ${quoteName(this.table.name)}(${columns}) VALUES ${Array(rows).fill(row).join(", ")}`,
    );
  }

  #prepareUpdate(shape: string): WriteStatement {
    const assignments = [
      ...readShape(this.table, shape),
      { column: this.table.version, asReal: false },
    ].map((slot) => `${quoteName(slot.column.name)} = ${placeholder(slot)}`);
    return this.#db.prepare(
      `UPDATE ${quoteName(this.table.name)} SET ${assignments.join(", ")} WHERE ${quoteName(this.table.id.name)} = ?`,
    );
  }
}

/** Bun binds 1.0 as an integer; a column without a type would keep it as one. */
function placeholder(slot: { readonly asReal: boolean }): string {
  return slot.asReal ? "CAST(? AS REAL)" : "?";
}

function finalizeInserts({ byRows }: InsertStatements): void {
  for (const statement of byRows.values()) statement.finalize();
}

function makeRoom<T>(cache: Map<string, T>, drop: (value: T) => void): void {
  if (cache.size >= SHAPES_MAX) clear(cache, drop);
}

function clear<T>(cache: Map<string, T>, drop: (value: T) => void): void {
  for (const value of cache.values()) drop(value);
  cache.clear();
}
