import { Database } from "bun:sqlite";
import { expect, setDefaultTimeout, test } from "bun:test";
import type { Value } from "../../lib/protocol/values.ts";
import { readRowJson } from "../../lib/protocol/values.ts";
import { afterAffinity } from "../../lib/store/affinity.ts";
import { rowJsonSql } from "../../lib/store/row-json.ts";
import type { Affinity } from "../../lib/store/schema.ts";
import { bindingOf, markSql } from "../../lib/store/table-writer.ts";
import { randomValue } from "../support/random-values.ts";
import { forSeeds } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

const AFFINITIES: readonly (readonly [Affinity, string])[] = [
  ["integer", "INTEGER"],
  ["text", "VARCHAR(5)"],
  ["blob", ""],
  ["real", "DOUBLE"],
  ["numeric", "DECIMAL(10, 2)"],
];

const NUMBER_LIKE = [
  "1",
  " 1",
  "1.0",
  "1e2",
  "+5",
  ".5",
  "5.",
  "-",
  "1x",
  "0x10",
  "\t7",
  "9223372036854775808",
  "1e400",
  "--1",
  "é",
  "−1",
  "\u00a05",
];

test.each(AFFINITIES)("what is said of %s is what SQLite stores", async (affinity, declared) => {
  const db = new Database(":memory:", { strict: true });
  db.run(`CREATE TABLE t(x ${declared})`);
  const select = db.query<{ json: Uint8Array }, []>(
    `SELECT CAST(${rowJsonSql("t", [{ name: "x", holds: "anything" }])} AS BLOB) AS json FROM t`,
  );
  let said = 0;
  const check = (value: Value) => {
    const expected = afterAffinity(value, affinity);
    if (expected === undefined) return;
    said++;
    db.run("DELETE FROM t");
    db.query(`INSERT INTO t VALUES (${markSql(value)})`).run(bindingOf(value));
    expect([value, readRowJson(select.get()!.json).get("x")]).toEqual([value, expected]);
  };
  for (const text of NUMBER_LIKE) check({ kind: "text", value: text });
  await forSeeds(3_000, (random) => check(randomValue(random)));
  // Most values are plain; SQLite is asked only about numbers in texts and texts of numbers.
  expect(said).toBeGreaterThan(2_000);
  db.close();
});
