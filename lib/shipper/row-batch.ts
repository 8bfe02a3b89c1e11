/**
 * Rows as a batch that any node takes, made from the tables instead of the log: what repairs another
 * node (comparison.ts). The rows travel as they always do, so nothing is lost on the way.
 *
 * Invariant: what is not settled stays here, as with what is shipped: its version is not final. A stamp
 * far ahead would be parked elsewhere, and beat every edit when it came due.
 */
import type { Database } from "bun:sqlite";
import { readRowJson, type Value } from "../protocol/values.ts";
import type { ColumnNotes } from "../store/column-notes.ts";
import type { DigestTable } from "../store/digest.ts";
import { setting } from "../store/migrations.ts";
import { rowsByVersion } from "../store/noted-row.ts";
import { rowJsonSql } from "../store/row-json.ts";
import { nameKey, quoteName } from "../store/sql.ts";
import { changeText } from "./batch.ts";

/** The ids after the first `next` did not fit: they are asked for again. */
export interface RowBatch {
  /** `{"batch_id":1,"next":…,"changes":[…]}` */
  readonly body: string;
  /** How many of the ids it answers. */
  readonly next: number;
}

/**
 * The rows, or deletes, of these ids in their order; nothing for an id of which nothing is known, or
 * settled. Ends early where the body would grow beyond `bytesMax`, but not before the first.
 */
export function rowBatch(
  db: Database,
  notes: ColumnNotes,
  table: DigestTable,
  ids: readonly string[],
  bytesMax: number,
): RowBatch {
  // What is settled and what is in the rows must be of one moment.
  return db.transaction(() => readBatch(db, notes, table, ids, bytesMax))();
}

function readBatch(
  db: Database,
  notes: ColumnNotes,
  table: DigestTable,
  ids: readonly string[],
  bytesMax: number,
): RowBatch {
  const unsettled = unsettledOf(db, ids);
  // Others write the notes.
  notes.forget();
  const reader = new RowReader(db, notes, table);
  const changes: string[] = [];
  let bytes = 0;
  let next = 0;
  try {
    for (const id of ids) {
      const found = unsettled.has(id) ? [] : reader.changes(id);
      bytes += found.reduce((sum, change) => sum + change.length, 0);
      if (bytes > bytesMax && next > 0) break;
      changes.push(...found);
      next++;
    }
  } finally {
    reader.finalize();
  }
  return { body: `{"batch_id":1,"next":${next},"changes":[${changes.join(",")}]}`, next };
}

/** Of these ids, those that have entries in the log that no pass of settling has seen, of any table. */
function unsettledOf(db: Database, ids: readonly string[]): ReadonlySet<string> {
  const entries = db
    .query<{ id: string }, [number, string]>(
      `SELECT DISTINCT row_id AS id FROM _changes
       WHERE change_id > ? AND row_id IN (SELECT value FROM json_each(?))`,
    )
    .all(Number(setting(db, "settled_through") ?? 0), JSON.stringify(ids));
  return new Set(entries.map(({ id }) => id));
}

class RowReader {
  readonly #table: DigestTable;
  readonly #notes: ColumnNotes;
  readonly #row;
  readonly #tombstone;

  constructor(db: Database, notes: ColumnNotes, table: DigestTable) {
    this.#table = table;
    this.#notes = notes;
    const columns = [
      { name: table.id, holds: "text" as const },
      ...table.columns.map(({ name, holds }) => ({
        name,
        holds: name === table.version ? ("stamp" as const) : holds,
      })),
    ];
    this.#row = db.prepare<{ json: Uint8Array }, [string]>(
      `SELECT CAST(${rowJsonSql("t", columns)} AS BLOB) AS json
       FROM ${quoteName(table.name)} AS t WHERE t.${quoteName(table.id)} = ?`,
    );
    this.#tombstone = db.prepare<{ version: number }, [string, string]>(
      "SELECT version FROM _hooksync_tombstones WHERE tbl = ? AND id = ?",
    );
  }

  changes(id: string): string[] {
    const { name, key } = this.#table;
    const row = this.#row.get(id);
    if (row === null) return this.#deletion(id);
    const values = new Map<string, { name: string; value: Value }>();
    const cells = new Map<string, Value>();
    let version = 0;
    for (const [column, value] of readRowJson(row.json)) {
      if (column === this.#table.version) {
        version = value.kind === "integer" ? Number(value.value) : 0;
      } else if (column !== this.#table.id) {
        values.set(nameKey(column), { name: column, value });
        cells.set(nameKey(column), value);
      }
    }
    const notes = this.#notes.of(key, id, version, cells);
    if (notes.size === 0) return [changeText("INSERT", name, row.json, id)];
    const parts = rowsByVersion({ id, version, values, notes }, this.#table).map((json) =>
      changeText("UPDATE", name, json, id),
    );
    // A delete below the row took columns with it, which who never heard of it still has.
    return [...parts, ...this.#deletion(id)];
  }

  #deletion(id: string): string[] {
    const { name, key, id: idName, version } = this.#table;
    const tombstone = this.#tombstone.get(key, id);
    if (tombstone === null) return [];
    const row = JSON.stringify({ [idName]: id, [version]: tombstone.version });
    return [changeText("DELETE", name, new TextEncoder().encode(row), id)];
  }

  finalize(): void {
    this.#row.finalize();
    this.#tombstone.finalize();
  }
}
