/** What is read of an application's tables: columns, keys, triggers. Which qualify: qualify.test.ts. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import {
  isCaptureTrigger,
  isInternalTable,
  readOtherRelations,
  readTables,
  type Table,
} from "../../lib/store/schema.ts";

function read(sql: string): Table {
  const db = new Database(":memory:");
  db.run(sql);
  return [...readTables(db).values()][0]!;
}

test.each([
  ["INT", "integer"],
  ["bigint unsigned", "integer"],
  ["VARCHAR(10)", "text"],
  ["NCHAR", "text"],
  ["CLOB", "text"],
  ["", "blob"],
  ["BLOB", "blob"],
  ["REAL", "real"],
  ["DOUBLE PRECISION", "real"],
  ["FLOAT", "real"],
  ["FLOATING POINT", "integer"],
  ["DECIMAL(1)", "numeric"],
  ["DATETIME", "numeric"],
  ["ANY", "numeric"],
])("a column declared %p has the affinity %p", (type, affinity) => {
  const [column] = read(`CREATE TABLE t(c ${type})`).columns;
  expect(column).toMatchObject({ name: "c", declaredType: type, affinity });
});

test("what a column may hold is only narrowed where SQLite keeps to it", () => {
  const holds = (sql: string) => read(sql).columns.map((column) => column.holds);
  expect(holds("CREATE TABLE t(a TEXT, b INTEGER, c, d REAL)")).toEqual([
    "text",
    "anything",
    "anything",
    "anything",
  ]);
  expect(holds("CREATE TABLE t(a TEXT, b INTEGER, c ANY, d REAL) STRICT")).toEqual([
    "text",
    "integer",
    "anything",
    "anything",
  ]);
});

test("generated columns are told apart, the table's options too", () => {
  const table = read(
    `CREATE TABLE "T x"("Id" TEXT PRIMARY KEY, a INT, b INT AS (a + 1) STORED, "C" AS (a) VIRTUAL) WITHOUT ROWID`,
  );
  expect(table).toMatchObject({ name: "T x", key: "t x", withoutRowid: true, strict: false });
  expect(table.columns.map(({ name, key }) => [name, key])).toEqual([
    ["Id", "id"],
    ["a", "a"],
  ]);
  expect([...table.generated.keys()]).toEqual(["b", "c"]);
  expect(read("CREATE TABLE t(a INT REFERENCES u(x)) STRICT")).toMatchObject({
    strict: true,
    hasForeignKeys: true,
  });
});

test.each([
  ["'x'", "'x'"],
  ["-5", "(-5)"],
  ["NULL", "NULL"],
  ["true", "true"],
  ["CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP"],
  ["word", "'word'"],
  ['"two words"', "'two words'"],
  ["x'00'", "(x'00')"],
  ["(lower('A') -- low\n)", "(lower('A'))"],
])("DEFAULT %s is %s wherever it stands", (text, expected) => {
  const db = new Database(":memory:");
  db.run(`CREATE TABLE t(a, c DEFAULT ${text}); INSERT INTO t(a) VALUES(1)`);
  const column = [...readTables(db).values()][0]!.columns[1]!;
  expect(column.defaultSql).toBe(expected);
  const same = db.query(`SELECT c IS (${column.defaultSql}) AS same FROM t`).get();
  if (text !== "CURRENT_TIMESTAMP") expect(same).toEqual({ same: 1 });
});

test("unique keys are read with their terms, collations and columns", () => {
  const table = read(
    `CREATE TABLE t(id TEXT PRIMARY KEY, a TEXT UNIQUE, b TEXT COLLATE NOCASE, "c d", g AS (a || b), UNIQUE(b, "c d"));
     CREATE UNIQUE INDEX e ON t(lower(a) COLLATE NOCASE /* , */ DESC, (b || ',') -- ,
       , g) WHERE "c d" > 1 -- end
     ;
     CREATE INDEX plain ON t(a)`,
  );
  expect(table.uniqueKeys).toEqual([
    {
      name: "e",
      terms: [
        { sql: "lower(a) COLLATE NOCASE", column: undefined, collation: "NOCASE" },
        { sql: "(b || ',')", column: undefined, collation: "BINARY" },
        { sql: '"g"', column: "g", collation: "BINARY" },
      ],
      where: '"c d" > 1',
      columns: ["a", "b", "c d", "g"],
    },
    {
      name: "sqlite_autoindex_t_2",
      terms: [{ sql: '"a"', column: "a", collation: "BINARY" }],
      where: undefined,
      columns: ["a"],
    },
    {
      name: "sqlite_autoindex_t_3",
      terms: [
        { sql: '"b"', column: "b", collation: "NOCASE" },
        { sql: '"c d"', column: "c d", collation: "BINARY" },
      ],
      where: undefined,
      columns: ["b", "c d"],
    },
  ]);
});

test("what generates a column is read as it is written", () => {
  const { generated, columns } = read(
    `CREATE TABLE t(a TEXT DEFAULT ('x' || (1)), "as" INT CHECK ("as" > 0), -- AS (1)
       low TEXT GENERATED ALWAYS AS (lower(a) /* ) */ || ')') STORED,
       "Its ""len" AS (length(CAST(low AS TEXT))), CHECK (a <> 'AS (2)'))`,
  );
  expect(columns.map(({ name }) => name)).toEqual(["a", "as"]);
  expect([...generated]).toEqual([
    ["low", "lower(a) || ')'"],
    ['its "len', "length(CAST(low AS TEXT))"],
  ]);
});

test("triggers are read with what they write and whether they are guarded", () => {
  const table = read(
    `CREATE TABLE t(id TEXT); CREATE TABLE _changes(op); CREATE TABLE _meta(key, value);
     CREATE TRIGGER b AFTER INSERT ON t WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0 BEGIN UPDATE t SET id = 1; DELETE FROM U; END;
     CREATE TRIGGER a AFTER INSERT ON t WHEN new.id = 'syncing _meta' BEGIN INSERT INTO u SELECT * FROM _meta; END;
     CREATE TRIGGER t_ai AFTER INSERT ON t BEGIN INSERT INTO _changes VALUES('x'); END`,
  );
  expect(
    table.userTriggers.map(({ name, guarded, writes }) => ({ name, guarded, writes: [...writes] })),
  ).toEqual([
    { name: "a", guarded: false, writes: ["u"] },
    { name: "b", guarded: true, writes: ["t", "u"] },
  ]);
});

test("a trigger captures if its body writes the log, whatever else it says", () => {
  const trigger = (body: string) => `CREATE TRIGGER x AFTER INSERT ON t BEGIN ${body} END`;
  expect(isCaptureTrigger(trigger("INSERT INTO _changes(op) VALUES(1);"))).toBe(true);
  expect(isCaptureTrigger(trigger("INSERT INTO u SELECT * FROM _changes;"))).toBe(false);
  expect(isCaptureTrigger(trigger("SELECT 'INSERT INTO _changes';"))).toBe(false);
});

test("tables of ours, of SQLite and of others like us are not the application's", () => {
  for (const name of [
    "_meta",
    "_CHANGES",
    "_dead_letter",
    "_peer_state",
    "_hooksync",
    "_hooksync_x",
    "sqlite_stat1",
    "_litestream_seq",
  ])
    expect(isInternalTable(name)).toBe(true);
  for (const name of ["meta", "_meta2", "changes", "sqlitex"])
    expect(isInternalTable(name)).toBe(false);
});

test("views, virtual tables and their shadows are no tables to sync", () => {
  const db = new Database(":memory:");
  db.run("CREATE TABLE t(a); CREATE VIEW v AS SELECT 1; CREATE VIRTUAL TABLE f USING fts5(x)");
  expect([...readTables(db).keys()]).toEqual(["t"]);
  expect(readOtherRelations(db)).toEqual([
    { name: "f", type: "virtual" },
    { name: "v", type: "view" },
  ]);
});
