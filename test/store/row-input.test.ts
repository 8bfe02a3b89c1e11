import { expect, test } from "bun:test";
import { RequestError } from "../../lib/base/errors.ts";
import { parseJson, type RowInput, readShape } from "../../lib/store/row-input.ts";
import { StoreFixture } from "../support/store-fixture.ts";

const fixture = new StoreFixture(`
  CREATE TABLE kinds(
    id TEXT PRIMARY KEY, i INTEGER, r REAL, t TEXT, b BLOB, n NUMERIC, x, flag BOOLEAN, at DATETIME,
    twice AS (i * 2), created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE plain(id TEXT PRIMARY KEY, created_at TEXT, node_id INTEGER, updated_at INTEGER)`);
const reader = fixture.repository.reader(fixture.table("kinds"));

function read(json: string): RowInput {
  return reader.newRow(parseJson(json));
}

function refusal(json: string): string {
  try {
    read(json);
  } catch (error) {
    if (error instanceof RequestError) return `${error.status} ${error.message}`;
    throw error;
  }
  throw new Error(`${json} was taken`);
}

test.each([
  ['{"i": 42}', 42],
  ['{"i": -0}', 0],
  ['{"i": 1.0}', 1n],
  ['{"i": 1e3}', 1000n],
  ['{"i": 9007199254740993}', 9007199254740993n],
  ['{"i": 9223372036854775807}', 9223372036854775807n],
  ['{"i": -9223372036854775808}', -9223372036854775808n],
  ['{"r": 1}', 1],
  ['{"r": 0.1}', 0.1],
  ['{"r": 9e999}', Number.POSITIVE_INFINITY],
  ['{"r": 9007199254740993}', 9007199254740992],
  ['{"t": "a\\u0000b"}', "a\0b"],
  ['{"t": "\\\\x00ff"}', "\\x00ff"],
  ['{"t": ""}', ""],
  ['{"b": "\\\\x00fF"}', new Uint8Array([0, 255])],
  ['{"b": "\\\\x"}', new Uint8Array([])],
  ['{"n": "12.50"}', "12.50"],
  ['{"n": 12.5}', 12.5],
  ['{"n": 18446744073709551616}', 2 ** 64],
  ['{"x": "\\\\x00ff"}', new Uint8Array([0, 255])],
  ['{"x": "\\\\xzz"}', "\\xzz"],
  ['{"x": -0}', 0],
  ['{"x": 9223372036854775808}', 2 ** 63],
  ['{"flag": true}', 1],
  ['{"flag": false}', 0],
  ['{"at": "2026-01-01"}', "2026-01-01"],
  ['{"i": null}', null],
])("%s binds %p", (json, value) => {
  const { values } = read(json);
  expect(values).toEqual([value]);
  expect(Object.is(values[0], value) || value instanceof Uint8Array).toBe(true);
});

test.each([
  ['{"i": "42"}', "i: expected an integer, not a string"],
  ['{"i": 1.5}', "i: expected an integer"],
  ['{"i": 9223372036854775808}', "i: expected an integer of at most 64 bits"],
  ['{"i": -9223372036854775809}', "i: expected an integer of at most 64 bits"],
  ['{"i": 1e19}', "i: expected an integer of at most 64 bits"],
  ['{"i": 9e999}', "i: expected an integer of at most 64 bits"],
  ['{"i": true}', "i: expected an integer, not true or false"],
  ['{"i": [1]}', "i: expected an integer, not an array or object"],
  ['{"r": "1"}', "r: expected a number"],
  ['{"t": 5}', "t: expected a string"],
  ['{"t": 5.0}', "t: expected a string"],
  ['{"t": 12345678901234567890}', "t: expected a string"],
  ['{"t": {"a": 1}}', "t: expected a string, not an array or object"],
  ['{"t": "a\\ud800"}', "t: the string has half of a surrogate pair"],
  ['{"x": "\\udc00"}', "x: the string has half of a surrogate pair"],
  ['{"b": "hello"}', "b: expected a BLOB"],
  ['{"b": "\\\\x0"}', "b: expected a BLOB"],
  ['{"b": 5}', "b: expected a BLOB"],
  ['{"twice": 2}', "twice: this column is generated"],
  ['{"colour": "red"}', "colour: kinds has no such column"],
  ['{"__proto__": {"i": 1}}', "__proto__: kinds has no such column"],
  ['{"toString": 1}', "toString: kinds has no such column"],
  ['{"i": 1, "I": 2}', "i: this column is given twice"],
  ['{"id": "none"}', "id: expected a UUID"],
  ['{"id": null}', "id: expected a UUID"],
  ['{"id": "{0189dcd5-5311-7d40-8db0-9496a2eef37b}"}', "id: expected a UUID"],
  ["null", "expected a JSON object"],
  ["[]", "expected a JSON object"],
  ['"x"', "expected a JSON object"],
  ["1.0", "expected a JSON object"],
  ["{bad", "the body is not JSON"],
  ["", "the body is not JSON"],
  [`{"x": ${"[".repeat(100_000)}1.0${"]".repeat(100_000)}}`, "the body is nested too deeply"],
])("%s is refused", (json, message) => {
  expect(refusal(json)).toStartWith(`400 ${message}`);
});

test("more digits than an int64 has are not made a BigInt of, which takes minutes for millions", () => {
  expect(parseJson("9".repeat(20))).toBe(10n ** 20n - 1n);
  expect(typeof parseJson("9".repeat(21))).toBe("object");
});

test("only a column without a type needs to be told that 1.0 is REAL", () => {
  const { shape } = read('{"x": 1.0, "r": 1.0, "n": 1.0}');
  const slots = readShape(fixture.table("kinds"), shape);
  expect(slots.map((slot) => [slot.column.name, slot.asReal])).toEqual([
    ["x", true],
    ["r", false],
    ["n", false],
  ]);
});

test("what the server makes is ignored, in any spelling of its name", () => {
  const input = read('{"Updated_At": "x", "created_at": 5, "node_id": [1], "I": 3}');
  expect(input.values).toEqual([3]);
});

test("created_at and node_id of another type are ordinary columns", () => {
  const plain = fixture.repository.reader(fixture.table("plain"));
  expect(plain.newRow({ created_at: "2026-01-01", node_id: 5 }).values).toEqual(["2026-01-01", 5]);
});

test("a UUID is taken and written in lower case", () => {
  expect(read('{"id": "0189DCD5-5311-7D40-8DB0-9496A2EEF37B"}').id).toBe(
    "0189dcd5-5311-7d40-8db0-9496a2eef37b",
  );
});

test("a change may repeat the id of its row, and no other", () => {
  expect(reader.change({ id: "a/b", i: 1 }, "a/b").values).toEqual([1]);
  expect(() => reader.change({ id: "a", i: 1 }, "b")).toThrow("id: an id cannot be changed");
});

test("a change of nothing is refused", () => {
  for (const body of [{}, { updated_at: 5 }, { id: "a" }]) {
    expect(() => reader.change(body, "a")).toThrow("no column to change");
  }
});

test("the first wrong row of a batch is named", () => {
  expect(() => reader.newRows([{ i: 1 }, { i: "x" }])).toThrow("[1]: i: expected an integer");
});
