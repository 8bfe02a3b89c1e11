import { Database } from "bun:sqlite";
import { afterAll, afterEach, describe, expect, spyOn, test } from "bun:test";
import { parseBatch } from "../../lib/protocol/batch.ts";
import { formatValue, type Value } from "../../lib/protocol/values.ts";
import { emptyTally, Guilty } from "../../lib/store/apply-parts.ts";
import { parseJson } from "../../lib/store/row-input.ts";
import { NOTHING_SUPERSEDED } from "../../lib/store/superseded.ts";
import { TriggerPause } from "../../lib/store/trigger-pause.ts";
import { randomValue } from "../support/random-values.ts";
import { OURS, removeNodeFiles, T, TestNode } from "../support/receive-fixture.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";
import { ITEMS_SQL, StoreFixture } from "../support/store-fixture.ts";

const WHOLE_ROW = { id: "a", name: "x", value: 1, created_at: T, updated_at: T, node_id: "a" };

const opened: StoreFixture[] = [];

function open(schema?: string, pauseRowsMin = 1): StoreFixture {
  const fixture = new StoreFixture(schema, undefined, pauseRowsMin);
  opened.push(fixture);
  return fixture;
}

afterEach(() => {
  for (const fixture of opened.splice(0)) fixture.close();
});
afterAll(removeNodeFiles);

function triggersOf(db: Database): unknown[] {
  return db
    .query("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
    .all();
}

function schemaVersion(db: Database): unknown {
  return db.query("PRAGMA schema_version").get();
}

describe("the triggers", () => {
  test("are gone between begin and end, and afterwards as they were", () => {
    const store = open();
    const before = triggersOf(store.db);
    store.db.run("BEGIN IMMEDIATE");
    expect(store.pause.begin(store.table(), 1)).toBe(true);
    expect(triggersOf(store.db)).toEqual([]);
    store.db.run("INSERT INTO items(id, updated_at) VALUES ('unseen', 1)");
    store.pause.end();
    store.db.run("COMMIT");
    expect(triggersOf(store.db)).toEqual(before);
    store.db.run("INSERT INTO items(id, updated_at) VALUES ('seen', 1)");
    store.db.run("UPDATE items SET name = 'x' WHERE id = 'unseen'");
    expect(store.log().map(({ op, row_id }) => `${op} ${row_id}`)).toEqual([
      "INSERT seen",
      "UPDATE unseen",
    ]);
  });

  test("are back after a rollback", () => {
    const store = open();
    const before = [triggersOf(store.db), schemaVersion(store.db)];
    for (const ended of [false, true]) {
      store.db.run("BEGIN IMMEDIATE");
      store.pause.begin(store.table(), 1);
      if (ended) store.pause.end();
      store.db.run("ROLLBACK");
      store.pause.forget();
      expect([triggersOf(store.db), schemaVersion(store.db)]).toEqual(before);
    }
    store.db.run("INSERT INTO items(id, updated_at) VALUES ('seen', 1)");
    expect(store.log()).toHaveLength(1);
  });

  test("stay where they cost less than taking them away", () => {
    const store = open(ITEMS_SQL, 100);
    store.db.run("BEGIN IMMEDIATE");
    expect(store.pause.begin(store.table(), 99)).toBe(false);
    expect(triggersOf(store.db)).toHaveLength(5);
    store.db.run("ROLLBACK");
  });

  test("stay where another one is among them", () => {
    const store = open(
      `${ITEMS_SQL}; CREATE TABLE audit(what TEXT);
       CREATE TRIGGER app AFTER INSERT ON ITEMS BEGIN INSERT INTO audit VALUES (NEW.id); END`,
    );
    store.db.run("BEGIN IMMEDIATE");
    expect(store.pause.begin(store.table(), 1)).toBe(false);
    expect(triggersOf(store.db)).toHaveLength(6);
    store.db.run("ROLLBACK");
  });

  test("stay for good where they could not be made again", () => {
    class Failing extends Database {
      override run(...args: Parameters<Database["run"]>): ReturnType<Database["run"]> {
        if (args[0].startsWith("CREATE TRIGGER")) throw new Error("no more triggers");
        return super.run(...args);
      }
    }
    const store = open();
    const db = Failing.deserialize(store.db.serialize());
    Object.setPrototypeOf(db, Failing.prototype);
    const pause = new TriggerPause({ db, onEnd: () => undefined, rowsMin: 1 });
    db.run("BEGIN IMMEDIATE");
    pause.begin(store.table(), 1);
    expect(() => pause.end()).toThrow("no more triggers");
    db.run("ROLLBACK");
    pause.forget();
    expect(triggersOf(db)).toEqual(triggersOf(store.db));
    db.run("BEGIN IMMEDIATE");
    expect(pause.begin(store.table(), 1)).toBe(false);
    db.close();
  });

  test("are never left out of a commit", async () => {
    const node = new TestNode({ pauseRowsMin: 1 });
    const before = triggersOf(node.db);
    const { changes } = parseBatch(
      new TextEncoder().encode(
        JSON.stringify({
          batch_id: 1,
          changes: [{ op: "INSERT", table: "items", row: WHOLE_ROW }],
        }),
      ),
    );
    const sender = {
      name: "a",
      isOurs: true,
      superseded: NOTHING_SUPERSEDED,
      originOf: () => ({ name: "a", isForeign: false }),
    };
    const withoutEnd = node.store.queue.run("apply", ({ nowMs }) => {
      const slice = { batch: changes, sender, nowMs, tally: emptyTally(), guilty: new Guilty() };
      node.store.applier.apply(0, 1, slice);
    });
    expect(withoutEnd).rejects.toThrow("triggers are back");
    await withoutEnd.catch(() => undefined);
    expect(triggersOf(node.db)).toEqual(before);
    expect(node.rows()).toEqual([]);
    await node.close();
  });
});

/** A value that a client may give for this column. */
function valueText(random: Seeded, column: string, isText: boolean): string {
  for (;;) {
    const value = randomValue(random);
    const fits: Record<string, readonly Value["kind"][]> = {
      n: ["integer"],
      r: ["integer", "real"],
      d: ["integer", "real", "text"],
      x: ["integer", "real", "text", "blob"],
    };
    const kinds = isText ? ["text"] : fits[column]!;
    if (value.kind === "null" || kinds.includes(value.kind)) return formatValue(value);
  }
}

describe("a batch of a client", () => {
  test("is logged as the triggers would have logged it", async () => {
    await forSeeds(20, async (random) => {
      const schema = `CREATE TABLE items(
        id TEXT PRIMARY KEY, t TEXT COLLATE NOCASE, n INTEGER, r REAL, d NUMERIC, x, "a ""b""" TEXT DEFAULT 'dflt',
        rowid TEXT, total AS (length(t)), created_at INTEGER, updated_at INTEGER, node_id TEXT)`;
      const texts = ["t", 'a "b"', "rowid"];
      const rows = Array.from({ length: 130 }, () => {
        const members = ["n", "r", "d", "x", ...texts]
          .filter(() => random.chance(0.8))
          .map(
            (name) => `${JSON.stringify(name)}:${valueText(random, name, texts.includes(name))}`,
          );
        if (random.chance(0.5)) members.push(`"id":"${random.uuid()}"`);
        return parseJson(`{${members.join(",")}}`);
      });
      const logs = [];
      for (const pauseRowsMin of [1, 1_000]) {
        const store = open(schema, pauseRowsMin);
        const ids = await store.createMany(rows);
        const place = new Map(ids.map((id, i) => [id, `#${i}`]));
        const told = JSON.stringify(store.log());
        logs.push(told.replaceAll(/[0-9a-f-]{36}/g, (id) => place.get(id) ?? id));
      }
      expect(logs[0]).toBe(logs[1]!);
    });
  });

  test("is undone, triggers and all, where a row is refused", async () => {
    const store = open(
      "CREATE TABLE items(id TEXT PRIMARY KEY, n INTEGER UNIQUE, updated_at INTEGER)",
    );
    const before = triggersOf(store.db);
    expect(store.createMany([{ n: 1 }, { n: 2 }, { n: 1 }])).rejects.toThrow("[2]");
    await store.createMany([{ n: 3 }, { n: 4 }]);
    expect(triggersOf(store.db)).toEqual(before);
    expect(store.log()).toHaveLength(2);
    expect(store.db.query("SELECT n FROM items ORDER BY n").values()).toEqual([[3], [4]]);
  });

  test.each([
    ["SQLite takes rowids at random", "9223372036854775807"],
    ["a rowid is beyond what a number tells", "9007199254740993"],
  ])("is logged where %s", async (_, rowid) => {
    const store = open("CREATE TABLE items(id TEXT PRIMARY KEY, updated_at INTEGER)");
    store.db.run(`INSERT INTO items(rowid, id, updated_at) VALUES (${rowid}, 'last', 1)`);
    const ids = await store.createMany([{}, {}, {}]);
    expect(store.log().map(({ row_id }) => row_id)).toEqual(["last", ...ids]);
    expect(triggersOf(store.db)).toHaveLength(5);
  });

  test("is logged in a table without rowids", async () => {
    const store = open("CREATE TABLE items(id TEXT PRIMARY KEY, updated_at INTEGER) WITHOUT ROWID");
    const ids = await store.createMany([{}, {}]);
    expect(store.log().map(({ row_id }) => row_id)).toEqual(ids);
  });
});

describe("a batch of a peer", () => {
  const rows = (from: number, count: number) =>
    Array.from({ length: count }, (_, i) => ({
      op: "INSERT",
      table: "items",
      row: { ...WHOLE_ROW, id: `row ${from + i}` },
      old_id: null,
    }));

  test("leaves the triggers to whoever writes next, and the tables as they were known", async () => {
    const node = new TestNode();
    const before = triggersOf(node.db);
    const { survey } = node.store;
    expect(await node.sync(rows(0, 5_000))).toBe(5_000);
    expect(triggersOf(node.app)).toEqual(before);
    expect(node.log()).toEqual([]);
    await node.write("INSERT INTO items(id, updated_at) VALUES ('own', 1)");
    expect(node.log()).toHaveLength(1);
    // The same object: nobody looked at the schema again.
    expect(node.store.survey).toBe(survey);
    await node.close();
  });

  test("is undone with the tables as they were known", async () => {
    const node = new TestNode({ pauseRowsMin: 1 });
    await node.sync(rows(0, 1));
    const before = triggersOf(node.db);
    const { survey } = node.store;
    const end = spyOn(TriggerPause.prototype, "end");
    const batch = node.sync(rows(1, 10));
    const failing = node.store.queue.run("apply", () => {
      throw new Error("the whole group is undone");
    });
    expect(failing).rejects.toThrow("undone");
    await batch;
    // Once with what failed, and again.
    expect(end.mock.calls).toHaveLength(2);
    end.mockRestore();
    expect(node.rows()).toHaveLength(11);
    expect(triggersOf(node.db)).toEqual(before);
    expect(node.store.survey).toBe(survey);
    await node.write("INSERT INTO items(id, updated_at) VALUES ('own', 1)");
    expect(node.log()).toHaveLength(1);
    expect(node.store.survey).toBe(survey);
    await node.close();
  });

  test("leaves them alone where followers have a log of the file", async () => {
    const node = new TestNode();
    node.db.run("CREATE TABLE _cdc_state(schema_version INTEGER)");
    const before = schemaVersion(node.app);
    await node.sync(rows(0, 5_000));
    expect(schemaVersion(node.app)).toEqual(before);
    await node.close();
  });

  test("pauses only the tables with many rows in it", async () => {
    const schema = `${ITEMS_SQL}; CREATE TABLE few(id TEXT PRIMARY KEY, updated_at INTEGER)`;
    const node = new TestNode({ schema, pauseRowsMin: 50 });
    const few = { op: "INSERT", table: "few", row: { id: "a", updated_at: T }, old_id: null };
    const begin = spyOn(TriggerPause.prototype, "begin");
    await node.sync([...rows(0, 60), few], { identity: OURS });
    const paused = begin.mock.calls
      .filter((_, i) => begin.mock.results[i]!.value === true)
      .map(([table]) => table.name);
    begin.mockRestore();
    expect(new Set(paused)).toEqual(new Set(["items"]));
    await node.close();
  });
});
