/**
 * What the trigger on INSERT writes, for many rows at once: of those that were inserted while the
 * triggers were paused (trigger-pause.ts). test/store/trigger-pause.test.ts holds the two against each other.
 */
import type { Database, Statement } from "bun:sqlite";
import { rowidName } from "./newest-rows.ts";
import { loggedRowSql } from "./row-json.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName, quoteText } from "./sql.ts";

/** Below every rowid that JavaScript can tell from its neighbours. */
const BEFORE_ALL = Number.MIN_SAFE_INTEGER;

/** For tables whose new rows can be told by their rowid; `finalize` gives its statements back. */
export class RowCapture {
  readonly #last: Statement<{ rowid: number }, []>;
  readonly #log: Statement<unknown, [number]>;

  static of(db: Database, table: SyncedTable): RowCapture | undefined {
    const rowid = table.withoutRowid ? undefined : rowidName(table);
    return rowid === undefined ? undefined : new RowCapture(db, table, rowid);
  }

  private constructor(db: Database, table: SyncedTable, rowid: string) {
    const t = quoteName(table.name);
    const id = `t.${quoteName(table.id.name)}`;
    this.#last = db.prepare(`SELECT coalesce(max(${rowid}), ${BEFORE_ALL}) AS rowid FROM ${t}`);
    this.#log = db.prepare(
      `INSERT INTO _changes(op, table_name, row_id, row_data)
       SELECT 'INSERT', ${quoteText(table.name)}, ${id}, ${loggedRowSql("t", table.columns)}
       FROM ${t} AS t WHERE t.${rowid} > ? ORDER BY t.${rowid}`,
    );
  }

  /** The last rowid in use. */
  last(): number {
    return this.#last.get()!.rowid;
  }

  /**
   * Logs the rows above that rowid and returns how many there were. Fewer than were inserted, or more:
   * SQLite took rowids in between, or they are too large to be told from each other here.
   */
  logSince(last: number): number {
    return this.#log.run(last).changes;
  }

  finalize(): void {
    this.#last.finalize();
    this.#log.finalize();
  }
}
