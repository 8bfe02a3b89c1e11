import { expect, test } from "bun:test";
import { TestNode } from "../support/receive-fixture.ts";

test("a row that a peer refuses twice is one dead letter, another peer's or another content is one more", () => {
  const node = new TestNode();
  const { db, deadLetters } = node.store;
  const log = (id: string, row: string) =>
    db.run(
      "INSERT INTO _changes(op, table_name, row_id, row_data) VALUES ('INSERT', 'items', ?, ?)",
      [id, row],
    );
  log("a", '{"id":"a","v":1}');
  log("a", '{"id":"a","v":1}');
  log("a", '{"id":"a","v":2}');
  const refuse = (peer: string, ...changeIds: number[]) =>
    deadLetters.refuse({ peer, changeIds, reason: "400", attempts: 6 }, 1);
  refuse("http://b:1", 1);
  refuse("http://b:1", 2);
  expect(deadLetters.counts().all).toBe(1);
  refuse("http://c:1", 2);
  refuse("http://b:1", 3);
  expect(deadLetters.counts().all).toBe(3);
});
