/**
 * A file at rest into a follower: one that Turso has closed (it locks its file against others while it
 * is open; the newest part lies in -wal beside it), or a plain SQLite file with a log. Reads what is
 * there and ends.
 */
import { Database } from "bun:sqlite";
import { readCopy } from "./copy.ts";
import { CdcError } from "./error.ts";
import type { FollowTarget } from "./stream.ts";
import { CdcTailer } from "./tailer.ts";

/** What `followClosedFile` came to. */
export interface ClosedFileOutcome {
  readonly transactions: number;
  /** Why everything was copied, or undefined where the log was enough. */
  readonly copied: string | undefined;
}

/** Brings the follower to the end of the file's log, by a copy where the log is not enough. */
export async function followClosedFile(
  path: string,
  replica: FollowTarget,
  nowMs: number,
): Promise<ClosedFileOutcome> {
  const db = new Database(path, { readonly: true });
  try {
    const after = replica.watermark();
    if (after === null) return await copy(db, replica, nowMs, "it had no copy");
    const tailer = new CdcTailer(db, after);
    let transactions = 0;
    try {
      for (let batch = await tailer.pollBatch(); batch !== null; batch = await tailer.pollBatch()) {
        if ((await replica.apply(batch)) === "applied") transactions++;
        batch.close();
      }
      if (!tailer.isHoldingBack) return { transactions, copied: undefined };
      // Nobody writes it any more: the rest has no end in the log, or is not in it (then this throws).
      return await copy(db, replica, nowMs, "its log does not end with all that is there");
    } catch (error) {
      if (!(error instanceof CdcError && error.needsCopy)) throw error;
      return await copy(db, replica, nowMs, error.message);
    } finally {
      tailer.close();
    }
  } finally {
    db.close();
  }
}

async function copy(
  db: Database,
  replica: FollowTarget,
  nowMs: number,
  copied: string,
): Promise<ClosedFileOutcome> {
  const batch = await readCopy(db, nowMs);
  try {
    await replica.apply(batch);
  } finally {
    batch.close();
  }
  return { transactions: 0, copied };
}
