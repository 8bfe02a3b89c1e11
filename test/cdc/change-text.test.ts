/** Changes as text: exact for every value, strict about everything else. */
import { describe, expect, test } from "bun:test";
import type { CdcChange } from "../../lib/cdc/change.ts";
import { decodeChange, encodeChange, readInt64 } from "../../lib/cdc/change-text.ts";
import { CdcError } from "../../lib/cdc/error.ts";
import { ALL_VALUES, INTEGERS } from "./support/values.ts";

test("every value comes back with its kind", () => {
  for (const value of [...ALL_VALUES, -0]) {
    const change: CdcChange = { kind: "insert", table: "t", rowid: 1n, values: [value] };
    const text = encodeChange(change);
    expect(text).not.toContain("\n");
    expect(decodeChange(text)).toEqual(change);
  }
});

test("every rowid comes back", () => {
  for (const rowid of INTEGERS) {
    const change: CdcChange = { kind: "delete", table: 'a "b"', rowid };
    expect(decodeChange(encodeChange(change))).toEqual(change);
  }
});

test("numbers that other readers of JSON would round are text", () => {
  const change: CdcChange = {
    kind: "update",
    table: "t",
    rowid: 2n ** 60n,
    values: [2n ** 60n, 1],
  };
  expect(encodeChange(change)).toBe(
    '["=","t","1152921504606846976",[{"i":"1152921504606846976"},{"r":"1"}]]',
  );
});

describe("refused", () => {
  test.each([
    "",
    "{}",
    "[]",
    '["+"]',
    '["+","t","1"]',
    '["+","t",1,[]]',
    '["+","t","1",{}]',
    '["+","t","1",[true]]',
    '["+","t","1",[[]]]',
    '["+","t","1",[{"x":"1"}]]',
    '["+","t","1",[{"i":"1","r":"1"}]]',
    '["+","t","1",[{"i":"9223372036854775808"}]]',
    '["+","t","1",[{"r":"NaN"}]]',
    '["+","t","1",[{"r":"0x10"}]]',
    '["+","t","1",[{"b":"A"}]]',
    '["+","t","1",[{"b":"A?=="}]]',
    '["-","t","1","2"]',
    '["!"]',
    '["!",1]',
    '["?","t","1"]',
  ])("%s", (line) => {
    expect(() => decodeChange(line)).toThrow(CdcError);
  });

  test.each(["", "1.0", "1e3", " 1", "9223372036854775808", "-9223372036854775809", 1, null])(
    "%p as a 64-bit number",
    (text) => {
      expect(() => readInt64(text)).toThrow(CdcError);
    },
  );
});
