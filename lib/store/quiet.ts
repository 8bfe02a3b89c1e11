/**
 * Whether it is over: when repeats to foreign peers may end, and when everyone has everything, so that old
 * deletes may be forgotten. Pure; what peers say of themselves comes from their /health.
 *
 * A relay hub never says what waits behind it. Without a rule for that, repeats behind one would go on
 * for ever, and no delete would ever be forgotten.
 */
import type { PeerHealth } from "../protocol/peer.ts";

/** What a peer said of itself, and when (wall clock, ms). */
export interface HeardHealth {
  readonly health: PeerHealth;
  readonly atMs: number;
  /** What was settled here before this moment the peer had acknowledged by then; see Acknowledged. */
  readonly ackedMs: number | undefined;
}

interface Mark {
  readonly atMs: number;
  readonly through: number;
}

/** A peer that is far behind for long needs no finer steps. */
const MARKS_MAX = 32;

/**
 * How far back, in time, a peer has what was written here. A change that is not acknowledged may be sent
 * again, and reach a peer that forgets deletes after its users' delete of that very row: that nothing waits
 * at the peer says nothing of such a row yet.
 */
export class Acknowledged {
  #marks: Mark[] = [];

  /** To be asked each time the peer is heard; `peer` is what shipping last said of it. */
  heard(
    peer: { readonly lastAcked: number; readonly pending: number } | undefined,
    settledThrough: number,
    nowMs: number,
  ): number | undefined {
    if (peer === undefined) return undefined;
    const marks = this.#marks;
    // Our clock was set back: what was noted by the other time tells nothing.
    if ((marks.at(-1)?.atMs ?? nowMs) > nowMs) marks.length = 0;
    const place = marks.findLastIndex(
      ({ through }) => peer.pending === 0 || through <= peer.lastAcked,
    );
    if (place > 0) marks.splice(0, place);
    const acked = place < 0 ? undefined : marks[0]!.atMs;
    marks.push({ atMs: nowMs, through: settledThrough });
    if (marks.length > MARKS_MAX) marks.splice(1, 1);
    return settledThrough <= peer.lastAcked ? nowMs : acked;
  }
}

/** Behind a hub a day of repeats must do: after it, what was on its way has arrived. */
const HUB_QUIET_MS = 24 * 3_600_000;
/** Older than this it says nothing of now: the peer may be away, with changes that it could not send. */
const HEALTH_MS_MAX = 120_000;

/**
 * Rows contested before the returned moment need no more repeats; undefined while a foreign peer has
 * changes left to send, or may get old ones of ours. Without any (one was heard of, but none is configured) it is as behind a hub.
 */
export function repeatsEndBefore(heard: Iterable<HeardHealth>, nowMs: number): number | undefined {
  const foreign = [...heard].filter(({ health }) => health.identity === undefined);
  if (!foreign.every(({ health }) => health.hub || health.pendingChanges === 0)) return undefined;
  const ackedMs = foreign.map((peer) => peer.ackedMs);
  if (!ackedMs.every((ms) => ms !== undefined)) return undefined;
  const quietMs = Math.min(nowMs, ...ackedMs);
  const canBeKnown = foreign.length > 0 && foreign.every(({ health }) => !health.hub);
  return canBeKnown ? quietMs : quietMs - HUB_QUIET_MS;
}

/**
 * Whether every configured peer has acknowledged all we have and has nothing left for us, as far as it
 * can say. `restOf`: by db id, what a sender of ours last said that it still has for us.
 */
export function isEveryoneCaughtUp(
  peers: readonly { readonly url: string; readonly pending: number }[],
  heard: ReadonlyMap<string, HeardHealth>,
  restOf: ReadonlyMap<string, number>,
  nowMs: number,
): boolean {
  return peers.every(({ url, pending }) => {
    const last = heard.get(url);
    if (pending > 0 || last === undefined) return false;
    if (Math.abs(nowMs - last.atMs) > HEALTH_MS_MAX) return false;
    const { hub, identity, pendingChanges } = last.health;
    return hub || pendingChanges === 0 || (identity && restOf.get(identity.db)) === 0;
  });
}
