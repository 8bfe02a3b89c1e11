/** The real engine as a source: each thing that was measured about its log, and what is made of it. */
import { Database as Sqlite } from "bun:sqlite";
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { connect } from "@tursodatabase/database";
import type { Batch, CdcChange, Watermark } from "../../lib/cdc/change.ts";
import type { CdcConnection } from "../../lib/cdc/connection.ts";
import { readCopy } from "../../lib/cdc/copy.ts";
import type { LogRow } from "../../lib/cdc/log-entry.ts";
import { applyBatch } from "../../lib/cdc/replica.ts";
import { CdcTailer } from "../../lib/cdc/tailer.ts";
import { enableCdc, pruneCdc, writeCdc } from "../../lib/cdc/turso.ts";
import { laterCodeOf } from "./support/code-of.ts";
import { contentOf } from "./support/content.ts";
import { drain, Follower, follow, type Turso, TursoSource } from "./support/turso-source.ts";

/** An engine is loaded, and files are written, while others work as well. */
setDefaultTimeout(60_000);

async function changesOf(source: TursoSource, sql: string): Promise<readonly CdcChange[][]> {
  const tailer = source.tailer();
  await drain(tailer);
  source.writer.exec(sql);
  const batches = await drain(tailer);
  return batches.map(({ changes }) => [...changes]);
}

const T = "CREATE TABLE t (k INTEGER PRIMARY KEY, u UNIQUE, v)";

describe("what the log says", () => {
  test("a COMMIT ends a transaction, and nothing else does", async () => {
    using source = await TursoSource.open();
    const changes = await changesOf(
      source,
      `${T}; INSERT INTO t VALUES (1, 1, 1); BEGIN; INSERT INTO t VALUES (2, 2, 2); SELECT 1;
       UPDATE t SET v = 9; COMMIT; BEGIN; COMMIT; INSERT OR IGNORE INTO t VALUES (1, 1, 1);
       BEGIN; INSERT INTO t VALUES (3, 3, 3); ROLLBACK; DELETE FROM t WHERE k = 1`,
    );
    expect(changes.map((each) => each.map(({ kind }) => kind))).toEqual([
      ["schema"],
      ["insert"],
      ["insert", "update", "update"],
      ["delete"],
    ]);
  });

  test("what an outermost savepoint wrote comes with the next COMMIT", async () => {
    using source = await TursoSource.open();
    source.writer.exec(T);
    const tailer = source.tailer();
    await drain(tailer);
    source.writer.exec("SAVEPOINT a; INSERT INTO t VALUES (1, 1, 1); RELEASE a");
    expect(await tailer.pollBatch()).toBeNull();
    source.writer.exec("INSERT INTO t VALUES (2, 2, 2)");
    expect((await drain(tailer)).map(({ changes }) => [...changes].length)).toEqual([2]);
  });

  test("a changed key is a delete and an insert with its new image", async () => {
    using source = await TursoSource.open();
    const changes = await changesOf(
      source,
      `${T}; INSERT INTO t VALUES (1, 'u', 2.0); UPDATE t SET k = 7`,
    );
    expect(changes.at(-1)).toEqual([
      { kind: "delete", table: "t", rowid: 1n },
      { kind: "insert", table: "t", rowid: 7n, values: [7n, "u", 2] },
    ]);
  });

  test("an upsert is its row afterwards", async () => {
    using source = await TursoSource.open();
    const upsert = "INSERT INTO t VALUES (1, 5, 5) ON CONFLICT (k) DO UPDATE SET v = 'new'";
    const changes = await changesOf(source, `${T}; INSERT INTO t VALUES (1, 1, 'old'); ${upsert}`);
    expect(changes.at(-1)).toEqual([
      { kind: "update", table: "t", rowid: 1n, values: [1n, 1n, "new"] },
    ]);
  });

  test("ALTER TABLE is its statement, in its place", async () => {
    using source = await TursoSource.open();
    const changes = await changesOf(
      source,
      `${T}; BEGIN; INSERT INTO t VALUES (1, 1, 1); ALTER TABLE t ADD COLUMN w DEFAULT 5;
       UPDATE t SET w = 6; ALTER TABLE t DROP COLUMN v; COMMIT`,
    );
    expect(changes.at(-1)).toEqual([
      { kind: "insert", table: "t", rowid: 1n, values: [1n, 1n, 1n] },
      { kind: "schema", sql: "ALTER TABLE t ADD COLUMN w DEFAULT 5;" },
      { kind: "update", table: "t", rowid: 1n, values: [1n, 1n, 1n, 6n] },
      { kind: "schema", sql: "ALTER TABLE t DROP COLUMN v;" },
    ]);
  });

  test("64-bit numbers keep their digits, as rowids and as values", async () => {
    using source = await TursoSource.open();
    const [low, high] = ["-9223372036854775808", "9223372036854775807"];
    const changes = await changesOf(
      source,
      `CREATE TABLE n (x, y); INSERT INTO n (rowid, x, y) VALUES (${low}, ${high}, 1.0)`,
    );
    expect(changes.at(-1)).toEqual([
      { kind: "insert", table: "n", rowid: BigInt(low), values: [BigInt(high), 1] },
    ]);
  });

  test("a transaction far above a page comes whole, from a file where it is large", async () => {
    using source = await TursoSource.open();
    source.writer.exec(T);
    const insert = source.writer.prepare("INSERT INTO t VALUES (?, ?, ?)");
    source.writer.exec("BEGIN");
    for (let k = 1; k <= 3000; k++) insert.run(k, k, "x".repeat(200));
    source.writer.exec("COMMIT");
    const tailer = source.tailer(null, { memoryBytesMax: 100_000, folder: source.folder });
    await tailer.pollBatch();
    const batch = (await tailer.pollBatch())!;
    expect([...batch.changes].length).toBe(3000);
    using follower = new Follower();
    await follow(source.tailer(), follower.replica);
    expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
    batch.close();
  });
});

describe("what is not in the log is noticed", () => {
  test.each([
    ["schema-differs", "ALTER TABLE t RENAME TO t2; INSERT INTO other VALUES (1)"],
    ["schema-differs", "ALTER TABLE t RENAME COLUMN v TO w; INSERT INTO t VALUES (2, 2, 2)"],
    ["schema-differs", "CREATE VIEW v AS SELECT 1; INSERT INTO t VALUES (2, 2, 2)"],
    ["diverged", "ALTER TABLE t RENAME TO t2; INSERT INTO t2 VALUES (2, 2, 2)"],
    ["log-incomplete", "INSERT INTO t VALUES (2, 2, 2); ALTER TABLE t RENAME TO t2"],
    ["log-incomplete", "CREATE TABLE copied AS SELECT * FROM t"],
    ["schema-differs", "CREATE TABLE a (x); ALTER TABLE a RENAME TO b; INSERT INTO b VALUES (1)"],
    [
      "source-unfit",
      "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM other; END; INSERT INTO t VALUES (2, 2, 2)",
    ],
    ["source-unfit", "CREATE TABLE c (p REFERENCES t ON DELETE CASCADE)"],
  ])("%s: %s", async (code, sql) => {
    using source = await TursoSource.open();
    using follower = new Follower();
    source.writer.exec(`${T}; CREATE TABLE other (x); INSERT INTO t VALUES (1, 1, 1)`);
    const tailer = source.tailer();
    await follow(tailer, follower.replica);
    source.writer.exec(sql);
    expect(await laterCodeOf(() => follow(tailer, follower.replica))).toBe(code);
    // A reader sees a state that the source had.
    expect(follower.db.query("SELECT * FROM other").all()).toBeArray();
  });

  test("a copy then has it all", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    source.writer.exec(`${T}; INSERT INTO t VALUES (1, 1, 1); ALTER TABLE t RENAME TO t2`);
    source.writer.exec("CREATE TABLE c AS SELECT * FROM t2; CREATE VIEW v AS SELECT * FROM c");
    const copy = await readCopy(source.open(), 0);
    applyBatch(follower.replica, copy);
    expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
    source.writer.exec("INSERT INTO t2 VALUES (5, 5, 5); ALTER TABLE c ADD COLUMN y");
    const { log, commit, mark } = copy;
    expect(await follow(source.tailer({ log, commit, mark }), follower.replica)).toBe(2);
    expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
  });

  test("a copy ends where its snapshot does, though no COMMIT stands there", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    source.writer.exec(`${T}; SAVEPOINT a; INSERT INTO t VALUES (1, 1, 1); RELEASE a`);
    const copy = await readCopy(source.open(), 0);
    applyBatch(follower.replica, copy);
    source.writer.exec("DELETE FROM t WHERE k = 1; INSERT INTO t VALUES (2, 2, 2)");
    const { log, commit, mark } = copy;
    await follow(source.tailer({ log, commit, mark }), follower.replica);
    expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
  });
});

describe("what is in the log though it should not be", () => {
  test("TEMP tables stay out", async () => {
    using source = await TursoSource.open();
    const changes = await changesOf(
      source,
      `${T}; CREATE TEMP TABLE scratch (x); INSERT INTO scratch VALUES (1);
       BEGIN; INSERT INTO scratch VALUES (2); INSERT INTO t VALUES (1, 1, 1); COMMIT;
       CREATE INDEX temp.i ON scratch (x)`,
    );
    expect(changes.map((each) => each.map(({ kind }) => kind))).toEqual([["schema"], ["insert"]]);
  });

  test("a table that was dropped is ours, though one of the engine's own has its number now", async () => {
    using source = await TursoSource.open();
    const changes = await changesOf(
      source,
      `CREATE TABLE a (x); CREATE TABLE b (x); INSERT INTO b VALUES (1); DROP TABLE b; DROP TABLE a;
       CREATE TABLE c (k INTEGER PRIMARY KEY AUTOINCREMENT, v)`,
    );
    const kinds: CdcChange["kind"][] = ["schema", "schema", "insert", "schema", "schema", "schema"];
    expect(changes.flat().map(({ kind }) => kind)).toEqual(kinds);
  });

  test("a TEMP table with the name of another cannot be told from it", async () => {
    using source = await TursoSource.open();
    const changes = () => changesOf(source, `${T}; CREATE TEMP TABLE t (x)`);
    expect(await laterCodeOf(changes)).toBe("log-incomplete");
  });

  test("rows of a TEMP table whose CREATE was read earlier stop the tailer, not the follower's truth", async () => {
    using source = await TursoSource.open();
    source.writer.exec("CREATE TEMP TABLE scratch (x)");
    const copy = await readCopy(source.open(), 0);
    source.writer.exec("INSERT INTO scratch VALUES (1)");
    const { log, commit, mark } = copy;
    expect(await laterCodeOf(() => drain(source.tailer({ log, commit, mark })))).toBe(
      "log-incomplete",
    );
  });

  test("the engine's own tables stay out", async () => {
    using source = await TursoSource.open();
    const changes = await changesOf(
      source,
      "CREATE TABLE a (i INTEGER PRIMARY KEY AUTOINCREMENT, v); INSERT INTO a (v) VALUES ('x')",
    );
    expect(changes.map((each) => each.length)).toEqual([1, 1]);
  });
});

test("an index that went with its table in one transaction does not hide the table", async () => {
  using source = await TursoSource.open();
  using follower = new Follower();
  source.writer.exec(`${T}; INSERT INTO t VALUES (1, 1, 1)`);
  source.writer.exec("BEGIN; CREATE INDEX i ON t (v); DROP TABLE t; CREATE TABLE u (x); COMMIT");
  await follow(source.tailer(), follower.replica);
  expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
});

test("rows that UPDATE OR REPLACE threw out go on the follower too", async () => {
  using source = await TursoSource.open();
  using follower = new Follower();
  source.writer.exec(`${T}; INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)`);
  source.writer.exec(
    "UPDATE OR REPLACE t SET u = 2 WHERE k = 1; UPDATE OR REPLACE t SET k = 4 WHERE k = 3",
  );
  await follow(source.tailer(), follower.replica);
  expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
});

describe("which log it is", () => {
  /** A follower at the end of a log, with what it holds. */
  async function followed(source: TursoSource, follower: Follower): Promise<Watermark> {
    source.writer.exec(`${T}; INSERT INTO t VALUES (1, 1, 1)`);
    await follow(source.tailer(), follower.replica);
    return follower.replica.watermark()!;
  }

  test("what followers have may be pruned; the position itself stays", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    const watermark = await followed(source, follower);
    for (let n = 0; n < 3; n++) await pruneCdc(source.writer, watermark.commit);
    source.writer.exec("INSERT INTO t VALUES (2, 2, 2)");
    expect(await follow(source.tailer(watermark), follower.replica)).toBe(1);
    // What follows has no COMMIT yet: the last one stays, with the row before it.
    source.writer.exec("SAVEPOINT s; INSERT INTO t VALUES (20, 20, 2); RELEASE s");
    source.writer.exec("SAVEPOINT s; INSERT INTO t VALUES (21, 21, 2); RELEASE s");
    await pruneCdc(source.writer, 1_000_000n);
    expect(
      source.writer.prepare("SELECT change_type AS t FROM turso_cdc ORDER BY change_id").all(),
    ).toMatchObject([{ t: 1 }, { t: 2 }, { t: 1 }, { t: 1 }]);
    source.writer.exec("INSERT INTO t VALUES (3, 3, 3)");
    await follow(source.tailer(follower.replica.watermark()), follower.replica);
    expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
    expect(await laterCodeOf(() => drain(source.tailer(watermark)))).toBe("log-pruned");
    expect(await laterCodeOf(() => drain(source.tailer(null)))).toBe("log-pruned");
  });

  test.each<[string, string, string]>([
    ["emptied", "log-rewound", "DELETE FROM turso_cdc WHERE change_id > 0"],
    [
      "emptied and filled again",
      "log-rewound",
      "DELETE FROM turso_cdc WHERE change_id > 0; INSERT INTO t VALUES (5, 5, 5); INSERT INTO t VALUES (6, 6, 6)",
    ],
    ["cut at its end", "log-rewound", "DELETE FROM turso_cdc WHERE change_id > 2"],
    [
      "with a hole",
      "log-pruned",
      "INSERT INTO t VALUES (5, 5, 5); DELETE FROM turso_cdc WHERE change_id = 5",
    ],
    ["under another name", "other-log", "UPDATE _cdc_log SET log = 'x'"],
    ["without a name", "source-unfit", "DROP TABLE _cdc_log"],
  ])("a log %s", async (_, code, sql) => {
    using source = await TursoSource.open();
    using follower = new Follower();
    const running = source.tailer();
    await drain(running);
    const watermark = await followed(source, follower);
    await drain(running);
    for (const statement of sql.split("; ")) {
      source.writer.exec(`BEGIN IMMEDIATE; ${statement}; COMMIT`);
    }
    expect(await laterCodeOf(() => drain(source.tailer(watermark)))).toBe(code);
    expect(await laterCodeOf(() => drain(running))).toBe(code);
  });

  test("a position without its mark is taken as it is", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    const watermark = await followed(source, follower);
    source.writer.exec("INSERT INTO t VALUES (2, 2, 2)");
    const tailer = source.tailer({ ...watermark, mark: "" });
    expect(await follow(tailer, follower.replica)).toBe(1);
  });

  test("a log that began when there were tables needs a copy first", async () => {
    using source = await TursoSource.open(T);
    source.writer.exec("INSERT INTO t VALUES (1, 1, 1)");
    expect(await laterCodeOf(() => drain(source.tailer()))).toBe("log-pruned");
  });
});

describe("drivers", () => {
  test("the one that answers later", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    const later = await connect(source.path);
    await enableCdc(later);
    await writeCdc(later, () => later.exec(`${T}; INSERT INTO t VALUES (1, 1, 2.0)`));
    await follow(new CdcTailer(await connect(source.path), null), follower.replica);
    expect(await contentOf(follower.db)).toEqual(await contentOf(source.writer));
    await later.close();
  });

  test("a file that Turso has closed, read by bun:sqlite", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    source.writer.exec(`${T}; INSERT INTO t VALUES (1, 1, 2.0); ALTER TABLE t ADD COLUMN w`);
    const content = await contentOf(source.writer);
    source.writer.close();
    using file = new Sqlite(source.path, { readonly: true });
    const connection: CdcConnection = file;
    await follow(new CdcTailer(connection, null), follower.replica);
    expect(await contentOf(follower.db)).toEqual(content);
    const copy: Batch = await readCopy(connection, 0);
    using second = new Follower();
    applyBatch(second.replica, copy);
    expect(await contentOf(second.db)).toEqual(content);
    // Both engines give the same mark for the same place.
    expect(copy.mark).toBe(follower.replica.watermark()!.mark);
  });
});

describe("refused at the start", () => {
  test.each([
    ["rows that trigger g writes", `${T}; CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END`],
    [
      "a foreign key of c",
      "CREATE TABLE p (k PRIMARY KEY); CREATE TABLE c (x REFERENCES p ON UPDATE SET NULL)",
    ],
    ["the TEMP table scratch", "CREATE TEMP TABLE scratch (x)"],
    ["columns of t hide its rowid", "CREATE TABLE t (rowid, oid, _rowid_)"],
  ])("%s", async (why, sql) => {
    using source = TursoSource.plain();
    source.writer.exec(sql);
    const refused = enableCdc(source.writer);
    await expect(refused).rejects.toThrow(why);
    source.writer.exec("CREATE TABLE after (x)");
    expect(
      source.writer.prepare("SELECT name FROM sqlite_schema WHERE name = 'turso_cdc'").all(),
    ).toEqual([]);
  });

  test("a log of another version, and capture is off again", async () => {
    using source = await TursoSource.open();
    source.writer.exec(
      "BEGIN IMMEDIATE; DELETE FROM turso_cdc_version; " +
        "INSERT INTO turso_cdc_version VALUES ('turso_cdc', 'v9'); COMMIT",
    );
    await expect(enableCdc(source.writer)).rejects.toThrow("version");
    source.writer.exec(T);
    expect(source.writer.prepare("SELECT count(*) AS n FROM turso_cdc").all()).toMatchObject([
      { n: 0 },
    ]);
  });

  /** The engine as it might be one day, seen through the log of the self-test. */
  function other(db: Turso, change: (rows: LogRow[]) => LogRow[]): CdcConnection {
    return {
      exec: (sql) => db.exec(sql),
      prepare: (sql) => {
        const statement = db.prepare(sql);
        if (!sql.includes("WHERE change_id > CAST")) return statement;
        return { all: (...values) => change(statement.all(...values) as LogRow[]) };
      },
    };
  }

  test.each<[string, (rows: LogRow[]) => LogRow[]]>([
    [
      "ids have gaps",
      (rows) => rows.map((row) => ({ ...row, change_id: `${+row.change_id * 2}` })),
    ],
    [
      "change 4 of a test is missing",
      (rows) => {
        const at = rows.findIndex(
          (row) => row.table_name !== "sqlite_schema" && row.change_type === -1,
        );
        return rows.toSpliced(at, 1).map((row, i) => ({ ...row, change_id: rows[i]!.change_id }));
      },
    ],
    [
      "another image",
      (rows) => rows.map((row) => ({ ...row, after: row.after && rows[0]!.after })),
    ],
    ["without its statement", (rows) => rows.map((row) => ({ ...row, updates: null }))],
  ])("a log that is not as it was: %s", async (why, change) => {
    using source = TursoSource.plain();
    await expect(enableCdc(other(source.writer, change))).rejects.toThrow(why);
    source.writer.exec(T);
    expect(source.writer.prepare("SELECT * FROM turso_cdc").all()).toEqual([]);
  });

  test("foreign keys without actions are fine, and the self-test leaves no trace", async () => {
    using source = await TursoSource.open(
      "CREATE TABLE p (k PRIMARY KEY); CREATE TABLE c (x REFERENCES p)",
    );
    expect(source.writer.prepare("SELECT * FROM turso_cdc").all()).toEqual([]);
    const { log } = await enableCdc(source.open());
    expect(log).toMatch(/^[0-9a-f]{32}$/);
    expect(await enableCdc(source.writer)).toEqual({ log });
  });
});

test("a write that throws is rolled back", async () => {
  using source = await TursoSource.open();
  source.writer.exec(T);
  const failing = writeCdc(source.writer, () => {
    source.writer.exec("INSERT INTO t VALUES (1, 1, 1)");
    throw new Error("no");
  });
  await expect(failing).rejects.toThrow("no");
  await writeCdc(source.writer, () => source.writer.exec("DELETE FROM t WHERE 0"));
  expect(source.writer.prepare("SELECT * FROM t").all()).toEqual([]);
});
