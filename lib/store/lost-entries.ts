/**
 * What somebody took out of our tables. A log that was emptied (DL29): entries that a peer still lacked
 * are gone, though this node did not delete them, and no watermark shows it. Such a peer is filled. A
 * table that was dropped is made anew (migrations.ts), and said with what it held.
 *
 * Invariant: where no entry up to `settled_through` is left by our own doing, `emptied_through` or
 * `pruned_through` says so, in the transaction that took the last one.
 */
import type { Database } from "bun:sqlite";
import { setSetting, setting } from "./migrations.ts";
import type { SettleEvent } from "./schema-watch.ts";

function isAnyLeft(db: Database, settledThrough: number): boolean {
  const find = db.query("SELECT 1 FROM _changes WHERE change_id <= ? LIMIT 1");
  return find.get(settledThrough) !== null;
}

/** Up to here entries have left the log, by our own doing or, as far as we know, by another's. */
export function knownEmptied(db: Database): number {
  const emptied = Number(setting(db, "emptied_through") ?? 0);
  return Math.max(emptied, Number(setting(db, "pruned_through") ?? 0));
}

/** After entries were deleted by us, inside the transaction. */
export function noteEmptied(db: Database, settledThrough: number): void {
  if (isAnyLeft(db, settledThrough) || knownEmptied(db) >= settledThrough) return;
  setSetting(db, "emptied_through", settledThrough);
}

/**
 * Before what others wrote is settled: wants a fill for every peer that has not had all up to here,
 * where the log has nothing left of it. Returns their addresses.
 */
export function noticeEmptied(db: Database, settledThrough: number): string[] {
  if (isAnyLeft(db, settledThrough) || knownEmptied(db) >= settledThrough) return [];
  setSetting(db, "emptied_through", settledThrough);
  return db
    .query<{ url: string }, [string, number]>(
      "UPDATE _peer_state SET fill_wanted = ? WHERE coalesce(last_acked, 0) < ? RETURNING peer_url AS url",
    )
    .all("the log was emptied before it had everything", settledThrough)
    .map(({ url }) => url);
}

const HELD: Readonly<Record<string, string>> = {
  _changes: "peers that had not got all of it are sent everything",
  _dead_letter: "the changes set aside in it are gone",
  _peer_state: "what peers acknowledged is not known any more, and is sent again",
  _hooksync_tombstones: "rows deleted before may come back from peers that were away",
  _hooksync_columns: "columns that only some nodes have are as old as their rows",
};

/** What the operator is told of a table of ours that was made anew. */
export function tableRestored(name: string): SettleEvent {
  const held = HELD[name] ?? "nothing of the data is lost";
  return {
    kind: "table-restored",
    table: name,
    text: `another program dropped it, it is made anew; ${held}`,
    isDoubtful: true,
  };
}
