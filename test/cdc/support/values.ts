/** Values of every kind and width, and changes made of them. */
import { BrokenText, type CdcChange, type CdcValue } from "../../../lib/cdc/change.ts";
import type { Seeded } from "../../support/seeded.ts";

/** Around every border between two widths of an integer. */
const BITS = [7n, 8n, 15n, 16n, 23n, 24n, 31n, 32n, 47n, 48n, 53n, 62n, 63n];
const EDGES = BITS.flatMap((bits) => [1n << bits, (1n << bits) - 1n, (1n << bits) + 1n]);
const INT64 = (value: bigint) => BigInt.asIntN(64, value) === value;
export const INTEGERS: readonly bigint[] = [0n, 1n, 2n, ...EDGES]
  .flatMap((value) => [value, -value])
  .filter(INT64)
  .concat(-(1n << 63n));

export const REALS: readonly number[] = [
  0,
  1,
  -1,
  0.1,
  -2.5,
  2 ** 53,
  1e300,
  -1e-300,
  5e-324,
  Number.MAX_VALUE,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
];

export const TEXTS: readonly string[] = [
  "",
  "a",
  "a\0b",
  "\0",
  "é ü ß",
  "日本語",
  "🙂\u2028\ufeff",
  "\n\r\t\"'\\",
  "x".repeat(70),
  "y".repeat(9000),
];

export const BLOBS: readonly Uint8Array[] = [
  new Uint8Array(),
  new Uint8Array([0]),
  new Uint8Array([0xff, 0xfe]),
  new Uint8Array(60).fill(7),
  new Uint8Array(20_000).fill(200),
];

export const BROKEN: readonly BrokenText[] = [
  new BrokenText(new Uint8Array([0xff])),
  new BrokenText(new Uint8Array([0x61, 0xc3])),
  new BrokenText(new Uint8Array([0xed, 0xa0, 0x80])),
];

export const ALL_VALUES: readonly CdcValue[] = [
  null,
  ...INTEGERS,
  ...REALS,
  ...TEXTS,
  ...BLOBS,
  ...BROKEN,
];

export function randomValue(random: Seeded): CdcValue {
  return random.pick(ALL_VALUES);
}

export function randomChange(random: Seeded): CdcChange {
  const table = random.pick(["t", "ü", 'a "b"']);
  const rowid = random.pick(INTEGERS);
  const kind = random.pick(["insert", "update", "delete", "schema"] as const);
  if (kind === "schema") return { kind, sql: "CREATE TABLE t (a, b)" };
  if (kind === "delete") return { kind, table, rowid };
  const values = Array.from({ length: random.below(5) }, () => randomValue(random));
  return { kind, table, rowid, values };
}
