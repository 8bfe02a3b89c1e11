/**
 * One node's file, opened: the parts of lib/store wired together, and the order in which they work
 * inside a transaction. Everything that writes goes through `queue`; everything that happens by itself
 * (retries, repeats, announcements, forgetting) is a step of `runDue`, called by the node's timer.
 */
import type { Database } from "bun:sqlite";
import { assert } from "../base/assert.ts";
import type { Clock, Timers } from "../base/clock.ts";
import { HookSyncError } from "../base/errors.ts";
import type { Random } from "../base/random.ts";
import type { Identity, Mark } from "../protocol/identity.ts";
import type { PeerHealth } from "../protocol/peer.ts";
import {
  type AskedTables,
  countOddIds,
  decideSelection,
  liftRevived,
  prepareFile,
  zeroNullStamps,
} from "./adopt.ts";
import { Announcer } from "./announce.ts";
import { Applier, type ApplyEvent } from "./apply.ts";
import { emptyTally, Guilty, runWithout } from "./apply-parts.ts";
import type { Survey } from "./catalog.ts";
import { removeCdc } from "./cdc-names.ts";
import { ChangeLog } from "./change-log.ts";
import { ColumnNotes } from "./column-notes.ts";
import { DeadLetters } from "./dead-letters.ts";
import { Filler } from "./filler.ts";
import { Healing, LOCAL_ORIGIN } from "./healing.ts";
import { knownEmptied, noteEmptied, tableRestored } from "./lost-entries.ts";
import { dropSetting, setSetting, setting } from "./migrations.ts";
import { beOpening, doneOpening, fileMark, openDatabase, openError, setJournal } from "./open.ts";
import { NEW_PEER, OTHER_FILE, Peers } from "./peers.ts";
import { Repository } from "./repository.ts";
import type { SyncedTable } from "./schema.ts";
import { type SettleEvent, Settler } from "./settle.ts";
import { SourceRows } from "./source-rows.ts";
import { nameKey, quoteName } from "./sql.ts";
import { Tombstones } from "./tombstones.ts";
import { TriggerPause } from "./trigger-pause.ts";
import {
  type TransactionEnds,
  type WriteMode,
  WriteQueue,
  type WriteTransaction,
} from "./write-queue.ts";

/** What a Store works with; time and chance come in from outside. */
export interface StoreOptions {
  /** From resolvePath. */
  readonly path: string;
  readonly nodeId: string;
  readonly asked: AskedTables;
  /** Whether an empty file gets the default table; it does. */
  readonly makesDefaultTable?: boolean;
  readonly schemaSql: string | undefined;
  readonly synchronous: "full" | "normal";
  readonly parkedBytesMax: number;
  readonly tombstoneRetentionMs: number;
  readonly acceptOldFile: boolean;
  /** Rows of one slice of a fill, if not as many as half a batch holds. */
  readonly fillSliceRows?: number | undefined;
  /** From how many rows on triggers are paused (trigger-pause.ts), if not as many as pay for it. */
  readonly pauseRowsMin?: number | undefined;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
  readonly onEvent: (event: SettleEvent | ApplyEvent | FillEvent) => void;
  /** After a commit: the log is settled up to here; `rewritten` as in shipper/messages.ts. */
  readonly onCommit: (settledThrough: number, rewritten: boolean) => void;
}

/** What follows from hearing a peer. */
export interface LearnedPeer {
  /** Why it wants a fill, or null. */
  readonly fillWanted: string | null;
  /** Its file was not known before. */
  readonly isFirst: boolean;
}

/** A peer has been filled. */
export interface FillEvent {
  readonly kind: "filled";
  readonly table: "";
  readonly text: string;
}

/** What the shipper says of a peer; see `moved` in shipper/messages.ts. */
export interface Move {
  readonly peer: string;
  readonly through: number;
  /** Foreign ones turn healing on. */
  readonly make?: "ours" | "foreign" | undefined;
  readonly dbId?: string | undefined;
  readonly ackedBatchId?: number;
  readonly refusal?: {
    readonly changeIds: readonly number[];
    readonly reason: string;
    readonly attempts: number;
  };
}

/** Behind a hub nobody can tell when every foreign node has had all: keep tombstones this much longer. */
const HUB_RETENTION_FACTOR = 10;
/** How often the file remembers that it was open. */
const OPEN_STAMP_MS = 600_000;
/** No number of entries: then all that a transaction logged is settled. */
const UNCOUNTED = -1;
/** How often an idle node looks for a table to announce: looking costs more than the rest of a tick. */
const ANNOUNCE_LOOK_MS = 250;
/** Tombstones forgotten per step. */
const FORGET_ROWS_MAX = 5_000;
/** A change that waits for another row is looked at this often, also when no batch arrives. */
const WAITING_PAUSE_MS = 5_000;
/** How often the file is looked for under its name. */
const FILE_LOOK_MS = 1_000;

/** How long acknowledgements wait for a write to join. /health shows them as pending meanwhile. */
const MOVES_PATIENCE_MS = 40;

/** Made by `open`, which throws HookSyncError where the file cannot be used; ended by `close`. */
export class Store {
  readonly db: Database;
  readonly queue: WriteQueue;
  readonly repository: Repository;
  readonly applier: Applier;
  readonly healing: Healing;
  readonly deadLetters: DeadLetters;
  readonly peers: Peers;
  readonly log: ChangeLog;
  readonly filler: Filler;
  dbId: string;
  /** When this process opened the file (wall clock). */
  readonly openedMs: number;
  /** Rows that got version 0 at adoption, by table. */
  readonly zeroed: ReadonlyMap<string, number>;
  readonly #options: StoreOptions;
  readonly #settler: Settler;
  readonly #tombstones: Tombstones;
  readonly #columnNotes: ColumnNotes;
  readonly #announcer: Announcer;
  readonly #pause: TriggerPause;
  #dueMs: number | undefined = 0;
  /** What stands under the file's names, while it is ours. */
  readonly #fileMarks: ReadonlyMap<string, string | undefined>;
  #fileLookMs = 0;
  #isAnnouncing = false;
  #announceLookMs = 0;
  #stampedMs = 0;
  #isSurveyNew = true;
  /** Every peer has acknowledged more than was deleted so far. */
  #isPruneLeft = false;
  /** Whether some peer is being filled; the file knows, this saves asking. */
  #isFilling: boolean;

  /** Whether the file can be used at all, and by which tables; nothing is written. */
  static inspect(path: string, asked: AskedTables): void {
    const db = openDatabase({ path, synchronous: "full" });
    try {
      decideSelection(db, asked);
    } catch (error) {
      throw openError(path, error);
    } finally {
      db.close();
    }
  }

  static open(options: StoreOptions): Store {
    const db = openDatabase(options);
    try {
      decideSelection(db, options.asked);
      setJournal(db, options);
      return new Store(db, options);
    } catch (error) {
      db.close();
      throw openError(options.path, error);
    }
  }

  private constructor(db: Database, options: StoreOptions) {
    const { clock, timers, random } = options;
    this.db = db;
    this.#options = options;
    const { selection, restored } = prepareFile(db, options);
    for (const name of restored) options.onEvent(tableRestored(name));
    this.#refuseForgotten();
    this.dbId = this.#identify(random);
    this.openedMs = clock.nowMs();
    this.#tombstones = new Tombstones(db);
    this.#columnNotes = new ColumnNotes(db);
    this.deadLetters = new DeadLetters(db, options.parkedBytesMax);
    this.peers = new Peers(db);
    this.log = new ChangeLog(db);
    this.healing = new Healing({ db, log: this.log, tombstones: this.#tombstones });
    this.#settler = new Settler({
      db,
      tombstones: this.#tombstones,
      selection,
      onEvent: options.onEvent,
      onSurvey: () => {
        this.#isSurveyNew = true;
      },
    });
    this.#pause = new TriggerPause({
      db,
      onEnd: (before, after) => this.#settler.sawSchema(before, after),
      rowsMin: options.pauseRowsMin,
    });
    this.applier = new Applier({
      db,
      survey: () => this.#settler.survey,
      tombstones: this.#tombstones,
      columnNotes: this.#columnNotes,
      deadLetters: this.deadLetters,
      healing: this.healing,
      log: this.log,
      pause: this.#pause,
      onEvent: options.onEvent,
    });
    this.#announcer = new Announcer(db);
    this.filler = new Filler({
      db,
      columnNotes: this.#columnNotes,
      writerFor: (table) => this.applier.writerFor(table),
      sliceRows: options.fillSliceRows,
    });
    this.#isFilling = this.filler.isAny;
    this.repository = new Repository({
      db,
      tombstones: this.#tombstones,
      pause: this.#pause,
      random,
      nodeId: options.nodeId,
    });
    this.queue = new WriteQueue({
      db,
      clock,
      timers,
      hasForeignKeys: () => this.#settler.survey.foreignKeys,
      settle: (nowMs) => this.#begin(nowMs),
      finish: (nowMs, logged, mode) => this.#finish(nowMs, logged, mode),
      committed: () => this.#committed(),
      rolledBack: () => this.#rolledBack(),
    });
    this.#openTransaction();
    this.zeroed = this.#zeroStamps();
    const names = [options.path, `${options.path}-wal`];
    this.#fileMarks = new Map(names.map((name) => [name, fileMark(name)]));
    doneOpening(db);
  }

  /** The file now keeps a log for followers, by this node's wish; `ends` marks our transactions in it. */
  beganCdc(ends: TransactionEnds): void {
    this.queue.ends = ends;
    if (setting(this.db, "cdc") === null) setSetting(this.db, "cdc", 1);
  }

  /** Takes out a log for followers that this node kept before; one that others keep stays. */
  endCdc(): void {
    if (setting(this.db, "cdc") === null) return;
    this.db
      .transaction(() => {
        removeCdc(this.db);
        dropSetting(this.db, "cdc");
      })
      .immediate();
  }

  /** Made by whoever brings a source's rows into this file, in transactions of the mode `source`. */
  takeFromSource(): SourceRows {
    return new SourceRows({
      db: this.db,
      asked: this.#options.asked,
      survey: () => this.#settler.survey,
      look: (nowMs) => {
        this.#settler.lookAgain();
        this.#begin(nowMs);
      },
      settle: (nowMs) => this.#finish(nowMs, UNCOUNTED, "source"),
    });
  }

  get survey(): Survey {
    return this.#settler.survey;
  }

  get settledThrough(): number {
    return this.#settler.settledThrough;
  }

  /** Of those in the log, or settled and gone from it. */
  get newestChange(): number {
    return Math.max(this.settledThrough, this.log.newest());
  }

  table(name: string): SyncedTable | undefined {
    return this.#settler.survey.synced.get(nameKey(name));
  }

  /** Who this file is; to the peer whose file is `askedByDb` also how far that one was committed. */
  identity(askedByDb?: string): Identity {
    if (askedByDb === undefined) return { db: this.dbId };
    const doubt = this.peers.doubt(askedByDb);
    const last = this.peers.mark(askedByDb);
    return { db: this.dbId, last, ...(doubt === undefined ? {} : { doubt }) };
  }

  /** DESIGN.md, "Tombstones": what was deleted meanwhile may be forgotten by everyone else. */
  #refuseForgotten(): void {
    const { clock, tombstoneRetentionMs, acceptOldFile, path } = this.#options;
    const openedMs = setting(this.db, "opened_at");
    if (openedMs === null || acceptOldFile) return;
    const awayMs = clock.nowMs() - Number(openedMs);
    if (awayMs <= tombstoneRetentionMs) return;
    throw new HookSyncError(
      "file-too-old",
      `${path} was not open for ${Math.floor(awayMs / 86_400_000)} days, longer than deletes are remembered: rows deleted elsewhere would come back`,
      "Start from a copy of another node's file, or give --accept-old-file if that is fine.",
    );
  }

  /** A file opened under another --id than last time is a new one: a copy must not pass for its original. */
  #identify(random: Random): string {
    const { nodeId } = this.#options;
    const known = setting(this.db, "db_id");
    if (typeof known === "string" && setting(this.db, "node_id") === nodeId) return known;
    const dbId = random.hex(16);
    setSetting(this.db, "db_id", dbId);
    setSetting(this.db, "node_id", nodeId);
    if (typeof known === "string") this.#markOriginal(known);
    return dbId;
  }

  /**
   * A copy has all that its original had logged: that one need send only what is newer. What peers
   * acknowledged to the original they never acknowledged to this file.
   */
  #markOriginal(dbId: string): void {
    this.db.run("UPDATE _peer_state SET prev = 0");
    const settledThrough = Number(setting(this.db, "settled_through") ?? 0);
    const log = new ChangeLog(this.db);
    // Of an entry that the original knows, too: one that settling took away would pass for one it lost.
    const batchId =
      log.newestForAll(settledThrough) ?? Math.min(settledThrough, knownEmptied(this.db));
    const hash = log.hashOf(batchId) ?? "0";
    new Peers(this.db).setMark(dbId, { batchId, hash });
    setSetting(this.db, "copy_of", dbId);
    setSetting(this.db, "copied_through", batchId);
  }

  /** Whether this file began as a copy of that one, which so has all that left the log of this one. */
  isCopyOf(dbId: string): boolean {
    if (setting(this.db, "copy_of") !== dbId) return false;
    // What was written here since, and has left the log, it has not.
    return this.prunedThrough <= Number(setting(this.db, "copied_through") ?? 0);
  }

  /** Triggers, the pending changes of whoever used the file before, and rows revived by them. */
  #openTransaction(): void {
    const nowMs = this.#options.clock.nowMs();
    const db = this.db;
    db.run("BEGIN IMMEDIATE");
    try {
      db.run(
        "INSERT INTO _hooksync(key, value) VALUES ('settled_through', 0) ON CONFLICT(key) DO NOTHING",
      );
      this.#adoptBadEntries(nowMs);
      this.#begin(nowMs);
      db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
      liftRevived(db, this.survey.synced.values(), this.log, this.#tombstones, nowMs);
      db.run("UPDATE _meta SET value = 0 WHERE key = 'syncing'");
      this.#settler.skipTo(this.log.newest());
      setSetting(db, "opened_at", nowMs);
      db.run("COMMIT");
      this.#isSurveyNew = false;
      this.deadLetters.committed();
      this.#settler.takeRewritten();
    } catch (error) {
      if (db.inTransaction) db.run("ROLLBACK");
      throw error;
    }
  }

  /** Entries of another make that are no JSON cannot be sent; they are kept where a person finds them. */
  #adoptBadEntries(nowMs: number): void {
    // What was settled has been looked at, unless the log began again since; a million takes a second.
    const { settledThrough } = this.#settler;
    const after = this.log.newest() >= settledThrough ? settledThrough : 0;
    const bad = this.db
      .query<{ change_id: number }, [number]>(
        `SELECT change_id FROM _changes
         WHERE change_id > ? AND (row_id IS NULL OR op NOT IN ('INSERT', 'UPDATE', 'DELETE') OR op IS NULL
            OR NOT coalesce(json_valid(row_data), op = 'DELETE') OR coalesce(json_type(row_data), 'object') <> 'object')`,
      )
      .all(after)
      .map((row) => row.change_id);
    if (bad.length === 0) return;
    this.deadLetters.refuse(
      { peer: "", changeIds: bad, reason: "the log entry is not a row as JSON", attempts: 0 },
      nowMs,
    );
    this.db
      .query("DELETE FROM _changes WHERE change_id IN (SELECT value FROM json_each(?))")
      .run(JSON.stringify(bad));
  }

  #zeroStamps(): Map<string, number> {
    const zeroed = new Map<string, number>();
    for (const table of this.survey.synced.values()) {
      const key = `zeroed:${table.key}`;
      if (setting(this.db, key) !== null) continue;
      const count = zeroNullStamps(this.db, table);
      if (count > 0) zeroed.set(table.name, count);
      setSetting(this.db, key, count);
    }
    return zeroed;
  }

  /** Rows whose ids are NULL or BLOBs and stay out, by table name. */
  oddIds(): Map<string, number> {
    const odd = new Map<string, number>();
    for (const table of this.survey.synced.values()) {
      const count = countOddIds(this.db, table);
      if (count > 0) odd.set(table.name, count);
    }
    return odd;
  }

  // ── Inside every transaction ────────────────────────────────────────────────────────────────

  #begin(nowMs: number): void {
    const before = this.#settler.settledThrough;
    this.#settler.settle(nowMs);
    const isMoved = this.#settler.settledThrough !== before;
    if (isMoved) {
      this.#wroteLocally(before, nowMs);
      this.queue.noteOthers();
    }
    if (!this.#isSurveyNew) return;
    this.#followSurvey(nowMs);
    // Of a column that is new, too, what was written meanwhile is known to be carried.
    if (isMoved) this.#wroteLocally(before, nowMs);
  }

  #finish(nowMs: number, logged: number, mode: WriteMode): void {
    assert(this.#pause.isOver, "the capture triggers are back before a commit");
    const before = this.#settler.settledThrough;
    // Cascades and the application's triggers may log more than a write counted, or less.
    const isCounted = mode === "apply" || (mode === "local" && !this.#hasSideEffects());
    this.#settler.finish(nowMs, isCounted ? logged : UNCOUNTED);
    // What apply puts into the log are announcements, not writes of this node.
    if (mode !== "apply" && this.#settler.settledThrough !== before)
      this.#wroteLocally(before, nowMs);
  }

  #hasSideEffects(): boolean {
    const { foreignKeys, synced } = this.#settler.survey;
    return foreignKeys || [...synced.values()].some((table) => table.userTriggers.length > 0);
  }

  /** What follows from local writes: columns they carried, and where the rows now come from. */
  #wroteLocally(sinceChangeId: number, nowMs: number): void {
    if (this.#columnNotes.isEmpty && !this.healing.isActive) return;
    const rows = this.db
      .query<{ table_name: string; row_id: string; op: string }, [number]>(
        "SELECT table_name, row_id, op FROM _changes WHERE change_id > ?",
      )
      .all(sinceChangeId);
    for (const name of new Set(rows.map((row) => row.table_name))) {
      const table = this.table(name);
      if (!table) continue;
      const columns = table.columns.map((column) => column.key);
      const sqlName = quoteName(table.name);
      const local = { key: table.key, name: table.name, sqlName, columns };
      this.#columnNotes.forgetLocallyWritten(sinceChangeId, local);
    }
    if (!this.healing.isActive) return;
    for (const row of rows) {
      const table = this.table(row.table_name);
      if (table) this.healing.note(table, row.row_id, LOCAL_ORIGIN, row.op === "DELETE", nowMs);
    }
  }

  /** Tables and columns may have appeared: what had come for them before is tried and written. */
  #followSurvey(nowMs: number): void {
    const { synced, notAsked, unfit, formerNames } = this.survey;
    const others = [...notAsked, ...unfit].map(({ name }) => nameKey(name));
    this.deadLetters.wake(nowMs, [...synced.keys(), ...others, ...formerNames.keys()]);
    this.#dueMs = nowMs;
    this.applier.followNewColumns(nowMs);
  }

  #committed(): void {
    this.#isSurveyNew = false;
    this.deadLetters.committed();
    this.#options.onCommit(this.#settler.settledThrough, this.#settler.takeRewritten());
  }

  #rolledBack(): void {
    this.#settler.forget();
    this.#columnNotes.forget();
    this.deadLetters.forget();
    this.healing.forget();
    this.log.forget();
    this.#pause.forget();
  }

  // ── By itself ───────────────────────────────────────────────────────────────────────────────

  /** Called every `--batch-ms`: costs a microsecond while there is nothing to do. */
  async runDue(): Promise<void> {
    const nowMs = this.#options.clock.nowMs();
    this.#lookForFile(nowMs);
    const wasBehind = this.#settler.isBehind;
    if (wasBehind) await this.queue.run("apply", () => undefined);
    // Settling by a write may have begun one, too: then it is found a moment later.
    const isTime = wasBehind || nowMs - this.#announceLookMs >= ANNOUNCE_LOOK_MS;
    if (isTime || nowMs < this.#announceLookMs) this.#isAnnouncing = this.#announcer.isPending;
    if (isTime) this.#announceLookMs = nowMs;
    if (this.#isAnnouncing) {
      await this.queue.run("apply", (transaction) => {
        transaction.logged(this.#announcer.runSlice(this.survey.synced, transaction.nowMs));
      });
      this.#isAnnouncing = this.#announcer.isPending;
    }
    await this.#fillOn();
    await this.#pruneOn();
    if (this.#dueMs !== undefined && nowMs >= this.#dueMs) await this.#runRetries();
    if (nowMs - this.#stampedMs >= OPEN_STAMP_MS || nowMs < this.#stampedMs)
      await this.#stampOpen();
  }

  /**
   * Where the file or its -wal was removed or replaced, this node has it still, and nobody else ever will
   * again: nothing more is taken in; what is in it is shipped.
   */
  #lookForFile(nowMs: number): void {
    if (nowMs - this.#fileLookMs < FILE_LOOK_MS && nowMs >= this.#fileLookMs) return;
    this.#fileLookMs = nowMs;
    for (const [path, mark] of this.#fileMarks) {
      const found = fileMark(path);
      if (found === mark || mark === undefined) continue;
      this.queue.refusal ??= new HookSyncError(
        "file-moved",
        `${path} was ${found === undefined ? "removed" : "replaced by another file"} while the node ran; writes are refused`,
        "Put it back under its name. Until then this node ships what it still holds to its peers.",
      );
      return;
    }
    this.queue.refusal = undefined;
  }

  /** Something was parked or contested: look when it is due. */
  lookAgain(): void {
    this.#dueMs = this.#nextDueMs(this.#options.clock.nowMs());
  }

  async #runRetries(): Promise<void> {
    this.#dueMs = undefined;
    const guilty = new Guilty();
    await runWithout(guilty, () =>
      this.queue.run("apply", (transaction) => {
        const tally = emptyTally();
        this.applier.retryParked(transaction.nowMs, tally, guilty);
        tally.logged += this.healing.runDue(
          (key) => this.survey.synced.get(key),
          transaction.nowMs,
        );
        transaction.logged(tally.logged);
      }),
    );
    this.lookAgain();
  }

  #nextDueMs(nowMs: number): number | undefined {
    const waiting = this.deadLetters.hasWaiting ? nowMs + WAITING_PAUSE_MS : undefined;
    const dues = [waiting, this.deadLetters.nextDueMs(), this.healing.nextDueMs()].filter(
      (due) => due !== undefined,
    );
    return dues.length === 0 ? undefined : Math.min(...dues);
  }

  async #stampOpen(): Promise<void> {
    this.#stampedMs = this.#options.clock.nowMs();
    await this.queue.run("apply", (transaction) =>
      setSetting(this.db, "opened_at", transaction.nowMs),
    );
  }

  /**
   * Forgets deletes that every peer has known of for the retention. `isCaughtUp`: right now every
   * configured peer has acknowledged all we have and has nothing left for us. Such moments are kept in
   * the file; once one is older than the retention, what was deleted before it may go. One moment at a
   * time is kept, so a tombstone lives for up to twice the retention. Returns how many were forgotten.
   */
  async forgetTombstones(isCaughtUp: boolean, isBehindHub: boolean): Promise<number> {
    const nowMs = this.#options.clock.nowMs();
    const retentionMs =
      this.#options.tombstoneRetentionMs * (isBehindHub ? HUB_RETENTION_FACTOR : 1);
    const knownMs = setting(this.db, "caught_up_at");
    const isOver = knownMs !== null && nowMs - Number(knownMs) >= retentionMs;
    if (!isOver && !(isCaughtUp && knownMs === null)) return 0;
    return this.queue.run("apply", (transaction) => {
      const forgotten = isOver ? this.#tombstones.forget(Number(knownMs), FORGET_ROWS_MAX) : 0;
      // The next moment begins only when this one has nothing left to forget.
      if (forgotten < FORGET_ROWS_MAX) {
        if (isCaughtUp) setSetting(this.db, "caught_up_at", transaction.nowMs);
        else dropSetting(this.db, "caught_up_at");
      }
      return forgotten;
    });
  }

  /** The last step of opening: makes `_peer_state` agree with the configuration; see Peers.configure. */
  configurePeers(
    urls: readonly string[],
    normalise: (url: string) => string | undefined,
  ): ReturnType<Peers["configure"]> {
    beOpening(this.db);
    try {
      this.db.run("BEGIN IMMEDIATE");
      const configured = this.peers.configure(urls, normalise);
      noteEmptied(this.db, this.settledThrough);
      // What left the log, or was never in it, a new peer can only get as a copy.
      if (this.hasContent) for (const url of configured.added) this.peers.wantFill(url, NEW_PEER);
      const { prunedThrough } = this;
      for (const { url, lastAcked, fillWanted, isFilling } of this.peers.rows()) {
        const isCut = lastAcked < prunedThrough && !configured.added.includes(url);
        // One that is new, and was not reached yet, may turn out to know us.
        if (isCut && fillWanted === null && !isFilling)
          this.peers.wantFill(url, "the log was cut behind it");
      }
      // A peer that is gone no longer holds the log.
      this.#prune(false);
      if (this.peers.rows().some((peer) => peer.make === "foreign"))
        this.healing.activate(this.#options.clock.nowMs());
      this.db.run("COMMIT");
      return configured;
    } catch (error) {
      if (this.db.inTransaction) this.db.run("ROLLBACK");
      throw openError(this.#options.path, error);
    } finally {
      doneOpening(this.db);
    }
  }

  /**
   * What peers acknowledged or refused: watermarks, dead letters and pruning. They join the transaction
   * of the next write, if there is one soon: nothing waits for them, and a commit is not free.
   */
  async recordMoves(moves: readonly Move[]): Promise<void> {
    await this.queue.run(
      "apply",
      (transaction) => {
        for (const { peer, through, dbId, ackedBatchId, refusal } of moves) {
          if (refusal) this.deadLetters.refuse({ ...refusal, peer }, transaction.nowMs);
          this.peers.move(peer, through, ackedBatchId);
          if (dbId !== undefined && dbId !== this.dbId) this.peers.ackedBy(peer, dbId);
        }
        // Before what it got leaves the log, and nobody knows any more that it got it from here.
        if (moves.some(({ make }) => make === "foreign")) this.healing.activate(transaction.nowMs);
        this.#advanceFills(transaction);
        this.#prune(this.queue.isBusy);
      },
      MOVES_PATIENCE_MS,
    );
    await this.#fillOn();
    await this.#pruneOn();
  }

  /** Inside a transaction. */
  #prune(isBusy: boolean): void {
    const { through, moreRemains } = this.peers.prune(isBusy);
    if (through > 0) {
      setSetting(this.db, "pruned_through", through);
      noteEmptied(this.db, this.settledThrough);
    }
    this.#isPruneLeft = moreRemains;
  }

  /** Deletes what can be deleted; while the node is busy only where it must (`pruneStep`). */
  async #pruneOn(mustAll = false): Promise<void> {
    while (this.#isPruneLeft && (mustAll || !this.queue.isBusy)) {
      await this.queue.run("apply", () => this.#prune(false));
    }
  }

  /** A part in each transaction, so that writes come in between. */
  async #fillOn(): Promise<void> {
    let moreRemains = this.#isFilling;
    while (moreRemains) {
      moreRemains = await this.queue.run("apply", (transaction) => {
        const isMore = this.#advanceFills(transaction);
        // What went may have been all that somebody lacked.
        this.#prune(this.queue.isBusy);
        return isMore;
      });
    }
  }

  /** Inside a transaction. Returns whether there is more to do at once. */
  #advanceFills(transaction: WriteTransaction): boolean {
    if (!this.#isFilling) return false;
    // Also when the last of it has been taken.
    const isForeign = this.peers.rows().some((peer) => peer.isFilling && peer.make !== "ours");
    if (isForeign && this.healing.isActive) this.healing.fillsForeign(transaction.nowMs);
    const { logged, complete, moreRemains } = this.filler.advance(this.survey.synced);
    noteEmptied(this.db, this.settledThrough);
    transaction.logged(logged);
    for (const { url, entries } of complete) {
      this.#options.onEvent({
        kind: "filled",
        table: "",
        text: `${url} has everything now (${entries} changes)`,
      });
    }
    this.#isFilling = this.filler.isAny;
    return moreRemains;
  }

  /** Whether entries in the log may be for one peer alone. */
  get isFilling(): boolean {
    return this.#isFilling;
  }

  /** Sends this peer every row and every tombstone, from the beginning; false: no such peer. */
  async fill(url: string, reason: string): Promise<boolean> {
    const isKnown = this.peers.rows().some((peer) => peer.url === url);
    if (!isKnown) return false;
    await this.queue.run("apply", (transaction) => {
      this.peers.wantFill(url, null);
      this.peers.startOver(url);
      this.filler.begin(url, reason);
      this.#isFilling = true;
      this.#advanceFills(transaction);
    });
    return true;
  }

  /** It is filled when it is heard of next. */
  async wantFill(url: string, reason: string): Promise<void> {
    await this.queue.run("apply", () => this.peers.wantFill(url, reason));
  }

  /** A new peer turned out to know us: it goes on from there. */
  async needNoFill(url: string): Promise<void> {
    await this.queue.run("apply", () => {
      this.peers.wantFill(url, null);
      // What left the log it has.
      this.peers.move(url, this.prunedThrough, undefined);
    });
  }

  get prunedThrough(): number {
    return Number(setting(this.db, "pruned_through") ?? 0);
  }

  /**
   * Keeps the log below `bytesMax`: the peer that is furthest behind no longer holds it, and is filled
   * when it returns. Returns the peer that was cut off.
   */
  async cutLog(bytesMax: number): Promise<string | undefined> {
    if (this.log.bytes() <= bytesMax + this.filler.bytesMax) return undefined;
    await this.#pruneOn(true);
    if (this.log.bytes() <= bytesMax + this.filler.bytesMax) return undefined;
    const peers = this.peers.rows().sort((a, b) => a.lastAcked - b.lastAcked);
    const slowest = peers[0];
    if (!slowest || slowest.lastAcked >= this.settledThrough) return undefined;
    const next = peers.find((peer) => peer.lastAcked > slowest.lastAcked)?.lastAcked;
    await this.queue.run("apply", (transaction) => {
      for (const peer of peers.filter(({ lastAcked }) => lastAcked === slowest.lastAcked)) {
        this.filler.abandon(peer.url);
        this.peers.wantFill(peer.url, "the log was cut behind it");
        this.peers.move(peer.url, next ?? this.settledThrough, undefined);
      }
      this.#advanceFills(transaction);
      this.#prune(false);
    });
    return slowest.url;
  }

  /** Whether there is anything that a new peer would lack: rows, or deletes it must know of. */
  get hasContent(): boolean {
    for (const table of this.survey.synced.values()) {
      if (this.db.query(`SELECT 1 FROM ${quoteName(table.name)} LIMIT 1`).get() !== null)
        return true;
    }
    return this.hasTombstones;
  }

  /**
   * What a peer's mark for this file says, where it is not what it acknowledged. `lost`: it was
   * restored, or its file replaced. `restored`: this file was; it knows a batch that we never made.
   */
  judgeMark(prev: number, last: Mark): "fine" | "lost" | "restored" {
    if (last.batchId < prev) return "lost";
    const newest = this.db
      .query<{ seq: number }, []>("SELECT seq FROM sqlite_sequence WHERE name = '_changes'")
      .get()?.seq;
    if (last.batchId > (newest ?? 0)) return "restored";
    const hash = this.log.hashOf(last.batchId);
    if (hash !== undefined) return hash === last.hash ? "fine" : "restored";
    // What was never settled was never shipped: settling made one entry of several, and left gaps.
    const goneThrough = Math.max(knownEmptied(this.db), this.filler.goneThrough);
    const isGap = last.batchId > goneThrough && !this.log.has(last.batchId);
    return isGap ? "restored" : "fine";
  }

  /** This file is not what its peers take it for: from now on it is another one to them. */
  async becomeAnother(random: Random): Promise<void> {
    await this.queue.run("apply", () => {
      this.dbId = random.hex(16);
      setSetting(this.db, "db_id", this.dbId);
      this.db.run("UPDATE _peer_state SET prev = 0");
    });
  }

  /**
   * A foreign peer turns healing on; one with another file than before wants a fill, from the moment on
   * at which that is known. Returns undefined where it is no peer any more.
   */
  learnPeer(health: PeerHealth): Promise<LearnedPeer | undefined> {
    return this.queue.run("apply", (transaction) => {
      const find = () => this.peers.rows().find(({ url }) => url === health.url);
      const before = find();
      this.peers.learn(health);
      if (!health.identity) this.healing.activate(transaction.nowMs);
      if (health.hub) this.healing.meetHub(transaction.nowMs);
      const { identity } = health;
      const isOther =
        identity && identity.db !== this.dbId && (before?.dbId ?? identity.db) !== identity.db;
      if (isOther && before!.fillWanted === null) this.peers.wantFill(health.url, OTHER_FILE);
      if (before === undefined) return undefined;
      const isFirst = before.make !== "ours" && identity !== undefined;
      return { fillWanted: find()?.fillWanted ?? null, isFirst };
    });
  }

  /** A value of ours that outlives the process. */
  keptSetting(key: string): string | undefined {
    const value = setting(this.db, `kept:${key}`);
    return value === null ? undefined : String(value);
  }

  async keepSetting(key: string, value: string): Promise<void> {
    await this.queue.run("apply", () => setSetting(this.db, `kept:${key}`, value));
  }

  async endRepeats(quietMs: number): Promise<void> {
    await this.queue.run("apply", ({ nowMs }) => this.healing.quietSince(quietMs, nowMs));
    this.lookAgain();
  }

  get hasTombstones(): boolean {
    return this.db.query("SELECT 1 FROM _hooksync_tombstones LIMIT 1").get() !== null;
  }

  get sqliteVersion(): string {
    return this.db.query<{ v: string }, []>("SELECT sqlite_version() AS v").get()!.v;
  }

  /** Finishes what waits, folds the -wal into the file and closes it. Readers must be closed before. */
  async close(): Promise<void> {
    await this.queue
      .run("apply", (transaction) => setSetting(this.db, "opened_at", transaction.nowMs))
      .catch(() => undefined);
    this.queue.close();
    this.repository.close();
    this.db.close(true);
  }
}
