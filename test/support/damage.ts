/** Bodies of /sync as a broken line or a broken sender makes them. */
import type { Seeded } from "./seeded.ts";

/** Tokens that mean something to a parser of batches. */
const PIECES = [
  '"',
  "\\",
  "{",
  "}",
  "[",
  "]",
  ",",
  ":",
  "null",
  "1e",
  "-",
  "0",
  "\\u",
  "\\ud800",
  '"row":{',
  '"changes":[',
  '"batch_id":1,',
  '"op":"DELETE",',
  "\u0000",
  " ",
  "\ufeff",
];

/** Bytes changed, taken out, doubled and put in. */
export function damage(body: Uint8Array, random: Seeded): Uint8Array {
  const at = random.below(body.length + 1);
  const join = (...parts: (Uint8Array | string)[]) =>
    new Uint8Array(Buffer.concat(parts.map((part) => Buffer.from(part as Uint8Array))));
  switch (random.below(5)) {
    case 0:
      return body.map((byte, i) => (i === at ? random.below(256) : byte));
    case 1:
      return join(body.subarray(0, at), body.subarray(at + 1 + random.below(6)));
    case 2: {
      const from = random.below(body.length);
      return join(body.subarray(0, at), body.subarray(from, from + 40), body.subarray(at));
    }
    case 3:
      return body.subarray(0, at);
    default:
      return join(body.subarray(0, at), random.pick(PIECES), body.subarray(at));
  }
}
