/** What only a real socket shows: framing, limits of the server, requests that arrive together. */
import { afterEach, expect, test } from "bun:test";
import { connect } from "node:net";
import { createCopyApp } from "../../lib/http/copy-app.ts";
import { AppFixture, BODY_BYTES_MAX, readAnswer } from "../support/app-fixture.ts";

const closers: (() => unknown)[] = [];

afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

function serve(): { fixture: AppFixture; url: string; port: number } {
  const fixture = new AppFixture();
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch: (request) => fixture.app.fetch(request),
  });
  closers.push(
    () => server.stop(true),
    () => fixture.store.close(),
  );
  return { fixture, url: `http://127.0.0.1:${server.port}`, port: server.port! };
}

/** Sends bytes as they are; resolves with all that came back when the server closes. */
function exchange(port: number, request: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, "127.0.0.1");
    let answer = "";
    socket.setTimeout(5_000, () => socket.destroy(new Error("no answer")));
    socket.on("data", (bytes) => {
      answer += bytes.toString();
    });
    socket.on("close", () => resolve(answer));
    socket.on("error", reject);
    socket.write(request);
  });
}

const HEAD = "Host: node\r\nContent-Type: application/json\r\nConnection: close\r\n";

test("writes that arrive together share commits, and each is answered", async () => {
  const { fixture, url } = serve();
  const answers = await Promise.all(
    Array.from({ length: 200 }, (_, value) =>
      fetch(`${url}/api/items`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(value % 50 === 7 ? { value: "wrong" } : { value }),
      }).then(readAnswer),
    ),
  );
  expect(answers.filter((answer) => answer.status === 201).length).toBe(196);
  expect(answers.filter((answer) => answer.status === 400).length).toBe(4);
  for (const answer of answers.filter((made) => made.status === 201)) {
    expect(await (await fetch(`${url}/api/items/${answer.json.id}`)).text()).toBe(answer.text);
  }
  expect(fixture.store.commits).toBeLessThan(100);
});

test("a body without a length is read to its end", async () => {
  const { port } = serve();
  const answer = await exchange(
    port,
    `POST /api/items HTTP/1.1\r\n${HEAD}Transfer-Encoding: chunked\r\n\r\n8\r\n{"value"\r\n4\r\n: 7}\r\n0\r\n\r\n`,
  );
  expect(answer).toStartWith("HTTP/1.1 201 ");
  expect(answer).toContain('"value":7');
});

test.each([
  ["that is no number", "Content-Length: abc\r\n"],
  ["that is negative", "Content-Length: -1\r\n"],
  ["twice, and different", "Content-Length: 2\r\nContent-Length: 3\r\n"],
  ["beside chunks", "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"],
])("a length %s is a 400, and no route hears of it", async (_, framing) => {
  const { fixture, port, url } = serve();
  const answer = await exchange(port, `POST /sync HTTP/1.1\r\n${HEAD}${framing}\r\n{}`);
  expect(answer).toStartWith("HTTP/1.1 400 ");
  expect([fixture.received, fixture.reported]).toEqual([[], []]);
  expect((await fetch(`${url}/health`)).status).toBe(200);
});

test("a body above the limit is a 413, whatever its framing, and the node lives on", async () => {
  const { fixture, port, url } = serve();
  const size = BODY_BYTES_MAX + 1;
  const body = `"${"x".repeat(size - 2)}"`;
  for (const path of ["/sync", "/api/items"]) {
    const sized = `POST ${path} HTTP/1.1\r\n${HEAD}Content-Length: ${size}\r\n\r\n${body}`;
    const answer = await exchange(port, sized);
    expect(answer).toStartWith("HTTP/1.1 413 ");
    expect(answer).toContain(`the body is larger than ${BODY_BYTES_MAX} bytes`);
    const chunked = `POST ${path} HTTP/1.1\r\n${HEAD}Transfer-Encoding: chunked\r\n\r\n${size.toString(16)}\r\n${body}\r\n0\r\n\r\n`;
    expect(await exchange(port, chunked)).toStartWith("HTTP/1.1 413 ");
  }
  expect((await fetch(`${url}/health`)).status).toBe(200);
  expect([fixture.received, fixture.reported]).toEqual([[], []]);
});

test("HEAD has the status and no body", async () => {
  const { port } = serve();
  const answer = await exchange(port, `HEAD /health HTTP/1.1\r\n${HEAD}\r\n`);
  expect(answer).toStartWith("HTTP/1.1 200 ");
  expect(answer.toLowerCase()).toContain("x-hook-sync: v=1; db=");
  expect(answer).toEndWith("\r\n\r\n");
});

test("an id with every kind of character survives the address line", async () => {
  const { fixture, url } = serve();
  for (const id of ["a/b", "50%", "q?x=1", "h#1", "sp ace", "emoji😀", "quote'\"", "%41"]) {
    fixture.store.db.run("INSERT INTO items(id, updated_at) VALUES (?, 1)", [id]);
    const answer = await readAnswer(await fetch(`${url}/api/items/${encodeURIComponent(id)}`));
    expect(answer.json?.id).toBe(id);
  }
  expect((await fetch(`${url}/api/items/%E0%A4%A`)).status).toBe(400);
});

test("a path that climbs is what it climbs to", async () => {
  const { port } = serve();
  for (const rest of [`HTTP/1.1\r\n${HEAD}`, "HTTP/1.0\r\n"]) {
    const answer = await exchange(port, `GET /api/items/../../health ${rest}\r\n`);
    expect(answer).toContain('"node_id":"node-a"');
  }
});

test.each([
  ["no Host", "HTTP/1.0\r\n"],
  ["an empty Host", "HTTP/1.1\r\nHost:\r\n"],
  ["a Host with a space", "HTTP/1.1\r\nHost: a b\r\n"],
  ["a Host that is not ASCII", "HTTP/1.1\r\nHost: é.de\r\n"],
  ["a Host with a path", "HTTP/1.1\r\nHost: x/api/items?limit=1\r\n"],
  ["a Host that is cut off", "HTTP/1.1\r\nHost: [::1\r\n"],
])("with %s a request has the path that it names", async (_, rest) => {
  const { fixture, port } = serve();
  for (const id of ["a", "b"])
    fixture.store.db.run("INSERT INTO items(id, updated_at) VALUES (?, 1)", [id]);
  fixture.digests.read = async () => ({ kind: "done", snapshot: "abc", tables: [] });
  const ask = (target: string) => exchange(port, `GET ${target} ${rest}Connection: close\r\n\r\n`);
  expect(await ask("/health/ready")).toContain('"ready":true');
  expect(await ask("/api/items/a")).toContain('"id":"a"');
  expect((await ask("/api/items?limit=1")).match(/"id"/g)).toHaveLength(1);
  expect(await ask("/sync/digest?table=items")).toStartWith("HTTP/1.1 200 ");
  fixture.copies.keepOpen = () => {};
  expect(await ask("/cdc/stream?after=5")).toContain("frames");
  expect(fixture.cdcCalls).toEqual(["after=5"]);
  expect(await ask("/a://b/health")).toStartWith("HTTP/1.1 404 ");
});

test("a follower's copy is read without a Host, too", async () => {
  const rows = { list: () => ({ json: "[1]", next: undefined }), row: () => undefined };
  const fetch = createCopyApp({ rows, health: () => ({ ok: true }) });
  const server = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch });
  closers.push(() => server.stop(true));
  const ask = (target: string) => exchange(server.port!, `GET ${target} HTTP/1.0\r\n\r\n`);
  expect(await ask("/health")).toContain('{"ok":true}');
  expect(await ask("/api/items?limit=1")).toEndWith("[1]");
  expect(await ask("/api/items/a")).toStartWith("HTTP/1.1 404 ");
});

test("a client that goes away in the middle of its body costs nothing", async () => {
  const { fixture, port, url } = serve();
  const socket = connect(port, "127.0.0.1");
  await new Promise<void>((resolve) => {
    socket.write(`POST /api/items HTTP/1.1\r\n${HEAD}Content-Length: 1000\r\n\r\n{"na`, () =>
      resolve(),
    );
  });
  socket.destroy();
  expect((await fetch(`${url}/health`)).status).toBe(200);
  expect([fixture.store.commits, fixture.reported]).toEqual([0, []]);
});
