/**
 * Digests: what a table holds, in a few bytes that are the same on every node that holds the same.
 *
 * A row is hashed as SQLite's own JSON array of its id and its columns in the order of their
 * lower-cased names. That text keeps 1 and 1.0, and a text and a BLOB, apart (a BLOB is marked as in
 * row-json.ts), and every digit of both kinds of numbers; so does its hash. Hashing happens in groups
 * of some four rows, whose ends depend on the keys alone (protocol/digest.ts), and groups are kept
 * until there are too many of them; then neighbours are joined, and only fineness is lost.
 *
 * Measured: 0.8 µs a row where ids rise with time, most of it SQLite's; random ids cost what their
 * reads cost.
 */
import type { Database } from "bun:sqlite";
import { assert } from "../base/assert.ts";
import {
  addHashes,
  type Bucket,
  hashText,
  type KeyRange,
  type KeyState,
} from "../protocol/digest.ts";
import type { JsonColumn } from "./row-json.ts";
import type { SyncedTable } from "./schema.ts";
import { quoteName } from "./sql.ts";
import { isOddSql } from "./versions.ts";

/** `key` is the name that nodes agree on, `name` is how this file spells it. */
export interface DigestColumn extends JsonColumn {
  readonly key: string;
}

/** As much of a table as digests need; plain data, for another thread. */
export interface DigestTable {
  readonly name: string;
  readonly key: string;
  readonly id: string;
  readonly version: string;
  /** All stored columns but the id, in the order of their keys. */
  readonly columns: readonly DigestColumn[];
}

/** All columns but the id, in the order in which every node hashes them. */
export function digestTableOf(table: SyncedTable): DigestTable {
  const columns = table.columns
    .filter((column) => column !== table.id)
    .map(({ name, key, holds }) => ({ name, key, holds }))
    .sort((left, right) => (left.key < right.key ? -1 : 1));
  const { name, key, id, version } = table;
  return { name, key, id: id.name, version: version.name, columns };
}

/** The table with these columns only, for nodes that do not have the same. */
export function narrowed(table: DigestTable, keys: readonly string[] | undefined): DigestTable {
  if (keys === undefined) return table;
  return { ...table, columns: table.columns.filter(({ key }) => keys.includes(key)) };
}

/** Called between rows; a promise is awaited, so that a long read leaves room for others. */
export type Pace = () => Promise<void> | undefined;

const WHOLE: KeyRange = { from: "", to: "" };
/** Rows between two calls of the pace: some 200 µs. */
const PACE_ROWS = 256;
/** Groups of 2^2 rows on the average: a scattered difference then costs the reading of some seven. */
const GROUP_BITS = 2;
/** Some 8 MB; with more groups than this, neighbours are joined. */
const GROUPS_MAX = 65_536;
/** Longer keys end no group: a cut travels in an address. */
const CUT_BYTES_MAX = 256;

interface Group {
  readonly to: string;
  /** Zero bits at the end of its last key's hash. */
  readonly bits: number;
  readonly rows: number;
  readonly hash: bigint;
}

/** The groups of a range, as they were at one moment. */
export class Digest {
  readonly range: KeyRange;
  readonly rows: number;
  readonly #groups: readonly Group[];
  /** Every group but the last ends with a key of at least so many zero bits. */
  readonly #bits: number;
  #places: Map<string, number> | undefined;

  constructor(range: KeyRange, groups: readonly Group[], bits: number) {
    this.range = range;
    this.#groups = groups;
    this.#bits = bits;
    this.rows = groups.reduce((sum, group) => sum + group.rows, 0);
  }

  get groups(): number {
    return this.#groups.length;
  }

  get hash(): string {
    return hashText(this.#groups.reduce((sum, { hash }) => addHashes(sum, hash), 0n));
  }

  /** The part of it after `from` and up to `to`; undefined where those are no cuts of it. */
  within(range: KeyRange): Digest | undefined {
    const from = range.from === this.range.from ? 0 : this.#placeAfter(range.from);
    const to = range.to === this.range.to ? this.#groups.length : this.#placeAfter(range.to);
    if (from === undefined || to === undefined || from > to) return undefined;
    return new Digest(range, this.#groups.slice(from, to), this.#bits);
  }

  /** At most about `most` buckets; `finest` where they cannot be cut further. */
  buckets(most: number): { buckets: Bucket[]; finest: boolean } {
    let bits = this.#bits;
    while (this.#groups.filter((group) => group.bits >= bits).length >= most) bits++;
    const joined = joinGroups(this.#groups, bits);
    const buckets = joined.map(({ to, rows, hash }) => ({ to, rows, hash: hashText(hash) }));
    return { buckets, finest: bits === this.#bits };
  }

  #placeAfter(cut: string): number | undefined {
    this.#places ??= new Map(this.#groups.map(({ to }, at) => [to, at + 1]));
    return this.#places.get(cut);
  }
}

/** Makes groups of rows that come in the order of their keys. */
class Grouping {
  readonly #range: KeyRange;
  readonly #seed: bigint;
  readonly #groupsMax: number;
  #groups: Group[] = [];
  #bits = GROUP_BITS;
  #pending: Uint8Array = new Uint8Array(64 * 1024);
  #length = 0;
  #rows = 0;
  /** Of groups that were cut finer than they are kept. */
  #openRows = 0;
  #openHash = 0n;

  constructor(range: KeyRange, seed: bigint, groupsMax: number) {
    this.#range = range;
    this.#seed = seed;
    this.#groupsMax = groupsMax;
  }

  add(row: Uint8Array): void {
    this.#append(row);
    this.#rows++;
    const idEnd = endOfId(row);
    const bits = zeroBits(row, idEnd);
    if (bits < GROUP_BITS) return;
    const to = cutOf(row, idEnd);
    if (to === undefined) return;
    this.#close();
    if (bits < this.#bits) return;
    this.#push(to, bits);
    if (this.#groups.length > this.#groupsMax) {
      this.#bits++;
      this.#groups = joinGroups(this.#groups, this.#bits);
      // The last one may have ended at a cut that is none any more.
      const last = this.#groups.at(-1);
      if (last !== undefined && last.bits < this.#bits) {
        this.#groups.pop();
        this.#openRows = last.rows;
        this.#openHash = last.hash;
      }
    }
  }

  end(): Digest {
    this.#close();
    const last = this.#groups.at(-1);
    // What follows the last cut reaches to the end of the range.
    if (this.#openRows > 0 || last?.to !== this.#range.to) this.#push(this.#range.to, 0);
    return new Digest(this.#range, this.#groups, this.#bits);
  }

  #close(): void {
    if (this.#rows === 0) return;
    const bytes = this.#pending.subarray(0, this.#length);
    this.#openHash = addHashes(this.#openHash, hash64(bytes, this.#seed));
    this.#openRows += this.#rows;
    this.#rows = 0;
    this.#length = 0;
  }

  #push(to: string, bits: number): void {
    this.#groups.push({ to, bits, rows: this.#openRows, hash: this.#openHash });
    this.#openRows = 0;
    this.#openHash = 0n;
  }

  #append(row: Uint8Array): void {
    const needed = this.#length + row.length + 1;
    if (needed > this.#pending.length) {
      const larger = new Uint8Array(Math.max(needed, 2 * this.#pending.length));
      larger.set(this.#pending.subarray(0, this.#length));
      this.#pending = larger;
    }
    this.#pending.set(row, this.#length);
    // JSON escapes it, so no two lists of rows look the same.
    this.#pending[needed - 1] = NEWLINE;
    this.#length = needed;
  }
}

function joinGroups(groups: readonly Group[], bits: number): Group[] {
  const joined: Group[] = [];
  let rows = 0;
  let hash = 0n;
  for (const [at, group] of groups.entries()) {
    rows += group.rows;
    hash = addHashes(hash, group.hash);
    if (group.bits < bits && at < groups.length - 1) continue;
    joined.push({ to: group.to, bits: group.bits, rows, hash });
    rows = 0;
    hash = 0n;
  }
  return joined;
}

const NEWLINE = 10;
const QUOTE = 34;
const BACKSLASH = 92;
/** A row begins `["`, then comes its id. */
const ID_START = 2;

function endOfId(row: Uint8Array): number {
  let at = ID_START;
  while (row[at] !== QUOTE) at += row[at] === BACKSLASH ? 2 : 1;
  return at;
}

/** Zero bits at the end of a hash of the id: FNV-1a, its bits mixed once more, since its lower ones are weak. */
function zeroBits(row: Uint8Array, idEnd: number): number {
  let hash = 0x811c9dc5;
  for (let at = ID_START; at < idEnd; at++) hash = Math.imul(hash ^ row[at]!, 0x01000193);
  hash ^= hash >>> 16;
  hash = Math.imul(hash, 0x85ebca6b);
  hash ^= hash >>> 13;
  hash = Math.imul(hash, 0xc2b2ae35);
  hash ^= hash >>> 16;
  return hash === 0 ? 32 : 31 - Math.clz32(hash & -hash);
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The id as a cut; undefined where it cannot be one. */
function cutOf(row: Uint8Array, idEnd: number): string | undefined {
  const length = idEnd - ID_START;
  if (length === 0 || length > CUT_BYTES_MAX) return undefined;
  try {
    return JSON.parse(utf8.decode(row.subarray(ID_START - 1, idEnd + 1))) as string;
  } catch {
    return undefined;
  }
}

function hash64(bytes: Uint8Array, seed: bigint): bigint {
  return Bun.hash.xxHash64(bytes, seed);
}

/** Rows of the same values under other columns are not the same. */
function seedOf(table: DigestTable): bigint {
  const names = JSON.stringify(table.columns.map(({ key }) => key));
  return hash64(new TextEncoder().encode(names), 0n);
}

// ── SQL ───────────────────────────────────────────────────────────────────────────────────────

/** The row as a JSON array. Numbers and texts go in as they are; where a BLOB is, all are looked at. */
function rowArraySql(table: DigestTable): string {
  const id = `t.${quoteName(table.id)}`;
  const names = table.columns.map(({ name }) => `t.${quoteName(name)}`);
  const plain = `json_array(${[id, ...names].join(", ")})`;
  const mayBeBlob = table.columns
    .filter(({ holds }) => holds !== "integer")
    .map(({ name }) => `t.${quoteName(name)}`);
  if (mayBeBlob.length === 0) return plain;
  const marked = names.map((name) =>
    mayBeBlob.includes(name)
      ? `CASE typeof(${name}) WHEN 'blob' THEN json('"\\u005cx' || hex(${name}) || '"') ELSE ${name} END`
      : name,
  );
  const isBlob = mayBeBlob.map((name) => `typeof(${name}) = 'blob'`).join(" OR ");
  return `CASE WHEN ${isBlob} THEN json_array(${[id, ...marked].join(", ")}) ELSE ${plain} END`;
}

/** Bounds are bytes, since a key need not be UTF-8. Begins with '' where `from` is open. */
function rangeSql(table: DigestTable, range: KeyRange): string {
  const id = `t.${quoteName(table.id)}`;
  const from = `${id} ${range.from === "" ? ">=" : ">"} CAST(?1 AS TEXT)`;
  const to = range.to === "" ? "" : ` AND ${id} <= CAST(?2 AS TEXT)`;
  return `WHERE typeof(${id}) = 'text' AND ${from}${to} ORDER BY ${id}`;
}

function boundsOf(range: KeyRange): Uint8Array[] {
  const bytes = [range.from, range.to].map((text) => new TextEncoder().encode(text));
  return range.to === "" ? bytes.slice(0, 1) : bytes;
}

interface RowOf {
  readonly row: Uint8Array;
}

/** Hashes the rows of a range in one statement, and so as of one moment. */
export async function digestRange(
  db: Database,
  table: DigestTable,
  range: KeyRange = WHOLE,
  pace: Pace = () => undefined,
  groupsMax = GROUPS_MAX,
): Promise<Digest> {
  const grouping = new Grouping(range, seedOf(table), groupsMax);
  const statement = db.prepare<RowOf, Uint8Array[]>(
    `SELECT CAST(${rowArraySql(table)} AS BLOB) AS row FROM ${quoteName(table.name)} AS t ${rangeSql(table, range)}`,
  );
  try {
    let rows = 0;
    for (const { row } of statement.iterate(...boundsOf(range))) {
      grouping.add(row);
      rows++;
      if (rows % PACE_ROWS !== 0) continue;
      const pause = pace();
      if (pause !== undefined) await pause;
    }
  } finally {
    statement.finalize();
  }
  return grouping.end();
}

/** How many tombstones a table has, and one hash of all: deletes are compared apart from rows. */
export async function digestTombstones(
  db: Database,
  tableKey: string,
  pace: Pace = () => undefined,
): Promise<{ count: number; hash: string }> {
  const statement = db.prepare<RowOf, [string]>(
    `SELECT CAST(json_array(id, version) AS BLOB) AS row FROM _hooksync_tombstones WHERE tbl = ?`,
  );
  let count = 0;
  let hash = 0n;
  try {
    for (const { row } of statement.iterate(tableKey)) {
      hash = addHashes(hash, hash64(row, 0n));
      count++;
      if (count % PACE_ROWS !== 0) continue;
      const pause = pace();
      if (pause !== undefined) await pause;
    }
  } finally {
    statement.finalize();
  }
  return { count, hash: hashText(hash) };
}

interface KeyRow extends RowOf {
  readonly version: number | null;
}

function keySql(table: DigestTable): string {
  const version = `t.${quoteName(table.version)}`;
  return (
    `SELECT CAST(${rowArraySql(table)} AS BLOB) AS row, ` +
    `CASE WHEN NOT ${isOddSql(version)} THEN ${version} END AS version FROM ${quoteName(table.name)} AS t`
  );
}

/** The keys of a range. Where there are more than `most`, `through` says up to which they were read. */
export function keysIn(
  db: Database,
  table: DigestTable,
  range: KeyRange,
  most: number,
): { keys: KeyState[]; through: string | undefined } {
  const seed = seedOf(table);
  const keys: KeyState[] = [];
  const statement = db.prepare<KeyRow, Uint8Array[]>(`${keySql(table)} ${rangeSql(table, range)}`);
  try {
    for (const { row, version } of statement.iterate(...boundsOf(range))) {
      keys.push({ id: idOf(row), version, hash: hashText(hash64(row, seed)), deleted: false });
      const through = keys.length < most ? undefined : cutOf(row, endOfId(row));
      if (through !== undefined && through !== range.to) return { keys, through };
    }
  } finally {
    statement.finalize();
  }
  return { keys, through: undefined };
}

/** What is known of these keys: the row, or the tombstone where there is none. */
export function keysOf(db: Database, table: DigestTable, ids: readonly string[]): KeyState[] {
  const seed = seedOf(table);
  const row = db.prepare<KeyRow, [string]>(`${keySql(table)} WHERE t.${quoteName(table.id)} = ?`);
  const tombstone = db.prepare<{ version: number }, [string, string]>(
    "SELECT version FROM _hooksync_tombstones WHERE tbl = ? AND id = ?",
  );
  try {
    return ids.map((id): KeyState => {
      const found = row.get(id);
      if (found !== null) {
        const { version } = found;
        return { id, version, hash: hashText(hash64(found.row, seed)), deleted: false };
      }
      const gone = tombstone.get(table.key, id);
      return { id, version: gone?.version ?? null, hash: null, deleted: gone !== null };
    });
  } finally {
    row.finalize();
    tombstone.finalize();
  }
}

/** For people, where it is not UTF-8. */
function idOf(row: Uint8Array): string {
  const json = new TextDecoder("utf-8", { ignoreBOM: true }).decode(
    row.subarray(ID_START - 1, endOfId(row) + 1),
  );
  const id: unknown = JSON.parse(json);
  assert(typeof id === "string", "rows without a text for an id stay out of digests");
  return id;
}
