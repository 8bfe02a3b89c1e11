/**
 * Settling: triggers only record, the node decides (DESIGN.md, "Settling" and "Versions").
 *
 * Other programs write to the file with whatever stamps they like, and change its schema. The first
 * thing in every write transaction is to settle what they logged since `settled_through`: the row
 * gets a version above the one it replaced, its entries become one, rows that REPLACE threw out
 * without a trace become DELETEs. The shipper never reads past `settled_through`, so nothing leaves
 * with a wrong version or under a wrong name. BEGIN IMMEDIATE keeps everyone else out meanwhile.
 *
 * Invariants:
 *   S1  every entry at or below settled_through has its final version, and each row at most one entry
 *       per pass.
 *   S2  a pass that finds only single inserts and updates with good stamps writes nothing but the
 *       position, however long it is.
 *   S3  a table whose triggers were missing has every row announced again, and the interval is named.
 */
import type { Database, Statement } from "bun:sqlite";
import { HookSyncError } from "../base/errors.ts";
import type { Selection, Survey } from "./catalog.ts";
import { captureAgain } from "./follow-schema.ts";
import { noteEmptied, noticeEmptied, tableRestored } from "./lost-entries.ts";
import { migrate, setting, wasOurs } from "./migrations.ts";
import type { SyncedTable } from "./schema.ts";
import { announceUnseen, SchemaWatch, type SettleEvent } from "./schema-watch.ts";
import { RowSettler } from "./settle-rows.ts";
import { nameKey } from "./sql.ts";
import type { Tombstones } from "./tombstones.ts";

export type { SettleEvent } from "./schema-watch.ts";

/** What a Settler works with; events come inside the transaction, before its commit. */
export interface SettlerOptions {
  readonly db: Database;
  readonly tombstones: Tombstones;
  readonly selection: Selection;
  readonly onEvent: (event: SettleEvent) => void;
  /** The synced tables changed: statements and parked changes that depend on them must follow. */
  readonly onSurvey: (survey: Survey) => void;
}

/**
 * A watermark beyond it was never acknowledged by anyone, and numbering on from there would end the log:
 * JSON readers round ids above 2^53, and above 2^63 SQLite gives out none and refuses every write.
 */
const CHANGE_ID_SANE_MAX = 2 ** 52;

/** One per file, over its writing connection: the position it keeps is the file's. */
export class Settler {
  readonly #db: Database;
  readonly #options: SettlerOptions;
  readonly #dataVersion: Statement<{ data_version: number }, []>;
  readonly #schemaVersion: Statement<{ schema_version: number }, []>;
  readonly #newest: Statement<{ id: number | null }, []>;
  readonly #flag: Statement<{ value: number | null }, []>;
  readonly #position: Statement<unknown, [number]>;
  readonly #anyNote: Statement<unknown, []>;
  readonly #rows: RowSettler;
  readonly #schema: SchemaWatch;
  #settledThrough: number;
  #seenData: number | undefined;
  #seenSchema: number | undefined;
  /** The same at the beginning of this transaction, where `sawSchema` has moved it on. */
  #seenBefore: number | undefined;
  #checkedMs = 0;
  /** What this transaction did that a rollback undoes. */
  #isDirty = false;
  #isRewritten = false;

  /** The tables of ours must exist. `survey` is taken, and triggers are made, by the first pass. */
  constructor(options: SettlerOptions) {
    this.#db = options.db;
    this.#options = options;
    this.#schema = new SchemaWatch(options);
    this.#dataVersion = this.#db.prepare("PRAGMA data_version");
    this.#schemaVersion = this.#db.prepare("PRAGMA schema_version");
    this.#newest = this.#db.prepare("SELECT max(change_id) AS id FROM _changes");
    this.#flag = this.#db.prepare("SELECT value FROM _meta WHERE key = 'syncing'");
    this.#position = this.#db.prepare(
      "UPDATE _hooksync SET value = ? WHERE key = 'settled_through'",
    );
    this.#anyNote = this.#db.prepare("SELECT 1 FROM _hooksync_noted LIMIT 1");
    this.#settledThrough = Number(setting(this.#db, "settled_through") ?? 0);
    this.#rows = new RowSettler({
      db: this.#db,
      tombstones: options.tombstones,
      onLiftRefused: (table, why) =>
        options.onEvent({
          kind: "lift-refused",
          table: table.name,
          text: `a trigger forbids setting its updated_at (${why}): such rows are sent with the stamp they have, and lose against newer ones`,
        }),
    });
  }

  get survey(): Survey {
    return this.#schema.survey;
  }

  get settledThrough(): number {
    return this.#settledThrough;
  }

  /** Cheap: whether another program committed since the last pass. */
  get isBehind(): boolean {
    return this.#dataVersion.get()!.data_version !== this.#seenData;
  }

  /** The schema was changed by this connection, which it cannot see by itself: the next pass looks. */
  lookAgain(): void {
    this.#seenData = undefined;
  }

  /** This connection changed the schema from one version to the other, and nothing about its tables. */
  sawSchema(before: number, after: number): void {
    if (this.#seenSchema !== before) return;
    this.#seenBefore ??= before;
    this.#seenSchema = after;
  }

  /** After a rollback nothing that was cached about the file is trusted. */
  forget(): void {
    this.#isRewritten = false;
    this.#seenSchema = this.#seenBefore ?? this.#seenSchema;
    this.#seenBefore = undefined;
    if (this.#isDirty) {
      this.#isDirty = false;
      this.#seenData = undefined;
      this.#seenSchema = undefined;
    }
    // Where even that table is gone, the next pass says so.
    if (wasOurs(this.#db)) this.#settledThrough = Number(setting(this.#db, "settled_through") ?? 0);
  }

  /** After a commit: whether entries that were settled before have been rewritten since the last one. */
  takeRewritten(): boolean {
    this.#isDirty = false;
    this.#seenBefore = undefined;
    const rewritten = this.#isRewritten;
    this.#isRewritten = false;
    return rewritten;
  }

  /** First in every write transaction: settles what other programs wrote since the last one. */
  settle(nowMs: number): void {
    const dataVersion = this.#dataVersion.get()!.data_version;
    if (dataVersion === this.#seenData) return;
    for (;;) {
      try {
        this.#settleAll(nowMs);
        break;
      } catch (error) {
        // A trigger's RAISE(ROLLBACK) ended the transaction. Nothing else was in it, so it begins
        // again, without lifting that table's rows: a write that follows must not pay for it.
        if (this.#db.inTransaction || !this.#rows.takeHindered()) throw error;
        this.#db.run("BEGIN IMMEDIATE");
        this.forget();
      }
    }
    this.#seenData = dataVersion;
    this.#checkedMs = nowMs;
  }

  #settleAll(nowMs: number): void {
    this.#isDirty = true;
    const schemaVersion = this.#schemaVersion.get()!.schema_version;
    if (schemaVersion !== this.#seenSchema) this.#restoreTables();
    const isBroken = this.#restoreFlag();
    const knownThrough = this.#settledThrough;
    this.#renumberLeapt();
    this.#renumberRestarted();
    this.#wantLost(knownThrough);
    const from = this.#settledThrough;
    let leaving: ReadonlyMap<string, SyncedTable> = new Map();
    let recaptured: readonly SyncedTable[] = [];
    if (schemaVersion !== this.#seenSchema || this.#schema.hasHealed) {
      const found = this.#schema.follow({ nowMs, seenMs: this.#checkedMs, settledThrough: from });
      ({ leaving, recaptured } = found);
      if (found.isRewritten) this.#isRewritten = true;
      this.#seenSchema = this.#schemaVersion.get()!.schema_version;
    }
    if (isBroken) for (const table of this.survey.synced.values()) announceUnseen(this.#db, table);
    this.#pass(nowMs, leaving);
    // Only now: until its versions were decided, an entry had to say what it wrote.
    for (const table of recaptured) captureAgain(this.#db, table, from);
  }

  /**
   * Last in every write transaction. `logged` entries were made by our own writes, with their final
   * versions; any more came from cascades and the user's triggers and are settled like those of
   * another program.
   */
  finish(nowMs: number, logged: number): void {
    const newest = this.#newest.get()!.id ?? 0;
    const made = newest - Math.min(this.#settledThrough, newest);
    if (made === 0) return;
    if (made !== logged) {
      this.#pass(nowMs);
      return;
    }
    this.#moveTo(newest);
    // Our own writes replace nothing; a note left here would pass for the past of a later write.
    if (this.#anyNote.get() !== null) this.#db.run("DELETE FROM _hooksync_noted");
  }

  /** Says that entries up to the newest are final already: announcements, and what apply wrote. */
  skipTo(changeId: number): void {
    if (changeId > this.#settledThrough) this.#moveTo(changeId);
  }

  #moveTo(changeId: number): void {
    this.#position.run(changeId);
    this.#settledThrough = changeId;
  }

  #restoreTables(): void {
    if (!wasOurs(this.#db)) {
      throw new HookSyncError(
        "store-failed",
        "another program dropped the table _hooksync, in which this node keeps how far it is",
        "Start hook-sync again: it takes the file as it takes another node's.",
      );
    }
    for (const name of migrate(this.#db)) this.#options.onEvent(tableRestored(name));
  }

  /** DL11: without this row, or with the flag left at 1, nothing was captured. Says whether it was so. */
  #restoreFlag(): boolean {
    if (this.#flag.get()?.value === 0) return false;
    this.#db.run(
      "INSERT INTO _meta(key, value) VALUES ('syncing', 0) ON CONFLICT(key) DO UPDATE SET value = 0",
    );
    this.#options.onEvent({
      kind: "flag-restored",
      table: "_meta",
      text: "another program changed the syncing flag of _meta, which turned capture off; it is on again, every row is announced",
      isDoubtful: true,
    });
    return true;
  }

  /**
   * DL28, DL29: a log whose ids began again (a restored backup, an emptied sqlite_sequence) would
   * never be read past the old position. Its entries are numbered on from there.
   */
  #renumberRestarted(): void {
    const acked = this.#db
      .query<{ id: number | null }, [number]>(
        "SELECT max(last_acked) AS id FROM _peer_state WHERE last_acked < ?",
      )
      .get(CHANGE_ID_SANE_MAX)!.id;
    const floor = Math.max(this.#settledThrough, acked ?? 0);
    const sequence = this.#db
      .query<{ seq: number }, []>("SELECT seq FROM sqlite_sequence WHERE name = '_changes'")
      .get()?.seq;
    if ((sequence ?? 0) >= floor) return;
    const newest = this.#newest.get()!.id ?? 0;
    const isRestarted = newest > 0 && newest < floor;
    if (isRestarted) {
      this.#db.query("UPDATE _changes SET change_id = change_id + ?").run(floor);
      this.#isRewritten = true;
    }
    const through = isRestarted ? newest + floor : Math.max(newest, floor);
    if (sequence === undefined)
      this.#db.query("INSERT INTO sqlite_sequence(name, seq) VALUES ('_changes', ?)").run(through);
    else this.#db.query("UPDATE sqlite_sequence SET seq = ? WHERE name = '_changes'").run(through);
    if (newest >= floor) return;
    this.#moveTo(floor);
    if (!isRestarted) return;
    this.#options.onEvent({
      kind: "log-restarted",
      table: "_changes",
      text: `its numbering began again below ${floor} (a restored backup?); its entries are sent under new numbers`,
    });
  }

  /** DL29 upwards: what is numbered too high, by whomever, is numbered on from where this node was. */
  #renumberLeapt(): void {
    const leapt = this.#db
      .query<{ n: number }, [number]>(
        `SELECT 1 AS n FROM sqlite_sequence
         WHERE name = '_changes' AND typeof(seq) = 'integer' AND seq > ?`,
      )
      .get(CHANGE_ID_SANE_MAX);
    if (leapt === null) return;
    const newestSane = this.#db.query<{ id: number | null }, [number]>(
      "SELECT max(change_id) AS id FROM _changes WHERE change_id <= ?",
    );
    // The lowest of the high ones goes first, and those within reach of it along; gaps stay gaps. The
    // arithmetic is SQLite's: here such numbers would be rounded.
    const bringDown = this.#db.query<unknown, { floor: number; max: number }>(
      `UPDATE _changes
       SET change_id = change_id - (SELECT min(change_id) FROM _changes WHERE change_id > :max) + :floor + 1
       WHERE change_id > :max`,
    );
    const below = () => Math.max(this.#settledThrough, newestSane.get(CHANGE_ID_SANE_MAX)!.id ?? 0);
    let floor = below();
    // Where the sane ones are used up, the others stay as they are.
    if (floor >= CHANGE_ID_SANE_MAX) return;
    while (bringDown.run({ floor, max: CHANGE_ID_SANE_MAX }).changes > 1) {
      floor = below();
      if (floor >= CHANGE_ID_SANE_MAX) break;
    }
    const through = Math.max(floor, this.#newest.get()!.id ?? 0);
    this.#db.query("UPDATE sqlite_sequence SET seq = ? WHERE name = '_changes'").run(through);
    this.#isRewritten = true;
    this.#options.onEvent({
      kind: "log-restarted",
      table: "_changes",
      text: `its numbering leapt beyond ${CHANGE_ID_SANE_MAX}; its entries are sent under new numbers`,
    });
  }

  #wantLost(settledThrough: number): void {
    const urls = noticeEmptied(this.#db, settledThrough);
    noteEmptied(this.#db, this.#settledThrough);
    if (urls.length === 0) return;
    this.#options.onEvent({
      kind: "log-emptied",
      table: "_changes",
      text: `another program deleted changes that these peers had not got; they are sent everything: ${urls.join(", ")}`,
    });
  }

  // ── Versions ────────────────────────────────────────────────────────────────────────────────

  /** `leaving`: tables that are synced no more; what they logged before still gets its versions. */
  #pass(nowMs: number, leaving: ReadonlyMap<string, SyncedTable> = new Map()): void {
    const through = this.#newest.get()!.id ?? 0;
    const from = Math.min(this.#settledThrough, through);
    const hasNotes = this.#anyNote.get() !== null;
    if (through === from && !hasNotes) return;
    this.#db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
    let isIrregular = false;
    for (const [key, names] of this.#namesInPass(from)) {
      const table = this.survey.synced.get(key) ?? leaving.get(key);
      if (table === undefined) continue;
      this.#spellAlike(table, names, from);
      if (this.#rows.settle(table, from, nowMs)) isIrregular = true;
    }
    if (hasNotes) this.#db.run("DELETE FROM _hooksync_noted");
    if (isIrregular) this.#putDeletesFirst(from);
    this.#db.run("UPDATE _meta SET value = 0 WHERE key = 'syncing'");
    // Not back: with notes alone, and all entries gone, there is no newest one.
    const settled = Math.max(this.#newest.get()!.id ?? 0, this.#settledThrough);
    this.#keepNumbers(settled);
    this.#moveTo(settled);
  }

  /**
   * An INSERT OR FAIL that fails half-way leaves what it logged, but not the number it came to. Once
   * that was pruned the number would be given out again, and lie below every watermark.
   */
  #keepNumbers(through: number): void {
    this.#db
      .query("UPDATE sqlite_sequence SET seq = ?1 WHERE name = '_changes' AND seq < ?1")
      .run(through);
  }

  /** The tables that something was recorded of, by nameKey, as they are spelled there. */
  #namesInPass(from: number): Map<string, string[]> {
    const rows = this.#db
      .query<{ name: string }, [number]>(
        `SELECT DISTINCT table_name AS name FROM _changes WHERE change_id > ? AND table_name IS NOT NULL
         UNION SELECT DISTINCT tbl FROM _hooksync_noted`,
      )
      .all(from);
    const names = new Map<string, string[]>();
    for (const { name } of rows) {
      names.set(nameKey(name), [...(names.get(nameKey(name)) ?? []), name]);
    }
    return names;
  }

  /** Other nodes log a table as it was registered there, in whatever case. */
  #spellAlike(table: SyncedTable, names: readonly string[], from: number): void {
    for (const name of names) {
      if (name === table.name) continue;
      this.#db
        .query("UPDATE _changes SET table_name = ? WHERE change_id > ? AND table_name = ?")
        .run(table.name, from, name);
    }
  }

  /** So that a unique value is given up before another row takes it. */
  #putDeletesFirst(from: number): void {
    const mixed = this.#db
      .query<{ mixed: number | null }, [number, number]>(
        `SELECT (SELECT min(change_id) FROM _changes WHERE change_id > ? AND op <> 'DELETE')
              < (SELECT max(change_id) FROM _changes WHERE change_id > ? AND op = 'DELETE') AS mixed`,
      )
      .get(from, from);
    if (mixed?.mixed !== 1) return;
    const end = this.#newest.get()!.id!;
    this.#db
      .query(
        `INSERT INTO _changes(op, table_name, row_id, row_data, was)
         SELECT op, table_name, row_id, row_data, was FROM _changes
         WHERE change_id > ? AND change_id <= ? ORDER BY op <> 'DELETE', change_id`,
      )
      .run(from, end);
    this.#db.query("DELETE FROM _changes WHERE change_id > ? AND change_id <= ?").run(from, end);
  }
}
