/**
 * The rows of synced tables as REST reads and writes them, over the one writing connection. Writes run
 * inside the transaction of the write queue; the log is written by the triggers of the file.
 *
 * A refusal that a client earned (no such row, a constraint) is returned, not thrown: what is thrown
 * undoes the whole group of writes that share the transaction.
 *
 * Invariants:
 *   R1  a written row's version is above what it replaces and above its tombstone.
 *   R2  a refused write leaves nothing behind, a batch is created whole or not at all.
 *   R3  the answer is the row as it stands after the write, triggers included.
 */

import type { Database } from "bun:sqlite";
import { isUtf8 } from "node:buffer";
import { assert } from "../base/assert.ts";
import { RequestError } from "../base/errors.ts";
import type { Random } from "../base/random.ts";
import { formatValue, readRowJson } from "../protocol/values.ts";
import type { ListOrder } from "./newest-rows.ts";
import { refusalOf } from "./refusal.ts";
import {
  atIndex,
  type Binding,
  type Doubt,
  type RowInput,
  type RowReader,
  withoutDoubts,
} from "./row-input.ts";
import { RowStatements, type WriteStatement } from "./row-statements.ts";
import type { SyncedTable } from "./schema.ts";
import type { Tombstones } from "./tombstones.ts";
import type { TriggerPause } from "./trigger-pause.ts";
import { Later, type WriteTransaction } from "./write-queue.ts";

/** A row as UTF-8 JSON, every value in its lossless form (row-input.ts names them). */
export type RowJson = Uint8Array<ArrayBuffer>;

/** One page, ready to be sent. */
export interface RowList {
  /** A JSON array. */
  readonly json: Uint8Array<ArrayBuffer>;
  readonly order: ListOrder;
  /** Where the next page begins; undefined on the last one. */
  readonly next: string | undefined;
}

/** `db` is the writing connection; `random` makes the ids of new rows. */
export interface RepositoryOptions {
  readonly db: Database;
  readonly tombstones: Tombstones;
  readonly pause: TriggerPause;
  readonly random: Random;
  /** Written to `node_id` of the rows made here. */
  readonly nodeId: string;
}

type Created = RowJson | RequestError;

/** Rows of one shape, asked for one after the other in a transaction, that are inserted at its end. */
interface CreateRun {
  readonly transaction: WriteTransaction;
  readonly statements: RowStatements;
  readonly shape: string;
  readonly rows: RowInput[];
  readonly ids: string[];
  /** What became of each. */
  readonly created: Created[];
}

/** Rows of one shape looked for at a time; no statement takes more. */
const CHUNK_ROWS = 100;
/** A page of a thousand rows with large BLOBs would not fit into memory; it ends earlier. */
const LIST_BYTES_MAX = 16 * 1024 * 1024;

/** Keeps one set of prepared statements for each SyncedTable object, as long as that is current. */
export class Repository {
  readonly #db: Database;
  readonly #tombstones: Tombstones;
  readonly #pause: TriggerPause;
  readonly #random: Random;
  readonly #nodeId: string;
  readonly #statements = new Map<string, RowStatements>();
  #run: CreateRun | undefined;

  constructor(options: RepositoryOptions) {
    this.#db = options.db;
    this.#tombstones = options.tombstones;
    this.#pause = options.pause;
    this.#random = options.random;
    this.#nodeId = options.nodeId;
  }

  /** Reads what clients send for this table. Its inputs are good for this very `table` object only. */
  reader(table: SyncedTable): RowReader {
    return this.#for(table).reader;
  }

  read(table: SyncedTable, id: string): RowJson | undefined {
    const json = this.#for(table).json(id);
    return json && toUtf8(json);
  }

  /** Newest first; see newest-rows.ts for what that means where. */
  list(table: SyncedTable, limit: number, after: string | undefined): RowList {
    const statements = this.#for(table);
    const page = statements.newest.page(limit, after);
    const rows: { place: number; json: RowJson }[] = [];
    let bytes = 0;
    let last: number | undefined;
    for (const [index, row] of page.rows.entries()) {
      const json = statements.json(row.id);
      // Another program may have deleted it since the page was read.
      if (json === undefined) continue;
      if (rows.length > 0 && bytes + json.length > LIST_BYTES_MAX) {
        return { json: jsonArray(rows), order: page.order, next: page.cursorAfter(last!) };
      }
      bytes += json.length;
      rows.push({ place: row.place, json: toUtf8(json) });
      last = index;
    }
    const next = page.moreRemain ? page.cursorAfter(page.rows.length - 1) : undefined;
    return { json: jsonArray(rows), order: page.order, next };
  }

  create(
    table: SyncedTable,
    row: RowInput,
    transaction: WriteTransaction,
  ): Created | Later<Created> {
    const statements = this.#for(table);
    if (row.id === undefined && statements.undoesItself)
      return this.#createWithOthers(statements, row, transaction);
    if (row.id !== undefined && statements.versionOf(row.id) !== undefined) return idIsTaken();
    return this.#createOne(statements, row.id ?? this.#random.uuid(), row, transaction);
  }

  #createOne(
    statements: RowStatements,
    id: string,
    row: RowInput,
    transaction: WriteTransaction,
  ): Created {
    const bindings = this.#bindings(statements, [id], [row], transaction.nowMs);
    const refusal = this.#write(statements, statements.insert(row.shape, 1), bindings, 1);
    if (refusal) return refusal;
    this.#count(statements, 1, transaction);
    return this.#createdRow(statements, id, row, transaction.nowMs);
  }

  /**
   * Nobody else can mean a row whose id is made here: it need not be there before the transaction ends,
   * and rows of one shape are inserted by one statement.
   */
  #createWithOthers(
    statements: RowStatements,
    row: RowInput,
    transaction: WriteTransaction,
  ): Later<Created> {
    let run = this.#run;
    if (
      run?.transaction !== transaction ||
      run.statements !== statements ||
      run.shape !== row.shape
    ) {
      const begun: CreateRun = {
        transaction,
        statements,
        shape: row.shape,
        rows: [],
        ids: [],
        created: [],
      };
      transaction.atEnd(() => this.#createRun(begun));
      this.#run = begun;
      run = begun;
    }
    const { created } = run;
    const place = run.rows.push(row) - 1;
    run.ids.push(this.#random.uuid());
    return new Later(() => created[place]!);
  }

  #createRun(run: CreateRun): void {
    this.#run = undefined;
    const { transaction, statements, shape, rows, ids, created } = run;
    let at = 0;
    while (at < rows.length) {
      const size = statements.rowsPerInsert(shape, rows.length - at);
      const end = at + size;
      const bindings = this.#bindings(
        statements,
        ids.slice(at, end),
        rows.slice(at, end),
        transaction.nowMs,
      );
      const refusal = this.#write(statements, statements.insert(shape, size), bindings, size);
      if (refusal === undefined) this.#count(statements, size, transaction);
      for (; at < end; at++) {
        const [id, row] = [ids[at]!, rows[at]!];
        if (refusal === undefined)
          created.push(this.#createdRow(statements, id, row, transaction.nowMs));
        // One of them is guilty.
        else created.push(size === 1 ? refusal : this.#createOne(statements, id, row, transaction));
      }
    }
  }

  /** R3. */
  #createdRow(statements: RowStatements, id: string, row: RowInput, nowMs: number): Created {
    const made =
      row.id === undefined
        ? statements.madeJson(id, row, { version: nowMs, nowMs, nodeId: this.#nodeId })
        : undefined;
    return (
      made ??
      this.read(statements.table, id) ??
      new RequestError(409, "a trigger of the table took the row out again")
    );
  }

  /** Their ids in the same order, or why none was created. */
  createMany(
    table: SyncedTable,
    rows: readonly RowInput[],
    transaction: WriteTransaction,
  ): string[] | RequestError {
    const statements = this.#for(table);
    for (const [index, row] of rows.entries()) {
      if (row.id !== undefined && statements.versionOf(row.id) !== undefined)
        return atIndex(idIsTaken(), index);
    }
    const ids = rows.map((row) => row.id ?? this.#random.uuid());
    this.#db.run("SAVEPOINT hooksync_batch");
    let refusal = this.#insertTogether(statements, ids, rows, transaction.nowMs);
    if (refusal) {
      this.#undoBatch();
      refusal = this.#insertOneByOne(statements, ids, rows, transaction.nowMs);
      if (refusal) this.#undoBatch();
    }
    this.#db.run("RELEASE hooksync_batch");
    if (refusal) return refusal;
    this.#count(statements, rows.length, transaction);
    return ids;
  }

  /** The given columns change, the others stay. */
  update(
    table: SyncedTable,
    id: string,
    row: RowInput,
    transaction: WriteTransaction,
  ): RowJson | RequestError {
    const statements = this.#for(table);
    const stored = statements.versionOf(id);
    if (stored === undefined) return noSuchRow();
    const change = row.doubts ? this.#decided(table, id, row, row.doubts) : row;
    if (change instanceof RequestError) return change;
    const version = Math.max(stored + 1, this.#freshVersion(table, id, transaction.nowMs));
    const refusal = this.#write(
      statements,
      statements.update(change.shape),
      [...change.values, version, id],
      1,
    );
    if (refusal) return refusal;
    this.#count(statements, 1, transaction);
    return this.read(table, id) ?? noSuchRow();
  }

  #decided(
    table: SyncedTable,
    id: string,
    row: RowInput,
    doubts: readonly Doubt[],
  ): RowInput | RequestError {
    const json = this.read(table, id);
    return json === undefined
      ? noSuchRow()
      : withoutDoubts(row, doubts, new TextDecoder().decode(json));
  }

  /** The tombstone takes the row's version. */
  remove(table: SyncedTable, id: string, transaction: WriteTransaction): RequestError | undefined {
    const statements = this.#for(table);
    const version = statements.versionOf(id);
    if (version === undefined) return noSuchRow();
    const refusal = this.#write(statements, statements.remove, [id], 1);
    if (refusal) return refusal;
    this.#tombstones.put(table.key, id, version, transaction.nowMs);
    // Of an odd stamp, which may be behind a 0, settling makes the version that others take.
    if (version !== 0) this.#count(statements, 1, transaction);
    return undefined;
  }

  /** Gives its statements back. */
  close(): void {
    for (const statements of this.#statements.values()) statements.finalize();
    this.#statements.clear();
  }

  #for(table: SyncedTable): RowStatements {
    const known = this.#statements.get(table.key);
    if (known?.table === table) return known;
    known?.finalize();
    const statements = new RowStatements(this.#db, table);
    this.#statements.set(table.key, statements);
    return statements;
  }

  #freshVersion(table: SyncedTable, id: string, nowMs: number): number {
    const tombstone = this.#tombstones.versionOf(table.key, id);
    return tombstone === undefined ? nowMs : Math.max(nowMs, tombstone + 1);
  }

  #bindings(
    statements: RowStatements,
    ids: readonly string[],
    rows: readonly RowInput[],
    nowMs: number,
  ): Binding[] {
    const bindings: Binding[] = [];
    for (const [index, row] of rows.entries()) {
      const id = ids[index]!;
      // An id that was just made cannot have a tombstone.
      const version =
        row.id === undefined ? nowMs : this.#freshVersion(statements.table, id, nowMs);
      statements.addBindings(bindings, id, row, { version, nowMs, nodeId: this.#nodeId });
    }
    return bindings;
  }

  /** With the entries for the log made in one go, where that pays and is possible. */
  #insertTogether(
    statements: RowStatements,
    ids: readonly string[],
    rows: readonly RowInput[],
    nowMs: number,
  ): RequestError | undefined {
    const { capture, table } = statements;
    if (capture !== undefined && this.#pause.begin(table, rows.length)) {
      const last = capture.last();
      const refusal = this.#insertInChunks(statements, ids, rows, nowMs);
      if (refusal) return refusal;
      if (capture.logSince(last) === rows.length) {
        this.#pause.end();
        return undefined;
      }
      this.#undoBatch();
    }
    return this.#insertInChunks(statements, ids, rows, nowMs);
  }

  #undoBatch(): void {
    this.#db.run("ROLLBACK TO hooksync_batch");
    this.#pause.forget();
  }

  #insertInChunks(
    statements: RowStatements,
    ids: readonly string[],
    rows: readonly RowInput[],
    nowMs: number,
  ): RequestError | undefined {
    let at = 0;
    while (at < rows.length) {
      const { shape } = rows[at]!;
      let same = at + 1;
      while (same < rows.length && same - at < CHUNK_ROWS && rows[same]!.shape === shape) same++;
      const size = statements.rowsPerInsert(shape, same - at);
      const end = at + size;
      const statement = statements.insert(shape, size);
      const bindings = this.#bindings(statements, ids.slice(at, end), rows.slice(at, end), nowMs);
      const refusal = this.#write(statements, statement, bindings, end - at);
      if (refusal) return refusal;
      at = end;
    }
    return undefined;
  }

  /** Slower, and tells which row is refused. */
  #insertOneByOne(
    statements: RowStatements,
    ids: readonly string[],
    rows: readonly RowInput[],
    nowMs: number,
  ): RequestError | undefined {
    for (const [index, row] of rows.entries()) {
      const bindings = this.#bindings(statements, [ids[index]!], [row], nowMs);
      const refusal = this.#write(statements, statements.insert(row.shape, 1), bindings, 1);
      if (refusal) return atIndex(refusal, index);
    }
    return undefined;
  }

  /** R2: runs one statement that must change `expected` rows. */
  #write(
    statements: RowStatements,
    statement: WriteStatement,
    bindings: readonly Binding[],
    expected: number,
  ): RequestError | undefined {
    if (!statements.undoesItself) this.#db.run("SAVEPOINT hooksync_row");
    let refusal: RequestError | undefined;
    try {
      if (statement.run(...bindings).changes !== expected) refusal = ignoredByRule();
    } catch (error) {
      refusal = refusalOf(error, statements.table);
      // RAISE(ROLLBACK) took the transaction with it, and all other writes of the group.
      if (refusal === undefined || !this.#db.inTransaction) throw error;
    }
    if (!statements.undoesItself) {
      if (refusal) this.#db.run("ROLLBACK TO hooksync_row");
      this.#db.run("RELEASE hooksync_row");
    }
    return refusal;
  }

  #count(statements: RowStatements, entries: number, transaction: WriteTransaction): void {
    // Not counted, they are settled like another program's, with the notes of what was replaced.
    if (!statements.mayReplace) transaction.logged(entries);
  }
}

/** Texts that are not UTF-8 are shown as `\x` + hex, as they are captured; anything else would change them. */
function toUtf8(json: Uint8Array<ArrayBuffer>): RowJson {
  if (isUtf8(json)) return json;
  const members: string[] = [];
  for (const [name, value] of readRowJson(json))
    members.push(`${JSON.stringify(name)}:${formatValue(value)}`);
  return new TextEncoder().encode(`{${members.join(",")}}`);
}

const OPEN_BRACKET = 91;
const CLOSE_BRACKET = 93;
const COMMA = 44;

function jsonArray(rows: { place: number; json: RowJson }[]): Uint8Array<ArrayBuffer> {
  rows.sort((left, right) => left.place - right.place);
  const length = rows.reduce((sum, row) => sum + row.json.length + 1, 1);
  const json = new Uint8Array(Math.max(length, 2));
  json[0] = OPEN_BRACKET;
  let at = 1;
  for (const row of rows) {
    json.set(row.json, at);
    at += row.json.length;
    json[at++] = COMMA;
  }
  json[json.length - 1] = CLOSE_BRACKET;
  assert(at === length, "a list has the length that was counted");
  return json;
}

function noSuchRow(): RequestError {
  return new RequestError(404, "no such row");
}

function idIsTaken(): RequestError {
  return new RequestError(409, "id: there is a row with this id already");
}

function ignoredByRule(): RequestError {
  return new RequestError(409, "a trigger or a conflict rule of the table refuses it");
}
