/**
 * When to collect garbage. The engine lets a heap grow by tens of megabytes before it looks at it, and
 * bodies, which lie outside of it, hardly count: a node that is sent 10,000 rows at a time took 25 MB more
 * than with a collection after each (bench/bulk-500k.ts). One that runs beside the work costs it nothing
 * that could be measured there.
 */

/** Counts what requests leave behind; each kind of request has its own. */
export class Garbage {
  readonly #bytesMax: number;
  readonly #collect: () => void;
  #bytes = 0;

  /** Collects once bodies of `bytesMax` in all are done with. */
  constructor(bytesMax: number, collect: () => void = collectBeside) {
    this.#bytesMax = bytesMax;
    this.#collect = collect;
  }

  /** A body of that many bytes, and what was made of it, is done with. */
  left(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes < this.#bytesMax) return;
    this.#bytes = 0;
    this.#collect();
  }
}

/** After the answer, which still holds on to the body while it is being made. */
function collectBeside(): void {
  setImmediate(() => Bun.gc(false));
}

/** Smaller ones are no weight, and may lie beside others. */
const GIVEN_BACK_BYTES_MIN = 64 * 1024;

/** The bytes of a body that nobody will look at any more are free at once; it is empty from then on. */
export function giveBack(body: Uint8Array): void {
  const { buffer } = body;
  const isAlone = buffer instanceof ArrayBuffer && buffer.byteLength === body.length;
  if (isAlone && body.length >= GIVEN_BACK_BYTES_MIN) buffer.transfer(0);
}
