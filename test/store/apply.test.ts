import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  ITEMS_SQL,
  insert,
  itemRow,
  rawChange,
  remove,
  removeNodeFiles,
  T,
  type TestChange,
  TestNode,
  update,
} from "../support/receive-fixture.ts";
import { permutations } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

const many = (count: number, make: (id: string, i: number) => TestChange) =>
  Array.from({ length: count }, (_, i) => make(`k${String(i).padStart(4, "0")}`, i));

const partial = (id: string, cells: Record<string, unknown>): TestChange => ({
  op: "UPDATE",
  table: "items",
  row: { id, ...cells },
  old_id: null,
});

describe("`applied` counts the changes whose version this node holds afterwards", () => {
  test.each<[string, TestChange[], TestChange[], number]>([
    ["new rows", [], [insert("a"), insert("b")], 2],
    ["an exact repeat", [insert("a")], [insert("a")], 1],
    ["a newer one", [insert("a")], [update("a", { updated_at: T + 1 })], 1],
    ["not a stale one", [insert("a", { updated_at: T + 1 })], [update("a")], 0],
    ["the higher of a tie", [insert("a", { value: 1 })], [update("a", { value: 2 })], 1],
    ["not the lower of a tie", [insert("a", { value: 2 })], [update("a", { value: 1 })], 0],
    ["a delete of the row's version", [insert("a")], [remove("a")], 1],
    ["a delete of a newer version", [insert("a")], [remove("a", { updated_at: T + 1 })], 1],
    ["not a delete below the row", [insert("a", { updated_at: T + 1 })], [remove("a")], 0],
    ["a delete that comes again", [insert("a"), remove("a")], [remove("a")], 1],
    ["a delete of a row that is not here", [], [remove("a")], 1],
    ["not one below what was deleted", [remove("a", { updated_at: T + 1 })], [remove("a")], 0],
    ["not a row at the version of its delete", [insert("a"), remove("a")], [insert("a")], 0],
    ["a row above its delete", [insert("a"), remove("a")], [insert("a", { updated_at: T + 1 })], 1],
    [
      "a delete without a row",
      [insert("a")],
      [{ op: "DELETE", table: "items", row: null, old_id: "a" }],
      1,
    ],
    [
      "not a refused one",
      [],
      [insert("a"), { op: "UPSERT", table: "items", row: itemRow("b"), old_id: null }],
      1,
    ],
    [
      "not one of an unknown table",
      [],
      [insert("a"), { ...(insert("b") as object), table: "nowhere" }],
      1,
    ],
    ["not one too far ahead", [], [insert("a", { updated_at: T + 3_600_001 })], 0],
    ["one that is an hour ahead", [], [insert("a", { updated_at: T + 3_600_000 })], 1],
    [
      "a change that lacks columns",
      [insert("a")],
      [partial("a", { value: 5, updated_at: T + 1 })],
      1,
    ],
    [
      "one with a column nobody has",
      [insert("a")],
      [update("a", { updated_at: T + 1, colour: "red" })],
      1,
    ],
    [
      "one that is stale but for such a column",
      [insert("a", { updated_at: T + 5 })],
      [update("a", { colour: "red" })],
      1,
    ],
    [
      "each of several about one row",
      [],
      [insert("a"), update("a", { updated_at: T + 1 }), remove("a", { updated_at: T + 1 })],
      3,
    ],
  ])("%s", async (_, before, changes, applied) => {
    const node = new TestNode();
    for (const change of before) await node.sync([change]);
    expect(await node.sync(changes)).toBe(applied);
    await node.close();
  });

  test("in a batch of all of them, many at once", async () => {
    const node = new TestNode();
    await node.sync(many(400, (id, i) => insert(id, { updated_at: T + (i % 3) })));
    await node.sync(many(100, (id, i) => remove(id, { updated_at: T + (i % 3) })));
    const changes = many(500, (id) => update(id, { updated_at: T + 1, value: 2 }));
    // Of the deleted those at T come back; of the others T is older, T + 1 a tie that is won.
    const count = (from: number, to: number, wins: (i: number) => boolean) =>
      Array.from({ length: to - from }, (_, i) => i + from).filter(wins).length;
    const revived = count(0, 100, (i) => i % 3 === 0);
    const won = count(100, 400, (i) => i % 3 < 2);
    expect(await node.sync(changes)).toBe(revived + won + 100);
    await node.close();
  });
});

describe("the winner does not depend on the order of arrival", () => {
  const row = { op: "UPDATE", table: "items", old_id: null };
  const versions: readonly TestChange[] = [
    { ...row, row: itemRow("ID", { updated_at: T }) },
    { ...row, row: itemRow("ID", { updated_at: T + 1, value: 1 }) },
    { ...row, row: itemRow("ID", { updated_at: T + 1, value: 2 }) },
    { op: "DELETE", table: "items", row: itemRow("ID", { updated_at: T + 1 }), old_id: "ID" },
    { ...row, row: itemRow("ID", { updated_at: T + 2, name: "last" }) },
  ];

  test.each([
    ["with the newest row", versions, 1],
    ["where the delete is the last", versions.slice(0, 4), 0],
    ["ties alone", versions.slice(0, 3), 1],
  ])("all orders %s", async (_, changes, left) => {
    const node = new TestNode();
    const orders = permutations(changes);
    for (const [i, order] of orders.entries()) {
      for (const change of order)
        await node.sync([JSON.stringify(change).replaceAll("ID", `o${i}`)]);
    }
    const shown = node.rows().map((each) => each.replace(/text:[0-9A-F]*:'(name )?o\d+'/g, "ID"));
    expect(new Set(shown).size).toBe(left);
    expect(shown.length).toBe(left * orders.length);
    expect(node.parked()).toEqual([]);
    await node.close();
  });

  test("names that a column's own collation takes for equal are still two contents", async () => {
    const schema =
      "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT COLLATE NOCASE, updated_at INTEGER);";
    const rows = (name: string) =>
      many(30, (id) => ({
        op: "UPDATE",
        table: "items",
        row: { id, name, updated_at: T },
        old_id: null,
      }));
    const ends: string[][] = [];
    for (const names of [
      ["abc", "ABC"],
      ["ABC", "abc"],
    ]) {
      const node = new TestNode({ schema });
      for (const name of names) await node.sync(rows(name));
      ends.push(node.rows());
      await node.close();
    }
    expect(ends[0]).toEqual(ends[1]!);
    expect(ends[0]![0]).toContain("'abc'");
  });
});

describe("nothing applied is captured", () => {
  test("rows, deletes, parked changes and repeats leave the log as it is", async () => {
    const node = new TestNode();
    await node.sync([...many(300, (id) => insert(id)), insert("a"), { op: "?", table: "items" }]);
    await node.sync([...many(50, (id) => remove(id)), remove("a"), insert("b")]);
    await node.sync([insert("b"), insert("b", { name: "tie" })]);
    expect(node.log()).toEqual([]);
    expect(node.count("SELECT value AS n FROM _meta WHERE key = 'syncing'")).toBe(0);
    await node.write(`UPDATE items SET value = 9 WHERE id = 'b'`);
    expect(node.log().length).toBe(1);
    await node.close();
  });

  test("a delete without a row is one of this node: captured, and shipped with the row found", async () => {
    const node = new TestNode();
    await node.sync([insert("a", { name: "tea" })]);
    await node.sync([{ op: "DELETE", table: "items", row: null, old_id: "a" }], { identity: null });
    expect(
      node.log().map(({ op, row_id, row_data }) => [op, row_id, JSON.parse(row_data)]),
    ).toEqual([["DELETE", "a", itemRow("a", { name: "tea" })]]);
    expect(node.tombstones()).toEqual([`items/a@${T}`]);
    await node.close();
  });

  test.each([
    ["alone", 1],
    ["among many", 40],
  ])("a delete of a row that is still on its way is put behind it, %s", async (_, count) => {
    const node = new TestNode();
    await node.write(`INSERT INTO items(id, name, updated_at) VALUES ('own', 'x', ${T})`);
    await node.sync([remove("own", { updated_at: T + 5 }), ...many(count, (id) => remove(id))]);
    expect(node.log().map(({ op, row_id }) => [op, row_id])).toEqual([
      ["INSERT", "own"],
      ["DELETE", "own"],
    ]);
    expect(JSON.parse(node.log()[1]!.row_data).updated_at).toBe(T + 5);
    // What peers have acknowledged is on its way no more.
    node.db.run("DELETE FROM _changes");
    await node.sync([insert("own", { updated_at: T + 6 }), remove("own", { updated_at: T + 6 })]);
    expect(node.log()).toEqual([]);
    await node.close();
  });
});

describe("which columns are written", () => {
  test("those that came: a missing one keeps its value, NULL clears it, defaults fill a new row", async () => {
    const node = new TestNode({
      schema:
        "CREATE TABLE t(id TEXT PRIMARY KEY, a TEXT, b INTEGER NOT NULL DEFAULT 7, updated_at INTEGER);",
    });
    const row = (cells: Record<string, unknown>) => ({
      op: "UPDATE",
      table: "t",
      row: { id: "r", ...cells },
    });
    await node.sync([row({ a: "x", updated_at: T })]);
    expect(node.row("r", "t")).toEqual({ id: "r", a: "x", b: 7, updated_at: T });
    await node.sync([row({ b: 9, updated_at: T + 1 })]);
    expect(node.row("r", "t")).toEqual({ id: "r", a: "x", b: 9, updated_at: T + 1 });
    await node.sync([row({ a: null, updated_at: T + 2 })]);
    expect(node.row("r", "t")).toEqual({ id: "r", a: null, b: 9, updated_at: T + 2 });
    await node.close();
  });

  test("generated columns are ignored and computed here, alone and among many", async () => {
    const node = new TestNode({
      schema: `CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, twice INTEGER AS (n * 2) STORED,
        text AS (n || '!') VIRTUAL, updated_at INTEGER);`,
    });
    const row = (id: string) => ({
      op: "INSERT",
      table: "t",
      row: { id, n: 4, twice: 99, text: "?", updated_at: T },
    });
    expect(await node.sync(many(20, row))).toBe(20);
    expect(await node.sync([row("alone")])).toBe(1);
    expect(node.count("SELECT count(*) AS n FROM t WHERE twice = 8 AND text = '4!'")).toBe(21);
    await node.close();
  });

  test("names of tables and columns compare as SQLite compares them", async () => {
    const node = new TestNode({
      schema:
        'CREATE TABLE "Ordnung für alles"(ID TEXT PRIMARY KEY, "Größe" INTEGER, "select" TEXT, Updated_At INTEGER);',
    });
    const row = (id: string) => ({
      op: "INSERT",
      table: "ORDNUNG FüR ALLES",
      row: { id, größe: 2, GRÖßE: 1, SELECT: "x", updated_at: T },
    });
    expect(await node.sync([...many(20, row), row("alone")])).toBe(21);
    // Only ASCII letters fold: GRÖßE is another column, which this node lacks.
    expect(
      node.count(
        `SELECT count(*) AS n FROM "Ordnung für alles" WHERE "Größe" = 2 AND "select" = 'x'`,
      ),
    ).toBe(21);
    await node.close();
  });

  test("a column that stands twice, in different case or the same, parks the change", async () => {
    const node = new TestNode();
    const twice = JSON.stringify(insert("a")).replace('"value":1', '"value":1,"Value":1');
    const again = JSON.stringify(insert("b")).replace('"value":1', '"value":1,"value":1');
    expect(await node.sync([twice, again, ...many(20, (id) => insert(id))])).toBe(20);
    expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([
      ["a", "malformed"],
      ["b", "malformed"],
    ]);
    await node.close();
  });

  test("hostile names of tables and columns reach no SQL", async () => {
    const node = new TestNode();
    const hostile = [
      'name") VALUES(1); DROP TABLE items; --',
      "a = (SELECT 1)",
      "__proto__",
      "constructor",
      "",
      "'",
      "\0",
    ];
    for (const name of hostile) {
      expect(
        await node.sync([insert("a", { [name]: 1, updated_at: T + hostile.indexOf(name) })]),
      ).toBe(1);
      expect(await node.sync([{ ...(insert("b") as object), table: `items${name}` }])).toBe(
        name === "" ? 1 : 0,
      );
    }
    expect(node.count("SELECT count(*) AS n FROM items")).toBe(2);
    expect(node.parked().length).toBe(hostile.length - 1);
    await node.close();
  });
});

describe("versions", () => {
  test.each([
    ["null", 0],
    ["", 0],
    ["-5", -5],
    ["9.0", 9],
    ["1e3", 1000],
  ])("an updated_at of %p is version %i", async (json, version) => {
    const node = new TestNode();
    const change = rawChange("items", { id: '"r"', ...(json === "" ? {} : { updated_at: json }) });
    expect(await node.sync([change])).toBe(1);
    expect(node.value("r", "updated_at")).toEqual(["integer", String(version)]);
    await node.close();
  });

  test.each([
    '"9"',
    '"1700000000001"',
    "true",
    "[6]",
    "1.5",
    "1e300",
    "9007199254740993",
    "-9007199254740993",
  ])("an updated_at of %s is none: parked", async (json) => {
    const node = new TestNode();
    await node.sync([insert("r", { updated_at: 1 })]);
    expect(await node.sync([rawChange("items", { id: '"r"', value: "6", updated_at: json })])).toBe(
      0,
    );
    expect(node.row<{ value: number }>("r")?.value).toBe(1);
    expect(node.parked().map(({ code, row_id }) => [code, row_id])).toEqual([["malformed", "r"]]);
    await node.close();
  });

  test("a stored stamp that is no integer loses against every integer", async () => {
    const node = new TestNode();
    const stamps = ["NULL", "'x'", "1.5", "x'00'"];
    node.app.run("UPDATE _meta SET value = 1");
    for (const [i, stamp] of stamps.entries()) {
      node.app.run(`INSERT INTO items(id, name, updated_at) VALUES ('r${i}', 'old', ${stamp})`);
    }
    node.app.run("UPDATE _meta SET value = 0");
    expect(await node.sync(stamps.map((_, i) => update(`r${i}`, { updated_at: -1 })))).toBe(4);
    expect(
      node.count("SELECT count(*) AS n FROM items WHERE updated_at = -1 AND name <> 'old'"),
    ).toBe(4);
    await node.close();
  });
});

describe("what is wrong inside a change parks it, whatever it is", () => {
  test.each<[string, unknown, string]>([
    ["no object", 5, "malformed"],
    ["null", null, "malformed"],
    ["an array", [insert("x")], "malformed"],
    ["no members", {}, "malformed"],
    ["an unknown op", { ...(insert("x") as object), op: "UPSERT" }, "malformed"],
    ["an op in small letters", { ...(insert("x") as object), op: "insert" }, "malformed"],
    ["no table", { op: "INSERT", row: itemRow("x") }, "malformed"],
    ["a table that is no text", { ...(insert("x") as object), table: ["items"] }, "malformed"],
    ["a table of ours", { ...(insert("x") as object), table: "_CHANGES" }, "unknown-table"],
    [
      "a table of SQLite's",
      { ...(insert("x") as object), table: "sqlite_master" },
      "unknown-table",
    ],
    ["no such table", { ...(insert("x") as object), table: "main.items" }, "unknown-table"],
    ["no row", { op: "INSERT", table: "items" }, "malformed"],
    ["row: null", { op: "INSERT", table: "items", row: null, old_id: "" }, "malformed"],
    ["row: a list", { op: "INSERT", table: "items", row: [], old_id: null }, "malformed"],
    ["no id", { op: "INSERT", table: "items", row: { name: "x", updated_at: T } }, "malformed"],
    ["id: null", insert("x", { id: null }), "malformed"],
    ["id: empty", insert("x", { id: "" }), "malformed"],
    ["id: a number", insert("x", { id: 5 }), "malformed"],
    ["a delete of nothing", { op: "DELETE", table: "items", row: null, old_id: null }, "malformed"],
    [
      "a delete of an empty id",
      { op: "DELETE", table: "items", row: null, old_id: "" },
      "malformed",
    ],
    ["a delete with a bad stamp", remove("x", { updated_at: "y" }), "malformed"],
    ["a delete far ahead", remove("x", { updated_at: T + 1e9 }), "ahead"],
    [
      "more columns than SQLite has",
      insert("x", Object.fromEntries(Array.from({ length: 2_001 }, (_, i) => [`c${i}`, i]))),
      "malformed",
    ],
  ])("%s", async (_, change, code) => {
    const node = new TestNode();
    const text = JSON.stringify(change);
    expect(await node.sync([text, ...many(20, (id) => insert(id))])).toBe(20);
    expect(node.parked().map((entry) => [entry.code, entry.change])).toEqual([[code, text]]);
    expect(node.events.filter(({ kind }) => kind === "parked").length).toBe(1);
    expect(node.count("SELECT count(*) AS n FROM items WHERE id NOT LIKE 'k%' OR id IS NULL")).toBe(
      0,
    );
    await node.close();
  });

  test("a delete names its row by old_id, or by the row where that is empty", async () => {
    const node = new TestNode();
    await node.sync([insert("a"), insert("b"), insert("c")]);
    await node.sync([
      { op: "DELETE", table: "items", row: itemRow("a"), old_id: "" },
      { op: "DELETE", table: "items", row: itemRow("b"), old_id: null },
      { op: "DELETE", table: "items", row: { updated_at: T }, old_id: "c" },
    ]);
    expect([node.rows(), node.parked()]).toEqual([[], []]);
    await node.close();
  });

  test("what a delete's row holds does not keep it from being one", async () => {
    const node = new TestNode();
    await node.sync([insert("a")]);
    expect(await node.sync([remove("a", { name: { nested: true } })])).toBe(1);
    expect(node.rows()).toEqual([]);
    await node.close();
  });
});

test("tables that --tables leaves out are counted, not kept", async () => {
  const node = new TestNode({
    schema: `${ITEMS_SQL} CREATE TABLE other(id TEXT PRIMARY KEY, updated_at INTEGER);`,
    tables: ["items"],
  });
  const other = (id: string) => ({ op: "INSERT", table: "OTHER", row: { id, updated_at: T } });
  expect(await node.sync([insert("a"), other("x"), other("y")], { from: "peer" })).toBe(1);
  expect(await node.sync([other("x")], { from: "peer" })).toBe(0);
  expect(node.parked()).toEqual([]);
  expect(node.db.query("SELECT peer, tbl, changes FROM _hooksync_left_out").all()).toEqual([
    { peer: "peer", tbl: "other", changes: 3 },
  ]);
  await node.close();
});

test("what a foreign node wrote twice at one stamp in one batch is taken in its order", async () => {
  const node = new TestNode();
  const changes = [
    insert("a", { name: "z" }),
    update("a", { name: "b" }),
    update("a", { name: "a" }),
  ];
  expect(await node.sync(changes, { identity: null })).toBe(3);
  expect(node.row<{ name: string }>("a")?.name).toBe("a");
  // Of ours, and across batches, the content decides.
  expect(await node.sync([insert("b", { name: "z" }), update("b", { name: "a" })])).toBe(1);
  expect(node.row<{ name: string }>("b")?.name).toBe("z");
  await node.close();
});

test("what replaced it may be parked: then it is applied itself", async () => {
  const node = new TestNode({
    schema:
      "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT CHECK (name <> 'third'), value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT);",
  });
  const changes = [
    insert("a", { name: "first" }),
    update("a", { name: "second" }),
    update("a", { name: "third" }),
  ];
  expect(await node.sync(changes, { identity: null })).toBe(2);
  expect(node.row<{ name: string }>("a")?.name).toBe("second");
  expect(node.parked().map(({ code }) => code)).toEqual(["constraint"]);
  await node.close();
});

test("what was replaced in its batch, but could not have been applied, is parked", async () => {
  const node = new TestNode();
  const broken = JSON.stringify(insert("a", { name: "NAME" })).replace("NAME", "\\ud800");
  const changes = [broken, update("a", { name: "second" })];
  expect(await node.sync(changes, { identity: null })).toBe(1);
  expect(node.row<{ name: string }>("a")?.name).toBe("second");
  expect(node.parked().map(({ code, change }) => [code, change])).toEqual([["malformed", broken]]);
  await node.close();
});
