/** The questions of other nodes, as the HTTP face reads and answers them; what is behind is scripted. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { RequestError } from "../../lib/base/errors.ts";
import type { KeyRange } from "../../lib/protocol/digest.ts";
import type { DigestTable } from "../../lib/store/digest.ts";
import { AppFixture } from "../support/app-fixture.ts";
import { ITEMS_SQL } from "../support/store-fixture.ts";

let app: AppFixture;
let asked: unknown[];

beforeEach(() => {
  app = new AppFixture(
    `${ITEMS_SQL}; CREATE TABLE "My Notes"(id TEXT PRIMARY KEY, Body TEXT, updated_at INTEGER)`,
  );
  asked = [];
});
afterEach(() => app.store.close());

const ITEMS = { table: "items", columns: ["name"], rows: 2, hash: "00000000000000ff" };

describe("GET /sync/digest", () => {
  beforeEach(() => {
    app.digests.read = async (tables: readonly DigestTable[], isSlow: boolean) => {
      asked.push([
        tables.map(({ name, columns }) => [name, columns.map(({ key }) => key)]),
        isSlow,
      ]);
      const found = [{ ...ITEMS, tombstones: 1, tombstoneHash: "0000000000000001" }];
      return { kind: "done", snapshot: "abc", tables: found };
    };
  });

  test("every table, in one answer", async () => {
    const { status, json } = await app.call("GET", "/sync/digest");
    expect(status).toBe(200);
    expect(json).toEqual({
      node_id: "node-a",
      snapshot: "abc",
      tables: [{ ...ITEMS, tombstones: 1, tombstone_hash: "0000000000000001" }],
    });
    const columns = ["created_at", "name", "node_id", "updated_at", "value"];
    expect(asked).toEqual([
      [
        [
          ["items", columns],
          ["My Notes", ["body", "updated_at"]],
        ],
        false,
      ],
    ]);
  });

  test("one table, in any case, by some of its columns, without hurry", async () => {
    const path = "/sync/digest?table=my%20notes&column=updated_at&column=none&pace=low";
    expect((await app.call("GET", path)).status).toBe(200);
    expect(asked).toEqual([[[["My Notes", ["updated_at"]]], true]]);
  });

  test("a table that is not synced is not found", async () => {
    const { status, json } = await app.call("GET", "/sync/digest?table=_changes");
    expect([status, json]).toEqual([404, { error: "no such table is synced here" }]);
  });

  test("a reading that takes long is named, and asked for by its name", async () => {
    app.digests.read = async () => ({ kind: "reading", snapshot: "slow" });
    const first = await app.call("GET", "/sync/digest");
    expect([first.status, first.json]).toEqual([202, { reading: true, snapshot: "slow" }]);
    app.digests.result = async (snapshot: string) => {
      asked.push(snapshot);
      return { kind: "done", snapshot, tables: [] };
    };
    const second = await app.call("GET", "/sync/digest?snapshot=slow");
    expect([second.status, second.json.tables, asked]).toEqual([200, [], ["slow"]]);
  });

  test("a snapshot that is gone: 409, begin again", async () => {
    app.digests.result = async () => {
      throw new RequestError(409, "gone");
    };
    expect((await app.call("GET", "/sync/digest?snapshot=x")).status).toBe(409);
  });
});

describe("GET /sync/digest of ranges", () => {
  const BASE = "/sync/digest?table=items&snapshot=s";

  test("ranges come in pairs, their texts as they are, the ends empty", async () => {
    app.digests.buckets = async (
      snapshot: string,
      key: string,
      ranges: readonly KeyRange[],
      most: number,
    ) => {
      asked.push([snapshot, key, ranges, most]);
      return ranges.map((range) => ({
        ...range,
        isFinest: true,
        buckets: [{ to: range.to, rows: 1, hash: "0000000000000002" }],
      }));
    };
    const from = encodeURIComponent("a&b=ü +%");
    const { json } = await app.call("GET", `${BASE}&buckets=64&from=&to=${from}&from=${from}&to=`);
    const ranges = [
      { from: "", to: "a&b=ü +%" },
      { from: "a&b=ü +%", to: "" },
    ];
    expect(asked).toEqual([["s", "items", ranges, 64]]);
    expect(json.ranges).toEqual(
      ranges.map((range) => ({
        ...range,
        finest: true,
        buckets: [{ to: range.to, rows: 1, hash: "0000000000000002" }],
      })),
    );
  });

  test("keys, with the place where reading ended", async () => {
    const key = { id: "k", version: 1, hash: "0000000000000003", deleted: false };
    app.digests.keysIn = async (_snapshot: string, _key: string, ranges: readonly KeyRange[]) => [
      { ...ranges[0]!, keys: [key], through: "k" },
      { ...ranges[1]!, keys: [], through: undefined },
    ];
    const { json } = await app.call("GET", `${BASE}&keys=true&from=&to=x&from=x&to=`);
    expect(json).toEqual({
      table: "items",
      snapshot: "s",
      rows_read: 1,
      ranges: [
        { from: "", to: "x", keys: [key], through: "k" },
        { from: "x", to: "", keys: [], through: null },
      ],
    });
  });

  test.each([
    ["/sync/digest?table=items&from=&to=", "need the snapshot"],
    [`${BASE}&from=a&to=b&from=c`, "in pairs"],
    [`${BASE}&from=${"a&to=b&from=".repeat(300)}a&to=b`, "at most 256"],
    [`${BASE}&from=a&to=b&buckets=0`, "from 1 to 1024"],
    [`${BASE}&from=a&to=b&buckets=9999`, "from 1 to 1024"],
  ])("%s is refused", async (path, reason) => {
    const { status, json } = await app.call("GET", path);
    expect(status).toBe(400);
    expect(json.error).toContain(reason);
  });
});

describe("POST /sync/keys and /sync/rows", () => {
  test("the state of keys, by the columns asked for", async () => {
    app.digests.keysOf = async (table: DigestTable, ids: readonly string[]) => {
      asked.push([table.columns.map(({ key }) => key), ids]);
      return ids.map((id) => ({ id, version: null, hash: null, deleted: false }));
    };
    const body = { table: "items", ids: ["a", "\u0000"], columns: ["name"] };
    const { json } = await app.call("POST", "/sync/keys", body);
    expect(asked).toEqual([[["name"], ["a", "\u0000"]]]);
    expect(json.keys.map(({ id }: { id: string }) => id)).toEqual(["a", "\u0000"]);
  });

  test("rows go out as they were made, digits and all", async () => {
    const text = '{"batch_id":1,"next":1,"changes":[{"row":{"v":9007199254740993}}]}';
    app.digests.rows = async () => text;
    const answer = await app.call("POST", "/sync/rows", { table: "ITEMS", ids: ["a"] });
    expect(answer.text).toBe(text);
    expect(answer.headers.get("content-type")).toBe("application/json");
  });

  test.each([
    [{ table: "items" }],
    [{ table: "items", ids: [1] }],
    [{ table: "items", ids: [], columns: "name" }],
    [{ table: "items", ids: new Array(10_001).fill("") }],
    [[]],
  ])("%j is refused", async (body) => {
    const { status, json } = await app.call("POST", "/sync/keys", body);
    expect([status, json.error.slice(0, 8)]).toEqual([400, "expected"]);
  });

  test("other methods and other kinds of body are refused", async () => {
    expect((await app.call("POST", "/sync/digest", {})).status).toBe(405);
    expect((await app.call("GET", "/sync/keys")).status).toBe(405);
    const text = await app.call("POST", "/sync/keys", "{}", { "content-type": "text/plain" });
    expect(text.status).toBe(415);
  });
});

describe("GET /snapshot", () => {
  beforeEach(() => {
    app.copies.keepOpen = () => asked.push("kept open");
    app.copies.copy = async () => {
      asked.push("copied");
      return { bytes: 3, stream: new Blob(["abc"]).stream() };
    };
  });

  test("the whole file, to a program on this machine", async () => {
    const { status, text, headers } = await app.call("GET", "/snapshot");
    expect([status, text, headers.get("content-length")]).toEqual([200, "abc", "3"]);
    expect(asked).toEqual(["kept open", "copied"]);
  });

  test("to nobody else, nor through a proxy on this machine, and nothing is copied for it", async () => {
    const forwarded = await app.call("GET", "/snapshot", undefined, {
      "x-forwarded-for": "10.0.0.1",
    });
    app.remoteAddress = "10.0.0.1";
    const remote = await app.call("GET", "/snapshot");
    expect([forwarded.status, remote.status, asked]).toEqual([403, 403, []]);
    expect(remote.json.error).toContain("--admin-token");
  });

  test("to whoever has the token, from anywhere", async () => {
    app.remoteAddress = "10.0.0.1";
    app.adminToken = "0123456789abcdef";
    const with_ = (token: string) =>
      app.call("GET", "/snapshot", undefined, { authorization: `Bearer ${token}` });
    expect((await with_("0123456789abcdee")).status).toBe(403);
    expect((await with_("0123456789abcdef")).status).toBe(200);
  });
});
