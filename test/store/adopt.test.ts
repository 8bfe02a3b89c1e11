/**
 * The first look at a file: which tables are synced, and what other programs left in it (DESIGN.md,
 * "Schema" and the end of "Tombstones").
 */
import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import { decideSelection, prepareFile } from "../../lib/store/adopt.ts";
import { StoreFile, T } from "../support/open-store.ts";

const ITEMS =
  "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT)";
const CONTRACT = `
  CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER); INSERT INTO _meta VALUES('syncing', 0);
  CREATE TABLE _changes(change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, table_name TEXT, row_id TEXT, row_data TEXT);
  CREATE TABLE _dead_letter(dead_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT, failed_at INTEGER, retry_count INTEGER DEFAULT 0);
  CREATE TABLE _peer_state(peer_url TEXT PRIMARY KEY, last_acked INTEGER DEFAULT 0);`;

/** The triggers that nodes of other makes put on a table. */
function foreignTriggers(
  table: string,
  columns: readonly string[],
  label = `'${table}', `,
): string {
  return [
    ["ai", "INSERT", "NEW"],
    ["au", "UPDATE", "NEW"],
    ["ad", "DELETE", "OLD"],
  ]
    .map(([suffix, op, side]) => {
      const members = columns.map((column) => `'${column}', ${side}.${column}`).join(", ");
      const names = label === "" ? "op, row_id, row_data" : "op, table_name, row_id, row_data";
      return `CREATE TRIGGER ${table}_${suffix} AFTER ${op} ON ${table}
        WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
        BEGIN INSERT INTO _changes(${names}) VALUES('${op}', ${label}${side}.id, json_object(${members})); END;`;
    })
    .join("\n");
}

const ITEM_COLUMNS = ["id", "name", "value", "created_at", "updated_at", "node_id"];
const GO_FILE = `${CONTRACT} ${ITEMS}; ${foreignTriggers("items", ITEM_COLUMNS)}`;
const OLDEST_FILE = `${CONTRACT.replace("table_name TEXT, ", "")} ${ITEMS}; ${foreignTriggers("items", ITEM_COLUMNS, "")}`;

function tell(file: StoreFile): string[] {
  return file.entries().map(({ op, table_name, row_id, row_data }) => {
    const row = row_data === null ? null : JSON.parse(row_data);
    return `${op} ${table_name} ${row_id} ${row?.updated_at} ${row?.name}`;
  });
}

describe.each([
  ["a node of another make", GO_FILE],
  ["a node of the oldest layout", OLDEST_FILE],
])("a file of %s", (_, sql) => {
  test("is carried on with: pending changes, each at its version, and our triggers", async () => {
    await using file = new StoreFile(`${sql}
      INSERT INTO items(id, name, updated_at) VALUES('new', 'n', ${T}), ('twice', 'old', ${T}), ('gone', 'g', ${T + 5}), ('sent', 's', ${T});
      DELETE FROM _changes WHERE row_id = 'sent';
      UPDATE items SET name = 'changed', updated_at = ${T + 1} WHERE id = 'twice';
      UPDATE items SET name = 'changed', updated_at = ${T + 1} WHERE id = 'sent';
      DELETE FROM items WHERE id = 'gone'`);
    file.open();
    expect(tell(file)).toEqual([
      `DELETE items gone ${T + 5} g`,
      `INSERT items new ${T} n`,
      `INSERT items twice ${T + 1} changed`,
      `UPDATE items sent ${T + 1} changed`,
    ]);
    expect(file.rows("SELECT id, version FROM _hooksync_tombstones")).toEqual([
      { id: "gone", version: T + 5 },
    ]);
    file.write("UPDATE items SET name = 'ours' WHERE id = 'new'");
    await file.settle();
    expect(tell(file).at(-1)).toBe(`UPDATE items new ${file.clock.ms} ours`);
    expect(file.log()).toHaveLength(5);
    expect(file.kinds()).toEqual(["registered"]);
  });

  test("goes back and comes again without an announcement of everything", async () => {
    await using file = new StoreFile(sql);
    file.write(`INSERT INTO items(id, updated_at) VALUES('a', ${T})`);
    file.open();
    await file.close();
    // Its node makes triggers where there are none of the name, and goes on with ours where there are.
    file.write(`UPDATE items SET name = 'theirs', updated_at = ${T + 1}`);
    file.open();
    await file.runDue();
    expect(tell(file)).toEqual([`INSERT items a ${T} null`, `UPDATE items a ${T + 1} theirs`]);
    expect(file.kinds()).toEqual(["registered"]);
  });
});

test("what an older SQLite logged with 15 digits is exact again", async () => {
  await using file = new StoreFile(
    `${CONTRACT} CREATE TABLE t(id TEXT PRIMARY KEY, x, updated_at INTEGER); ${foreignTriggers("t", ["id", "x", "updated_at"])}
     INSERT INTO t VALUES('a', 0.1 + 0.2, ${T}); UPDATE _changes SET row_data = json_set(row_data, '$.x', 0.3)`,
  );
  file.open();
  expect(JSON.parse(file.entries()[0]!.row_data).x).toBe(0.1 + 0.2);
});

test("a row that was removed by a received delete is not sent from an older entry", async () => {
  await using file =
    new StoreFile(`${GO_FILE} INSERT INTO items(id, name, updated_at) VALUES('a', 'x', ${T});
    UPDATE _meta SET value = 1; DELETE FROM items; UPDATE _meta SET value = 0`);
  file.open();
  expect(tell(file)).toEqual([`DELETE items a ${T} x`]);
});

test("entries that are no rows end in the dead letters; the others go on", async () => {
  await using file =
    new StoreFile(`${GO_FILE} INSERT INTO items(id, name, updated_at) VALUES('a', 'x', ${T});
    INSERT INTO _changes(op, table_name, row_id, row_data) VALUES('UPDATE', 'items', 'b', 'no json'), ('UPDATE', 'items', 'c', NULL),
      ('UPDATE', 'items', 'd', '[1]'), ('UPSERT', 'items', 'e', '{}'), (NULL, 'items', 'f', '{}'), ('UPDATE', 'items', NULL, '{}'),
      ('DELETE', 'items', 'g', NULL)`);
  file.open();
  expect(file.log()).toEqual(["DELETE g", "INSERT a"]);
  expect(file.entries()[0]?.row_data).toBeNull();
  expect(
    file.rows("SELECT row_id AS id FROM _dead_letter ORDER BY dead_id").map(({ id }) => id),
  ).toEqual(["b", "c", "d", "e", "f", null]);
});

test("a table that was logged in another spelling is settled like any other", async () => {
  await using file =
    new StoreFile(`${CONTRACT} ${ITEMS.replace("items", "Items")}; ${foreignTriggers("items", ITEM_COLUMNS)}
    INSERT INTO items(id, name) VALUES('a', 'x'); UPDATE items SET name = 'y'`);
  file.open();
  expect(tell(file)).toEqual([`INSERT Items a ${file.clock.ms} y`]);
});

test("a watermark under another spelling of the peer's address counts", async () => {
  await using file = new StoreFile(
    `${GO_FILE} INSERT INTO _peer_state VALUES('http://B:9001/', 7), ('http://gone:1', 9)`,
  );
  const store = file.open();
  const lower = (url: string) => url.toLowerCase().replace(/\/$/, "");
  expect(store.configurePeers(["http://b:9001", "http://c"], lower)).toEqual({
    starts: [
      { url: "http://b:9001", watermark: 7, prev: 0 },
      { url: "http://c", watermark: 0, prev: 0 },
    ],
    added: ["http://c"],
  });
});

test("an emptied sqlite_sequence beside a peer that has a part is no reason to leave the rest unsettled", async () => {
  await using file = new StoreFile(`${GO_FILE} INSERT INTO items(id) VALUES('a'), ('b'), ('c');
    INSERT INTO _peer_state VALUES('http://b', 2); DELETE FROM sqlite_sequence`);
  file.open();
  const { ms } = file.clock;
  expect(tell(file)).toEqual(["a", "b", "c"].map((id) => `INSERT items ${id} ${ms} null`));
});

test("rows without a stamp get version 0 once, in slices, uncaptured", async () => {
  await using file = new StoreFile(`CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER);
    WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 12000) INSERT INTO t SELECT 'r' || i, CASE WHEN i % 10 THEN NULL ELSE i END FROM r;
    INSERT INTO t VALUES(CAST(x'61ff' AS TEXT), NULL), ('\uffff', NULL), ('😀', NULL), (NULL, NULL), (x'00', NULL)`);
  const store = file.open({ asked: ["t"] });
  expect([...store.zeroed]).toEqual([["t", 10_803]]);
  expect(file.rows("SELECT count(*) AS n FROM t WHERE updated_at = 0")).toEqual([{ n: 10_803 }]);
  expect(file.rows("SELECT hex(id) AS id FROM t WHERE updated_at IS NULL")).toEqual([
    { id: "" },
    { id: "00" },
  ]);
  expect(file.log()).toEqual([]);
  expect([...store.oddIds()]).toEqual([["t", 2]]);
  await file.close();
  file.write(
    "UPDATE _meta SET value = 1; INSERT INTO t VALUES('later', NULL); UPDATE _meta SET value = 0",
  );
  expect([...file.open().zeroed]).toEqual([]);
});

test.each(["ABORT, 'no'", "ROLLBACK, 'no'", "IGNORE"])(
  "a trigger that forbids version 0 with RAISE(%s) does not keep the file from opening",
  async (verdict) => {
    await using file =
      new StoreFile(`CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO t VALUES('a', NULL), ('b', NULL);
      CREATE TRIGGER no BEFORE UPDATE ON t WHEN OLD.id = 'b' BEGIN SELECT RAISE(${verdict}); END`);
    file.open({ asked: ["t"] });
    expect(file.rows("SELECT updated_at AS u FROM t WHERE id = 'b'")).toEqual([{ u: null }]);
    expect(file.rows("SELECT value FROM _meta")).toEqual([{ value: 0 }]);
  },
);

test("a trigger that ignores its own conflicts keeps no row from getting version 0", async () => {
  await using file =
    new StoreFile(`CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO t VALUES('a', NULL), ('b', NULL);
    CREATE TABLE seen(what TEXT PRIMARY KEY); INSERT INTO seen VALUES('t');
    CREATE TRIGGER seeing AFTER UPDATE ON t BEGIN INSERT OR IGNORE INTO seen VALUES('t'); END`);
  expect([...file.open({ asked: ["t"] }).zeroed]).toEqual([["t", 2]]);
});

describe("a row that came back while another node had the file", () => {
  const T_GONE = T + 5;

  async function revived(trigger = "", stamp = `${T}`): Promise<StoreFile> {
    const file = new StoreFile(`${ITEMS}; ${trigger}`);
    file.open({ asked: ["items"] });
    file.write(
      `INSERT INTO items(id, updated_at) VALUES('back', ${T_GONE}), ('dead', ${T_GONE}); DELETE FROM items`,
    );
    await file.settle();
    await file.close();
    // It applied a change of its own, with the flag up: nothing is logged.
    file.write(
      `UPDATE _meta SET value = 1; INSERT INTO items(id, name, updated_at) VALUES('back', 'again', ${stamp}); UPDATE _meta SET value = 0`,
    );
    file.open();
    return file;
  }

  test.each([`${T}`, `${T_GONE}`, "NULL", "'odd'", "9007199254740992"])(
    "with the stamp %s beats its tombstone and is announced",
    async (stamp) => {
      await using file = await revived("", stamp);
      expect(file.rows("SELECT updated_at AS u FROM items")).toEqual([{ u: file.clock.ms }]);
      expect(tell(file).at(-1)).toBe(`UPDATE items back ${file.clock.ms} again`);
      expect(file.store.settledThrough).toBe(file.entries().at(-1)!.change_id);
    },
  );

  test("above the tombstone needs nothing", async () => {
    await using file = await revived("", `${T_GONE + 1}`);
    expect(file.log()).toEqual(["DELETE back", "DELETE dead"]);
  });

  test.each(["ABORT, 'no'", "FAIL, 'no'", "ROLLBACK, 'no'", "IGNORE"])(
    "stays as it is where a trigger forbids it with RAISE(%s)",
    async (verdict) => {
      await using file = await revived(
        `CREATE TRIGGER no BEFORE UPDATE ON items BEGIN SELECT RAISE(${verdict}); END`,
      );
      expect(file.rows("SELECT updated_at AS u FROM items")).toEqual([{ u: T }]);
      expect(file.log()).toEqual(["DELETE back", "DELETE dead"]);
      expect(file.rows("SELECT value FROM _meta")).toEqual([{ value: 0 }]);
    },
  );
});

describe("which tables are synced", () => {
  const APP = `CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER); CREATE TABLE sessions(sid INTEGER PRIMARY KEY)`;
  const decide = (sql: string, asked?: readonly string[] | "*") => {
    const db = new Database(":memory:");
    db.run(sql || "SELECT 1");
    return decideSelection(db, asked);
  };

  test("an application's file that was never synced has to be asked for", () => {
    expect(() => decide(APP)).toThrow(
      /say which to sync with --tables\. Fit: notes\. Not fit: sessions \(it has no column id\)/,
    );
    expect(decide(APP, ["Notes"])).toMatchObject({ all: false, names: ["notes"] });
    expect(decide(APP, "*")).toMatchObject({ all: true, names: [] });
  });

  test("an empty file has none yet, another node's file those it captured", () => {
    expect(decide("")).toBeUndefined();
    expect(decide(`${GO_FILE} ${APP}`)).toEqual({ all: false, names: ["items"] });
    expect(decide(`${CONTRACT} ${ITEMS}; ${APP}`)).toEqual({ all: false, names: ["items"] });
  });

  test("what was asked once is remembered, what is asked now counts", async () => {
    await using file = new StoreFile(APP);
    file.open({ asked: ["notes"] });
    await file.close();
    expect([...file.open().survey.synced.keys()]).toEqual(["notes"]);
    await file.close();
    expect([...file.open({ asked: "*" }).survey.synced.keys()]).toEqual(["notes"]);
    await file.close();
    file.write("CREATE TABLE more(id TEXT PRIMARY KEY, updated_at INTEGER)");
    expect([...file.open().survey.synced.keys()]).toEqual(["notes", "more"]);
  });

  test("text that is not kept as UTF-8 is refused", () => {
    expect(() => decide(`PRAGMA encoding = 'UTF-16'; ${APP}`, "*")).toThrow("UTF-16le");
  });
});

describe("the schema file", () => {
  const inFile = (db: Database) =>
    db
      .query(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB '[_s]*' ORDER BY name",
      )
      .values()
      .flat();
  const prepare = (
    schemaSql: string | undefined,
    before = "SELECT 1",
    asked?: readonly string[],
  ) => {
    const db = new Database(":memory:", { strict: true });
    db.run(before);
    return { db, selection: prepareFile(db, { asked, schemaSql }).selection };
  };

  test("makes the tables of an empty file, and they count as asked for", () => {
    const { db, selection } = prepare(
      "CREATE TABLE a(id TEXT PRIMARY KEY, updated_at INTEGER); CREATE TABLE b(id TEXT PRIMARY KEY, updated_at INTEGER)",
    );
    expect(inFile(db)).toEqual(["a", "b"]);
    expect(selection).toEqual({ all: false, names: ["a", "b"] });
  });

  test("without one, an empty file gets items; a file with tables does not", () => {
    const { db, selection } = prepare(undefined);
    expect(inFile(db)).toEqual(["items"]);
    expect(selection).toEqual({ all: false, names: ["items"] });
    expect(inFile(prepare(undefined, "CREATE TABLE t(a)", ["t"]).db)).toEqual(["t"]);
  });

  test("is run again only when it says something else", () => {
    const first = "CREATE TABLE a(id TEXT PRIMARY KEY, updated_at INTEGER)";
    const { db } = prepare(first);
    prepareFile(db, { asked: undefined, schemaSql: first });
    prepareFile(db, { asked: undefined, schemaSql: "CREATE TABLE c(n)" });
    expect(inFile(db)).toEqual(["a", "c"]);
    expect(() => prepareFile(db, { asked: undefined, schemaSql: first })).toThrow("already exists");
  });

  test("is run whole or not at all", () => {
    const db = new Database(":memory:");
    const schemaSql = "CREATE TABLE a(n); CREATE TABLE b(n); INSERT INTO nowhere VALUES(1)";
    expect(() => prepareFile(db, { asked: undefined, schemaSql })).toThrow(
      "the file given by --schema failed: no such table: nowhere",
    );
    expect(db.query("SELECT count(*) AS n FROM sqlite_master").get()).toEqual({ n: 0 });
    expect(db.inTransaction).toBe(false);
  });

  test.each([
    "PRAGMA synchronous = NORMAL; CREATE TABLE a(id TEXT PRIMARY KEY, updated_at INTEGER)",
    "BEGIN; CREATE TABLE a(id TEXT PRIMARY KEY, updated_at INTEGER); COMMIT",
    "CREATE TABLE a(id TEXT PRIMARY KEY, updated_at INTEGER); CREATE TABLE b(n); CREATE TRIGGER t AFTER INSERT ON a BEGIN INSERT INTO b VALUES(1); END",
  ])("may have settings, transactions and triggers of its own: %s", (schemaSql) => {
    expect(inFile(prepare(schemaSql).db)).toContain("a");
  });

  test("that does not end its transaction is refused", () => {
    expect(() => prepare("BEGIN; CREATE TABLE a(n)")).toThrow("not ended by COMMIT");
  });
});
