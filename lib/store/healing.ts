/**
 * Pulling foreign peers to the common winner (DESIGN.md, "Healing"). Nodes of other makes keep the
 * last arrival of a tie, forget deletes and write below what they replaced; each rule here answers one
 * way in which they end up different. Among ours none of it is needed, so it does nothing until a
 * foreign peer is configured or heard.
 *
 * Invariants:
 *   H1  at most one announcement per row per second; one held back goes out when the second is over.
 *   H2  one schedule per row: again after 1 minute, 10 minutes, 1 hour, then daily, until every foreign
 *       peer has had nothing left to send since, and once after that: a message that a peer had waiting
 *       for another may have undone every answer so far.
 */
import type { Database, Statement } from "bun:sqlite";
import type { ChangeLog } from "./change-log.ts";
import { dropSetting, setSetting, setting } from "./migrations.ts";
import type { SyncedTable } from "./schema.ts";
import { type TableWriter, withVersionSql } from "./table-writer.ts";
import type { Tombstones } from "./tombstones.ts";

/** Where a change came from. Each change through a hub is an origin of its own. */
export interface Origin {
  readonly name: string;
  readonly isForeign: boolean;
}

/** For writes of this node: no peer has an empty name. */
export const LOCAL_ORIGIN: Origin = { name: "", isForeign: false };

/** All of the same writing connection. */
export interface HealingOptions {
  readonly db: Database;
  readonly log: ChangeLog;
  readonly tombstones: Tombstones;
}

const ANNOUNCE_PAUSE_MS = 1_000;
const DAY_MS = 24 * 3_600_000;
/** Of a row whose next announcement is the last. */
const LAST_STEP = 1_000;
const REPEAT_PAUSES_MS = [60_000, 600_000, 3_600_000, DAY_MS];
/** Per round, so that repeats never hold the lock for long. */
const DUE_ROWS_MAX = 200;

/** What is held back (step 0) stays so and goes out at its time; else the schedule begins again. */
const CONTEST_AGAIN_SQL = `
  ON CONFLICT(tbl, id) DO UPDATE SET step = min(step, 1), since = excluded.since,
    due_at = min(due_at, excluded.due_at)`;

interface ContestedRow {
  readonly step: number;
  readonly announced_at: number;
  readonly due_at: number;
}

/** Once active it stays so, over restarts, too. Runs inside the caller's transaction. */
export class Healing {
  readonly #db: Database;
  readonly #log: ChangeLog;
  readonly #tombstones: Tombstones;
  readonly #find: Statement<ContestedRow, [string, string]>;
  readonly #put: Statement<unknown, [string, string, number, number, number, number]>;
  readonly #contest: Statement<unknown, [string, string, number, number, number, number, number]>;
  readonly #setOrigins: Statement<unknown, [string, string, number]>;
  #isActive: boolean;
  #hasHub: boolean;
  #hasFilled: boolean;

  constructor(options: HealingOptions) {
    this.#db = options.db;
    this.#log = options.log;
    this.#tombstones = options.tombstones;
    this.#find = this.#db.prepare(
      "SELECT step, announced_at, due_at FROM _hooksync_contested WHERE tbl = ? AND id = ?",
    );
    this.#put = this.#db.prepare(
      `INSERT INTO _hooksync_contested(tbl, id, step, since, announced_at, due_at) VALUES (?, ?, ?, ?, ?, ?)
       ON CONFLICT(tbl, id) DO UPDATE SET step = excluded.step, since = excluded.since,
         announced_at = excluded.announced_at, due_at = excluded.due_at`,
    );
    this.#contest = this.#db.prepare(
      `INSERT INTO _hooksync_contested(tbl, id, step, since, announced_at, due_at)
       SELECT ?1, e.value ->> 0, 1, ?3, 0, ?4
       FROM json_each(?2) AS e LEFT JOIN _hooksync_origins AS o ON o.tbl = ?1 AND o.id = e.value ->> 0
       WHERE CASE WHEN ?5 THEN ?7 OR o.origin <> e.value ->> 1 OR o.is_mixed OR (?6 AND e.value ->> 1 = '${LOCAL_ORIGIN.name}')
             ELSE o.origin <> e.value ->> 1 AND (o.is_foreign OR e.value ->> 2) END
       ${CONTEST_AGAIN_SQL}`,
    );
    this.#setOrigins = this.#db.prepare(
      `INSERT INTO _hooksync_origins(tbl, id, origin, is_foreign, is_mixed, seen_at)
       SELECT ?1, value ->> 0, value ->> 1, value ->> 2, 0, ?3 FROM json_each(?2) WHERE true
       ON CONFLICT(tbl, id) DO UPDATE SET is_mixed = is_mixed OR origin <> excluded.origin,
         origin = excluded.origin, is_foreign = excluded.is_foreign, seen_at = excluded.seen_at`,
    );
    this.#isActive = setting(this.#db, "foreign") !== null;
    this.#hasHub = setting(this.#db, "hub") !== null;
    this.#hasFilled = setting(this.#db, "filled_foreign") !== null;
  }

  get isActive(): boolean {
    return this.#isActive;
  }

  /** A foreign peer is configured or was heard. Remembered: what it sent may still need an answer. */
  activate(nowMs: number): void {
    if (this.#isActive) return;
    setSetting(this.#db, "foreign", nowMs);
    this.#isActive = true;
    // What is still on its way may be overtaken like anything written from now on.
    this.#db
      .query(
        `INSERT INTO _hooksync_origins(tbl, id, origin, is_foreign, is_mixed, seen_at)
         SELECT DISTINCT lower(table_name), row_id, ?, 0, 0, ? FROM _changes
         WHERE table_name IS NOT NULL AND row_id IS NOT NULL
         ON CONFLICT(tbl, id) DO NOTHING`,
      )
      .run(LOCAL_ORIGIN.name, nowMs);
  }

  /**
   * A peer is a hub. It forwards in no particular order, so that a delete of ours may overtake the change
   * before it: every delete made here is contested from now on, and those that went already.
   */
  meetHub(nowMs: number): void {
    if (this.#hasHub) return;
    setSetting(this.#db, "hub", nowMs);
    this.#hasHub = true;
    this.#db
      .query(
        `INSERT INTO _hooksync_contested(tbl, id, step, since, announced_at, due_at)
         SELECT tbl, id, 1, ?1, 0, ?1 + ?2 FROM _hooksync_tombstones WHERE true
         ON CONFLICT(tbl, id) DO NOTHING`,
      )
      .run(nowMs, REPEAT_PAUSES_MS[0]!);
  }

  /**
   * A foreign peer is being filled: it gets rows from here that others wrote, perhaps after those others'
   * deletes of them. Every delete is contested until the foreign peers have been quiet since.
   */
  fillsForeign(nowMs: number): void {
    setSetting(this.#db, "filled_foreign", nowMs);
    this.#hasFilled = true;
  }

  forget(): void {
    this.#isActive = setting(this.#db, "foreign") !== null;
    this.#hasHub = setting(this.#db, "hub") !== null;
    this.#hasFilled = setting(this.#db, "filled_foreign") !== null;
  }

  /** Rule 1: a foreign change lost against the row that stands here. Returns entries made. */
  answerWithRow(table: SyncedTable, id: string, nowMs: number): number {
    return this.#isActive ? this.#announce(table, id, nowMs) : 0;
  }

  /** Rule 1: a foreign write at or below a tombstone; `refused` is its row as JSON. */
  answerWithDelete(
    table: SyncedTable,
    id: string,
    version: number,
    refused: string,
    nowMs: number,
  ): number {
    if (!this.#isActive) return 0;
    const known = this.#find.get(table.key, id);
    if (known && isWithin(nowMs, known.announced_at, ANNOUNCE_PAUSE_MS))
      return this.#hold(table, id, known, nowMs);
    this.#log.announceDelete(table, id, this.#rowWithVersion(table, refused, version));
    this.#schedule(table, id, nowMs);
    return 1;
  }

  /** Rule 2: a tie with different content; the row that stands here now goes to everyone, one above. */
  answerTie(writer: TableWriter, id: string, version: number, nowMs: number): number {
    if (!this.#isActive) return 0;
    writer.setVersion(id, version + 1);
    return this.#announce(writer.table, id, nowMs);
  }

  /**
   * Rule 3: keeps where the last change of a row came from, and contests what came from two places. A
   * delete is contested when any two changes since the last quiet came from different places: the one
   * of them that a foreign peer gets last may be from before the delete.
   */
  note(table: SyncedTable, id: string, origin: Origin, isDelete: boolean, nowMs: number): void {
    if (this.#isActive) this.noteMany(table, [id], [origin], isDelete, nowMs);
  }

  /** The same for many rows; `origins` go with `ids`. */
  noteMany(
    table: SyncedTable,
    ids: readonly string[],
    origins: readonly Origin[],
    isDelete: boolean,
    nowMs: number,
  ): void {
    if (!this.#isActive || ids.length === 0) return;
    const rows = JSON.stringify(ids.map((id, i) => [id, origins[i]!.name, origins[i]!.isForeign]));
    const dueMs = nowMs + REPEAT_PAUSES_MS[0]!;
    const flag = (is: boolean) => (is ? 1 : 0);
    const { key } = table;
    const [hub, filling] = [flag(this.#hasHub), flag(this.#hasFilled)];
    this.#contest.run(key, rows, nowMs, dueMs, flag(isDelete), hub, filling);
    this.#setOrigins.run(table.key, rows, nowMs);
  }

  /** Foreign peers may hold something else of this row: it is announced again by and by. */
  contest(table: SyncedTable, id: string, nowMs: number): void {
    if (!this.#isActive) return;
    this.#db
      .query(
        `INSERT INTO _hooksync_contested(tbl, id, step, since, announced_at, due_at)
         VALUES (?, ?, 1, ?, 0, ?) ${CONTEST_AGAIN_SQL}`,
      )
      .run(table.key, id, nowMs, nowMs + REPEAT_PAUSES_MS[0]!);
  }

  /** Announces what is due; `tableOf` finds a synced table by its key. Returns entries made. */
  runDue(tableOf: (key: string) => SyncedTable | undefined, nowMs: number): number {
    const due = this.#db
      .query<{ tbl: string; id: string; step: number }, [number]>(
        `SELECT tbl, id, step FROM _hooksync_contested WHERE due_at <= ? ORDER BY due_at LIMIT ${DUE_ROWS_MAX}`,
      )
      .all(nowMs);
    const drop = this.#db.query("DELETE FROM _hooksync_contested WHERE tbl = ? AND id = ?");
    let entries = 0;
    for (const { tbl, id, step } of due) {
      const table = tableOf(tbl);
      if (table === undefined || !this.#emit(table, id)) {
        drop.run(tbl, id);
        continue;
      }
      entries++;
      if (step >= LAST_STEP) {
        drop.run(tbl, id);
        continue;
      }
      const pause = REPEAT_PAUSES_MS[Math.min(step, REPEAT_PAUSES_MS.length - 1)]!;
      this.#db
        .query(
          "UPDATE _hooksync_contested SET step = step + 1, announced_at = ?, due_at = ? WHERE tbl = ? AND id = ?",
        )
        .run(nowMs, nowMs + pause, tbl, id);
    }
    return entries;
  }

  /** When the next announcement is due, or undefined. */
  nextDueMs(): number | undefined {
    if (!this.#isActive) return undefined;
    return (
      this.#db
        .query<{ at: number | null }, []>("SELECT min(due_at) AS at FROM _hooksync_contested")
        .get()!.at ?? undefined
    );
  }

  /**
   * Every foreign peer has shown since `quietMs` that it has nothing left to send. Rows contested before
   * that are announced once more, and then no longer.
   */
  quietSince(quietMs: number, nowMs: number): void {
    // What the foreign peers sent each other last may have undone every answer so far: once more.
    this.#db
      .query(
        `UPDATE _hooksync_contested SET step = ${LAST_STEP}, due_at = min(due_at, ?)
         WHERE since < ? AND step > 0 AND step < ${LAST_STEP}`,
      )
      .run(nowMs + REPEAT_PAUSES_MS[0]!, quietMs);
    this.#db.query("DELETE FROM _hooksync_origins WHERE seen_at < ?").run(quietMs);
    if (!this.#hasFilled || Number(setting(this.#db, "filled_foreign")) >= quietMs) return;
    dropSetting(this.#db, "filled_foreign");
    this.#hasFilled = false;
  }

  /** Whether the health of foreign peers should be read: something waits for their quiet. */
  get isWaiting(): boolean {
    return (
      this.#isActive &&
      this.#db
        .query(
          "SELECT 1 FROM _hooksync_contested UNION ALL SELECT 1 FROM _hooksync_origins LIMIT 1",
        )
        .get() !== null
    );
  }

  #announce(table: SyncedTable, id: string, nowMs: number): number {
    const known = this.#find.get(table.key, id);
    if (known && isWithin(nowMs, known.announced_at, ANNOUNCE_PAUSE_MS))
      return this.#hold(table, id, known, nowMs);
    if (!this.#emit(table, id)) return 0;
    this.#schedule(table, id, nowMs);
    return 1;
  }

  /** H1. Step 0 is the held one; after it the schedule begins. */
  #hold(table: SyncedTable, id: string, known: ContestedRow, nowMs: number): number {
    const dueMs = Math.min(known.due_at, known.announced_at + ANNOUNCE_PAUSE_MS);
    this.#put.run(table.key, id, 0, nowMs, known.announced_at, dueMs);
    return 0;
  }

  #schedule(table: SyncedTable, id: string, nowMs: number): void {
    this.#put.run(table.key, id, 1, nowMs, nowMs, nowMs + REPEAT_PAUSES_MS[0]!);
  }

  /** The row as it stands, or its tombstone. */
  #emit(table: SyncedTable, id: string): boolean {
    if (this.#log.announceRow(table, id)) return true;
    const version = this.#tombstones.versionOf(table.key, id);
    if (version === undefined) return false;
    this.#log.announceDelete(
      table,
      id,
      JSON.stringify({ [table.id.name]: id, [table.version.name]: version }),
    );
    return true;
  }

  #rowWithVersion(table: SyncedTable, row: string, version: number): string {
    return this.#db
      .query<{ json: string }, [string, number]>(
        `SELECT ${withVersionSql(table, "?", "?")} AS json`,
      )
      .get(row, version)!.json;
  }
}

function isWithin(nowMs: number, thenMs: number, spanMs: number): boolean {
  return nowMs >= thenMs && nowMs - thenMs < spanMs;
}
