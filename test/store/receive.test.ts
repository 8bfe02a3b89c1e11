/** One POST /sync from its bytes to its answer: marks, acknowledgements, limits, and a failing world. */
import { Database } from "bun:sqlite";
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { systemTimers } from "../../lib/base/clock.ts";
import { HookSyncError, RequestError } from "../../lib/base/errors.ts";
import {
  insert,
  OURS,
  removeNodeFiles,
  T,
  type TestChange,
  TestNode,
  update,
  VirtualTime,
} from "../support/receive-fixture.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);
afterAll(removeNodeFiles);

const body = (batchId: number, changes: readonly TestChange[]) =>
  JSON.stringify({ batch_id: batchId, changes });
const many = (count: number, version = T) =>
  Array.from({ length: count }, (_, i) => insert(`k${i}`, { updated_at: version }));

async function failure(work: Promise<unknown>): Promise<string> {
  try {
    await work;
    return "none";
  } catch (error) {
    if (error instanceof RequestError) return String(error.status);
    if (error instanceof HookSyncError) return error.code;
    return String(error);
  }
}

describe("the answer", () => {
  test("is how many were applied, the batch_id, and who we are", async () => {
    const node = new TestNode();
    expect(
      await node.post(body(42, [insert("a"), insert("b"), update("a", { updated_at: T - 1 })])),
    ).toEqual({
      applied: 2,
      ack: 42,
      identity: { db: node.store.dbId, last: { batchId: 0, hash: "0" } },
    });
    await node.close();
  });

  test.each([
    ['{"batch_id":9,"changes":[]}', 9],
    ['{"batch_id":9,"changes":null}', 9],
    ['{"changes":[],"batch_id":-1,"later":{}}', -1],
  ])("to %s is 200 with nothing applied", async (text, ack) => {
    const node = new TestNode();
    expect(await node.post(text, { identity: null })).toEqual({
      applied: 0,
      ack,
      identity: { db: node.store.dbId },
    });
    await node.close();
  });

  test.each([
    "",
    "{",
    "null",
    "[]",
    '{"changes":[]}',
    '{"batch_id":1.5,"changes":[]}',
    '{"batch_id":1,"changes":{}}',
  ])("to %p is 400, and nothing was done", async (text) => {
    const node = new TestNode();
    const commits = node.commits;
    expect(await failure(node.post(text))).toBe("400");
    expect(node.commits).toBe(commits);
    await node.close();
  });

  test("to a large batch comes after its last transaction, and counts all of it", async () => {
    const node = new TestNode();
    const commits = node.commits;
    // Every look at the clock takes a while, so that no transaction takes it all.
    const { time } = node;
    time.monotonicMs = () => (time.ms += 5);
    expect((await node.post(body(1, many(10_000)))).applied).toBe(10_000);
    expect(node.commits - commits).toBeGreaterThan(1);
    expect(node.store.peers.mark(OURS.db).batchId).toBe(1);
    await node.close();
  });
});

describe("marks", () => {
  const last = async (node: TestNode, batchId: number, changes: readonly TestChange[]) =>
    (await node.post(body(batchId, changes))).identity.last;
  const hashOf = async (change: TestChange) => {
    const scratch = new TestNode();
    await scratch.sync([change]);
    const { hash } = scratch.store.peers.mark(OURS.db);
    await scratch.close();
    return hash;
  };

  test("the reply carries the one before the batch", async () => {
    const node = new TestNode();
    const [a, b] = [insert("a"), insert("b")];
    expect(await last(node, 5, [a])).toEqual({ batchId: 0, hash: "0" });
    expect(await last(node, 9, [a, b])).toEqual({ batchId: 5, hash: await hashOf(a) });
    expect(await last(node, 9, [a, b])).toEqual({ batchId: 9, hash: await hashOf(b) });
    await node.close();
  });

  test("they never move back, however late and often a batch comes", async () => {
    const node = new TestNode();
    await last(node, 9, [insert("b")]);
    for (const batchId of [3, 8, 1]) await last(node, batchId, [insert("a")]);
    expect(node.store.peers.mark(OURS.db)).toEqual({ batchId: 9, hash: await hashOf(insert("b")) });
    await node.close();
  });

  test("one below what the sender takes for acknowledged stands still until it starts over", async () => {
    const node = new TestNode();
    const send = (batchId: number, prev: number) =>
      node.post(body(batchId, [insert(`${batchId}`)]), { identity: { ...OURS, prev } });
    const marks = [await send(3, 0), await send(9, 8), await send(12, 9)].map(
      ({ identity }) => identity.last?.batchId,
    );
    expect(marks).toEqual([0, 3, 3]);
    await send(14, 0);
    // What it had sent before comes late.
    await send(20, 15);
    expect(node.store.peers.mark(OURS.db).batchId).toBe(14);
    expect(node.count("SELECT count(*) AS n FROM items")).toBe(5);
    await node.close();
  });

  test("one that its sender goes past without its change is told until the sender is another file", async () => {
    const node = new TestNode();
    const send = async (batchId: number, prev: number, ids: string) =>
      (
        await node.post(
          body(
            batchId,
            ids.split("").map((id) => insert(id)),
          ),
          {
            identity: { ...OURS, prev },
          },
        )
      ).identity.doubt;
    const of = async (batchId: number, id: string) => ({ batchId, hash: await hashOf(insert(id)) });
    // It heard of none of this, and sends it again with what it wrote meanwhile.
    expect(await send(1, 0, "a")).toBeUndefined();
    expect(await send(1, 0, "a")).toBeUndefined();
    expect(await send(2, 0, "ab")).toBeUndefined();
    expect(await send(3, 2, "c")).toBeUndefined();
    // What comes late says nothing.
    expect(await send(1, 0, "a")).toBeUndefined();
    // A restored one: the same number, another change.
    expect(await send(3, 2, "d")).toEqual(await of(3, "c"));
    expect(await send(4, 2, "de")).toEqual(await of(3, "c"));
    expect(await send(5, 4, "f")).toEqual(await of(3, "c"));
    // And once more, with more than was known of it.
    expect(await send(9, 2, "gh")).toEqual(await of(5, "f"));
    expect(node.store.identity(OURS.db).doubt).toEqual(await of(5, "f"));
    expect(node.store.identity("aaaaaaaaaaaaaaaa").doubt).toBeUndefined();
    await node.close();
    const again = new TestNode({ path: node.path });
    expect(again.store.identity(OURS.db).doubt).toEqual(await of(5, "f"));
    await again.close();
  });

  test("each file has its own, over restarts; a foreign sender has none", async () => {
    const first = new TestNode();
    await first.sync([insert("a")], { batchId: 7 });
    await first.sync([insert("a")], { batchId: 4, identity: { db: "aaaaaaaaaaaaaaaa" } });
    await first.sync([insert("a")], { batchId: 99, identity: null });
    await first.close();
    const node = new TestNode({ path: first.path });
    expect([OURS.db, "aaaaaaaaaaaaaaaa"].map((db) => node.store.peers.mark(db).batchId)).toEqual([
      7, 4,
    ]);
    expect(node.count("SELECT count(*) AS n FROM _hooksync_marks")).toBe(2);
    await node.close();
  });

  test("one is not set when the batch fails, and not by a part of a batch", async () => {
    const node = new TestNode({ parkedBytesMax: 1 });
    expect(await failure(node.post(body(3, [insert("a"), { op: "?" }])))).toBe("disk-full");
    expect(node.store.peers.mark(OURS.db).batchId).toBe(0);
    await node.close();
  });

  test("the hash tells operation, table, id and version apart, and nothing else", async () => {
    const base = await hashOf(insert("a"));
    expect(await hashOf(insert("a", { name: "other" }))).toBe(base);
    for (const other of [
      update("a"),
      insert("b"),
      insert("a", { updated_at: T + 1 }),
      { ...(insert("a") as object), table: "t" },
    ]) {
      expect(await hashOf(other)).not.toBe(base);
    }
    expect(await hashOf("5")).toBe("0");
  });
});

describe("a batch's number says nothing of what is in it", () => {
  test("one that was acknowledged before is applied when it holds something else", async () => {
    const node = new TestNode();
    await node.post(body(9, [insert("a"), insert("b")]));
    // The sender's log begins again: same numbers, other changes; and some that are known.
    const again = body(9, [insert("b"), insert("c"), update("a", { updated_at: T + 1, value: 7 })]);
    expect(await node.post(again)).toMatchObject({ applied: 3, ack: 9 });
    expect(await node.post(body(1, [insert("d")]))).toMatchObject({ applied: 1, ack: 1 });
    expect(node.db.query("SELECT id, value FROM items ORDER BY id").values()).toEqual([
      ["a", 7],
      ["b", 1],
      ["c", 1],
      ["d", 1],
    ]);
    await node.close();
  });

  test("it moves no watermark of ours, and nothing of ours is taken for sent", async () => {
    const node = new TestNode();
    node.store.configurePeers(["http://a"], (url) => url);
    await node.write(`INSERT INTO items(id, updated_at) VALUES ('own', ${T})`);
    await node.post(body(170_000, [insert("theirs")]));
    expect(node.db.query("SELECT peer_url, last_acked FROM _peer_state").values()).toEqual([
      ["http://a", 0],
    ]);
    expect(node.log().map(({ row_id }) => row_id)).toEqual(["own"]);
    await node.close();
  });
});

test("a batch that comes again while it is still applied is answered each time, and applied once", async () => {
  const node = new TestNode();
  // Every look at the clock takes a while, so that no transaction takes a whole batch.
  const { time } = node;
  time.monotonicMs = () => (time.ms += 5);
  const batch = body(5_000, many(5_000));
  const local = node.store.queue.run("local", () => node.count("SELECT count(*) AS n FROM items"));
  const answers = await Promise.all([node.post(batch), node.post(batch), node.post(batch)]);
  expect(answers.map(({ applied, ack }) => [applied, ack])).toEqual([
    [5_000, 5_000],
    [5_000, 5_000],
    [5_000, 5_000],
  ]);
  expect(await local).toBe(0);
  expect(node.count("SELECT count(*) AS n FROM items")).toBe(5_000);
  expect([node.log(), node.parked()]).toEqual([[], []]);
  await node.close();
});

describe("too much at once", () => {
  test("bodies beyond what is held are asked to come back; those accepted are answered", async () => {
    const node = new TestNode();
    const large = new TextEncoder().encode(
      body(1, [insert("a", { name: "x".repeat(30 * 1024 * 1024) })]),
    );
    const answers = await Promise.all(Array.from({ length: 20 }, () => failure(node.post(large))));
    const counts = (outcome: string) => answers.filter((each) => each === outcome).length;
    expect(counts("none")).toBe(8);
    expect(counts("503")).toBe(12);
    expect(await failure(node.post(large))).toBe("none");
    await node.close();
  });

  test("and so are too many small ones, with the time to wait", async () => {
    const node = new TestNode();
    const small = body(1, [insert("a")]);
    const work = Array.from({ length: 100 }, () => node.post(small));
    const refused = (await Promise.allSettled(work)).flatMap((each) =>
      each.status === "rejected" ? [each.reason as RequestError] : [],
    );
    expect(refused.length).toBe(100 - 64);
    expect(
      refused.every(({ status, headers }) => status === 503 && headers["Retry-After"] === "1"),
    ).toBe(true);
    await node.close();
  });
});

describe("a failing world", () => {
  test("disk full: no acknowledgement, nothing half done, and the same batch applies once there is room", async () => {
    const node = new TestNode();
    await node.sync([insert("there")]);
    const pages = node.db.query<{ page_count: number }, []>("PRAGMA page_count").get()!.page_count;
    node.db.run(`PRAGMA max_page_count = ${pages}`);
    const batch = body(77, many(5_000));
    expect(await failure(node.post(batch))).toBe("disk-full");
    expect(node.count("SELECT count(*) AS n FROM items")).toBe(1);
    expect(node.store.peers.mark(OURS.db).batchId).toBeLessThan(77);
    expect(node.parked()).toEqual([]);
    node.db.run("PRAGMA max_page_count = 1000000");
    expect(await node.post(batch)).toMatchObject({ applied: 5_000, ack: 77 });
    await node.close();
  });

  test("disk full in one batch is no failure of another in the same transaction", async () => {
    const node = new TestNode();
    await node.sync([insert("there")]);
    const pages = node.db.query<{ page_count: number }, []>("PRAGMA page_count").get()!.page_count;
    node.db.run(`PRAGMA max_page_count = ${pages}`);
    const [large, small] = await Promise.all([
      failure(node.post(body(1, many(5_000)))),
      failure(node.post(body(2, [update("there", { value: 9, updated_at: T + 1 })]))),
    ]);
    expect([large, small]).toEqual(["disk-full", "none"]);
    expect(node.row<{ value: number }>("there")?.value).toBe(9);
    await node.close();
  });

  /** Another program that holds the write lock for this long. */
  function holdLock(path: string, ms: number): Promise<{ released: Promise<unknown> }> {
    const script = `
      import { Database } from "bun:sqlite";
      const db = new Database(${JSON.stringify(path)});
      db.run("BEGIN IMMEDIATE");
      console.log("held");
      await Bun.sleep(${ms});
      db.run("COMMIT");`;
    const child = Bun.spawn([process.execPath, "-e", script], {
      stdout: "pipe",
      stderr: "inherit",
    });
    return child.stdout
      .getReader()
      .read()
      .then(() => ({ released: child.exited }));
  }

  /** The clock of the machine, since another process is what is waited for. */
  class RealTime extends VirtualTime {
    override nowMs(): number {
      return T + Math.floor(Bun.nanoseconds() / 1e6);
    }
    override monotonicMs(): number {
      return Bun.nanoseconds() / 1e6;
    }
  }

  test("the write lock held by another program for 3 s: the batch waits, everything else goes on", async () => {
    const node = new TestNode({ time: new RealTime(), timers: systemTimers });
    const { released } = await holdLock(node.path, 3_000);
    let longestMs = 0;
    let at = performance.now();
    const beat = setInterval(() => {
      longestMs = Math.max(longestMs, performance.now() - at);
      at = performance.now();
    }, 5);
    const answer = await node.post(body(1, many(100)));
    clearInterval(beat);
    expect(answer.applied).toBe(100);
    // The writer's own wait is 5 ms at most; the rest is a busy machine.
    expect(longestMs).toBeLessThan(500);
    await released;
    await node.close();
  });

  test("for 6 s: 503 after 5, and the batch applies when it comes again", async () => {
    const node = new TestNode({ time: new RealTime(), timers: systemTimers });
    const { released } = await holdLock(node.path, 6_000);
    const start = performance.now();
    expect(await failure(node.post(body(1, many(100))))).toBe("busy");
    expect((performance.now() - start) / 1_000).toBeGreaterThan(4.5);
    await released;
    expect(await node.post(body(1, many(100)))).toMatchObject({ applied: 100, ack: 1 });
    await node.close();
  });

  test("what was acknowledged is in the file: another connection sees it at once", async () => {
    const node = new TestNode();
    const reader = new Database(node.path, { readonly: true });
    for (let i = 0; i < 5; i++) {
      await node.sync([insert(`a${i}`)]);
      expect(reader.query<{ n: number }, []>("SELECT count(*) AS n FROM items").get()!.n).toBe(
        i + 1,
      );
    }
    reader.close();
    await node.close();
  });
});

test("senders are named as they name themselves, or by their address", async () => {
  const node = new TestNode();
  const parked = async (nodeId: string | undefined, nodeUrl: string | undefined) => {
    await node.receiver.receive({
      body: new TextEncoder().encode(`{"batch_id":1,"changes":[{"op":"${nodeId}${nodeUrl}"}]}`),
      nodeId,
      nodeUrl,
      identity: undefined,
    });
    return node.parked().at(-1)!.peer;
  };
  expect(await parked("go-1", undefined)).toBe("go-1");
  expect(await parked("go-1", "http://hub")).toBe("go-1");
  expect(await parked("x".repeat(1_000), undefined)).toBe("x".repeat(256));
  expect(await parked(undefined, "http://hub")).toBe("http://hub");
  expect(await parked(undefined, undefined)).toBe("a node without a name");
  await node.close();
});

test("received changes and other programs' writes are work, for a second, and housekeeping is none", async () => {
  const node = new TestNode();
  const works = async (begin: () => unknown) => {
    await begin();
    await node.store.queue.run("apply", () => undefined);
    const { isAtWork } = node.store.queue;
    node.time.pass(1_000);
    return [isAtWork, node.store.queue.isAtWork];
  };
  node.time.pass(1_000);
  expect(await works(() => undefined)).toEqual([false, false]);
  expect(await works(() => node.sync([insert("a")]))).toEqual([true, false]);
  expect(await works(() => node.app.run("UPDATE items SET name = 'b'"))).toEqual([true, false]);
  await node.close();
});

test.each([
  ["a row whose id is not UTF-8", "INSERT INTO items(id) VALUES(CAST(x'61ff' AS TEXT))"],
  ["the delete of one", "DELETE FROM items WHERE id = CAST(x'ff62' AS TEXT)"],
  ["a row whose id begins with a byte order mark", "INSERT INTO items(id) VALUES(char(65279))"],
  ["the delete of one, with a NUL in it", "DELETE FROM items WHERE id = char(65279, 0)"],
])("the mark of a batch that ends with %s is the sender's", async (_, sql) => {
  const sender = new TestNode();
  const node = new TestNode();
  await sender.write("INSERT INTO items(id) VALUES(CAST(x'ff62' AS TEXT)), (char(65279, 0))");
  const after = sender.store.settledThrough;
  await sender.write(sql);
  const { body, through } = sender.batchAfter(after)!;
  await node.post(body);
  const hash = sender.store.log.hashOf(through)!;
  expect(node.store.peers.mark(OURS.db)).toEqual({ batchId: through, hash });
  await sender.close();
  await node.close();
});
