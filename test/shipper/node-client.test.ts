/** What is made of the answers of whatever is at an address. */
import { afterAll, expect, test } from "bun:test";
import {
  answered,
  callNode,
  complaint,
  listedPeers,
  streamFrom,
} from "../../lib/shipper/node-client.ts";

let reply: () => Response = () => new Response();
const server = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => reply() });
const node = `http://127.0.0.1:${server.port}`;

afterAll(() => server.stop(true));

const page = () => new Response("<html>login</html>", { headers: { "content-type": "text/html" } });

/** Texts that a portal, a proxy or another program may answer 200 with. */
const NOT_OURS = [
  "<html>login</html>",
  "",
  "null",
  "5",
  "[]",
  "{}",
  '{"peers":5}',
  '{"peers":[null]}',
  '{"peers":[{"url":5}]}',
];

test.each(NOT_OURS)("a 200 with %p lists no peers and says that it is no node", async (text) => {
  reply = () => new Response(text);
  const answer = await callNode({ node, method: "GET", path: "/peers" });
  expect(listedPeers(answer)).toBeUndefined();
  expect(answered(answer, "added")).toBeUndefined();
  expect(complaint(answer)).toBe("it answered 200, but not as a node does; is the address right?");
});

test("a node's list is read, and its complaint passed on", async () => {
  reply = () => Response.json({ url: null, peers: [{ url: "http://b", make: null }] });
  const list = await callNode({ node, method: "GET", path: "/peers" });
  expect(listedPeers(list)).toEqual([{ url: "http://b", make: null }]);
  reply = () => Response.json({ error: "no such peer", added: true }, { status: 404 });
  const refused = await callNode({ node, method: "GET", path: "/peers" });
  expect([answered(refused, "added"), complaint(refused)]).toEqual([undefined, "no such peer"]);
});

test("a failure is said without fetch's advice to programmers", async () => {
  const answer = await callNode({ node: "http://127.0.0.1:1", method: "GET", path: "/peers" });
  expect(complaint(answer)).toBe("ECONNREFUSED: Unable to connect");
});

test("an answer without an end is not held in memory", async () => {
  let sent = 0;
  const body = () =>
    new ReadableStream<Uint8Array>({
      pull: (controller) => {
        sent++;
        controller.enqueue(new Uint8Array(4 * 1024 * 1024));
      },
    });
  reply = () => new Response(body());
  const answer = await callNode({ node, method: "GET", path: "/peers" });
  expect(complaint(answer)).toBe("its answer has no end");
  expect(sent).toBeLessThan(100);
});

test("a page is no stream", async () => {
  reply = page;
  const signal = AbortSignal.timeout(5_000);
  const stream = streamFrom({ node, path: "/cdc/stream", token: undefined, signal });
  expect(stream).rejects.toThrow("not as a node does");
});
