/**
 * For our own mistakes only: a broken assumption stops the work in hand instead of writing
 * something wrong. What peers, clients or files send is input and never asserted on.
 */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new AssertionError(message);
}

/** Thrown here alone; the message is for whoever reports it to us. */
export class AssertionError extends Error {
  override name = "AssertionError";
  constructor(message: string) {
    super(`broken assumption: ${message}. Please report this; nothing was written.`);
  }
}
