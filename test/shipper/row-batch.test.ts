/** What repairs other nodes, read from a real file while other programs write it. */
import { Database } from "bun:sqlite";
import { afterAll, expect, test } from "bun:test";
import { rowBatch } from "../../lib/shipper/row-batch.ts";
import { ColumnNotes } from "../../lib/store/column-notes.ts";
import { digestTableOf } from "../../lib/store/digest.ts";
import { insert, rawChange, removeNodeFiles, T, TestNode } from "../support/receive-fixture.ts";

afterAll(removeNodeFiles);

test("a row that another program wrote stays here until it has its final version", async () => {
  const node = new TestNode();
  await node.sync([insert("a"), insert("b")]);
  const reader = new Database(node.path, { readonly: true });
  const sent = () => {
    const table = digestTableOf(node.store.table("items")!);
    const { body, next } = rowBatch(reader, new ColumnNotes(reader), table, ["a", "b"], 1_000_000);
    const { changes } = JSON.parse(body) as {
      changes: { row: { id: string; updated_at: number } }[];
    };
    return { next, rows: changes.map(({ row }) => [row.id, row.updated_at - T]) };
  };
  node.app.run(`UPDATE items SET updated_at = ${T + 7_200_000} WHERE id = 'a'`);
  expect(sent()).toEqual({ next: 2, rows: [["b", 0]] });
  await node.store.queue.run("local", () => undefined);
  expect(sent()).toEqual({
    next: 2,
    rows: [
      ["a", 1],
      ["b", 0],
    ],
  });
  reader.close(true);
  await node.close();
});

test("text that is not UTF-8 stays what it is where columns have versions of their own, by repair and by fill", async () => {
  const sender = new TestNode();
  const partial = (id: string) =>
    rawChange(
      "items",
      { id: `"${id}"`, name: '"\\\\xff"', updated_at: `${T}` },
      ',"texts":["name"]',
    );
  await sender.sync([partial("a"), partial("b")]);
  // Of a column that is not there, the note has the change's other values, too.
  const late = { id: '"c"', name: '"\\\\xff"', late: '"\\\\xfe"', updated_at: `${T}` };
  await sender.sync([rawChange("items", late, ',"texts":["name","late"]')]);
  const expected = ["a", "b", "c"].map((id) => [id, "text", "FF"]);
  const rowsOf = (node: TestNode) =>
    node.db.query("SELECT id, typeof(name), hex(name) FROM items ORDER BY id").values();
  expect(rowsOf(sender)).toEqual(expected);

  const repaired = new TestNode();
  const reader = new Database(sender.path, { readonly: true });
  const table = digestTableOf(sender.store.table("items")!);
  const ids = ["a", "b", "c"];
  const { body } = rowBatch(reader, new ColumnNotes(reader), table, ids, 1_000_000);
  await repaired.post(body);
  expect(rowsOf(repaired)).toEqual(expected);

  const filled = new TestNode();
  sender.store.configurePeers(["http://a"], (url) => url);
  await sender.store.fill("http://a", "asked for");
  await filled.post(sender.batchAfter(0)!.body);
  expect(rowsOf(filled)).toEqual(expected);
  for (const node of [sender, repaired, filled]) {
    await node.write("ALTER TABLE items ADD COLUMN late TEXT");
    expect(node.db.query("SELECT hex(late) FROM items WHERE id = 'c'").values()).toEqual([["FE"]]);
  }
  reader.close(true);
  for (const node of [sender, repaired, filled]) await node.close();
});
