/** Tables of unusual names and shapes through a whole life of their rows, from one node to another. */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { quoteName } from "../../lib/store/sql.ts";
import { removeNodeFiles, T, TestNode } from "../support/receive-fixture.ts";
import { permutations } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

const NAMES = [
  "order",
  "select",
  "a b",
  'q"t',
  "it's",
  "NEW",
  "OLD",
  "😀",
  "Größe",
  "x'00'",
  "`b`",
];

const TABLES: readonly (readonly [what: string, table: string, columns: string[], sql: string])[] =
  [
    [
      "names with quotes, blanks and keywords",
      `we"ird 'tbl`,
      NAMES,
      `(id TEXT PRIMARY KEY, ${NAMES.map(quoteName).join(", ")}, updated_at INTEGER)`,
    ],
    [
      "a keyword for a name, without rowids",
      "group",
      ["group", "index"],
      `(id TEXT PRIMARY KEY, "group", "index" TEXT UNIQUE, updated_at INTEGER) WITHOUT ROWID`,
    ],
    [
      "columns computed from others",
      "computed",
      ["doc", "n"],
      `(id TEXT PRIMARY KEY, doc, n, twice AS (n * 2) STORED,
      kind AS (json_extract(doc, '$.kind')) VIRTUAL, updated_at INTEGER)`,
    ],
  ];

test.each(TABLES)("%s: made, changed, renamed and removed", async (_, table, columns, sql) => {
  const t = quoteName(table);
  const schema = `CREATE TABLE ${t}${sql};`;
  const [a, b] = [new TestNode({ schema, id: "a" }), new TestNode({ schema, id: "b" })];
  let sent = 0;
  const send = async (change: string) => {
    await a.write(change);
    const batch = a.batchAfter(sent)!;
    sent = batch.through;
    await b.post(batch.body);
    expect([b.rows(table), b.parked(), b.log()]).toEqual([a.rows(table), [], []]);
  };
  const names = columns.map(quoteName);
  const values = (i: number) =>
    columns.map((_, at) => `json_object('kind', ${10 * i + at})`).join(", ");
  const row = (i: number) => `('r${i}', ${values(i)}, ${T})`;
  await send(
    `INSERT INTO ${t}(id, ${names.join(", ")}, updated_at) VALUES ${row(1)}, ${row(2)}, ${row(3)}`,
  );
  expect(b.rows(table)).toHaveLength(3);
  for (const name of names)
    await send(`UPDATE ${t} SET ${name} = '{"kind":"changed"}' WHERE id = 'r1'`);
  await send(`UPDATE ${t} SET id = 'renamed' WHERE id = 'r2'`);
  await send(`DELETE FROM ${t} WHERE id = 'r3'`);
  expect(b.db.query(`SELECT id FROM ${t} ORDER BY id`).values()).toEqual([["r1"], ["renamed"]]);
  await a.close();
  await b.close();
});

test("a row that was given another id is gone under the old one, in every order of arrival", async () => {
  const a = new TestNode({ id: "a" });
  await a.write(`INSERT INTO items(id, name, updated_at) VALUES ('old', 'first', ${T})`);
  const made = a.batchAfter(0)!;
  await a.write(`UPDATE items SET id = 'new', updated_at = ${T + 1} WHERE id = 'old'`);
  const renamed = a.batchAfter(made.through)!;
  const { changes } = JSON.parse(new TextDecoder().decode(renamed.body)) as { changes: object[] };
  expect(changes.map((change) => (change as { op: string }).op)).toEqual(["DELETE", "UPDATE"]);
  const first = JSON.parse(new TextDecoder().decode(made.body)).changes[0] as Record<
    string,
    unknown
  >;
  for (const order of permutations([first, ...changes])) {
    const b = new TestNode({ id: "b" });
    for (const change of order) await b.sync([{ ...change }]);
    // The acknowledgement was lost: all of it comes again.
    await b.post(renamed.body);
    await b.post(made.body);
    expect(b.rows()).toEqual(a.rows());
    await b.close();
  }
  await a.close();
});

test("a new id that another node edited meanwhile keeps the newer edit", async () => {
  const [a, b] = [new TestNode({ id: "a" }), new TestNode({ id: "b" })];
  await a.write(
    `INSERT INTO items(id, name, updated_at) VALUES ('x', 'x', ${T}), ('y', 'y', ${T})`,
  );
  const made = a.batchAfter(0)!;
  await b.post(made.body);
  await b.write(`UPDATE items SET name = 'edited', updated_at = ${T + 9} WHERE id = 'y'`);
  await a.write(
    `DELETE FROM items WHERE id = 'y'; UPDATE items SET id = 'y', updated_at = ${T + 5} WHERE id = 'x'`,
  );
  await b.post(a.batchAfter(made.through)!.body);
  await a.post(b.batchAfter(0)!.body);
  expect(a.rows()).toEqual(b.rows());
  expect(a.db.query("SELECT id, name FROM items").values()).toEqual([["y", "edited"]]);
  await a.close();
  await b.close();
});
