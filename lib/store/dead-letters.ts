/**
 * What could not be applied here, or was refused by a peer, kept with its reason: nothing received or
 * written is ever dropped without a trace. One entry per (direction, peer, table, id, reason); of a
 * received row the newest version stays, with every change that has it.
 */
import type { Database, Statement } from "bun:sqlite";
import { HookSyncError } from "../base/errors.ts";
import type { ParkCode, Parking } from "./read-change.ts";

export interface Parked {
  readonly deadId: number;
  readonly peer: string;
  readonly table: string | null;
  readonly id: string | null;
  readonly code: ParkCode;
  readonly version: number | null;
  /** JSON text of the change as it came. */
  readonly change: string;
  readonly retryCount: number;
  readonly parkedAtMs: number;
}

export interface DeadLetterCounts {
  readonly all: number;
  /** Those of them that were received. */
  readonly parked: number;
}

interface ParkedRow {
  dead_id: number;
  peer: string;
  table_name: string | null;
  row_id: string | null;
  code: ParkCode;
  version: number | null;
  change: string;
  retry_count: number;
  parked_at: number;
}

/** Pauses between tries of a parked change: it may be mended any time, or never. */
const RETRY_PAUSES_MS = [10_000, 60_000, 600_000, 3_600_000, 24 * 3_600_000];
/** Tried at once per round, so that a round stays a short transaction. */
const RETRIES_PER_ROUND = 500;

const SELECT_SQL = `
  SELECT dead_id, peer, table_name, row_id, code, version, change, retry_count, parked_at
  FROM _dead_letter
  WHERE direction = 'received' AND`;

export class DeadLetters {
  readonly #db: Database;
  readonly #bytesMax: number;
  readonly #find: Statement<
    { dead_id: number; version: number | null; size: number; is_same: number },
    [string, string, string | null, string | null, string]
  >;
  readonly #insert: Statement;
  readonly #replace: Statement;
  readonly #remove: Statement<unknown, [number]>;
  #bytes: number;

  constructor(db: Database, bytesMax: number) {
    this.#db = db;
    this.#bytesMax = bytesMax;
    this.#find = db.prepare(
      `SELECT dead_id, version, length(change) AS size, change = ? AS is_same FROM _dead_letter
       WHERE direction = 'received' AND peer IS ? AND table_name IS ? AND row_id IS ? AND reason = ?
       ORDER BY is_same DESC, dead_id`,
    );
    this.#insert = db.prepare(
      `INSERT INTO _dead_letter(op, row_id, row_data, failed_at, retry_count, direction, peer, table_name, reason, code, version, change, parked_at, retry_at)
       VALUES ($op, $id, CASE WHEN json_valid($change) THEN json_extract($change, '$.row') END, $nowMs, 0, 'received', $peer, $table, $reason, $code, $version, $change, $nowMs, $retryAt)`,
    );
    this.#replace = db.prepare(
      `UPDATE _dead_letter SET op = $op, row_data = CASE WHEN json_valid($change) THEN json_extract($change, '$.row') END, failed_at = $nowMs,
         code = $code, version = $version, change = $change, retry_at = $retryAt
       WHERE dead_id = $deadId`,
    );
    this.#remove = db.prepare("DELETE FROM _dead_letter WHERE dead_id = ?");
    this.#bytes = this.#readBytes();
  }

  /** After a rollback. */
  forget(): void {
    this.#bytes = this.#readBytes();
  }

  #readBytes(): number {
    return this.#db
      .query<{ bytes: number }, []>(
        "SELECT coalesce(sum(length(change)), 0) AS bytes FROM _dead_letter WHERE direction = 'received'",
      )
      .get()!.bytes;
  }

  /** Keeps a received change. Throws where the limit is reached: the batch is not acknowledged then. */
  park(
    parking: Parking,
    peer: string,
    change: string,
    nowMs: number,
    retryAtMs: number | null,
  ): void {
    const known = this.#find.all(change, peer, parking.table, parking.id, parking.reason);
    const isNewer = (than: number | null) => than === null || (parking.version ?? 0) > than;
    if (known.some(({ version }) => version !== null && (parking.version ?? 0) < version)) return;
    // Of changes with the same version none may be dropped: an UPDATE and the DELETE after it have it in
    // common, and so have the two sides of a tie.
    const replaced = known.filter(
      ({ version, is_same: isSame }) => isSame === 1 || isNewer(version),
    );
    this.#bytes += change.length - replaced.reduce((sum, { size }) => sum + size, 0);
    if (this.#bytes > this.#bytesMax) {
      throw new HookSyncError(
        "disk-full",
        `the parked changes reached their limit of ${this.#bytesMax} bytes`,
        "Look at _dead_letter (reason), mend or delete what is there, or raise --parked-limit.",
      );
    }
    const values = {
      op: parking.op,
      code: parking.code,
      version: parking.version,
      change,
      nowMs,
      retryAt: retryAtMs,
    };
    const [first, ...more] = replaced;
    if (first === undefined) {
      this.#insert.run({
        ...values,
        id: parking.id,
        peer,
        table: parking.table,
        reason: parking.reason,
      });
    } else this.#replace.run({ ...values, deadId: first.dead_id });
    for (const { dead_id: deadId } of more) this.#remove.run(deadId);
  }

  /** Keeps what lost against another row on a unique key; never tried again. */
  keepLoser(
    entry: {
      op: string;
      table: string;
      id: string;
      version: number;
      change: string;
      reason: string;
    },
    nowMs: number,
  ): void {
    this.#db
      .query(
        `INSERT INTO _dead_letter(op, row_id, row_data, failed_at, retry_count, direction, peer, table_name, reason, code, version, change, parked_at)
         VALUES ($op, $id, json_extract($change, '$.row'), $nowMs, 0, 'received', 'this node', $table, $reason, 'lost', $version, $change, $nowMs)`,
      )
      .run({ ...entry, nowMs });
  }

  remove(deadId: number): void {
    this.#remove.run(deadId);
    this.#bytes = this.#readBytes();
  }

  /** It was tried and is still not possible. */
  postpone(parked: Parked, reason: string, code: ParkCode, nowMs: number): void {
    const pause = RETRY_PAUSES_MS[Math.min(parked.retryCount, RETRY_PAUSES_MS.length - 1)]!;
    this.#db
      .query(
        "UPDATE _dead_letter SET retry_count = retry_count + 1, reason = ?, code = ?, failed_at = ?, retry_at = ? WHERE dead_id = ?",
      )
      .run(reason, code, nowMs, code === "unique" ? nowMs : nowMs + pause, parked.deadId);
  }

  /** Parked changes whose time has come, oldest first. */
  due(nowMs: number): Parked[] {
    return this.#read(
      `code <> 'unique' AND retry_at <= ? ORDER BY retry_at LIMIT ${RETRIES_PER_ROUND}`,
      nowMs,
    );
  }

  /** Those that wait for another row to give up a unique value. */
  waitingOnUnique(): Parked[] {
    return this.#read(`code = 'unique' ORDER BY dead_id LIMIT ${RETRIES_PER_ROUND}`);
  }

  /** Makes those due that a change of the schema may have mended. */
  wake(nowMs: number): void {
    this.#db
      .query(
        "UPDATE _dead_letter SET retry_at = ? WHERE direction = 'received' AND code IN ('unknown-table', 'constraint', 'trigger')",
      )
      .run(nowMs);
  }

  /** When the next parked change is due, or undefined. */
  nextDueMs(): number | undefined {
    return (
      this.#db
        .query<{ at: number | null }, []>(
          "SELECT min(retry_at) AS at FROM _dead_letter WHERE direction = 'received' AND code <> 'unique' AND retry_at IS NOT NULL",
        )
        .get()!.at ?? undefined
    );
  }

  #read(condition: string, ...bindings: number[]): Parked[] {
    return this.#db
      .query<ParkedRow, number[]>(`${SELECT_SQL} ${condition}`)
      .all(...bindings)
      .map((row) => ({
        deadId: row.dead_id,
        peer: row.peer,
        table: row.table_name,
        id: row.row_id,
        code: row.code,
        version: row.version,
        change: row.change,
        retryCount: row.retry_count,
        parkedAtMs: row.parked_at,
      }));
  }

  /** Copies changes that a peer will never take from the log. */
  refuse(
    refusal: { peer: string; changeIds: readonly number[]; reason: string; attempts: number },
    nowMs: number,
  ): void {
    this.#db
      .query(
        `INSERT INTO _dead_letter(op, row_id, row_data, failed_at, retry_count, direction, peer, table_name, reason, code, parked_at)
         SELECT op, row_id, row_data, $nowMs, $attempts, 'sent', $peer, table_name, $reason, 'refused', $nowMs
         FROM _changes WHERE change_id IN (SELECT value FROM json_each($ids)) ORDER BY change_id`,
      )
      .run({
        nowMs,
        attempts: refusal.attempts,
        peer: refusal.peer,
        reason: refusal.reason,
        ids: JSON.stringify(refusal.changeIds),
      });
  }

  counts(): DeadLetterCounts {
    return this.#db
      .query<DeadLetterCounts, []>(
        "SELECT count(*) AS \"all\", coalesce(sum(direction = 'received'), 0) AS parked FROM _dead_letter",
      )
      .get()!;
  }
}
