import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { isUtf8 } from "node:buffer";
import { BATCH_BYTES_MAX, BATCH_CHANGES_MAX } from "../../lib/protocol/limits.ts";
import { type Batch, isStoreError, LogBatchSource } from "../../lib/shipper/batch.ts";
import type { BatchWindow } from "../../lib/shipper/peer-link.ts";
import { type Change, LogFile, seededRandom } from "./support.ts";

let log: LogFile;
let reader: Database;
let source: LogBatchSource;

beforeEach(() => {
  log = new LogFile();
  reader = new Database(log.path, { readonly: true });
  source = open();
});

afterEach(() => {
  source.close();
  reader.close(true);
  log[Symbol.dispose]();
});

function open(batchChangesMax = BATCH_CHANGES_MAX, batchBytesMax = BATCH_BYTES_MAX) {
  return new LogBatchSource({ db: reader, batchChangesMax, batchBytesMax });
}

function from(after: number, over: Partial<BatchWindow> = {}): BatchWindow {
  return {
    after,
    through: undefined,
    skip: 0,
    changesMax: undefined,
    bytesMax: undefined,
    ...over,
  };
}

function read(window: BatchWindow, settled = Number.MAX_SAFE_INTEGER, of = source): Batch {
  const result = of.read(window, settled);
  if (result.kind !== "batch") throw new Error(result.kind);
  return result.batch;
}

function parsed(batch: Batch): { batch_id: number; changes: Change[] } {
  expect(batch.bytes).toBe(batch.body.length);
  const text = new TextDecoder("utf-8", { fatal: true }).decode(batch.body);
  const body = JSON.parse(text) as { batch_id: number; changes: Change[] };
  expect(body.batch_id).toBe(batch.through);
  expect(body.changes).toHaveLength(batch.count);
  return body;
}

const textOf = (batch: Batch) => new TextDecoder().decode(batch.body);
const values = (batch: Batch) => parsed(batch).changes.map(({ row }) => row?.["value"]);

describe("the body", () => {
  test("is the envelope around the captured texts, character by character", () => {
    const rows = [
      '{"id":"a","n":9007199254740993,"r":1.0,"updated_at":1}',
      '{ "id" : "b" , "photo" : "\\u005cx00ff" }',
      '{"id":"c","updated_at":3}',
    ] as const;
    log.add({ op: "INSERT", id: "a", row: rows[0] });
    log.add({ op: "UPDATE", id: "b", row: rows[1] });
    log.add({ op: "DELETE", id: "c", row: rows[2] });
    expect(textOf(read(from(0)))).toBe(
      `{"batch_id":3,"changes":[{"op":"INSERT","table":"items","row":${rows[0]},"old_id":null},` +
        `{"op":"UPDATE","table":"items","row":${rows[1]},"old_id":null,"blobs":["photo"]},` +
        `{"op":"DELETE","table":"items","row":${rows[2]},"old_id":"c"}]}`,
    );
  });

  test("quotes names and ids, whatever is in them", () => {
    const id = 'a"\\\u0000\u{1f469}\u200d\n';
    log.add({ op: "DELETE", table: `we"ird 'tbl`, id, row: JSON.stringify({ id }) });
    expect(parsed(read(from(0))).changes).toEqual([
      { op: "DELETE", table: `we"ird 'tbl`, row: { id }, old_id: id },
    ]);
  });

  test("an adopted DELETE without its row says null, and no odd entry is left out", () => {
    log.add({ op: "DELETE", id: "gone", row: null });
    log.add({ op: "DELETE", id: null, row: null, table: null });
    log.add({ op: "INSERT", row: '{"id":"x"}' });
    const { changes } = parsed(read(from(0)));
    expect(changes.map(({ row, old_id, table }) => [table, row, old_id])).toEqual([
      ["items", null, "gone"],
      [null as unknown as string, null, null],
      ["items", { id: "x" }, null],
    ]);
  });

  test("a blob as a deleted row's id does not stop the log", () => {
    log.db.run(
      "INSERT INTO _changes(op, table_name, row_id, row_data) VALUES('DELETE', 't', x'00ff', '{}')",
    );
    log.fill(1);
    expect(read(from(0)).count).toBe(2);
  });

  test("holds the changes in order, also over gaps in the ids (B1)", () => {
    const random = seededRandom(7);
    const ids: number[] = [];
    let changeId = 0;
    for (let n = 0; n < 500; n++) {
      changeId += 1 + Math.floor(random.next() ** 8 * 100_000);
      ids.push(log.add({ changeId, row: JSON.stringify({ value: changeId }) }));
    }
    const few = open(30);
    const seen: number[] = [];
    let after = 0;
    for (let batches = 0; seen.length < ids.length && batches < 1_000; batches++) {
      const batch = read(from(after), Number.MAX_SAFE_INTEGER, few);
      expect(batch.count).toBeLessThanOrEqual(30);
      seen.push(...(values(batch) as number[]));
      after = batch.through;
    }
    expect(seen).toEqual(ids);
    few.close();
  });
});

describe("the bounds", () => {
  test("nothing past settledThrough is read, and an empty window is nothing", () => {
    log.fill(10);
    expect(values(read(from(0), 4))).toEqual([1, 2, 3, 4]);
    expect(values(read(from(0, { through: 9 }), 4))).toEqual([1, 2, 3, 4]);
    expect(source.read(from(4), 4)).toEqual({ kind: "nothing" });
    expect(source.read(from(10), 100)).toEqual({ kind: "nothing" });
  });

  test("at most the configured number of changes, at most the window's, and after its skip", () => {
    log.fill(40);
    const few = open(15);
    const all = Number.MAX_SAFE_INTEGER;
    expect(read(from(0), all, few).through).toBe(15);
    expect(read(from(0, { changesMax: 4 }), all, few).through).toBe(4);
    expect(read(from(0, { changesMax: 40 }), all, few).through).toBe(15);
    expect(values(read(from(10, { skip: 5, changesMax: 1 }), all, few))).toEqual([16]);
    expect(values(read(from(10, { through: 13 }), all, few))).toEqual([11, 12, 13]);
    expect(few.read(from(10, { through: 13, skip: 3 }), all)).toEqual({ kind: "nothing" });
    few.close();
  });

  test("a body keeps its size in bytes, not in characters (B2)", () => {
    log.fill(300, "€".repeat(200));
    for (const bytesMax of [800, 5_000, 50_000, 1_000_000]) {
      const batch = read(from(0, { bytesMax }));
      expect(batch.body.length).toBeLessThanOrEqual(bytesMax);
      // It is not cut shorter than it must be.
      const oneMore = read(from(0, { changesMax: batch.count + 1 }));
      if (batch.count < 300) expect(oneMore.body.length).toBeGreaterThan(bytesMax - 64);
    }
  });

  test("long names around short rows count too (B2)", () => {
    const table = '"'.repeat(500);
    for (let n = 0; n < 200; n++) log.add({ table, row: '{"value":1}' });
    const batch = read(from(0, { bytesMax: 100_000 }));
    expect(batch.body.length).toBeLessThanOrEqual(100_000);
    expect(batch.count).toBeGreaterThan(90);
    parsed(batch);
  });

  test("a change longer than the bound goes alone", () => {
    log.fill(2);
    log.fill(1, "x".repeat(9_000));
    log.fill(2);
    const bytesMax = 4_000;
    const counts: number[] = [];
    for (let after = 0; after < 5; ) {
      const batch = read(from(after, { bytesMax }));
      counts.push(batch.count);
      after = batch.through;
    }
    expect(counts).toEqual([2, 1, 2]);
  });

  test("a change that no peer takes is not made into a body", () => {
    log.db.run(
      `INSERT INTO _changes(op, table_name, row_id, row_data)
       VALUES('INSERT', 'items', 'huge', '"' || printf('%.*c', 140000000, 'x') || '"')`,
    );
    log.fill(1);
    const result = source.read(from(0), 10);
    expect(result).toMatchObject({ kind: "oversized", sent: { count: 1, through: 1 } });
    expect(values(read(from(1)))).toEqual([2]);
  });
});

describe("text that is not UTF-8", () => {
  const bytes = (text: string) => Uint8Array.from(text, (character) => character.charCodeAt(0));

  test("travels as hex with its column named; its neighbours stay as they are (B3)", () => {
    const plain = log.add({ row: '{"id":"a","n":9007199254740993}' });
    log.add({ row: bytes('{"id":"b","name":"a\xffb","note":"fine","n":9007199254740993}') });
    const batch = read(from(0));
    expect(isUtf8(batch.body)).toBe(true);
    const { changes } = parsed(batch);
    expect(changes[0]).toEqual({
      op: "INSERT",
      table: "items",
      row: { id: "a", n: 9007199254740992 },
      old_id: null,
    });
    expect(changes[1]?.row).toMatchObject({ id: "b", name: "\\x61ff62", note: "fine" });
    expect(changes[1]?.texts).toEqual(["name"]);
    expect(textOf(batch).match(/9007199254740993/g)).toHaveLength(2);
    expect(batch.through).toBe(plain + 1);
  });

  test("a deleted row's id that is not UTF-8 is spelled too, beside blobs", () => {
    log.add({
      op: "DELETE",
      id: bytes("k\xfe"),
      row: bytes('{"id":"k\xfe","photo":"\\u005cx00"}'),
    });
    expect(parsed(read(from(0))).changes).toEqual([
      {
        op: "DELETE",
        table: "items",
        row: { id: "\\x6bfe", photo: "\\x00" },
        old_id: "\\x6bfe",
        blobs: ["photo"],
        texts: ["id"],
      },
    ]);
  });

  test("hex makes a body longer: the bound holds all the same (B2)", () => {
    for (let n = 0; n < 100; n++) log.add({ row: bytes(`{"name":"${"\xff".repeat(400)}"}`) });
    const batch = read(from(0, { bytesMax: 30_000 }));
    expect(batch.body.length).toBeLessThanOrEqual(30_000);
    expect(batch.count).toBeGreaterThan(10);
    parsed(batch);
  });
});

describe("one body for many", () => {
  test("peers at the same place share one; so does the next attempt", () => {
    log.fill(20);
    expect(read(from(0)).body).toBe(read(from(0)).body);
    expect(read(from(0)).body).not.toBe(read(from(5)).body);
    expect(read(from(0, { bytesMax: 500 })).body).not.toBe(read(from(0)).body);
  });

  test("a body that ended with the log is made anew when there is more", () => {
    log.fill(20);
    const first = read(from(0), 20);
    log.fill(5);
    expect(read(from(0), 20).body).toBe(first.body);
    expect(read(from(0), 25).count).toBe(25);
  });

  test("a full body stays the same when there is more", () => {
    log.fill(20);
    const full = open(10);
    const first = read(from(0), 20, full);
    expect(read(from(0), 30, full).body).toBe(first.body);
    full.close();
  });

  test("bounded by the window, it stays the same batch whatever came later (L5)", () => {
    log.fill(20);
    const first = read(from(0), 20);
    log.fill(5);
    expect(read(from(0, { through: first.through }), 25).through).toBe(20);
  });

  test("forget drops what was made before the log was rewritten", () => {
    log.fill(1);
    read(from(0), 1);
    log.db.run(`UPDATE _changes SET row_data = '{"value":"renamed"}'`);
    expect(values(read(from(0), 1))).toEqual([1]);
    source.forget();
    expect(values(read(from(0), 1))).toEqual(["renamed"]);
  });

  test("only a few are kept", () => {
    log.fill(20);
    const first = read(from(0)).body;
    for (let after = 1; after <= 4; after++) read(from(after));
    expect(read(from(0)).body).not.toBe(first);
  });
});

describe("beside the writer", () => {
  test("counts and ids", () => {
    log.fill(5);
    log.add({ changeId: 100 });
    expect(source.changeIds(3, 200)).toEqual([4, 5, 100]);
    expect(source.count(0, 200, 1_000)).toBe(6);
    expect(source.count(0, 200, 4)).toBe(4);
    expect(source.count(5, 99, 1)).toBe(0);
  });

  test("between two reads the log can be checkpointed, altered and emptied (B4)", () => {
    log.fill(100);
    read(from(0));
    source.count(0, 100, 1_000);
    source.changeIds(0, 100);
    source.read(from(0, { skip: 3, changesMax: 1 }), 100);
    const checkpoint = log.db.query("PRAGMA wal_checkpoint(TRUNCATE)").get();
    expect(checkpoint).toMatchObject({ busy: 0 });
    log.db.run("ALTER TABLE _changes ADD COLUMN extra TEXT");
    expect(values(read(from(90)))).toEqual([91, 92, 93, 94, 95, 96, 97, 98, 99, 100]);
    log.db.run("DELETE FROM _changes");
    source.forget();
    expect(source.read(from(0), 100)).toEqual({ kind: "nothing" });
  });

  test("a log that cannot be read is the file's failure, not ours", () => {
    log.fill(1);
    log.db.run("ALTER TABLE _changes RENAME TO gone");
    let caught: unknown;
    try {
      source.read(from(0), 1);
    } catch (error) {
      caught = error;
    }
    expect(isStoreError(caught)).toBe(true);
    expect(isStoreError(new TypeError("x is not a function"))).toBe(false);
    log.db.run("ALTER TABLE gone RENAME TO _changes");
    expect(values(read(from(0)))).toEqual([1]);
  });
});
