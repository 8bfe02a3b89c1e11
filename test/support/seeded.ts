/**
 * Chance that can be replayed. A random test runs over a few seeds, always the same ones, so that a red
 * run stays red; `SEED=123 bun test …` replays one, `SEEDS=5000` searches longer.
 */
import type { Random } from "../../lib/base/random.ts";

export class Seeded implements Random {
  #state: number;
  #uuids = 0;

  constructor(seed: number) {
    this.#state = (seed ^ 0x9e3779b9) >>> 0;
  }

  /** mulberry32 */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  }

  /** At least 0, below `limit`. */
  below(limit: number): number {
    return Math.floor(this.next() * limit);
  }

  chance(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(from: readonly T[]): T {
    return from[this.below(from.length)]!;
  }

  shuffled<T>(from: readonly T[]): T[] {
    const result = [...from];
    for (let i = result.length - 1; i > 0; i--) {
      const j = this.below(i + 1);
      [result[i], result[j]] = [result[j]!, result[i]!];
    }
    return result;
  }

  uuid(): string {
    this.#uuids++;
    return `00000000-0000-7000-8000-${this.#uuids.toString(16).padStart(12, "0")}`;
  }

  hex(bytes: number): string {
    return Array.from({ length: bytes }, () => this.below(256).toString(16).padStart(2, "0")).join(
      "",
    );
  }
}

/** 1 to `count`, unless SEEDS says up to where, FROM from where, or SEED which one. */
export function seedsAsked(count: number): number[] {
  const { SEED: one, SEEDS: last = count, FROM: from = 1 } = Bun.env;
  if (one) return [Number(one)];
  return Array.from({ length: Number(last) - Number(from) + 1 }, (_, i) => Number(from) + i);
}

/** Runs `check` for the seeds that are asked for; a failure names its seed. */
export async function forSeeds(
  count: number,
  check: (random: Seeded, seed: number) => void | Promise<void>,
): Promise<void> {
  for (const seed of seedsAsked(count)) {
    try {
      await check(new Seeded(seed), seed);
    } catch (error) {
      if (error instanceof Error) error.message = `[replay with SEED=${seed}] ${error.message}`;
      throw error;
    }
  }
}

/** Every order of `items`. */
export function permutations<T>(items: readonly T[]): T[][] {
  if (items.length < 2) return [[...items]];
  return items.flatMap((item, i) =>
    permutations([...items.slice(0, i), ...items.slice(i + 1)]).map((rest) => [item, ...rest]),
  );
}
