/**
 * What a bench is, and how it compares: every result is a ratio measured in one run, the median of
 * rounds in which the contenders take turns. A shared machine changes its speed from one second to
 * the next; numbers of different runs say nothing about each other.
 */

export interface Bench {
  /** Runs only when it is named: it takes many minutes. */
  readonly isOptIn?: boolean;
  run(context: BenchContext): Promise<Result[]>;
}

export interface BenchContext {
  /** An empty folder of this bench's own. */
  readonly dir: string;
  readonly rounds: number;
  /** `usual`, or `short` where the run was asked to be quick. */
  size(usual: number, short: number): number;
  /** A line for the person who waits. */
  say(text: string): void;
}

/** What the ratio must be; undefined: only reported. */
export type Target = { readonly atLeast: number } | { readonly atMost: number };

export interface Result {
  readonly what: string;
  /** What was measured, in its own units. */
  readonly numbers: string;
  readonly ratio: number;
  readonly target?: Target;
}

/** Enough that one disturbed round does not decide. */
export const ROUNDS = 5;

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Each contender once per round, every round beginning with another one. */
export async function interleave<Results extends Record<string, unknown>>(
  context: BenchContext,
  contenders: { readonly [Name in keyof Results]: (round: number) => Promise<Results[Name]> },
): Promise<{ [Name in keyof Results]: Results[Name][] }> {
  const names = Object.keys(contenders) as (keyof Results)[];
  const results = Object.fromEntries(names.map((name) => [name, []])) as unknown as {
    [Name in keyof Results]: Results[Name][];
  };
  for (let round = 0; round < context.rounds; round++) {
    context.say(`round ${round + 1} of ${context.rounds}`);
    for (let i = 0; i < names.length; i++) {
      const name = names[(i + round) % names.length]!;
      results[name].push(await contenders[name](round));
    }
  }
  return results;
}

/** The median of the ratios of rounds: what slowed a whole round down does not count. */
export function ratioOf(ours: readonly number[], theirs: readonly number[]): number {
  return median(ours.map((value, round) => value / theirs[round]!));
}

/** `ours` against `theirs`, both lists by round. */
export function compare(options: {
  readonly what: string;
  readonly ours: readonly number[];
  readonly theirs: readonly number[];
  readonly unit: string;
  readonly target?: Target;
}): Result {
  const { what, ours, theirs, unit, target } = options;
  return {
    what,
    numbers: `${show(median(ours))} against ${show(median(theirs))} ${unit}`,
    ratio: ratioOf(ours, theirs),
    ...(target === undefined ? {} : { target }),
  };
}

/** A measured value against a limit that stands by itself: the ratio must not be above 1. */
export function within(options: {
  readonly what: string;
  readonly measured: number;
  readonly limit: number;
  readonly unit: string;
  readonly more?: string;
}): Result {
  const { what, measured, limit, unit, more } = options;
  const numbers = `${show(measured)} of ${show(limit)} ${unit}${more === undefined ? "" : `; ${more}`}`;
  return { what, numbers, ratio: measured / limit, target: { atMost: 1 } };
}

/** Three digits are all that such measurements carry. */
export function show(value: number): string {
  if (value >= 1_000_000) return `${(value / 1_000_000).toPrecision(3)} M`;
  if (value >= 10_000) return `${Math.round(value / 1_000)} k`;
  if (value >= 1_000) return `${(value / 1_000).toPrecision(2)} k`;
  if (value >= 100) return String(Math.round(value));
  return value.toPrecision(value < 10 ? 2 : 3);
}

export function meets(result: Result): boolean | undefined {
  const { target, ratio } = result;
  if (target === undefined) return undefined;
  return "atLeast" in target ? ratio >= target.atLeast : ratio <= target.atMost;
}
