import { describe, expect, test } from "bun:test";
import { formatIdentity, type Identity, parseIdentity } from "../../lib/protocol/identity.ts";

const DB = "0123456789abcdef0123456789abcdef";

describe("the header of our own nodes", () => {
  test.each([
    [{ db: DB }, `v=1; db=${DB}`],
    [{ db: DB, prev: 41, rest: 0 }, `v=1; db=${DB}; prev=41; rest=0`],
    [{ db: DB, last: { batchId: 41, hash: "9c0d" } }, `v=1; db=${DB}; last=41.9c0d`],
    [
      { db: DB, last: { batchId: 5, hash: "0" }, doubt: { batchId: 41, hash: "9c0d" } },
      `v=1; db=${DB}; last=5.0; doubt=41.9c0d`,
    ],
    [
      { db: DB, prev: 0, rest: 9_007_199_254_740_991, last: { batchId: 0, hash: "0" } },
      `v=1; db=${DB}; prev=0; rest=9007199254740991; last=0.0`,
    ],
  ] as [Identity, string][])("%j is written and read back", (identity, header) => {
    expect(formatIdentity(identity)).toBe(header);
    expect(parseIdentity(header)).toEqual(identity);
  });

  test.each([
    [`v=1;db=${DB}`, "without blanks"],
    [`db=${DB} ; v=1 ;`, "in another order"],
    [`v=1; db=${DB}; later=x; also`, "with members of a later version"],
  ])("%s is read, too: %s", (header) => {
    expect(parseIdentity(header)).toEqual({ db: DB });
  });

  test.each([
    [null],
    [undefined],
    [""],
    ["v=1"],
    [`db=${DB}`],
    [`v=2; db=${DB}`],
    ["v=1; db="],
    ["v=1; db=short"],
    ["v=1; db=not-hex-at-all-xyz"],
    [`v=1; db=${"a".repeat(65)}`],
    [`v=1; db=${DB}${" ".repeat(2_000)}`],
  ])("%s is not ours: its sender counts as foreign", (header) => {
    expect(parseIdentity(header)).toBeUndefined();
  });

  test.each([
    ["prev=-1"],
    ["prev=1.5"],
    ["prev=x"],
    ["prev=9007199254740993"],
    ["last=5"],
    ["last=5."],
    ["last=x.9c"],
    ["last=5.XYZ"],
    ["rest="],
    ["doubt=5"],
  ])("a member that makes no sense counts as missing: %s", (part) => {
    expect(parseIdentity(`v=1; db=${DB}; ${part}`)).toEqual({ db: DB });
  });
});
