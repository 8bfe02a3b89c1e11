/** Digests: what makes two tables the same, and finding where they are not. */
import { Database } from "bun:sqlite";
import { afterEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemClock, systemTimers } from "../../lib/base/clock.ts";
import { differingKeys, differingRanges, type KeyRange } from "../../lib/protocol/digest.ts";
import {
  type Digest,
  digestRange,
  digestTableOf,
  digestTombstones,
  keysIn,
  keysOf,
  narrowed,
} from "../../lib/store/digest.ts";
import { Digester } from "../../lib/store/digester.ts";
import { Seeded } from "../support/seeded.ts";
import { StoreFixture } from "../support/store-fixture.ts";

const close: (() => unknown)[] = [];
afterEach(async () => {
  for (const step of close.splice(0)) await step();
});

const SCHEMA = "CREATE TABLE t(id TEXT PRIMARY KEY, v, updated_at INTEGER)";

/** SQL of the numbers from 1 to `count`. */
function upTo(count: number): string {
  return `WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < ${count}) SELECT value FROM n`;
}

/** A table, filled by this SQL. */
class Side {
  readonly store: StoreFixture;

  constructor(schema = SCHEMA, ...sql: string[]) {
    this.store = new StoreFixture(schema);
    close.push(() => this.store.close());
    for (const statement of sql) this.db.run(statement);
  }

  get db(): Database {
    return this.store.db;
  }

  get table() {
    return digestTableOf(this.store.table("t"));
  }

  digest(range?: KeyRange): Promise<Digest> {
    return digestRange(this.db, this.table, range);
  }
}

async function hashOf(schema: string, ...sql: string[]): Promise<string> {
  return (await new Side(schema, ...sql).digest()).hash;
}

describe("the same", () => {
  test.each([
    [
      "in another order of rows",
      SCHEMA,
      ["INSERT INTO t VALUES('b', 2, 2)", "INSERT INTO t VALUES('a', 1, 1)"],
    ],
    [
      "in another order and case of columns and names",
      'CREATE TABLE "T"(updated_at INTEGER, "V", "ID" TEXT PRIMARY KEY)',
      ["INSERT INTO t VALUES(1, 1, 'a'), (2, 2, 'b')"],
    ],
    [
      "without a rowid",
      "CREATE TABLE t(id TEXT PRIMARY KEY, v, updated_at INTEGER) WITHOUT ROWID",
      ["INSERT INTO t VALUES('b', 2, 2), ('a', 1, 1)"],
    ],
    [
      "beside generated columns",
      "CREATE TABLE t(id TEXT PRIMARY KEY, v, updated_at INTEGER, twice AS (v * 2))",
      ["INSERT INTO t(id, v, updated_at) VALUES('b', 2, 2), ('a', 1, 1)"],
    ],
    [
      "where rows came and went",
      SCHEMA,
      ["INSERT INTO t VALUES('b', 2, 2), ('c', 3, 3), ('a', 9, 9)"].concat(
        "DELETE FROM t WHERE id = 'c'",
        "UPDATE t SET v = 1, updated_at = 1 WHERE id = 'a'",
      ),
    ],
    [
      "beside rows that stay out",
      SCHEMA,
      ["INSERT INTO t VALUES('b', 2, 2), ('a', 1, 1), (NULL, 3, 3), (x'61', 4, 4)"],
    ],
  ])("%s", async (_, schema, sql) => {
    const expected = await hashOf(SCHEMA, "INSERT INTO t VALUES('a', 1, 1), ('b', 2, 2)");
    expect(await hashOf(schema, ...sql)).toBe(expected);
  });
});

/** SQL of values of which no two are the same. */
const VALUES = [
  "NULL",
  "0",
  "1",
  "1.0",
  "'1'",
  "'1.0'",
  "''",
  "x''",
  "'null'",
  "x'31'",
  // A BLOB that is the JSONB of the number 1.
  "x'1331'",
  "'\\x31'",
  "'\\X31'",
  "'\\u005cx31'",
  "'\"\\u005cx31\"'",
  "CAST(x'61ff' AS TEXT)",
  "CAST(x'61fe' AS TEXT)",
  "CAST(x'6100' AS TEXT)",
  "'a'",
  "'a' || char(10)",
  "9007199254740992",
  "9007199254740993",
  "9007199254740992.0",
  "9223372036854775807",
  "9223372036854775807.0",
  "0.1",
  "0.1 + 1e-17 * 5",
  "0.30000000000000004",
  "0.3",
  "1e999",
  "-1e999",
  "'[]'",
  "json('[]') || ''||' '",
];

test("values of another type or content make another hash", async () => {
  const hashes = new Map<string, string>();
  for (const value of VALUES) {
    const hash = await hashOf(SCHEMA, `INSERT INTO t VALUES('a', ${value}, 1)`);
    expect([value, hashes.get(hash)]).toEqual([value, undefined]);
    hashes.set(hash, value);
  }
});

test("a BLOB in one column changes nothing of how the others are told apart", async () => {
  const schema = "CREATE TABLE t(id TEXT PRIMARY KEY, v, w, updated_at INTEGER)";
  const values = ["1", "1.0", "'1'", "x'31'", "'\\x31'", "NULL"];
  const hashes = await Promise.all(
    values.map((value) => hashOf(schema, `INSERT INTO t VALUES('a', ${value}, x'00', 1)`)),
  );
  expect(new Set(hashes).size).toBe(values.length);
});

test("columns of other names are another content; compared by those they share they are equal", async () => {
  const left = new Side(
    "CREATE TABLE t(id TEXT PRIMARY KEY, a, c, updated_at INTEGER)",
    "INSERT INTO t VALUES('x', 1, 2, 3)",
  );
  const right = new Side(
    "CREATE TABLE t(id TEXT PRIMARY KEY, b, C, updated_at INTEGER)",
    "INSERT INTO t VALUES('x', 1, 2, 3)",
  );
  expect((await left.digest()).hash).not.toBe((await right.digest()).hash);
  const shared = ["c", "updated_at"];
  const hashes = [left, right].map(({ db, table }) => digestRange(db, narrowed(table, shared)));
  const [one, other] = await Promise.all(hashes);
  expect(one!.hash).toBe(other!.hash);
});

test("a table of nearly five hundred columns, and one of ids that are long, odd or not UTF-8", async () => {
  const columns = Array.from({ length: 490 }, (_, at) => `c${at}`);
  const wide = new Side(`CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER, ${columns})`);
  wide.db.run("INSERT INTO t(id, updated_at, c7) VALUES('a', 1, 1)");
  const before = (await wide.digest()).hash;
  wide.db.run("UPDATE t SET c489 = x'00'");
  expect((await wide.digest()).hash).not.toBe(before);

  const odd = new Side();
  odd.db.run("INSERT INTO t VALUES('', 1, 1), (CAST(x'ff' AS TEXT), 1, 1), ('\"\\', 1, 1)");
  odd.db.run(`INSERT INTO t SELECT printf('%.*c%d', 400, 'x', value), 1, 1 FROM (${upTo(200)})`);
  const digest = await odd.digest();
  expect(digest.rows).toBe(203);
  // Nobody cuts at such a key, so all of them are one bucket at most beside the others.
  expect(digest.buckets(1_000).buckets.length).toBeLessThan(5);
  const { keys, through } = keysIn(odd.db, odd.table, { from: "", to: "" }, 10_000);
  expect([keys.length, through]).toEqual([203, undefined]);
});

/** Rows with ids of every kind that people use. */
function fill(db: Database, rows: number, random: Seeded): void {
  const insert = db.prepare("INSERT INTO t VALUES(?, ?, ?)");
  db.run("BEGIN");
  for (let at = 0; at < rows; at++) {
    const id = [`user-${at}`, random.hex(16), `${random.below(1e9)} é`, random.uuid()][at % 4]!;
    insert.run(`${id}${at}`, random.below(1_000), 1_700_000_000_000 + at);
  }
  db.run("COMMIT");
  insert.finalize();
}

async function sides(rows: number, seed = 1): Promise<[Side, Side]> {
  const [left, right] = [new Side(), new Side()];
  fill(left.db, rows, new Seeded(seed));
  fill(right.db, rows, new Seeded(seed));
  return [left, right];
}

test("buckets add up, at every fineness, and a part of a digest is the digest of that part", async () => {
  const [side] = await sides(5_000);
  const digest = await side.digest();
  for (const most of [1, 2, 10, 100, 1_000, 100_000]) {
    const { buckets } = digest.buckets(most);
    expect(buckets.length).toBeLessThanOrEqual(most + 1);
    expect(buckets.reduce((sum, { rows }) => sum + rows, 0)).toBe(5_000);
    let from = "";
    for (const { to, rows, hash } of buckets.slice(0, 20)) {
      const part = digest.within({ from, to })!;
      const again = await side.digest({ from, to });
      expect([part.rows, part.hash]).toEqual([rows, hash]);
      expect([again.rows, again.hash]).toEqual([rows, hash]);
      from = to;
    }
  }
  expect(digest.buckets(100_000).finest).toBe(true);
  expect(digest.within({ from: "no such cut", to: "" })).toBeUndefined();
});

/** Down to the keys, as comparison.ts does it; returns them and how many rows were read for it. */
async function findDifferences(left: Side, right: Side) {
  const digests = await Promise.all([left.digest(), right.digest()]);
  let open: KeyRange[] = [{ from: "", to: "" }];
  const finest: KeyRange[] = [];
  while (open.length > 0) {
    const next: KeyRange[] = [];
    for (const range of open) {
      const cuts = digests.map((digest) => digest.within(range)!.buckets(64));
      const parts = differingRanges(
        range,
        cuts.map(({ buckets }) => buckets),
      );
      const isFinest = cuts.every((cut) => cut.finest);
      const isWhole =
        parts.length === 1 && parts[0]!.from === range.from && parts[0]!.to === range.to;
      (isFinest || isWhole ? finest : next).push(...parts);
    }
    open = next;
  }
  let read = 0;
  const ids: string[] = [];
  for (const range of finest) {
    const keys = [left, right].map(({ db, table }) => keysIn(db, table, range, 10_000).keys);
    read += keys[0]!.length;
    ids.push(...differingKeys(keys).keys());
  }
  return { ids: ids.sort(), read };
}

test.each([1, 2, 3, 4, 5, 6])(
  "planted differences are found, and nothing else (seed %d)",
  async (seed) => {
    const [left, right] = await sides(8_000, seed);
    const random = new Seeded(seed + 100);
    const ids = left.db
      .query<{ id: string }, []>("SELECT id FROM t")
      .all()
      .map(({ id }) => id);
    const planted = new Set<string>();
    for (let count = 1 + random.below(60); planted.size < count; ) {
      const id = random.pick(ids);
      if (planted.has(id)) continue;
      planted.add(id);
      const side = random.pick([left, right]);
      const change = random.pick([
        "DELETE FROM t WHERE id = ?",
        "UPDATE t SET v = v + 0.0 WHERE id = ?",
        "UPDATE t SET updated_at = updated_at + 1 WHERE id = ?",
      ]);
      side.db.prepare(change).run(id);
    }
    for (let at = 0; at < 20; at++) {
      const id = `new ${random.hex(4)}`;
      planted.add(id);
      random.pick([left, right]).db.prepare("INSERT INTO t VALUES(?, 1, 1)").run(id);
    }
    const { ids: found, read } = await findDifferences(left, right);
    expect(found).toEqual([...planted].sort());
    // Some seven rows of every group in which something differs, and a little for the ends.
    expect(read).toBeLessThan(planted.size * 12 + 20);
  },
);

test("an empty table against a full one, and against another empty one", async () => {
  const [left] = await sides(300);
  const right = new Side();
  expect((await findDifferences(left, right)).ids).toHaveLength(300);
  expect((await findDifferences(right, new Side())).ids).toEqual([]);
});

test("a table with more groups than are kept is cut coarser, and still compared", async () => {
  const [left, right] = await sides(8_000);
  const [large] = await sides(100);
  for (const groupsMax of [10, 100, 500]) {
    const { db, table } = left;
    const digest = await digestRange(db, table, undefined, undefined, groupsMax);
    expect(digest.hash).toBe((await left.digest()).hash);
    expect(digest.groups).toBeWithin(groupsMax / 4, groupsMax + 2);
    // A finer digest of the other side has all cuts of the coarser one.
    const cuts = [digest.buckets(1_000), (await right.digest()).buckets(1_000)];
    const compare = () =>
      differingRanges(
        { from: "", to: "" },
        cuts.map(({ buckets }) => buckets),
      );
    expect(compare()).toEqual([]);
    right.db.run("UPDATE t SET v = v + 0.0 WHERE rowid = 4000");
    cuts[1] = (await right.digest()).buckets(1_000);
    expect(compare()).toHaveLength(1);
    right.db.run("UPDATE t SET v = CAST(v AS INTEGER) WHERE rowid = 4000");
  }
  expect((await digestRange(large.db, large.table, undefined, undefined, 1)).rows).toBe(100);
});

test("keys come in pages whose ends are keys, and ranges are open below and closed above", async () => {
  const [side] = await sides(1_000);
  const all = keysIn(side.db, side.table, { from: "", to: "" }, 10_000).keys.map(({ id }) => id);
  const paged: string[] = [];
  for (let from = ""; ; ) {
    const { keys, through } = keysIn(side.db, side.table, { from, to: "" }, 64);
    paged.push(...keys.map(({ id }) => id));
    if (through === undefined) break;
    expect(keys.at(-1)!.id).toBe(through);
    from = through;
  }
  expect(paged).toEqual(all);
  const range = { from: all[10]!, to: all[20]! };
  expect(keysIn(side.db, side.table, range, 10_000).keys.map(({ id }) => id)).toEqual(
    all.slice(11, 21),
  );
});

test("the state of a key: its row, its delete, or nothing", () => {
  const side = new Side(
    SCHEMA,
    "INSERT INTO t VALUES('row', 1, 7), ('odd', 1, NULL), ('low', 1, -9007199254740992)",
  );
  side.store.tombstones.put("t", "gone", 9, 1);
  side.store.tombstones.put("t", "row", 3, 1);
  const states = keysOf(side.db, side.table, ["gone", "row", "never", "odd", "low"]);
  const hash = expect.stringMatching(/^[0-9a-f]{16}$/);
  expect(states).toEqual([
    { id: "gone", version: 9, hash: null, deleted: true },
    { id: "row", version: 7, hash, deleted: false },
    { id: "never", version: null, hash: null, deleted: false },
    { id: "odd", version: null, hash, deleted: false },
    { id: "low", version: null, hash, deleted: false },
  ]);
  expect(states[1]!.hash).toBe(keysIn(side.db, side.table, { from: "", to: "" }, 9).keys[2]!.hash!);
});

test("tombstones have a hash of their own, of key and version and not of when", async () => {
  const [left, right] = [new Side(), new Side()];
  left.store.tombstones.put("t", "a", 1, 100);
  left.store.tombstones.put("t", "b", 2, 100);
  left.store.tombstones.put("u", "b", 3, 100);
  right.store.tombstones.put("t", "b", 2, 200);
  right.store.tombstones.put("t", "a", 1, 300);
  const [one, other] = await Promise.all([left, right].map(({ db }) => digestTombstones(db, "t")));
  expect(one).toEqual(other!);
  expect(one!.count).toBe(2);
  right.store.tombstones.put("t", "a", 2, 300);
  expect(await digestTombstones(right.db, "t")).not.toEqual(one!);
});

// ── Reading whole tables while others write ───────────────────────────────────────────────────

function file(rows: number) {
  const folder = mkdtempSync(join(tmpdir(), "hook-sync-digest-"));
  close.push(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "a.db");
  const db = new Database(path);
  db.run("PRAGMA journal_mode = WAL");
  db.run(SCHEMA);
  db.run(
    "CREATE TABLE _hooksync_tombstones(tbl TEXT, id TEXT, version INTEGER, deleted_at INTEGER)",
  );
  db.run(`INSERT INTO t SELECT printf('%08d', value), 1, 1 FROM (${upTo(rows)})`);
  const digester = new Digester({ path, clock: systemClock, timers: systemTimers });
  close.unshift(() => db.close());
  close.unshift(() => digester.close());
  return { db, digester, table: new Side().table };
}

test("a reading is of one moment, however much is written meanwhile; keys are as they are now", async () => {
  const { db, digester, table } = file(30_000);
  const before = await digestRange(db, table);
  const reading = digester.read("s", [table, { ...table, key: "again" }], false);
  let writes = 0;
  let isOver = false;
  void reading.finally(() => {
    isOver = true;
  });
  while (!isOver) {
    await new Promise((resolve) => setImmediate(resolve));
    db.run(
      `UPDATE t SET v = 2 WHERE id = '${String(30_000 - (writes % 30_000)).padStart(8, "0")}'`,
    );
    writes++;
  }
  const [first, second] = await reading;
  expect(writes).toBeGreaterThan(5);
  expect([first!.rows, first!.hash]).toEqual([30_000, before.hash]);
  expect(second!.hash).toBe(before.hash);

  const [all] = digester.buckets("s", "t", [{ from: "", to: "" }], 1_000);
  expect(all!.buckets.reduce((sum, { rows }) => sum + rows, 0)).toBe(30_000);
  const last = { from: all!.buckets.at(-2)!.to, to: "" };
  const [keys] = digester.keysIn("s", "t", [last]);
  expect(keys!.keys.at(-1)!.hash).toBe(digester.keysOf(table, ["00030000"])[0]!.hash);
  expect(keys!.keys.at(-1)!.hash).not.toBe(keysIn(db, table, last, 1).keys[0]!.hash);
});

test("a snapshot that nobody made, or that is older than the last eight, is refused", async () => {
  const { digester, table } = file(100);
  for (let at = 0; at < 9; at++) await digester.read(`s${at}`, [table], false);
  const ask = (name: string) => () => digester.buckets(name, "t", [{ from: "", to: "" }], 4);
  expect(ask("none")).toThrow("begin again");
  expect(ask("s0")).toThrow("begin again");
  expect(ask("s8")()).toHaveLength(1);
  expect(() => digester.buckets("s8", "t", [{ from: "x", to: "y" }], 4)).toThrow("cuts");
});

test("closing ends a reading under way", async () => {
  const { digester, table } = file(30_000);
  const reading = digester.read("s", [table], true);
  await new Promise((resolve) => setImmediate(resolve));
  const ended = digester.close();
  expect(reading).rejects.toThrow("stopping");
  await ended;
});
