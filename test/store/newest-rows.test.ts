import { afterEach, expect, test } from "bun:test";
import { ITEMS_SQL, StoreFixture } from "../support/store-fixture.ts";

const opened: StoreFixture[] = [];
const MANY = 20_100;

function open(schema = ITEMS_SQL): StoreFixture {
  const store = new StoreFixture(schema);
  // These tests fill tables by hand and look at nothing that is logged.
  store.db.run("UPDATE _meta SET value = 1 WHERE key = 'syncing'");
  opened.push(store);
  return store;
}

afterEach(() => {
  for (const store of opened.splice(0)) store.close();
});

interface Listed {
  readonly id: string;
  readonly created_at?: number | string | null;
}

function page(store: StoreFixture, limit: number, after?: string) {
  const list = store.repository.list(store.table(), limit, after);
  const rows: Listed[] = JSON.parse(new TextDecoder().decode(list.json));
  return { rows, ids: rows.map((row) => row.id), order: list.order, next: list.next };
}

function allPages(store: StoreFixture, limit: number): { ids: string[]; orders: Set<string> } {
  const ids: string[] = [];
  const orders = new Set<string>();
  let after: string | undefined;
  do {
    const found = page(store, limit, after);
    ids.push(...found.ids);
    orders.add(found.order);
    after = found.next;
  } while (after !== undefined);
  return { ids, orders };
}

/** `count` rows whose ids rise with the rowid; created_at is what `stamp` says. */
function fill(
  store: StoreFixture,
  count: number,
  id: (n: number) => string,
  stamp: (n: number) => number,
): void {
  const insert = store.db.prepare("INSERT INTO items(id, created_at, updated_at) VALUES (?, ?, 1)");
  store.db.transaction(() => {
    for (let n = 0; n < count; n++) insert.run(id(n), stamp(n));
  })();
}

const uuid7 = (n: number) => `019${n.toString(16).padStart(5, "0")}-0000-7000-8000-000000000000`;
const uuid4 = (n: number) =>
  `${((n * 40_503) % 65_536).toString(16).padStart(8, "f")}-${n.toString(16).padStart(4, "0")}-4000-8000-000000000000`;

test("newest first by created_at, then by id, whatever order rows came in", () => {
  const store = open();
  for (const [id, stamp] of [
    ["b", 2],
    ["a", 3],
    ["d", 1],
    ["c", 2],
  ]) {
    store.db.run("INSERT INTO items(id, created_at, updated_at) VALUES (?, ?, 1)", [id!, stamp!]);
  }
  expect(page(store, 100)).toMatchObject({
    ids: ["a", "c", "b", "d"],
    order: "created_at",
    next: undefined,
  });
});

test("pages join without gap or repeat, over equal, missing, huge and odd stamps", () => {
  const store = open("CREATE TABLE items(id TEXT PRIMARY KEY, created_at, updated_at INTEGER)");
  const stamps = [
    "5",
    "5",
    "5",
    "1.5",
    "NULL",
    "NULL",
    "NULL",
    "'text'",
    "'a''b'",
    "x'00ff'",
    "9e999",
    "9223372036854775807",
    "9223372036854775806",
  ];
  for (const [n, stamp] of stamps.entries()) {
    store.db.run(
      `INSERT INTO items(id, created_at, updated_at) VALUES ('id%"${n}😀', ${stamp}, 1)`,
    );
  }
  const expected = store.db
    .query<{ id: string }, []>("SELECT id FROM items ORDER BY created_at DESC, id DESC")
    .all()
    .map((row) => row.id);
  expect(page(store, expected.length).next).toBeUndefined();
  for (const limit of [1, 2, 3, 5, 12, 13, 1_000]) {
    expect(allPages(store, limit).ids).toEqual(expected);
  }
});

test.each([
  ["created_at", "created_at", ""],
  ["created_at", "created_at INTEGER", ""],
  ["created_at", "created_at TEXT", ""],
  ["id", "made_at", " WITHOUT ROWID"],
])(
  "texts that are not UTF-8 neither hide rows of a list by %s nor repeat them (%s)",
  (order, column, end) => {
    const store = open(
      `CREATE TABLE items(id TEXT PRIMARY KEY, ${column}, updated_at INTEGER)${end}`,
    );
    const texts = ["ff", "fe", "fe00", "80", "f09f9880", "efbfbd", "00", "41", ""];
    for (const text of texts) {
      // A row whose id is not UTF-8 is not listed, and not in the way of others.
      for (const id of texts)
        store.db.run(`INSERT INTO items VALUES (CAST(x'${id}' AS TEXT), CAST(x'${text}' AS TEXT), 1)
                    ON CONFLICT DO NOTHING`);
      store.db.run(`INSERT INTO items VALUES ('id ${text}', CAST(x'${text}' AS TEXT), 1)`);
    }
    store.db.run("INSERT INTO items VALUES ('n1', NULL, 1), ('n2', 7, 1), ('n3', x'', 1)");
    const whole = page(store, 100);
    expect([whole.order as string, whole.next]).toEqual([order, undefined]);
    expect(whole.ids.length).toBe(texts.length + 3 + 5);
    for (const limit of [1, 2, 3, 7]) expect(allPages(store, limit).ids).toEqual(whole.ids);
  },
);

test("a page is a place, not a number: rows that come and go do not shift it", () => {
  const store = open();
  fill(store, 10, uuid7, (n) => n);
  const first = page(store, 4);
  store.db.run("DELETE FROM items WHERE id IN (?, ?)", [first.ids[0]!, first.ids[3]!]);
  fill(
    store,
    1,
    () => uuid7(99),
    () => 99,
  );
  expect(page(store, 4, first.next).ids).toEqual([5, 4, 3, 2].map(uuid7));
});

test("a large table with UUIDv7 ids is listed by id, the rows of a page by created_at", () => {
  const store = open();
  fill(store, MANY, uuid7, (n) => n - (n % 2) * 3);
  const first = page(store, 4);
  expect(first.order).toBe("id");
  const top = [4, 3, 2, 1].map((back) => MANY - back);
  expect(new Set(first.ids)).toEqual(new Set(top.map(uuid7)));
  const stamps = first.rows.map((row) => row.created_at as number);
  expect(stamps).toEqual([...stamps].sort((a, b) => b - a));
  expect(new Set(page(store, 2, first.next).ids)).toEqual(new Set([MANY - 5, MANY - 6].map(uuid7)));
});

test("a large table with other ids is listed as it was stored", () => {
  const store = open();
  fill(store, MANY, uuid4, (n) => n);
  const { ids, orders } = allPages(store, 1_000);
  expect([...orders]).toEqual(["rowid"]);
  expect(ids).toEqual(Array.from({ length: MANY }, (_, n) => uuid4(MANY - 1 - n)));
});

test("an index on created_at gives the exact order, however large; it is noticed when it comes and goes", () => {
  const store = open();
  fill(store, MANY, uuid4, (n) => (n * 7_919) % MANY);
  expect(page(store, 1).order).toBe("rowid");
  store.db.run("CREATE INDEX newest ON items(created_at)");
  const { ids, orders } = allPages(store, 1_000);
  expect([...orders]).toEqual(["created_at"]);
  const expected = store.db
    .query<{ id: string }, []>("SELECT id FROM items ORDER BY created_at DESC, id DESC")
    .all()
    .map((row) => row.id);
  expect(ids).toEqual(expected);
  const cursor = page(store, 1).next!;
  store.db.run("DROP INDEX newest");
  expect(page(store, 1).order).toBe("rowid");
  expect(() => page(store, 1, cursor)).toThrow("another order now");
});

test("an index that does not serve the order is not taken for one", () => {
  const store = open();
  fill(store, MANY, uuid7, (n) => n);
  store.db.run("CREATE INDEX a ON items(node_id, created_at)");
  store.db.run("CREATE INDEX b ON items(created_at) WHERE name IS NOT NULL");
  expect(page(store, 1).order).toBe("id");
});

test("an index of another collation is not taken, one behind a UNIQUE constraint is", () => {
  const schema = (constraint: string) =>
    `CREATE TABLE items(id TEXT PRIMARY KEY, created_at TEXT, updated_at INTEGER${constraint})`;
  const folded = open(schema(""));
  fill(folded, MANY, uuid7, (n) => n);
  folded.db.run("CREATE INDEX folded ON items(created_at COLLATE NOCASE)");
  expect(page(folded, 1).order).toBe("id");
  const unique = open(schema(", UNIQUE(created_at, id)"));
  fill(unique, MANY, uuid7, (n) => n);
  expect(page(unique, 1).order).toBe("created_at");
});

test("without created_at the rowid decides, or the id where ids rise or there is no rowid", () => {
  const store = open("CREATE TABLE items(id TEXT PRIMARY KEY, updated_at INTEGER)");
  for (const id of ["b", "c", "a"]) store.db.run("INSERT INTO items VALUES (?, 1)", [id]);
  expect(page(store, 2)).toMatchObject({ ids: ["a", "c"], order: "rowid" });
  expect(allPages(store, 2).ids).toEqual(["a", "c", "b"]);
  const keyed = open("CREATE TABLE items(id TEXT PRIMARY KEY, updated_at INTEGER) WITHOUT ROWID");
  for (const id of ["b", "c", "a"]) keyed.db.run("INSERT INTO items VALUES (?, 1)", [id]);
  expect(allPages(keyed, 2).ids).toEqual(["c", "b", "a"]);
});

test("columns that hide the rowid's names are no rowid", () => {
  const store = open(
    "CREATE TABLE items(id TEXT PRIMARY KEY, rowid TEXT, _rowid_ TEXT, OID TEXT, updated_at INTEGER)",
  );
  for (const id of ["b", "c", "a"])
    store.db.run("INSERT INTO items(id, updated_at) VALUES (?, 1)", [id]);
  expect(allPages(store, 2)).toEqual({ ids: ["c", "b", "a"], orders: new Set(["id"]) });
});

test("rows that are not synced for want of an id are not listed", () => {
  const store = open();
  store.db.run("INSERT INTO items(id, updated_at) VALUES (NULL, 1), (x'00', 1), ('a', 1)");
  expect(page(store, 10).ids).toEqual(["a"]);
});

test("a page of large rows ends before it fills the memory, and the next goes on", () => {
  const store = open("CREATE TABLE items(id TEXT PRIMARY KEY, b BLOB, updated_at INTEGER)");
  for (const id of ["a", "b", "c"])
    store.db.run("INSERT INTO items VALUES (?, zeroblob(5000000), 1)", [id]);
  const first = page(store, 10);
  expect(first.ids).toEqual(["c"]);
  expect(page(store, 10, first.next).ids).toEqual(["b"]);
  expect(allPages(store, 10).ids).toEqual(["c", "b", "a"]);
});

const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");

test.each([
  "x",
  "",
  encode(null),
  encode(["created_at", "integer", "1"]),
  encode(["created_at", "integer", "1; DROP TABLE items", "a"]),
  encode(["created_at", "integer", 1, "a"]),
  encode(["nope", "integer", "1", "a"]),
  encode(["rowid", "", "x", "a"]),
])("%p is not a cursor", (after) => {
  const store = open();
  fill(store, 3, uuid7, (n) => n);
  expect(() => page(store, 1, after)).toThrow("after: ");
});

test("an empty table is an empty list", () => {
  expect(page(open(), 10)).toMatchObject({ rows: [], next: undefined });
});
