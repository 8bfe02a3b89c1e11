/** Batches through bytes that are cut, repeated, reordered and damaged. */
import { describe, expect, test } from "bun:test";
import type { Batch, CdcChange } from "../../lib/cdc/change.ts";
import { CdcError } from "../../lib/cdc/error.ts";
import {
  encodeBeat,
  encodeFrames,
  encodeStop,
  type FrameEvent,
  FrameReader,
} from "../../lib/cdc/frames.ts";
import { forSeeds, Seeded } from "../support/seeded.ts";
import { codeOf } from "./support/code-of.ts";
import { randomChange } from "./support/values.ts";

const ROW: CdcChange = { kind: "insert", table: "t", rowid: 1n, values: [1n, "é", 2.5, null] };

function batch(after: bigint, commit: bigint, changes: readonly CdcChange[] = [ROW]): Batch {
  const common = { log: "L", mark: `m${commit}`, timeMs: 5, schema: "d", changes };
  return { kind: "transaction", after, commit, ...common, close: () => {} };
}

/** The smallest limit, so that a few values fill many frames. */
const SMALL = { frameBytesMax: 4096 + 64 };

function bytesOf(frames: Iterable<Uint8Array>): Uint8Array {
  return new Uint8Array(Buffer.concat([...frames]));
}

function readAll(chunks: Iterable<Uint8Array>, options = {}): FrameEvent[] {
  const reader = new FrameReader(options);
  const events = [...chunks].flatMap((chunk) => [...reader.read(chunk)]);
  reader.end();
  return events;
}

function plain(event: FrameEvent | undefined): unknown {
  if (event?.kind !== "batch") return event;
  const { close: _, changes, ...rest } = event.batch;
  return { ...rest, changes: [...changes] };
}

test("a batch comes back whole, however its bytes are cut into chunks and frames", async () => {
  await forSeeds(40, (random) => {
    const changes = Array.from({ length: random.below(30) }, () => randomChange(random));
    const sent = batch(3n, 9_223_372_036_854_775_807n, changes);
    const options = random.chance(0.5) ? SMALL : {};
    const bytes = bytesOf(encodeFrames(sent, options));
    const chunks: Uint8Array[] = [];
    for (let at = 0; at < bytes.length; ) {
      const end = Math.min(bytes.length, at + 1 + random.below(random.pick([3, 100, 50_000])));
      chunks.push(bytes.subarray(at, end));
      at = end;
    }
    const events = readAll(chunks, options);
    expect(events.length).toBe(1);
    const { close: _, ...rest } = sent;
    expect(plain(events[0])).toEqual(rest);
  });
});

test("no frame is above the limit, though one change is", () => {
  const value = "x".repeat(100_000);
  const sent = batch(1n, 2n, [{ kind: "insert", table: "t", rowid: 1n, values: [value] }]);
  const frames = [...encodeFrames(sent, SMALL)];
  expect(frames.length).toBeGreaterThan(1000);
  for (const frame of frames) expect(frame.length).toBeLessThanOrEqual(4 + SMALL.frameBytesMax);
});

test("a transaction of several frames is nothing until its last frame is there", () => {
  const frames = [...encodeFrames(batch(1n, 2n, Array(40).fill(ROW)), SMALL)];
  expect(frames.length).toBeGreaterThan(2);
  const reader = new FrameReader(SMALL);
  for (const frame of frames.slice(0, -1)) expect([...reader.read(frame)]).toEqual([]);
  expect([...reader.read(frames.at(-1)!)].length).toBe(1);
});

test("a stream that ends at any byte but a batch's end is cut, and gives nothing of what was cut", () => {
  const frames = [
    ...encodeFrames(batch(1n, 2n)),
    ...encodeFrames(batch(2n, 4n, Array(5).fill(ROW)), SMALL),
  ];
  const bytes = bytesOf(frames);
  const ends = new Set([0, frames[0]!.length, bytes.length]);
  for (let length = 0; length <= bytes.length; length++) {
    const reader = new FrameReader();
    const events = [...reader.read(bytes.subarray(0, length))];
    const expected = length < frames[0]!.length ? 0 : length < bytes.length ? 1 : 2;
    expect(events.length).toBe(expected);
    if (ends.has(length)) expect(() => reader.end()).not.toThrow();
    else expect(codeOf(() => reader.end())).toBe("cut");
    reader.close();
  }
});

describe("out of order", () => {
  const [one, two, three] = [batch(0n, 2n), batch(2n, 5n), batch(5n, 9n)].map((each) =>
    bytesOf(encodeFrames(each)),
  );
  const parts = [...encodeFrames(batch(2n, 5n, Array(40).fill(ROW)), SMALL)];
  const otherLog = bytesOf(encodeFrames({ ...batch(2n, 5n), log: "M" }));

  test.each<[string, readonly Uint8Array[]]>([
    ["a batch twice", [one!, one!]],
    ["a batch left out", [one!, three!]],
    ["two batches exchanged", [two!, one!]],
    ["a batch of another log", [one!, otherLog]],
    ["a part left out", [one!, parts[0]!, parts[2]!]],
    ["a part twice", [one!, parts[0]!, parts[1]!, parts[1]!]],
    ["a transaction without its first part", [one!, parts[1]!]],
    ["a transaction within another", [one!, parts[0]!, three!]],
    ["one that ends where it begins", [bytesOf(encodeFrames(batch(2n, 2n)))]],
  ])("%s", (_, chunks) => {
    expect(codeOf(() => readAll(chunks))).toBe("out-of-order");
  });

  test("a copy may come at any time, and what follows must follow it", () => {
    const copy = bytesOf(encodeFrames({ ...batch(0n, 5n), kind: "copy" }));
    expect(readAll([one!, copy, three!]).length).toBe(3);
    expect(codeOf(() => readAll([one!, copy, two!]))).toBe("out-of-order");
  });
});

test("beats and stops come between", () => {
  const stop = encodeStop(new CdcError("log-pruned", "the log begins at 7 only"));
  const events = readAll([encodeBeat(), ...encodeFrames(batch(1n, 2n)), encodeBeat(), stop]);
  expect(events.map(({ kind }) => kind)).toEqual(["beat", "batch", "beat", "stop"]);
  expect(events[3]).toEqual({
    kind: "stop",
    code: "log-pruned",
    message: "the log begins at 7 only",
  });
});

describe("what is no frame", () => {
  const frame = (payload: string | Uint8Array) => {
    const bytes = Buffer.from(payload);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    return new Uint8Array(Buffer.concat([length, bytes]));
  };
  const head =
    '{"v":1,"kind":"transaction","log":"L","after":"1","commit":"2","part":0,"last":true';

  test.each<[string, string, Uint8Array]>([
    ["no bytes", "too-large", new Uint8Array([0, 0, 0, 0])],
    ["a length above the limit", "too-large", new Uint8Array([1, 0, 0, 1])],
    ["a header without an end", "malformed", frame("{}")],
    ["a header that is no JSON", "malformed", frame("x\n")],
    ["bytes that are no text", "malformed", frame(new Uint8Array([0xff, 10]))],
    ["another version", "malformed", frame('{"v":2,"kind":"beat"}\n')],
    ["an unknown kind", "malformed", frame('{"v":1,"kind":"x"}\n')],
    [
      "a stop without a reason",
      "malformed",
      frame('{"v":1,"kind":"stop","code":"x","message":""}\n'),
    ],
    ["no mark", "malformed", frame(`${head}}\n`)],
    ["no schema", "malformed", frame(`${head},"mark":"m","time":1}\n`)],
    [
      "a change that is none",
      "malformed",
      frame(`${head},"mark":"m","time":1,"schema":null}\nx\n`),
    ],
    [
      "a change without an end",
      "malformed",
      frame(`${head},"mark":"m","time":1,"schema":null}\n[`),
    ],
    ["a position that is a number", "malformed", frame(`${head.replace('"2"', "2")}}\n`)],
  ])("%s", (_, code, bytes) => {
    expect(codeOf(() => readAll([bytes]))).toBe(code);
  });

  test("is an error or another batch, whichever byte of it is changed", () => {
    const random = new Seeded(1);
    const bytes = bytesOf(encodeFrames(batch(1n, 2n)));
    for (let at = 0; at < bytes.length; at++) {
      const damaged = bytes.slice();
      damaged[at] = random.below(256);
      try {
        readAll([damaged]).map(plain);
      } catch (error) {
        expect(error).toBeInstanceOf(CdcError);
      }
    }
  });
});
