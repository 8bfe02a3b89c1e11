import { afterEach, describe, expect, test } from "bun:test";
import { RequestError } from "../../lib/base/errors.ts";
import type { RowJson } from "../../lib/store/repository.ts";
import { parseJson } from "../../lib/store/row-input.ts";
import { StoreFixture } from "../support/store-fixture.ts";

let store: StoreFixture;

afterEach(() => store.close());

function open(schema?: string): void {
  store = new StoreFixture(schema);
}

/** As a POST each: asked for at once, and so carried out in one transaction. */
function createAll(
  bodies: readonly string[],
  table = "items",
): Promise<(RowJson | RequestError)[]> {
  return Promise.all(
    bodies.map((body) => {
      const row = store.repository.reader(store.table(table)).newRow(parseJson(body));
      return store.write((tx) => store.repository.create(store.table(table), row, tx));
    }),
  );
}

function text(made: RowJson | RequestError): string {
  if (made instanceof RequestError) throw made;
  return new TextDecoder().decode(made);
}

/** What a read answers for the rows that were made, in the order of the answers. */
function readAgain(made: readonly (RowJson | RequestError)[], table = "items"): unknown[] {
  return made.map((json) => {
    const { id } = JSON.parse(text(json));
    return JSON.parse(text(store.repository.read(store.table(table), id)!));
  });
}

describe("rows created in one transaction", () => {
  test.each([1, 2, 3, 4, 5, 15, 16, 17, 99, 100, 101, 121, 250])(
    "%d of them are there in the order they were asked for, each with one entry, each answered as it is read",
    async (count) => {
      open();
      const made = await createAll(
        Array.from({ length: count }, (_, i) => JSON.stringify({ name: `n${i}`, value: i })),
      );
      const rows = made.map((json) => JSON.parse(text(json)));
      expect(rows.map((row) => row.value)).toEqual(Array.from({ length: count }, (_, i) => i));
      expect(readAgain(made)).toEqual(rows);
      expect(store.log().map((entry) => entry.row_id)).toEqual(rows.map((row) => row.id));
      expect(store.log().map((entry) => JSON.parse(entry.row_data))).toEqual(rows);
      expect([store.commits, store.logged]).toEqual([1, [count]]);
    },
  );

  test("of different shapes and tables keep to themselves", async () => {
    open(
      `CREATE TABLE a(id TEXT PRIMARY KEY, x TEXT, y INTEGER DEFAULT 7, updated_at INTEGER);
       CREATE TABLE b(id TEXT PRIMARY KEY, z INTEGER, updated_at INTEGER);`,
    );
    const [inA, inB] = await Promise.all([
      createAll(['{"x": "1"}', '{"x": "2", "y": 1}', '{"y": 3}', '{"x": "4"}', "{}"], "a"),
      createAll(['{"z": 1}', "{}", '{"z": 2}'], "b"),
    ]);
    expect(inA.map((json) => JSON.parse(text(json)))).toMatchObject([
      { x: "1", y: 7 },
      { x: "2", y: 1 },
      { x: null, y: 3 },
      { x: "4", y: 7 },
      { x: null, y: 7 },
    ]);
    expect(inB.map((json) => JSON.parse(text(json)))).toMatchObject([
      { z: 1 },
      { z: null },
      { z: 2 },
    ]);
    expect(readAgain(inA, "a")).toEqual(inA.map((json) => JSON.parse(text(json))));
    expect(store.commits).toBe(1);
    expect(store.logged).toEqual([8]);
  });

  test("one that a constraint refuses is refused alone, wherever it stands", async () => {
    open("CREATE TABLE u(id TEXT PRIMARY KEY, name TEXT UNIQUE, updated_at INTEGER)");
    const names = Array.from({ length: 40 }, (_, i) => (i === 13 || i === 39 ? "n0" : `n${i}`));
    const made = await createAll(
      names.map((name) => JSON.stringify({ name })),
      "u",
    );
    const refused = made.flatMap((result, i) => (result instanceof RequestError ? [i] : []));
    expect(refused).toEqual([13, 39]);
    expect((made[13] as RequestError).message).toBe("name: another row has this value already");
    expect(store.db.query("SELECT count(*) AS n FROM u").get()).toEqual({ n: 38 });
    expect(store.log()).toHaveLength(38);
    expect([store.commits, store.rollbacks, store.logged]).toEqual([1, 0, [38]]);
  });

  test("share their transaction with updates and deletes", async () => {
    open();
    store.db.run("INSERT INTO items(id, name, updated_at) VALUES ('x', 'old', 1), ('y', 'old', 1)");
    const table = store.table();
    const change = store.repository.reader(table).change({ name: "new" }, "x");
    const [made] = await Promise.all([
      createAll(['{"name": "a"}', '{"name": "b"}']),
      store.write((tx) => store.repository.update(table, "x", change, tx)),
      store.write((tx) => store.repository.remove(table, "y", tx)),
      createAll(['{"name": "c"}']),
    ]);
    expect(readAgain(made)).toMatchObject([{ name: "a" }, { name: "b" }]);
    const names = store.db.query("SELECT name FROM items ORDER BY name").values().flat();
    expect(names).toEqual(["a", "b", "c", "new"]);
    expect([store.commits, store.logged]).toEqual([1, [5]]);
  });

  test("are all run again, each once, when another of their transaction fails", async () => {
    open();
    const failing = store.write(() => {
      throw new Error("broken");
    });
    const outcomes = await Promise.allSettled([
      createAll(['{"name": "a"}', '{"name": "b"}']),
      failing,
      createAll(['{"name": "c"}']),
    ]);
    expect(outcomes.map((outcome) => outcome.status)).toEqual([
      "fulfilled",
      "rejected",
      "fulfilled",
    ]);
    const names = store.db.query("SELECT name FROM items ORDER BY name").values().flat();
    expect(names).toEqual(["a", "b", "c"]);
    expect(store.log()).toHaveLength(3);
  });
});

describe("the answer is the row as it is stored", () => {
  const COLUMNS = `id TEXT PRIMARY KEY, "na""me" TEXT, n INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT`;

  test.each([
    [
      "texts with everything that JSON escapes",
      COLUMNS,
      { 'na"me': '"\\\n\u0000\u001f\u007f\u2028é€😀' },
    ],
    ["large integers", COLUMNS, '{"n": 9223372036854775807}'],
    ["integers beyond double precision", COLUMNS, '{"n": -9007199254740993}'],
    ["NULL", COLUMNS, { n: null }],
    ["an integer that is stored as REAL", COLUMNS, '{"n": 1e18}'],
    ["REAL columns", `id TEXT PRIMARY KEY, r REAL, updated_at INTEGER`, { r: 1 }],
    ["NUMERIC columns", `id TEXT PRIMARY KEY, d DECIMAL, updated_at INTEGER`, { d: "12.50" }],
    ["BLOBs", `id TEXT PRIMARY KEY, b BLOB, updated_at INTEGER`, { b: "\\x00ff" }],
    ["columns without a type", `id TEXT PRIMARY KEY, a, updated_at INTEGER`, '{"a": 1.0}'],
    ["defaults", `id TEXT PRIMARY KEY, a TEXT DEFAULT 'x', updated_at INTEGER`, {}],
    [
      "generated columns",
      `id TEXT PRIMARY KEY, a TEXT, g TEXT AS (a || 'x') STORED, updated_at INTEGER`,
      { a: "1" },
    ],
    ["a server's column that a client sends", COLUMNS, { node_id: "other", created_at: 1 }],
  ])("%s", async (_, columns, body) => {
    open(`CREATE TABLE t(${columns})`);
    const [made] = await createAll([typeof body === "string" ? body : JSON.stringify(body)], "t");
    const { id } = JSON.parse(text(made!));
    const read = text(store.repository.read(store.table("t"), id)!);
    // By the text: JSON.parse would round the integers.
    expect(normal(text(made!))).toBe(normal(read));
  });

  test("also where a trigger changes the row", async () => {
    open(
      `CREATE TABLE t(id TEXT PRIMARY KEY, name TEXT, updated_at INTEGER);
       CREATE TRIGGER up AFTER INSERT ON t WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
       BEGIN UPDATE t SET name = upper(NEW.name) WHERE id = NEW.id; END;`,
    );
    const [made] = await createAll(['{"name": "a"}'], "t");
    expect(JSON.parse(text(made!))).toMatchObject({ name: "A" });
  });
});

/** JavaScript and SQLite escape some characters differently. */
function normal(json: string): string {
  return json.replace(/"(?:[^"\\]|\\.)*"/g, (quoted) => JSON.stringify(JSON.parse(quoted)));
}
