/** What the parts of applying share: who sent a change, how it can end, and what they work with. */
import type { Database } from "bun:sqlite";
import type { Survey } from "./catalog.ts";
import type { ChangeLog } from "./change-log.ts";
import type { ColumnNotes } from "./column-notes.ts";
import type { DeadLetters } from "./dead-letters.ts";
import type { Healing, Origin } from "./healing.ts";
import type { ParkCode } from "./read-change.ts";
import type { SyncedTable } from "./schema.ts";
import type { Superseded } from "./superseded.ts";
import type { TableWriter } from "./table-writer.ts";
import type { Tombstones } from "./tombstones.ts";
import type { TriggerPause } from "./trigger-pause.ts";

/** Who sent a batch. */
export interface Sender {
  /** X-Node-Id, or the address. For people and for parking. */
  readonly name: string;
  readonly isOurs: boolean;
  /** Per change, by its place in the batch: through a hub each is an origin of its own. */
  readonly originOf: (index: number) => Origin;
  /** Changes that a later one of the same batch replaced at the same version. */
  readonly superseded: Superseded;
}

/** How a change ends. */
export type Outcome = "applied" | "stale" | "parked" | "left-out";

/** A change that cannot be written now, and when to try again. */
export interface Failure {
  readonly code: ParkCode;
  readonly reason: string;
}

/** Counts of one transaction. `applied` is that of PROTOCOL.md: exact repeats count. */
export interface ApplyTally {
  applied: number;
  parked: number;
  leftOut: number;
  /** Entries of the log made besides: answers to foreign peers, deletes put behind. */
  logged: number;
}

/** A new one each time: those who apply add to it in place. */
export function emptyTally(): ApplyTally {
  return { applied: 0, parked: 0, leftOut: 0, logged: 0 };
}

/**
 * Changes that took the whole transaction with them (a user's RAISE(ROLLBACK)), with the reason. The
 * work is run again without them.
 */
export class Guilty {
  /** By place in the batch. */
  readonly changes = new Map<number, string>();
  /** Parked ones that were tried again, by dead_id. */
  readonly retries = new Map<number, string>();

  get size(): number {
    return this.changes.size + this.retries.size;
  }
}

/** Runs `work`, and again as long as it names a guilty change more each time it fails. */
export async function runWithout<T>(guilty: Guilty, work: () => Promise<T>): Promise<T> {
  for (;;) {
    const known = guilty.size;
    try {
      return await work();
    } catch (error) {
      if (guilty.size === known) throw error;
    }
  }
}

/** Something that happened to one change and is worth a line in the log. */
export interface ApplyEvent {
  readonly kind: "parked" | "left-out" | "trigger";
  readonly peer: string;
  readonly table: string;
  readonly reason: string;
}

/** All over the one writing connection; the Applier wires them and owns none but the writers. */
export interface ApplyParts {
  readonly db: Database;
  readonly survey: () => Survey;
  readonly writerFor: (table: SyncedTable) => TableWriter;
  readonly tombstones: Tombstones;
  readonly columnNotes: ColumnNotes;
  readonly deadLetters: DeadLetters;
  readonly healing: Healing;
  readonly log: ChangeLog;
  readonly pause: TriggerPause;
  readonly onEvent: (event: ApplyEvent) => void;
}
