/**
 * What this node knows of its peers, in the contract's `_peer_state` and in marks of our own: how far
 * each has acknowledged our log, and how far we have committed each sender's. The shipper works from
 * memory; this is where it starts again.
 */
import type { Database } from "bun:sqlite";
import { formatMark, type Mark, parseMark } from "../protocol/identity.ts";
import type { PeerHealth, PeerStart } from "../protocol/peer.ts";
import { noteFillsGone } from "./filler.ts";
import { dropSetting, setSetting, setting } from "./migrations.ts";

/** A row of `_peer_state`, with the columns that existing nodes do not have. */
export interface PeerRow {
  readonly url: string;
  readonly lastAcked: number;
  readonly make: "ours" | "foreign" | null;
  readonly nodeId: string | null;
  readonly dbId: string | null;
  /** Why it must be filled once it answers, or null. */
  readonly fillWanted: string | null;
  /** It is being filled just now: what left the log comes with that. */
  readonly isFilling: boolean;
}

interface StateRow {
  peer_url: string;
  last_acked: number | null;
  prev: number | null;
  make: string | null;
  node_id: string | null;
  db_id: string | null;
  fill: string | null;
  fill_wanted: string | null;
}

/**
 * Deleted one by one in a transaction: about 3 ms. A peer that was away for long may release a million
 * changes at once, and nobody else can write meanwhile.
 */
const PRUNED_IDS_MAX = 5_000;
/** A log of no more is emptied at once: about 3 ms, too. */
const CLEARED_IDS_MAX = 20_000;
/** What a busy node keeps of it besides: some 120 MB of file, which are used again. */
const KEPT_IDS_MAX = 500_000;

/** Why a peer wants a fill: nothing is known of what it has. */
export const NEW_PEER = "it is new";
/** Why a peer wants a fill that comes back with another file. */
export const OTHER_FILE = "its file is another one than before";

/** Keys of settings, by db id. */
const UNFILLED = "unfilled:";
const DOUBT = "doubt:";

/** The ends of the log, and what every peer has acknowledged. */
export interface LogStanding {
  readonly least: number | null;
  readonly oldest: number | null;
  readonly newest: number | null;
}

/**
 * Deleting entries one by one writes every page they were on once more, a fifth of what it costs to
 * write the rows; emptying the whole log writes next to nothing. So a busy node waits until everybody
 * has everything, and deletes one by one only what would be too much to keep.
 */
export function pruneStep(
  { least, oldest, newest }: LogStanding,
  isBusy: boolean,
): { through: number; moreRemains: boolean } {
  if (least === null || oldest === null || newest === null || oldest > least) {
    return { through: 0, moreRemains: false };
  }
  const hasAll = least >= newest;
  if (hasAll && newest - oldest < CLEARED_IDS_MAX) return { through: newest, moreRemains: false };
  if (isBusy && !hasAll && least - oldest < KEPT_IDS_MAX) return { through: 0, moreRemains: true };
  const through = Math.min(least, oldest + PRUNED_IDS_MAX);
  return { through, moreRemains: through < least };
}

/** Tables, watermarks and marks; every method that writes runs inside the caller's transaction. */
export class Peers {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * Makes the file agree with the configuration: one row per configured peer, found again under another
   * spelling of its address, and none for peers that are gone, so that they no longer hold the log.
   * `normalise` is the configuration's own way of spelling. Returns where shipping goes on, and who is new.
   */
  configure(
    urls: readonly string[],
    normalise: (url: string) => string | undefined,
  ): { starts: PeerStart[]; added: string[] } {
    const rows = this.#db
      .query<StateRow, []>(
        `SELECT peer_url, iif(typeof(last_acked) IN ('integer', 'real'), last_acked, 0) AS last_acked,
           prev, make, node_id, db_id, fill, fill_wanted
         FROM _peer_state`,
      )
      .all();
    const known = new Map<string, StateRow>();
    for (const row of rows) {
      const url = normalise(row.peer_url) ?? row.peer_url;
      const other = known.get(url);
      // Two spellings of one peer: what the further one acknowledged, it has.
      if (!other || (row.last_acked ?? 0) > (other.last_acked ?? 0)) known.set(url, row);
    }
    this.#db.run("DELETE FROM _peer_state");
    const insert = this.#db.query(
      `INSERT INTO _peer_state(peer_url, last_acked, prev, make, node_id, db_id, fill, fill_wanted)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    const starts = urls.map((url): PeerStart => {
      const row = known.get(url);
      const start = {
        url,
        watermark: row?.last_acked ?? 0,
        prev: row?.prev ?? 0,
        dbId: row?.db_id ?? undefined,
      };
      insert.run(
        url,
        start.watermark,
        start.prev,
        row?.make ?? null,
        row?.node_id ?? null,
        row?.db_id ?? null,
        row?.fill ?? null,
        row?.fill_wanted ?? null,
      );
      return start;
    });
    // What a fill had made for a peer that is gone is nobody's, and no watermark would pass it.
    const forget = this.#db.query<{ id: number }, [string]>(
      "DELETE FROM _changes WHERE only_for = ? RETURNING change_id AS id",
    );
    for (const [url, { fill }] of known) {
      if (fill === null || urls.includes(url)) continue;
      noteFillsGone(this.#db, Math.max(0, ...forget.all(url).map(({ id }) => id)));
    }
    const gone = [...known].filter(([url]) => !urls.includes(url));
    for (const [, { db_id, fill, fill_wanted }] of gone) {
      if (db_id !== null && (fill ?? fill_wanted) !== null)
        setSetting(this.#db, `${UNFILLED}${db_id}`, 1);
    }
    return { starts, added: urls.filter((url) => !known.has(url)) };
  }

  /** Whether this file's node was removed before it had everything: then its mark says nothing. */
  isUnfilled(dbId: string): boolean {
    return setting(this.#db, `${UNFILLED}${dbId}`) !== null;
  }

  rows(): PeerRow[] {
    return this.#db
      .query<Omit<PeerRow, "isFilling"> & { isFilling: number }, []>(
        `SELECT peer_url AS url, coalesce(last_acked, 0) AS lastAcked, make, node_id AS nodeId, db_id AS dbId,
           fill_wanted AS fillWanted, fill IS NOT NULL AS isFilling
         FROM _peer_state`,
      )
      .all()
      .map((row) => ({ ...row, isFilling: row.isFilling === 1 }));
  }

  /** Remembers that this peer must be filled, or with null that it need not. */
  wantFill(url: string, reason: string | null): void {
    this.#db.query("UPDATE _peer_state SET fill_wanted = ? WHERE peer_url = ?").run(reason, url);
    const dbId = this.rows().find((peer) => peer.url === url)?.dbId ?? null;
    if (reason === null && dbId !== null) dropSetting(this.#db, `${UNFILLED}${dbId}`);
  }

  /** A watermark never moves back. */
  move(url: string, through: number, ackedBatchId: number | undefined): void {
    this.#db
      .query(
        "UPDATE _peer_state SET last_acked = max(coalesce(last_acked, 0), ?), prev = coalesce(?, prev) WHERE peer_url = ?",
      )
      .run(through, ackedBatchId ?? null, url);
  }

  /**
   * Which file acknowledged what was just noted: where it is another one than before, the one before lacks
   * it, and may be back before anybody asks who is there. The first is remembered, too, lest the next one
   * pass for it.
   */
  ackedBy(url: string, dbId: string): void {
    this.#db
      .query(
        `UPDATE _peer_state SET db_id = ?2, prev = CASE WHEN db_id IS NULL THEN prev ELSE 0 END,
           fill_wanted = CASE WHEN db_id IS NULL THEN fill_wanted ELSE coalesce(fill_wanted, ?3) END
         WHERE peer_url = ?1 AND db_id IS NOT ?2`,
      )
      .run(url, dbId, OTHER_FILE);
  }

  /** Nothing that it acknowledged is relied on any more. */
  startOver(url: string): void {
    this.#db.query("UPDATE _peer_state SET prev = 0 WHERE peer_url = ?").run(url);
  }

  /** What one file acknowledged, another file at its place did not. */
  learn({ url, nodeId, identity }: PeerHealth): void {
    this.#db
      .query(
        `UPDATE _peer_state SET node_id = :nodeId, db_id = :dbId, make = :make,
           prev = CASE WHEN db_id <> :dbId THEN 0 ELSE prev END
         WHERE peer_url = :url`,
      )
      .run({
        nodeId: nodeId ?? null,
        dbId: identity?.db ?? null,
        make: identity ? "ours" : "foreign",
        url,
      });
  }

  /**
   * Deletes of what every peer needs no more as much as `pruneStep` says; without peers nothing. Returns
   * how far, 0 where nothing was deleted, and whether there is more that could be.
   */
  prune(isBusy: boolean): { through: number; moreRemains: boolean } {
    const standing = this.#db
      .query<LogStanding, []>(
        `SELECT (SELECT min(coalesce(last_acked, 0)) FROM _peer_state) AS least,
                (SELECT min(change_id) FROM _changes) AS oldest,
                (SELECT max(change_id) FROM _changes) AS newest`,
      )
      .get()!;
    const { through, moreRemains } = pruneStep(standing, isBusy);
    if (through > 0 && through === standing.newest) this.#db.query("DELETE FROM _changes").run();
    else if (through > 0) {
      this.#db.query("DELETE FROM _changes WHERE change_id <= ?").run(through);
    }
    return { through, moreRemains };
  }

  /** The largest batch id committed from this sender's file, with the hash of its last change. */
  mark(dbId: string): Mark {
    const row = this.#db
      .query<{ batch_id: number; hash: string }, [string]>(
        "SELECT batch_id, hash FROM _hooksync_marks WHERE db = ?",
      )
      .get(dbId);
    return row ? { batchId: row.batch_id, hash: row.hash } : { batchId: 0, hash: "0" };
  }

  /** Never moves back: batches may arrive late and twice. */
  setMark(dbId: string, mark: Mark): void {
    this.#db
      .query(
        `INSERT INTO _hooksync_marks(db, batch_id, hash) VALUES (?, ?, ?)
         ON CONFLICT(db) DO UPDATE SET batch_id = excluded.batch_id, hash = excluded.hash
         WHERE excluded.batch_id >= batch_id`,
      )
      .run(dbId, mark.batchId, mark.hash);
  }

  /**
   * A mark that a later batch did not continue, so that its sender may have been restored. It was told in
   * one reply, which may be lost: it is told until the sender is another file.
   */
  doubt(dbId: string): Mark | undefined {
    const kept = this.#db
      .query<{ value: string }, [string]>("SELECT value FROM _hooksync WHERE key = ?")
      .get(`${DOUBT}${dbId}`);
    return parseMark(kept?.value);
  }

  keepDoubt(dbId: string, mark: Mark): void {
    setSetting(this.#db, `${DOUBT}${dbId}`, formatMark(mark));
  }
}
