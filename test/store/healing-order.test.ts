/**
 * Deletes that may have overtaken a change on their way to a foreign peer, which keeps no tombstones: the
 * peer has the row again, and nobody tells. Such deletes are announced again by and by.
 */
import { afterEach, beforeEach, expect, test } from "bun:test";
import { ChangeLog } from "../../lib/store/change-log.ts";
import { Healing, LOCAL_ORIGIN, type Origin } from "../../lib/store/healing.ts";
import { StoreFixture } from "../support/store-fixture.ts";

const NOW_MS = 1_800_000_000_000;
const OTHER: Origin = { name: "aa00aa00", isForeign: false };
const FOREIGN: Origin = { name: "go", isForeign: true };

let file: StoreFixture;
let healing: Healing;

beforeEach(() => {
  file = new StoreFixture();
  healing = openHealing();
  healing.activate(NOW_MS);
});
afterEach(() => file.close());

function openHealing(): Healing {
  return new Healing({ db: file.db, log: new ChangeLog(file.db), tombstones: file.tombstones });
}

/** Changes of one row, in this order; the last one is its delete. */
function deleteAfter(...origins: readonly Origin[]): void {
  for (const [index, origin] of origins.entries()) {
    const isDelete = index === origins.length - 1;
    if (isDelete) file.tombstones.put("items", "a", 5, NOW_MS);
    healing.note(file.table(), "a", origin, isDelete, NOW_MS + index);
  }
}

function announcements(): number {
  const day = NOW_MS + 24 * 3_600_000;
  return healing.runDue((key) => (key === "items" ? file.table() : undefined), day);
}

test.each<[announced: number, why: string, origins: readonly Origin[]]>([
  [0, "ours made and deleted it", [LOCAL_ORIGIN, LOCAL_ORIGIN]],
  [0, "another of ours made and deleted it", [OTHER, OTHER]],
  [1, "another of ours deleted what was made here", [LOCAL_ORIGIN, OTHER]],
  [1, "the last change is the deleter's, one before it is not", [LOCAL_ORIGIN, OTHER, OTHER]],
  [1, "a foreign node made it", [FOREIGN, LOCAL_ORIGIN]],
])("announced again %p times where %s", (announced, _, origins) => {
  deleteAfter(...origins);
  expect(announcements()).toBe(announced);
});

test("behind a hub every delete of ours is announced again, also after a restart", () => {
  healing.meetHub(NOW_MS);
  healing = openHealing();
  deleteAfter(LOCAL_ORIGIN, LOCAL_ORIGIN);
  expect(announcements()).toBe(1);
  expect(file.log()).toMatchObject([{ op: "DELETE", row_id: "a" }]);
});

test("what was deleted before it was known that a peer is a hub is announced, too", () => {
  deleteAfter(LOCAL_ORIGIN);
  healing.meetHub(NOW_MS);
  expect(announcements()).toBe(1);
});

test("what was on its way before a foreign node was heard of counts as made here", () => {
  file.db.run("DELETE FROM _hooksync WHERE key = 'foreign'");
  file.db.run("INSERT INTO items(id, updated_at) VALUES ('a', 5)");
  healing = openHealing();
  healing.activate(NOW_MS);
  file.db.run("DELETE FROM _changes");
  deleteAfter(FOREIGN);
  expect(announcements()).toBe(1);
});
