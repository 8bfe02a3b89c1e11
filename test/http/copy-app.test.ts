/** What a follower answers: rows of any table, for reading. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createCopyApp } from "../../lib/http/copy-app.ts";
import { CopyRows } from "../../lib/store/copy-rows.ts";

let folder = "";
let rows: CopyRows;
let app: (request: Request) => Response;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "copy-app-"));
  const path = join(folder, "copy.db");
  using db = new Database(path);
  db.exec(`
    CREATE TABLE items (id TEXT PRIMARY KEY, v);
    INSERT INTO items VALUES ('a', 9007199254740993), ('b', 1.0), ('c/d', x'00ff');
    CREATE TABLE plain (v, twice AS (v * 2));
    INSERT INTO plain (rowid, v) VALUES (5, 1), (-9, 2), (7, 3);
    CREATE TABLE keyed (k PRIMARY KEY, v) WITHOUT ROWID;
    INSERT INTO keyed VALUES ('x', 1), ('y', 2), ('z', 3);
    CREATE TABLE _cdc_watermark (log)`);
  rows = new CopyRows(path);
  app = createCopyApp({ rows, health: () => ({ ok: true, state: "following" }) });
});
afterEach(() => {
  rows.close();
  rmSync(folder, { recursive: true, force: true });
});

const get = (path: string, method = "GET") => app(new Request(`http://copy${path}`, { method }));

test("values have the form they have in a node's answers, the newest row first", async () => {
  expect(await get("/api/items").text()).toBe(
    '[{"id":"c/d","v":"\\u005cx00ff"},{"id":"b","v":1.0},{"id":"a","v":9007199254740993}]',
  );
  expect(await get("/api/ITEMS/a").text()).toBe('{"id":"a","v":9007199254740993}');
  expect(await get("/api/items/c%2Fd").json()).toMatchObject({ id: "c/d" });
  expect(await get("/health").json()).toEqual({ ok: true, state: "following" });
});

describe("pages", () => {
  test.each([
    ["items", ["c/d", "b", "a"], "id"],
    ["plain", [3, 1, 2], "v"],
    ["keyed", [1, 2, 3], "v"],
  ])("of %s come one after the other, whole", async (table, expected, column) => {
    const seen: unknown[] = [];
    let after = "";
    for (let page = 0; page < 4; page++) {
      const answer = get(`/api/${table}?limit=1${after}`);
      const list = (await answer.json()) as Record<string, unknown>[];
      seen.push(...list.map((row) => row[column]));
      const next = answer.headers.get("x-next-cursor");
      if (next === null) break;
      after = `&after=${next}`;
    }
    expect(seen).toEqual(expected);
  });
});

test("a table without an id is asked by rowid, and generated columns are there", async () => {
  expect(await get("/api/plain/-9").json()).toEqual({ v: 2, twice: 4 });
});

test.each([
  ["/api/none", "GET", 404],
  ["/api/none/x", "GET", 404],
  ["/api/items/none", "GET", 404],
  ["/api/keyed/x", "GET", 404],
  ["/api/_cdc_watermark", "GET", 404],
  ["/api", "GET", 404],
  ["/api/items/a/b", "GET", 404],
  ["/", "GET", 404],
  ["/api/items", "POST", 405],
  ["/api/items/a", "DELETE", 405],
  ["/api/items?limit=0", "GET", 400],
  ["/api/items?limit=1001", "GET", 400],
  ["/api/items?after=x", "GET", 400],
  ["/api/%ff", "GET", 400],
])("%s by %s is %d", async (path, method, status) => {
  const answer = get(path, method);
  expect([answer.status, typeof ((await answer.json()) as { error: unknown }).error]).toEqual([
    status,
    "string",
  ]);
});
