import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HookSyncError } from "../../lib/base/errors.ts";
import { type WriteMode, WriteQueue } from "../../lib/store/write-queue.ts";
import { VirtualTime } from "../shipper/virtual-time.ts";
import { Seeded } from "../support/seeded.ts";

let dir: string;
let db: Database;
let time: VirtualTime;
let queue: WriteQueue;
let hasForeignKeys: boolean;
/** What happened to the file, in order: the notes of jobs, what was finished, commits, rollbacks. */
let story: string[];
/** By which the monotonic clock is ahead: how long the jobs of this transaction took. */
let workedMs: number;
/** What a commit takes. */
let commitMs: number;
let wasInTransaction: boolean;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "hook-sync-queue-"));
  db = new Database(join(dir, "queue.db"), { strict: true });
  db.run("PRAGMA journal_mode = WAL");
  db.run("PRAGMA busy_timeout = 0");
  db.run("CREATE TABLE t(what TEXT UNIQUE)");
  time = new VirtualTime();
  story = [];
  hasForeignKeys = false;
  workedMs = 0;
  commitMs = 0;
  wasInTransaction = false;
  queue = new WriteQueue({
    db,
    clock: { nowMs: () => time.nowMs(), monotonicMs },
    timers: time,
    hasForeignKeys: () => hasForeignKeys,
    settle: () => {},
    finish: (_nowMs, logged, mode) => story.push(`${mode} finished, ${logged} logged`),
    committed: () => story.push("commit"),
    rolledBack: () => story.push("rollback"),
  });
});

afterEach(() => {
  db.close(true);
  rmSync(dir, { recursive: true, force: true });
});

function monotonicMs(): number {
  if (wasInTransaction && !db.inTransaction) workedMs += commitMs;
  wasInTransaction = db.inTransaction;
  return time.monotonicMs() + workedMs;
}

/** A write that notes itself, logs one entry, takes `ms` and fails where another has its name. */
function write(mode: WriteMode, name: string, ms = 0, patienceMs = 0): Promise<string> {
  return queue.run(
    mode,
    (transaction) => {
      story.push(name);
      transaction.logged(1);
      workedMs += ms;
      db.query("INSERT INTO t VALUES (?)").run(name);
      return name;
    },
    patienceMs,
  );
}

function stored(): string[] {
  return db
    .query<{ what: string }, []>("SELECT what FROM t ORDER BY rowid")
    .all()
    .map((row) => row.what);
}

describe("one transaction", () => {
  test("is marked in a log that others keep, before anything and behind everything", async () => {
    queue.ends = { end: () => story.push(`end of ${stored().length}`) };
    const both = [write("local", "b"), write("apply", "a")];
    await time.settle();
    await Promise.all(both);
    expect(story).toEqual([
      "end of 0",
      "b",
      "local finished, 1 logged",
      "a",
      "apply finished, 1 logged",
      "end of 2",
      "commit",
    ]);
  });

  test("takes local writes and received changes, local ones first, each kind finished by itself", async () => {
    const all = [
      write("apply", "a"),
      write("local", "b"),
      write("apply", "c"),
      write("local", "d"),
    ];
    await time.settle();
    expect(story).toEqual([
      "b",
      "d",
      "local finished, 2 logged",
      "a",
      "c",
      "apply finished, 2 logged",
      "commit",
    ]);
    expect(await Promise.all(all)).toEqual(["a", "b", "c", "d"]);
  });

  test("holds one kind only where foreign keys must be switched between them", async () => {
    hasForeignKeys = true;
    const all = [write("apply", "a"), write("local", "b")];
    await time.settle();
    expect(story).toEqual([
      "b",
      "local finished, 1 logged",
      "commit",
      "a",
      "apply finished, 1 logged",
      "commit",
    ]);
    await Promise.all(all);
  });

  test("takes no more writes when it has become long, and the rest comes in the next", async () => {
    const all = [write("local", "a", 4), write("local", "b", 4), write("local", "c", 4)];
    await time.settle();
    expect(story).toEqual([
      "a",
      "b",
      "local finished, 2 logged",
      "commit",
      "c",
      "local finished, 1 logged",
      "commit",
    ]);
    await Promise.all(all);
  });

  test("tells a long write when its time is over, sooner where somebody writes here", async () => {
    const longAfterMs = async () => {
      let ms = 0;
      const done = queue.run("apply", (transaction) => {
        while (!transaction.isLong()) {
          ms++;
          workedMs++;
        }
      });
      await time.settle();
      await done;
      return ms;
    };
    expect(await longAfterMs()).toBe(30);
    const local = write("local", "a");
    expect(await longAfterMs()).toBe(5);
    await local;
    expect(queue.isBusy).toBe(true);
    await time.advance(1_000);
    expect(queue.isBusy).toBe(false);
    expect(await longAfterMs()).toBe(30);
  });
});

describe("nobody is left waiting (W5)", () => {
  test("received changes that found no time come first in the next transaction", async () => {
    const all = [
      write("apply", "received 1", 6),
      write("apply", "received 2", 6),
      write("local", "a", 6),
      write("local", "b", 6),
      write("local", "c", 6),
    ];
    await time.settle();
    expect(stored()).toEqual(["a", "received 1", "b", "received 2", "c"]);
    await Promise.all(all);
  });

  test("the same where the kinds cannot share a transaction", async () => {
    hasForeignKeys = true;
    const all = [
      write("apply", "received 1", 6),
      write("apply", "received 2", 6),
      write("local", "a", 6),
      write("local", "b", 6),
    ];
    await time.settle();
    expect(stored()).toEqual(["a", "received 1", "b", "received 2"]);
    await Promise.all(all);
  });
});

describe("a patient write", () => {
  test("joins the transaction of another", async () => {
    const patient = write("apply", "patient", 0, 40);
    await time.settle();
    expect(story).toEqual([]);
    const other = write("local", "a");
    await time.settle();
    expect(stored()).toEqual(["a", "patient"]);
    expect(story.filter((event) => event === "commit")).toHaveLength(1);
    await Promise.all([patient, other]);
    await time.advance(100);
    expect(story.filter((event) => event === "commit")).toHaveLength(1);
  });

  test("makes its own when none comes", async () => {
    const patient = write("apply", "patient", 0, 40);
    await time.advance(39);
    expect(stored()).toEqual([]);
    await time.advance(1);
    expect(stored()).toEqual(["patient"]);
    await patient;
  });
});

describe("a write that fails (W2)", () => {
  test("fails alone; the others of its group are there once, and those behind it too", async () => {
    const all = await Promise.allSettled([
      ...(await settledLater([
        write("local", "a"),
        write("local", "b"),
        write("local", "a"),
        write("local", "c"),
        write("apply", "d"),
      ])),
    ]);
    expect(all.map((result) => result.status)).toEqual([
      "fulfilled",
      "fulfilled",
      "rejected",
      "fulfilled",
      "fulfilled",
    ]);
    expect(stored().sort()).toEqual(["a", "b", "c", "d"]);
    expect(story.filter((event) => event === "rollback")).toHaveLength(2);
    expect(story.filter((event) => event === "commit")).toHaveLength(2);
  });

  /** Fails when its transaction ends, as a deferred foreign key does. */
  function lateFailure(name: string): Promise<string> {
    return queue.run("local", (transaction) => {
      transaction.atEnd(() => {
        throw new Error(`no ${name}`);
      });
      return name;
    });
  }

  test("that fails late is found by halving; the others still share their commits", async () => {
    const names = Array.from({ length: 64 }, (_, i) => `w${i}`);
    const all = names.map((name) => (name === "w37" ? lateFailure(name) : write("local", name)));
    const results = await Promise.allSettled(await settledLater(all));
    const failed = results.flatMap((result, i) => (result.status === "rejected" ? [i] : []));
    expect(failed).toEqual([37]);
    expect(stored()).toEqual(names.filter((name) => name !== "w37"));
    expect(story.filter((event) => event === "commit")).toHaveLength(6);
  });

  test("each of many has its own error, wherever they stand", async () => {
    const random = new Seeded(7);
    for (let round = 0; round < 60; round++) {
      db.run("DELETE FROM t");
      const count = 1 + random.below(20);
      const kinds = Array.from({ length: count }, () =>
        random.pick(["fine", "fine", "early", "late"]),
      );
      const all = kinds.map((kind, i) => {
        if (kind === "late") return lateFailure(`${i}`);
        const mode = random.pick(["local", "apply"] as const);
        return queue.run(mode, () => {
          workedMs += random.below(3);
          if (kind === "early") {
            db.run("ROLLBACK");
            throw new Error(`no ${i}`);
          }
          db.query("INSERT INTO t VALUES (?)").run(`${i}`);
          return `${i}`;
        });
      });
      const results = await Promise.allSettled(await settledLater(all));
      const said = results.map((r) => (r.status === "fulfilled" ? r.value : r.reason.message));
      expect(said).toEqual(kinds.map((kind, i) => (kind === "fine" ? `${i}` : `no ${i}`)));
      const fine = kinds.flatMap((kind, i) => (kind === "fine" ? [`${i}`] : []));
      expect(stored().sort()).toEqual(fine.sort());
    }
  });

  test("with a locked file in between, each is still carried out once", async () => {
    using other = new Database(join(dir, "queue.db"));
    other.run("PRAGMA busy_timeout = 0");
    let locks = 1;
    const locking = queue.run("local", (transaction) => {
      transaction.atEnd(() => {
        // Free for this moment: the other program takes it before the writes are run again.
        db.run("ROLLBACK");
        if (locks-- > 0) other.run("BEGIN IMMEDIATE");
        throw new Error("no");
      });
    });
    const all = [write("local", "a"), write("apply", "b"), locking, write("local", "c")];
    const outcomes = Promise.allSettled(all);
    await time.settle();
    expect(stored()).toEqual([]);
    other.run("ROLLBACK");
    await time.advance(100);
    expect((await outcomes).map(({ status }) => status)).toEqual([
      "fulfilled",
      "fulfilled",
      "rejected",
      "fulfilled",
    ]);
    expect(stored().sort()).toEqual(["a", "b", "c"]);
  });
});

describe("while another program holds the lock (W3)", () => {
  test("all wait, and are carried out when it is free", async () => {
    using other = new Database(join(dir, "queue.db"));
    other.run("BEGIN IMMEDIATE");
    const all = [write("local", "a"), write("apply", "b")];
    await time.advance(1_000);
    expect(story).toEqual([]);
    other.run("COMMIT");
    await time.advance(10);
    expect(await Promise.all(all)).toEqual(["a", "b"]);
  });

  test("each is refused when its time is over, whichever kind it is", async () => {
    using other = new Database(join(dir, "queue.db"));
    other.run("BEGIN IMMEDIATE");
    const early = [write("local", "a"), write("apply", "b")];
    await time.advance(4_000);
    const late = write("local", "c");
    const outcomes = Promise.allSettled(early);
    await time.advance(1_010);
    const reasons = (await outcomes).map((outcome) => (outcome as PromiseRejectedResult).reason);
    expect(reasons.map((reason) => reason instanceof HookSyncError && reason.code)).toEqual([
      "busy",
      "busy",
    ]);
    other.run("ROLLBACK");
    await time.advance(10);
    expect(await late).toBe("c");
  });
});

/** Lets the queue work while rejections already have somebody who waits for them. */
async function settledLater<T>(all: Promise<T>[]): Promise<Promise<T>[]> {
  const waiting = Promise.allSettled(all);
  await time.settle();
  await waiting;
  return all;
}

describe("where a commit is dear", () => {
  async function together(count: number, name: string): Promise<void> {
    const all = Array.from({ length: count }, (_, i) => write("local", `${name}${i}`));
    await time.settle();
    story.push("…");
    await time.advance(2);
    await Promise.all(all);
  }

  const shapes = () =>
    story
      .join(" ")
      .replaceAll(/ local finished, \d+ logged/g, "")
      .split(" ");

  test("the next transaction waits for as many writes as came together before", async () => {
    commitMs = 0.5;
    await together(6, "a");
    story = [];
    const all = [write("local", "b"), write("local", "c")];
    await time.settle();
    expect(story).toEqual([]);
    for (const name of ["d", "e", "f", "g"]) all.push(write("local", name));
    await time.settle();
    expect(shapes()).toEqual(["b", "c", "d", "e", "f", "g", "commit"]);
    await Promise.all(all);
  });

  test("for a millisecond at most, and then for as many as came", async () => {
    commitMs = 0.5;
    await together(6, "a");
    story = [];
    await together(4, "b");
    expect(shapes()).toEqual(["…", "b0", "b1", "b2", "b3", "commit"]);
    story = [];
    await together(4, "c");
    expect(shapes()).toEqual(["c0", "c1", "c2", "c3", "commit", "…"]);
  });

  test.each([
    ["few write at a time", 3, 0.5],
    ["commits are cheap", 6, 0.1],
  ])("nobody waits where %s", async (_, count, ms) => {
    commitMs = ms;
    await together(count, "a");
    story = [];
    await together(1, "b");
    expect(shapes()).toEqual(["b0", "commit", "…"]);
  });

  test("received changes alone do not wait", async () => {
    commitMs = 0.5;
    await together(6, "a");
    story = [];
    const received = write("apply", "r");
    await time.settle();
    expect(story).toEqual(["r", "apply finished, 1 logged", "commit"]);
    await received;
  });

  test("now and then it is tried whether more would come", async () => {
    commitMs = 0.5;
    let waits = 0;
    for (let i = 0; i < 130; i++) {
      story = [];
      await together(6, `w${i} `);
      if (story[0] === "…") waits++;
    }
    expect(waits).toBe(2);
  });
});
