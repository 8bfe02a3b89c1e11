/**
 * The rows of a follower's copy as JSON, for reading only, of every table, whether or not it could be
 * synced. Every value has the form it has in a node's REST answers (row-json.ts).
 */
import { Database } from "bun:sqlite";
import { rowJsonSql } from "./row-json.ts";
import { isInternalTable } from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";

/** A page, and where the next one begins; undefined after the last. */
export interface CopyPage {
  /** A JSON array, the newest rows first. */
  readonly json: string;
  readonly next: string | undefined;
}

interface CopyTable {
  readonly name: string;
  readonly columns: readonly string[];
  /** What orders the rows: the rowid, or the key of a table WITHOUT ROWID, whose pages have offsets. */
  readonly rowid: string | undefined;
}

/** A reader of a copy that somebody else writes. */
export class CopyRows {
  readonly #db: Database;

  constructor(path: string) {
    this.#db = new Database(path, { readonly: true });
    this.#db.run("PRAGMA busy_timeout = 5000");
  }

  /** Undefined where there is no such table. `after` is the `next` of the page before. */
  list(name: string, limit: number, after: string | undefined): CopyPage | undefined {
    const table = this.#table(name);
    if (table === undefined) return undefined;
    const { sql, isOffset } = listSql(table, after !== undefined);
    const offset = Number(after ?? 0);
    const bound = isOffset ? [offset] : after === undefined ? [] : [BigInt(after)];
    const rows = this.#db
      .query<{ json: string; place: string }, (number | bigint)[]>(sql)
      .all(...bound, limit + 1);
    const shown = rows.slice(0, limit);
    const last = isOffset ? String(offset + limit) : shown.at(-1)?.place;
    return {
      json: `[${shown.map(({ json }) => json).join(",")}]`,
      next: rows.length > limit ? last : undefined,
    };
  }

  /** One row by its `id`, or by its rowid where the table has no such column, as a JSON object. */
  row(name: string, id: string): string | undefined {
    const table = this.#table(name);
    if (table === undefined) return undefined;
    const key = table.columns.find((column) => nameKey(column) === "id") ?? table.rowid;
    if (key === undefined) return undefined;
    const sql = `
      SELECT ${jsonOf(table)} AS json
      FROM ${quoteName(table.name)} AS t
      WHERE t.${quoteName(key)} = ?
      LIMIT 1`;
    return this.#db.query<{ json: string }, [string]>(sql).get(id)?.json;
  }

  /** Gives the connection back. */
  close(): void {
    this.#db.close();
  }

  #table(name: string): CopyTable | undefined {
    if (isInternalTable(name)) return undefined;
    const known = this.#db
      .query<{ name: string; wr: number }, [string]>(
        `SELECT name, wr FROM pragma_table_list
         WHERE schema = 'main' AND type = 'table' AND name = ? COLLATE NOCASE`,
      )
      .get(name);
    if (known === null) return undefined;
    const columns = this.#db
      .query<{ name: string }, [string]>("SELECT name FROM pragma_table_xinfo(?)")
      .all(known.name)
      .map((column) => column.name);
    const taken = new Set(columns.map(nameKey));
    const rowid = ["rowid", "_rowid_", "oid"].find((each) => !taken.has(each));
    return { name: known.name, columns, rowid: known.wr === 1 ? undefined : rowid };
  }
}

function jsonOf({ columns }: CopyTable): string {
  const all = columns.map((name) => ({ name, holds: "anything" as const }));
  return rowJsonSql("t", all);
}

function listSql(table: CopyTable, isFurther: boolean): { sql: string; isOffset: boolean } {
  const { rowid } = table;
  const place = rowid === undefined ? "''" : `CAST(t.${rowid} AS TEXT)`;
  const where = isFurther && rowid !== undefined ? `WHERE t.${rowid} < ?` : "";
  const order = rowid === undefined ? "1" : `t.${rowid} DESC`;
  const isOffset = rowid === undefined;
  const sql = `
    SELECT ${jsonOf(table)} AS json, ${place} AS place
    FROM ${quoteName(table.name)} AS t
    ${where}
    ORDER BY ${order}
    LIMIT ${isOffset ? "?2 OFFSET ?1" : "?"}`;
  return { sql, isOffset };
}
