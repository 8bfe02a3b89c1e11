/**
 * Time as an argument. Everything that looks at a clock takes one of these, so that the simulator
 * can let years pass, step clocks back and make nodes disagree.
 */
export interface Clock {
  /** Milliseconds since 1970 as this machine believes; may jump. For versions and for people. */
  nowMs(): number;
  /** Milliseconds that only ever rise. For time-outs, pauses and retention. */
  monotonicMs(): number;
}

/** The machine's own; the wall clock may step, `monotonicMs` never goes back. */
export const systemClock: Clock = {
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
};

/** Undoes what was scheduled; harmless afterwards. */
export type Cancel = () => void;

/** Waiting as an argument, like time: the simulator lets its own clock decide. */
export interface Timers {
  after(delayMs: number, run: () => void): Cancel;
  /** After the events that are already there: what arrives together is served together. */
  soon(run: () => void): void;
}

/** The event loop's; a pending timer keeps the process alive until it is cancelled. */
export const systemTimers: Timers = {
  after(delayMs, run) {
    const timer = setTimeout(run, delayMs);
    return () => clearTimeout(timer);
  },
  soon: (run) => void setImmediate(run),
};
