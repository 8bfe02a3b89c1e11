/** Chance as an argument: the simulator passes a seeded one. */
export interface Random {
  /** At least 0, below 1. */
  next(): number;
  /** A UUIDv7 that sorts after every one this source made before. */
  uuid(): string;
  /** `bytes` random bytes as hex. */
  hex(bytes: number): string;
}

/** Only `hex` is fit for secrets: `next` can be foretold. */
export const systemRandom: Random = {
  next: () => Math.random(),
  // Bun's own is six times as fast as the package `uuidv7`, which is kept for ids from outside.
  uuid: () => Bun.randomUUIDv7(),
  hex: (bytes) => crypto.getRandomValues(new Uint8Array(bytes)).toHex(),
};
