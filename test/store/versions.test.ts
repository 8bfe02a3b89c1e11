/** DESIGN.md, "Versions": what becomes of a row, from what was recorded of it. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import {
  isOddSql,
  judgeVersion,
  type LiftVerdict,
  type Stamp,
  stampOf,
  type Trace,
} from "../../lib/store/versions.ts";

const NOW = 1_800_000_000_000;
const HOUR = 3_600_000;
/** A stamp of a clock that is years ahead. */
const FAR = 99_999_999_999_999;

const insert = (wrote: number): Trace => ({ kind: "insert", wrote });
const update = (was: number, wrote: number): Trace => ({ kind: "update", was, wrote });
const remove = (was: number): Trace => ({ kind: "delete", was });
const note = (was: number): Trace => ({ kind: "note", was });

function judge(traces: Trace[], stored: Stamp | undefined, tombstone?: number): LiftVerdict {
  return judgeVersion({ traces, stored, tombstone }, NOW);
}

const kept = (isNew: boolean): LiftVerdict => ({ kind: "keep", isNew });
const lifted = (version: number, isNew: boolean): LiftVerdict => ({ kind: "lift", version, isNew });
const gone = (version: number): LiftVerdict => ({ kind: "gone", version });

test.each<[string, Trace[], Stamp, number | undefined, LiftVerdict]>([
  ["a new row with a sane stamp stays", [insert(5)], 5, undefined, kept(true)],
  ["an update to a higher stamp stays", [update(5, 6)], 6, undefined, kept(false)],
  ["an hour ahead is still a race", [insert(NOW + HOUR)], NOW + HOUR, undefined, kept(true)],
  ["no stamp", [insert(0)], "odd", undefined, lifted(NOW, true)],
  ["the stamp it had", [update(5, 5)], 5, undefined, lifted(NOW, false)],
  ["a lower one", [update(7, 5)], 5, undefined, lifted(NOW, false)],
  ["a clock behind what stood there", [update(NOW + 9, 5)], 5, undefined, lifted(NOW + 10, false)],
  ["more than an hour ahead", [insert(FAR)], FAR, undefined, lifted(NOW, true)],
  ["above what was far ahead before", [update(FAR, FAR)], FAR, undefined, lifted(FAR + 1, false)],
  ["the tombstone's version", [insert(5)], 5, 5, lifted(NOW, true)],
  ["a tombstone ahead of the clock", [insert(5)], 5, NOW + 9, lifted(NOW + 10, true)],
  ["above the tombstone", [insert(6)], 6, 5, kept(true)],
  ["negative, where nothing was", [insert(-5)], -5, undefined, kept(true)],
  ["negative, where no stamp was", [update(0, -5)], -5, undefined, lifted(NOW, false)],
])("%s", (_, traces, stored, tombstone, expected) => {
  expect(judge(traces, stored, tombstone)).toEqual(expected);
});

test.each<[string, Trace[], Stamp, LiftVerdict]>([
  ["in order", [update(5, 9), update(9, 7)], 7, lifted(NOW, false)],
  ["a trigger's update logged first", [update(7, 8), update(5, 7)], 8, kept(false)],
  ["deleted and made again with its stamp", [remove(5), insert(5)], 5, lifted(NOW, false)],
  [
    "the same with a clock behind",
    [remove(NOW + 9), insert(NOW + 9)],
    NOW + 9,
    lifted(NOW + 10, false),
  ],
  ["thrown out by REPLACE", [note(9), insert(5)], 5, lifted(NOW, false)],
  [
    "far ahead, left as it was, then thrown out by REPLACE",
    [update(FAR, FAR), note(FAR), insert(0)],
    "odd",
    lifted(FAR + 1, false),
  ],
  [
    "far ahead and back and forth, then thrown out",
    [update(FAR, FAR + 5), update(FAR + 5, FAR), note(FAR), insert(0)],
    "odd",
    lifted(FAR + 1, false),
  ],
  [
    "made in between with a stamp far ahead, left as it was, then thrown out",
    [insert(5), update(5, FAR), update(FAR, FAR), note(FAR), insert(7)],
    7,
    kept(true),
  ],
  [
    "thrown out and far ahead, made again as far",
    [note(FAR), insert(FAR)],
    FAR,
    lifted(FAR + 1, false),
  ],
  ["far ahead for a moment only", [insert(FAR), update(FAR, 5)], 5, kept(true)],
  [
    "far ahead for a moment, and noted then",
    [insert(FAR), note(FAR), update(FAR, 5)],
    5,
    kept(true),
  ],
  [
    "a trigger's update away from far ahead, logged first",
    [update(FAR, 7), insert(FAR)],
    7,
    kept(true),
  ],
  ["from far ahead and back to it", [update(FAR, 5), update(5, FAR)], FAR, lifted(FAR + 1, false)],
  [
    "to far ahead and back, logged in reverse",
    [update(FAR, 5), update(5, FAR)],
    5,
    lifted(NOW, false),
  ],
  [
    "thrown out after it was written",
    [update(FAR, 5), note(5), insert(7)],
    7,
    lifted(FAR + 1, false),
  ],
  [
    "thrown out and made again, logged before what it did to itself",
    [insert(5), update(9, 7)],
    5,
    lifted(NOW, false),
  ],
])("several statements, %s", (_, traces, stored, expected) => {
  expect(judge(traces, stored)).toEqual(expected);
});

test.each<[string, Trace[], number | undefined, LiftVerdict]>([
  ["the row's version", [remove(7)], undefined, gone(7)],
  ["not below its tombstone", [remove(7)], 9, gone(9)],
  ["the last stamp it had", [update(5, 8), remove(8)], undefined, gone(8)],
  [
    "the version peers know, where a lower one was written",
    [update(9, 5), remove(5)],
    undefined,
    gone(9),
  ],
  [
    "the same, made and thrown out in between",
    [note(9), update(9, 9), remove(9), insert(3), remove(3)],
    undefined,
    gone(9),
  ],
  ["thrown out by REPLACE", [note(7)], undefined, gone(7)],
  ["thrown out by REPLACE once written", [update(5, 8), note(8)], undefined, gone(8)],
  ["written after it was noted", [note(5), update(5, 8)], undefined, gone(8)],
  [
    "never far ahead, if only the last stamp was",
    [update(5, FAR), remove(FAR)],
    undefined,
    gone(5),
  ],
  ["far ahead, if peers know it so", [remove(FAR)], undefined, gone(FAR)],
  ["a row without a stamp", [remove(0)], undefined, gone(0)],
])("a delete has %s", (_, traces, tombstone, expected) => {
  expect(judge(traces, undefined, tombstone)).toEqual(expected);
});

test("an update of the id is a delete of the old one and an insert of the new one", () => {
  expect(judge([remove(9)], undefined)).toEqual(gone(9));
  // The triggers log no `was` for the id it got: nothing was there.
  expect(judge([insert(9)], 9)).toEqual(kept(true));
  expect(judge([note(20), insert(9)], 9)).toEqual(lifted(NOW, false));
});

test.each<[number | null, string, Stamp]>([
  [5, "integer", 5],
  [0, "integer", 0],
  [null, "null", "odd"],
  [1.5, "real", "odd"],
  [5, "text", "odd"],
  [2 ** 53 - 2, "integer", 2 ** 53 - 2],
  [2 ** 53 - 1, "integer", "odd"],
  [2 ** 63, "integer", "odd"],
  [-(2 ** 53) + 1, "integer", -(2 ** 53) + 1],
  [-(2 ** 53), "integer", "odd"],
  [-(2 ** 63), "integer", "odd"],
])("a stored %p of type %s counts as %p", (value, kind, expected) => {
  expect(stampOf(value, kind)).toBe(expected);
  const db = new Database(":memory:");
  db.run("CREATE TABLE t(updated_at)");
  const exact = kind === "integer" && value !== null ? BigInt(value) : value;
  if (exact === null || exact < 2n ** 63n) {
    db.run("INSERT INTO t VALUES(?)", [kind === "text" ? String(exact) : exact]);
    const sql = `SELECT ${isOddSql("updated_at")} AS odd FROM t`;
    expect(db.query(sql).get()).toEqual({ odd: expected === "odd" ? 1 : 0 });
  }
  db.close();
});
