import { afterEach, expect, test } from "bun:test";
import { HookSyncError, RequestError } from "../../lib/base/errors.ts";
import { answerStarting } from "../../lib/http/app.ts";
import type { PeerStatus } from "../../lib/shipper/messages.ts";
import { AppFixture, BODY_BYTES_MAX, readAnswer } from "../support/app-fixture.ts";

const opened: AppFixture[] = [];

function open(schema?: string): AppFixture {
  const fixture = new AppFixture(schema);
  opened.push(fixture);
  return fixture;
}

afterEach(() => {
  for (const fixture of opened.splice(0)) fixture.store.close();
});

test("POST /sync hands over the bytes and the headers, and answers with the identity", async () => {
  const fixture = open();
  fixture.onSync = () => ({
    applied: 3,
    ack: 42,
    identity: { db: "abcdef0123456789", last: { batchId: 41, hash: "9c" } },
  });
  const answer = await fixture.call("POST", "/sync", '{"batch_id":42,"changes":[]}', {
    "X-Node-Id": "peer",
    "X-Node-Url": "http://peer:9001",
    "X-Hook-Sync": "v=1; db=0123456789abcdef; prev=41; rest=0",
  });
  expect([answer.status, answer.text]).toEqual([200, '{"applied":3,"ack":42}']);
  expect(answer.headers.get("x-hook-sync")).toBe("v=1; db=abcdef0123456789; last=41.9c");
  const [request] = fixture.received;
  expect(new TextDecoder().decode(request!.body)).toBe('{"batch_id":42,"changes":[]}');
  expect(request).toMatchObject({
    nodeId: "peer",
    nodeUrl: "http://peer:9001",
    identity: { db: "0123456789abcdef", prev: 41, rest: 0 },
  });
});

test("a foreign sender has no identity", async () => {
  const fixture = open();
  await fixture.call("POST", "/sync", "{}");
  expect(fixture.received[0]).toMatchObject({
    nodeId: undefined,
    nodeUrl: undefined,
    identity: undefined,
  });
});

const busy = Object.assign(new Error("database is locked"), { code: "SQLITE_BUSY" });
const full = Object.assign(new Error("full"), { code: "SQLITE_FULL" });
const failed = new HookSyncError("store-failed", "the file cannot be used", "");

test.each([
  [400, "batch_id is missing", "not reported", new RequestError(400, "batch_id is missing")],
  [507, "too much is parked", "reported", new RequestError(507, "too much is parked")],
  [503, "busy now", "not reported", new HookSyncError("busy", "busy now", "")],
  [507, "the disk is full", "reported", new HookSyncError("disk-full", "the disk is full", "")],
  [500, "the file cannot be used", "reported", failed],
  [500, "internal error", "reported", new HookSyncError("file-missing-folder", "/secret", "")],
  [500, "internal error", "reported", new Error("SELECT secret FROM /home")],
  [503, "another program holds the database locked", "not reported", busy],
  [507, "the disk is full: full", "reported", full],
] as const)("a failure becomes %d %s and is %s", async (status, message, isReported, error) => {
  const fixture = open();
  fixture.onSync = () => {
    throw error;
  };
  const answer = await fixture.call("POST", "/sync", "{}");
  expect([answer.status, answer.json]).toEqual([status, { error: message }]);
  expect(answer.headers.get("retry-after")).toBe(status === 503 ? "1" : null);
  expect(fixture.reported).toEqual(isReported === "reported" ? [error] : []);
});

test.each([
  ["GET", "/sync", "POST"],
  ["OPTIONS", "/sync", "POST"],
  ["DELETE", "/health", "GET, HEAD"],
  ["POST", "/health/ready", "GET, HEAD"],
  ["POST", "/", "GET, HEAD"],
  ["PUT", "/openapi.json", "GET, HEAD"],
  ["POST", "/api/items/x", "GET, HEAD, PUT, PATCH, DELETE"],
  ["DELETE", "/api/items", "POST, GET, HEAD"],
  ["OPTIONS", "/api/items/batch", "POST, GET, HEAD, PUT, PATCH, DELETE"],
])("%s %s is a 405 that allows %s", async (method, path, allow) => {
  const answer = await open().call(method, path);
  expect([answer.status, answer.headers.get("allow"), typeof answer.json.error]).toEqual([
    405,
    allow,
    "string",
  ]);
});

test.each([
  "/nope",
  "//sync",
  "/api",
  "/api/",
  "/openapiXjson",
  "/sync/x",
  "/health/readyx",
  "/api/items/x/y",
])("GET %s is a 404 with a JSON error", async (path) => {
  const fixture = open();
  const response = await readAnswer(await fixture.app.fetch(new Request(`http://node${path}`)));
  expect([response.status, response.headers.get("content-type")]).toEqual([
    404,
    "application/json",
  ]);
  expect(typeof response.json.error).toBe("string");
});

test("one trailing slash means the same as none", async () => {
  const fixture = open();
  expect((await fixture.call("GET", "/health/")).json.node_id).toBe("node-a");
  expect((await fixture.call("POST", "/sync/", "{}")).status).toBe(200);
  expect((await fixture.call("POST", "/api/items/", {})).status).toBe(201);
  expect((await fixture.call("GET", "/api/items/?limit=5")).json.length).toBe(1);
});

test("HEAD answers like GET, without a body", async () => {
  const fixture = open();
  for (const [path, status] of [
    ["/health", 200],
    ["/api/items", 200],
    ["/api/items/none", 404],
    ["/nope", 404],
  ] as const) {
    const answer = await fixture.call("HEAD", path);
    expect([path, answer.status, answer.text]).toEqual([path, status, ""]);
  }
});

test("the root points to the rest", async () => {
  expect((await open().call("GET", "/")).json).toEqual({
    name: "hook-sync",
    version: "1.2.3",
    openapi: "/openapi.json",
    health: "/health",
  });
});

test.each([
  ["application/x-www-form-urlencoded", 415],
  ["text/plain", 415],
  ["application/json; charset=latin1", 415],
  ["application/jsonp", 415],
  ["application/json; charset=utf-8", 201],
  ['Application/JSON;charset="UTF-8"', 201],
  ["application/json; profile=x", 201],
])("a body of %s is a %d", async (type, status) => {
  const fixture = open();
  const answer = await fixture.call("POST", "/api/items", "{}", { "content-type": type });
  expect(answer.status).toBe(status);
  if (status === 415) expect(answer.json.error).toContain("Content-Type: application/json");
});

test("a body without a type, or a compressed one, is a 415 on every route that takes one", async () => {
  const fixture = open();
  for (const [method, path] of [
    ["POST", "/sync"],
    ["POST", "/api/items"],
    ["POST", "/api/items/batch"],
    ["PUT", "/api/items/x"],
    ["PATCH", "/api/items/x"],
  ] as const) {
    const untyped = await fixture.app.request(path, { method, body: new Blob(["{}"]) });
    expect([path, untyped.status]).toEqual([path, 415]);
    const gzip = await fixture.call(method, path, Bun.gzipSync("{}"), {
      "content-encoding": "gzip",
    });
    expect([path, gzip.status, gzip.headers.get("accept-encoding")]).toEqual([
      path,
      415,
      "identity",
    ]);
  }
  expect(fixture.received).toEqual([]);
});

test("a body above the limit is a 413, whether it says so or not", async () => {
  const fixture = open();
  const large = `"${"x".repeat(BODY_BYTES_MAX)}"`;
  for (const path of ["/sync", "/api/items"]) {
    const said = await fixture.call("POST", path, "{}", {
      "content-length": String(BODY_BYTES_MAX + 1),
    });
    expect([path, said.status, typeof said.json.error]).toEqual([path, 413, "string"]);
    expect((await fixture.call("POST", path, large)).status).toBe(413);
  }
  expect(fixture.received).toEqual([]);
});

test("health has every member that existing nodes have, and ours", async () => {
  const fixture = open();
  const peer: PeerStatus = {
    url: "http://b:9002",
    state: "waiting",
    nodeId: "b",
    make: "ours",
    dbId: "00",
    lastAcked: 7,
    pending: 3,
    lastError: "refused",
    lastContactMs: 5,
    clockOffsetMs: -1_000,
  };
  const unknown: PeerStatus = {
    url: "http://c:9002",
    state: "idle",
    nodeId: undefined,
    make: undefined,
    dbId: undefined,
    lastAcked: 0,
    pending: 0,
    lastError: undefined,
    lastContactMs: undefined,
    clockOffsetMs: undefined,
  };
  fixture.report = {
    ...fixture.report,
    itemCount: 5,
    pendingChanges: 3,
    deadLetter: 2,
    parked: 1,
    peers: [peer, unknown],
    tables: { synced: ["items"], notSynced: [{ name: "n", reason: "no id", remedy: "ALTER" }] },
    warnings: ["look"],
    lastChangeId: 8,
    newestChangeId: 9,
    verified: {
      atMs: 6,
      neighbours: 2,
      differing: 4,
      repaired: 3,
      repairedInAll: 5,
      notCompared: ["items.name is only on a"],
    },
    fills: [{ url: "http://c:9002", reason: "it is new", entries: 9 }],
  };
  const answer = await fixture.call("GET", "/health");
  expect(answer.headers.get("x-hook-sync")).toBe("v=1; db=0123456789abcdef");
  expect(answer.json).toEqual({
    ok: true,
    node_id: "node-a",
    version: "1.2.3",
    item_count: 5,
    pending_changes: 3,
    last_change_id: 8,
    newest_change_id: 9,
    dead_letter: 2,
    parked: 1,
    peers: [
      {
        url: "http://b:9002",
        peer_url: "http://b:9002",
        node_id: "b",
        make: "ours",
        state: "waiting",
        last_acked: 7,
        pending: 3,
        last_error: "refused",
        last_contact: 5,
        clock_offset_ms: -1_000,
        filling: null,
      },
      {
        url: "http://c:9002",
        peer_url: "http://c:9002",
        node_id: null,
        make: null,
        state: "idle",
        last_acked: 0,
        pending: 0,
        last_error: null,
        last_contact: null,
        clock_offset_ms: null,
        filling: { reason: "it is new", changes: 9 },
      },
    ],
    tables: { synced: ["items"], not_synced: [{ name: "n", reason: "no id", remedy: "ALTER" }] },
    verified: {
      at: 6,
      neighbours: 2,
      differing: 4,
      repaired: 3,
      repaired_in_all: 5,
      not_compared: ["items.name is only on a"],
    },
    reasons: [],
    warnings: ["look"],
    sqlite_version: "3.54.1",
    uptime_s: 1,
  });
});

test("an unhealthy node still answers /health with 200, and is not ready", async () => {
  const fixture = open();
  expect((await fixture.call("GET", "/health/ready")).status).toBe(200);
  fixture.report = { ...fixture.report, ok: false, reasons: ["the disk is full"] };
  const health = await fixture.call("GET", "/health");
  expect([health.status, health.json.ok]).toEqual([200, false]);
  const ready = await fixture.call("GET", "/health/ready");
  expect([ready.status, ready.json]).toEqual([
    503,
    { ready: false, reasons: ["the disk is full"] },
  ]);
});

test("while the node starts, everything is a 503 with Retry-After", async () => {
  const response = answerStarting();
  expect([response.status, response.headers.get("retry-after"), await response.json()]).toEqual([
    503,
    "1",
    { error: "the node is starting" },
  ]);
});

test("the description follows the tables", async () => {
  const fixture = open();
  const before = (await fixture.call("GET", "/openapi.json")).json;
  expect(Object.keys(before.paths)).toContain("/api/items/{id}");
  fixture.store.db.run("CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER)");
  fixture.store.followSchema();
  const after = (await fixture.call("GET", "/openapi.json")).json;
  expect(Object.keys(after.paths)).toContain("/api/notes");
});
