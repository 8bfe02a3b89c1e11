/** A log that another program emptied: who lacked something of it gets everything, and nobody else. */
import { describe, expect, test } from "bun:test";
import { StoreFile, T } from "../support/open-store.ts";

const A = "http://a";
const B = "http://b";

/** Two peers; A has the first of three changes. */
async function opened(): Promise<StoreFile> {
  const file = new StoreFile(
    `CREATE TABLE notes(id TEXT PRIMARY KEY, n, updated_at INTEGER); INSERT INTO notes VALUES('old', 0, ${T})`,
  );
  open(file);
  await file.store.needNoFill(A);
  await file.store.needNoFill(B);
  for (const id of ["a", "b", "c"]) file.write(`INSERT INTO notes(id) VALUES('${id}')`);
  await file.runDue();
  await file.store.recordMoves([
    { peer: A, through: 1 },
    { peer: B, through: 3 },
  ]);
  file.events.length = 0;
  return file;
}

function open(file: StoreFile): void {
  file.open({ asked: ["notes"] }).configurePeers([A, B], (url) => url);
}

function wanted(file: StoreFile): (string | null)[] {
  return file.store.peers.rows().map(({ fillWanted }) => fillWanted);
}

const REASON = "the log was emptied before it had everything";

describe.each(["running", "down"])("while the node is %s", (how) => {
  async function change(file: StoreFile, sql: string): Promise<void> {
    if (how === "down") await file.close();
    file.write(sql);
    if (how === "down") open(file);
    await file.runDue();
  }

  test.each([
    ["emptied", "DELETE FROM _changes"],
    [
      "emptied, and written to since",
      "DELETE FROM _changes; UPDATE notes SET n = 1 WHERE id = 'a'",
    ],
    [
      "emptied with its numbers",
      "DELETE FROM _changes; DELETE FROM sqlite_sequence; UPDATE notes SET n = 1 WHERE id = 'a'",
    ],
  ])("%s", async (_, sql) => {
    await using file = await opened();
    await change(file, sql);
    expect(file.kinds()).toContain("log-emptied");
    expect(wanted(file)).toEqual([REASON, null]);
    // Said and wanted once.
    file.events.length = 0;
    await file.store.fill(A, REASON);
    await change(file, "UPDATE notes SET n = 2 WHERE id = 'b'");
    expect(file.kinds()).not.toContain("log-emptied");
    expect(wanted(file)).toEqual([null, null]);
  });

  test("a part of it deleted by us is nothing of the kind", async () => {
    await using file = await opened();
    const isQuiet = async (sql: string) => {
      await change(file, sql);
      expect(file.kinds()).not.toContain("log-emptied");
      expect(wanted(file)).toEqual([null, null]);
    };
    await isQuiet("UPDATE notes SET n = 1 WHERE id = 'a'");
    for (const peer of [A, B])
      await file.store.recordMoves([{ peer, through: file.store.settledThrough }]);
    expect(file.entries()).toEqual([]);
    await isQuiet("UPDATE notes SET n = 2 WHERE id = 'old'");
    await isQuiet("UPDATE notes SET n = 3 WHERE id = 'old'");
  });

  test("entries that settling merged leave no gap to take for a loss", async () => {
    await using file = await opened();
    for (const peer of [A, B])
      await file.store.recordMoves([{ peer, through: file.store.settledThrough }]);
    await change(
      file,
      "BEGIN; INSERT INTO notes(id) VALUES('d'); UPDATE notes SET n = 1 WHERE id = 'd'; UPDATE notes SET n = 2 WHERE id = 'd'; COMMIT",
    );
    const newest = file.entries().at(-1)!.change_id;
    for (const peer of [A, B]) await file.store.recordMoves([{ peer, through: newest }]);
    expect(file.entries()).toEqual([]);
    await change(file, "UPDATE notes SET n = 3 WHERE id = 'd'");
    await change(file, "UPDATE notes SET n = 4 WHERE id = 'd'");
    expect(file.kinds()).not.toContain("log-emptied");
    expect(wanted(file)).toEqual([null, null]);
  });

  test("what was made for one peer alone, and taken by it, is not missed", async () => {
    await using file = await opened();
    for (const peer of [A, B])
      await file.store.recordMoves([{ peer, through: file.store.settledThrough }]);
    await file.store.fill(A, "asked for");
    for (let i = 0; i < 5 && file.store.isFilling; i++) {
      const newest = file.entries().at(-1)?.change_id ?? file.store.settledThrough;
      await file.store.recordMoves([{ peer: A, through: newest }]);
      await change(file, `UPDATE notes SET n = ${i} WHERE id = 'old'`);
    }
    expect(file.store.isFilling).toBe(false);
    expect(file.kinds()).not.toContain("log-emptied");
    expect(wanted(file)).toEqual([null, null]);
  });
});

describe.each(["running", "down"])(
  "a table of ours that was dropped while the node was %s",
  (how) => {
    test.each([
      "_meta",
      "_changes",
      "_dead_letter",
      "_peer_state",
      "_hooksync_noted",
      "_hooksync_tombstones",
      "_hooksync_columns",
      "_hooksync_marks",
      "_hooksync_origins",
      "_hooksync_contested",
      "_hooksync_left_out",
    ])("%s is made anew", async (name) => {
      await using file = await opened();
      const drop = `DROP TABLE ${name}`;
      if (how === "down") await file.close();
      file.write(drop);
      if (how === "down") open(file);
      await file.runDue();
      expect(file.events.map(({ kind, table }) => [kind, table])).toContainEqual([
        "table-restored",
        name,
      ]);
      const settled = file.store.settledThrough;
      file.write("INSERT INTO notes(id) VALUES('after'); DELETE FROM notes WHERE id = 'a'");
      await file.runDue();
      expect(file.log(settled).sort()).toEqual(["DELETE a", "INSERT after"]);
      expect(file.rows("SELECT id FROM _hooksync_tombstones")).toEqual([{ id: "a" }]);
      if (name === "_changes") expect(wanted(file)).toEqual([REASON, null]);
      expect(file.kinds().filter((kind) => kind === "table-restored").length).toBe(1);
    });
  },
);

test("without _hooksync a running node says what to do, and goes on after a start", async () => {
  await using file = await opened();
  file.write("DROP TABLE _hooksync; UPDATE notes SET n = 7 WHERE id = 'a'");
  await expect(file.settle()).rejects.toThrow("dropped the table _hooksync");
  await file.close();
  open(file);
  await file.runDue();
  expect(file.log()).toContain("UPDATE a");
  expect(file.rows("SELECT updated_at > 0 AS isStamped FROM notes WHERE id = 'a'")).toEqual([
    { isStamped: 1 },
  ]);
});
