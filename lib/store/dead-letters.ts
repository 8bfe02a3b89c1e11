/**
 * What could not be applied here, or was refused by a peer, kept with its reason: nothing received or
 * written is ever dropped without a trace. Of a received row one entry per (table, id, reason) stays, the
 * newest version; changes of one version that differ stay side by side, and changes that do not even
 * say which row they mean are all kept.
 */
import type { Database, Statement } from "bun:sqlite";
import { HookSyncError } from "../base/errors.ts";
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";
import type { Failure } from "./apply-parts.ts";
import type { Origin } from "./healing.ts";
import type { ParkCode, Parking } from "./read-change.ts";

/** A received entry as retrying needs it; those that peers refused are no such entries. */
export interface Parked {
  readonly deadId: number;
  /** Who sent it, for people; `origin` is what healing needs to know of it. */
  readonly peer: string;
  readonly origin: Origin;
  readonly table: string | null;
  readonly id: string | null;
  readonly code: ParkCode;
  readonly version: number | null;
  /** JSON text of the change as it came. */
  readonly change: string;
  readonly retryCount: number;
  readonly parkedAtMs: number;
}

/** Entries, not bytes. */
export interface DeadLetterCounts {
  readonly all: number;
  /** Those of them that were received. */
  readonly parked: number;
}

interface ParkedRow {
  dead_id: number;
  peer: string;
  origin: string | null;
  is_foreign: number | null;
  table_name: string | null;
  row_id: string | null;
  code: ParkCode;
  version: number | null;
  change: string;
  retry_count: number;
  parked_at: number;
}

/** What entries are found by: beside which of them a change would stand. */
type EntryKey = Record<"reason" | "change", string> &
  Record<"table" | "id", string | null> & { readonly version: number | null };

interface KnownEntry {
  readonly dead_id: number;
  readonly version: number | null;
  readonly size: number;
  readonly same: number;
  /** 1 where it is older than the change in hand, or that has no version, and covered by it (coversSql). */
  readonly is_covered: number;
  /** 1 where it is newer and covers the change in hand. */
  readonly is_covering: number;
}

/**
 * SQL for: nothing of the older change `part` is left once `whole` was applied. The row has every member
 * that its row has; and a DELETE also takes what columns hold that only this node has, so that no row
 * written after it stands for it.
 */
function coversSql(whole: string, part: string): string {
  const isDelete = (change: string) => `${change} ->> '$.op' IS 'DELETE'`;
  const names = (change: string) => `SELECT lower(key) FROM json_each(${change}, '$.row')`;
  return `(NOT ${isDelete(part)} OR ${isDelete(whole)}) AND NOT EXISTS (${names(part)} EXCEPT ${names(whole)})`;
}

/**
 * The entries of a row and reason. Only where versions differ is it asked whose columns cover whose: as many
 * changes of one version as a sender likes stay side by side.
 */
const FIND_SQL = `
  SELECT dead_id, version, octet_length(change) AS size, change = $change AS same,
    CASE WHEN $id IS NOT NULL AND ($version IS NULL OR coalesce(version, 0) < $version)
      THEN ${coversSql("$change", "change")} ELSE 0 END AS is_covered,
    CASE WHEN $id IS NOT NULL AND coalesce(version, 0) > coalesce($version, 0)
      THEN ${coversSql("change", "$change")} ELSE 0 END AS is_covering
  FROM _dead_letter
  WHERE direction = 'received' AND table_name IS $table AND row_id IS $id AND reason = $reason`;

/** Pauses between tries of a parked change: it may be mended any time, or never. */
const RETRY_PAUSES_MS = [10_000, 60_000, 600_000, 3_600_000, 24 * 3_600_000];
/** Tried at once per round, so that a round stays a short transaction. */
const RETRIES_PER_ROUND = 500;

const SELECT_SQL = `
  SELECT dead_id, peer, origin, is_foreign, table_name, row_id, code, version, change, retry_count, parked_at
  FROM _dead_letter
  WHERE direction = 'received' AND`;

/** One per writing connection: it keeps the sum of what is parked, to hold it to a bound. */
export class DeadLetters {
  readonly #db: Database;
  readonly #bytesMax: number;
  readonly #find: Statement<KnownEntry, [EntryKey]>;
  readonly #insert: Statement;
  readonly #replace: Statement;
  readonly #remove: Statement<{ size: number }, [number]>;
  readonly #waiting: Statement<unknown, []>;
  readonly #dataVersion: Statement<{ data_version: number }, []>;
  /** Of received changes; what this transaction added apart, so that a rollback takes it back. */
  #bytes: number;
  #bytesAdded = 0;
  #bytesReadAt: number;

  constructor(db: Database, bytesMax: number) {
    this.#db = db;
    this.#bytesMax = bytesMax;
    this.#find = db.prepare(FIND_SQL);
    this.#insert = db.prepare(
      `INSERT INTO _dead_letter(op, row_id, failed_at, retry_count, direction, peer, origin, is_foreign, table_name, reason, code, version, change, parked_at, retry_at)
       VALUES ($op, $id, $nowMs, 0, 'received', $peer, $origin, $isForeign, $table, $reason, $code, $version, $change, $nowMs, $retryAt)`,
    );
    this.#replace = db.prepare(
      `UPDATE _dead_letter SET op = $op, failed_at = $nowMs, peer = $peer, origin = $origin, is_foreign = $isForeign,
         code = $code, version = $version, change = $change, retry_at = $retryAt
       WHERE dead_id = $deadId`,
    );
    this.#remove = db.prepare(
      "DELETE FROM _dead_letter WHERE dead_id = ? RETURNING octet_length(change) AS size",
    );
    this.#waiting = db.prepare("SELECT 1 FROM _dead_letter WHERE code = 'unique' LIMIT 1");
    this.#dataVersion = db.prepare("PRAGMA data_version");
    this.#bytes = this.#readBytes();
    this.#bytesReadAt = this.#dataVersion.get()!.data_version;
  }

  /** After a commit. */
  committed(): void {
    this.#bytes += this.#bytesAdded;
    this.#bytesAdded = 0;
  }

  /** After a rollback. */
  forget(): void {
    this.#bytesAdded = 0;
  }

  #readBytes(): number {
    return this.#db
      .query<{ bytes: number }, []>(
        "SELECT coalesce(sum(octet_length(change)), 0) AS bytes FROM _dead_letter WHERE direction = 'received'",
      )
      .get()!.bytes;
  }

  /** Throws where the limit is reached: the batch is not acknowledged then. */
  #addBytes(bytes: number): void {
    this.#bytesAdded += bytes;
    if (bytes <= 0 || this.#bytes + this.#bytesAdded <= this.#bytesMax) return;
    // A person may have made room meanwhile.
    const dataVersion = this.#dataVersion.get()!.data_version;
    if (dataVersion !== this.#bytesReadAt) {
      this.#bytesReadAt = dataVersion;
      this.#bytes = this.#readBytes() - this.#bytesAdded;
      if (this.#bytes + this.#bytesAdded <= this.#bytesMax) return;
    }
    throw new HookSyncError(
      "disk-full",
      `the parked changes reached their limit of ${this.#bytesMax} bytes`,
      "Look at _dead_letter (reason), mend or delete what is there, or raise --parked-limit.",
    );
  }

  /** Keeps a received change. */
  park(
    parking: Parking,
    from: { readonly peer: string; readonly origin: Origin },
    change: string,
    nowMs: number,
  ): void {
    const { table, id, reason, version } = parking;
    const known = this.#find.all({ table, id, reason, version, change });
    const verdict = judgeEntry(parking, known);
    if (verdict.kind === "ignore") return;
    const values = {
      op: parking.op,
      peer: from.peer,
      origin: from.origin.name,
      isForeign: from.origin.isForeign ? 1 : 0,
      code: parking.code,
      version: parking.version,
      change,
      nowMs,
      retryAt: retryAtMs(parking.code, parking.version, 0, nowMs),
    };
    const size = Buffer.byteLength(change);
    if (verdict.kind === "add") {
      this.#insert.run({ ...values, id, table, reason });
      this.#addBytes(size);
      return;
    }
    const [first, ...others] = verdict.entries;
    this.#replace.run({ ...values, deadId: first!.dead_id });
    this.#addBytes(size - first!.size);
    for (const other of others) this.remove(other.dead_id);
  }

  /** Keeps what lost against another row on a unique key; never tried again. */
  keepLoser(
    entry: {
      readonly table: string;
      readonly id: string;
      readonly version: number;
      readonly change: string;
      readonly reason: string;
    },
    nowMs: number,
  ): void {
    this.#db
      .query(
        `INSERT INTO _dead_letter(op, row_id, failed_at, retry_count, direction, peer, table_name, reason, code, version, change, parked_at)
         VALUES ('DELETE', $id, $nowMs, 0, 'received', 'this node', $table, $reason, 'lost', $version, $change, $nowMs)`,
      )
      .run({ ...entry, nowMs });
    this.#addBytes(Buffer.byteLength(entry.change));
  }

  remove(deadId: number): void {
    const removed = this.#remove.get(deadId);
    if (removed) this.#bytesAdded -= removed.size;
  }

  /** It was tried and is still not possible. */
  postpone(parked: Parked, failure: Failure, nowMs: number): void {
    const { code, reason } = failure;
    const { table, id, version, change } = parked;
    for (const other of this.#find.all({ table, id, reason, version: version ?? 0, change })) {
      if (other.dead_id === parked.deadId || parked.id === null) continue;
      // Another version of the row waits for the same reason: the newer one is enough, if it has all
      // columns.
      if (other.is_covering === 1 && (other.version ?? 0) > (parked.version ?? 0)) {
        this.remove(parked.deadId);
        return;
      }
      const isOlder = (other.version ?? 0) < (parked.version ?? 0);
      if (other.is_covered === 1 && isOlder) this.remove(other.dead_id);
    }
    const retryCount = parked.retryCount + 1;
    this.#db
      .query(
        "UPDATE _dead_letter SET retry_count = ?, reason = ?, code = ?, failed_at = ?, retry_at = ? WHERE dead_id = ?",
      )
      .run(
        retryCount,
        reason,
        code,
        nowMs,
        retryAtMs(code, parked.version, retryCount, nowMs),
        parked.deadId,
      );
  }

  /** Parked changes whose time has come, oldest first. */
  due(nowMs: number): Parked[] {
    return this.#read(`retry_at <= ? ORDER BY retry_at, dead_id LIMIT ${RETRIES_PER_ROUND}`, nowMs);
  }

  /** Whether any waits for another row to give up a unique value. */
  get hasWaiting(): boolean {
    return this.#waiting.get() !== null;
  }

  /** Those, the longest untried first. */
  waitingOnUnique(): Parked[] {
    if (!this.hasWaiting) return [];
    return this.#read(`code = 'unique' ORDER BY failed_at, dead_id LIMIT ${RETRIES_PER_ROUND}`);
  }

  /** The newest change that waits on a unique key for this row, or undefined. */
  waitingOf(table: string, id: string): Parked | undefined {
    return this.#read(
      "code = 'unique' AND table_name = ? AND row_id = ? ORDER BY version DESC LIMIT 1",
      table,
      id,
    )[0];
  }

  /** Makes those due that a change of the schema may have mended; `tables` (nameKeys) are there now. */
  wake(nowMs: number, tables: Iterable<string>): void {
    this.#db
      .query(
        `UPDATE _dead_letter SET retry_at = ?1
         WHERE direction = 'received' AND (code IN ('constraint', 'trigger')
           OR code = 'unknown-table' AND lower(table_name) IN (SELECT value FROM json_each(?2)))`,
      )
      .run(nowMs, JSON.stringify([...tables]));
  }

  /** When the next parked change is due, or undefined. */
  nextDueMs(): number | undefined {
    return (
      this.#db
        .query<{ at: number | null }, []>(
          "SELECT min(retry_at) AS at FROM _dead_letter WHERE retry_at IS NOT NULL",
        )
        .get()!.at ?? undefined
    );
  }

  #read(condition: string, ...bindings: (number | string)[]): Parked[] {
    return this.#db
      .query<ParkedRow, (number | string)[]>(`${SELECT_SQL} ${condition}`)
      .all(...bindings)
      .map((row) => ({
        deadId: row.dead_id,
        peer: row.peer,
        // One that an earlier version of this program parked counts as ours: nobody is answered.
        origin: { name: row.origin ?? row.peer, isForeign: row.is_foreign === 1 },
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
    const ids = JSON.stringify(refusal.changeIds);
    // The same row refused by the same peer again, as a fill brings about: the newer word stays.
    this.#db
      .query(
        `DELETE FROM _dead_letter WHERE dead_id IN (
           SELECT d.dead_id FROM _changes AS c JOIN _dead_letter AS d
             ON d.direction = 'sent' AND d.table_name IS c.table_name AND d.row_id IS c.row_id
           WHERE c.change_id IN (SELECT value FROM json_each(?1))
             AND d.peer = ?2 AND d.row_data IS c.row_data)`,
      )
      .run(ids, refusal.peer);
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
        ids,
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

type EntryVerdict =
  | { readonly kind: "add" }
  | { readonly kind: "ignore" }
  /** It takes the place of these. */
  | { readonly kind: "replace"; readonly entries: readonly KnownEntry[] };

/** What a change means for the entries of its row and reason that are there already. */
function judgeEntry(parking: Parking, known: readonly KnownEntry[]): EntryVerdict {
  const same = known.find((entry) => entry.same === 1);
  if (same) return { kind: "replace", entries: [same] };
  if (known.length === 0 || parking.id === null) return { kind: "add" };
  const version = parking.version ?? 0;
  // A column that only the older change carries has its value from there.
  const isEnough = known.some((entry) => (entry.version ?? 0) > version && entry.is_covering === 1);
  if (isEnough) return { kind: "ignore" };
  // An UPDATE and the DELETE after it have their version in common, and so have the sides of a tie.
  // Without a version the last to arrive is the newest.
  const entries = known.filter(
    (entry) =>
      entry.is_covered === 1 && (parking.version === null || (entry.version ?? 0) < version),
  );
  return entries.length > 0 ? { kind: "replace", entries } : { kind: "add" };
}

/** When to try again by itself; null for never: what waits for a table, and what can never apply. */
function retryAtMs(
  code: ParkCode,
  version: number | null,
  retryCount: number,
  nowMs: number,
): number | null {
  switch (code) {
    case "malformed":
    case "unknown-table":
    case "unique":
      return null;
    case "ahead":
      return (version ?? 0) - VERSION_AHEAD_MS_MAX;
    case "constraint":
    case "trigger":
      // At first at the end of its batch.
      return retryCount === 0
        ? nowMs
        : nowMs + RETRY_PAUSES_MS[Math.min(retryCount, RETRY_PAUSES_MS.length) - 1]!;
  }
}
