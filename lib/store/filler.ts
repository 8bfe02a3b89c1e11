/**
 * Filling a peer: every row of every synced table and every tombstone, as ordinary entries of the log
 * that only this peer gets (`only_for`). Applying a row twice, late or in another order is harmless,
 * so a whole copy is nothing but a lot of ordinary changes, and everything that ships, retries, cuts
 * and sets aside changes serves it as it is, for peers of every make.
 *
 * Batches beside the log would need an order of their own. Entries of the log need none: whatever
 * happens to a row after its entry was made is logged behind it.
 *
 * Invariants:
 *   F1  at most two slices wait for the peer, so a write made meanwhile arrives behind little.
 *   F2  the cursor moves in the transaction that makes the slice: a restart goes on where it was.
 *   F3  tombstones go last. A delete received while an entry of its row is on its way is put behind it
 *       (apply.ts), so a deleted row cannot come back.
 *   F4  what the peer has taken leaves the log, also while other peers hold the rest of it.
 *   F5  no transaction does more than a small part of a slice: writes wait for it.
 */
import type { Database } from "bun:sqlite";
import { isUtf8 } from "node:buffer";
import type { Value } from "../protocol/values.ts";
import type { ColumnNotes } from "./column-notes.ts";
import { setSetting, setting } from "./migrations.ts";
import { rowsByVersion } from "./noted-row.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName, quoteText, textOfHexSql } from "./sql.ts";
import { loggedRowOf, type TableWriter } from "./table-writer.ts";

/** Where the filling of one peer stands, as it is kept in `_peer_state.fill`. */
interface Fill {
  readonly reason: string;
  readonly phase: "rows" | "tombstones" | "sent";
  /** Key of the table whose rows come next; those before it in order are done. */
  readonly table: string;
  /** Id after which it goes on, as hex: see textOfHexSql. A file of an earlier version begins its table anew. */
  readonly afterHex?: string;
  /** Newest entry of the slice before the last one, and of the last one. */
  readonly before: number;
  readonly through: number;
  /** How full the last one is; a file of an earlier version has only full ones. */
  readonly sliceEntries?: number;
  readonly sliceBytes?: number;
  /** Entries up to here that the peer has taken were dropped from the log. */
  readonly dropped: number;
  readonly entries: number;
}

/** A place in the rows, or the tombstones, of all tables. */
type Cursor = Required<Pick<Fill, "table" | "afterHex">>;

/** One peer being filled, for /health and the log. */
export interface FillProgress {
  readonly url: string;
  readonly reason: string;
  /** Changes made for it so far. */
  readonly entries: number;
}

/** What a Filler reads rows by; fills themselves are kept in the file. */
export interface FillerOptions {
  readonly db: Database;
  readonly columnNotes: ColumnNotes;
  readonly writerFor: (table: SyncedTable) => TableWriter;
  /** Of a slice, if not as many as are best: the simulator's tables are small. */
  readonly sliceRows?: number | undefined;
}

const GONE_SETTING = "fills_gone_through";
/** Two of them are what a write made meanwhile waits behind, also where the peer applies slowly. */
const SLICE_ROWS = 2_500;
const SLICE_BYTES = 4 * 1024 * 1024;
/** What one transaction makes, or drops, of it: some 2 ms, and as much again for the commit. */
const PART_ROWS = 500;
const PART_BYTES = 1024 * 1024;
/** Two slices, each with a last row that is larger than the rest, and what an entry takes besides. */
const FILL_BYTES_MAX = 4 * SLICE_BYTES;
/** Rows may be a MiB each: the size of the first few tells how many more fit. */
const FIRST_STEP_ROWS = 8;

function goneThrough(db: Database): number {
  return Number(setting(db, GONE_SETTING) ?? 0);
}

/** Before entries of fills up to here leave the log: a peer's mark may be for one of them. */
export function noteFillsGone(db: Database, through: number): void {
  if (through > goneThrough(db)) setSetting(db, GONE_SETTING, through);
}

/** Keeps nothing of a fill in memory: how far each one is stands in `_peer_state`. */
export class Filler {
  readonly #db: Database;
  readonly #options: FillerOptions;
  readonly #sliceRows: number;
  readonly #partRows: number;

  constructor(options: FillerOptions) {
    this.#db = options.db;
    this.#options = options;
    this.#sliceRows = options.sliceRows ?? SLICE_ROWS;
    this.#partRows = Math.min(PART_ROWS, this.#sliceRows);
  }

  /** Starts from the beginning, also where one is under way. Inside the caller's transaction. */
  begin(url: string, reason: string): void {
    // The new one sends what the other had made, too; nothing would take it from the log.
    this.abandon(url);
    const newest = this.#newest();
    this.#write(url, {
      reason,
      phase: "rows",
      table: "",
      afterHex: "",
      before: 0,
      through: 0,
      sliceEntries: 0,
      sliceBytes: 0,
      dropped: newest,
      entries: 0,
    });
  }

  /** Ends it undone, for a peer that is cut off: what was made for it goes, too. */
  abandon(url: string): void {
    const fill = this.#all().find((one) => one.url === url)?.fill;
    if (fill === undefined) return;
    noteFillsGone(this.#db, this.#newest());
    this.#db
      .query("DELETE FROM _changes WHERE change_id > ? AND only_for = ?")
      .run(fill.dropped, url);
    this.#db.query("UPDATE _peer_state SET fill = NULL WHERE peer_url = ?").run(url);
  }

  /** Up to here entries of fills have left the log, though they were shipped. */
  get goneThrough(): number {
    return goneThrough(this.#db);
  }

  /** What fills may add to the log at most: a peer must not be cut off for what is made for it. */
  get bytesMax(): number {
    return this.#all().length * FILL_BYTES_MAX;
  }

  get isAny(): boolean {
    return (
      this.#db.query("SELECT 1 FROM _peer_state WHERE fill IS NOT NULL LIMIT 1").get() !== null
    );
  }

  progress(): FillProgress[] {
    return this.#all().map(({ url, fill }) => ({
      url,
      reason: fill.reason,
      entries: fill.entries,
    }));
  }

  /**
   * Makes the next part of a slice for each peer that has taken the slice before the last one, and drops
   * of what was taken as much. Returns the entries made, the peers that are complete, and whether there is
   * more to do at once.
   */
  advance(tables: ReadonlyMap<string, SyncedTable>): {
    logged: number;
    complete: FillProgress[];
    moreRemains: boolean;
  } {
    let logged = 0;
    let moreRemains = false;
    const complete: FillProgress[] = [];
    for (const { url, watermark, fill: before } of this.#all()) {
      const dropped = this.#dropTaken(url, before, watermark);
      const isDropped = dropped.dropped >= watermark;
      moreRemains ||= !isDropped;
      if (dropped.phase === "sent") {
        if (watermark < dropped.through || !isDropped) continue;
        this.#db.query("UPDATE _peer_state SET fill = NULL WHERE peer_url = ?").run(url);
        complete.push({ url, reason: dropped.reason, entries: dropped.entries });
        continue;
      }
      if (this.#mustWait(dropped, watermark)) continue;
      const fill = this.#isFull(dropped) ? nextSlice(dropped) : dropped;
      const next = this.#makePart(url, fill, tables);
      logged += next.entries - fill.entries;
      moreRemains ||= next.phase !== "sent" && !this.#mustWait(next, watermark);
      this.#write(url, next);
    }
    return { logged, complete, moreRemains };
  }

  #isFull({ sliceEntries = this.#sliceRows, sliceBytes = SLICE_BYTES }: Fill): boolean {
    return sliceEntries >= this.#sliceRows || sliceBytes >= SLICE_BYTES;
  }

  /** F1: a slice is begun when the one before the last is taken. */
  #mustWait(fill: Fill, watermark: number): boolean {
    return this.#isFull(fill) && watermark < fill.before;
  }

  #dropTaken(url: string, fill: Fill, watermark: number): Fill {
    if (watermark <= fill.dropped) return fill;
    const part = this.#db
      .query<{ id: number }, [number, number, string, number]>(
        `SELECT change_id AS id FROM _changes WHERE change_id > ? AND change_id <= ? AND only_for = ?
         ORDER BY change_id LIMIT 1 OFFSET ?`,
      )
      .get(fill.dropped, watermark, url, this.#partRows - 1);
    const dropped = part?.id ?? watermark;
    this.#db
      .query("DELETE FROM _changes WHERE change_id > ? AND change_id <= ? AND only_for = ?")
      .run(fill.dropped, dropped, url);
    noteFillsGone(this.#db, dropped);
    const next = { ...fill, dropped };
    this.#write(url, next);
    return next;
  }

  #makePart(url: string, fill: Fill, tables: ReadonlyMap<string, SyncedTable>): Fill {
    let { phase, table, afterHex = "" } = fill;
    let entries = 0;
    let bytes = 0;
    let stepRows = Math.min(FIRST_STEP_ROWS, this.#partRows);
    while (entries < this.#partRows && bytes < PART_BYTES && phase !== "sent") {
      const current = phase === "rows" ? nextTable(tables, table) : undefined;
      const newestBefore = this.#newest();
      const last =
        phase === "tombstones"
          ? this.#logTombstones(url, table, afterHex, stepRows, tables)
          : current && this.#logRows(url, current, current.key === table ? afterHex : "", stepRows);
      const made = this.#sizeSince(newestBefore);
      entries += made.entries;
      bytes += made.bytes;
      if (made.entries > 0) {
        const fitting = Math.floor((PART_BYTES - bytes) / (made.bytes / made.entries));
        stepRows = Math.max(1, Math.min(this.#partRows - entries, fitting));
      }
      if (last !== undefined) ({ table, afterHex } = last);
      else if (phase === "tombstones") phase = "sent";
      else if (current === undefined) {
        phase = "tombstones";
        table = "";
        afterHex = "";
      } else {
        // This table is done: its key with a cursor that nothing follows.
        table = `${current.key}\u0000`;
        afterHex = "";
      }
    }
    return {
      ...fill,
      phase,
      table,
      afterHex,
      // The newest of all may be another peer's, which this one never acknowledges.
      through: entries > 0 ? this.#newest() : fill.through,
      sliceEntries: (fill.sliceEntries ?? 0) + entries,
      sliceBytes: (fill.sliceBytes ?? 0) + bytes,
      entries: fill.entries + entries,
    };
  }

  /** Logs up to `rows` rows after that id; the cursor behind them, or undefined at the end. */
  #logRows(url: string, table: SyncedTable, afterHex: string, rows: number): Cursor | undefined {
    const t = quoteName(table.name);
    const id = quoteName(table.id.name);
    const ids = this.#db
      .query<{ hex: string }, [string, number]>(
        `SELECT hex(${id}) AS hex FROM ${t}
         WHERE ${id} > ${textOfHexSql("?")} AND typeof(${id}) = 'text' ORDER BY ${id} LIMIT ?`,
      )
      .all(afterHex, rows);
    const last = ids.at(-1)?.hex;
    if (last === undefined) return undefined;
    const noted = this.#options.columnNotes.isEmpty
      ? []
      : ids
          .flatMap(({ hex }) => textOf(hex) ?? [])
          .filter((each) => this.#logNoted(url, table, each));
    this.#db
      .query(
        `INSERT INTO _changes(op, table_name, row_id, row_data, only_for)
         SELECT 'INSERT', ${quoteText(table.name)}, t.${id}, ${loggedRowOf(table)}, ?3 FROM ${t} AS t
         WHERE t.${id} > ${textOfHexSql("?1")} AND t.${id} <= ${textOfHexSql("?2")} AND typeof(t.${id}) = 'text'
           AND t.${id} NOT IN (SELECT value FROM json_each(?4)) ORDER BY t.${id}`,
      )
      .run(afterHex, last, url, JSON.stringify(noted));
    return { table: table.key, afterHex: last };
  }

  /**
   * A row whose columns have versions of their own goes as several changes, oldest first, so that the
   * peer knows each column's version as we do.
   */
  #logNoted(url: string, table: SyncedTable, id: string): boolean {
    const writer = this.#options.writerFor(table);
    const stamp = writer.stamp(id);
    const version = stamp === undefined || stamp === "odd" ? 0 : stamp;
    const values = new Map<string, { name: string; value: Value }>();
    const cells = new Map<string, Value>();
    for (const [key, value] of writer.content(id) ?? []) {
      const column = table.columnByKey.get(key)!;
      if (column === table.id || column === table.version) continue;
      values.set(key, { name: column.name, value });
      cells.set(key, value);
    }
    const notes = this.#options.columnNotes.of(table.key, id, version, cells);
    if (notes.size === 0) return false;
    const names = { id: table.id.name, version: table.version.name };
    for (const row of rowsByVersion({ id, version, values, notes }, names)) {
      this.#db
        .query(
          `INSERT INTO _changes(op, table_name, row_id, row_data, only_for)
           VALUES ('UPDATE', ?, ?, CAST(? AS TEXT), ?)`,
        )
        .run(table.name, id, row, url);
    }
    return true;
  }

  #logTombstones(
    url: string,
    table: string,
    afterHex: string,
    rows: number,
    tables: ReadonlyMap<string, SyncedTable>,
  ): Cursor | undefined {
    const found = this.#db
      .query<{ tbl: string; hex: string; version: number }, [string, string, number]>(
        `SELECT tbl, hex(id) AS hex, version FROM _hooksync_tombstones
         WHERE (tbl, id) > (?, ${textOfHexSql("?")}) ORDER BY tbl, id LIMIT ?`,
      )
      .all(table, afterHex, rows);
    const insert = this.#db.query(
      `INSERT INTO _changes(op, table_name, row_id, row_data, only_for)
       SELECT 'DELETE', ?1, id, json_object(?3, id, ?4, ?5), ?6 FROM (SELECT ${textOfHexSql("?2")} AS id)`,
    );
    for (const { tbl, hex, version } of found) {
      const synced = tables.get(tbl);
      if (!synced) continue;
      insert.run(synced.name, hex, synced.id.name, synced.version.name, version, url);
    }
    const last = found.at(-1);
    return last && { table: last.tbl, afterHex: last.hex };
  }

  #sizeSince(changeId: number): { entries: number; bytes: number } {
    return this.#db
      .query<{ entries: number; bytes: number }, [number]>(
        "SELECT count(*) AS entries, coalesce(sum(octet_length(row_data)), 0) AS bytes FROM _changes WHERE change_id > ?",
      )
      .get(changeId)!;
  }

  #newest(): number {
    return (
      this.#db.query<{ id: number | null }, []>("SELECT max(change_id) AS id FROM _changes").get()!
        .id ?? 0
    );
  }

  #all(): { url: string; watermark: number; fill: Fill }[] {
    return this.#db
      .query<{ url: string; watermark: number; fill: string }, []>(
        "SELECT peer_url AS url, coalesce(last_acked, 0) AS watermark, fill FROM _peer_state WHERE fill IS NOT NULL",
      )
      .all()
      .map((row) => ({ ...row, fill: readFill(row.fill) }));
  }

  #write(url: string, fill: Fill): void {
    this.#db
      .query("UPDATE _peer_state SET fill = ? WHERE peer_url = ?")
      .run(JSON.stringify(fill), url);
  }
}

/** An earlier version kept the id itself. */
function readFill(json: string): Fill {
  const kept = JSON.parse(json) as Omit<Fill, "afterHex"> & { after?: string; afterHex?: string };
  const { after = "", ...fill } = kept;
  return { ...fill, afterHex: fill.afterHex ?? Buffer.from(after).toHex() };
}

/** Undefined where it is not UTF-8: no change that was received is of such a row. */
function textOf(hex: string): string | undefined {
  const bytes = Buffer.from(hex, "hex");
  return isUtf8(bytes) ? bytes.toString() : undefined;
}

function nextSlice(fill: Fill): Fill {
  return { ...fill, before: fill.through, sliceEntries: 0, sliceBytes: 0 };
}

/** The table that the cursor is in, or the first after it; tables go in the order of their keys. */
function nextTable(
  tables: ReadonlyMap<string, SyncedTable>,
  cursor: string,
): SyncedTable | undefined {
  const keys = [...tables.keys()].sort();
  const key = keys.find((candidate) => candidate >= cursor);
  return key === undefined ? undefined : tables.get(key);
}
