/** The ends of our own transactions in a plain file's log, between those of programs that put none. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CdcConnection } from "../../lib/cdc/connection.ts";
import { readLogEnd } from "../../lib/cdc/index.ts";
import { SqliteCapture } from "../../lib/cdc/sqlite-capture.ts";
import { SqliteCommits } from "../../lib/cdc/sqlite-commits.ts";
import { CdcTailer } from "../../lib/cdc/tailer.ts";
import { drain } from "./support/turso-source.ts";

/** An engine is loaded, and files are written, while others work as well. */
setDefaultTimeout(60_000);

let folder = "";
let node: Database;
let other: Database;
let reader: Database;
let capture: SqliteCapture;
let commits: SqliteCommits;
let tailer: CdcTailer;
beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), "cdc-commits-"));
  [node, other, reader] = [open(), open(), open()];
  node.run("CREATE TABLE t (k INTEGER PRIMARY KEY, v)");
  capture = SqliteCapture.open(node);
  commits = new SqliteCommits(node);
  tailer = new CdcTailer(reader, await readLogEnd(reader));
});
afterEach(() => {
  for (const db of [node, other, reader]) db.close();
  rmSync(folder, { recursive: true, force: true });
});

function open(): Database {
  const db = new Database(join(folder, "source.db"));
  db.run("PRAGMA journal_mode = WAL");
  db.run("PRAGMA synchronous = OFF");
  return db;
}

/** A transaction as the node's queue makes it. */
function transact(sql: string): void {
  node.run("BEGIN IMMEDIATE");
  commits.end();
  node.run(sql);
  commits.end();
  node.run("COMMIT");
}

const kinds = () => node.query("SELECT change_type FROM _cdc ORDER BY change_id").values().flat();

/** The keys of the rows of each batch. */
async function batches(): Promise<unknown[][]> {
  return (await drain(tailer)).map(({ changes }) =>
    [...changes].map((change) => ("rowid" in change ? Number(change.rowid) : change.kind)),
  );
}

test("each of our transactions has one, and comes by itself", async () => {
  transact("INSERT INTO t VALUES (1, 'a'), (2, 'b')");
  transact("UPDATE t SET v = 'c' WHERE k = 2");
  expect(kinds()).toEqual([1, 1, 2, 0, 2]);
  expect(await batches()).toEqual([[1, 2], [2]]);
});

test("one that changed nothing has none", async () => {
  transact("DELETE FROM t");
  transact("SELECT 1");
  expect(kinds()).toEqual([]);
  expect(await batches()).toEqual([]);
});

test("what others wrote between ends where ours begins, or where a snapshot ends", async () => {
  other.run("INSERT INTO t VALUES (1, 'theirs')");
  other.run("INSERT INTO t VALUES (2, 'theirs')");
  transact("INSERT INTO t VALUES (3, 'ours')");
  other.run("INSERT INTO t VALUES (4, 'theirs')");
  expect(await batches()).toEqual([[1, 2], [3], [4]]);
  transact("INSERT INTO t VALUES (5, 'ours')");
  expect(await batches()).toEqual([[5]]);
  expect(kinds()).toEqual([1, 1, 2, 1, 2, 1, 2, 1, 2]);
});

test("none is written between a schema that others altered and its place in the log", async () => {
  transact("INSERT INTO t VALUES (1, 'a')");
  other.run("ALTER TABLE t ADD COLUMN w");
  transact("INSERT INTO t VALUES (2, 'b', 'c')");
  expect(await batches()).toEqual([]);
  capture.settle();
  expect(kinds()).toEqual([1, 2, 1, 0, 1, 2]);
  expect(await batches()).toEqual([[1], [2, "schema", 2]]);
});

test("the digest of a schema travels with what was written under it only", async () => {
  transact("INSERT INTO t VALUES (1, 'a')");
  other.run("ALTER TABLE t ADD COLUMN w");
  capture.settle();
  transact("INSERT INTO t VALUES (2, 'b', 'c')");
  const [before, altered, after] = await drain(tailer);
  expect(before!.schema).toBeNull();
  expect(altered!.schema).toBe(after!.schema!);
});

test("what came while a long log was read waits for its own snapshot", async () => {
  for (let k = 1; k <= 400; k++) other.run("INSERT INTO t VALUES (?, 'theirs')", [k]);
  let pages = 0;
  const between: CdcConnection = {
    prepare: (sql) => reader.query(sql),
    exec: (sql) => {
      if (sql === "BEGIN" && ++pages === 2) {
        other.run("ALTER TABLE t ADD COLUMN w");
        capture.settle();
        transact("INSERT INTO t VALUES (500, 'b', 'c')");
      }
      reader.exec(sql);
    },
  };
  const end = { log: (await readLogEnd(reader)).log, commit: 0n, mark: "" };
  const [first, altered, ours] = await drain(new CdcTailer(between, end));
  expect([...first!.changes].length).toBe(400);
  expect([...altered!.changes][0]!.kind).toBe("schema");
  expect([...ours!.changes].length).toBe(1);
  expect(ours!.schema).toBe(altered!.schema!);
  expect(ours!.schema).not.toBe(first!.schema!);
});

test("a transaction that was rolled back leaves none", () => {
  node.run("BEGIN IMMEDIATE");
  node.run("INSERT INTO t VALUES (1, 'a')");
  commits.end();
  node.run("ROLLBACK");
  expect(kinds()).toEqual([]);
});

test("no write fails where somebody took the log away", () => {
  SqliteCapture.remove(other);
  transact("INSERT INTO t VALUES (1, 'a')");
  expect(node.query("SELECT count(*) FROM t").values()).toEqual([[1]]);
});

test("nor where what is left of it are the triggers that would log the write", () => {
  other.run("DROP TABLE _cdc");
  transact("INSERT INTO t VALUES (1, 'a')");
  expect(node.query("SELECT count(*) FROM t").values()).toEqual([[1]]);
  reader.run("INSERT INTO t VALUES (2, 'b')");
});
