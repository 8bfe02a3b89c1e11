/** A plain SQLite file as a source: each thing that others may do to it, and what a follower gets. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Batch, CdcChange } from "../../lib/cdc/change.ts";
import { BrokenText } from "../../lib/cdc/change.ts";
import { decodeChange, encodeChange } from "../../lib/cdc/change-text.ts";
import { followClosedFile } from "../../lib/cdc/closed-file.ts";
import { readCopy } from "../../lib/cdc/copy.ts";
import { FrameReader } from "../../lib/cdc/frames.ts";
import { applyBatch } from "../../lib/cdc/replica.ts";
import { SqliteCapture } from "../../lib/cdc/sqlite-capture.ts";
import { readImage } from "../../lib/cdc/sqlite-image.ts";
import { imageSql } from "../../lib/cdc/sqlite-log.ts";
import { serveCdc } from "../../lib/cdc/stream.ts";
import { CdcTailer } from "../../lib/cdc/tailer.ts";
import { openPrograms } from "../support/old-sqlite.ts";
import { laterCodeOf } from "./support/code-of.ts";
import { contentOf } from "./support/content.ts";
import { drain, Follower } from "./support/turso-source.ts";
import { ALL_VALUES } from "./support/values.ts";

/** An engine is loaded, and files are written, while others work as well. */
setDefaultTimeout(60_000);

let folder = "";
let path = "";
let opened: Database[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cdc-sqlite-"));
  path = join(folder, "source.db");
});
afterEach(() => {
  for (const db of opened) db.close();
  opened = [];
  rmSync(folder, { recursive: true, force: true });
});

function open(file = path): Database {
  const db = new Database(file);
  db.run("PRAGMA journal_mode = WAL");
  db.run("PRAGMA synchronous = OFF");
  opened.push(db);
  return db;
}

/** A captured file, another program's connection to it, and a follower. */
function captured(sql: string) {
  const program = open();
  program.exec(sql);
  const capture = SqliteCapture.open(open());
  const reader = open();
  return { program, capture, reader };
}

async function equal(reader: Database, follower: Follower): Promise<void> {
  const digest = follower.replica.schemaDigest();
  expect(await contentOf(follower.db, digest)).toEqual(await contentOf(reader));
}

async function pump(tailer: CdcTailer, follower: Follower): Promise<Batch[]> {
  const batches = await drain(tailer);
  for (const batch of batches) applyBatch(follower.replica, batch);
  return batches;
}

/** A follower at the log's end, and its tailer. */
async function followed(reader: Database, follower: Follower): Promise<CdcTailer> {
  const { log, commit, mark } = apply(follower, await readCopy(reader, 0));
  return new CdcTailer(reader, { log, commit, mark });
}

function apply(follower: Follower, batch: Batch): Batch {
  applyBatch(follower.replica, batch);
  batch.close();
  return batch;
}

const T = "CREATE TABLE t (k INTEGER PRIMARY KEY, v, w)";

test("an image holds every value exactly", () => {
  const db = open();
  db.run("CREATE TABLE v (a)");
  const columns = Array.from({ length: 120 }, (_, i) => `c${i}`);
  for (const value of ALL_VALUES) {
    const place =
      value instanceof BrokenText
        ? "CAST(? AS TEXT)"
        : typeof value === "number"
          ? "CAST(? AS REAL)"
          : "?";
    db.query(`INSERT INTO v VALUES (${place})`).run(
      value instanceof BrokenText ? value.bytes : value,
    );
  }
  const sql = `SELECT CAST(${imageSql("v", ["a", "a"])} AS BLOB) AS image FROM v ORDER BY rowid`;
  const images = db.query<{ image: Uint8Array }, []>(sql).all();
  expect(images.map(({ image }) => readImage(image))).toEqual(
    ALL_VALUES.map((each) => [each, each]),
  );
  db.run(`CREATE TABLE wide (${columns.join(", ")})`);
  db.run(`INSERT INTO wide VALUES (${columns.map((_, i) => i).join(", ")})`);
  const wide = db
    .query<{ image: Uint8Array }, []>(
      `SELECT CAST(${imageSql("wide", columns)} AS BLOB) AS image FROM wide`,
    )
    .get()!;
  expect(readImage(wide.image)).toEqual(columns.map((_, i) => BigInt(i)));
});

test.each<CdcChange>([
  { kind: "put", table: "t", rowid: 5n, values: [1n, "x", 1] },
  { kind: "put", table: "t", rowid: null, values: [null] },
  { kind: "remove", table: "t", rowid: -(2n ** 63n), key: [] },
  { kind: "remove", table: "t", rowid: null, key: ["a", new Uint8Array([1])] },
])("%p travels", (change) => {
  expect(decodeChange(encodeChange(change))).toEqual(change);
});

describe("what others write", () => {
  test("comes with the transaction it was part of, and nothing of one that is open", async () => {
    const { program, reader } = captured(T);
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec("BEGIN; INSERT INTO t VALUES (1, 'a', 1.0); UPDATE t SET v = 'b'");
    expect(await drain(tailer)).toEqual([]);
    program.exec("SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; COMMIT");
    const [batch] = await pump(tailer, follower);
    expect([...batch!.changes]).toEqual([
      { kind: "put", table: "t", rowid: 1n, values: [1n, "a", 1] },
      { kind: "put", table: "t", rowid: 1n, values: [1n, "b", 1] },
    ]);
    await equal(reader, follower);
  });

  test("and what triggers and foreign keys do with it", async () => {
    const { program, reader } = captured(`
      CREATE TABLE p (k INTEGER PRIMARY KEY, n);
      CREATE TABLE c (k INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE);
      CREATE TRIGGER touch AFTER INSERT ON p BEGIN UPDATE p SET n = n + 1 WHERE k = NEW.k; END`);
    program.run("PRAGMA foreign_keys = ON");
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec("INSERT INTO p VALUES (1, 0), (2, 0); INSERT INTO c VALUES (1, 1), (2, 2)");
    program.exec("UPDATE p SET k = 7 WHERE k = 2; DELETE FROM p WHERE k = 1");
    await pump(tailer, follower);
    await equal(reader, follower);
    expect(follower.db.query("SELECT * FROM p").values()).toEqual([[7, 1]]);
    expect(
      follower.db.query("SELECT name FROM sqlite_schema WHERE type = 'trigger'").all(),
    ).toEqual([]);
  });

  test("in tables WITHOUT ROWID too", async () => {
    const { program, reader } = captured(
      "CREATE TABLE t (b, a, v, PRIMARY KEY (a, b)) WITHOUT ROWID",
    );
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec(
      "INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3); UPDATE t SET a = 'n' WHERE b = 1",
    );
    program.exec("DELETE FROM t WHERE b = 2; REPLACE INTO t VALUES (3, 'z', 'new')");
    await pump(tailer, follower);
    await equal(reader, follower);
    apply(follower, await readCopy(reader, 0));
    await equal(reader, follower);
  });

  test.each(["", " WITHOUT ROWID"])(
    "in a table of as many columns as there can be%s",
    async (kind) => {
      const columns = Array.from({ length: 1_999 }, (_, i) => `c${i}`);
      const { program, reader } = captured(`
      CREATE TABLE t (id TEXT NOT NULL PRIMARY KEY, ${columns.join(", ")})${kind};
      INSERT INTO t (id, c0, c898, c899, c1998) VALUES ('a', 1, 'left', x'00', 2.0), ('b', 3, 4, 5, 6)`);
      using follower = new Follower();
      const tailer = await followed(reader, follower);
      const rows = (db: Database) => db.query("SELECT * FROM t ORDER BY id").values();
      expect(rows(follower.db)).toEqual(rows(reader));
      program.exec(
        "UPDATE t SET c1998 = c0; DELETE FROM t WHERE id = 'a'; INSERT INTO t (c1998, id) VALUES (7, 'c')",
      );
      await pump(tailer, follower);
      expect(rows(follower.db)).toEqual(rows(reader));
    },
  );

  test("a transaction of 20,000 rows is one batch, held in a file", async () => {
    const { program, reader } = captured(T);
    using follower = new Follower();
    const { log, commit, mark } = apply(follower, await readCopy(reader, 0));
    const spill = { memoryBytesMax: 100_000, folder };
    const tailer = new CdcTailer(reader, { log, commit, mark }, spill);
    program.run(`
      WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
      INSERT INTO t SELECT i, 'row ' || i, i / 2.0 FROM n`);
    const batch = (await tailer.pollBatch())!;
    expect(applyBatch(follower.replica, batch)).toBe("applied");
    batch.close();
    expect(await tailer.pollBatch()).toBeNull();
    const sum = "SELECT count(*) AS n, sum(w) AS w FROM t";
    expect(follower.db.query(sum).get()).toEqual(reader.query(sum).get());
  }, 60_000);
});

describe("a schema that others alter", () => {
  test.each([
    "ALTER TABLE t ADD COLUMN x DEFAULT 'it''s'",
    "BEGIN; INSERT INTO t VALUES (8, 8, 8); ALTER TABLE t ADD COLUMN x; UPDATE t SET x = k, v = 'n'; COMMIT",
    "ALTER TABLE t ADD COLUMN x; ALTER TABLE t ADD COLUMN y DEFAULT 5",
    "ALTER TABLE t ADD COLUMN x; ALTER TABLE t ADD CHECK (k <> 77)",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (k <> 77); ALTER TABLE t ADD COLUMN x CHECK (x IN (1, 2))",
    "ALTER TABLE t ALTER COLUMN v SET NOT NULL; INSERT INTO t VALUES (7, 7, 7)",
    "ALTER TABLE t ALTER COLUMN v SET NOT NULL; ALTER TABLE t ALTER COLUMN v DROP NOT NULL; INSERT INTO t VALUES (7, NULL, 7)",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (k <> 77); ALTER TABLE t DROP CONSTRAINT c",
    "ALTER TABLE t RENAME TO t2; INSERT INTO t2 VALUES (9, 9, 9)",
    "ALTER TABLE t RENAME COLUMN v TO x; UPDATE t SET x = 'renamed'",
    "DROP TRIGGER _cdc_ai_t; DROP TRIGGER _cdc_au_t; DROP TRIGGER _cdc_ad_t; ALTER TABLE t DROP COLUMN v",
    "DROP TRIGGER _cdc_au_t; UPDATE t SET v = 'not captured'",
    "ALTER TABLE t RENAME TO old; ALTER TABLE u RENAME TO t; ALTER TABLE old RENAME TO u",
    "CREATE TABLE n AS SELECT * FROM t; DROP TABLE t; ALTER TABLE n RENAME TO t",
    "DROP TABLE t; CREATE TABLE t (k INTEGER PRIMARY KEY, v, w); INSERT INTO t VALUES (5, 5, 5)",
    "CREATE UNIQUE INDEX i ON t (v); CREATE VIEW s AS SELECT v FROM t",
    "CREATE UNIQUE INDEX i ON t (v); REPLACE INTO t VALUES (3, 'a', 3)",
    "DROP INDEX ui; INSERT INTO u VALUES (1); DROP TABLE t",
    "DROP INDEX ui; INSERT INTO u VALUES (1); DELETE FROM u WHERE rowid = 3; CREATE UNIQUE INDEX ui ON u (x)",
    "DELETE FROM u WHERE x = 1; VACUUM; INSERT INTO u VALUES (3)",
    "CREATE TRIGGER g AFTER DELETE ON t BEGIN DELETE FROM u; END; DELETE FROM t WHERE k = 1",
    "CREATE TRIGGER g AFTER INSERT ON u BEGIN SELECT RAISE(IGNORE); END",
    "CREATE TRIGGER g AFTER INSERT ON u BEGIN SELECT RAISE(IGNORE); END; INSERT INTO u VALUES (7)",
    "ANALYZE; REINDEX; PRAGMA user_version = 7",
    "CREATE TABLE g (a, b AS (a * 2) STORED, c); INSERT INTO g VALUES (1, 2)",
  ])("%s", async (sql) => {
    const { program, capture, reader } = captured(
      `${T}; CREATE TABLE u (x); CREATE UNIQUE INDEX ui ON u (x);
       INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2); INSERT INTO u VALUES (1), (2)`,
    );
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec(sql);
    // Until it is in the log at its place, nothing comes out.
    const held = reader.query("PRAGMA schema_version").get();
    if (!capture.isSettled) expect(await drain(tailer)).toEqual([]);
    capture.settle();
    expect(capture.settle()).toBe(false);
    await pump(tailer, follower);
    await equal(reader, follower);
    program.exec("CREATE TABLE after (x); INSERT INTO after VALUES (1)");
    capture.settle();
    await pump(tailer, follower);
    await equal(reader, follower);
    expect(reader.query("PRAGMA schema_version").get()).not.toEqual(held);
  });

  test("a large table is logged in parts, between which others write and alter", async () => {
    const { program, capture, reader } = captured(`
      CREATE TABLE t (k INTEGER PRIMARY KEY, u UNIQUE, v);
      CREATE TABLE w (a PRIMARY KEY, b) WITHOUT ROWID;
      INSERT INTO w VALUES (1, 2);
      WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
      INSERT INTO t SELECT i, i, 'a' FROM n;
      INSERT INTO t VALUES (9223372036854775807, 'last', 1), (-9223372036854775808, 'first', 1)`);
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec("ALTER TABLE t RENAME COLUMN v TO x; ALTER TABLE w RENAME COLUMN b TO c");
    let parts = 0;
    for (; capture.settlePart(10); parts++) {
      if (!capture.isSettled) expect(await drain(tailer)).toEqual([]);
    }
    expect(parts).toBe(11);
    expect((await pump(tailer, follower)).length).toBe(1);
    await equal(reader, follower);
    program.run("ALTER TABLE t RENAME COLUMN x TO y");
    expect(capture.settlePart(10)).toBe(true);
    // Throws out a row that is logged, and one that is not yet; and moves rows over the border.
    program.run("REPLACE INTO t VALUES (200, 5, 'new'), (201, 90, 'new')");
    program.run("UPDATE t SET k = k + 1000, u = 'moved' WHERE k = 3");
    program.run("UPDATE t SET k = -5 WHERE k = 80");
    program.run("DELETE FROM t WHERE k IN (7, 70)");
    expect(capture.settlePart(10)).toBe(true);
    program.exec(
      "ALTER TABLE t ADD COLUMN z DEFAULT 5; CREATE INDEX i ON t (y); INSERT INTO w VALUES (3, 4)",
    );
    SqliteCapture.open(open());
    expect(capture.isSettled).toBe(true);
    expect((await pump(tailer, follower)).length).toBe(1);
    await equal(reader, follower);
  });

  test("a large table WITHOUT ROWID, too, whatever its key", async () => {
    const { program, capture, reader } = captured(`
      CREATE TABLE t (v, a TEXT COLLATE NOCASE, b, PRIMARY KEY (b, a DESC)) WITHOUT ROWID;
      CREATE TABLE s (x REAL PRIMARY KEY, y) WITHOUT ROWID;
      WITH n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
      INSERT INTO t SELECT i, char(60 + i) || i, CASE i % 4 WHEN 0 THEN i % 8 WHEN 1 THEN i / 7.5
        WHEN 2 THEN 'text ' || (i % 3) ELSE CAST('bytes' || (i % 2) AS BLOB) END FROM n;
      INSERT INTO t VALUES (0, CAST(x'61ff' AS TEXT), 9007199254740993), (0, '', -9223372036854775808);
      INSERT INTO s SELECT v, a FROM t WHERE v > 0;
      CREATE VIEW broken AS SELECT * FROM nowhere`);
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec("DROP TRIGGER _cdc_au_t; DROP TRIGGER _cdc_au_s");
    program.run("UPDATE t SET v = 'changed' WHERE a < 'h'");
    let parts = 0;
    for (; capture.settlePart(7); parts++) {
      // Behind what is logged and before it; a row that is moved over the border, one that goes.
      if (parts === 2) program.run("INSERT INTO t VALUES ('new', 'q', -5), ('new', 'q', x'ff')");
      if (parts === 3) program.run("UPDATE t SET b = x'ffff' WHERE b = -5");
      if (parts === 4) program.run("UPDATE t SET a = 'zz' WHERE v = 0; DELETE FROM t WHERE v = 30");
    }
    expect(parts).toBeGreaterThan(10);
    expect((await pump(tailer, follower)).length).toBe(1);
    await equal(reader, follower);
    // Another process in the middle of it, by which the table is begun again.
    const other = SqliteCapture.open(open());
    program.run("DROP TRIGGER _cdc_au_t");
    for (let part = 0; part < 3; part++) capture.settlePart(7);
    program.run("DROP TRIGGER _cdc_au_t");
    program.run("UPDATE t SET v = 'not captured' WHERE b < 0");
    other.settlePart(7);
    program.run("DELETE FROM t WHERE v = 'changed' AND a < 'c'");
    capture.settle();
    await pump(tailer, follower);
    await equal(reader, follower);
  });

  test.each([
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO u VALUES (NEW.v); END",
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT OR FAIL INTO u VALUES (NEW.v); END",
    "CREATE TRIGGER g AFTER INSERT ON t WHEN NEW.v = 1 BEGIN SELECT RAISE(FAIL, 'no'); END",
  ])("what a new trigger ended and kept is not missed: %s", async (trigger) => {
    const { program, capture, reader } = captured(
      `${T}; CREATE TABLE u (x UNIQUE); INSERT INTO u VALUES (1)`,
    );
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.run(trigger);
    expect(() => program.run("INSERT OR FAIL INTO t VALUES (1, 5, 0), (2, 1, 0)")).toThrow();
    expect(program.query("SELECT k FROM t").values()).toEqual([[1], [2]]);
    capture.settle();
    await pump(tailer, follower);
    await equal(reader, follower);
    // From now on ours run first.
    expect(() => program.run("INSERT OR FAIL INTO t VALUES (3, 1, 0)")).toThrow();
    expect(program.query("SELECT k FROM t").values()).toEqual([[1], [2], [3]]);
    await pump(tailer, follower);
    await equal(reader, follower);
  });

  test("a copy waits for it as well", async () => {
    const { program, capture, reader } = captured(T);
    program.run("ALTER TABLE t ADD COLUMN x");
    expect(await laterCodeOf(() => readCopy(reader, 0))).toBe("unsettled");
    capture.settle();
    using follower = new Follower();
    apply(follower, await readCopy(reader, 0));
    await equal(reader, follower);
  });

  test("an added column is one statement, and the rows written since", async () => {
    const { program, capture, reader } = captured(
      `${T}; INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)`,
    );
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec("ALTER TABLE t ADD COLUMN x INT DEFAULT 5; UPDATE t SET x = 6 WHERE k = 2");
    capture.settle();
    const [batch] = await drain(tailer);
    expect([...batch!.changes]).toEqual([
      { kind: "put", table: "t", rowid: 2n, values: [2n, 2n, 2n] },
      { kind: "schema", sql: 'ALTER TABLE "t" ADD COLUMN x INT DEFAULT 5' },
      { kind: "put", table: "t", rowid: 2n, values: [2n, 2n, 2n, 6n] },
    ]);
  });
});

test("a stream says that there is more while the schema is not in the log", async () => {
  const { program, reader } = captured(T);
  const { log, commit, mark } = await readCopy(reader, 0);
  const stream = serveCdc(() => open(), { log, commit, mark }, { pollMs: 1, beatMs: 1 });
  const frames = new FrameReader();
  const events = (async function* () {
    for await (const bytes of stream) yield* frames.read(bytes);
  })();
  expect((await events.next()).value).toEqual({ kind: "beat", behind: 0 });
  program.exec("CREATE TABLE u (a); INSERT INTO u VALUES (1)");
  for await (const event of events) if (event.kind === "beat" && event.behind > 0) break;
});

describe("a column with a name of the rowid", () => {
  test("that is generated", async () => {
    const { program, reader } = captured("CREATE TABLE t (a, rowid INT AS (a * 10))");
    program.run("INSERT INTO t (a) VALUES (7), (8)");
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec("INSERT INTO t (a) VALUES (9); DELETE FROM t WHERE a = 7");
    await pump(tailer, follower);
    expect(follower.db.query("SELECT _rowid_, a FROM t").values()).toEqual([
      [2, 8],
      [3, 9],
    ]);
    await equal(reader, follower);
  });

  test("that is added while rows are written, by builds that let it be", async () => {
    const { program, capture, reader } = captured("CREATE TABLE t (a); INSERT INTO t VALUES (1)");
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    const sql = "ALTER TABLE t ADD COLUMN rowid DEFAULT 9; UPDATE t SET a = 2";
    for (const other of await openPrograms()) {
      await other.paste(path, `BEGIN; ${sql}; COMMIT`);
      other.close();
    }
    capture.settle();
    await pump(tailer, follower);
    await equal(reader, follower);
    program.run("UPDATE t SET a = 'five'");
    await pump(tailer, follower);
    await equal(reader, follower);
  });
});

test("an image holds a large blob", () => {
  const hex = "0F".repeat(8_000_000);
  expect(readImage(Buffer.from(`[{"h":"${hex}"}]`))).toEqual([new Uint8Array(8_000_000).fill(15)]);
  for (const wrong of [`${hex}0`, `${hex}0g`, `${hex}\n0`]) {
    expect(() => readImage(Buffer.from(JSON.stringify([{ h: wrong }])))).toThrow("no hex");
  }
});

test("a file at rest is followed to its end, or it is said that it was not", async () => {
  const { program, capture } = captured(T);
  using follower = new Follower();
  await followClosedFile(path, follower.replica, 0);
  program.exec("ALTER TABLE t RENAME COLUMN w TO x; INSERT INTO t VALUES (1, 1, 1)");
  expect(await laterCodeOf(() => followClosedFile(path, follower.replica, 0))).toBe("unsettled");
  capture.settle();
  expect(await followClosedFile(path, follower.replica, 0)).toMatchObject({ transactions: 1 });
});

test("past a row of the log that says nothing leads a copy", async () => {
  const { program, reader } = captured(T);
  using follower = new Follower();
  const tailer = await followed(reader, follower);
  program.run("INSERT INTO _cdc (change_time, change_type, table_name) VALUES (1, -1, 't')");
  expect(await laterCodeOf(() => drain(tailer))).toBe("log-incomplete");
  program.run("INSERT INTO t VALUES (1, 1, 1)");
  await pump(await followed(reader, follower), follower);
  await equal(reader, follower);
});

describe("left out", () => {
  test("virtual tables and the tables behind them, but not the table they are made from", async () => {
    const { program, reader } = captured(`${T};
      CREATE VIRTUAL TABLE f USING fts5(v, content=t, content_rowid=k);
      CREATE TRIGGER fi AFTER INSERT ON t BEGIN INSERT INTO f (rowid, v) VALUES (NEW.k, NEW.v); END`);
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.run("INSERT INTO t VALUES (1, 'found', 1)");
    await pump(tailer, follower);
    expect(follower.db.query("SELECT v FROM t").values()).toEqual([["found"]]);
    expect(follower.db.query("SELECT name FROM sqlite_schema WHERE name LIKE 'f%'").all()).toEqual(
      [],
    );
    await equal(reader, follower);
  });

  test("a node's own tables and triggers", async () => {
    const { program, reader } = captured(`
      CREATE TABLE _meta (key TEXT PRIMARY KEY, value INTEGER);
      CREATE TABLE _changes (change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT);
      CREATE TABLE _dead_letter (dead_id INTEGER PRIMARY KEY); CREATE TABLE _peer_state (peer_url TEXT);
      CREATE TABLE _hooksync (key TEXT PRIMARY KEY, value);
      ${T}; CREATE TRIGGER t_ai AFTER INSERT ON t BEGIN INSERT INTO _changes (op) VALUES ('INSERT'); END`);
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.run("INSERT INTO t VALUES (1, 1, 1)");
    const [batch] = await pump(tailer, follower);
    expect([...batch!.changes].length).toBe(1);
    const names = follower.db.query(
      "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '_cdc%'",
    );
    expect(names.values()).toEqual([["t"]]);
  });
});

describe("which log it is", () => {
  test("a file restored from a backup is noticed", async () => {
    const { program, capture, reader } = captured(`${T}; INSERT INTO t VALUES (1, 1, 1)`);
    using follower = new Follower();
    program.run("INSERT INTO t VALUES (2, 2, 2)");
    program.run(`VACUUM INTO '${join(folder, "backup.db")}'`);
    const tailer = await followed(reader, follower);
    program.exec("INSERT INTO t VALUES (3, 3, 3); INSERT INTO t VALUES (4, 4, 4)");
    await pump(tailer, follower);
    expect(capture.newest()).toBe(3n);
    const restored = join(folder, "restored.db");
    copyFileSync(join(folder, "backup.db"), restored);
    const other = open(restored);
    SqliteCapture.open(other);
    const from = follower.replica.watermark();
    expect(await laterCodeOf(() => drain(new CdcTailer(other, from)))).toBe("log-rewound");
    other.exec(
      "INSERT INTO t VALUES (30, 3, 3); INSERT INTO t VALUES (40, 4, 4); INSERT INTO t VALUES (50, 4, 4)",
    );
    expect(await laterCodeOf(() => drain(new CdcTailer(other, from)))).toBe("log-rewound");
    apply(follower, await readCopy(other, 0));
    await equal(other, follower);
  });

  test("what is pruned is gone for those who had it not", async () => {
    const { program, capture, reader } = captured(T);
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    const before = follower.replica.watermark();
    program.exec("INSERT INTO t VALUES (1, 1, 1); INSERT INTO t VALUES (2, 2, 2); DELETE FROM t");
    await pump(tailer, follower);
    expect(capture.prune(follower.replica.watermark()!.commit)).toBe(2);
    program.run("INSERT INTO t VALUES (3, 3, 3)");
    await pump(new CdcTailer(reader, follower.replica.watermark()), follower);
    await equal(reader, follower);
    expect(await laterCodeOf(() => drain(new CdcTailer(reader, before)))).toBe("log-pruned");
  });

  test("goes on after a pause in which the file was written and altered", async () => {
    const { program, reader } = captured(T);
    using follower = new Follower();
    const tailer = await followed(reader, follower);
    program.exec(
      "INSERT INTO t VALUES (1, 1, 1); ALTER TABLE t ADD COLUMN x; INSERT INTO t VALUES (2, 2, 2, 2)",
    );
    SqliteCapture.open(open());
    await pump(tailer, follower);
    await equal(reader, follower);
  });

  test("begins anew where somebody took out a part of it", async () => {
    const { program, reader } = captured(`${T}; INSERT INTO t VALUES (1, 1, 1)`);
    using follower = new Follower();
    await followed(reader, follower);
    program.run("DROP TABLE _cdc");
    SqliteCapture.open(open());
    open().run("INSERT INTO t VALUES (2, 2, 2)");
    const from = follower.replica.watermark();
    expect(await laterCodeOf(() => drain(new CdcTailer(reader, from)))).toBe("other-log");
    await followed(reader, follower);
    await equal(reader, follower);
  });

  test.each(["_cdc", "_CDC_Log", "_cdc_follower"])(
    "leaves a table %s alone that is another program's",
    (name) => {
      const db = new Database(":memory:");
      db.run(`CREATE TABLE ${name} (one INTEGER PRIMARY KEY, note TEXT)`);
      db.run(`INSERT INTO ${name} VALUES (1, 'kept')`);
      expect(() => SqliteCapture.open(db)).toThrow(`its table ${name} `);
      expect(db.query(`SELECT * FROM ${name}`).all()).toEqual([{ one: 1, note: "kept" }]);
    },
  );

  test("can be taken out of the file, and begins anew under another name", async () => {
    const { program, reader } = captured(`${T}; INSERT INTO t VALUES (1, 1, 1)`);
    using follower = new Follower();
    await followed(reader, follower);
    SqliteCapture.remove(program);
    const left = program.query("SELECT name FROM sqlite_schema WHERE name LIKE '%cdc%'").all();
    expect(left).toEqual([]);
    SqliteCapture.open(open());
    const from = follower.replica.watermark();
    expect(await laterCodeOf(() => drain(new CdcTailer(reader, from)))).toBe("other-log");
  });

  test("texts in UTF-16 are refused", () => {
    const db = open();
    db.run("PRAGMA encoding = 'UTF-16le'");
    db.run(T);
    expect(() => SqliteCapture.open(db)).toThrow("UTF-16le");
    expect(db.query("SELECT name FROM sqlite_schema").values()).toEqual([["t"]]);
  });
});
