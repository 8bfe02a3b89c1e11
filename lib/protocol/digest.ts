/**
 * What nodes of ours tell each other about the content of a table, and where two or more of them
 * differ. Pure: digest.ts of lib/store makes the hashes, comparison.ts of lib/shipper asks for them.
 *
 * A table is cut by its keys alone: a row whose key hashes to so many zero bits ends a bucket. So all
 * nodes cut at the same keys without asking each other, a row more or less moves no cut but its own,
 * and a coarser cut is a union of finer ones. Hashes of buckets add up (modulo 2^64), so that any
 * stretch between two cuts that all sides have can be compared, however finely each side cut it.
 */

/** A stretch of the key order: after `from`, up to and with `to`; empty texts stand for its ends. */
export interface KeyRange {
  readonly from: string;
  readonly to: string;
}

/** One bucket: it begins where the one before ends. */
export interface Bucket {
  readonly to: string;
  readonly rows: number;
  /** 16 hex digits. */
  readonly hash: string;
}

/** One row, or what is left of it. */
export interface KeyState {
  readonly id: string;
  /** Null where the stamp is no integer, and where neither row nor tombstone is there. */
  readonly version: number | null;
  /** Of the whole row; null where there is none. */
  readonly hash: string | null;
  /** The row is gone, and a tombstone says so. */
  readonly deleted: boolean;
}

/** A range in which the sides differ. */
export interface DifferingRange extends KeyRange {
  /** Rows in it on the side that has most. */
  readonly rows: number;
}

const NOTHING: Bucket = { to: "", rows: 0, hash: "" };

/**
 * The stretches of `range` whose rows or hashes are not the same on all sides; `sides` are the
 * buckets of that range, each side's own.
 */
export function differingRanges(
  range: KeyRange,
  sides: readonly (readonly Bucket[])[],
): DifferingRange[] {
  const shared = sharedCuts(sides);
  const parts = sides.map((buckets) => joined(buckets, shared));
  const differing: DifferingRange[] = [];
  const [first = []] = parts;
  let from = range.from;
  for (const [at, part] of first.entries()) {
    const same = parts.map((side) => side[at] ?? NOTHING);
    if (same.some(({ rows, hash }) => rows !== part.rows || hash !== part.hash)) {
      differing.push({ from, to: part.to, rows: Math.max(...same.map(({ rows }) => rows)) });
    }
    from = part.to;
  }
  return differing;
}

/** Cuts come in the order of the keys on every side, so a set of them is enough. */
function sharedCuts(sides: readonly (readonly Bucket[])[]): ReadonlySet<string> {
  const [first = [], ...others] = sides.map((buckets) => new Set(buckets.map(({ to }) => to)));
  return new Set([...first].filter((to) => others.every((cuts) => cuts.has(to))));
}

function joined(buckets: readonly Bucket[], cuts: ReadonlySet<string>): Bucket[] {
  const parts: Bucket[] = [];
  let rows = 0;
  let sum = 0n;
  for (const bucket of buckets) {
    rows += bucket.rows;
    sum = addHashes(sum, hashOfText(bucket.hash));
    if (!cuts.has(bucket.to)) continue;
    parts.push({ to: bucket.to, rows, hash: hashText(sum) });
    rows = 0;
    sum = 0n;
  }
  return parts;
}

/** Keys that do not look the same on all sides, with what each side has; undefined: nothing. */
export function differingKeys(
  sides: readonly (readonly KeyState[])[],
): Map<string, (KeyState | undefined)[]> {
  const byId = sides.map((keys) => new Map(keys.map((key) => [key.id, key])));
  const differing = new Map<string, (KeyState | undefined)[]>();
  for (const id of new Set(byId.flatMap((keys) => [...keys.keys()]))) {
    const states = byId.map((keys) => keys.get(id));
    if (isDifferent(states)) differing.set(id, states);
  }
  return differing;
}

/** Rows are compared; that one side remembers a delete and another never knew the row is no difference. */
export function isDifferent(states: readonly (KeyState | undefined)[]): boolean {
  return states.some((state) => (state?.hash ?? null) !== (states[0]?.hash ?? null));
}

/** Modulo 2^64, so that the order of adding does not matter. */
export function addHashes(left: bigint, right: bigint): bigint {
  return BigInt.asUintN(64, left + right);
}

/** Sixteen hex digits, as digests travel: JSON numbers would lose some. */
export function hashText(hash: bigint): string {
  return hash.toString(16).padStart(16, "0");
}

function hashOfText(text: string): bigint {
  return BigInt(`0x${text}`);
}
