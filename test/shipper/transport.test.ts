import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { Socket } from "node:net";
import { networkInterfaces } from "node:os";
import { formatIdentity, IDENTITY_HEADER, parseIdentity } from "../../lib/protocol/identity.ts";
import {
  FetchTransport,
  forgetProxies,
  judgeReply,
  parseHealth,
  parseRetryAfter,
  type RawReply,
  type SyncRequest,
} from "../../lib/shipper/transport.ts";
import { FakePeer, RawPeer, Watch } from "./support.ts";

const DB = "0123456789abcdef";

/** Some containers have no address of that family. */
const hasIpv6 = Object.values(networkInterfaces()).some((each) =>
  each?.some(({ address }) => address === "::1"),
);
if (!hasIpv6) console.log("not tried over IPv6: this machine has no ::1");

describe("judgeReply", () => {
  const raw = (status: number, text: string | undefined = "", over: Partial<RawReply> = {}) => ({
    status,
    text,
    location: undefined,
    retryAfterMs: 0,
    ...over,
  });

  test.each([
    ["an acknowledgement", "acked", raw(200, '{"applied":3,"ack":42}')],
    ["with members more", "acked", raw(200, '{"ok":true,"applied":0,"ack":42}')],
    ["as 42.0", "acked", raw(200, '{"applied":3,"ack":42.0}')],
    ["another batch's", "mismatched", raw(200, '{"applied":3,"ack":41}')],
    ["a negative one", "mismatched", raw(200, '{"applied":3,"ack":-1}')],
    ["above 2^53", "mismatched", raw(200, '{"applied":3,"ack":9007199254740993}')],
    ["above 2^63", "mismatched", raw(200, '{"applied":3,"ack":99999999999999999999}')],
    ["a fraction", "failed", raw(200, '{"applied":3,"ack":42.5}')],
    ["a text", "failed", raw(200, '{"applied":3,"ack":"42"}')],
    ["null", "failed", raw(200, '{"applied":3,"ack":null}')],
    ["infinite", "failed", raw(200, '{"applied":3,"ack":1e999}')],
    ["missing", "failed", raw(200, '{"applied":3}')],
    ["without applied", "failed", raw(200, '{"ack":42}')],
    ["an empty object", "failed", raw(200, "{}")],
    ["ok", "failed", raw(200, '{"ok":true}')],
    ["an array", "failed", raw(200, '[{"applied":3,"ack":42}]')],
    ["a number", "failed", raw(200, "42")],
    ["JSON's null", "failed", raw(200, "null")],
    ["HTML", "failed", raw(200, "<html>sign in</html>")],
    ["nothing", "failed", raw(200, "")],
    ["a BOM before it", "failed", raw(200, '\ufeff{"applied":3,"ack":42}')],
    ["more than is read", "failed", { ...raw(200), text: undefined }],
    ["201", "failed", raw(201, '{"applied":3,"ack":42}')],
    ["202", "failed", raw(202)],
    ["204", "failed", raw(204)],
    ["301", "failed", raw(301, "", { location: "http://elsewhere/" })],
    ["302", "failed", raw(302)],
    ["304", "failed", raw(304)],
    ["307", "failed", raw(307)],
    ["308", "failed", raw(308)],
    ["400", "refused", raw(400)],
    ["401", "not-admitted", raw(401)],
    ["402", "failed", raw(402)],
    ["403", "not-admitted", raw(403)],
    ["404", "failed", raw(404)],
    ["405", "failed", raw(405)],
    ["408", "failed", raw(408)],
    ["409", "refused", raw(409)],
    ["410", "failed", raw(410)],
    ["413", "too-large", raw(413)],
    ["415", "failed", raw(415)],
    ["421", "failed", raw(421)],
    ["422", "refused", raw(422)],
    ["425", "failed", raw(425)],
    ["429", "failed", raw(429)],
    ["451", "failed", raw(451)],
    ["500", "failed", raw(500)],
    ["502", "failed", raw(502)],
    ["503", "failed", raw(503)],
    ["504", "failed", raw(504)],
    ["507", "failed", raw(507)],
    ["599", "failed", raw(599)],
  ] as const)("%s: %s", (_, kind, reply) => {
    expect(judgeReply(reply, 42).kind).toBe(kind);
  });

  test("an acknowledgement that rounds to no batch of ours never clears one", () => {
    // 2^53 + 1 reads as 2^53; batch ids stay below.
    const reply = raw(200, '{"applied":1,"ack":9007199254740993}');
    expect(judgeReply(reply, Number.MAX_SAFE_INTEGER).kind).toBe("mismatched");
  });

  test("says what the peer said, in one short line", () => {
    const verdict = judgeReply(raw(400, `{"error":\n  "no such column"}${" x".repeat(500)}`), 42);
    expect(verdict).toMatchObject({ kind: "refused" });
    const reason = "reason" in verdict ? verdict.reason : "";
    expect(reason).toStartWith('400: {"error": "no such column"}');
    expect(reason.length).toBeLessThan(220);
  });

  test("names the target of a redirect", () => {
    const verdict = judgeReply(raw(308, "", { location: "https://node2/sync" }), 42);
    expect(verdict).toMatchObject({ reason: expect.stringContaining("https://node2/sync") });
  });

  test("passes on how long to wait", () => {
    const over = { retryAfterMs: 3_000 };
    expect(judgeReply(raw(503, "", over), 42)).toMatchObject({ retryAfterMs: 3_000 });
    expect(judgeReply(raw(429, "", over), 42)).toMatchObject({ retryAfterMs: 3_000 });
    expect(judgeReply(raw(302, "", over), 42)).toMatchObject({ retryAfterMs: 3_000 });
    expect(judgeReply(raw(403, "", over), 42)).toMatchObject({ retryAfterMs: 3_000 });
  });
});

test("Retry-After is seconds or a date, and nothing else", () => {
  const nowMs = Date.parse("2026-01-01T00:00:00Z");
  expect(parseRetryAfter("120", nowMs)).toBe(120_000);
  expect(parseRetryAfter(" 0 ", nowMs)).toBe(0);
  expect(parseRetryAfter("Thu, 01 Jan 2026 00:00:30 GMT", nowMs)).toBe(30_000);
  expect(parseRetryAfter("Wed, 31 Dec 2025 00:00:00 GMT", nowMs)).toBe(0);
  for (const other of [null, "", "soon", "-5", "1e9", "99999999999"]) {
    expect(parseRetryAfter(other, nowMs)).toBe(0);
  }
});

describe("parseHealth", () => {
  const identity = { db: DB };
  const none = { itemCount: undefined, pendingChanges: undefined, hub: false };

  test("reads an existing node's, a hub's and ours", () => {
    const node = '{"ok":true,"node_id":"go1","item_count":7,"pending_changes":2,"peers":[]}';
    expect(parseHealth("u", node, undefined)).toEqual({
      url: "u",
      identity: undefined,
      nodeId: "go1",
      itemCount: 7,
      pendingChanges: 2,
      hub: false,
    });
    const hub = '{"ok":true,"hub":true,"backup_items":3,"pending_forwards":1}';
    expect(parseHealth("u", hub, undefined)).toMatchObject({ hub: true, nodeId: undefined });
    expect(parseHealth("u", '{"node_id":"b"}', identity)).toMatchObject({ identity, nodeId: "b" });
  });

  test("takes nothing on trust", () => {
    const odd = '{"node_id":"x","item_count":"7","pending_changes":-1,"hub":"yes"}';
    expect(parseHealth("u", odd, undefined)).toMatchObject({ ...none, nodeId: "x" });
    for (const text of [
      undefined,
      "",
      "OK",
      "null",
      "[]",
      "{}",
      '{"status":"up"}',
      '{"node_id":5}',
    ]) {
      expect(parseHealth("u", text, undefined)).toBeUndefined();
    }
  });
});

test("forgetProxies drops both spellings and nothing else", () => {
  const environment: Record<string, string | undefined> = {
    HTTP_PROXY: "a",
    https_proxy: "b",
    ALL_PROXY: "c",
    all_proxy: "d",
    NO_PROXY: "e",
    PATH: "f",
  };
  forgetProxies(environment);
  expect(environment).toEqual({ NO_PROXY: "e", PATH: "f" });
});

describe("over real sockets", () => {
  const watch = new Watch();
  let stop: AbortController;
  let close: (() => void | Promise<void>)[];

  beforeEach(() => {
    stop = new AbortController();
    close = [];
  });

  afterEach(async () => {
    stop.abort();
    for (const step of close) await step();
  });

  function transport(requestTimeoutMs = 5_000, nodeUrl: string | undefined = undefined) {
    const nowMs = () => Date.now();
    return new FetchTransport({ nodeId: "node1", nodeUrl, requestTimeoutMs, nowMs });
  }

  function request(peer: string, bytes = 0): SyncRequest {
    const filler = "x".repeat(bytes);
    const text = `{"batch_id":42,"changes":[{"op":"INSERT","row":{"id":"${filler}"}}]}`;
    const identity = { db: DB, prev: 41, rest: 3 };
    return { peer, batchId: 42, body: new TextEncoder().encode(text), identity };
  }

  function fake(): FakePeer {
    const peer = new FakePeer(watch);
    close.push(() => peer.down());
    return peer;
  }

  async function raw(onSocket: (socket: Socket, index: number) => void): Promise<RawPeer> {
    const peer = await RawPeer.open(onSocket);
    close.push(() => peer.close());
    return peer;
  }

  /** A raw peer that says this once it has heard something. */
  const saying = (reply: string, then?: (socket: Socket) => void) =>
    raw((socket) => {
      socket.once("data", () => {
        socket.write(reply);
        then?.(socket);
      });
    });

  test("sends what the contract and DESIGN.md ask, and reads the answer", async () => {
    const peer = fake();
    const identity = formatIdentity({ db: DB, last: { batchId: 41, hash: "ab" } });
    peer.respond = () =>
      Response.json({ applied: 1, ack: 42 }, { headers: { [IDENTITY_HEADER]: identity } });
    const outcome = await transport(5_000, "http://me:9001").send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "acked", applied: 1 });
    expect(outcome.reply?.identity).toEqual({ db: DB, last: { batchId: 41, hash: "ab" } });
    expect(Math.abs(outcome.reply!.serverTimeMs! - Date.now())).toBeLessThan(5_000);
    const { headers } = peer.received[0]!;
    expect(headers.get("content-type")).toBe("application/json");
    expect(headers.get("x-node-id")).toBe("node1");
    expect(headers.get("x-node-url")).toBe("http://me:9001");
    expect(headers.get("accept-encoding")).toBe("identity");
    expect(parseIdentity(headers.get(IDENTITY_HEADER))).toEqual({ db: DB, prev: 41, rest: 3 });
  });

  test("without --url no X-Node-Url is sent", async () => {
    const peer = fake();
    await transport().send(request(peer.url), stop.signal);
    expect(peer.received[0]!.headers.has("x-node-url")).toBe(false);
  });

  test("a redirect is not followed", async () => {
    const target = fake();
    const peer = fake();
    peer.respond = () => Response.redirect(`${target.url}/sync`, 307);
    const outcome = await transport().send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "failed", reason: expect.stringContaining(target.url) });
    expect(target.received).toEqual([]);
  });

  test.each([
    ["127.0.0.1", "http://localhost"],
    ["127.0.0.1", "http://127.0.0.1"],
    ["::1", "http://localhost"],
    ["::1", "http://[::1]"],
  ])("a peer that listens on %s alone is reached as %s", async (hostname, address) => {
    if (hostname === "::1" && !hasIpv6) return; // said below
    const peer = Bun.serve({
      port: 0,
      hostname,
      fetch: () => Response.json({ applied: 1, ack: 42 }),
    });
    close.push(() => peer.stop(true));
    const outcome = await transport().send(request(`${address}:${peer.port}`), stop.signal);
    expect(outcome).toMatchObject({ kind: "acked", applied: 1 });
  });

  test("nobody listens: a connection error, never reached", async () => {
    const peer = fake();
    await peer.down();
    const outcome = await transport().send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "failed", cutOff: false, reply: undefined });
    expect(outcome).toMatchObject({ reason: expect.stringContaining("ECONNREFUSED") });
  });

  test("a name that does not resolve is a connection error", async () => {
    const outcome = await transport().send(request("http://nowhere.invalid"), stop.signal);
    expect(outcome).toMatchObject({ kind: "failed", cutOff: false });
  });

  test("the connection is closed after the body", async () => {
    const peer = await raw((socket) => socket.once("data", () => socket.destroy()));
    const outcome = await transport().send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "failed", cutOff: true });
  });

  test("a reply is cut short", async () => {
    const head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
    const peer = await saying(`${head}{"applied":1`, (socket) => socket.end());
    const outcome = await transport().send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "failed", cutOff: true });
  });

  test("a reply without an end, complete as it looks, is not one", async () => {
    const head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
    const peer = await saying(`${head}{"applied":1,"ack":42}`);
    const outcome = await transport(150).send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "failed", cutOff: true });
  });

  test("no answer within the time-out; the connection is given up", async () => {
    const peer = await raw((socket) => socket.on("close", () => watch.changed()));
    const outcome = await transport(100).send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "failed", cutOff: true });
    expect(outcome).toMatchObject({ reason: expect.stringContaining("100 ms") });
    await watch.until("the socket is closed", () => peer.open === 0);
  });

  test.each([
    ["garbage", "\0\u0001\u0002 not http at all\r\n\r\n"],
    ["another protocol", "SSH-2.0-OpenSSH_9.2\r\n"],
    ["a status that is none", "HTTP/1.1 banana\r\n\r\n"],
  ])("%s is a connection error", async (_, reply) => {
    const peer = await saying(reply);
    const outcome = await transport(200).send(request(peer.url), stop.signal);
    expect(outcome.kind).toBe("failed");
  });

  test("a reply in chunks is read", async () => {
    const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    const peer = await saying(`${head}b\r\n{"applied":\r\n9\r\n1,"ack":4\r\n2\r\n2}\r\n0\r\n\r\n`);
    const outcome = await transport().send(request(peer.url), stop.signal);
    expect(outcome).toMatchObject({ kind: "acked", applied: 1 });
  });

  test("a compressed reply is not inflated: it was not asked for, and may be a bomb", async () => {
    const peer = fake();
    const zipped = Bun.gzipSync('{"applied":1,"ack":42}');
    peer.respond = () => new Response(zipped, { headers: { "Content-Encoding": "gzip" } });
    const outcome = await transport().send(request(peer.url), stop.signal);
    expect(outcome.kind).toBe("failed");
  });

  test("a long reply is not read to its end, told or untold (T2)", async () => {
    const peer = fake();
    let pulled = 0;
    const megabyte = new Uint8Array(1024 * 1024);
    peer.respond = () =>
      new Response(
        new ReadableStream({
          pull(controller) {
            pulled += 1;
            controller.enqueue(megabyte);
            if (pulled === 500) controller.close();
          },
        }),
      );
    const untold = await transport().send(request(peer.url), stop.signal);
    expect(untold).toMatchObject({ kind: "failed", reason: expect.stringContaining("more than") });
    expect(pulled).toBeLessThan(400);
    peer.respond = () => new Response(Buffer.alloc(10 * 1024 * 1024), { status: 400 });
    const told = await transport().send(request(peer.url), stop.signal);
    expect(told).toMatchObject({ kind: "refused", reason: expect.stringContaining("more than") });
  });

  test("a server's own body limit is heard as 413", async () => {
    const small = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      maxRequestBodySize: 64 * 1024,
      fetch: () => Response.json({ applied: 1, ack: 42 }),
    });
    close.push(() => small.stop(true));
    const peer = `http://127.0.0.1:${small.port}`;
    const outcome = await transport().send(request(peer, 4 * 1024 * 1024), stop.signal);
    expect(outcome.kind).toBe("too-large");
  });

  test("a kept connection that the peer has closed costs an attempt, not a batch", async () => {
    const peer = await raw((socket) => {
      socket.on("data", () => {
        const reply = '{"applied":1,"ack":42}';
        socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${reply.length}\r\n\r\n${reply}`);
        // Just after the answer, while the other side puts the connection by for the next request.
        setImmediate(() => socket.destroy());
      });
    });
    const over = transport();
    const kinds = new Set<string>();
    for (let n = 0; n < 60; n++) kinds.add((await over.send(request(peer.url), stop.signal)).kind);
    expect([...kinds].filter((kind) => kind !== "acked" && kind !== "failed")).toEqual([]);
    expect(kinds.has("acked")).toBe(true);
  });

  test("stopping ends a request that waits", async () => {
    const peer = await raw(() => watch.changed());
    const pending = transport(60_000).send(request(peer.url), stop.signal);
    await watch.until("connected", () => peer.connections === 1);
    stop.abort();
    expect((await pending).kind).toBe("failed");
    expect((await transport().send(request(peer.url), stop.signal)).kind).toBe("failed");
  });

  test("one body serves several requests at once", async () => {
    const peers = [fake(), fake(), fake()];
    const shared = request("", 300_000).body;
    const over = transport();
    const outcomes = await Promise.all(
      peers.map(({ url }) => over.send({ ...request(url), body: shared }, stop.signal)),
    );
    expect(outcomes.map(({ kind }) => kind)).toEqual(["acked", "acked", "acked"]);
    expect(new Set(peers.map((peer) => peer.received[0]!.text)).size).toBe(1);
  });

  test("health: read whatever the status, and told from a page that is none", async () => {
    const peer = fake();
    const over = transport();
    peer.health = () => Response.json({ ok: false, node_id: "sick" }, { status: 503 });
    const sick = await over.readHealth(peer.url, stop.signal);
    expect(sick).toMatchObject({ kind: "health", health: { nodeId: "sick", url: peer.url } });
    peer.health = () => new Response("404 page not found\n", { status: 404 });
    expect(await over.readHealth(peer.url, stop.signal)).toMatchObject({ kind: "no-health" });
    // A proxy whose node is away, or one that starts: nobody can tell yet who is there.
    peer.health = () => new Response("bad gateway", { status: 502 });
    expect(await over.readHealth(peer.url, stop.signal)).toMatchObject({ kind: "failed" });
    await peer.down();
    expect(await over.readHealth(peer.url, stop.signal)).toMatchObject({ kind: "failed" });
  });
});
