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

/** `isNew`: nothing stood there before, as far as the log tells. */
export type LiftVerdict =
  /** The row is there and its stamp is fine. */
  | { readonly kind: "keep"; readonly isNew: boolean }
  /** The row is there and gets this version. */
  | { readonly kind: "lift"; readonly version: number; readonly isNew: boolean }
  /** The row is gone: one DELETE at this version. */
  | { readonly kind: "gone"; readonly version: number };

/** One row, with everything that decides its version. */
export interface RowHistory {
  /** Everything recorded of this row since the log was last settled, at least one. */
  readonly traces: readonly Trace[];
  /** The stamp of the row as it stands, or undefined when it is not there. */
  readonly stored: Stamp | undefined;
  readonly tombstone: number | undefined;
}

/** As low as other nodes take a version; as high as there is room above it. */
const STAMP_LEAST = -VERSION_MAX;
const STAMP_MOST = VERSION_MAX - 1;

/** A value of the version column as a stamp. Beyond 2^53 it is odd: no node takes such a version. */
export function stampOf(value: number | null, kind: string): Stamp {
  const isStamp =
    kind === "integer" && value !== null && value >= STAMP_LEAST && value <= STAMP_MOST;
  return isStamp ? value : "odd";
}

/** The same as a condition in SQL over a version column: whether it holds an odd stamp. */
export function isOddSql(stamp: string): string {
  return `(typeof(${stamp}) <> 'integer' OR ${stamp} NOT BETWEEN ${STAMP_LEAST} AND ${STAMP_MOST})`;
}

/** What a stamp counts as: an odd one is version 0, as peers read it. */
export function versionOf(stamp: Stamp): number {
  return stamp === "odd" ? 0 : stamp;
}

/** A lifted version is `nowMs`, or one above what it replaced where that is higher. */
export function judgeVersion(history: RowHistory, nowMs: number): LiftVerdict {
  const { traces, stored, tombstone } = history;
  const aheadMs = nowMs + VERSION_AHEAD_MS_MAX;
  const base = baseVersion(traces, stored);
  let floor = Math.max(base ?? -Infinity, tombstone ?? -Infinity);
  for (const trace of traces) {
    if (trace.kind !== "insert" && trace.was <= aheadMs) floor = Math.max(floor, trace.was);
  }
  if (stored === undefined) {
    return { kind: "gone", version: Math.max(0, floor, lastStamp(traces, aheadMs)) };
  }
  const isNew = base === undefined;
  if (stored !== "odd" && stored > floor && stored <= aheadMs) return { kind: "keep", isNew };
  return { kind: "lift", version: Math.max(nowMs, floor + 1), isNew };
}

/**
 * The version that stood there before this pass; undefined where no row did. A stamp far ahead has to
 * be gone beyond if it is this one, and must not be if it was only written in between. The order of
 * the log does not tell: a trigger's own UPDATE may be logged before the statement that fired it.
 * But each write takes up what another left, so what was taken up and never left was there before.
 */
function baseVersion(traces: readonly Trace[], stored: Stamp | undefined): number | undefined {
  const [first] = traces;
  // Noted before anything was logged of it: it was there, whatever was written after.
  if (first?.kind === "note") return first.was;
  const entries = traces.filter((trace) => trace.kind !== "note");
  const left = new Map<number | undefined, number>();
  for (const entry of entries) {
    const wrote = entry.kind === "delete" ? undefined : entry.wrote;
    left.set(wrote, (left.get(wrote) ?? 0) + 1);
  }
  const taken = entries.map((entry) => (entry.kind === "insert" ? undefined : entry.was));
  const unmatched = taken.filter((was) => {
    const count = left.get(was) ?? 0;
    left.set(was, count - 1);
    return count <= 0;
  });
  // What REPLACE threw out in between left nothing: a version that was there beats none.
  if (unmatched.length > 0) return unmatched.find((was) => was !== undefined) ?? unreached(entries);
  // It ended where it began.
  if (stored !== undefined) return versionOf(stored);
  return taken.includes(undefined) ? undefined : taken[0];
}

/**
 * A version that was taken up, and that no write leads to from where there was no row: it was there before,
 * also if it was left again, as by an UPDATE that does not touch it.
 */
function unreached(entries: readonly Exclude<Trace, { kind: "note" }>[]): number | undefined {
  const steps = entries.map((entry) => ({
    from: entry.kind === "insert" ? undefined : entry.was,
    to: entry.kind === "delete" ? undefined : entry.wrote,
  }));
  const reached = new Set<number | undefined>([undefined]);
  for (let size = 0; size < reached.size; ) {
    size = reached.size;
    for (const { from, to } of steps) if (reached.has(from)) reached.add(to);
  }
  return steps.find(({ from }) => !reached.has(from))?.from;
}

/** The stamp the row had when it went; 0 where that was far ahead. */
function lastStamp(traces: readonly Trace[], aheadMs: number): number {
  const last = traces.at(-1);
  if (last === undefined) return 0;
  const stamp = "wrote" in last ? last.wrote : last.was;
  return stamp > aheadMs ? 0 : stamp;
}
