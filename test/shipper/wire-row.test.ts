import { describe, expect, test } from "bun:test";
import {
  blobColumns,
  hasBlobMark,
  lossy,
  type SpelledRow,
  spellRow,
  spellText,
} from "../../lib/shipper/wire-row.ts";

/** Bytes written as characters below U+0100. */
const bytes = (text: string) => Uint8Array.from(text, (character) => character.charCodeAt(0));
const hex = (text: string) => `\\\\x${bytes(text).toHex()}`;

describe("spellRow", () => {
  test.each([
    ["one value", '{"a":"x\xff"}', `{"a":"${hex("x\xff")}"}`, ["a"]],
    ["only the wrong ones", '{"a":"\xff","b":"é"}', `{"a":"${hex("\xff")}","b":"é"}`, ["a"]],
    ["space around", '{ "a" : "\xff" ,"b": 1 }', `{ "a" : "${hex("\xff")}" ,"b": 1 }`, ["a"]],
    ["a quote inside", '{"a":"\\"\xff\\\\"}', `{"a":"${hex('"\xff\\')}"}`, ["a"]],
    [
      "letter escapes",
      '{"a":"\\n\\t\\b\\f\\r\\/\xff"}',
      `{"a":"${hex("\n\t\b\f\r/\xff")}"}`,
      ["a"],
    ],
    ["a NUL", '{"a":"\\u0000\xff"}', `{"a":"${hex("\0\xff")}"}`, ["a"]],
    ["no row", "null", "null", []],
    ["an empty one", "{}", "{}", []],
  ] as const)("%s", (_, row, spelled, texts) => {
    // What is valid in these rows is Latin-1 here and UTF-8 there.
    const utf8 = Buffer.concat(
      [...row].map((c) => (c === "é" ? Buffer.from("é") : Buffer.from(bytes(c)))),
    );
    expect<SpelledRow>(spellRow(utf8)).toEqual({ text: spelled, texts: [...texts] });
  });

  test("an escaped character outside the first plane is its four bytes", () => {
    const { text } = spellRow(bytes('{"a":"\\ud83d\\ude00\xff"}'));
    expect(text).toBe('{"a":"\\\\xf09f9880ff"}');
  });

  test("columns are named as they are, also with escapes in their names", () => {
    expect(spellRow(bytes('{"a\\"b\\u0041":"\xff"}')).texts).toEqual(['a"bA']);
  });

  test("numbers, objects and arrays in between are stepped over", () => {
    const row = bytes('{"n":-1.5e3,"o":{"x":"}","y":[1,"]"]},"t":true,"z":"\xff"}');
    expect<SpelledRow>(spellRow(row)).toEqual({
      text: `{"n":-1.5e3,"o":{"x":"}","y":[1,"]"]},"t":true,"z":"${hex("\xff")}"}`,
      texts: ["z"],
    });
  });

  test("wrong bytes with no way out become U+FFFD, and nothing hangs", () => {
    for (const row of [
      '{"\xff":1}',
      '{"o":["\xff"]}',
      "\xff",
      '{"a":"\xff',
      '{"a":',
      "{",
      '{"a"\xff',
    ]) {
      const spelled = spellRow(bytes(row));
      expect(Buffer.from(spelled.text).toString("utf8")).toBe(spelled.text);
    }
  });
});

describe("BLOBs", () => {
  test.each([
    ['{"id":"a","photo":"\\u005cx00ff","empty":"\\u005cx","n":1}', ["photo", "empty"]],
    ['{"we\\"ird\\\\":"\\u005cx00"}', ['we"ird\\']],
    ['{"":"\\u005cx00","\\u00e9":"\\u005cx00"}', ["", "é"]],
    ['{"a":"\\\\x00ff","b":"\\\\u005cx00","c":"\\"\\\\u005cx"}', []],
    ['{"a":"x\\":\\"\\\\u005cx00"}', []],
    ['{ "a" : "\\u005cx00" , "b":\n"\\u005cx" }', ["a", "b"]],
    ["{}", []],
    ["null", []],
    ['"\\u005cx00"', []],
  ])("%s: %p", (row, columns) => {
    expect(blobColumns(row)).toEqual(columns);
  });

  test("are strings of \\x and hex to every reader", () => {
    expect(JSON.parse('{"a":"\\u005cx00ff"}')).toEqual({ a: "\\x00ff" });
  });

  test("a text that looks like the mark is none", () => {
    for (const text of ['"\\u005cx', "\\x00", "\\u005cx00", '\\"\\u005cx00']) {
      const row = JSON.stringify({ id: text, note: `a${text}` });
      expect(hasBlobMark(Buffer.from(row))).toBe(false);
      expect(blobColumns(row)).toEqual([]);
    }
  });

  test("only the bytes of the view are looked at", () => {
    const two = bytes('{"a":"\\u005cx00"}{"b":1}');
    expect(hasBlobMark(two)).toBe(true);
    expect(hasBlobMark(two.subarray(18))).toBe(false);
  });
});

test("spellText is a JSON string of \\x and hex", () => {
  expect(JSON.parse(spellText(bytes("a\xff")))).toBe("\\x61ff");
});

test("lossy keeps a BOM: it is a character of the text", () => {
  expect(lossy(Buffer.from("\ufeffa"))).toBe("\ufeffa");
});
