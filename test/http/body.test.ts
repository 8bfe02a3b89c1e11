/** What bodies may weigh together while they come in. */
import { expect, test } from "bun:test";
import { RequestError } from "../../lib/base/errors.ts";
import { BodyReader } from "../../lib/http/body.ts";

const MIB = 1024 * 1024;

/** A body that comes as it is given, and says how much of it was taken. */
class SlowBody {
  taken = 0;
  #controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  readonly request: Request;

  /** Without `length`, it is sent in chunks. */
  constructor(length?: number) {
    const body = new ReadableStream<Uint8Array>(
      {
        start: (controller) => {
          this.#controller = controller;
        },
        pull: () => {
          this.taken++;
        },
      },
      { highWaterMark: 0 },
    );
    const headers: Record<string, string> = { "content-type": "application/json" };
    if (length !== undefined) headers["content-length"] = String(length);
    this.request = new Request("http://node/sync", { method: "POST", body, headers });
  }

  give(bytes: number): void {
    this.#controller!.enqueue(new Uint8Array(bytes));
  }

  end(): void {
    this.#controller!.close();
  }

  fail(): void {
    this.#controller!.error(new Error("gone"));
  }
}

function reader(): BodyReader {
  return new BodyReader({ bytesMax: 8 * MIB, roomBytes: 10 * MIB });
}

async function turns(): Promise<void> {
  for (let i = 0; i < 20; i++) await Promise.resolve();
  await new Promise((resolve) => setImmediate(resolve));
}

test("a large body is not touched while others fill the room, and is read after them", async () => {
  const bodies = reader();
  const [first, second] = [new SlowBody(6 * MIB), new SlowBody(6 * MIB)];
  const firstRead = bodies.bytes(first.request);
  const secondRead = bodies.bytes(second.request);
  first.give(6 * MIB);
  second.give(6 * MIB);
  second.end();
  await turns();
  expect([first.taken > 0, second.taken > 0]).toEqual([true, false]);
  first.end();
  expect((await firstRead).length).toBe(6 * MIB);
  expect((await secondRead).length).toBe(6 * MIB);
});

test("one in chunks counts for all that it may become, once it is large", async () => {
  const bodies = reader();
  const [first, second] = [new SlowBody(), new SlowBody(6 * MIB)];
  const firstRead = bodies.bytes(first.request);
  first.give(2 * MIB);
  await turns();
  const secondRead = bodies.bytes(second.request);
  second.give(6 * MIB);
  second.end();
  await turns();
  expect(second.taken).toBe(0);
  first.end();
  expect((await firstRead).length).toBe(2 * MIB);
  expect((await secondRead).length).toBe(6 * MIB);
});

test("small ones pass, and a sender that goes away gives its place to the next", async () => {
  const bodies = reader();
  const [lost, next, small] = [new SlowBody(8 * MIB), new SlowBody(8 * MIB), new SlowBody(100)];
  const lostRead = bodies.bytes(lost.request).catch((error: unknown) => error);
  const nextRead = bodies.bytes(next.request);
  const smallRead = bodies.bytes(small.request);
  small.give(100);
  small.end();
  expect((await smallRead).length).toBe(100);
  next.give(8 * MIB);
  next.end();
  lost.fail();
  expect(await lostRead).toBeInstanceOf(RequestError);
  expect((await nextRead).length).toBe(8 * MIB);
});

test("a batch of a node does not wait for larger bodies whose senders stall", async () => {
  const bodies = new BodyReader({ bytesMax: 20 * MIB, roomBytes: 40 * MIB });
  const stalled = [1, 2, 3].map(() => new SlowBody(20 * MIB));
  for (const { request } of stalled) bodies.bytes(request).catch(() => {});
  const batch = new SlowBody(8 * MIB);
  const read = bodies.bytes(batch.request);
  batch.give(8 * MIB);
  batch.end();
  expect((await read).length).toBe(8 * MIB);
  for (const body of stalled) body.fail();
});

test("one larger than the room is read alone", async () => {
  const bodies = new BodyReader({ bytesMax: 8 * MIB, roomBytes: 2 * MIB });
  const large = new SlowBody(6 * MIB);
  const read = bodies.bytes(large.request);
  large.give(6 * MIB);
  large.end();
  expect((await read).length).toBe(6 * MIB);
});
