/**
 * The version a local change gets, decided from what the triggers recorded (DESIGN.md, "Versions").
 * Other programs write with whatever stamps they like; peers take a change only when its version is
 * above what it replaced. Pure: settle.ts carries out the verdict.
 */
import { VERSION_AHEAD_MS_MAX } from "../protocol/limits.ts";

/** A stored stamp: an integer, or anything else (NULL, text, REAL), which loses against every integer. */
export type Stamp = number | "odd";

/** One entry of the log, or a note of a row that REPLACE may have thrown out, in the order of the log. */
export type Trace =
  | { readonly kind: "insert"; readonly wrote: Stamp }
  | { readonly kind: "update"; readonly was: Stamp; readonly wrote: Stamp }
  | { readonly kind: "delete"; readonly was: Stamp }
  | { readonly kind: "note"; readonly was: Stamp };

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

export function judgeVersion(history: RowHistory, nowMs: number): LiftVerdict {
  const { stored, tombstone } = history;
  const aheadMs = nowMs + VERSION_AHEAD_MS_MAX;
  const base = baseVersion(history.traces);
  if (stored === undefined) {
    return {
      kind: "gone",
      version: Math.max(base ?? 0, tombstone ?? 0, lastSaneStamp(history.traces, aheadMs)),
    };
  }
  const isNew = base === undefined;
  const floor = Math.max(
    base ?? -Infinity,
    tombstone ?? -Infinity,
    ...replacedStamps(history.traces, aheadMs),
  );
  if (stored !== "odd" && stored > floor && stored <= aheadMs) return { kind: "keep", isNew };
  return { kind: "lift", version: Math.max(nowMs, (base ?? 0) + 1, (tombstone ?? 0) + 1), isNew };
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
  if (first === undefined || first.kind === "insert") return undefined;
  return first.was === "odd" ? 0 : first.was;
}

/** Stamps that entries of this pass replaced, those of a clock far ahead left out. */
function replacedStamps(traces: readonly Trace[], aheadMs: number): number[] {
  return traces.flatMap((trace) =>
    trace.kind !== "insert" && trace.was !== "odd" && trace.was <= aheadMs ? [trace.was] : [],
  );
}

function lastSaneStamp(traces: readonly Trace[], aheadMs: number): number {
  const last = traces.findLast(
    (trace): trace is Trace & { kind: "delete" | "note" } =>
      trace.kind === "delete" || trace.kind === "note",
  );
  if (last === undefined || last.was === "odd" || last.was > aheadMs) return 0;
  return last.was;
}
