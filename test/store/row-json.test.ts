/**
 * A row as JSON is exact for every value that SQLite stores, whichever SQLite ran the trigger that
 * captured it, and a reader gets the same value back.
 */
import { Database } from "bun:sqlite";
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { BODY_BYTES_MAX } from "../../lib/protocol/limits.ts";
import { readRowJson, type Value } from "../../lib/protocol/values.ts";
import { installTriggers, survey } from "../../lib/store/catalog.ts";
import { migrate } from "../../lib/store/migrations.ts";
import { BLOB_MARK, jsonPath, rowJsonSql } from "../../lib/store/row-json.ts";
import { openPrograms, type Program } from "../support/old-sqlite.ts";
import { StoreFile } from "../support/open-store.ts";
import { Seeded } from "../support/seeded.ts";

/** A column of every affinity, in an ordinary table. */
const COLUMNS = { bare: "", t: "TEXT", b: "BLOB", r: "REAL", i: "INTEGER", n: "NUMERIC" };
const TABLE = `CREATE TABLE v(id TEXT PRIMARY KEY, ${Object.entries(COLUMNS)
  .map(([name, type]) => `${name} ${type}`)
  .join(", ")}, updated_at INTEGER)`;

const LITERALS = [
  "NULL",
  "0",
  "-1",
  "9007199254740993",
  "9223372036854775807",
  "-9223372036854775808",
  "0.1 + 0.2",
  "1.0",
  "-0.0",
  "1e21",
  "123456789012345678.0",
  "9e999",
  "-9e999",
  "5e-324",
  "2.2250738585072011e-308",
  "1.7976931348623157e308",
  "-1.7976931348623157e308",
  "''",
  "'1'",
  "'1.0'",
  "'null'",
  "'{\"a\":1}'",
  'json(\'{"a":[1,{"b":null}]}\')',
  "json_array('x', 1.5)",
  "json_object('k', 'v')",
  "json('5')",
  "'\"quoted\" \\ back'",
  "'\\x00ff'",
  "'\\u005cx00ff'",
  "char(0)",
  "'a' || char(0) || 'b'",
  "'👨‍👩‍👧 ' || char(0x2028) || '</script>&<'",
  "char(1, 8, 9, 10, 12, 13, 27, 127)",
  "CAST(x'61ff62' AS TEXT)",
  "CAST(x'ff00c3' AS TEXT)",
  "CAST(x'eda080' AS TEXT)",
  "x''",
  "x'00'",
  "x'00ff5c7861'",
  "zeroblob(300)",
];

let programs: Program[] = [];

beforeAll(async () => {
  programs = await openPrograms();
});

afterAll(() => {
  for (const program of programs) program.close();
});

/** What SQLite itself says of every stored value, by id and column. */
function stored(file: StoreFile): Map<string, string> {
  const values = new Map<string, string>();
  for (const column of Object.keys(COLUMNS)) {
    const rows = file.rows<{ id: string; kind: string; hex: string; real: number; digits: string }>(
      `SELECT id, typeof(${column}) AS kind, hex(CAST(${column} AS BLOB)) AS hex,
              CAST(${column} AS REAL) AS real, CAST(${column} AS TEXT) AS digits FROM v`,
    );
    for (const { id, kind, hex, real, digits } of rows) {
      const content = { text: hex, blob: hex, real: String(real), integer: digits, null: "" };
      values.set(`${id} ${column}`, `${kind} ${content[kind as keyof typeof content]}`);
    }
  }
  return values;
}

function told(value: Value): string {
  switch (value.kind) {
    case "null":
      return "null ";
    case "text":
      return `text ${Buffer.from(value.value).toString("hex").toUpperCase()}`;
    case "broken-text":
      return `text ${value.hex.toUpperCase()}`;
    case "blob":
      return `blob ${value.hex.toUpperCase()}`;
    default:
      return `${value.kind} ${Object.is(value.value, -0) ? 0 : value.value}`;
  }
}

/** The same of what the triggers captured, as the log has it before any settling. */
function captured(file: StoreFile): Map<string, string> {
  const values = new Map<string, string>();
  const rows = file.rows<{ row_id: string; json: Uint8Array }>(
    "SELECT row_id, CAST(row_data AS BLOB) AS json FROM _changes ORDER BY change_id",
  );
  for (const { row_id, json } of rows) {
    const row = readRowJson(json);
    for (const column of Object.keys(COLUMNS))
      values.set(`${row_id} ${column}`, told(row.get(column)!));
  }
  return values;
}

function insertAll(literals: readonly string[]): string[] {
  const names = Object.keys(COLUMNS);
  return literals.map(
    (literal, i) =>
      `INSERT INTO v(id, ${names.join(", ")}) VALUES('${i}', ${names.map(() => literal).join(", ")})`,
  );
}

describe.each([0, 1])("captured by program %p", (which) => {
  async function capture(statements: readonly string[]) {
    const program = programs[which];
    if (program === undefined) return; // left out, and said by openPrograms
    await using file = new StoreFile(TABLE);
    file.open({ asked: ["v"] });
    const errors = await program.run(file.path, statements);
    expect(errors.filter((error) => error !== "")).toEqual([]);
    expect(Object.fromEntries(captured(file))).toEqual(Object.fromEntries(stored(file)));
    expect(captured(file).size).toBeGreaterThan(0);
  }

  test("every kind of value, inserted", () => capture(insertAll(LITERALS)));

  test("every kind of value, by an update, whatever stood there before", async () => {
    const names = Object.keys(COLUMNS);
    const updates = LITERALS.map(
      (literal, i) =>
        `UPDATE v SET ${names.map((name) => `${name} = ${literal}`).join(", ")} WHERE id = '${i}'`,
    );
    await capture([...insertAll([...LITERALS].reverse()), ...updates]);
  });

  test("doubles of random bits, whole numbers among them", () => {
    const random = new Seeded(7);
    const bits = new DataView(new ArrayBuffer(8));
    const doubles = Array.from({ length: 600 }, (_, i) => {
      bits.setUint32(0, Math.floor(random.next() * 2 ** 32));
      bits.setUint32(4, Math.floor(random.next() * 2 ** 32));
      if (i % 3 === 0) return random.below(1_000_000) * 10 ** random.below(15);
      if (i % 3 === 1) return random.next() * 1e6;
      const value = bits.getFloat64(0);
      return Number.isFinite(value) ? value : 1.5;
    });
    const literals = doubles
      .map((value) => `${value}`)
      .map((text) => (/[.e]/.test(text) ? text : `${text}.0`));
    return capture(["BEGIN", ...insertAll(literals), "COMMIT"]);
  });
});

test("a BLOB and a text of the same characters as its wire form are told apart", () => {
  const db = new Database(":memory:");
  db.run("CREATE TABLE t(x); INSERT INTO t VALUES(x'00ff'), ('\\x00ff')");
  const columns = [{ name: "x", holds: "anything" as const }];
  const texts = db
    .query<{ json: string }, []>(`SELECT ${rowJsonSql("t", columns)} AS json FROM t`)
    .all()
    .map(({ json }) => json);
  expect(texts).toEqual([`{"x":${BLOB_MARK}00ff"}`, '{"x":"\\\\x00ff"}']);
  expect(texts.map((json) => JSON.parse(json).x)).toEqual(["\\x00ff", "\\x00ff"]);
});

test.each([1, 60, 61, 64, 120, 121, 500])("a row of %p columns is one object", (count) => {
  const db = new Database(":memory:");
  const names = Array.from({ length: count }, (_, i) => `c${i}`);
  db.run(`CREATE TABLE t(${names.join(", ")})`);
  db.run(
    `INSERT INTO t VALUES(${names.map((_, i) => (i % 7 === 0 ? "NULL" : `'{,' || char(0) || ${i}`)).join(", ")})`,
  );
  const sql = rowJsonSql(
    "t",
    names.map((name) => ({ name, holds: "anything" as const })),
  );
  const { json } = db.query<{ json: string }, []>(`SELECT ${sql} AS json FROM t`).get()!;
  const row = Object.entries(JSON.parse(json) as Record<string, unknown>);
  expect(row).toEqual(names.map((name, i) => [name, i % 7 === 0 ? null : `{,\0${i}`]));
  // Old builds take 127 arguments: two a column.
  expect([...sql.matchAll(/json_object\(/g)].length).toBe(Math.ceil(count / 60));
});

test.each(['q"t', "it's", "back\\slash", "a.b", "a[0]", "größe", "😀", "__proto__", "$", ""])(
  "a column %p is found in its row's JSON",
  (name) => {
    const db = new Database(":memory:");
    const row = db
      .query("SELECT json_object(?1, 5, 'b', 6) ->> ?2 AS value")
      .get(name, jsonPath(name));
    expect(row).toEqual({ value: 5 });
  },
);

test("a BLOB that no text could hold in hex is written all the same; its entry is more than any body takes", () => {
  const db = new Database(":memory:", { strict: true });
  db.run("CREATE TABLE t(id TEXT PRIMARY KEY, b BLOB, updated_at INTEGER)");
  migrate(db);
  installTriggers(db, survey(db, { all: true, names: [] }).synced.get("t")!);
  db.run(`INSERT INTO t VALUES('a', zeroblob(520000000), 1);
    UPDATE t SET b = x'01'; DELETE FROM t`);
  const isSent = db.query<{ fits: number }, []>(
    `SELECT octet_length(row_data) <= ${BODY_BYTES_MAX} AS fits FROM _changes ORDER BY change_id`,
  );
  expect(isSent.all().map(({ fits }) => fits)).toEqual([0, 1, 1]);
  db.close();
}, 60_000);
