/** What a node takes from its source: each transaction once, in order, whole, whatever comes twice or wrong. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { systemTimers } from "../lib/base/clock.ts";
import { createLogger } from "../lib/base/log.ts";
import { Bridge } from "../lib/bridge.ts";
import type { Batch, CdcChange, CdcValue } from "../lib/cdc/change.ts";
import { StoreFile } from "./support/open-store.ts";
import { Seeded } from "./support/seeded.ts";

const T = "CREATE TABLE t (id TEXT PRIMARY KEY, v, updated_at INTEGER)";

let file: StoreFile;
let bridge: Bridge;
beforeEach(() => {
  file = new StoreFile();
  bridge = open();
});
afterEach(async () => {
  await bridge.stop();
  await file[Symbol.asyncDispose]();
});

function open(): Bridge {
  const store = file.open({ makesDefaultTable: false });
  return new Bridge({
    source: { kind: "file", path: "unused" },
    isNew: false,
    store,
    path: file.path,
    ownMesh: () => ({ dbIds: new Set(), urls: new Set() }),
    log: createLogger({ level: "error", format: "text", clock: file.clock, write: () => {} }),
    clock: file.clock,
    timers: systemTimers,
    random: new Seeded(1),
  });
}

/** As after a kill: what was not committed is gone, and so is all that was in memory. */
async function reopen(): Promise<void> {
  await bridge.stop();
  await file.close();
  bridge = open();
}

const put = (rowid: bigint, id: string, v: CdcValue): Extract<CdcChange, { kind: "put" }> => {
  return { kind: "put", table: "t", rowid, values: [id, v, 1n] };
};
const remove = (rowid: bigint): CdcChange => ({ kind: "remove", table: "t", rowid, key: [] });
const schema = (sql: string): CdcChange => ({ kind: "schema", sql });

function batch(after: bigint, commit: bigint, changes: CdcChange[], more: Partial<Batch> = {}) {
  const kind = after === 0n ? ("copy" as const) : ("transaction" as const);
  const common = { log: "L", mark: `m${commit}`, timeMs: 1, schema: null, close: () => {} };
  return { kind, after, commit, changes, ...common, ...more };
}

const copy = (commit = 5n) => batch(0n, commit, [schema(T), put(1n, "a", 1n), put(2n, "b", 1n)]);

function rows(): unknown[] {
  return file.rows<{ id: string; v: unknown }>("SELECT id, v FROM t ORDER BY id").map((row) => {
    return [row.id, row.v];
  });
}

async function failureOf(each: Batch): Promise<string> {
  try {
    return await bridge.apply(each);
  } catch (error) {
    return (error as { code?: string }).code ?? String(error);
  }
}

test("a transaction comes once, however often it is delivered and wherever the node was ended", async () => {
  await bridge.apply(copy());
  const first = batch(5n, 7n, [put(1n, "a", 2n), put(3n, "c", 1n)]);
  expect(await bridge.apply(first)).toBe("applied");
  expect(await bridge.apply(first)).toBe("already-applied");
  await reopen();
  expect(bridge.watermark()).toEqual({ log: "L", commit: 7n, mark: "m7" });
  // Edited in the mesh meanwhile: taken once more it would be lost.
  file.write("UPDATE t SET v = 'mesh', updated_at = 9 WHERE id = 'a'");
  expect(await bridge.apply(first)).toBe("already-applied");
  expect(await bridge.apply(batch(7n, 8n, [remove(2n)]))).toBe("applied");
  expect(rows()).toEqual([
    ["a", "mesh"],
    ["c", 1],
  ]);
});

describe("what does not follow is an error and changes nothing", () => {
  test.each<[string, Batch]>([
    ["out-of-order", batch(6n, 9n, [remove(1n)])],
    ["out-of-order", batch(4n, 9n, [remove(1n)])],
    ["other-log", batch(5n, 9n, [remove(1n)], { log: "M" })],
    ["log-rewound", batch(4n, 5n, [remove(1n)], { mark: "another" })],
    ["schema-differs", batch(5n, 9n, [remove(1n)], { schema: "another" })],
    ["diverged", batch(5n, 9n, [remove(1n), { ...put(1n, "x", 1n), table: "none" }])],
    ["diverged", batch(5n, 9n, [remove(1n), { ...put(1n, "x", 1n), values: [1n] } as CdcChange])],
    ["statement-refused", batch(5n, 9n, [remove(1n), schema("DELETE FROM t")])],
    ["statement-refused", batch(5n, 9n, [remove(1n), schema("CREATE TABLE u AS SELECT 1")])],
  ])("%s", async (code, wrong) => {
    await bridge.apply(copy());
    const before = file.entries().length;
    expect(await failureOf(wrong)).toBe(code);
    expect(rows()).toEqual([
      ["a", 1],
      ["b", 1],
    ]);
    expect(file.entries().length).toBe(before);
    // And goes on as if it had not come.
    expect(await bridge.apply(batch(5n, 7n, [remove(1n), put(9n, "b", 2n)]))).toBe("applied");
    expect(rows()).toEqual([["b", 2]]);
  });
});

test("a copy that was not finished is begun again, and nothing is taken before", async () => {
  await bridge.apply(copy());
  const torn = batch(0n, 20n, [], { log: "M" });
  const many = Array.from({ length: 700 }, (_, n) => put(BigInt(n), `n${n}`, 1n));
  function* changes(): Generator<CdcChange> {
    yield schema(T);
    yield* many;
  }
  let rounds = 0;
  const once = {
    *[Symbol.iterator]() {
      const isSecond = ++rounds === 2;
      let count = 0;
      for (const change of changes()) {
        if (isSecond && ++count > 600) throw new Error("cut");
        yield change;
      }
    },
  };
  await expect(bridge.apply({ ...torn, changes: once })).rejects.toThrow("cut");
  await reopen();
  expect(bridge.watermark()).toBeNull();
  expect(await failureOf(batch(5n, 7n, [remove(1n)]))).toBe("out-of-order");
  await bridge.apply({ ...torn, changes: [...changes()] });
  expect(file.rows("SELECT count(*) AS n, total(v) AS v FROM t")).toEqual([{ n: 700, v: 700 }]);
  // The rows of before went with it, and the file knows the new ones by their rowids.
  await bridge.apply(batch(20n, 21n, [remove(3n)], { log: "M" }));
  expect(file.rows("SELECT id FROM t WHERE id IN ('a', 'n3', 'n4')")).toEqual([{ id: "n4" }]);
});

test("a table that the source made anew keeps what the mesh made of rows that are the same", async () => {
  await bridge.apply(copy());
  file.write("UPDATE t SET v = 'mesh', updated_at = 9 WHERE id = 'a'");
  await file.settle();
  const before = file.entries().at(-1)!.change_id;
  const anew = [schema("DROP TABLE t"), schema(T), put(7n, "a", 1n), put(8n, "c", 1n)];
  await bridge.apply(batch(5n, 9n, anew));
  expect(rows()).toEqual([
    ["a", "mesh"],
    ["c", 1],
  ]);
  expect(file.log(before).toSorted()).toEqual(["DELETE b", "INSERT c"]);
  await bridge.apply(batch(9n, 11n, [remove(7n)]));
  expect(rows()).toEqual([["c", 1]]);
});

test("a dropped table takes its rows along, and comes back under the same name with another shape", async () => {
  await bridge.apply(copy());
  await bridge.apply(batch(5n, 7n, [schema("DROP TABLE t")]));
  expect(rows()).toEqual([]);
  const other = "CREATE TABLE t (w, id TEXT PRIMARY KEY)";
  const change: CdcChange = { kind: "put", table: "t", rowid: 1n, values: ["w", "z"] };
  await bridge.apply(batch(7n, 9n, [schema(other), change]));
  expect(file.rows("SELECT id, v, w FROM t")).toEqual([{ id: "z", v: null, w: "w" }]);
});

test("a column that comes in the middle of a transaction stands for the values after it", async () => {
  await bridge.apply(copy());
  const wide: CdcChange = { kind: "put", table: "t", rowid: 2n, values: ["b", 2n, 2n, "new"] };
  const add = schema("ALTER TABLE t ADD COLUMN w");
  await bridge.apply(batch(5n, 9n, [put(1n, "a", 5n), add, wide]));
  expect(file.rows("SELECT id, v, w FROM t ORDER BY id")).toEqual([
    { id: "a", v: 5, w: null },
    { id: "b", v: 2, w: "new" },
  ]);
  await reopen();
  await bridge.apply(batch(9n, 10n, [{ ...wide, values: ["b", 3n, 3n, "newer"] } as CdcChange]));
  expect(file.rows("SELECT v, w FROM t WHERE id = 'b'")).toEqual([{ v: 3, w: "newer" }]);
});

test("foreign keys of the source with an action do nothing a second time", async () => {
  const child = `CREATE TABLE c (id TEXT PRIMARY KEY, t TEXT REFERENCES t(id) ON DELETE CASCADE, updated_at INTEGER)`;
  const kid: CdcChange = { kind: "put", table: "c", rowid: 1n, values: ["k", "a", 1n] };
  await bridge.apply(
    batch(0n, 5n, [schema(T), schema(child), put(1n, "a", 1n), put(2n, "b", 1n), kid]),
  );
  await bridge.apply(batch(5n, 9n, [remove(1n), schema("ALTER TABLE c ADD COLUMN x")]));
  expect(file.rows("SELECT id FROM c")).toEqual([{ id: "k" }]);
  expect(rows()).toEqual([["b", 1]]);
});
