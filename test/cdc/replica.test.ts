/** A follower's database: whole batches, once, in order, or nothing. */
import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import { type Batch, BrokenText, type CdcChange, type CdcValue } from "../../lib/cdc/change.ts";
import { applyBatch, Replica } from "../../lib/cdc/replica.ts";
import { codeOf } from "./support/code-of.ts";
import { ALL_VALUES, INTEGERS } from "./support/values.ts";

function batch(
  after: number,
  commit: number,
  changes: CdcChange[],
  more: Partial<Batch> = {},
): Batch {
  const [mark, timeMs] = [`mark ${commit}`, 1000 * commit];
  const common = { kind: "transaction", log: "L", schema: null, mark, timeMs, changes } as const;
  return { ...common, after: BigInt(after), commit: BigInt(commit), close: () => {}, ...more };
}

const sql = (text: string): CdcChange => ({ kind: "schema", sql: text });
const insert = (rowid: number, ...values: CdcValue[]): CdcChange => {
  return { kind: "insert", table: "t", rowid: BigInt(rowid), values };
};
const update = (rowid: number, ...values: CdcValue[]): CdcChange => {
  return { kind: "update", table: "t", rowid: BigInt(rowid), values };
};
const remove = (rowid: number): CdcChange => ({ kind: "delete", table: "t", rowid: BigInt(rowid) });

/** A follower at commit 2 with the table t (a, b). */
function follower(table = "CREATE TABLE t (a, b)"): { db: Database; replica: Replica } {
  const db = new Database(":memory:");
  const replica = new Replica(db);
  applyBatch(replica, batch(0, 2, [sql(table)]));
  return { db, replica };
}

function rows(db: Database): unknown[] {
  return db.query("SELECT rowid, * FROM t ORDER BY rowid").values();
}

test("rows, schema changes and the watermark are one transaction", () => {
  const { db, replica } = follower();
  const changes = [
    insert(5, "x", 1n),
    sql("ALTER TABLE t ADD COLUMN c DEFAULT 7"),
    update(5, "y", 1n, 8n),
    insert(6, "z", null, null),
    sql("CREATE INDEX i ON t (a)"),
  ];
  expect(applyBatch(replica, batch(2, 9, changes))).toBe("applied");
  expect(rows(db)).toEqual([
    [5, "y", 1, 8],
    [6, "z", null, null],
  ]);
  expect(replica.watermark()).toEqual({ log: "L", commit: 9n, mark: "mark 9" });
});

test("every value is stored with its kind", () => {
  const { db, replica } = follower();
  const changes = ALL_VALUES.map((value, i) => insert(i + 1, value, null));
  applyBatch(replica, batch(2, 3, changes));
  const kinds = db
    .query("SELECT typeof(a), hex(CAST(a AS BLOB)), a FROM t ORDER BY rowid")
    .values();
  for (const [i, value] of ALL_VALUES.entries()) {
    const [kind, hex, stored] = kinds[i]!;
    expect(kind).toBe(kindOf(value));
    if (typeof value === "string")
      expect(hex).toBe(Buffer.from(value).toString("hex").toUpperCase());
    if (typeof value === "number") expect(stored).toBe(value);
    if (typeof value === "bigint") expect(Buffer.from(`${hex}`, "hex").toString()).toBe(`${value}`);
    if (value instanceof BrokenText) expect(hex).toBe(value.bytes.toHex().toUpperCase());
    if (value instanceof Uint8Array) expect(hex).toBe(value.toHex().toUpperCase());
  }
});

function kindOf(value: CdcValue): string {
  if (value === null) return "null";
  if (typeof value === "bigint") return "integer";
  if (typeof value === "number") return "real";
  return value instanceof Uint8Array ? "blob" : "text";
}

test("rowids are kept, to the ends of 64 bits", () => {
  const { db, replica } = follower();
  const changes = INTEGERS.map((rowid): CdcChange => {
    return { kind: "insert", table: "t", rowid, values: [null, null] };
  });
  applyBatch(replica, batch(2, 3, changes));
  const stored = db.query("SELECT CAST(rowid AS TEXT) FROM t ORDER BY rowid").values().flat();
  const expected = [...new Set(INTEGERS)].sort((a, b) => (a < b ? -1 : 1)).map(String);
  expect(stored).toEqual(expected);
});

test("a column called rowid does not take the rowid's place", () => {
  const { db, replica } = follower("CREATE TABLE t (rowid, _rowid_)");
  applyBatch(replica, batch(2, 3, [insert(5, "a", "b"), insert(6, "c", "d")]));
  applyBatch(replica, batch(3, 4, [remove(5), update(6, "e", "f")]));
  expect(db.query("SELECT oid, * FROM t").values()).toEqual([[6, "e", "f"]]);
});

test("a row WITHOUT ROWID goes by its key, whatever its value", () => {
  for (const key of ALL_VALUES.filter((value) => value !== null)) {
    const { db, replica } = follower("CREATE TABLE t (k PRIMARY KEY, v) WITHOUT ROWID");
    const [put, gone] = [
      { kind: "put", values: [key, 1n] } as const,
      { kind: "remove", key: [key] } as const,
    ];
    applyBatch(replica, batch(2, 3, [{ ...put, table: "t", rowid: null }]));
    expect(db.query("SELECT v FROM t").values()).toEqual([[1]]);
    applyBatch(replica, batch(3, 4, [{ ...gone, table: "t", rowid: null }]));
    expect(db.query("SELECT v FROM t").values()).toEqual([]);
  }
});

test("an INTEGER PRIMARY KEY is its rowid", () => {
  const { db, replica } = follower("CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE)");
  applyBatch(replica, batch(2, 3, [insert(5, 5n, "b"), update(5, 5n, "c")]));
  expect(rows(db)).toEqual([[5, 5, "c"]]);
});

describe("exactly once", () => {
  test("what is at or below the watermark does nothing", () => {
    const { db, replica } = follower();
    const first = batch(2, 3, [insert(1, "x", 1n)]);
    const second = batch(3, 5, [update(1, "y", 2n)]);
    for (const each of [first, second, first, second, first]) applyBatch(replica, each);
    expect(applyBatch(replica, first)).toBe("already-applied");
    expect(applyBatch(replica, second)).toBe("already-applied");
    expect(rows(db)).toEqual([[1, "y", 2]]);
    expect(replica.watermark()?.commit).toBe(5n);
  });

  test.each<[string, Batch]>([
    ["out-of-order", batch(3, 5, [insert(1, "x", 1n)])],
    ["out-of-order", batch(1, 5, [insert(1, "x", 1n)])],
    ["other-log", batch(2, 5, [insert(1, "x", 1n)], { log: "M" })],
    ["log-rewound", batch(1, 2, [insert(1, "x", 1n)], { mark: "another" })],
  ])("%s", (code, wrong) => {
    const { db, replica } = follower();
    expect(codeOf(() => applyBatch(replica, wrong))).toBe(code);
    expect(rows(db)).toEqual([]);
    expect(replica.watermark()?.commit).toBe(2n);
    expect(applyBatch(replica, batch(2, 4, [insert(9, 1n, 1n)]))).toBe("applied");
  });

  test("a follower without a copy takes only what begins at the beginning", () => {
    const replica = new Replica(new Database(":memory:"));
    expect(codeOf(() => applyBatch(replica, batch(2, 4, [])))).toBe("out-of-order");
    const filled = new Database(":memory:");
    filled.run("CREATE TABLE u (x)");
    expect(codeOf(() => applyBatch(new Replica(filled), batch(0, 4, [])))).toBe("out-of-order");
  });
});

describe("a batch that fails leaves nothing", () => {
  test.each<[string, CdcChange]>([
    ["diverged", update(77, "x", 1n)],
    ["diverged", remove(77)],
    ["diverged", insert(3, "too few")],
    ["diverged", insert(3, "too", "many", "values")],
    ["diverged", { kind: "insert", table: "nowhere", rowid: 1n, values: [] }],
    ["diverged", sql("CREATE TABLE t (x)")],
    ["diverged", sql("DROP TABLE nowhere")],
    ["diverged", sql("ALTER TABLE t DROP COLUMN nowhere")],
    ["diverged", sql("CREATE TABLE x (a UNKNOWN SYNTAX (")],
    ["statement-refused", sql("DELETE FROM t")],
    ["statement-refused", sql("DROP TABLE u; DROP TABLE t")],
    ["statement-refused", sql("DROP TABLE _cdc_watermark")],
  ])("%s: %p", (code, bad) => {
    const { db, replica } = follower();
    applyBatch(replica, batch(2, 3, [insert(1, "kept", 1n)]));
    const changes = [insert(2, "x", 1n), sql("CREATE TABLE u (x)"), remove(1), bad];
    expect(codeOf(() => applyBatch(replica, batch(3, 8, changes)))).toBe(code);
    expect(rows(db)).toEqual([[1, "kept", 1]]);
    expect(db.query("SELECT name FROM sqlite_schema WHERE name = 'u'").all()).toEqual([]);
    expect(replica.watermark()?.commit).toBe(3n);
    expect(db.inTransaction).toBe(false);
    applyBatch(replica, batch(3, 8, [remove(1)]));
    expect(rows(db)).toEqual([]);
  });

  test("a schema that differs from the source's", () => {
    const { db, replica } = follower();
    const [good, other] = [replica.schemaDigest(), "0".repeat(32)];
    applyBatch(replica, batch(2, 3, [insert(1, "x", 1n)], { schema: good }));
    const wrong = batch(3, 4, [insert(2, "y", 1n)], { schema: other });
    expect(codeOf(() => applyBatch(replica, wrong))).toBe("schema-differs");
    expect(rows(db)).toEqual([[1, "x", 1]]);
  });

  test("a table that somebody altered here between two batches", () => {
    const { db, replica } = follower();
    const schema = replica.schemaDigest();
    applyBatch(replica, batch(2, 3, [insert(1, "x", 1n)], { schema }));
    db.run("ALTER TABLE t RENAME COLUMN b TO c");
    const next = batch(3, 4, [insert(2, "y", 1n)], { schema });
    expect(codeOf(() => applyBatch(replica, next))).toBe("schema-differs");
  });
});

test("rows that the source threw out without saying so go here too", () => {
  const { db, replica } = follower("CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE)");
  applyBatch(replica, batch(2, 3, [insert(1, 1n, "x"), insert(2, 2n, "y"), insert(3, 3n, "z")]));
  applyBatch(replica, batch(3, 4, [update(1, 1n, "y"), remove(3), insert(9, 9n, "y")]));
  expect(rows(db)).toEqual([[9, 9, "y"]]);
});

test("what a foreign key does on the source is in the log and is not done twice", () => {
  const { db, replica } = follower();
  const child = "CREATE TABLE child (p REFERENCES parent ON DELETE CASCADE)";
  const changes = [sql("CREATE TABLE parent (k INTEGER PRIMARY KEY)"), sql(child)];
  applyBatch(replica, batch(2, 3, changes));
  applyBatch(
    replica,
    batch(3, 4, [
      { kind: "insert", table: "child", rowid: 1n, values: [1n] },
      { kind: "insert", table: "parent", rowid: 1n, values: [1n] },
    ]),
  );
  applyBatch(replica, batch(4, 5, [{ kind: "delete", table: "parent", rowid: 1n }]));
  expect(db.query("SELECT * FROM child").values()).toEqual([[1]]);
});

describe("triggers", () => {
  const trigger =
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO t VALUES (NEW.a, 'again'); END";

  test("are kept as text: what they write is in the log", () => {
    const { db, replica } = follower();
    const before = replica.schemaDigest();
    applyBatch(replica, batch(2, 3, [sql(trigger), insert(1, "x", 1n)]));
    expect(rows(db)).toEqual([[1, "x", 1]]);
    expect(replica.schemaDigest()).not.toBe(before);
    applyBatch(replica, batch(3, 4, [sql("DROP TRIGGER g")], { schema: before }));
    expect(codeOf(() => applyBatch(replica, batch(4, 5, [sql("DROP TRIGGER g")])))).toBe(
      "diverged",
    );
  });

  test("go with their table", () => {
    const { db, replica } = follower();
    applyBatch(replica, batch(2, 3, [sql(trigger), sql("DROP TABLE t")]));
    expect(db.query("SELECT * FROM _cdc_trigger").all()).toEqual([]);
  });
});

describe("a copy", () => {
  const copy = (...changes: CdcChange[]) => batch(0, 7, changes, { kind: "copy", log: "M" });

  test("replaces everything, whatever the follower had", () => {
    const { db, replica } = follower();
    const view = sql("CREATE VIEW v AS SELECT * FROM t");
    applyBatch(replica, batch(2, 9, [insert(1, "old", 1n), view, sql("CREATE INDEX i ON t (a)")]));
    db.run("CREATE TABLE mine (x)");
    applyBatch(replica, copy(sql("CREATE TABLE t (z)"), insert(4, "new")));
    expect(rows(db)).toEqual([[4, "new"]]);
    expect(
      db
        .query(
          "SELECT name FROM sqlite_schema WHERE name NOT LIKE '_cdc%' AND name NOT LIKE 'sqlite%'",
        )
        .values(),
    ).toEqual([["t"]]);
    expect(replica.watermark()).toEqual({ log: "M", commit: 7n, mark: "mark 7" });
  });

  test("never replaces tables that did not come from a source", () => {
    const db = new Database(":memory:");
    db.run("CREATE TABLE mine (x)");
    const replica = new Replica(db);
    expect(replica.isForeign()).toBe(true);
    expect(codeOf(() => applyBatch(replica, copy(sql("CREATE TABLE t (z)"))))).toBe("not-a-copy");
    expect(db.query("SELECT name FROM sqlite_schema WHERE name = 'mine'").all()).toHaveLength(1);
    expect(follower().replica.isForeign()).toBe(false);
  });

  test("that fails leaves what there was", () => {
    const { db, replica } = follower();
    applyBatch(replica, batch(2, 9, [insert(1, "old", 1n)]));
    expect(codeOf(() => applyBatch(replica, copy(sql("CREATE TABLE t (z)"), remove(1))))).toBe(
      "diverged",
    );
    expect(rows(db)).toEqual([[1, "old", 1]]);
    expect(replica.watermark()).toEqual({ log: "L", commit: 9n, mark: "mark 9" });
  });
});

test("a database that is busy is no divergence", () => {
  const { db, replica } = follower();
  db.run("BEGIN");
  expect(() => applyBatch(replica, batch(2, 3, []))).toThrow(/transaction/);
  db.run("ROLLBACK");
});

test("a row that breaks a CHECK is one that the source holds", () => {
  const { db, replica } = follower("CREATE TABLE t (a, b, CHECK (a > 0))");
  applyBatch(replica, batch(2, 3, [insert(1, -5n, null)]));
  expect(rows(db)).toEqual([[1, -5, null]]);
});

describe("foreign keys", () => {
  const change = (kind: "insert" | "update", table: string, rowid: number, ...values: CdcValue[]) =>
    ({ kind, table, rowid: BigInt(rowid), values }) as CdcChange;
  const PARENT = "CREATE TABLE p (k INTEGER PRIMARY KEY)";
  const orphans = (db: Database) => db.query("PRAGMA foreign_key_check").all().length;

  function family(reference = ""): { db: Database; replica: Replica } {
    const { db, replica } = follower(PARENT);
    const child = `CREATE TABLE c (k INTEGER PRIMARY KEY, p REFERENCES p (k) ${reference})`;
    applyBatch(replica, batch(2, 3, [sql(child), change("insert", "p", 1, 1n)]));
    return { db, replica };
  }

  test("are deferred to the end of a transaction, and checked there", () => {
    const { db, replica } = family();
    expect(replica.keysHold).toBeUndefined();
    const changes = [
      change("insert", "c", 1, 1n, 7n),
      { kind: "delete", table: "p", rowid: 1n } as const,
      change("insert", "c", 2, 2n, 1n),
      change("insert", "p", 7, 7n),
      change("insert", "p", 1, 1n),
    ];
    applyBatch(replica, batch(3, 4, changes));
    expect(replica.keysHold).toBe(true);
    expect(orphans(db)).toBe(0);
  });

  test("refuse no orphan that the source holds", () => {
    const { db, replica } = family();
    expect(applyBatch(replica, batch(3, 4, [change("insert", "c", 1, 1n, 99n)]))).toBe("applied");
    expect(replica.keysHold).toBe(false);
    expect(replica.watermark()!.commit).toBe(4n);
    applyBatch(replica, batch(4, 5, [{ kind: "delete", table: "p", rowid: 1n }]));
    expect(orphans(db)).toBe(1);
  });

  test.each(["ON DELETE CASCADE", "ON UPDATE SET NULL", "ON DELETE RESTRICT"])(
    "with an action do nothing a second time: %s",
    (action) => {
      const { db, replica } = family(action);
      applyBatch(replica, batch(3, 4, [change("insert", "c", 1, 1n, 1n)]));
      // The program that wrote so had them switched off.
      applyBatch(replica, batch(4, 5, [{ kind: "delete", table: "p", rowid: 1n }]));
      expect(db.query("SELECT * FROM c").values()).toEqual([[1, 1]]);
      expect(replica.keysHold).toBeUndefined();
    },
  );

  test("that refer to nothing are left alone, and so is a schema that changes", () => {
    const { db, replica } = follower(PARENT);
    const d = sql("CREATE TABLE d (p REFERENCES nowhere)");
    applyBatch(replica, batch(2, 3, [d, change("insert", "d", 1, 1n)]));
    applyBatch(replica, batch(3, 4, [change("insert", "d", 2, 2n)]));
    applyBatch(replica, batch(4, 5, [sql("DROP TABLE p"), change("insert", "d", 3, 2n)]));
    expect(db.query("SELECT p FROM d").values()).toEqual([[1], [2], [2]]);
    expect(replica.keysHold).toBeUndefined();
  });
});
