/**
 * Watching the schema for what other programs change (DESIGN.md, "Settling"): columns and keys of a
 * synced table changed, tables renamed, rebuilt without their triggers, made, dropped. The triggers
 * follow, what waits to be sent is put right, and what cannot be known is said and announced.
 */
import type { Database } from "bun:sqlite";
import { isZeroed } from "./adopt.ts";
import {
  installTriggers,
  isCapturedByOthers,
  type KnownTable,
  readKnown,
  readSelection,
  removeTriggers,
  type Selection,
  type Survey,
  survey,
  triggerState,
  wasSurveyed,
  writeKnown,
} from "./catalog.ts";
import {
  areRenamesProven,
  followTableRenames,
  renameColumns,
  returnedAs,
} from "./follow-schema.ts";
import { setSetting, setting } from "./migrations.ts";
import { holdsOddStamps } from "./qualify.ts";
import { columnList, readTables, type SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";
import { TableRoots } from "./table-roots.ts";

/** Something an operator should know about the capture of a table. */
export interface SettleEvent {
  readonly kind:
    | "registered"
    | "lost"
    /** No longer asked for: that is no harm. */
    | "dismissed"
    | "renamed"
    | "rebuilt"
    | "gap"
    | "lift-refused"
    | "flag-restored"
    | "log-restarted"
    | "log-emptied"
    | "table-restored";
  readonly table: string;
  readonly text: string;
  /** Peers may have rows of it that this node missed, or the other way round: they are to be compared. */
  readonly isDoubtful?: boolean;
}

/** `selection` is the one of the start; the file's own is taken where there is one. */
export interface SchemaWatchOptions {
  readonly db: Database;
  readonly selection: Selection;
  readonly onEvent: (event: SettleEvent) => void;
  /** The synced tables changed: statements and parked changes that depend on them must follow. */
  readonly onSurvey: (survey: Survey) => void;
}

/** When and where the log stands. */
export interface Moment {
  readonly nowMs: number;
  /** When the schema was last seen as it was known; 0 before the first look. */
  readonly seenMs: number;
  readonly settledThrough: number;
}

/** What a look found that settling must know. */
export interface Followed {
  /** Tables that do not qualify any more, but whose last entries can still get their versions. */
  readonly leaving: ReadonlyMap<string, SyncedTable>;
  /** Tables whose entries since the last pass came from triggers of another shape or make. */
  readonly recaptured: readonly SyncedTable[];
  /** Entries that were settled before are others now. */
  readonly isRewritten: boolean;
}

/** Done in slices by announce.ts, so that a large table does not hold the lock. */
export function announceLater(db: Database, table: SyncedTable): void {
  setSetting(db, `announce:${table.key}`, "");
}

/**
 * The same for rows that may have been written unseen. Nobody knows which, nor whether their stamps rose,
 * so each goes one version above its own: above what peers have of it, below any edit they made since.
 */
export function announceUnseen(db: Database, table: SyncedTable): void {
  announceLater(db, table);
  setSetting(db, `unseen:${table.key}`, 1);
}

/** Part of the Settler, which decides when to look. */
export class SchemaWatch {
  readonly #db: Database;
  readonly #options: SchemaWatchOptions;
  #selection: Selection;
  #survey: Survey = {
    synced: new Map(),
    notSynced: [],
    oddlyStamped: [],
    notAsked: [],
    unfit: [],
    foreignKeys: false,
    isChosen: false,
    formerNames: new Map(),
  };
  #recaptured: SyncedTable[] = [];
  #isRewritten = false;
  #roots: TableRoots;

  constructor(options: SchemaWatchOptions) {
    this.#db = options.db;
    this.#options = options;
    this.#selection = options.selection;
    this.#roots = new TableRoots(options.db);
  }

  /** As of the last look; empty before the first. */
  get survey(): Survey {
    return this.#survey;
  }

  /** Whether a table may qualify now although the schema is the same: its stamps were put right. */
  get hasHealed(): boolean {
    return this.#survey.oddlyStamped.some((table) => !holdsOddStamps(this.#db, table));
  }

  /** Looks again, inside the caller's transaction. */
  follow(moment: Moment): Followed {
    this.#recaptured = [];
    this.#isRewritten = false;
    this.#roots = new TableRoots(this.#db);
    const known = readKnown(this.#db);
    this.#followTableRenames(known, moment.settledThrough);
    this.#selection = readSelection(this.#db) ?? this.#selection;
    const next = survey(this.#db, this.#selection, new Set(known.keys()));
    const isFirst = !wasSurveyed(this.#db);
    for (const table of next.synced.values())
      this.#followTable(table, known.get(table.key), isFirst, moment);
    const lost = [...known].filter(
      ([key, table]) => !next.synced.has(key) && !this.#hasReturned(table, next, moment),
    );
    const leaving = this.#stillSettled(lost.map(([key]) => key));
    for (const [key, table] of lost) {
      const why = next.notSynced.find((other) => nameKey(other.name) === key);
      removeTriggers(this.#db, key);
      const left = [...next.notAsked, ...next.unfit];
      if (left.some(({ name }) => nameKey(name) === key)) {
        const text = "it is not among --tables any more, and is not synced";
        this.#options.onEvent({ kind: "dismissed", table: table.name, text });
        continue;
      }
      this.#options.onEvent({
        kind: "lost",
        table: table.name,
        text: why ? `${why.reason}. ${why.remedy}` : "it is not there any more",
      });
    }
    writeKnown(this.#db, next.synced.values());
    this.#roots.write(next.synced.values());
    this.#survey = next;
    this.#options.onSurvey(next);
    return { leaving, recaptured: this.#recaptured, isRewritten: this.#isRewritten };
  }

  #hasReturned(table: KnownTable, next: Survey, moment: Moment): boolean {
    const name = returnedAs(this.#db, table.name, moment.settledThrough);
    const returned = name === undefined ? undefined : next.synced.get(nameKey(name));
    if (returned === undefined) return false;
    announceUnseen(this.#db, returned);
    this.#options.onEvent({
      kind: "rebuilt",
      table: returned.name,
      text: `it was made anew while its rows were in ${table.name}; every row is announced`,
      isDoubtful: true,
    });
    return true;
  }

  #stillSettled(keys: readonly string[]): ReadonlyMap<string, SyncedTable> {
    const tables = readTables(this.#db);
    const leaving = new Map<string, SyncedTable>();
    for (const key of keys) {
      const before = this.#survey.synced.get(key);
      const now = tables.get(key);
      const isSame = before && now && columnList(before.columns) === columnList(now.columns);
      if (isSame) leaving.set(key, before);
    }
    return leaving;
  }

  #followTableRenames(known: Map<string, KnownTable>, settledThrough: number): void {
    for (const { from, to } of followTableRenames(this.#db, known, settledThrough)) {
      this.#options.onEvent({
        kind: "renamed",
        table: to,
        text: `it was called ${from} until now; peers know it by that name until they rename it, too`,
        isDoubtful: true,
      });
    }
  }

  #followTable(
    table: SyncedTable,
    known: KnownTable | undefined,
    isFirst: boolean,
    moment: Moment,
  ): void {
    const state = triggerState(this.#db, table);
    const isOther =
      known !== undefined &&
      (this.#roots.isOther(table) ||
        (state === "outdated" && !areRenamesProven(this.#db, table, known.columns)));
    // Made anew, perhaps with our triggers copied over: the copying itself was not captured.
    if (isOther) {
      installTriggers(this.#db, table);
      this.#recaptured.push(table);
      this.#closeGap(table, moment);
      return;
    }
    if (state === "fine") {
      // `hook-sync alter` put everything right; bodies made before are not what the log says now.
      if (this.#hasOtherColumns(table)) this.#isRewritten = true;
      return;
    }
    const isCaptured = state === "outdated" || isCapturedByOthers(this.#db, table);
    installTriggers(this.#db, table);
    if (known === undefined) this.#register(table, isFirst, isCaptured);
    else if (isCaptured) this.#rebuild(table, known);
    else this.#closeGap(table, moment);
  }

  /** Rows that other nodes captured, and those of a file seen for the first time, are not announced. */
  #register(table: SyncedTable, isFirst: boolean, isCaptured: boolean): void {
    const isAnnounced = !isFirst && !isCaptured;
    // Where it had been synced before, too, it was written to unseen.
    if (isAnnounced) (isZeroed(this.#db, table) ? announceUnseen : announceLater)(this.#db, table);
    else this.#recaptured.push(table);
    const announced = isAnnounced ? "; the rows in it are announced" : "";
    this.#options.onEvent({
      kind: "registered",
      table: table.name,
      text: `it is synced from now on${announced}${this.#takeLeftOut(table)}`,
      isDoubtful: !isFirst,
    });
  }

  /** What came for it while --tables left it out is said once, and counted anew. */
  #takeLeftOut(table: SyncedTable): string {
    const { changes } = this.#db
      .query<{ changes: number }, [string]>(
        "SELECT total(changes) AS changes FROM _hooksync_left_out WHERE tbl = ?",
      )
      .get(table.key)!;
    if (changes === 0) return "";
    this.#db.query("DELETE FROM _hooksync_left_out WHERE tbl = ?").run(table.key);
    return `; ${changes} changes that came for it before are not here: nodes of this make are compared with, others must be asked to send it again`;
  }

  #rebuild(table: SyncedTable, known: KnownTable): void {
    if (renameColumns(this.#db, table, known.columns)) this.#isRewritten = true;
    this.#recaptured.push(table);
    this.#options.onEvent({
      kind: "rebuilt",
      table: table.name,
      text: "its columns or keys changed, its triggers follow",
      isDoubtful: true,
    });
  }

  /** S3 of settle.ts */
  #closeGap(table: SyncedTable, { nowMs, seenMs }: Moment): void {
    // Before the first look: when the node that had the file was last known to run.
    const sinceMs = seenMs > 0 ? seenMs : Number(setting(this.#db, "opened_at"));
    announceUnseen(this.#db, table);
    this.#options.onEvent({
      kind: "gap",
      table: table.name,
      text: `its capture triggers were missing some time between ${new Date(sinceMs).toISOString()} and ${new Date(nowMs).toISOString()}; every row is announced, rows deleted meanwhile are not known`,
      isDoubtful: true,
    });
  }

  #hasOtherColumns(table: SyncedTable): boolean {
    const before = this.#survey.synced.get(table.key);
    return before !== undefined && columnList(before.columns) !== columnList(table.columns);
  }
}
