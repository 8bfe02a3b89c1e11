/**
 * Noticing that somebody emptied the log (DL29): entries that a peer still lacked are gone, though this
 * node did not delete them, and no watermark shows it. Such a peer is filled.
 *
 * Invariant: where no entry up to `settled_through` is left by our own doing, `emptied_through` or
 * `pruned_through` says so, in the transaction that took the last one.
 */
import type { Database } from "bun:sqlite";
import { setSetting, setting } from "./migrations.ts";

function isAnyLeft(db: Database, settledThrough: number): boolean {
  const find = db.query("SELECT 1 FROM _changes WHERE change_id <= ? LIMIT 1");
  return find.get(settledThrough) !== null;
}

function knownEmptied(db: Database): number {
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
