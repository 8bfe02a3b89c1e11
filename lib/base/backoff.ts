/**
 * How long to wait before the next attempt. Pure: the caller counts and brings the chance.
 *
 * The first pauses are part of the contract (PROTOCOL.md, the failure table) and therefore exact.
 * The ones after them grow up to a ceiling and are jittered downwards, so that many nodes that lost
 * the same peer do not come back to it in step, and no pause is ever longer than its ceiling.
 */
import { assert } from "./assert.ts";
import type { Random } from "./random.ts";

/** Attempts before a refusal or a wrong acknowledgement is taken at its word. */
export const ATTEMPTS_MAX = 5;

/** Pause after the first, second, … failure in a row. */
const QUICK_PAUSES_MS = [50, 100, 200, 400, 800] as const;

/** The longest that a peer which came back stays unnoticed while something waits for it. */
export const RETRY_PAUSE_MS_MAX = 4_000;

/** Where waiting for a person is all that helps: soon enough after a typo, rare enough for a week. */
const SLOW_PAUSE_MS_FIRST = 5_000;
/** The longest pause before a peer that refuses everything, or lets nobody in, is tried again. */
export const SLOW_PAUSE_MS_MAX = 60_000;

/** The share of a grown pause that is left to chance. */
const JITTER = 0.2;

/** The pause after `failures` failures in a row, counted from 1. */
export function retryPauseMs(failures: number, random: Random): number {
  assert(failures >= 1, "a pause follows a failure");
  const quick = QUICK_PAUSES_MS[failures - 1];
  if (quick !== undefined) return quick;
  const doublings = failures - QUICK_PAUSES_MS.length;
  return jittered(doubled(QUICK_PAUSES_MS[4], doublings, RETRY_PAUSE_MS_MAX), random);
}

/** The pause before looking again at something that only a person can put right; `rounds` from 1. */
export function slowPauseMs(rounds: number, random: Random): number {
  assert(rounds >= 1, "a pause follows a round");
  return jittered(doubled(SLOW_PAUSE_MS_FIRST, rounds - 1, SLOW_PAUSE_MS_MAX), random);
}

function doubled(firstMs: number, doublings: number, ceilingMs: number): number {
  return Math.min(firstMs * 2 ** doublings, ceilingMs);
}

function jittered(pauseMs: number, random: Random): number {
  return Math.round(pauseMs * (1 - JITTER * random.next()));
}
