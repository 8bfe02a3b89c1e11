/**
 * How many local writes share a transaction. While one is committed, other clients send theirs; begun at
 * once, the next transaction would take those alone, and the clients just answered would find it gone:
 * two groups that take turns, and pay for two commits. So where commits are dear and many write, the next
 * one waits for about as many as come together, a millisecond at most.
 */

/** A commit that takes less is cheaper than waiting. */
const COMMIT_MS_DEAR = 0.15;
/** Fewer at a time are clients that think in between, who would be waited for in vain. */
const COMPANY_MIN = 4;
/** Every so many transactions it is tried whether more would come. */
const PROBE_EVERY = 64;

/** For so long at most. */
export const COMPANY_MS_MAX = 1;

/** Only counts and decides: the write queue, which owns it, has the clock and the timer. */
export class Company {
  #size = 0;
  #looks = 0;
  #commitMs = 0;

  /** A transaction could begin with `writes`: whether it should wait for more. */
  isAwaited(writes: number): boolean {
    this.#looks++;
    if (this.#looks % PROBE_EVERY === 0) this.#size += this.#size >> 1;
    return this.isMissing(writes);
  }

  /** Whether it should go on waiting now that there are `writes`. */
  isMissing(writes: number): boolean {
    const isWorthIt = this.#size >= COMPANY_MIN && this.#commitMs >= COMMIT_MS_DEAR;
    return isWorthIt && writes > 0 && writes < this.#size;
  }

  /** It was waited for in vain: as many as came are all there are. */
  gaveUp(writes: number): void {
    this.#size = writes;
  }

  /** A transaction of `writes` local writes was committed, which took this long. */
  committed(writes: number, commitMs: number): void {
    this.#size = Math.max(this.#size, writes);
    this.#commitMs = commitMs;
  }
}
