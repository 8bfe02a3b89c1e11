/** A clock that stands still until it is told to go, and the timers that live on it. */
import type { Cancel, Clock, Timers } from "../../lib/base/clock.ts";

interface Timer {
  readonly atMs: number;
  readonly run: () => void;
}

export class VirtualTime implements Clock, Timers {
  #elapsedMs = 0;
  /** In the order in which they were set. */
  #timers: Timer[] = [];
  #soon: (() => void)[] = [];

  nowMs(): number {
    return 1_700_000_000_000 + this.#elapsedMs;
  }

  monotonicMs(): number {
    return this.#elapsedMs;
  }

  after(delayMs: number, run: () => void): Cancel {
    const timer = { atMs: this.#elapsedMs + delayMs, run };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  soon(run: () => void): void {
    this.#soon.push(run);
  }

  /** How many timers are set. */
  get waiting(): number {
    return this.#timers.length;
  }

  /** Lets everything happen that needs no time. */
  async settle(): Promise<void> {
    for (let turns = 0; turns < 20; turns++) {
      await Promise.resolve();
      for (const run of this.#soon.splice(0)) run();
    }
  }

  async advance(ms: number): Promise<void> {
    const untilMs = this.#elapsedMs + ms;
    await this.settle();
    for (;;) {
      const due = this.#timers.filter(({ atMs }) => atMs <= untilMs);
      if (due.length === 0) break;
      const next = due.reduce((first, timer) => (timer.atMs < first.atMs ? timer : first));
      this.#timers = this.#timers.filter((timer) => timer !== next);
      this.#elapsedMs = Math.max(this.#elapsedMs, next.atMs);
      next.run();
      await this.settle();
    }
    this.#elapsedMs = untilMs;
  }
}
