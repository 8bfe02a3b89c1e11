/** A follower's life: what it asks for after which end, and how long it waits. */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import type { Timers } from "../../lib/base/clock.ts";
import type { Batch, CdcChange } from "../../lib/cdc/change.ts";
import { CdcError } from "../../lib/cdc/error.ts";
import { Follower as FollowerLoop, type FollowerStatus } from "../../lib/cdc/follower.ts";
import { encodeBeat, encodeFrames, encodeStop } from "../../lib/cdc/frames.ts";
import { Seeded } from "../support/seeded.ts";
import { Follower } from "./support/turso-source.ts";

/** An engine is loaded, and files are written, while others work as well. */
setDefaultTimeout(60_000);

const table: CdcChange = { kind: "schema", sql: "CREATE TABLE t (x)" };
const row = (rowid: bigint): CdcChange => ({ kind: "insert", table: "t", rowid, values: [rowid] });

function batch(after: bigint, commit: bigint, changes: CdcChange[], log = "L"): Batch {
  const kind = after === 0n ? "copy" : "transaction";
  const common = { log, mark: `m${commit}`, timeMs: 1_000, schema: null, changes };
  return { kind, after, commit, ...common, close: () => {} };
}

type Answer = Error | Uint8Array[];

/** Plays answers to a follower, one a connection, and stops it after the last. */
async function play(
  answers: readonly Answer[],
  follower = new Follower(),
  look: (loop: FollowerLoop) => void = () => {},
) {
  const asked: string[] = [];
  const pauses: number[] = [];
  const ends: (string | undefined)[] = [];
  const timers: Timers = {
    after(delayMs, run) {
      // The watch over silence; nothing is silent here.
      if (delayMs >= 30_000) return () => {};
      pauses.push(delayMs);
      setImmediate(run);
      return () => {};
    },
    soon: (run) => void setImmediate(run),
  };
  const loop: FollowerLoop = new FollowerLoop({
    replica: follower.replica,
    clock: { nowMs: () => 4_000, monotonicMs: () => 0 },
    timers,
    random: new Seeded(1),
    connect: async (query) => {
      const answer = answers[asked.length];
      if (answer === undefined) {
        loop.stop();
        throw new Error("over");
      }
      asked.push(query);
      if (answer instanceof Error) throw answer;
      return (async function* () {
        yield* answer;
        look(loop);
      })();
    },
    onEnd: (reason) => ends.push(reason),
  });
  await loop.run();
  return { asked, pauses, ends, status: loop.status, follower };
}

const bytes = (each: Batch) => [...encodeFrames(each)];

describe("a follower", () => {
  test("copies first, and then goes on from where it is", async () => {
    const { asked, pauses, status, follower } = await play([
      [...bytes(batch(0n, 5n, [table, row(1n)])), ...bytes(batch(5n, 7n, [row(2n)]))],
      bytes(batch(7n, 9n, [row(3n)])),
    ]);
    expect(asked).toEqual(["", "log=L&after=7&mark=m7"]);
    // An end between two transactions is no failure.
    expect(pauses).toEqual([]);
    expect(status).toMatchObject({ copies: 1, transactions: 2, lagMs: 3_000, state: "stopped" });
    expect(follower.db.query("SELECT count(*) AS n FROM t").get()).toEqual({ n: 3 });
  });

  test("waits longer and longer for a source that is away, and forgets that when it is back", async () => {
    const copy = bytes(batch(0n, 5n, [table]));
    const away = new Error("refused");
    const { pauses, ends } = await play([
      away,
      away,
      [...copy, ...bytes(batch(5n, 6n, [row(1n)]))],
      away,
    ]);
    expect(pauses).toEqual([50, 100, 50]);
    expect(ends).toEqual(["refused", "refused", undefined, "refused"]);
  });

  test("waits where somebody answers with nothing at all", async () => {
    const { pauses, ends } = await play([[], []]);
    expect(pauses).toEqual([50, 100]);
    expect(ends).toEqual(["it ended without a word", "it ended without a word"]);
  });

  test("that lost its connection in the middle asks again from its watermark", async () => {
    const [cut] = bytes(batch(5n, 7n, [row(2n)]));
    const { asked } = await play([
      bytes(batch(0n, 5n, [table])),
      [cut!.subarray(0, 40)],
      bytes(batch(5n, 7n, [row(2n)])),
    ]);
    expect(asked.slice(1)).toEqual(["log=L&after=5&mark=m5", "log=L&after=5&mark=m5"]);
  });

  test.each([
    ["is told so", [encodeStop(new CdcError("log-pruned", "the log begins at 9 only"))]],
    [
      "sees that something is missing",
      bytes(batch(5n, 7n, [{ kind: "delete", table: "t", rowid: 9n }])),
    ],
    ["has another schema", bytes({ ...batch(5n, 7n, [row(2n)]), schema: "another" })],
    ["hears of another log", bytes(batch(5n, 7n, [row(2n)], "M"))],
  ])("asks for a copy when it %s", async (_, answer) => {
    const { asked, status, follower } = await play([
      bytes(batch(0n, 5n, [table])),
      answer,
      bytes(batch(0n, 20n, [table, row(4n)], "M")),
      bytes({ ...batch(20n, 21n, [row(5n)], "M") }),
    ]);
    expect(asked).toEqual(["", "log=L&after=5&mark=m5", "", "log=M&after=20&mark=m20"]);
    expect(status.copies).toBe(2);
    expect(follower.db.query("SELECT rowid FROM t").values()).toEqual([[4], [5]]);
  });

  test("asks in pauses, where one copy after the other does not help", async () => {
    const copy = (at: bigint) => bytes(batch(0n, at, [table]));
    const useless = [encodeStop(new CdcError("log-incomplete", "a TEMP table"))];
    const { pauses } = await play([copy(5n), useless, copy(6n), useless, copy(7n), useless]);
    expect(pauses).toEqual([50, 100, 200]);
  });

  test("is up to date when it hears a beat", async () => {
    const { status } = await play([[...bytes(batch(0n, 5n, [table])), encodeBeat()]]);
    expect(status.lagMs).toBe(0);
  });

  test("knows how much is not here, by what the source says with each transaction", async () => {
    const far = [...encodeFrames(batch(5n, 7n, [row(2n)]), { behind: 3 })];
    const status = (answers: readonly Answer[]) => {
      let seen: FollowerStatus | undefined;
      // Looked at when all is applied and the connection still stands.
      const last = answers.at(-1) as Uint8Array[];
      const look = (loop: FollowerLoop) => {
        seen = loop.status;
      };
      return play([...answers.slice(0, -1), last], new Follower(), look).then(() => seen);
    };
    const copy = bytes(batch(0n, 5n, [table]));
    expect(await status([[...copy, ...far]])).toMatchObject({ lagTransactions: 3, lagMs: 3_000 });
    expect(await status([[...copy, ...far, encodeBeat()]])).toMatchObject({
      lagTransactions: 0,
      lagMs: 0,
    });
    expect(await status([[...copy, ...far, encodeBeat(2)]])).toMatchObject({
      lagTransactions: 2,
      lagMs: 3_000,
    });
    const end = [...encodeFrames(batch(5n, 7n, [row(2n)]), { behind: 0 })];
    expect(await status([[...copy, ...end]])).toMatchObject({ lagTransactions: 0, lagMs: 0 });
    expect(await status([copy])).toMatchObject({ lagTransactions: null, lagMs: 3_000 });
  });

  test("that lost its source is not up to date, however well it was", async () => {
    const { status } = await play([
      [...bytes(batch(0n, 5n, [table])), encodeBeat()],
      new Error("refused"),
    ]);
    expect(status).toMatchObject({ lagTransactions: null, state: "stopped" });
  });

  test("ends where its own file fails", async () => {
    const follower = new Follower();
    follower.db.run("BEGIN");
    await expect(play([bytes(batch(0n, 5n, [table]))], follower)).rejects.toThrow("transaction");
  });
});
