/**
 * Versions of single columns (protocol/winner.ts, DESIGN.md, "Unknown columns"): nodes get a column at
 * different times, so changes arrive that lack columns we have, or carry ones we lack. A column whose
 * value does not come from the row's own change is noted here. In a fleet of one schema this table is
 * empty, and everything here costs one look at a flag.
 *
 * When a column is added to a table that holds rows, no change has ever carried it for them. Instead of
 * a note for each of perhaps millions of rows there is one entry for the table, whose `id` is empty, as
 * no row's is: up to its version a row without a note of its own counts as noted "never carried". The
 * columns that were there from the start have such entries below every version.
 */
import type { Database, Statement } from "bun:sqlite";
import { isUtf8 } from "node:buffer";
import { formatRowJson, formatValue, readRowJson, type Value } from "../protocol/values.ts";
import { type ColumnNote, type Content, type Notes, VERSION_NEVER } from "../protocol/winner.ts";

interface NoteRow {
  readonly col: string;
  readonly version: number;
  readonly value: string;
}

/** What is known of a table, so that most rows need no look at the file. */
interface TableNotes {
  hasNotes: boolean;
  /** Columns added later, with the highest version of the rows that were there. */
  readonly added: ReadonlyMap<string, number>;
}

const NO_NOTES: Notes = new Map();
const NO_IDS: ReadonlySet<string> = new Set();

/** Caches which tables have notes: `forget` after a rollback, or where others write them. */
export class ColumnNotes {
  readonly #db: Database;
  readonly #of: Statement<NoteRow, [string, string]>;
  readonly #notedOf: Statement<{ id: string }, [string, string]>;
  readonly #put: Statement<unknown, [string, string, string, number, string]>;
  readonly #drop: Statement<unknown, [string, string, string]>;
  readonly #dropRow: Statement<unknown, [string, string]>;
  readonly #tables = new Map<string, TableNotes>();
  #isEmpty: boolean | undefined;

  constructor(db: Database) {
    this.#db = db;
    this.#of = db.prepare(
      "SELECT col, version, value FROM _hooksync_columns WHERE tbl = ? AND id = ?",
    );
    this.#notedOf = db.prepare(
      `SELECT DISTINCT n.id FROM json_each(?2) AS e CROSS JOIN _hooksync_columns AS n
       ON n.tbl = ?1 AND n.id = e.value`,
    );
    this.#put = db.prepare(
      `INSERT INTO _hooksync_columns(tbl, id, col, version, value) VALUES (?, ?, ?, ?, ?)
       ON CONFLICT(tbl, id, col) DO UPDATE SET version = excluded.version, value = excluded.value`,
    );
    this.#drop = db.prepare("DELETE FROM _hooksync_columns WHERE tbl = ? AND id = ? AND col = ?");
    this.#dropRow = db.prepare("DELETE FROM _hooksync_columns WHERE tbl = ? AND id = ?");
  }

  /** After a rollback. */
  forget(): void {
    this.#tables.clear();
    this.#isEmpty = undefined;
  }

  /** Whether no table has anything noted. */
  get isEmpty(): boolean {
    this.#isEmpty ??=
      this.#db
        .query("SELECT 1 FROM _hooksync_columns WHERE id > '' OR version > ? LIMIT 1")
        .get(VERSION_NEVER) === null;
    return this.#isEmpty;
  }

  #table(tableKey: string): TableNotes {
    const known = this.#tables.get(tableKey);
    if (known) return known;
    const added = this.#of
      .all(tableKey, "")
      .filter((row) => row.version > VERSION_NEVER)
      .map((row) => [row.col, row.version] as const);
    const first = this.#db
      .query("SELECT 1 FROM _hooksync_columns WHERE tbl = ? AND id > '' LIMIT 1")
      .get(tableKey);
    const table = { hasNotes: first !== null, added: new Map(added) };
    this.#tables.set(tableKey, table);
    return table;
  }

  /** Whether a whole row of this version needs no note, where its row has none. */
  isPlain(tableKey: string, version: number): boolean {
    for (const upTo of this.#table(tableKey).added.values()) if (version <= upTo) return false;
    return true;
  }

  hasNotes(tableKey: string): boolean {
    return this.#table(tableKey).hasNotes;
  }

  /** Those of these rows that have notes. */
  notedOf(tableKey: string, ids: readonly string[]): ReadonlySet<string> {
    if (!this.#table(tableKey).hasNotes) return NO_IDS;
    return new Set(this.#notedOf.all(tableKey, JSON.stringify(ids)).map((row) => row.id));
  }

  /** The notes of one row as it stands; `cells` are its columns. */
  of(tableKey: string, id: string, version: number, cells: Content): Notes {
    const { hasNotes, added } = this.#table(tableKey);
    if (!hasNotes && added.size === 0) return NO_NOTES;
    const notes = new Map<string, ColumnNote>();
    if (hasNotes) {
      for (const row of this.#of.all(tableKey, id)) {
        const note = parseNote(row);
        // Of a column that is there, the row itself says what it holds.
        notes.set(row.col, { ...note, value: cells.get(row.col) ?? note.value });
      }
    }
    for (const [column, upTo] of added) {
      const value = cells.get(column);
      if (version > upTo || value === undefined || notes.has(column)) continue;
      notes.set(column, { version: VERSION_NEVER, value });
    }
    return notes;
  }

  /** Makes the file say `after` where it said `before` of a row whose version is now `version`. */
  replace(
    tableKey: string,
    id: string,
    version: number,
    before: Notes,
    after: Notes,
    cells: Content,
  ): void {
    const { added } = this.#table(tableKey);
    const wanted = new Map(after);
    for (const [column, upTo] of added) {
      // Without a note it would count as never carried.
      const value = cells.get(column);
      if (version > upTo || value === undefined || wanted.has(column)) continue;
      wanted.set(column, { version, value, isOwn: true });
    }
    for (const [column, note] of wanted) {
      const isImplied =
        note.version === VERSION_NEVER && version <= (added.get(column) ?? -Infinity);
      if (isImplied) {
        this.#drop.run(tableKey, id, column);
        continue;
      }
      // What was implied by the table's entry may not be so any more.
      if (note.version !== VERSION_NEVER && sameNote(before.get(column), note)) continue;
      this.#put.run(tableKey, id, column, note.version, formatNote(note));
      this.#noted(tableKey);
    }
    for (const column of before.keys()) {
      if (!wanted.has(column)) this.#drop.run(tableKey, id, column);
    }
  }

  #noted(tableKey: string): void {
    this.#table(tableKey).hasNotes = true;
    this.#isEmpty = false;
  }

  drop(tableKey: string, id: string, column: string): void {
    this.#drop.run(tableKey, id, column);
  }

  dropRow(tableKey: string, id: string): void {
    if (this.#table(tableKey).hasNotes) this.#dropRow.run(tableKey, id);
  }

  /** Local writes carry every column of their table; local deletes end all that was noted. */
  forgetLocallyWritten(sinceChangeId: number, table: LocalTable): void {
    const { hasNotes, added } = this.#table(table.key);
    if (hasNotes) {
      this.#db
        .query(
          `DELETE FROM _hooksync_columns
           WHERE tbl = ?1 AND id IN (SELECT row_id FROM _changes WHERE change_id > ?2 AND table_name = ?3)
             AND (col IN (SELECT value FROM json_each(?4)) OR id IN (
               SELECT row_id FROM _changes WHERE change_id > ?2 AND table_name = ?3 AND op = 'DELETE'))`,
        )
        .run(table.key, sinceChangeId, table.name, JSON.stringify(table.columns));
    }
    for (const [column, upTo] of added) {
      const { changes } = this.#db
        .query(
          `INSERT INTO _hooksync_columns(tbl, id, col, version, value)
           SELECT DISTINCT ?1, t.id, ?2, t.updated_at, '{"v":null,"o":1}'
           FROM _changes AS c JOIN ${table.sqlName} AS t ON t.id = c.row_id
           WHERE c.change_id > ?3 AND c.table_name = ?4 AND c.op <> 'DELETE'
             AND typeof(t.updated_at) = 'integer' AND t.updated_at <= ?5
           ON CONFLICT(tbl, id, col) DO UPDATE SET version = excluded.version, value = excluded.value`,
        )
        .run(table.key, column, sinceChangeId, table.name, upTo);
      if (changes > 0) this.#noted(table.key);
    }
  }

  // ── Columns that come and go ────────────────────────────────────────────────────────────────

  /** The columns a table had when last looked at; none at first. */
  rememberedColumns(tableKey: string): ReadonlySet<string> {
    return new Set(this.#of.all(tableKey, "").map((row) => row.col));
  }

  /**
   * The table has this column. `upTo`: it was added when there were rows, this being their highest
   * version. (follow-schema.ts carries the entry along when the column or the table gets another name.)
   */
  rememberColumn(tableKey: string, column: string, upTo: number = VERSION_NEVER): void {
    this.#put.run(tableKey, "", column, upTo, "{}");
    this.forget();
  }

  /** Its values are gone, and what was noted of them means nothing any more. */
  columnDropped(tableKey: string, column: string): void {
    this.#db.query("DELETE FROM _hooksync_columns WHERE tbl = ? AND col = ?").run(tableKey, column);
    this.forget();
  }

  /** Rows for which this column came before it was there, with what came. */
  waitingFor(tableKey: string, column: string): { id: string; version: number; value: Value }[] {
    if (!this.#table(tableKey).hasNotes) return [];
    return this.#db
      .query<NoteRow & { id: string }, [string, string]>(
        "SELECT id, col, version, value FROM _hooksync_columns WHERE tbl = ? AND col = ? AND id > ''",
      )
      .all(tableKey, column)
      .map((row) => ({ id: row.id, version: row.version, value: parseNote(row).value }));
  }
}

/** As much of a synced table as local writes need. */
export interface LocalTable {
  readonly key: string;
  readonly name: string;
  readonly sqlName: string;
  readonly columns: readonly string[];
}

/**
 * A change as large as this is not kept beside the value it carried. Should it tie with another one after
 * the row was written over here, the larger value counts instead of the larger change.
 */
const SOURCE_LENGTH_MAX = 1_024;

/**
 * `{"v":…}`, or `{"t":…}` for a text that is not UTF-8; `"s"` is what its change carried, `"r"` the same
 * in hex where a text of it is not UTF-8, `"o"` says that it was the row's own.
 */
function formatNote({ value, source, isOwn }: ColumnNote): string {
  let text = `{"${value.kind === "broken-text" ? "t" : "v"}":${formatValue(value)}`;
  if (isOwn) text += ',"o":1';
  if (source !== undefined) {
    const row = formatRowJson(source);
    if (row.length <= SOURCE_LENGTH_MAX) {
      text += isUtf8(row)
        ? `,"s":${JSON.stringify(Buffer.from(row).toString())}`
        : `,"r":"${row.toHex()}"`;
    }
  }
  return `${text}}`;
}

const encoder = new TextEncoder();

function parseNote(row: NoteRow): ColumnNote {
  const members = readRowJson(encoder.encode(row.value));
  const broken = members.get("t");
  const value: Value =
    broken?.kind === "text"
      ? { kind: "broken-text", hex: broken.value.slice(2) }
      : (members.get("v") ?? { kind: "null" });
  const source = members.get("s");
  const raw = members.get("r");
  return {
    version: row.version,
    value,
    isOwn: members.has("o"),
    ...(source?.kind === "text" ? { source: readRowJson(encoder.encode(source.value)) } : {}),
    ...(raw?.kind === "text" ? { source: readRowJson(Uint8Array.fromHex(raw.value)) } : {}),
  };
}

/** What was the row's own and is so again needs no writing, whichever of equal changes it came with. */
function sameNote(left: ColumnNote | undefined, right: ColumnNote): boolean {
  if (left === undefined || left.version !== right.version) return false;
  if ((left.isOwn ?? false) !== (right.isOwn ?? false)) return false;
  return (
    (right.isOwn || left.source === right.source) &&
    left.value.kind === right.value.kind &&
    formatValue(left.value) === formatValue(right.value)
  );
}
