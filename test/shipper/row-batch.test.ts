/** What repairs other nodes, read from a real file while other programs write it. */
import { Database } from "bun:sqlite";
import { afterAll, expect, test } from "bun:test";
import { rowBatch } from "../../lib/shipper/row-batch.ts";
import { ColumnNotes } from "../../lib/store/column-notes.ts";
import { digestTableOf } from "../../lib/store/digest.ts";
import { insert, removeNodeFiles, T, TestNode } from "../support/receive-fixture.ts";

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
