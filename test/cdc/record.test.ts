/** The decoder against what SQLite writes into its pages, and against bytes that nobody wrote. */
import { Database } from "bun:sqlite";
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BrokenText, type CdcValue } from "../../lib/cdc/change.ts";
import { CdcError } from "../../lib/cdc/error.ts";
import { decodeRecord } from "../../lib/cdc/record.ts";
import { forSeeds } from "../support/seeded.ts";
import { readRecords } from "./support/page-reader.ts";
import { ALL_VALUES, BLOBS, BROKEN, INTEGERS, REALS, TEXTS } from "./support/values.ts";

const folder = mkdtempSync(join(tmpdir(), "cdc-record-"));
const path = join(folder, "values.db");
let records: Map<bigint, Uint8Array>;

beforeAll(() => {
  const db = new Database(path);
  db.run("PRAGMA page_size = 1024");
  // An integer first: format 4, in which 0 and 1 are serial types of their own.
  db.run("CREATE TABLE v (a, b)");
  const plain = db.prepare("INSERT INTO v VALUES (?, NULL)");
  const real = db.prepare("INSERT INTO v VALUES (CAST(? AS REAL), NULL)");
  const text = db.prepare("INSERT INTO v VALUES (CAST(? AS TEXT), NULL)");
  for (const value of ALL_VALUES) {
    if (typeof value === "number") real.run(value);
    else if (value instanceof BrokenText) text.run(value.bytes);
    else plain.run(value);
  }
  db.run("CREATE TABLE wide (k INTEGER PRIMARY KEY, a, b, c, d, e, f)");
  db.run("INSERT INTO wide VALUES (-5, 1, 2.5, 'x', x'00', NULL, 300)");
  db.run(`CREATE TABLE columns_300 (${columns(300)})`);
  db.run(`INSERT INTO columns_300 VALUES (${Array.from({ length: 300 }, (_, i) => i).join(", ")})`);
  db.run("CREATE TABLE r (x REAL)");
  db.run("INSERT INTO r VALUES (3)");
  db.close(true);
  records = readRecords(path, "v");
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

function columns(count: number): string {
  return Array.from({ length: count }, (_, i) => `c${i}`).join(", ");
}

describe.each([
  ["integers", INTEGERS],
  ["reals", REALS],
  ["texts", TEXTS],
  ["blobs", BLOBS],
  ["texts that are not UTF-8", BROKEN],
])("%s", (_, values: readonly CdcValue[]) => {
  test("are what SQLite wrote", () => {
    for (const value of values) {
      const record = records.get(BigInt(ALL_VALUES.indexOf(value) + 1))!;
      expect(decodeRecord(record)).toEqual([value, null]);
    }
  });
});

test("the samples cover every serial type and integers of every width", () => {
  const types = new Set([...records.values()].map((record) => record[1]!));
  for (const type of [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13]) expect(types).toContain(type);
});

test("REAL 1 stays REAL, INTEGER 1 stays INTEGER", () => {
  expect(decodeRecord(records.get(BigInt(ALL_VALUES.indexOf(1) + 1))!)[0]).toBe(1);
  expect(decodeRecord(records.get(BigInt(ALL_VALUES.indexOf(1n) + 1))!)[0]).toBe(1n);
});

test("a REAL column holds a whole number as an integer, and the decoder says what is there", () => {
  expect([...readRecords(path, "r").values()].map(decodeRecord)).toEqual([[3n]]);
});

test("an INTEGER PRIMARY KEY is NULL in the file's record: its rowid holds it", () => {
  const wide = readRecords(path, "wide");
  expect(decodeRecord(wide.get(-5n)!)).toEqual([
    null,
    1n,
    2.5,
    "x",
    new Uint8Array([0]),
    null,
    300n,
  ]);
});

test("a header longer than one byte can say", () => {
  const [record] = readRecords(path, "columns_300").values();
  expect(decodeRecord(record!)).toEqual(Array.from({ length: 300 }, (_, i) => BigInt(i)));
});

test("bytes of a record lie anywhere in their buffer", () => {
  const record = records.get(BigInt(ALL_VALUES.indexOf(2 ** 53) + 1))!;
  const larger = new Uint8Array(record.length + 10).fill(0xee);
  larger.set(record, 5);
  expect(decodeRecord(larger.subarray(5, 5 + record.length))).toEqual([2 ** 53, null]);
});

test("a record cut anywhere, or with a byte more, is an error", () => {
  for (const record of records.values()) {
    // Long ones at their ends only: what lies between is one value.
    const cuts = [...Array(record.length).keys()].filter(
      (at) => at < 80 || at > record.length - 20,
    );
    for (const length of cuts) {
      expect(() => decodeRecord(record.subarray(0, length))).toThrow(CdcError);
    }
    expect(() => decodeRecord(new Uint8Array([...record, 0]))).toThrow(CdcError);
  }
});

test.each([
  ["nothing", []],
  ["a header of no bytes", [0]],
  ["a header beyond the end", [200, 1]],
  ["serial type 10", [2, 10]],
  ["serial type 11", [2, 11]],
  ["a value of 2^62 bytes", [10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]],
  ["a number that goes on past the header", [2, 0x81]],
])("%s is no record", (_, bytes) => {
  expect(() => decodeRecord(new Uint8Array(bytes))).toThrow(/not an SQLite record/);
});

test("an empty record has no values", () => {
  expect(decodeRecord(new Uint8Array([1]))).toEqual([]);
});

test("any bytes are values or an error", async () => {
  await forSeeds(300, (random) => {
    const samples = [...records.values()].filter((record) => record.length < 200);
    for (let i = 0; i < 40; i++) {
      const bytes = random.chance(0.5)
        ? Uint8Array.from({ length: random.below(60) }, () => random.below(256))
        : random.pick(samples).slice();
      if (bytes.length > 0) bytes[random.below(bytes.length)] = random.below(256);
      try {
        expect(decodeRecord(bytes)).toBeArray();
      } catch (error) {
        expect(error).toBeInstanceOf(CdcError);
      }
    }
  });
});
