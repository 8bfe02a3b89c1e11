/** Values of every kind SQLite stores, near ones and far ones, so that ties and near misses are common. */
import type { Value } from "../../lib/protocol/values.ts";
import { readNumber } from "../../lib/protocol/values.ts";
import type { Seeded } from "./seeded.ts";

const INTEGERS = [
  0n,
  1n,
  -1n,
  42n,
  2n ** 53n - 1n,
  2n ** 53n,
  2n ** 53n + 1n,
  -(2n ** 53n) - 1n,
  2n ** 63n - 1n,
  2n ** 63n - 2n,
  -(2n ** 63n),
  -(2n ** 63n) + 1n,
  2n ** 62n,
  2n ** 62n + 1n,
  2n ** 62n - 1n,
  10n ** 18n,
  4_611_686_018_427_388_001n,
  1_700_000_000_000n,
];
const REALS = [
  0,
  1,
  -1,
  1.5,
  42,
  2 ** 53,
  2 ** 63,
  -(2 ** 63),
  2 ** 64,
  1e21,
  1e300,
  5e-324,
  0.1,
  1 / 3,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  1_700_000_000_000,
];
const TEXTS = [
  "",
  "a",
  "b",
  "A",
  "ab",
  "1",
  "1.0",
  "\\x00ff",
  "\\x",
  "\\x00FF",
  "é",
  "\uffff",
  "😀",
  "a\0b",
  "null",
  '"',
  "\\",
  "9223372036854775807",
  " 1",
];
const HEXES = ["", "00", "00ff", "ff", "61", "c328"];
/** Bytes that are no UTF-8: a text that holds them is broken. */
const BROKEN = ["ff", "61ff62", "c3", "ed a0 80".replaceAll(" ", "")];

export function randomValue(random: Seeded): Value {
  switch (random.below(10)) {
    case 0:
      return { kind: "null" };
    case 1:
    case 2:
      return {
        kind: "integer",
        value: random.chance(0.5) ? random.pick(INTEGERS) : randomInteger(random),
      };
    case 3:
    case 4:
      return { kind: "real", value: random.pick(REALS) };
    case 5:
    case 6:
      return { kind: "text", value: random.pick(TEXTS) };
    case 7:
      return { kind: "blob", hex: random.pick(HEXES) };
    case 8:
      return { kind: "broken-text", hex: random.pick(BROKEN) };
    default:
      return { kind: "real", value: (random.next() - 0.5) * 10 ** (random.below(40) - 20) };
  }
}

/** Of any size, as an application's own 64-bit ids are. */
function randomInteger(random: Seeded): bigint {
  return BigInt.asIntN(64, BigInt(`0x${random.hex(8)}`)) >> BigInt(random.below(64));
}

/**
 * What comes back of a value from a node that reads JSON numbers as float64 and keeps BLOBs as the
 * text they are on the wire: `rewritten` by a hub that writes JSON from the float, or `stored` in SQLite
 * by a node whose columns make integers of whole numbers, and written by SQLite.
 */
export function throughFloat64Node(value: Value, how: "rewritten" | "stored"): Value {
  switch (value.kind) {
    case "integer":
      return how === "rewritten" ? rewritten(Number(value.value)) : stored(Number(value.value));
    case "real":
      // Such nodes have no JSON for an infinity; what they stored stays what it was.
      return how === "rewritten" && Number.isFinite(value.value) ? rewritten(value.value) : value;
    case "blob":
    case "broken-text":
      return { kind: "text", value: `\\x${value.hex}` };
    default:
      return value;
  }
}

function rewritten(float: number): Value {
  return readNumber(JSON.stringify(float));
}

/** SQLite makes an integer of a REAL only strictly inside the range. */
function stored(float: number): Value {
  const isInside = float > -(2 ** 63) && float < 2 ** 63;
  return isInside ? { kind: "integer", value: BigInt(float) } : { kind: "real", value: float };
}
