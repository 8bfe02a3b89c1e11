import { afterEach, describe, expect, test } from "bun:test";
import { RequestError } from "../../lib/base/errors.ts";
import { parseJson } from "../../lib/store/row-input.ts";
import { ITEMS_SQL, StoreFixture } from "../support/store-fixture.ts";

const UUID = "0189dcd5-5311-7d40-8db0-9496a2eef37b";
const opened: StoreFixture[] = [];

function open(schema?: string, synced?: readonly string[]): StoreFixture {
  const fixture = new StoreFixture(schema, synced);
  opened.push(fixture);
  return fixture;
}

afterEach(() => {
  for (const fixture of opened.splice(0)) fixture.close();
});

function decode(json: Uint8Array): string {
  return new TextDecoder("utf-8", { fatal: true }).decode(json);
}

// biome-ignore lint/suspicious/noExplicitAny: what a client reads is JSON.
type Row = any;

async function create(store: StoreFixture, body: string, table = "items"): Promise<Row> {
  const row = store.repository.reader(store.table(table)).newRow(parseJson(body));
  const made = await store.write((tx) => store.repository.create(store.table(table), row, tx));
  if (made instanceof RequestError) throw made;
  return JSON.parse(decode(made));
}

async function update(
  store: StoreFixture,
  id: string,
  body: string,
  table = "items",
): Promise<Row> {
  const row = store.repository.reader(store.table(table)).change(parseJson(body), id);
  const made = await store.write((tx) => store.repository.update(store.table(table), id, row, tx));
  if (made instanceof RequestError) throw made;
  return JSON.parse(decode(made));
}

async function remove(store: StoreFixture, id: string, table = "items"): Promise<void> {
  const refusal = await store.write((tx) => store.repository.remove(store.table(table), id, tx));
  if (refusal) throw refusal;
}

function read(store: StoreFixture, id: string, table = "items"): string | undefined {
  const json = store.repository.read(store.table(table), id);
  return json && decode(json);
}

async function refusalOf(work: Promise<unknown>): Promise<string> {
  try {
    await work;
  } catch (error) {
    if (error instanceof RequestError) return `${error.status} ${error.message}`;
    throw error;
  }
  throw new Error("it was not refused");
}

describe("writing", () => {
  test("a created row has an id, the time and the node, and is what a read answers", async () => {
    const store = open();
    const row = await create(store, '{"name": "foo", "value": 42}');
    expect(row).toEqual({
      id: row.id,
      name: "foo",
      value: 42,
      created_at: store.clock.ms,
      updated_at: store.clock.ms,
      node_id: "node-a",
    });
    expect(row.id[14]).toBe("7");
    expect(JSON.parse(read(store, row.id)!)).toEqual(row);
  });

  test("every write says how many entries it logged", async () => {
    const store = open();
    const { id } = await create(store, "{}");
    await update(store, id, '{"value": 1}');
    await remove(store, id);
    await store.createMany(Array.from({ length: 250 }, () => ({ name: "b" })));
    expect(store.logged).toEqual([1, 1, 1, 250]);
    expect(store.log().length).toBe(253);
    expect(
      store
        .log()
        .slice(0, 4)
        .map((entry) => entry.op),
    ).toEqual(["INSERT", "UPDATE", "DELETE", "INSERT"]);
  });

  test("an update changes the given columns, keeps the creator and rises above what it replaces", async () => {
    const store = open();
    store.db.run("INSERT INTO items VALUES ('x', 'old', 1, 5, ?, 'node-b')", [
      store.clock.ms + 60_000,
    ]);
    const row = await update(store, "x", '{"value": 2}');
    expect(row).toEqual({
      id: "x",
      name: "old",
      value: 2,
      created_at: 5,
      updated_at: store.clock.ms + 60_001,
      node_id: "node-b",
    });
  });

  test("a stamp that is no integer is replaced by now", async () => {
    const store = open();
    store.db.run("INSERT INTO items(id, updated_at) VALUES ('x', NULL)");
    expect((await update(store, "x", '{"value": 2}')).updated_at).toBe(store.clock.ms);
  });

  test("a deleted row leaves a tombstone of its version, and what comes after is above it", async () => {
    const store = open();
    const version = store.clock.ms + 5_000;
    store.db.run("INSERT INTO items(id, updated_at) VALUES (?, ?)", [UUID, version]);
    await remove(store, UUID);
    expect(store.tombstones.versionOf("items", UUID)).toBe(version);
    const row = await create(store, `{"id": "${UUID}"}`);
    expect(row.updated_at).toBe(version + 1);
    store.db.run("UPDATE items SET updated_at = 1");
    expect((await update(store, UUID, '{"value": 1}')).updated_at).toBe(version + 1);
    const [again] = await open().createMany([{ id: UUID }]);
    expect(again).toBe(UUID);
  });

  test("a batch respects tombstones, too", async () => {
    const store = open();
    store.tombstones.put("items", UUID, store.clock.ms + 7, 0);
    await store.createMany([{ name: "a" }, { id: UUID }]);
    expect(JSON.parse(read(store, UUID)!).updated_at).toBe(store.clock.ms + 8);
  });

  test("what is not there is a 404 and logs nothing", async () => {
    const store = open();
    expect(await refusalOf(update(store, "none", '{"value": 1}'))).toBe("404 no such row");
    expect(await refusalOf(remove(store, "none"))).toBe("404 no such row");
    expect([store.log(), store.rollbacks]).toEqual([[], 0]);
  });

  test("missing columns get their defaults", async () => {
    const store = open(
      "CREATE TABLE t(id TEXT PRIMARY KEY, a TEXT DEFAULT 'x', b INTEGER NOT NULL DEFAULT 7, updated_at INTEGER)",
    );
    expect(await create(store, "{}", "t")).toMatchObject({ a: "x", b: 7 });
    expect(await create(store, '{"a": null}', "t")).toMatchObject({ a: null, b: 7 });
  });

  test("the answer shows what the user's triggers made of the row", async () => {
    const store = open(
      `${ITEMS_SQL};
      CREATE TABLE tags(id INTEGER PRIMARY KEY, name TEXT UNIQUE);
      INSERT INTO tags(name) VALUES ('foo');
      CREATE TRIGGER tag AFTER INSERT ON items BEGIN INSERT OR IGNORE INTO tags(name) VALUES (NEW.name); END;
      CREATE TRIGGER upper AFTER INSERT ON items WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
      BEGIN UPDATE items SET name = upper(NEW.name) WHERE id = NEW.id; END;`,
      ["items"],
    );
    const row = await create(store, '{"name": "foo"}');
    expect(row.name).toBe("FOO");
    expect(JSON.parse(read(store, row.id)!)).toEqual(row);
  });

  test("names with quotes, keywords and other letters work, and WITHOUT ROWID and STRICT tables", async () => {
    const store = open(`CREATE TABLE "or""der by"(
      ID TEXT PRIMARY KEY, "select" TEXT, "grüße""" INTEGER, "__proto__" TEXT, Updated_At INTEGER) STRICT, WITHOUT ROWID`);
    const row = await create(
      store,
      '{"select": "a", "grüße\\"": 1, "__proto__": "p"}',
      'or"der by',
    );
    expect([
      row.select,
      row['grüße"'],
      Object.getOwnPropertyDescriptor(row, "__proto__")?.value,
    ]).toEqual(["a", 1, "p"]);
    expect(await update(store, row.ID, '{"SELECT": "b"}', 'or"der by')).toMatchObject({
      select: "b",
    });
    expect(store.repository.list(store.table('or"der by'), 10, undefined).order).toBe("id");
  });
});

describe("values go in and out unchanged", () => {
  const SCHEMA =
    "CREATE TABLE v(id TEXT PRIMARY KEY, i INTEGER, r REAL, t TEXT, b BLOB, n NUMERIC, x, updated_at INTEGER)";

  test.each([
    ["i", "9007199254740993", "integer", "9007199254740993"],
    ["i", "-9223372036854775808", "integer", "-9223372036854775808"],
    ["i", "1e3", "integer", "1000"],
    ["r", "1", "real", "1.0"],
    ["r", "0.30000000000000004", "real", "0.30000000000000004"],
    ["r", "9e999", "real", "9.0e+999"],
    ["t", '"a\\u0000b😀\\u2028"', "text", undefined],
    ["t", '""', "text", '""'],
    ["b", '"\\\\x00ff"', "blob", undefined],
    ["b", '"\\\\x"', "blob", undefined],
    ["n", "12.5", "real", "12.5"],
    ["x", "1.0", "real", "1.0"],
    ["x", "1e21", "real", undefined],
    ["x", "1", "integer", "1"],
    ["x", '"\\\\x6162"', "blob", undefined],
    ["x", '"text"', "text", '"text"'],
    ["x", "null", "null", "null"],
  ])("%s = %s", async (column, literal, type, text) => {
    const store = open(SCHEMA);
    const body = `{"${column}": ${literal}}`;
    const { id } = await create(store, body, "v");
    const stored = store.db
      .query<{ type: string }, []>(`SELECT typeof(${column}) AS type FROM v`)
      .get();
    expect(stored!.type).toBe(type);
    const answer = read(store, id, "v")!;
    if (text !== undefined) expect(answer).toContain(`"${column}":${text}`);
    // What was read can be written back, by PUT and in a batch, and is the same again.
    await update(store, id, answer, "v");
    const withoutStamp = (json: string) => json.replace(/"updated_at":\d+/, "");
    expect(withoutStamp(read(store, id, "v")!)).toBe(withoutStamp(answer));
    const [copy] = await store.createMany([parseJson(body)], "v");
    expect(withoutStamp(read(store, copy!, "v")!)).toBe(withoutStamp(answer).replace(id, copy!));
  });

  test("a text that is not UTF-8 is shown as hex, never with other characters", () => {
    const store = open(SCHEMA);
    store.db.run(
      "INSERT INTO v(id, t, i, updated_at) VALUES ('x', CAST(x'61ff62' AS TEXT), 9007199254740993, 1)",
    );
    const json = read(store, "x", "v")!;
    expect(JSON.parse(json).t).toBe("\\x61ff62");
    expect(json).toContain("9007199254740993");
    expect(decode(store.repository.list(store.table("v"), 10, undefined).json)).toBe(`[${json}]`);
  });
});

describe("constraints", () => {
  const SCHEMA = `
    CREATE TABLE parents(id TEXT PRIMARY KEY, updated_at INTEGER);
    CREATE TABLE users(
      id TEXT PRIMARY KEY, email TEXT UNIQUE, name TEXT NOT NULL, age INTEGER CHECK(age >= 0),
      size INTEGER CONSTRAINT positive CHECK(size > 0), parent TEXT REFERENCES parents(id),
      late TEXT REFERENCES parents(id) DEFERRABLE INITIALLY DEFERRED, updated_at INTEGER);
    CREATE TABLE strict_ones(id TEXT PRIMARY KEY, a ANY, i INT, updated_at INTEGER) STRICT;
    CREATE UNIQUE INDEX lower_name ON users(lower(name)) WHERE age = 99`;

  test.each([
    ['{"name": "b", "email": "e"}', "409 email: another row has this value already"],
    ["{}", "400 name: must be given and not null"],
    ['{"name": null}', "400 name: must be given and not null"],
    ['{"name": "b", "age": -1}', "400 age: a CHECK constraint refuses the value"],
    ['{"name": "b", "size": 0}', "400 size: a CHECK constraint refuses the value"],
    ['{"name": "b", "parent": "none"}', "409 a foreign key refuses it"],
    ['{"name": "A", "age": 99}', "409 the row: another row has this value already"],
    [`{"name": "b", "id": "${UUID}"}`, "409 id: there is a row with this id already"],
  ])(
    "%s is refused with its column, alone in its group, and leaves nothing",
    async (body, message) => {
      const store = open(SCHEMA);
      await create(store, `{"id": "${UUID}", "name": "a", "email": "e", "age": 99}`, "users");
      const before = [store.log().length, store.rollbacks];
      const [refused, other] = await Promise.all([
        refusalOf(create(store, body, "users")),
        create(store, '{"name": "other"}', "users"),
      ]);
      expect(refused).toStartWith(message);
      expect(read(store, other.id, "users")).toBeDefined();
      expect([store.log().length - before[0]!, store.rollbacks - before[1]!]).toEqual([1, 0]);
    },
  );

  test("a deferred foreign key fails at COMMIT, for the guilty write alone", async () => {
    const store = open(SCHEMA);
    const [late, other] = await Promise.allSettled([
      create(store, '{"name": "l", "late": "none"}', "users"),
      create(store, '{"name": "other"}', "users"),
    ]);
    expect([late.status, other.status]).toEqual(["rejected", "fulfilled"]);
    expect(store.db.query("SELECT count(*) AS n FROM users").get()).toEqual({ n: 1 });
  });

  test("a row that others point to cannot be deleted", async () => {
    const store = open(SCHEMA);
    const parent = await create(store, "{}", "parents");
    await create(store, `{"name": "c", "parent": "${parent.id}"}`, "users");
    expect(await refusalOf(remove(store, parent.id, "parents"))).toStartWith("409 a foreign key");
    expect(store.tombstones.versionOf("parents", parent.id)).toBeUndefined();
  });

  test.each(["RESTRICT", "NO ACTION"])(
    "ON DELETE %s is a foreign key's refusal, in our words",
    async (action) => {
      const store = open(`
      CREATE TABLE parents(id TEXT PRIMARY KEY, updated_at INTEGER);
      CREATE TABLE children(id TEXT PRIMARY KEY, parent TEXT REFERENCES parents(id) ON DELETE ${action}, updated_at INTEGER)`);
      const parent = await create(store, "{}", "parents");
      await create(store, `{"parent": "${parent.id}"}`, "children");
      expect(await refusalOf(remove(store, parent.id, "parents"))).toStartWith(
        "409 a foreign key refuses it",
      );
    },
  );

  test("a STRICT table's own refusal names the column", async () => {
    const store = open("CREATE TABLE s(id TEXT PRIMARY KEY, i INT, updated_at INTEGER) STRICT");
    store.db.run(
      "CREATE TRIGGER odd AFTER INSERT ON s BEGIN UPDATE s SET i = 'x' WHERE id = NEW.id; END",
    );
    expect(await refusalOf(create(store, '{"i": 1}', "s"))).toBe(
      "400 i: the value is of another type than the column",
    );
  });

  test.each([
    ["ABORT", 0],
    ["FAIL", 0],
    ["ROLLBACK", 2],
  ])(
    "RAISE(%s) of a user's trigger refuses the write and keeps the others",
    async (how, rollbacks) => {
      const store = open(
        `${ITEMS_SQL};
      CREATE TABLE seen(name TEXT);
      CREATE TRIGGER no BEFORE INSERT ON items BEGIN
        INSERT INTO seen VALUES (NEW.name);
        SELECT RAISE(${how}, 'no bad names') WHERE NEW.name = 'bad';
      END;`,
        ["items"],
      );
      const [refused] = await Promise.all([
        create(store, '{"name": "bad"}').then(
          () => "taken",
          (error: Error) => error.message,
        ),
        create(store, '{"name": "good"}'),
      ]);
      expect(refused).toContain("no bad names");
      expect(store.db.query("SELECT name FROM items").all()).toEqual([{ name: "good" }]);
      expect(store.db.query("SELECT name FROM seen").all()).toEqual([{ name: "good" }]);
      expect(store.rollbacks).toBe(rollbacks);
    },
  );

  test("RAISE(IGNORE) is a refusal, not an answer with nothing behind it", async () => {
    const store = open(`${ITEMS_SQL};
      CREATE TRIGGER no BEFORE INSERT ON items WHEN NEW.name = 'bad' BEGIN SELECT RAISE(IGNORE); END;
      CREATE TRIGGER keep BEFORE DELETE ON items BEGIN SELECT RAISE(IGNORE); END;
      CREATE TRIGGER fixed BEFORE UPDATE ON items BEGIN SELECT RAISE(IGNORE); END;`);
    expect(await refusalOf(create(store, '{"name": "bad"}'))).toStartWith("409");
    const { id } = await create(store, '{"name": "good"}');
    expect(await refusalOf(remove(store, id))).toStartWith("409");
    expect(await refusalOf(update(store, id, '{"name": "x"}'))).toStartWith("409");
    expect(await refusalOf(store.createMany([{ name: "a" }, { name: "bad" }]))).toStartWith(
      "409 [1]",
    );
    expect([store.log().length, store.tombstones.versionOf("items", id)]).toEqual([1, undefined]);
  });

  test("an expression of the table that cannot take a value is a refusal", async () => {
    const store = open(
      `CREATE TABLE items(id TEXT PRIMARY KEY, doc TEXT, kind TEXT AS (json_extract(doc, '$.kind')) STORED,
         updated_at INTEGER)`,
    );
    const refusal = "400 an expression of the table cannot take the row: malformed JSON";
    expect(await refusalOf(create(store, '{"doc": "{"}'))).toBe(refusal);
    const rows = [{ doc: "{}" }, { doc: "{" }];
    expect(await refusalOf(store.createMany(rows))).toBe(refusal.replace("400 ", "400 [1]: "));
    const { id } = await create(store, '{"doc": "{}"}');
    expect(await refusalOf(update(store, id, '{"doc": "{"}'))).toBe(refusal);
    expect(store.log()).toHaveLength(1);
  });

  test("a file that others broke is no refusal", async () => {
    const store = open(`${ITEMS_SQL}; CREATE TABLE audit(id);
      CREATE TRIGGER app AFTER INSERT ON items BEGIN INSERT INTO audit VALUES (NEW.id); END`);
    store.db.run("DROP TABLE audit");
    expect(create(store, "{}")).rejects.toThrow("no such table");
  });

  test("rows that a table's own ON CONFLICT REPLACE throws out are left to settling", async () => {
    const store = open(
      "CREATE TABLE r(id TEXT PRIMARY KEY, k TEXT UNIQUE ON CONFLICT REPLACE, updated_at INTEGER)",
    );
    await create(store, '{"k": "a"}', "r");
    await create(store, '{"k": "a"}', "r");
    // Not counted: the store then settles the log itself, notes included.
    expect(store.logged).toEqual([0, 0]);
    expect(store.db.query("SELECT count(*) AS n FROM _hooksync_noted").get()).toEqual({ n: 1 });
  });
});

describe("batches", () => {
  test("250 rows of two shapes arrive in order, with rising ids", async () => {
    const store = open();
    const rows = Array.from({ length: 250 }, (_, i) =>
      i === 120 ? { value: i } : { name: `n${i}`, value: i },
    );
    const ids = await store.createMany(rows);
    expect([...ids].sort()).toEqual(ids);
    expect(ids.map((id) => JSON.parse(read(store, id)!).value)).toEqual(rows.map((_, i) => i));
    expect(JSON.parse(read(store, ids[120]!)!).name).toBeNull();
  });

  test("one bad row takes back the whole batch and is named", async () => {
    const store = open("CREATE TABLE u(id TEXT PRIMARY KEY, k INTEGER UNIQUE, updated_at INTEGER)");
    const rows = Array.from({ length: 250 }, (_, i) => ({ k: i === 230 ? 7 : i }));
    const [refused, other] = await Promise.all([
      refusalOf(store.createMany(rows, "u")),
      create(store, '{"k": 1000}', "u"),
    ]);
    expect(refused).toBe("409 [230]: k: another row has this value already");
    expect(store.db.query("SELECT id FROM u").all()).toEqual([{ id: other.id }]);
    expect([store.log().length, store.rollbacks]).toEqual([1, 0]);
  });

  test("an id that is taken, or given twice, is named", async () => {
    const store = open();
    expect(await refusalOf(store.createMany([{}, { id: UUID }, { id: UUID }]))).toStartWith(
      "409 [2]: id",
    );
    await create(store, `{"id": "${UUID}"}`);
    expect(await refusalOf(store.createMany([{}, { id: UUID }]))).toStartWith("409 [1]: id");
    expect(store.log().length).toBe(1);
  });

  test("wide tables stay below SQLite's number of parameters", async () => {
    const names = Array.from({ length: 400 }, (_, i) => `c${i}`);
    const store = open(
      `CREATE TABLE wide(id TEXT PRIMARY KEY, ${names.map((name) => `${name} INTEGER`).join(", ")}, updated_at INTEGER)`,
    );
    const row = Object.fromEntries(names.map((name, i) => [name, i]));
    const ids = await store.createMany(Array(60).fill(row), "wide");
    expect(JSON.parse(read(store, ids[59]!, "wide")!)).toMatchObject({ c0: 0, c399: 399 });
  });
});

describe("statements follow the schema", () => {
  test("another table object drops what was prepared for the old one", async () => {
    const store = open();
    const { id } = await create(store, '{"name": "a"}');
    store.db.run("ALTER TABLE items ADD COLUMN colour TEXT");
    store.followSchema();
    expect(await update(store, id, '{"colour": "red"}')).toMatchObject({
      name: "a",
      colour: "red",
    });
  });

  test("more shapes than are kept still work", async () => {
    const names = Array.from({ length: 9 }, (_, i) => `c${i}`);
    const store = open(
      `CREATE TABLE t(id TEXT PRIMARY KEY, ${names.map((name) => `${name} INTEGER`).join(", ")}, updated_at INTEGER)`,
    );
    for (let bits = 1; bits < 200; bits++) {
      const given = Object.fromEntries(
        names.filter((_, i) => bits & (1 << i)).map((name) => [name, bits]),
      );
      expect(await create(store, JSON.stringify(given), "t")).toMatchObject(given);
    }
  });

  test("no statement is left open, neither of an earlier schema nor at the end", async () => {
    const store = open();
    const made: { readonly isFinalized: boolean }[] = [];
    const prepare = store.db.prepare.bind(store.db);
    store.db.prepare = ((sql: string) => {
      const statement = prepare(sql);
      made.push(statement as unknown as { readonly isFinalized: boolean });
      return statement;
    }) as typeof store.db.prepare;
    const use = async () => {
      const ids = await store.createMany(Array(120).fill({ name: "x" }));
      await update(store, ids[0]!, '{"value": 1}');
      await remove(store, ids[1]!);
      store.repository.list(store.table(), 5, undefined);
    };
    await use();
    const before = made.splice(0);
    store.followSchema();
    await use();
    expect(before.length).toBeGreaterThan(5);
    expect(before.filter((statement) => !statement.isFinalized)).toEqual([]);
    made.length = 0;
    store.repository.list(store.table(), 5, undefined);
    await use();
    store.repository.close();
    expect(made.filter((statement) => !statement.isFinalized)).toEqual([]);
  });
});
