/** A batch that comes again, as after a lost reply or a killed node, is taken without the work of a tie. */
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { systemTimers } from "../../lib/base/clock.ts";
import { systemRandom } from "../../lib/base/random.ts";
import { PARKED_BYTES_MAX, TOMBSTONE_RETENTION_MS } from "../../lib/protocol/limits.ts";
import { Receiver } from "../../lib/store/receive.ts";
import { Store } from "../../lib/store/store.ts";
import { TestClock } from "../support/store-fixture.ts";

test("repeats make no table to find out what affinity would do; a text in a number's place does", async () => {
  const folder = mkdtempSync(join(tmpdir(), "hook-sync-repeats-"));
  const store = Store.open({
    path: join(folder, "a.db"),
    nodeId: "a",
    asked: undefined,
    schemaSql: "CREATE TABLE t(id TEXT PRIMARY KEY, n INTEGER, any, b BLOB, updated_at INTEGER)",
    synchronous: "normal",
    parkedBytesMax: PARKED_BYTES_MAX,
    tombstoneRetentionMs: TOMBSTONE_RETENTION_MS,
    acceptOldFile: false,
    clock: new TestClock(),
    timers: systemTimers,
    random: systemRandom,
    onEvent: () => {},
    onCommit: () => {},
  });
  const receiver = new Receiver(store, () => {});
  // A sender of another make: its changes are judged one by one once it was heard.
  const receive = async (rows: readonly string[]) => {
    const changes = rows.map((row) => `{"op":"UPDATE","table":"t","row":${row},"old_id":null}`);
    const body = new TextEncoder().encode(`{"batch_id":5,"changes":[${changes.join(",")}]}`);
    const sender = { nodeId: "go", nodeUrl: undefined, identity: undefined };
    return (await receiver.receive({ body, ...sender })).applied;
  };
  const temporary = () =>
    store.db.query<{ n: number }, []>("SELECT count(*) AS n FROM temp.sqlite_master").get()!.n;
  const rows = Array.from(
    { length: 20 },
    (_, i) =>
      `{"id":"${i}","n":9223372036854775807,"any":${i}.0,"b":"\\\\x00ff","updated_at":${i + 1}}`,
  );
  expect([await receive(rows), await receive(rows), await receive(rows)]).toEqual([20, 20, 20]);
  expect(temporary()).toBe(0);
  expect(store.db.query("SELECT count(*) AS n FROM _changes").get()).toEqual({ n: 0 });
  const other = rows[3]!.replace("9223372036854775807", '"5"');
  expect(await receive([other])).toBe(0);
  expect(temporary()).toBe(1);
  await store.close();
  rmSync(folder, { recursive: true });
});
