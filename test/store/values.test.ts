/** Every kind of value on its way from a body into the file, into the log, and to another node. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type Value, wireHex } from "../../lib/protocol/values.ts";
import { bindingOf, markSql } from "../../lib/store/table-writer.ts";
import { randomValue } from "../support/random-values.ts";
import { insert, rawChange, removeNodeFiles, T, TestNode } from "../support/receive-fixture.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

const COLUMNS = ["i", "r", "t", "b", "n", "x"] as const;
const SCHEMA =
  "CREATE TABLE v(id TEXT PRIMARY KEY, i INTEGER, r REAL, t TEXT, b BLOB, n NUMERIC, x, updated_at INTEGER);";

/** What each column holds when one JSON value came for all of them. */
type Expected = Readonly<Record<(typeof COLUMNS)[number], string>>;
const all = (value: string): Expected => ({
  i: value,
  r: value,
  t: value,
  b: value,
  n: value,
  x: value,
});

describe("a value from a body is stored by the column's own type, with nothing lost", () => {
  test.each<[json: string, expected: Expected]>([
    ["null", all("NULL")],
    ['""', all("''")],
    ['"abc"', all("'abc'")],
    ["true", { ...all("1"), r: "1.0", t: "'1'" }],
    ["false", { ...all("0"), r: "0.0", t: "'0'" }],
    ["1", { ...all("1"), r: "1.0", t: "'1'" }],
    ["1.0", { ...all("1.0"), i: "1", n: "1", t: "'1.0'" }],
    ["1.5", { ...all("1.5"), t: "'1.5'" }],
    ["1e2", { ...all("100.0"), i: "100", n: "100", t: "'100.0'" }],
    ['"1.0"', { ...all("'1.0'"), i: "1", r: "1.0", n: "1" }],
    [
      "9007199254740993",
      { ...all("9007199254740993"), r: "9007199254740992.0", t: "'9007199254740993'" },
    ],
    [
      "9223372036854775807",
      { ...all("9223372036854775807"), r: "9.2233720368547758e+18", t: "'9223372036854775807'" },
    ],
    [
      "-9223372036854775808",
      {
        ...all("-9223372036854775808"),
        r: "-9.2233720368547758e+18",
        t: "'-9223372036854775808'",
      },
    ],
    ["9223372036854775808", { ...all("9.2233720368547758e+18"), t: "'9.2233720368547758e+18'" }],
    ["9.0e+999", { ...all("9.0e+999"), t: "'Inf'" }],
    ["-1e999", { ...all("-9.0e+999"), t: "'-Inf'" }],
    ['"\\ud83d\\ude00\\u2028</script>"', all("'😀\u2028</script>'")],
  ])("%s", async (json, expected) => {
    const node = new TestNode({ schema: SCHEMA });
    const members = Object.fromEntries(COLUMNS.map((column) => [column, json]));
    // Alone, and as one of many: both paths.
    const change = (id: string) =>
      rawChange("v", { id: `"${id}"`, ...members, updated_at: String(T) });
    expect(await node.sync([change("alone")])).toBe(1);
    expect(await node.sync(Array.from({ length: 30 }, (_, i) => change(`many ${i}`)))).toBe(30);
    for (const id of ["alone", "many 0", "many 29"]) {
      const stored = Object.fromEntries(
        COLUMNS.map((column) => [column, node.value(id, column, "v")[1]]),
      );
      expect([id, stored]).toEqual([id, expected]);
    }
    await node.close();
  });

  test("NUL characters stay inside texts and ids", async () => {
    const node = new TestNode();
    const ids = Array.from({ length: 20 }, (_, i) => `a\0${i}`);
    expect(await node.sync(ids.map((id) => insert(id, { name: `x\0${id}` })))).toBe(20);
    expect(await node.sync([insert("a\0x", { name: "\0" })])).toBe(1);
    expect(node.count("SELECT count(*) AS n FROM items")).toBe(21);
    expect(node.row<{ name: string }>("a\0" + "7")?.name).toBe("x\0a\x007");
    await node.close();
  });
});

describe("BLOBs", () => {
  const blob = (hex: string, more: string) =>
    rawChange(
      "v",
      {
        id: '"r"',
        x: `"\\\\x${hex}"`,
        t: `"\\\\x${hex}"`,
        b: `"\\\\x${hex}"`,
        updated_at: String(T),
      },
      more,
    );
  const kinds = (node: TestNode) =>
    ["x", "t", "b"].map((column) => node.value("r", column, "v").join(" "));

  test("the columns that are named hold bytes, in any column; the others hold the text", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([blob("00ff", ',"blobs":["t","x"]')]);
    expect(kinds(node)).toEqual(["blob X'00FF'", "blob X'00FF'", "text '\\x00ff'"]);
    await node.close();
  });

  test("ours without the member means none", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([blob("00ff", "")]);
    expect(kinds(node)).toEqual(["text '\\x00ff'", "text '\\x00ff'", "text '\\x00ff'"]);
    await node.close();
  });

  test.each([[1], [30]])(
    "a hub lost the member: columns declared BLOB or without a type get them back (%i at once)",
    async (count) => {
      const node = new TestNode({ schema: SCHEMA });
      const changes = Array.from({ length: count }, (_, i) =>
        blob("00FF", "").replace('"r"', i === 0 ? '"r"' : `"r${i}"`),
      );
      await node.sync(
        changes.map((change) => change.replace('"t":', '"i":1,"r":1.5,"n":null,"t":')),
        { identity: null },
      );
      expect(kinds(node)).toEqual(["blob X'00FF'", "text '\\x00FF'", "blob X'00FF'"]);
      await node.close();
    },
  );

  test("an empty one stays one, and is neither NULL nor an empty text", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([blob("", ',"blobs":["x","t","b"]')]);
    expect(kinds(node)).toEqual(["blob X''", "blob X''", "blob X''"]);
    await node.close();
  });

  test.each([
    ["an odd number of digits", '"\\\\x0"'],
    ["not hex", '"\\\\xzz"'],
    ["no \\x", '"00"'],
  ])("named as bytes, but %s: parked", async (_, json) => {
    const node = new TestNode({ schema: SCHEMA });
    const change = rawChange("v", { id: '"r"', b: json, updated_at: String(T) }, ',"blobs":["b"]');
    expect(await node.sync([change])).toBe(0);
    expect(node.parked().map(({ code, change: kept }) => [code, kept])).toEqual([
      ["malformed", change],
    ]);
    await node.close();
  });

  test("text that is not UTF-8 comes as bytes, and is text again", async () => {
    const node = new TestNode({ schema: SCHEMA });
    await node.sync([blob("61ff62", ',"blobs":[],"texts":["x","t"]')]);
    expect(["x", "t"].map((column) => node.value("r", column, "v")[0])).toEqual(["text", "text"]);
    expect(
      node.count("SELECT count(*) AS n FROM v WHERE hex(x) = '61FF62' AND hex(t) = '61FF62'"),
    ).toBe(1);
    await node.close();
  });
});

describe("what no column can hold is parked, and its neighbours apply", () => {
  test.each([
    ["an object", '{"a":1}'],
    ["an array", "[1]"],
    ["half a surrogate pair", '"a\\ud800"'],
    ["the other half", '"\\udc00"'],
  ])("%s", async (_, json) => {
    const node = new TestNode({ schema: SCHEMA });
    const change = (id: string, value: string) =>
      rawChange("v", {
        id: `"${id}"`,
        i: "1",
        r: "1",
        t: value,
        b: "null",
        n: "1",
        x: "1",
        updated_at: String(T),
      });
    const changes = Array.from({ length: 20 }, (_, i) =>
      change(`r${i}`, i === 7 ? json : '"fine"'),
    );
    expect(await node.sync(changes)).toBe(19);
    expect(node.parked().map((entry) => [entry.row_id, entry.code, entry.change])).toEqual([
      ["r7", "malformed", changes[7]!],
    ]);
    await node.close();
  });

  test("ids that differ in half a surrogate pair do not become one row", async () => {
    const node = new TestNode();
    const change = JSON.stringify(insert("ID"));
    expect(
      await node.sync([change.replaceAll("ID", "a\\ud800"), change.replaceAll("ID", "a\\ud801")]),
    ).toBe(0);
    expect(node.count("SELECT count(*) AS n FROM items")).toBe(0);
    expect(node.parked().length).toBe(2);
    await node.close();
  });
});

test("columns whose names differ in half a surrogate pair do not become one note", async () => {
  const node = new TestNode();
  const change = JSON.stringify(insert("a", { "\ud800": "one", "\ud801": "another" }));
  expect(await node.sync([change, insert("b")])).toBe(1);
  expect(node.count("SELECT count(*) AS n FROM _hooksync_columns WHERE id > ''")).toBe(0);
  expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([["a", "malformed"]]);
  await node.close();
});

// ── From one node to another ──────────────────────────────────────────────────────────────────────

async function fill(node: TestNode, rows: readonly (readonly Value[])[]): Promise<void> {
  for (const [i, values] of rows.entries()) {
    node.app
      .prepare(
        `INSERT INTO v(id, ${COLUMNS.join(", ")}, updated_at) VALUES ('r${i}', ${values.map(markSql).join(", ")}, ${T})`,
      )
      .run(...values.map(bindingOf));
  }
  await node.store.queue.run("local", () => undefined);
}

test("whatever an application stores is the same on the other node, by value and kind", async () => {
  await forSeeds(15, async (random) => {
    const rows = Array.from({ length: random.pick([3, 60]) }, () =>
      COLUMNS.map(() => randomValue(random)),
    );
    const [a, b] = [
      new TestNode({ schema: SCHEMA, id: "a" }),
      new TestNode({ schema: SCHEMA, id: "b" }),
    ];
    await fill(a, rows);
    await b.post(a.batchAfter(0)!.body);
    expect(b.rows("v")).toEqual(a.rows("v"));
    expect(b.parked()).toEqual([]);
    // And once more, after an edit that touches one column.
    await a.write(`UPDATE v SET i = 5, updated_at = ${T + 9}`);
    await b.post(a.batchAfter(rows.length)!.body);
    expect(b.rows("v")).toEqual(a.rows("v"));
    await a.close();
    await b.close();
  });
});

/** What a Go hub makes of a body: numbers are float64, members it does not know are gone. */
function throughHub(body: Uint8Array): string {
  const batch = JSON.parse(new TextDecoder().decode(body)) as {
    batch_id: number;
    changes: { op: string; table: string; row: unknown; old_id: string | null }[];
  };
  const changes = batch.changes.map(({ op, table, row, old_id }) => ({
    op,
    table,
    row,
    old_id: old_id ?? "",
  }));
  return JSON.stringify({ batch_id: batch.batch_id, changes });
}

/** What has a form of its own after a float64 hub: no infinity, and no text that reads like a BLOB. */
function hubValue(random: Seeded): Value {
  const value = randomValue(random);
  const isLost =
    (value.kind === "real" && !Number.isFinite(value.value)) ||
    (value.kind === "text" && wireHex(value.value) !== undefined);
  return isLost ? { kind: "null" } : value;
}

test("the echo of a float64 hub changes nothing at the origin and starts nothing", async () => {
  await forSeeds(15, async (random) => {
    const rows = Array.from({ length: random.pick([3, 40]) }, () =>
      COLUMNS.map(() => hubValue(random)),
    );
    const a = new TestNode({ schema: SCHEMA });
    await fill(a, rows);
    const [before, logged] = [a.rows("v"), a.log().length];
    const echo = throughHub(a.batchAfter(0)!.body);
    const answer = await a.post(echo, { identity: null, from: "hub", url: "http://hub" });
    expect([answer.applied, a.rows("v"), a.log().length]).toEqual([rows.length, before, logged]);
    expect(a.count("SELECT count(*) AS n FROM _hooksync_contested")).toBe(0);
    await a.close();
  });
});

test("what came exact after it had come through a float64 hub puts the digits right", async () => {
  await forSeeds(10, async (random) => {
    const rows = Array.from({ length: 20 }, () => COLUMNS.map(() => hubValue(random)));
    const [a, b] = [
      new TestNode({ schema: SCHEMA, id: "a" }),
      new TestNode({ schema: SCHEMA, id: "b" }),
    ];
    await fill(a, rows);
    const { body } = a.batchAfter(0)!;
    await b.post(throughHub(body), { identity: null, from: "hub", url: "http://hub" });
    await b.post(body);
    expect(b.rows("v")).toEqual(a.rows("v"));
    expect(b.log()).toEqual([]);
    await a.close();
    await b.close();
  });
});
