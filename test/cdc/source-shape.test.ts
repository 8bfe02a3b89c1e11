/** A source's tables without rows: what values stand for, at each place of a log, and again after a start. */
import { expect, test } from "bun:test";
import type { Batch, CdcChange } from "../../lib/cdc/change.ts";
import { SourceShape } from "../../lib/cdc/source-shape.ts";

const row: CdcChange = { kind: "put", table: "t", rowid: 1n, values: [1n] };
const schema = (sql: string): CdcChange => ({ kind: "schema", sql });

function batch(after: bigint, commit: bigint, ...changes: CdcChange[]): Batch {
  const kind = after === 0n ? "copy" : "transaction";
  const rest = { log: "L", mark: `m${commit}`, timeMs: 1, schema: null, close: () => {} };
  return { kind, after, commit, changes, ...rest };
}

const columnsOf = (shape: SourceShape) =>
  Object.fromEntries(
    [...shape.tables].map(([key, { columns }]) => [key, columns.map(({ name }) => name)]),
  );

const start = () => {
  const shape = new SourceShape([], null);
  const sql = [
    "CREATE TABLE t (A, b DEFAULT 7)",
    "CREATE TABLE u (x UNIQUE)",
    "CREATE INDEX i ON t (b)",
  ];
  const trigger = "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM u; END";
  shape.follow(
    batch(0n, 5n, ...[...sql, trigger].map(schema)),
    () => {},
    () => {},
  );
  return shape;
};

test("each row is told with the tables as they are at its place", () => {
  const shape = start();
  const seen: unknown[] = [];
  const changes = [row, schema("ALTER TABLE t ADD COLUMN c"), row, schema("DROP TABLE u"), row];
  shape.follow(
    batch(5n, 9n, ...changes),
    () => seen.push(columnsOf(shape)),
    () => seen.push("changed"),
  );
  expect(seen).toEqual([
    { t: ["A", "b"], u: ["x"] },
    "changed",
    { t: ["A", "b", "c"], u: ["x"] },
    "changed",
    { t: ["A", "b", "c"] },
  ]);
});

test("made again from its statements it goes on", () => {
  const before = start();
  const position = { log: "L", commit: 5n, mark: "m5" };
  const shape = new SourceShape(before.statements(), position);
  expect([...shape.tables.values()]).toEqual([...before.tables.values()]);
  expect(shape.tables.get("t")?.columns[1]).toMatchObject({ name: "b", defaultSql: "7" });
  expect(shape.statements()).toEqual(before.statements());
  const told: CdcChange[] = [];
  const take = (each: Batch) =>
    shape.follow(
      each,
      (change) => told.push(change),
      () => {},
    );
  expect(take(batch(4n, 5n, row))).toBe("already-applied");
  expect(take(batch(5n, 6n, row, schema("DROP TRIGGER g")))).toBe("applied");
  expect(told).toEqual([row]);
  expect(() => take(batch(5n, 7n, row))).toThrow("follows 5");
});

test("a failure on the way leaves the shape as it was", () => {
  const shape = start();
  const failing = () => {
    throw new Error("full");
  };
  const each = batch(5n, 9n, schema("DROP TABLE u"), row);
  expect(() => shape.follow(each, failing, () => {})).toThrow("full");
  expect(columnsOf(shape)).toEqual({ t: ["A", "b"], u: ["x"] });
  expect(
    shape.follow(
      each,
      () => {},
      () => {},
    ),
  ).toBe("applied");
});

test("tables with foreign keys are gone through once", () => {
  const shape = start();
  const child = schema("CREATE TABLE c (x REFERENCES t (A), updated_at)");
  shape.follow(
    batch(5n, 7n, child),
    () => {},
    () => {},
  );
  let rows = 0;
  const count = () => {
    rows++;
  };
  shape.follow(batch(7n, 9n, row, schema("ALTER TABLE c ADD COLUMN y"), row), count, () => {});
  expect(rows).toBe(2);
});
