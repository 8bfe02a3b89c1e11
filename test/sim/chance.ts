/**
 * All chance of one seed. Every part of a simulation draws from a stream of its own, so that one part
 * drawing more often does not change what the others see: a failing seed keeps failing in the same
 * way while the code under test is being mended.
 */
import type { Random } from "../../lib/base/random.ts";

/** A stream of chance; the same seed gives the same stream. */
export class Chance implements Random {
  #a: number;
  #b: number;
  #c: number;
  #counter = 1;
  #uuids = 0;

  constructor(seed: number, stream = 0) {
    this.#a = seed >>> 0;
    this.#b = Math.floor(seed / 2 ** 32) >>> 0;
    this.#c = stream >>> 0;
    // The first values of near seeds are alike.
    for (let i = 0; i < 12; i++) this.#bits();
  }

  /** sfc32: passes the usual test batteries, and is four additions and a shift. */
  #bits(): number {
    const sum = (this.#a + this.#b + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = ((this.#c << 21) | (this.#c >>> 11)) + sum;
    return sum >>> 0;
  }

  next(): number {
    return this.#bits() / 2 ** 32;
  }

  hex(bytes: number): string {
    let text = "";
    for (let i = 0; i < bytes; i++) text += (this.#bits() & 255).toString(16).padStart(2, "0");
    return text;
  }

  uuid(): string {
    // Ids sort in the order in which they were made, as those of a real node do.
    const order = (++this.#uuids).toString(16).padStart(12, "0");
    const tail = this.hex(8);
    return `${order.slice(0, 8)}-${order.slice(8)}-7${tail.slice(0, 3)}-8${tail.slice(3, 6)}-${tail.slice(4)}`;
  }

  /** A whole number from 0 up to, not including, `below`. */
  below(below: number): number {
    return Math.floor(this.next() * below);
  }

  /** A whole number from `low` to `high`, both included. */
  between(low: number, high: number): number {
    return low + this.below(high - low + 1);
  }

  /** True with this probability. */
  hits(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(from: readonly T[]): T {
    return from[this.below(from.length)]!;
  }

  /** One of the entries, the heavier the likelier. */
  weighted<T>(entries: readonly (readonly [weight: number, value: T])[]): T {
    let at = this.next() * entries.reduce((sum, [weight]) => sum + weight, 0);
    for (const [weight, value] of entries) {
      at -= weight;
      if (at < 0) return value;
    }
    return entries.at(-1)![1];
  }

  /** Small values often, large ones seldom: from `low` to `high`, evenly over the orders of magnitude. */
  spread(low: number, high: number): number {
    return Math.round(low * (high / low) ** this.next());
  }
}
