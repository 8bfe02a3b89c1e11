/**
 * Takes a file out of syncing: capture triggers and our tables go, data and everything of the
 * application's stays as it is. What has not been sent, or could not be applied, would be lost with
 * them, so that is counted first, in the same transaction.
 */
import type { Database } from "bun:sqlite";
import { capturedTables, removeTriggers } from "./catalog.ts";
import { removeCdc } from "./cdc-names.ts";
import { dropOwnTables, ownTableNames, refuseOtherShapes } from "./migrations.ts";
import { lockFile, openDatabase, openError, resolvePath } from "./open.ts";
import { existingFile } from "./read-unchanged.ts";
import { nameKey, tokenize } from "./sql.ts";

/** What detaching would destroy for good. */
export interface Losses {
  /** Logged changes that a peer lacks; without peers, all that are logged. */
  readonly unsent: number;
  /** Those of them that each peer lacks. */
  readonly peers: readonly { readonly url: string; readonly unsent: number }[];
  /** Received changes that could not be applied here. */
  readonly parked: number;
  /** Changes of ours that a peer refused. */
  readonly refused: number;
}

/** A table of ours that stays, since something of the application would fail without it. */
export interface Kept {
  readonly table: string;
  /** The application's trigger or view that reads it. */
  readonly reader: string;
}

/** How it ended; a file that cannot be used at all throws instead. */
export type DetachOutcome =
  /** No node ever used it: nothing was changed. */
  | { readonly kind: "nothing-there" }
  /** Something would be lost and `isForced` is false: nothing was changed. */
  | { readonly kind: "refused"; readonly losses: Losses }
  | {
      readonly kind: "detached";
      readonly losses: Losses;
      readonly tables: readonly string[];
      readonly kept: readonly Kept[];
    };

/** Throws HookSyncError where a node uses the file, or it cannot be used at all. */
export function detach(path: string, isForced: boolean): DetachOutcome {
  const real = resolvePath(existingFile(path));
  const lock = lockFile(real);
  try {
    const db = openDatabase({ path: real, synchronous: "full" });
    try {
      db.run("BEGIN IMMEDIATE");
      const outcome = takeOut(db, isForced);
      db.run("COMMIT");
      return outcome;
    } catch (error) {
      if (db.inTransaction) db.run("ROLLBACK");
      throw openError(path, error);
    } finally {
      db.close(true);
    }
  } finally {
    lock.release();
  }
}

function takeOut(db: Database, isForced: boolean): DetachOutcome {
  refuseOtherShapes(db);
  const own = ownTableNames(db);
  const captured = [...capturedTables(db)];
  if (own.length === 0 && captured.length === 0) return { kind: "nothing-there" };
  const losses = countLosses(db, new Set(own));
  const isLossy = losses.unsent + losses.parked + losses.refused > 0;
  if (isLossy && !isForced) return { kind: "refused", losses };
  removeTriggers(db);
  removeCdc(db);
  const kept = findReaders(db, own);
  dropOwnTables(db, new Set(kept.map(({ table }) => table)));
  return { kind: "detached", losses, tables: captured, kept };
}

function countLosses(db: Database, own: ReadonlySet<string>): Losses {
  const count = (sql: string) => db.prepare<{ n: number }, []>(sql).get()!.n;
  const peers =
    own.has("_peer_state") && own.has("_changes")
      ? db
          .prepare<{ url: string; unsent: number }, []>(
            `SELECT peer_url AS url,
                    (SELECT count(*) FROM _changes WHERE change_id > coalesce(last_acked, 0)) AS unsent
             FROM _peer_state ORDER BY peer_url`,
          )
          .all()
      : [];
  const logged = own.has("_changes") ? count("SELECT count(*) AS n FROM _changes") : 0;
  const dead = own.has("_dead_letter") ? count("SELECT count(*) AS n FROM _dead_letter") : 0;
  // Letters of older nodes say no direction: those nodes kept only what a peer had refused.
  const isDirected =
    dead > 0 &&
    count("SELECT count(*) AS n FROM pragma_table_info('_dead_letter') WHERE name = 'direction'") >
      0;
  const parked = isDirected
    ? count("SELECT count(*) AS n FROM _dead_letter WHERE direction = 'received'")
    : 0;
  return {
    unsent: peers.length === 0 ? logged : Math.max(...peers.map(({ unsent }) => unsent)),
    peers,
    parked,
    refused: dead - parked,
  };
}

/**
 * A trigger of the application that was guarded by the syncing flag reads `_meta`: without that table
 * every write it belongs to would fail.
 */
function findReaders(db: Database, own: readonly string[]): Kept[] {
  const readers = db
    .prepare<{ type: string; name: string; sql: string }, []>(
      "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view') ORDER BY name",
    )
    .all();
  return own.flatMap((table) => {
    const reader = readers.find(({ sql }) =>
      tokenize(sql).some((token) => nameKey(token.value) === nameKey(table)),
    );
    return reader ? [{ table, reader: `${reader.type} ${reader.name}` }] : [];
  });
}
