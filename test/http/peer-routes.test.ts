/** Calls that change the mesh: what they take, from whom, and that a refused one changes nothing. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { AppFixture } from "../support/app-fixture.ts";

const TOKEN = "0123456789abcdefgh";
const B = "http://b:9002";
const IN_PATH = `/peers/${encodeURIComponent(B)}`;

let app: AppFixture;
beforeEach(() => {
  app = new AppFixture();
});
afterEach(() => app.store.close());

const CALLS: readonly (readonly [string, string, object | undefined, string, number])[] = [
  ["POST", "/peers", { url: `${B}/` }, `add ${B}`, 201],
  ["POST", "/peers/backfill", { peer: B }, `fill ${B}`, 202],
  ["DELETE", IN_PATH, undefined, `remove ${B}`, 200],
];

describe.each(CALLS)("%s %s", (method, path, body, done, status) => {
  test("from this machine", async () => {
    expect((await app.call(method, path, body)).status).toBe(status);
    expect(app.membershipCalls).toEqual([done]);
  });

  test("not from elsewhere, and not for a stranger behind a proxy on this machine", async () => {
    const forwarded = await app.call(method, path, body, { "x-forwarded-for": "10.0.0.1" });
    app.remoteAddress = "10.0.0.1";
    const remote = await app.call(method, path, body);
    app.adminToken = TOKEN;
    const wrong = await app.call(method, path, body, { authorization: "Bearer x" });
    expect([forwarded.status, remote.status, wrong.status]).toEqual([403, 403, 403]);
    expect(remote.json.error).toContain("--admin-token");
    expect(app.membershipCalls).toEqual([]);
  });

  test("from anywhere with the token", async () => {
    app.remoteAddress = "10.0.0.1";
    app.adminToken = TOKEN;
    const headers = { authorization: `Bearer ${TOKEN}`, forwarded: "for=10.0.0.1" };
    expect((await app.call(method, path, body, headers)).status).toBe(status);
    expect(app.membershipCalls).toEqual([done]);
  });
});

describe.each(CALLS.filter(([method]) => method === "POST"))("%s %s", (method, path, body) => {
  test.each([
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain; charset=utf-8, application/json",
  ])("not as %s, which a web page may send without asking", async (type) => {
    const answer = await app.call(method, path, JSON.stringify(body), { "content-type": type });
    expect([answer.status, app.membershipCalls]).toEqual([415, []]);
  });

  test("not without a kind, nor as something else than one address", async () => {
    const bare = await app.app.request(path, {
      method,
      body: new TextEncoder().encode(JSON.stringify(body)),
    });
    expect(bare.status).toBe(415);
    for (const wrong of [{}, [], null, 5, { url: 5, peer: 5 }, { url: "x", peer: "ftp://x" }])
      expect((await app.call(method, path, wrong)).status).toBe(400);
    expect(app.membershipCalls).toEqual([]);
  });
});

test("who the peers are may be asked by anybody; nothing is changed by asking", async () => {
  app.remoteAddress = "10.0.0.1";
  const { status, json } = await app.call("GET", "/peers");
  expect([status, json]).toEqual([200, { url: null, peers: [] }]);
  for (const path of ["/peers/backfill", IN_PATH])
    expect((await app.call("GET", path)).status).toBe(405);
  expect(app.membershipCalls).toEqual([]);
});
