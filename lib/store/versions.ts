/**
 * The version a local change gets, decided from what the triggers recorded (DESIGN.md, "Versions").
 * Other programs write with whatever stamps they like; peers take a change only when its version is
 * above what it replaced. Pure: settle-rows.ts carries out the verdict.
 *
 * Invariants:
 *   V1  the version of a row that is there is above everything it replaced in this pass, above its
 *       tombstone, and no more than an hour ahead, unless what it replaced was.
 *   V2  a delete has the version of the row it removed, never less than what stood there before.
 */
import { VERSION_AHEAD_MS_MAX, VERSION_MAX } from "../protocol/limits.ts";

/** A stored stamp: an integer, or anything else (NULL, text, REAL), which loses against every integer. */
export type Stamp = number | "odd";

/**
 * One entry of the log, or a note of a row that REPLACE may have thrown out, in the order of the log.
 * `was` is the version replaced, `wrote` the one that then stood there.
 */
export type Trace =
  | { readonly kind: "insert"; readonly wrote: number }
  | { readonly kind: "update"; readonly was: number; readonly wrote: number }
  | { readonly kind: "delete"; readonly was: number }
  | { readonly kind: "note"; readonly was: number };

export type LiftVerdict =
  /** The row is there and its stamp is fine. */
  | { readonly kind: "keep"; readonly isNew: boolean }
  /** The row is there and gets this version. */
  | { readonly kind: "lift"; readonly version: number; readonly isNew: boolean }
  /** The row is gone: one DELETE at this version. */
  | { readonly kind: "gone"; readonly version: number };

export interface RowHistory {
  /** Everything recorded of this row since the log was last settled, at least one. */
  readonly traces: readonly Trace[];
  /** The stamp of the row as it stands, or undefined when it is not there. */
  readonly stored: Stamp | undefined;
  readonly tombstone: number | undefined;
}

/**
 * A value of the version column as a stamp. From 2^53 on it is odd: no node takes such a version, and
 * there would be no room above it.
 */
export function stampOf(value: number | null, kind: string): Stamp {
  const isStamp = kind === "integer" && value !== null && Math.abs(value) < VERSION_MAX;
  return isStamp ? value : "odd";
}

/** What a stamp counts as: an odd one is version 0, as peers read it. */
export function versionOf(stamp: Stamp): number {
  return stamp === "odd" ? 0 : stamp;
}

export function judgeVersion(history: RowHistory, nowMs: number): LiftVerdict {
  const { traces, stored, tombstone } = history;
  const aheadMs = nowMs + VERSION_AHEAD_MS_MAX;
  const base = baseVersion(traces);
  if (stored === undefined) {
    return {
      kind: "gone",
      version: Math.max(base ?? 0, tombstone ?? 0, lastStamp(traces, aheadMs)),
    };
  }
  const isNew = base === undefined;
  let floor = Math.max(base ?? -Infinity, tombstone ?? -Infinity);
  for (const trace of traces) {
    if (trace.kind !== "insert" && trace.was <= aheadMs) floor = Math.max(floor, trace.was);
  }
  if (stored !== "odd" && stored > floor && stored <= aheadMs) return { kind: "keep", isNew };
  return { kind: "lift", version: Math.max(nowMs, floor + 1), isNew };
}

/**
 * The version that stood there before: what the first trace, in the order of the log, replaced that
 * no entry of this pass wrote itself. (A trigger's own UPDATE may be logged before the statement that
 * fired it.) Undefined where nothing was replaced.
 */
function baseVersion(traces: readonly Trace[]): number | undefined {
  const written = new Set(traces.flatMap((trace) => ("wrote" in trace ? [trace.wrote] : [])));
  const first =
    traces.find((trace) => trace.kind === "insert" || !written.has(trace.was)) ?? traces[0];
  return first === undefined || first.kind === "insert" ? undefined : first.was;
}

/** The stamp the row had when it went; 0 where that was far ahead. */
function lastStamp(traces: readonly Trace[], aheadMs: number): number {
  const last = traces.at(-1);
  if (last === undefined) return 0;
  const stamp = "wrote" in last ? last.wrote : last.was;
  return stamp > aheadMs ? 0 : stamp;
}
