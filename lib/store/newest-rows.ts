/**
 * The newest rows of a table, page by page, without an index of our own on somebody's table.
 *
 * Newest means `created_at DESC, id DESC`, and that is the order where an index of the table serves it
 * or the table is small. A table of millions without such an index would be read from end to end for
 * every list (2 s at a million rows, measured, with everything else waiting), so there it is
 *
 *   id      descending, when both ends of the table hold UUIDv7 ids: those rise with time, and all
 *           nodes list the same; else
 *   rowid   descending: what was stored here last comes first.
 *
 * In these, too, the rows of one page are sorted by created_at. The cursor is a place in the order
 * (never an offset), so rows that come or go meanwhile do not shift a page. It holds texts as hex: one
 * that is not UTF-8 would name another place after its way through a JS string.
 */
import type { Database, Statement } from "bun:sqlite";
import { RequestError } from "../base/errors.ts";
import type { Column, SyncedTable } from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";

/** What a list is sorted by; REST says it in the header X-Order. */
export type ListOrder = "created_at" | "id" | "rowid";

/** One row of a page; `place` is where it stands when the page is sorted by created_at. */
export interface PageRow {
  readonly id: string;
  readonly place: number;
}

/** Only ids and their order: the repository reads the rows. */
export interface Page {
  readonly order: ListOrder;
  /** In the order of the cursors. */
  readonly rows: readonly PageRow[];
  readonly moreRemain: boolean;
  /** Where the page after `rows[index]` begins. */
  cursorAfter(index: number): string;
}

/** A full read of this many rows, sorted, takes about 10 ms; more would be felt by other requests. */
const SORTED_ROWS_MAX = 20_000;
const UUID_V7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7/i;

/** Where a page goes on. `kind` and `value`: the created_at of that row, or its rowid. */
interface Cursor {
  readonly order: ListOrder;
  readonly kind: string;
  readonly value: string;
  readonly idHex: string;
}

interface KeyRow {
  readonly id: string;
  readonly idHex: string;
  readonly kind: string;
  readonly value: string | number | null;
  readonly place: number;
}

type Key = string | number | bigint | Uint8Array;

const TEXT_OF_HEX = "CAST(unhex(?) AS TEXT)";

/** Belongs to the RowStatements of its table, which finalize it. */
export class NewestRows {
  readonly #db: Database;
  readonly #table: SyncedTable;
  readonly #from: string;
  readonly #id: string;
  readonly #createdAt: Column | undefined;
  readonly #rowid: string | undefined;
  readonly #statements = new Map<string, Statement<unknown, Key[]>>();
  #index: { readonly schemaVersion: number; readonly name: string | undefined } | undefined;
  /** A table that was large once is taken for large: the order should not change back and forth. */
  #isLarge = false;

  constructor(db: Database, table: SyncedTable) {
    this.#db = db;
    this.#table = table;
    this.#from = quoteName(table.name);
    this.#id = quoteName(table.id.name);
    this.#createdAt = table.columnByKey.get("created_at");
    this.#rowid = table.withoutRowid ? undefined : rowidName(table);
  }

  page(limit: number, after: string | undefined): Page {
    const best = this.#bestOrder();
    if (after === undefined)
      return this.#page({ order: best, kind: "", value: "", idHex: "" }, limit, false);
    const cursor = decodeCursor(after);
    const isPossible =
      cursor.order === "id" ||
      cursor.order === best ||
      (cursor.order === "rowid" && this.#rowid !== undefined);
    if (!isPossible) {
      throw new RequestError(400, "after: this list has another order now; begin again without it");
    }
    return this.#page(cursor, limit, true);
  }

  finalize(): void {
    for (const statement of this.#statements.values()) statement.finalize();
    this.#statements.clear();
  }

  #bestOrder(): ListOrder {
    const createdAt = this.#createdAt;
    if (createdAt && (this.#findIndex(createdAt) !== undefined || !this.#hasManyRows())) {
      return "created_at";
    }
    if (this.#rowid === undefined || this.#idsRiseWithTime()) return "id";
    return "rowid";
  }

  #page(cursor: Cursor, limit: number, goesOn: boolean): Page {
    // One more than asked for tells whether there is a next page.
    const rows = this.#keys(cursor, limit + 1, goesOn);
    const onPage = rows.slice(0, limit);
    const named = onPage.filter(isNamed);
    return {
      order: cursor.order,
      rows: named,
      moreRemain: rows.length > limit,
      cursorAfter: (index) => {
        const { idHex, kind, value } = index < named.length - 1 ? named[index]! : onPage.at(-1)!;
        return encodeCursor({ order: cursor.order, kind, value: String(value), idHex });
      },
    };
  }

  #keys(cursor: Cursor, count: number, goesOn: boolean): KeyRow[] {
    if (cursor.order === "created_at") return this.#keysByCreation(cursor, count, goesOn);
    const key = cursor.order === "id" ? this.#id : this.#rowid!;
    if (!goesOn) return this.#all(this.#byKeySql(key, ""), count);
    if (cursor.order === "id")
      return this.#all(this.#byKeySql(key, `AND ${key} < ${TEXT_OF_HEX}`), cursor.idHex, count);
    return this.#all(this.#byKeySql(key, `AND ${key} < ?`), BigInt(cursor.value), count);
  }

  #keysByCreation(cursor: Cursor, count: number, goesOn: boolean): KeyRow[] {
    const column = this.#createdAt!;
    const sql = (condition: string) =>
      this.#byCreationSql(column, this.#findIndex(column), condition);
    if (!goesOn) return this.#all(sql(""), count);
    const c = quoteName(column.name);
    if (cursor.kind === "null") {
      const condition = `AND ${c} IS NULL AND ${this.#id} < ${TEXT_OF_HEX}`;
      return this.#all(sql(condition), cursor.idHex, count);
    }
    const rows: KeyRow[] = this.#all(
      sql(
        `AND (${c}, ${this.#id}) < (${cursor.kind === "text" ? TEXT_OF_HEX : "?"}, ${TEXT_OF_HEX})`,
      ),
      keyOf(cursor),
      cursor.idHex,
      count,
    );
    // Rows without a stamp come last, and no comparison finds them.
    if (rows.length >= count) return rows;
    return [...rows, ...this.#all<KeyRow[]>(sql(`AND ${c} IS NULL`), count - rows.length)];
  }

  /** The index is named, since the planner would rather sort a million rows than go along it. */
  #byCreationSql(column: Column, index: string | undefined, condition: string): string {
    const c = quoteName(column.name);
    return `
      SELECT ${this.#id} AS id, hex(${this.#id}) AS idHex, typeof(${c}) AS kind, 0 AS place,
             CASE typeof(${c}) WHEN 'integer' THEN CAST(${c} AS TEXT) WHEN 'real' THEN ${c} ELSE hex(${c}) END AS value
      FROM ${this.#from} ${index === undefined ? "" : `INDEXED BY ${quoteName(index)}`}
      WHERE typeof(${this.#id}) = 'text' ${condition}
      ORDER BY ${c} DESC, ${this.#id} DESC
      LIMIT ?`;
  }

  #byKeySql(key: string, condition: string): string {
    const column = this.#createdAt;
    return `
      SELECT id, hex(id) AS idHex, '' AS kind, ${key === this.#id ? "''" : "CAST(k AS TEXT)"} AS value,
             row_number() OVER (ORDER BY ${column ? "c DESC, id DESC" : "k DESC"}) AS place
      FROM (SELECT ${this.#id} AS id, ${key} AS k, ${column ? quoteName(column.name) : "NULL"} AS c
            FROM ${this.#from}
            WHERE typeof(${this.#id}) = 'text' ${condition}
            ORDER BY ${key} DESC
            LIMIT ?)
      ORDER BY k DESC`;
  }

  /** An index that gives the order. Looked for again when the schema changed. */
  #findIndex(column: Column): string | undefined {
    const [{ schema_version: schemaVersion }] =
      this.#all<[{ schema_version: number }]>("PRAGMA schema_version");
    if (this.#index?.schemaVersion !== schemaVersion) {
      const candidates = this.#all<{ name: string }[]>(
        `SELECT l.name FROM pragma_index_list(?) AS l, pragma_index_xinfo(l.name) AS x
         WHERE l.partial = 0 AND x.seqno = 0 AND x.name = ? COLLATE NOCASE`,
        this.#table.name,
        column.name,
      );
      const name = candidates.find((index) => this.#givesOrder(column, index.name))?.name;
      this.#index = { schemaVersion, name };
    }
    return this.#index.name;
  }

  /** One of another collation would not. */
  #givesOrder(column: Column, index: string): boolean {
    // Not kept: a prepared EXPLAIN never sees that the schema changed.
    const plan = this.#db.prepare<{ detail: string }, [number]>(
      `EXPLAIN QUERY PLAN ${this.#byCreationSql(column, index, "")}`,
    );
    const steps = plan.all(1);
    plan.finalize();
    return steps.every((step) => step.detail !== "USE TEMP B-TREE FOR ORDER BY");
  }

  #hasManyRows(): boolean {
    this.#isLarge ||=
      this.#all<unknown[]>(`SELECT 1 FROM ${this.#from} LIMIT 1 OFFSET ${SORTED_ROWS_MAX}`).length >
      0;
    return this.#isLarge;
  }

  /** Random ids, or ids of the application's own, lie at an end sooner or later. */
  #idsRiseWithTime(): boolean {
    const end = (direction: string) =>
      `SELECT id FROM (SELECT ${this.#id} AS id FROM ${this.#from}
       WHERE typeof(${this.#id}) = 'text' ORDER BY ${this.#id} ${direction} LIMIT 1)`;
    const ends = this.#all<{ id: string }[]>(`${end("ASC")} UNION ALL ${end("DESC")}`);
    return ends.every((row) => UUID_V7.test(row.id));
  }

  /** `T` is what the statement's columns make of its rows. */
  #all<T extends readonly unknown[]>(sql: string, ...keys: Key[]): T {
    let statement = this.#statements.get(sql);
    if (statement === undefined) {
      statement = this.#db.prepare<unknown, Key[]>(sql);
      this.#statements.set(sql, statement);
    }
    return statement.all(...keys) as unknown as T;
  }
}

/** A name by which SQLite knows the rowid and that no column has taken. */
export function rowidName(table: SyncedTable): string | undefined {
  const isTaken = (name: string) => table.columnByKey.has(name) || table.generated.has(name);
  return ["_rowid_", "rowid", "oid"].find((name) => !isTaken(nameKey(name)));
}

/** An id that is not UTF-8 names no row; as a JS string it could name another one. */
function isNamed({ id, idHex }: KeyRow): boolean {
  return !id.includes("\uFFFD") || Buffer.from(id).toString("hex").toUpperCase() === idHex;
}

function keyOf(cursor: Cursor): Key {
  switch (cursor.kind) {
    case "integer":
      return BigInt(cursor.value);
    case "real":
      return Number(cursor.value);
    case "blob":
      return Uint8Array.fromHex(cursor.value);
    default:
      return cursor.value;
  }
}

function encodeCursor(cursor: Cursor): string {
  const { order, kind, value, idHex } = cursor;
  return Buffer.from(JSON.stringify([order, kind, value, idHex])).toString("base64url");
}

const HEX = /^([0-9A-F]{2})*$/;
const CURSOR_VALUE: Readonly<Record<string, RegExp>> = {
  integer: /^-?\d{1,19}$/,
  real: /^-?(Infinity|\d+(\.\d+)?(e[+-]\d+)?)$/,
  text: HEX,
  blob: HEX,
};
const ROWID = /^-?\d{1,19}$/;

function decodeCursor(text: string): Cursor {
  const parts = parseParts(text);
  const [order, kind, value, idHex] = parts;
  const isOrder = order === "created_at" || order === "id" || order === "rowid";
  if (
    parts.length !== 4 ||
    !isOrder ||
    kind === undefined ||
    value === undefined ||
    idHex === undefined ||
    !HEX.test(idHex)
  ) {
    throw notACursor();
  }
  const wanted = order === "rowid" ? ROWID : CURSOR_VALUE[kind];
  if (order !== "id" && wanted && !wanted.test(value)) throw notACursor();
  return { order, kind, value, idHex };
}

function parseParts(text: string): string[] {
  try {
    const parts: unknown = JSON.parse(Buffer.from(text, "base64url").toString());
    return Array.isArray(parts) && parts.every((part) => typeof part === "string") ? parts : [];
  } catch {
    return [];
  }
}

function notACursor(): RequestError {
  return new RequestError(400, "after: expected a cursor that an earlier answer gave");
}
