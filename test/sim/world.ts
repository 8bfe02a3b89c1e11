/**
 * Virtual time. Everything that happens in a simulation is an event at a moment of it; between two
 * events nothing happens, however long that is. After each event all promises that it settled are
 * run to their ends, so a simulation never gives up the thread and is the same every time.
 */
import { drainMicrotasks } from "bun:jsc";
import type { Cancel, Clock } from "../../lib/base/clock.ts";

/** What a simulation found wrong. */
export class Finding extends Error {
  override name = "Finding";
}

interface Event {
  readonly atMs: number;
  readonly order: number;
  run: (() => void) | undefined;
}

/** The moment at which every simulation begins. */
export const EPOCH_MS = 1_700_000_000_000;

export class World {
  #nowMs = 0;
  #order = 0;
  /** A binary heap, the next event first. */
  readonly #heap: Event[] = [];
  #failure: unknown;
  events = 0;
  /** One line of what happened; nothing is kept unless somebody listens. */
  onTrace: ((atMs: number, text: string, key: string | undefined) => void) | undefined;

  /** True time since the beginning, ms. */
  get nowMs(): number {
    return this.#nowMs;
  }

  get isTraced(): boolean {
    return this.onTrace !== undefined;
  }

  /** `key` is the row that it is about, as `table/id`. */
  trace(text: string, key?: string): void {
    this.onTrace?.(this.#nowMs, text, key);
  }

  /** Ends the simulation with this failure, from wherever it is noticed; the first one stays. */
  fail(error: unknown): void {
    this.#failure ??= error;
  }

  at(delayMs: number, run: () => void): Cancel {
    const event: Event = { atMs: this.#nowMs + Math.max(0, delayMs), order: this.#order++, run };
    this.#push(event);
    return () => {
      event.run = undefined;
    };
  }

  /** Lets everything happen up to this moment; `isOver` is asked after each event. */
  runUntil(untilMs: number, isOver: () => boolean = () => false): void {
    for (;;) {
      const next = this.#heap[0];
      if (next === undefined || next.atMs > untilMs) break;
      this.#pop();
      if (next.run === undefined) continue;
      this.#nowMs = next.atMs;
      this.events++;
      next.run();
      drainMicrotasks();
      if (this.#failure !== undefined) throw this.#failure;
      if (isOver()) return;
    }
    this.#nowMs = Math.max(this.#nowMs, untilMs);
  }

  /** When the next event is, or undefined. */
  get nextMs(): number | undefined {
    while (this.#heap[0] !== undefined && this.#heap[0].run === undefined) this.#pop();
    return this.#heap[0]?.atMs;
  }

  #push(event: Event): void {
    const heap = this.#heap;
    let at = heap.length;
    heap.push(event);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(event, heap[parent]!)) break;
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = event;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop()!;
    if (heap.length === 0) return;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!isBefore(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
  }
}

function isBefore(left: Event, right: Event): boolean {
  return left.atMs < right.atMs || (left.atMs === right.atMs && left.order < right.order);
}

/** The clock on one machine's wall: off by some time, running too fast or too slow, put right or wrong. */
export class WallClock implements Clock {
  readonly #world: World;
  readonly #drift: number;
  offsetMs: number;
  /** Told of every look at the clock; a transaction looks at it once. */
  onRead: () => void = () => {};

  constructor(world: World, offsetMs: number, drift: number) {
    this.#world = world;
    this.offsetMs = offsetMs;
    this.#drift = drift;
  }

  nowMs(): number {
    this.onRead();
    return this.peekMs();
  }

  /** The time without telling. */
  peekMs(): number {
    return Math.floor(EPOCH_MS + this.#world.nowMs * (1 + this.#drift) + this.offsetMs);
  }

  monotonicMs(): number {
    return this.#world.nowMs;
  }
}
