/** Announcing a whole table: in slices, from where it was, with versions that peers take. */
import { describe, expect, test } from "bun:test";
import { StoreFile, T } from "../support/open-store.ts";

const TABLE = "CREATE TABLE t(id TEXT PRIMARY KEY, v, updated_at INTEGER)";

function fill(rows: number): string {
  return `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < ${rows})
    INSERT INTO t SELECT printf('r%05d', i), i, ${T} FROM r`;
}

/** A file whose triggers were missing for a while: every row is to be announced. */
async function withGap(sql: string, meanwhile = ""): Promise<StoreFile> {
  const file = new StoreFile(sql);
  file.open({ asked: ["t"] });
  await file.settle();
  file.write(`DROP TRIGGER t_ai; ${meanwhile}`);
  await file.settle();
  expect(file.kinds()).toContain("gap");
  return file;
}

async function step(file: StoreFile): Promise<void> {
  await file.store.runDue();
}

function rows(file: StoreFile): Record<string, unknown>[] {
  return file.entries().map(({ row_data }) => JSON.parse(row_data));
}

test("a large table goes in slices, and goes on after a restart where it was", async () => {
  await using file = await withGap(`${TABLE}; ${fill(5_000)}`);
  await step(file);
  expect(file.log()).toHaveLength(2_000);
  await file.close();
  file.open();
  for (let i = 0; i < 4; i++) await step(file);
  expect(rows(file).map((row) => row["v"])).toEqual(Array.from({ length: 5_000 }, (_, i) => i + 1));
  expect(file.store.settledThrough).toBe(5_000);
  expect(file.rows("SELECT key FROM _hooksync WHERE key LIKE 'announce%'")).toEqual([]);
});

test("ids of every kind are announced once", async () => {
  await using file = await withGap(
    `${TABLE}; INSERT INTO t VALUES(CAST(x'61ff' AS TEXT), 1, ${T}), (CAST(x'ff' AS TEXT), 2, ${T}), ('\ufffd', 3, ${T}), ('😀', 4, ${T}),
       ('a' || char(0) || 'b', 5, ${T}), (NULL, 6, ${T}), (x'00', 7, ${T})`,
  );
  for (let i = 0; i < 4; i++) await step(file);
  expect(rows(file).map((row) => row["v"])).toEqual([5, 1, 3, 4, 2]);
});

test("rows that may have been written unseen go one version up, and those that no peer would take higher", async () => {
  await using file = await withGap(
    `${TABLE}; INSERT INTO t VALUES('fine', 1, ${T}), ('buried', 1, ${T}), ('deep', 1, ${T + 100})`,
    "DELETE FROM t WHERE id <> 'fine'",
  );
  file.clock.ms += 1_000;
  file.write(`BEGIN; DROP TRIGGER t_au; DROP TRIGGER t_ai; INSERT INTO t VALUES('null', 1, NULL), ('text', 1, 'x'), ('far', 1, 99999999999999),
    ('near', 1, ${file.clock.ms + 60_000}), ('buried', 2, ${T}), ('deep', 2, ${T}); COMMIT`);
  await file.settle();
  const settled = file.store.settledThrough;
  await step(file);
  const versions = Object.fromEntries(
    file.entries(settled).map(({ row_id, row_data }) => [row_id, JSON.parse(row_data).updated_at]),
  );
  expect(versions).toEqual({
    fine: T + 1,
    buried: T + 1,
    deep: file.clock.ms,
    null: file.clock.ms,
    text: file.clock.ms,
    far: file.clock.ms,
    near: file.clock.ms + 60_001,
  });
  expect(file.rows("SELECT count(*) AS n FROM t WHERE updated_at = ?", file.clock.ms)).toEqual([
    { n: 4 },
  ]);
});

test("a table that goes while it is announced ends the announcement", async () => {
  await using file = await withGap(`${TABLE}; ${fill(3_000)}`);
  await step(file);
  file.write("DROP TABLE t");
  await step(file);
  await step(file);
  expect(file.log()).toHaveLength(2_000);
  expect(file.rows("SELECT key FROM _hooksync WHERE key LIKE 'announce%'")).toEqual([]);
});

describe("a trigger that forbids setting the stamp", () => {
  test.each(["ABORT, 'no'", "FAIL, 'no'", "IGNORE", "ROLLBACK, 'no'"])(
    "with RAISE(%s): the rows go as they are, and the node goes on",
    async (verdict) => {
      await using file = await withGap(
        `${TABLE}; CREATE TRIGGER no BEFORE UPDATE OF updated_at ON t BEGIN SELECT RAISE(${verdict}); END`,
        "INSERT INTO t VALUES('a', 1, NULL), ('b', 2, 5)",
      );
      // The transaction that was taken away is tried again by the next tick.
      for (let i = 0; i < 3; i++) await step(file).catch(() => undefined);
      expect(rows(file)).toEqual([
        { id: "a", v: 1, updated_at: null },
        { id: "b", v: 2, updated_at: 5 },
      ]);
      expect(file.rows("SELECT value FROM _meta")).toEqual([{ value: 0 }]);
    },
  );
});
