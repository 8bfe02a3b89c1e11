/** A log as a stream: what is sent when, at whose pace, and how it ends. */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import type { Watermark } from "../../lib/cdc/change.ts";
import { CdcError } from "../../lib/cdc/error.ts";
import { type FrameEvent, FrameReader } from "../../lib/cdc/frames.ts";
import {
  followCdc,
  formatWatermark,
  parseWatermark,
  type ServeOptions,
  serveCdc,
} from "../../lib/cdc/stream.ts";
import { contentOf } from "./support/content.ts";
import { Follower, follow, type Turso, TursoSource } from "./support/turso-source.ts";

/** An engine is loaded, and files are written, while others work as well. */
setDefaultTimeout(60_000);

const T = "CREATE TABLE t (k INTEGER PRIMARY KEY, v)";

/** A clock that is moved by waiting: the first timer that is due runs as soon as nothing else does. */
function quickTime(): ServeOptions {
  let now = 0;
  let waiting: { readonly atMs: number; readonly run: () => void }[] = [];
  const runFirst = () => {
    waiting.sort((a, b) => a.atMs - b.atMs);
    const first = waiting.shift();
    if (first === undefined) return;
    now = Math.max(now, first.atMs);
    first.run();
  };
  return {
    pollMs: 20,
    beatMs: 60,
    clock: { nowMs: () => now, monotonicMs: () => now },
    timers: {
      after(delayMs, run) {
        const timer = { atMs: now + delayMs, run };
        waiting.push(timer);
        setImmediate(runFirst);
        return () => {
          waiting = waiting.filter((other) => other !== timer);
        };
      },
      soon: (run) => void setImmediate(run),
    },
  };
}

/** A stream being read event by event. */
class Served {
  readonly opened: Turso[] = [];
  readonly reader: {
    read(): Promise<{ done: boolean; value?: Uint8Array | undefined }>;
    cancel(): Promise<void>;
  };
  readonly #frames = new FrameReader();
  #events: FrameEvent[] = [];

  constructor(
    source: TursoSource,
    after: Watermark | null,
    options: ServeOptions = quickTime(),
    other?: () => Promise<Turso>,
  ) {
    const open = () => {
      if (other !== undefined) return other();
      const connection = source.open();
      this.opened.push(connection);
      return connection;
    };
    this.reader = serveCdc(open, after, options).getReader();
  }

  async next(): Promise<FrameEvent | undefined> {
    while (this.#events.length === 0) {
      const { value, done } = await this.reader.read();
      if (done) return undefined;
      this.#events = [...this.#frames.read(value!)];
    }
    return this.#events.shift();
  }
}

describe("a stream", () => {
  test("begins with a copy, then has each transaction, and beats between", async () => {
    using source = await TursoSource.open();
    source.writer.exec(`${T}; INSERT INTO t VALUES (1, 1)`);
    const served = new Served(source, null);
    expect(await served.next()).toMatchObject({
      kind: "batch",
      batch: { kind: "copy", commit: 4n },
    });
    expect(await served.next()).toEqual({ kind: "beat", behind: 0 });
    source.writer.exec("INSERT INTO t VALUES (2, 2); INSERT INTO t VALUES (3, 3)");
    expect(await served.next()).toMatchObject({
      batch: { kind: "transaction", after: 4n, commit: 6n },
    });
    expect(await served.next()).toMatchObject({ batch: { after: 6n, commit: 8n } });
    expect(await served.next()).toEqual({ kind: "beat", behind: 0 });
    await served.reader.cancel();
    expect(served.opened.map(({ open }) => open)).toEqual([false]);
  });

  test("says with each transaction how many are left, and at once when none is", async () => {
    using source = await TursoSource.open();
    source.writer.exec(T);
    const options = { ...quickTime(), beatMs: 1e12 };
    const served = new Served(source, null, options);
    expect(await served.next()).toMatchObject({ batch: { kind: "copy" }, behind: 0 });
    for (let k = 1; k <= 4; k++) source.writer.exec(`INSERT INTO t VALUES (${k}, 1)`);
    const left: unknown[] = [];
    for (let k = 1; k <= 3; k++) {
      const event = await served.next();
      left.push(event?.kind === "batch" && event.behind);
    }
    // A COMMIT with nothing before it looks like one more.
    source.writer.exec("DELETE FROM t WHERE k = 9");
    const last = await served.next();
    left.push(last?.kind === "batch" && last.behind);
    expect(left).toEqual([3, 2, 1, 1]);
    expect(await served.next()).toEqual({ kind: "beat", behind: 0 });
    source.writer.exec("INSERT INTO t VALUES (5, 1)");
    expect(await served.next()).toMatchObject({ kind: "batch", behind: 0 });
    await served.reader.cancel();
  });

  test("tells whoever serves it how far it is, and when it is over", async () => {
    using source = await TursoSource.open();
    source.writer.exec(T);
    const told: unknown[] = [];
    const options = {
      ...quickTime(),
      onSent: (commit: bigint) => told.push(commit),
      onEnd: () => told.push("end"),
    };
    const served = new Served(source, null, options);
    await served.next();
    expect(told).toEqual([]);
    await served.next();
    expect(told).toEqual([2n]);
    await served.reader.cancel();
    expect(told).toEqual([2n, "end"]);
  });

  test("leaves the thread to others between two frames, however fast it is read", async () => {
    using source = await TursoSource.open();
    source.writer.exec(`${T}; INSERT INTO t VALUES (1, '${"x".repeat(100_000)}')`);
    let turns = 0;
    const options = quickTime();
    const { soon } = options.timers!;
    const counted = (run: () => void) => {
      turns++;
      soon(run);
    };
    const timers = { ...options.timers!, soon: counted };
    const served = new Served(source, null, { ...options, timers, frameBytesMax: 2_000 });
    let frames = 0;
    for (let bytes = 0; bytes < 100_000; frames++) {
      bytes += (await served.reader.read()).value!.length;
    }
    expect(turns).toBe(frames - 1);
    await served.reader.cancel();
  });

  test("from a position has what follows it", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    source.writer.exec(`${T}; INSERT INTO t VALUES (1, 1)`);
    await follow(source.tailer(), follower.replica);
    source.writer.exec("INSERT INTO t VALUES (2, 2)");
    const served = new Served(source, follower.replica.watermark());
    expect(await served.next()).toMatchObject({ batch: { after: 4n, commit: 6n } });
    await served.reader.cancel();
  });

  test("beats while a copy takes its time", async () => {
    using source = await TursoSource.open();
    let opened: (connection: Turso) => void = () => {};
    const slow = new Promise<Turso>((resolve) => {
      opened = resolve;
    });
    const served = new Served(source, null, quickTime(), () => slow);
    expect(await served.next()).toEqual({ kind: "beat", behind: 0 });
    expect(await served.next()).toEqual({ kind: "beat", behind: 0 });
    opened(source.open());
    expect(await served.next()).toMatchObject({ batch: { kind: "copy" } });
    await served.reader.cancel();
  });

  test("ends after its life, between two batches", async () => {
    using source = await TursoSource.open();
    const served = new Served(source, null, { ...quickTime(), lifeMs: 50 });
    expect(await served.next()).toMatchObject({ batch: { kind: "copy" } });
    expect(await served.next()).toBeUndefined();
    expect(served.opened.map(({ open }) => open)).toEqual([false]);
  });

  test("ends when its source goes away, between two batches", async () => {
    using source = await TursoSource.open();
    const ending = new AbortController();
    const served = new Served(source, null, { ...quickTime(), signal: ending.signal });
    expect(await served.next()).toMatchObject({ batch: { kind: "copy" } });
    ending.abort();
    expect(await served.next()).toBeUndefined();
  });

  test("ends after the copy where no more is asked for", async () => {
    using source = await TursoSource.open();
    const served = new Served(source, null, { ...quickTime(), once: true });
    expect(await served.next()).toMatchObject({ batch: { kind: "copy" } });
    expect(await served.next()).toBeUndefined();
  });

  test("says why it ends, and ends", async () => {
    using source = await TursoSource.open();
    const served = new Served(source, { log: "another", commit: 5n, mark: "m" });
    expect(await served.next()).toMatchObject({ kind: "stop", code: "other-log" });
    expect(await served.next()).toBeUndefined();
    expect(served.opened.map(({ open }) => open)).toEqual([false]);
  });

  test("fails where the database does", async () => {
    using source = await TursoSource.open();
    const failing = serveCdc(() => Promise.reject(new Error("no connection left")), null);
    await expect(failing.getReader().read()).rejects.toThrow("no connection left");
    expect(source.writer.open).toBe(true);
  });

  test("tells the follower, too, where somebody is there to be told", async () => {
    const told: unknown[] = [];
    const failure = new Error("no connection left");
    const failing = serveCdc(() => Promise.reject(failure), null, {
      onFailure: (error) => told.push(error),
    });
    const target = { watermark: () => null, apply: () => "applied" as const };
    const error = await followCdc(target, failing).catch((thrown) => thrown);
    expect([error.code, error.needsCopy]).toEqual(["source-failed", false]);
    expect(error.message).toContain("no connection left");
    expect(told).toEqual([failure]);
  });

  test("is read at the follower's pace: nothing is taken from the log before it is asked for", async () => {
    using source = await TursoSource.open();
    source.writer.exec(T);
    const served = new Served(source, null);
    await new Promise((resolve) => setImmediate(resolve));
    expect(served.opened).toEqual([]);
    await served.next();
    source.writer.exec("INSERT INTO t VALUES (1, 1)");
    for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
    source.writer.exec("INSERT INTO t VALUES (2, 2)");
    expect(await served.next()).toMatchObject({ batch: { commit: 4n } });
    await served.reader.cancel();
  });

  test("that is given up in the middle of waiting closes its connection", async () => {
    using source = await TursoSource.open();
    const options = { ...quickTime(), beatMs: 1e12 };
    const served = new Served(source, null, options);
    await served.next();
    const waiting = served.next();
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
    await served.reader.cancel();
    expect(await waiting).toBeUndefined();
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(served.opened.map(({ open }) => open)).toEqual([false]);
  });
});

describe("a follower", () => {
  /** Everything a stream sends until its first beat, as one byte string. */
  async function bytesOf(source: TursoSource, after: Watermark | null): Promise<Uint8Array> {
    const reader = serveCdc(() => source.open(), after, quickTime()).getReader();
    const frames = new FrameReader();
    const chunks: Uint8Array[] = [];
    while (true) {
      const { value } = await reader.read();
      if ([...frames.read(value!)].some(({ kind }) => kind === "beat")) break;
      chunks.push(value!);
    }
    await reader.cancel();
    return new Uint8Array(Buffer.concat(chunks));
  }

  async function* chunksOf(...chunks: Uint8Array[]): AsyncGenerator<Uint8Array> {
    yield* chunks;
  }

  test("that loses its connection at any byte goes on from its watermark", async () => {
    using source = await TursoSource.open();
    source.writer.exec(`${T}; INSERT INTO t VALUES (1, 'a')`);
    const copy = await bytesOf(source, null);
    using first = new Follower();
    await followCdc(first.replica, chunksOf(copy));
    source.writer.exec("UPDATE t SET v = 'b'; INSERT INTO t VALUES (2, 'c'); ALTER TABLE t ADD w");
    const rest = await bytesOf(source, first.replica.watermark());
    const expected = await contentOf(source.writer);
    for (let at = 0; at <= rest.length; at += 7) {
      using follower = new Follower();
      await followCdc(follower.replica, chunksOf(copy));
      await followCdc(follower.replica, chunksOf(rest.subarray(0, at))).catch((error) => {
        expect(error).toMatchObject({ code: "cut", needsCopy: false });
      });
      const from = follower.replica.watermark();
      await followCdc(follower.replica, chunksOf(await bytesOf(source, from)));
      expect(await contentOf(follower.db)).toEqual(expected);
    }
  });

  test("hears the reason of a stop", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    const stream = serveCdc(() => source.open(), { log: "x", commit: 1n, mark: "" }, quickTime());
    const failure = await followCdc(follower.replica, stream).catch((error) => error);
    expect(failure).toBeInstanceOf(CdcError);
    expect(failure).toMatchObject({ code: "other-log", needsCopy: true });
  });

  test("is told of each batch, and of beats", async () => {
    using source = await TursoSource.open();
    using follower = new Follower();
    source.writer.exec(T);
    const told: string[] = [];
    const enough = new Error("enough");
    const following = followCdc(
      follower.replica,
      serveCdc(() => source.open(), null, quickTime()),
      {
        onBatch: ({ kind, commit }, outcome) => told.push(`${kind} ${commit} ${outcome}`),
        onBeat: () => {
          told.push("beat");
          throw enough;
        },
      },
    );
    await expect(following).rejects.toBe(enough);
    expect(told).toEqual(["copy 2 applied", "beat"]);
  });
});

describe("a watermark in an address", () => {
  test("comes back", () => {
    const watermark = { log: "a b&c", commit: 2n ** 60n, mark: "m/=" };
    expect(parseWatermark(new URLSearchParams(formatWatermark(watermark)))).toEqual(watermark);
    expect(formatWatermark(null)).toBe("");
    expect(parseWatermark(new URLSearchParams())).toBeNull();
  });

  test.each(["log=L", "after=5", "log=L&after=x", "log=L&after=99999999999999999999"])(
    "%s is none",
    (query) => {
      expect(() => parseWatermark(new URLSearchParams(query))).toThrow(CdcError);
    },
  );
});
