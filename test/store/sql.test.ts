/** Names as SQL text, and what is read out of the SQL that applications wrote. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import {
  nameKey,
  quoteName,
  quoteText,
  sourceOf,
  statesConflictClause,
  tablesWrittenBy,
  tokenize,
  triggerParts,
} from "../../lib/store/sql.ts";

const ODD_NAMES = [
  "order",
  "a b",
  'q"t',
  "it's",
  "`b`",
  "[x]",
  "NEW",
  "__proto__",
  "a.b",
  "--",
  "/*",
  "größe",
  "😀",
  "tab\there",
  "",
];

test.each(ODD_NAMES)("%p is a name wherever it is quoted", (name) => {
  const db = new Database(":memory:");
  db.run(`CREATE TABLE t(${quoteName(name)})`);
  const column = db.query("SELECT name FROM pragma_table_info('t')").get();
  expect(column).toEqual({ name });
});

test.each(["", "it's", "a\0b", "\0", "''", "😀\u2028", "\\x00"])("%p is a string", (text) => {
  const row = new Database(":memory:").query(`SELECT ${quoteText(text)} AS text`).get();
  expect(row).toEqual({ text });
});

test("names differ by the case of other letters than ASCII", () => {
  expect(nameKey("ÄRGER Id")).toBe("Ärger id");
});

test.each([
  ["a -- no\n + b", ["a", "+", "b"]],
  ["a/* no */b", ["a", "b"]],
  ["a /* open", ["a"]],
  ["'it''s' || \"q\"\"t\"", ["'it''s'", "||", 'q"t']],
  ["`b``t`, [c d]", ["b`t", ",", "c d"]],
  ["1.5e3<=x->>'$.a'", ["1.5e3", "<=", "x", "->>", "'$.a'"]],
  ["größe😀 = naïve", ["größe😀", "=", "naïve"]],
  ["a\u00a0b c", ["a\u00a0b", "c"]],
])("%p has the tokens %p", (sql, expected) => {
  expect(tokenize(sql).map((token) => token.value)).toEqual(expected);
});

test("a comment at the end of an expression does not take what follows along", () => {
  const sql = "lower(a) -- by name\n|| /* and */b>>1";
  expect(sourceOf(sql, tokenize(sql))).toBe("lower(a) || b>>1");
});

test.each([
  ["INSERT INTO a SELECT 1", ["a"]],
  ["INSERT OR IGNORE INTO 'A b' VALUES(1)", ["a b"]],
  ["REPLACE INTO [a] VALUES(1)", ["a"]],
  ["UPDATE OR REPLACE `a` SET x = 1", ["a"]],
  ['DELETE FROM "A"', ["a"]],
  ["SELECT 'INSERT INTO b' /* DELETE FROM c */ -- UPDATE d\n", []],
  ["INSERT INTO a VALUES(1) ON CONFLICT DO UPDATE SET x = 1; UPDATE b SET y = 2", ["a", "b"]],
  ["UPDATE a SET x = (SELECT 1); DELETE FROM b; INSERT INTO c DEFAULT VALUES", ["a", "b", "c"]],
  ['SELECT update_count FROM b; UPDATE a SET "update" = 1', ["a"]],
])("a body of %p writes %p", (body, expected) => {
  expect([...tablesWrittenBy(`CREATE TRIGGER x AFTER INSERT ON t BEGIN ${body}; END`)]).toEqual(
    expected,
  );
});

test.each([
  ["CREATE TABLE t(id TEXT PRIMARY KEY ON CONFLICT REPLACE)", true],
  ["create table t(a, unique (a) on /* any */ conflict ignore)", true],
  ["CREATE TABLE t(a REFERENCES b ON DELETE CASCADE, conflict)", false],
  ["CREATE TABLE t(\"ON CONFLICT\", b CHECK (b <> 'ON CONFLICT')) -- ON CONFLICT", false],
])("that %p says what a conflict does: %p", (sql, expected) => {
  expect(statesConflictClause(sql)).toBe(expected);
});

test.each([
  ["CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END", undefined],
  [
    "CREATE TRIGGER begin AFTER UPDATE OF begin ON t WHEN new.begin > 1 BEGIN SELECT 1; END",
    "WHEN",
  ],
  [
    "CREATE TRIGGER x AFTER INSERT ON t WHEN CASE WHEN new.a THEN 1 END BEGIN DELETE FROM t; END",
    "WHEN",
  ],
  [
    "CREATE TRIGGER x AFTER INSERT ON t /* WHEN BEGIN */ BEGIN UPDATE t SET a = 'WHEN'; END",
    undefined,
  ],
])("the parts of %p are found", (sql, when) => {
  const parts = triggerParts(sql);
  expect(parts.when === undefined ? undefined : parts.tokens[parts.when]!.value).toBe(when);
  expect(sql.slice(parts.tokens[parts.begin]!.start)).toMatch(/^BEGIN (SELECT|DELETE|UPDATE)/);
});
