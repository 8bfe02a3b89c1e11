import { afterEach, describe, expect, test } from "bun:test";
import { AppFixture } from "../support/app-fixture.ts";
import { ITEMS_SQL } from "../support/store-fixture.ts";

const opened: AppFixture[] = [];

function open(schema?: string, synced?: readonly string[]): AppFixture {
  const fixture = new AppFixture(schema, synced);
  opened.push(fixture);
  return fixture;
}

afterEach(() => {
  for (const fixture of opened.splice(0)) fixture.store.close();
});

test("create, read, change, delete", async () => {
  const { call, store } = bound(open());
  const made = await call("POST", "/api/items", { name: "foo", value: 42 });
  expect([made.status, made.headers.get("content-type")]).toEqual([201, "application/json"]);
  expect(made.json).toMatchObject({ name: "foo", value: 42, node_id: "node-a" });
  const path = `/api/items/${made.json.id}`;
  expect((await call("GET", path)).text).toBe(made.text);
  const put = await call("PUT", path, { value: 43 });
  expect([put.status, put.json]).toEqual([
    200,
    { ...made.json, value: 43, updated_at: store.clock.ms + 1 },
  ]);
  const patch = await call("PATCH", path, { name: null });
  expect([patch.status, patch.json.name, patch.json.value]).toEqual([200, null, 43]);
  expect((await call("GET", path)).text).toBe(patch.text);
  expect((await call("DELETE", path)).json).toEqual({ deleted: made.json.id });
  for (const method of ["GET", "DELETE"]) {
    const gone = await call(method, path);
    expect([gone.status, gone.json]).toEqual([404, { error: "no such row" }]);
  }
  expect((await call("PUT", path, { value: 1 })).status).toBe(404);
});

test("a row that was read can be sent back whole", async () => {
  const { call } = bound(
    open("CREATE TABLE t(id TEXT PRIMARY KEY, big INTEGER, x, b BLOB, updated_at INTEGER)"),
  );
  const made = await call(
    "POST",
    "/api/t",
    '{"big": 9007199254740993, "x": 1.0, "b": "\\\\x00ff"}',
  );
  expect(made.text).toContain('"big":9007199254740993,"x":1.0,');
  const put = await call("PUT", `/api/t/${made.json.id}`, made.text);
  const withoutStamp = (text: string) => text.replace(/"updated_at":\d+/, "");
  expect(withoutStamp(put.text)).toBe(withoutStamp(made.text));
});

test("so can one that holds what its columns do not say, and it stays what it was", async () => {
  const fixture = open(
    "CREATE TABLE t(id TEXT PRIMARY KEY, i INTEGER, r REAL, t TEXT, u BINARY(16), x, b BLOB, n INT, updated_at INTEGER)",
  );
  const { call } = bound(fixture);
  const values = [
    ["'text'", "'text'", "x'00ff'", "x'00ff'", "'\\x00ff'", "'text'"],
    ["1.5", "x''", "CAST(x'61ff' AS TEXT)", "'\\x00ff'", "x'00ff'", "9007199254740993"],
    ["9e999", "1.0", "'\\x00ff'", "CAST(x'61ff' AS TEXT)", "CAST(x'61ff' AS TEXT)", "1.0"],
    ["1", "'1.0x'", "x''", "x''", "'\\x'", "'\\x00ff'"],
    ["1", "CAST(x'ff' AS TEXT)", "NULL", "''", "x''", "CAST(x'61ff' AS TEXT)"],
  ];
  const held = () =>
    fixture.store.db
      .query("SELECT id, quote(i), quote(r), quote(t), quote(u), quote(x), quote(b), n FROM t")
      .values();
  for (const [at, each] of values.entries())
    fixture.store.db.run(`INSERT INTO t VALUES('${at}', ${each.join(", ")}, 0, 1)`);
  const before = held();
  for (const at of values.keys()) {
    const path = `/api/t/${at}`;
    const read = (await call("GET", path)).text;
    expect((await call("PUT", path, read)).status).toBe(200);
    // As a client writes it that took it apart and put it together again.
    const changed = JSON.stringify({ ...JSON.parse(read), n: 1 });
    if (!changed.includes("9007199254740992") && !changed.includes(":null"))
      expect((await call("PUT", path, changed)).status).toBe(200);
  }
  expect(held().map((row) => row.slice(0, -1))).toEqual(before.map((row) => row.slice(0, -1)));
  expect(held()[0]!.at(-1)).toBe(1);
  // What is not what stands there is taken as the column says.
  const other = await call("PUT", "/api/t/0", { t: "\\x00", u: "\\x00ff", i: 5 });
  expect([other.status, held()[0]]).toEqual([
    200,
    ["0", "5", "'text'", "'\\x00'", "X'00FF'", "'\\x00ff'", "'text'", 1],
  ]);
  for (const [body, error] of [
    [{ i: "other" }, "i: expected an integer, not a string"],
    [{ I: "text", i: 5 }, "this column is given twice"],
    [{ b: "text", B: "text" }, "this column is given twice"],
  ] as const) {
    const refused = await call("PUT", "/api/t/0", body);
    expect([refused.status, refused.json.error]).toEqual([400, expect.stringContaining(error)]);
  }
});

test("a batch is one transaction and tells the ids", async () => {
  const { call, store } = bound(open());
  const rows = Array.from({ length: 300 }, (_, value) => ({ name: "b", value }));
  const made = await call("POST", "/api/items/batch", rows);
  expect([made.status, made.json.created, made.json.ids.length, store.commits]).toEqual([
    201, 300, 300, 1,
  ]);
  expect((await call("GET", `/api/items/${made.json.ids[299]}`)).json.value).toBe(299);
  expect((await call("POST", "/api/items/batch", [])).json).toEqual({ created: 0, ids: [] });
});

test("the list is the newest hundred; limit and cursor lead through all", async () => {
  const { call } = bound(open());
  await call(
    "POST",
    "/api/items/batch",
    Array.from({ length: 105 }, (_, value) => ({ value })),
  );
  const list = await call("GET", "/api/items");
  expect(list.json.map((row: { value: number }) => row.value)).toEqual(
    Array.from({ length: 100 }, (_, i) => 104 - i),
  );
  const link = /^<(.*)>; rel="next"$/.exec(list.headers.get("link")!)![1]!;
  const rest = await call("GET", link);
  expect(rest.json.map((row: { value: number }) => row.value)).toEqual([4, 3, 2, 1, 0]);
  expect([rest.headers.get("link"), rest.headers.get("x-next-cursor")]).toEqual([null, null]);
  const byCursor = await call("GET", `/api/items?after=${list.headers.get("x-next-cursor")}`);
  expect(byCursor.text).toBe(rest.text);
  expect((await call("GET", "/api/items?limit=1000")).json.length).toBe(105);
  for (const query of ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=", "after=x"]) {
    const refused = await call("GET", `/api/items?${query}`);
    expect([query, refused.status, typeof refused.json.error]).toEqual([query, 400, "string"]);
  }
});

describe("what is wrong is a 400 with a JSON error, and nothing is stored", () => {
  const INVALID = [
    "{bad",
    "",
    "null",
    "[]",
    '"x"',
    '{"name":{"a":1},"value":1}',
    '{"name":"x","value":[1]}',
    '{"name":"a\\ud800"}',
    '{"colour":"red"}',
    '{"id":5}',
  ];

  test.each(INVALID)("POST %s", async (body) => {
    const { call, store } = bound(open());
    for (const [method, path] of [
      ["POST", "/api/items"],
      ["PUT", "/api/items/x"],
    ] as const) {
      const refused = await call(method, path, body);
      expect([refused.status, typeof refused.json.error]).toEqual([400, "string"]);
    }
    expect([store.commits, store.rollbacks]).toEqual([0, 0]);
  });

  test.each(["{}", "{bad", "[1]", '[{"name":"x","value":1},{"name":{},"value":1}]'])(
    "batch %s",
    async (body) => {
      const { call, store } = bound(open());
      const refused = await call("POST", "/api/items/batch", body);
      expect([refused.status, typeof refused.json.error, store.commits]).toEqual([
        400,
        "string",
        0,
      ]);
    },
  );

  test("bytes that are not UTF-8", async () => {
    const { call } = bound(open());
    const body = new Uint8Array([...Buffer.from('{"name":"a'), 0xff, ...Buffer.from('"}')]);
    expect((await call("POST", "/api/items", body)).json.error).toBe("the body is not valid UTF-8");
  });

  test("a nested bomb", async () => {
    const fixture = open();
    const { app } = fixture;
    const text = `${"[".repeat(30_000)}1.0${"]".repeat(30_000)}`;
    const { call } = bound(fixture);
    expect((await call("POST", "/api/items", text)).status).toBe(400);
    expect((await app.request("/health")).status).toBe(200);
  });

  test("a PUT of nothing that can be changed", async () => {
    const { call } = bound(open());
    const made = await call("POST", "/api/items", {});
    for (const body of [{}, { created_at: 5 }]) {
      expect((await call("PUT", `/api/items/${made.json.id}`, body)).status).toBe(400);
    }
    expect(
      (await call("PUT", `/api/items/${made.json.id}`, { id: "other", value: 1 })).json.error,
    ).toStartWith("id:");
  });
});

test("a constraint names the column and stops nobody else", async () => {
  const { call, store } = bound(
    open(
      "CREATE TABLE users(id TEXT PRIMARY KEY, email TEXT UNIQUE, age INTEGER CHECK(age > 0), updated_at INTEGER)",
    ),
  );
  await call("POST", "/api/users", { email: "a" });
  const answers = await Promise.all([
    call("POST", "/api/users", { email: "a" }),
    call("POST", "/api/users", { age: -1 }),
    call("PUT", "/api/users/none", { age: 1 }),
    call("DELETE", "/api/users/none"),
    call("POST", "/api/users", { email: "b" }),
  ]);
  expect(answers.map((answer) => answer.status)).toEqual([409, 400, 404, 404, 201]);
  expect(answers[0]!.json.error).toStartWith("email:");
  expect(answers[1]!.json.error).toBe("age: a CHECK constraint refuses the value");
  expect([store.commits, store.rollbacks]).toEqual([2, 0]);
});

test("the id of an existing row is a 409", async () => {
  const { call } = bound(open());
  const id = "0189dcd5-5311-7d40-8db0-9496a2eef37b";
  expect((await call("POST", "/api/items", { id })).status).toBe(201);
  expect((await call("POST", "/api/items", { id })).status).toBe(409);
});

test.each([
  "a/b",
  "50%",
  "%41",
  "q?x=1",
  "h#1",
  "sp ace",
  "emoji😀",
  "quote'\"",
  "a\0b",
  "batch",
  "a+b",
  "ü",
  "../x",
  "x".repeat(10_000),
])("the id %p goes round", async (id) => {
  const { call, store } = bound(open());
  store.db.run("INSERT INTO items(id, name, updated_at) VALUES (?, 'odd', 2)", [id]);
  const path = `/api/items/${encodeURIComponent(id)}`;
  expect((await call("GET", path)).json?.id).toBe(id);
  expect((await call("PUT", path, { name: "even" })).json.name).toBe("even");
  expect((await call("DELETE", path)).json).toEqual({ deleted: id });
  expect(store.tombstones.versionOf("items", id)).toBe(store.clock.ms);
});

test.each(["%E0%A4%A", "%", "%zz", "%ff"])("the malformed escape %s is a 400", async (id) => {
  const { call } = bound(open());
  for (const method of ["GET", "DELETE"]) {
    const refused = await call(method, `/api/items/${id}`);
    expect([refused.status, typeof refused.json.error]).toEqual([400, "string"]);
  }
  expect((await call("GET", `/api/${id}`)).status).toBe(400);
  expect((await call("POST", `/api/${id}/x`, {})).status).toBe(400);
});

test("an id of a NUL is not found", async () => {
  const { call } = bound(open());
  expect((await call("GET", "/api/items/%00")).status).toBe(404);
});

test("tables are found by any spelling of their name, odd names included", async () => {
  const { call } = bound(
    open(
      'CREATE TABLE "Ord/er %?"(id TEXT PRIMARY KEY, updated_at INTEGER); CREATE TABLE batch(id TEXT PRIMARY KEY, updated_at INTEGER)',
    ),
  );
  const odd = `/api/${encodeURIComponent("ORD/er %?")}`;
  for (let i = 0; i < 2; i++) expect((await call("POST", odd, {})).status).toBe(201);
  const link = (await call("GET", `${odd}?limit=1`)).headers.get("link")!;
  expect((await call("GET", link.slice(1, link.indexOf(">")))).json.length).toBe(1);
  expect((await call("POST", "/api/batch", {})).status).toBe(201);
  expect((await call("POST", "/api/BATCH/batch", [{}])).json.created).toBe(1);
});

test.each([
  "nosuch",
  "constructor",
  "__proto__",
  "toString",
  "_meta",
  "_META",
  "_changes",
  "_hooksync_tombstones",
  "sqlite_master",
  "main.items",
  "notes",
  "items%22",
])("/api/%s is a 404", async (table) => {
  const { call } = bound(
    open(`${ITEMS_SQL}; CREATE TABLE notes(id INTEGER PRIMARY KEY, updated_at INTEGER)`, ["items"]),
  );
  for (const [method, path] of [
    ["GET", ""],
    ["POST", ""],
    ["POST", "/batch"],
    ["GET", "/x"],
    ["PUT", "/x"],
    ["DELETE", "/x"],
    ["POST", "/x"],
  ] as const) {
    const refused = await call(method, `/api/${table}${path}`, method === "GET" ? undefined : {});
    expect([method, path, refused.status, refused.json]).toEqual([
      method,
      path,
      404,
      { error: "no such table is synced here" },
    ]);
  }
});

test("a write that waits follows the schema: what was given is read again", async () => {
  const { call, store } = bound(open());
  const change = (sql: string) => {
    store.onSettle = () => {
      store.onSettle = () => {};
      store.db.run(sql);
      store.followSchema();
    };
  };
  change("ALTER TABLE items ADD COLUMN colour TEXT DEFAULT 'blue'");
  const made = await call("POST", "/api/items", { name: "a" });
  expect([made.status, made.json.colour]).toEqual([201, "blue"]);
  expect((await call("PUT", `/api/items/${made.json.id}`, { colour: "red" })).json.colour).toBe(
    "red",
  );
  change("ALTER TABLE items RENAME COLUMN name TO title");
  const refused = await call("POST", "/api/items", { name: "a" });
  expect([refused.status, refused.json.error]).toEqual([400, "name: items has no such column"]);
  change("ALTER TABLE items RENAME TO things");
  expect((await call("POST", "/api/items", { title: "a" })).status).toBe(404);
});

test("a read of a column that another program just dropped says to try again", async () => {
  const fixture = open(ITEMS_SQL, ["items"]);
  const { call, store } = bound(fixture);
  await call("POST", "/api/items", {});
  store.db.run("DROP TABLE items");
  const answer = await call("GET", "/api/items/x");
  expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, "1"]);
  expect(fixture.reported).toEqual([]);
});

/** Calls and store of a fixture, to be taken apart. */
function bound(fixture: AppFixture) {
  return { call: fixture.call.bind(fixture), store: fixture.store };
}
