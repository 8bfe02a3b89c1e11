import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { LogBatchSource } from "../../lib/shipper/batch.ts";
import {
  PACE_MS,
  PACE_MS_MAX,
  PACED_CHANGES_MIN,
  pacePauseMs,
  Shipper,
  UNPACED_CHANGES,
} from "../../lib/shipper/shipper.ts";
import type { SyncRequest } from "../../lib/shipper/transport.ts";
import { LogFile, seededRandom } from "./support.ts";
import { VirtualTime } from "./virtual-time.ts";

const MANY = UNPACED_CHANGES;

test.each([
  ["a change that comes alone is sent at once", { last: 1, since: 0, waiting: 1 }, 0],
  ["few at a time are", { last: PACED_CHANGES_MIN - 1, since: 0, waiting: 1 }, 0],
  ["a busy node's wait for the rest of the pace", { last: 50, since: 4, waiting: 20 }, PACE_MS - 4],
  ["and no longer", { last: 50, since: PACE_MS + 5, waiting: 20 }, 0],
  ["when many wait they go", { last: 50, since: 0, waiting: MANY }, 0],
  ["behind a batch that shows a backlog they go", { last: MANY, since: 0, waiting: 20 }, 0],
  ["nothing is not waited with", { last: 50, since: 0, waiting: 0 }, 0],
  ["behind a slow answer they wait longer", { last: 50, since: 8, waiting: 20, took: 8 }, 56],
  [
    "but not longer than twice what existing nodes do",
    { last: 50, since: 10, waiting: 20, took: 400 },
    PACE_MS_MAX - 10,
  ],
] as [string, { last: number; since: number; waiting: number; took?: number }, number][])(
  "%s",
  (_, { last, since, waiting, took = 1 }, expected) => {
    const before = { lastCount: last, lastTookMs: took, sinceMs: since };
    expect(pacePauseMs(before, waiting, MANY)).toBe(expected);
  },
);

describe("a shipper", () => {
  let log: LogFile;
  let reader: Database;
  let time: VirtualTime;
  let sent: SyncRequest[];
  let shipper: Shipper;
  let drained: number | undefined;

  beforeEach(() => {
    log = new LogFile();
    reader = new Database(log.path, { readonly: true });
    time = new VirtualTime();
    sent = [];
    drained = undefined;
    shipper = new Shipper({
      config: {
        dbId: "00000000000000aa",
        batchChangesMax: 10_000,
        settledThrough: 0,
        peers: [{ url: "http://a", watermark: 0, prev: 0 }],
      },
      clock: time,
      random: seededRandom(1),
      timers: time,
      transport: {
        async send(request) {
          sent.push(request);
          return { kind: "acked", applied: 0, reply: undefined };
        },
        async readHealth() {
          return { kind: "no-health", reason: "", reply: { identity: undefined, serverTimeMs: 0 } };
        },
      },
      source: new LogBatchSource({ db: reader, batchChangesMax: 10_000, batchBytesMax: 1 << 20 }),
      post: (message) => {
        if (message.kind === "drained") drained = message.pending;
      },
    });
    shipper.start();
  });

  afterEach(() => {
    shipper.stop();
    reader.close(true);
    log[Symbol.dispose]();
  });

  async function change(count: number): Promise<void> {
    shipper.settled(log.fill(count));
    await time.settle();
  }

  test("sends changes one by one at once, however many there are", async () => {
    for (let n = 1; n <= 20; n++) {
      await change(1);
      expect(sent).toHaveLength(n);
    }
  });

  test("gathers what a busy node writes, and sends it in the pace", async () => {
    await change(30);
    expect(sent).toHaveLength(1);
    await change(30);
    await change(30);
    expect(sent).toHaveLength(1);
    await time.advance(PACE_MS);
    expect(sent.map((request) => request.batchId)).toEqual([30, 90]);
  });

  test("does not wait when many have come together meanwhile", async () => {
    await change(30);
    await change(10);
    expect(sent).toHaveLength(1);
    await change(UNPACED_CHANGES);
    expect(sent.map((request) => request.batchId)).toEqual([30, 40 + UNPACED_CHANGES]);
    await time.advance(PACE_MS);
    expect(sent).toHaveLength(2);
  });

  test("does not wait behind a batch that large rows filled: it left others behind", async () => {
    shipper.settled(log.fill(40, "x".repeat(100_000)));
    await time.settle();
    expect(sent.length).toBeGreaterThan(3);
    expect(sent.at(-1)?.batchId).toBe(40);
  });

  test("is at rest after the last of them, without a timer of the pace", async () => {
    await change(30);
    await time.advance(1_000);
    expect(sent).toHaveLength(1);
    await change(1);
    expect(sent).toHaveLength(2);
  });

  test("does not wait when it is told to drain", async () => {
    await change(30);
    await change(30);
    expect(sent).toHaveLength(1);
    shipper.drain(2_000);
    await time.settle();
    expect(sent).toHaveLength(2);
    expect(drained).toBe(0);
  });

  test("sends nothing that was waiting for the pace once it is stopped", async () => {
    await change(30);
    await change(30);
    shipper.stop();
    await time.advance(1_000);
    expect(sent).toHaveLength(1);
  });
});
