/** Which SQL of a log a follower runs. */
import { describe, expect, test } from "bun:test";
import { CdcError } from "../../lib/cdc/error.ts";
import { checkSchemaStatement, isInternalName } from "../../lib/cdc/statement.ts";

describe("run", () => {
  test.each<[string, object]>([
    ["CREATE TABLE t (a)", { action: "create", type: "table", name: "t" }],
    ["create table if not exists t(a)", { name: "t", sql: "create table t(a)" }],
    ['CREATE TABLE "my ""t" (a, b DEFAULT \';\')', { name: 'my "t' }],
    ["CREATE TABLE main.t (a)", { name: "t" }],
    ["CREATE TABLE [x y] (a); ; ", { name: "x y", sql: "CREATE TABLE [x y] (a)" }],
    [
      "CREATE UNIQUE INDEX IF NOT EXISTS i ON t (a)",
      { type: "index", name: "i", sql: "CREATE UNIQUE INDEX i ON t (a)" },
    ],
    [
      "ALTER TABLE t ADD COLUMN b -- why",
      { action: "alter", name: "t", sql: "ALTER TABLE t ADD COLUMN b" },
    ],
    ["/* x */ ALTER TABLE t DROP b;", { action: "alter", name: "t" }],
    [
      'DROP TABLE IF EXISTS "t"',
      { action: "drop", type: "table", name: "t", sql: 'DROP TABLE "t"' },
    ],
    ["DROP INDEX i", { action: "drop", type: "index", name: "i" }],
    ["CREATE VIEW v AS SELECT 1", { action: "create", type: "view", name: "v" }],
    [
      "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM u; SELECT 1; END",
      { type: "trigger", name: "g" },
    ],
    ["CREATE TRIGGER g AFTER INSERT ON main.t BEGIN SELECT 1; END", { target: "t" }],
    ["CREATE TRIGGER g AFTER INSERT ON 't' BEGIN SELECT 1; END", { target: "t" }],
    [
      'CREATE TRIGGER "and on u" UPDATE OF "on", a /* on u */ ON [t] BEGIN SELECT 1; END',
      { name: "and on u", target: "t" },
    ],
    ['CREATE INDEX i ON "t" (a)', { target: "t" }],
  ])("%s", (sql, expected) => {
    expect(checkSchemaStatement(sql)).toMatchObject(expected);
  });
});

describe("refused", () => {
  test.each([
    "",
    ";",
    "SELECT 1",
    "DELETE FROM t",
    "PRAGMA writable_schema = ON",
    "ATTACH 'x' AS y",
    "VACUUM",
    "CREATE TABLE t (a); DROP TABLE u",
    "DROP TABLE t; DELETE FROM u",
    "CREATE TABLE t AS SELECT * FROM u",
    "CREATE TEMP TABLE t (a)",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "CREATE VIRTUAL TABLE t USING fts5(a)",
    "CREATE TABLE other.t (a)",
    "CREATE TABLE temp.t (a)",
    "DROP TABLE _cdc_watermark",
    "DROP TABLE main._CDC_watermark",
    "CREATE TABLE sqlite_x (a)",
    "ALTER TABLE _cdc_watermark ADD COLUMN x",
    "CREATE INDEX i ON _cdc_watermark (log)",
    "CREATE INDEX i",
    "CREATE TABLE",
    "REINDEX",
    "EXPLAIN CREATE TABLE t (a)",
  ])("%s", (sql) => {
    expect(() => checkSchemaStatement(sql)).toThrow(CdcError);
  });
});

test.each([
  ["sqlite_sequence", true],
  ["turso_cdc_version", true],
  ["__turso_internal_seq_x", true],
  ["_cdc", true],
  ["_CDC_log", true],
  ["cdc", false],
  ["_cdcs", false],
  ["users", false],
])("%s belongs to an engine or to us: %p", (name, internal) => {
  expect(isInternalName(name)).toBe(internal);
});
