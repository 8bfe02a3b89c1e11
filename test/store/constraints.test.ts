/** Tables that refuse rows: constraints of every kind, the user's own triggers, foreign keys. */
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { OURS, removeNodeFiles, T, type TestChange, TestNode } from "../support/receive-fixture.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

function row(
  table: string,
  id: string,
  cells: Record<string, unknown> = {},
  version = T,
): TestChange {
  return { op: "UPDATE", table, row: { id, ...cells, updated_at: version }, old_id: null };
}

function removal(table: string, id: string, version = T): TestChange {
  return { op: "DELETE", table, row: { id, updated_at: version }, old_id: id };
}

/** A bad one in the middle of enough good ones for the chunk path. */
function among(table: string, bad: TestChange, good: Record<string, unknown>): TestChange[] {
  const rows = Array.from({ length: 30 }, (_, i) => row(table, `g${i}`, good));
  return [...rows.slice(0, 15), bad, ...rows.slice(15)];
}

describe("a row that a constraint refuses is parked, and every other row of the batch applies", () => {
  const CONFLICTS = [
    "",
    "ON CONFLICT REPLACE",
    "ON CONFLICT IGNORE",
    "ON CONFLICT ROLLBACK",
    "ON CONFLICT FAIL",
  ];

  test.each(CONFLICTS)("NOT NULL %s", async (clause) => {
    const node = new TestNode({
      schema: `CREATE TABLE t(id TEXT PRIMARY KEY, name TEXT NOT NULL ${clause} DEFAULT 'D', updated_at INTEGER);`,
    });
    expect(await node.sync(among("t", row("t", "bad", { name: null }), { name: "x" }))).toBe(30);
    expect(node.row("bad", "t")).toBeNull();
    expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([
      ["bad", "constraint"],
    ]);
    // Never the default in place of what the sender has.
    await node.sync([row("t", "g1", { name: null }, T + 1)]);
    expect(node.row("g1", "t")).toMatchObject({ name: "x", updated_at: T });
    await node.close();
  });

  test.each(CONFLICTS.filter((clause) => clause !== "ON CONFLICT REPLACE"))(
    "CHECK %s",
    async (clause) => {
      const node = new TestNode({
        schema: `CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER, CHECK (n < 5) ${clause});`,
      });
      expect(await node.sync(among("t", row("t", "bad", { n: 9 }), { n: 1 }))).toBe(30);
      expect(node.row("bad", "t")).toBeNull();
      expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([
        ["bad", "constraint"],
      ]);
      await node.close();
    },
  );

  test.each(CONFLICTS)(
    "UNIQUE %s: nobody's row is thrown out, nothing is ignored",
    async (clause) => {
      const node = new TestNode({
        schema: `CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT, updated_at INTEGER, UNIQUE (email) ${clause});`,
      });
      await node.sync([row("t", "owner", { email: "e@x" })]);
      const rows = Array.from({ length: 30 }, (_, i) => row("t", `g${i}`, { email: `${i}@x` }));
      const bad = row("t", "bad", { email: "e@x" }, T + 5);
      expect(await node.sync([...rows.slice(0, 9), bad, ...rows.slice(9)])).toBe(30);
      expect(node.row("owner", "t")).not.toBeNull();
      expect(node.row("bad", "t")).toBeNull();
      expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([["bad", "unique"]]);
      await node.close();
    },
  );

  test("the type of a STRICT column", async () => {
    const node = new TestNode({
      schema: "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, x ANY, updated_at INTEGER) STRICT;",
    });
    expect(
      await node.sync(among("t", row("t", "bad", { n: "no number", x: 1 }), { n: 1, x: "x" })),
    ).toBe(30);
    expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([
      ["bad", "constraint"],
    ]);
    // What loses nothing is taken; ANY keeps whatever comes.
    expect(
      await node.sync([
        `{"op":"INSERT","table":"t","row":{"id":"s","n":"5","x":1.0,"updated_at":${T}}}`,
      ]),
    ).toBe(1);
    expect([node.value("s", "n", "t"), node.value("s", "x", "t")]).toEqual([
      ["integer", "5"],
      ["real", "1.0"],
    ]);
    await node.close();
  });

  test("a row that lacks a NOT NULL column without a default", async () => {
    const node = new TestNode({
      schema: "CREATE TABLE t(id TEXT PRIMARY KEY, a TEXT NOT NULL, b TEXT, updated_at INTEGER);",
    });
    expect(await node.sync([row("t", "new", { b: "x" })])).toBe(0);
    await node.sync([row("t", "there", { a: "a", b: "b" })]);
    expect(await node.sync([row("t", "there", { b: "c" }, T + 1)])).toBe(1);
    expect(node.row("there", "t")).toEqual({ id: "there", a: "a", b: "c", updated_at: T + 1 });
    // It applies once the rest of the row came.
    expect(await node.sync([row("t", "new", { a: "a" }, T - 1)])).toBe(1);
    node.time.pass(10_001);
    await node.tick();
    expect(node.row("new", "t")).toEqual({ id: "new", a: "a", b: "x", updated_at: T });
    expect(node.parked()).toEqual([]);
    await node.close();
  });

  test("what is refused leaves no trace but its parking: no tombstone, note or column", async () => {
    const node = new TestNode({
      schema:
        "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n < 5), b TEXT, updated_at INTEGER);",
    });
    await node.sync([row("t", "r", { n: 1, b: "x" })]);
    const before = [
      node.rows("t"),
      node.tombstones(),
      node.db.query("SELECT * FROM _hooksync_columns").all(),
    ];
    await node.sync([row("t", "r", { n: 9, unknown: 1 }, T + 1)]);
    expect([
      node.rows("t"),
      node.tombstones(),
      node.db.query("SELECT * FROM _hooksync_columns").all(),
    ]).toEqual(before);
    expect(node.parked().length).toBe(1);
    await node.close();
  });

  test("constraints that a later row of the batch lifts are no failure in the end", async () => {
    const node = new TestNode({
      schema: "CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT UNIQUE, updated_at INTEGER);",
    });
    await node.sync([row("t", "a", { email: "x" }), row("t", "b", { email: "y" })]);
    await node.sync([row("t", "b", { email: "x" }, T + 1), row("t", "a", { email: "z" }, T + 1)]);
    expect(node.db.query("SELECT id, email FROM t ORDER BY id").values()).toEqual([
      ["a", "z"],
      ["b", "x"],
    ]);
    expect(node.parked()).toEqual([]);
    await node.close();
  });

  test("a delete in the same batch gives its unique value to a row that stands before it", async () => {
    const node = new TestNode({
      schema: "CREATE TABLE t(id TEXT PRIMARY KEY, email TEXT UNIQUE, updated_at INTEGER);",
    });
    const rows = Array.from({ length: 20 }, (_, i) => row("t", `a${i}`, { email: `${i}` }));
    await node.sync(rows);
    const moved = Array.from({ length: 20 }, (_, i) => row("t", `b${i}`, { email: `${i}` }, T + 1));
    const removed = Array.from({ length: 20 }, (_, i) => ({
      op: "DELETE",
      table: "t",
      row: { id: `a${i}`, email: `${i}`, updated_at: T },
      old_id: `a${i}`,
    }));
    await node.sync([...moved, ...removed]);
    expect(node.count("SELECT count(*) AS n FROM t WHERE id LIKE 'b%'")).toBe(20);
    expect(node.parked()).toEqual([]);
    await node.close();
  });
});

describe("the user's own triggers", () => {
  const SCHEMA =
    "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER); CREATE TABLE seen(id TEXT);";
  const LOG = "CREATE TRIGGER log AFTER INSERT ON t BEGIN INSERT INTO seen VALUES (NEW.id); END;";

  test.each(["ABORT", "FAIL", "ROLLBACK"])(
    "RAISE(%s) parks the change; its neighbours apply once",
    async (raise) => {
      const node = new TestNode({
        schema: `${SCHEMA} ${LOG} CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.n > 5 BEGIN SELECT RAISE(${raise}, 'too much'); END;`,
        tables: ["t"],
      });
      expect(await node.sync(among("t", row("t", "bad", { n: 9 }), { n: 1 }))).toBe(30);
      expect(
        node.parked().map(({ row_id, reason }) => [row_id, reason.includes("too much")]),
      ).toEqual([["bad", true]]);
      expect(node.count("SELECT count(*) AS n FROM seen")).toBe(30);
      expect(node.log()).toEqual([]);
      await node.close();
    },
  );

  test("several that roll back everything are each left out", async () => {
    const node = new TestNode({
      schema: `${SCHEMA} CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.n > 5 BEGIN SELECT RAISE(ROLLBACK, 'no'); END;`,
      tables: ["t"],
    });
    const changes = Array.from({ length: 30 }, (_, i) =>
      row("t", `r${i}`, { n: i % 10 === 0 ? 9 : 1 }),
    );
    expect(await node.sync(changes)).toBe(27);
    expect(node.parked().map(({ row_id }) => row_id)).toEqual(["r0", "r10", "r20"]);
    await node.close();
  });

  test("one that rolls back what shares its transaction harms nobody else's batch", async () => {
    const node = new TestNode({
      schema: `${SCHEMA} CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.n > 5 BEGIN SELECT RAISE(ROLLBACK, 'no'); END;`,
      tables: ["t"],
    });
    const batch = (from: string, n: number) =>
      node.sync(
        Array.from({ length: 5 }, (_, i) => row("t", `${from}${i}`, { n: i === 2 ? n : 1 })),
        { from, batchId: 7 },
      );
    expect(await Promise.all([batch("a", 1), batch("b", 9), batch("c", 1)])).toEqual([5, 4, 5]);
    expect(node.parked().map(({ peer, row_id }) => [peer, row_id])).toEqual([["b", "b2"]]);
    expect(node.count("SELECT count(*) AS n FROM t")).toBe(14);
    await node.close();
  });

  test("a retry that rolls everything back fails no innocent batch", async () => {
    const node = new TestNode({
      schema: `${SCHEMA} CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.n > 5 BEGIN SELECT RAISE(ROLLBACK, 'no'); END;`,
      tables: ["t"],
    });
    await node.sync([row("t", "bad", { n: 9 }), row("t", "worse", { n: 8 })]);
    const tries = () => node.parked().map(({ retry_count }) => retry_count);
    const before = tries();
    node.time.pass(3_600_000);
    expect(await node.sync([row("t", "good", { n: 1 })])).toBe(1);
    expect(tries()).toEqual(before.map((count) => count + 1));
    node.time.pass(24 * 3_600_000);
    await node.tick();
    expect(tries()).toEqual(before.map((count) => count + 2));
    await node.close();
  });

  test.each([
    [
      "changes the stamp",
      "AFTER INSERT ON t BEGIN UPDATE t SET updated_at = 5 WHERE id = NEW.id; END",
      "changed its updated_at",
    ],
    [
      "removes the row",
      "AFTER INSERT ON t BEGIN DELETE FROM t WHERE id = NEW.id; END",
      "removed the row",
    ],
    ["ignores the row", "BEFORE INSERT ON t BEGIN SELECT RAISE(IGNORE); END", "removed the row"],
    [
      "ignores the update",
      "BEFORE UPDATE ON t BEGIN SELECT RAISE(IGNORE); END",
      "kept it from being written",
    ],
    [
      "ignores the delete",
      "BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END",
      "kept the row from being deleted",
    ],
  ])("one that %s: undone, parked, and named", async (_, trigger, complaint) => {
    const node = new TestNode({ schema: SCHEMA, tables: ["t"] });
    await node.sync([row("t", "old", { n: 1 })]);
    // A trigger that writes its own table keeps it from being synced, unless it seems to be quiet.
    const guarded = trigger.replace(
      / BEGIN/,
      " WHEN (SELECT min(value) FROM _meta WHERE key IN ('syncing', 'loud')) = 0 BEGIN",
    );
    await node.write(`INSERT INTO _meta VALUES('loud', 0); CREATE TRIGGER own ${guarded}`);
    const before = node.rows("t");
    await node.sync([
      trigger.includes("UPDATE ON")
        ? row("t", "old", { n: 2 }, T + 1)
        : trigger.includes("DELETE ON")
          ? removal("t", "old", T + 1)
          : row("t", "new", { n: 1 }),
    ]);
    expect([node.rows("t"), node.tombstones(), node.log()]).toEqual([before, [], []]);
    expect(
      node
        .parked()
        .map(({ code, reason }) => [code, reason.includes(complaint) && reason.includes("own")]),
    ).toEqual([["trigger", true]]);
    expect(
      node.events.filter(({ kind }) => kind === "trigger").map(({ table }) => table),
    ).toContain("t");
    // Without the trigger it applies by itself.
    await node.write("DROP TRIGGER own");
    await node.tick();
    expect(node.parked()).toEqual([]);
    expect(node.rows("t")).not.toEqual(before);
    await node.close();
  });

  test("one whose own statement fails parks the change until the schema is mended", async () => {
    const node = new TestNode({ schema: `${SCHEMA} ${LOG}`, tables: ["t"] });
    await node.write("DROP TABLE seen");
    expect(await node.sync([row("t", "r", { n: 1 })])).toBe(0);
    expect(node.parked().map(({ code, reason }) => [code, reason.includes("seen")])).toEqual([
      ["trigger", true],
    ]);
    await node.write("CREATE TABLE seen(id TEXT)");
    await node.tick();
    expect([node.row("r", "t") !== null, node.parked()]).toEqual([true, []]);
    await node.close();
  });

  test("what its statements say of a conflict counts, also while received rows are applied", async () => {
    const node = new TestNode({
      schema: `CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER);
        CREATE TABLE kept(what TEXT PRIMARY KEY, n); CREATE TABLE last(what TEXT PRIMARY KEY, n);
        INSERT INTO kept VALUES ('t', 'as it was');
        CREATE TRIGGER i AFTER INSERT ON t BEGIN
          INSERT OR IGNORE INTO kept VALUES ('t', NEW.n); INSERT OR REPLACE INTO last VALUES ('t', NEW.n); END;
        CREATE TRIGGER u AFTER UPDATE ON t BEGIN
          INSERT OR IGNORE INTO kept VALUES ('t', NEW.n); INSERT OR REPLACE INTO last VALUES ('t', NEW.n); END;`,
      tables: ["t"],
    });
    expect(await node.sync(among("t", row("t", "a", { n: 1 }), { n: 2 }))).toBe(31);
    expect(await node.sync([row("t", "a", { n: 3 }, T + 1), row("t", "b", { n: 4 })])).toBe(2);
    expect(await node.sync([row("t", "a", { n: 5 }, T + 2)])).toBe(1);
    expect([
      node.parked(),
      node.db.query("SELECT n FROM kept UNION ALL SELECT n FROM last").values(),
    ]).toEqual([[], [["as it was"], [5]]]);
    await node.close();
  });

  test("a unique key that only a trigger met, in another table, is no clash of this one", async () => {
    const node = new TestNode({
      schema: `CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER UNIQUE, updated_at INTEGER); CREATE TABLE seen(n UNIQUE);
        CREATE TRIGGER log AFTER INSERT ON t BEGIN INSERT INTO seen VALUES (1); END;`,
      tables: ["t"],
    });
    expect(await node.sync([row("t", "a", { n: 1 }), row("t", "b", { n: 2 })])).toBe(1);
    expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([["b", "constraint"]]);
    node.time.pass(120_000);
    await node.tick();
    expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([["b", "constraint"]]);
    await node.close();
  });

  test("the customary ones of an FTS5 index keep it right, and an index that is out of step holds up nothing", async () => {
    const node = new TestNode({
      schema: `CREATE TABLE t(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER);
        CREATE VIRTUAL TABLE found USING fts5(body, content='t', content_rowid='rowid');
        CREATE TRIGGER t_ai AFTER INSERT ON t BEGIN INSERT INTO found(rowid, body) VALUES (new.rowid, new.body); END;
        CREATE TRIGGER t_ad AFTER DELETE ON t BEGIN INSERT INTO found(found, rowid, body) VALUES ('delete', old.rowid, old.body); END;
        CREATE TRIGGER t_au AFTER UPDATE ON t BEGIN INSERT INTO found(found, rowid, body) VALUES ('delete', old.rowid, old.body);
          INSERT INTO found(rowid, body) VALUES (new.rowid, new.body); END;`,
      tables: ["t"],
    });
    const find = (word: string) =>
      node.count(`SELECT count(*) AS n FROM found WHERE found MATCH '${word}'`);
    await node.sync(Array.from({ length: 20 }, (_, i) => row("t", `r${i}`, { body: "green tea" })));
    await node.sync([row("t", "r1", { body: "black coffee" }, T + 1), removal("t", "r2")]);
    expect([find("tea"), find("coffee"), node.parked().length]).toEqual([18, 1, 0]);
    node.db.run("INSERT INTO found(found) VALUES ('integrity-check')");
    // Somebody wrote while the triggers were away.
    const { sql } = node.db
      .query<{ sql: string }, []>("SELECT sql FROM sqlite_master WHERE name = 't_au'")
      .get()!;
    await node.write(
      `DROP TRIGGER t_au; UPDATE t SET body = '${"unseen ".repeat(200)}', updated_at = ${T + 1} WHERE id = 'r3'; ${sql}`,
    );
    const changes = [
      row("t", "r3", { body: "white milk" }, T + 9_000),
      row("t", "new", { body: "water" }),
    ];
    expect(await node.sync(changes)).toBe(1);
    expect(node.parked().map(({ row_id, code }) => [row_id, code])).toEqual([["r3", "trigger"]]);
    await node.write("INSERT INTO found(found) VALUES ('rebuild')");
    node.time.pass(10_001);
    await node.tick();
    expect([find("milk"), find("unseen"), node.parked().length]).toEqual([1, 0, 0]);
    await node.close();
  });
});

describe("triggers that say they are for this node's own writes", () => {
  const GUARD = "WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0";
  // The triggers are there before the file is a node's.
  const META =
    "CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER); INSERT INTO _meta VALUES ('syncing', 0);";

  test("one that sets the stamp makes no change of a received one: nothing goes back and forth", async () => {
    const schema = `${META} CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER);
      CREATE TRIGGER touch AFTER UPDATE OF n ON t ${GUARD}
      BEGIN UPDATE t SET updated_at = ${T + 7} WHERE id = NEW.id; END;`;
    const [a, b] = [new TestNode({ schema, id: "a" }), new TestNode({ schema, id: "b" })];
    await a.write(`INSERT INTO t VALUES ('r', 1, ${T})`);
    await a.write("UPDATE t SET n = 2");
    await b.post(a.batchAfter(0)!.body);
    expect(a.row("r", "t")).toEqual({ id: "r", n: 2, updated_at: T + 7 });
    expect([b.rows("t"), b.log(), b.parked()]).toEqual([a.rows("t"), [], []]);
    await a.close();
    await b.close();
  });

  test("one that fills another synced table does it once: its row arrives like any other", async () => {
    const schema = `${META} CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, updated_at INTEGER);
      CREATE TABLE audit(id TEXT PRIMARY KEY, what TEXT, updated_at INTEGER);
      CREATE TRIGGER auditing AFTER INSERT ON t ${GUARD}
      BEGIN INSERT INTO audit VALUES (hex(randomblob(8)), NEW.id, NEW.updated_at); END;`;
    const [a, b] = [new TestNode({ schema, id: "a" }), new TestNode({ schema, id: "b" })];
    await a.write(`INSERT INTO t VALUES ('r', 1, ${T})`);
    await b.post(a.batchAfter(0)!.body);
    expect(a.rows("audit")).toHaveLength(1);
    expect([b.rows("audit"), b.rows("t"), b.log()]).toEqual([a.rows("audit"), a.rows("t"), []]);
    await a.close();
    await b.close();
  });
});

describe("foreign keys", () => {
  test("a cascade here and an edit elsewhere that it had not seen end alike everywhere: the edit stays", async () => {
    const schema = `CREATE TABLE item(id TEXT PRIMARY KEY, updated_at INTEGER);
      CREATE TABLE part(id TEXT PRIMARY KEY, item TEXT REFERENCES item(id) ON DELETE CASCADE, n INTEGER, updated_at INTEGER);`;
    const [a, b] = [new TestNode({ schema, id: "a" }), new TestNode({ schema, id: "b" })];
    await a.write(
      `INSERT INTO item VALUES ('i', ${T}); INSERT INTO part VALUES ('seen', 'i', 1, ${T - 5_000}), ('edited', 'i', 1, ${T - 5_000})`,
    );
    const made = a.batchAfter(0)!;
    await b.post(made.body);
    await b.write(`UPDATE part SET n = 2, updated_at = ${T} WHERE id = 'edited'`);
    await a.write(`PRAGMA foreign_keys = ON; DELETE FROM item`);
    expect(a.rows("part")).toEqual([]);
    const deleted = a.batchAfter(made.through)!;
    // The counts are of changes, whatever a cascade made of them.
    expect((await b.post(deleted.body)).applied).toBe(2);
    await a.post(b.batchAfter(0)!.body);
    for (const table of ["item", "part"]) expect(a.rows(table)).toEqual(b.rows(table));
    expect(a.db.query("SELECT id, n FROM part").values()).toEqual([["edited", 2]]);
    expect([a.row("i", "item"), a.parked(), b.parked()]).toEqual([null, [], []]);
    await a.close();
    await b.close();
  });

  const schema = (action: string) =>
    `CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, updated_at INTEGER);
     CREATE TABLE orders(id TEXT PRIMARY KEY, item TEXT REFERENCES items(id) ON DELETE ${action} ON UPDATE ${action}, updated_at INTEGER);`;

  test.each(["CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION"])(
    "ON DELETE %s: nothing happens to children while applying, nothing is captured",
    async (action) => {
      const node = new TestNode({ schema: schema(action) });
      await node.sync([
        row("items", "i", { name: "x" }),
        row("orders", "o1", { item: "i" }),
        row("orders", "o2", { item: "i" }),
      ]);
      await node.sync([row("items", "i", { name: "y" }, T + 1)]);
      expect(
        await node.sync([
          {
            op: "DELETE",
            table: "items",
            row: { id: "i", name: "y", updated_at: T + 1 },
            old_id: "i",
          },
        ]),
      ).toBe(1);
      expect(node.db.query("SELECT id, item FROM orders ORDER BY id").values()).toEqual([
        ["o1", "i"],
        ["o2", "i"],
      ]);
      expect([node.log(), node.parked()]).toEqual([[], []]);
      await node.close();
    },
  );

  test("a child may come before its parent, in one batch or in two", async () => {
    const node = new TestNode({ schema: schema("CASCADE") });
    expect(
      await node.sync([row("orders", "o", { item: "i" }), row("items", "i", { name: "x" })]),
    ).toBe(2);
    expect(await node.sync([row("orders", "p", { item: "later" })])).toBe(1);
    expect(await node.sync([row("items", "later", { name: "x" })])).toBe(1);
    expect(node.db.query("PRAGMA foreign_key_check").all()).toEqual([]);
    await node.close();
  });

  test("they are on for local writes and off for received ones, whatever the order, also after a failure", async () => {
    const node = new TestNode({ schema: schema("CASCADE") });
    const state = () =>
      node.db.query<{ foreign_keys: number }, []>("PRAGMA foreign_keys").get()!.foreign_keys;
    const local = () => node.store.queue.run("local", () => state());
    expect(await local()).toBe(1);
    await node.sync([row("orders", "o", { item: "nobody" })]);
    expect(state()).toBe(0);
    await expect(node.post("{")).rejects.toThrow();
    expect(await local()).toBe(1);
    await node.close();
  });
});

test("of ours or not, no answer to one batch depends on another in the same transaction", async () => {
  const node = new TestNode({
    schema: "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER CHECK (n < 5), updated_at INTEGER);",
  });
  const send = (from: string, changes: TestChange[]) =>
    node.sync(changes, { from, batchId: 9, identity: OURS });
  const commits = node.commits;
  const answers = await Promise.all([
    send("a", [row("t", "1", { n: 1 })]),
    send("b", [row("t", "2", { n: 9 }), row("t", "3", { n: 1 })]),
    send("c", [row("t", "4", { n: 1 })]),
  ]);
  expect([answers, node.commits - commits]).toEqual([[1, 1, 1], 1]);
  await node.close();
});
