/** Which of several parked changes of one row stay: all that the row may need once they can be applied. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import { DeadLetters } from "../../lib/store/dead-letters.ts";
import { StoreFixture } from "../support/store-fixture.ts";

const NOW_MS = 1_800_000_000_000;

let file: StoreFixture;
let letters: DeadLetters;

beforeEach(() => {
  file = new StoreFixture();
  letters = new DeadLetters(file.db, 1_000);
});
afterEach(() => file.close());

function park(version: number | null, op: string, name = "a", more = {}): void {
  const change = JSON.stringify({
    op,
    table: "items",
    row: { id: "r", name, ...more, updated_at: version },
  });
  const parking = {
    kind: "park",
    code: "ahead",
    reason: "too early",
    op,
    table: "items",
    id: "r",
    version,
  } as const;
  const from = { peer: "b", origin: { name: "b", isForeign: false } };
  letters.park(parking, from, change, NOW_MS);
}

function kept(): string[] {
  return letters.due(NOW_MS).map((parked) => {
    const { op, row } = JSON.parse(parked.change) as { op: string; row: { name: string } };
    return `${op} ${parked.version} ${row.name}`;
  });
}

test("a delete has the version of the last change of its row, and neither replaces the other", () => {
  park(5, "UPDATE");
  park(5, "DELETE");
  park(5, "UPDATE");
  expect(kept()).toEqual(["UPDATE 5 a", "DELETE 5 a"]);
});

test("both sides of a tie stay, a repeat is one", () => {
  park(5, "UPDATE", "a");
  park(5, "UPDATE", "b");
  park(5, "UPDATE", "a");
  expect(kept()).toEqual(["UPDATE 5 a", "UPDATE 5 b"]);
});

test("a higher version takes the place of all lower ones, but of no delete, which a column of ours may feel", () => {
  park(5, "UPDATE", "a");
  park(5, "DELETE");
  park(6, "UPDATE", "c");
  park(4, "UPDATE", "d");
  expect(kept()).toEqual(["DELETE 5 a", "UPDATE 6 c"]);
  park(4, "DELETE");
  expect(kept()).toEqual(["DELETE 5 a", "UPDATE 6 c"]);
  park(7, "DELETE");
  expect(kept()).toEqual(["DELETE 7 a"]);
});

test("what was not kept does not count towards the limit", () => {
  park(5, "UPDATE");
  for (let n = 0; n < 100; n++) park(4, "UPDATE");
  park(6, "UPDATE");
  expect(kept()).toEqual(["UPDATE 6 a"]);
});

test("a lower version stays where it carries a column that the higher one lacks, in any order", () => {
  park(6, "UPDATE", "new");
  park(5, "UPDATE", "old", { color: "red" });
  expect(kept()).toEqual(["UPDATE 5 old", "UPDATE 6 new"]);
  park(7, "UPDATE", "newer");
  expect(kept()).toEqual(["UPDATE 5 old", "UPDATE 7 newer"]);
  park(8, "UPDATE", "newest", { Color: "blue" });
  expect(kept()).toEqual(["UPDATE 8 newest"]);
});
