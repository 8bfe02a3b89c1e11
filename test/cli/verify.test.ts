/**
 * `hook-sync verify` between real nodes: it finds exactly what was planted, reads next to nothing for
 * it, repairs it, and never calls a change in flight a difference. `VERIFY_ROWS=1000000 bun test …` for
 * the size of the issue.
 */

import { expect, test } from "bun:test";
import { copyFileSync } from "node:fs";
import { connectAll, Fleet, type Member, settled, until } from "../interop/support/fleet.ts";
import { run } from "./run.ts";

const ROWS = Number(process.env["VERIFY_ROWS"] ?? 200_000);
const TEST_MS_MAX = 60_000 + ROWS / 2;
const FLAGS = ["--tables", "*", "--verify-every", "0", "--health-ms", "200"];

interface Report {
  readonly equal: boolean;
  readonly tables: readonly {
    readonly table: string;
    readonly rows: readonly (number | null)[];
    readonly differing: readonly {
      readonly id: string;
      readonly versions: readonly (number | null)[];
      readonly states: readonly string[];
      readonly columns: readonly { readonly column: string; readonly values: readonly string[] }[];
      readonly repaired: boolean;
    }[];
    readonly rows_read: readonly number[];
  }[];
  readonly in_flight: readonly string[];
}

async function verify(nodes: readonly { readonly url: string }[], ...flags: string[]) {
  const argv = ["verify", ...nodes.map(({ url }) => url), ...flags, "--json"];
  const { code, out, err } = await run(argv, { msMax: TEST_MS_MAX });
  const report = (out === "" ? undefined : JSON.parse(out)) as Report;
  return { code, report, err, table: report?.tables[0] };
}

/** Two nodes that do not know each other, with the same rows: whatever differs was planted. */
async function twins(fleet: Fleet, script: string): Promise<[Member, Member]> {
  const [a, b] = [
    fleet.declare("ours", "a", { flags: FLAGS }),
    fleet.declare("ours", "b", { flags: FLAGS }),
  ];
  a.write(script);
  copyFileSync(a.dbPath, b.dbPath);
  await Promise.all([a.start(), b.start()]);
  return [a, b];
}

const ITEMS = "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value, updated_at INTEGER)";

function itemsScript(rows: number): string {
  return `${ITEMS};
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${rows})
    INSERT INTO items SELECT lower(hex(randomblob(8))) || '-' || i, 'name of row ' || i, i, 1700000000000 + i FROM n`;
}

/** As a fault would: past the triggers. */
function plant(node: Member, ...statements: string[]): void {
  node.write(
    ["UPDATE _meta SET value = 1", ...statements, "UPDATE _meta SET value = 0"].join(";\n"),
  );
}

/** An address in front of a node that counts, or holds up, what passes. */
class Front implements AsyncDisposable {
  requests: string[] = [];
  bytes = 0;
  isSyncHeld = false;
  healthRequests = 0;
  readonly #server: Bun.Server<undefined>;

  constructor(target: Member) {
    this.#server = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      idleTimeout: 60,
      fetch: async (request) => {
        const { pathname, search } = new URL(request.url);
        if (pathname === "/sync" && this.isSyncHeld) return new Response("", { status: 503 });
        if (pathname === "/health") this.healthRequests++;
        const body = request.method === "GET" ? null : await request.text();
        const headers = new Headers(request.headers);
        headers.delete("host");
        const { method } = request;
        const answer = await fetch(target.url + pathname + search, { method, headers, body });
        const text = await answer.text();
        if (pathname.startsWith("/sync/")) {
          this.requests.push(`${method} ${pathname}`);
          this.bytes += text.length;
        }
        return new Response(text, { status: answer.status });
      },
    });
  }

  get url(): string {
    return `http://127.0.0.1:${this.#server.port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#server.stop(true);
  }
}

test(
  `planted differences in ${ROWS} rows: found exactly, at the cost of few rows, and repaired`,
  async () => {
    await using fleet = new Fleet();
    const [a, b] = await twins(fleet, itemsScript(ROWS));
    await using front = new Front(b);

    const beganMs = performance.now();
    const equal = await verify([a, front]);
    const tookMs = performance.now() - beganMs;
    console.log(`${ROWS} rows on two nodes compared in ${Math.round(tookMs)} ms`);
    expect([equal.code, equal.report.equal, equal.table!.rows]).toEqual([0, true, [ROWS, ROWS]]);
    // One hash a table, and nothing else, where all is equal.
    expect(new Set(front.requests)).toEqual(new Set(["GET /sync/digest"]));
    expect(front.bytes).toBeLessThan(1_000 * front.requests.length);

    async function expectFound(ids: readonly string[], ...flags: string[]) {
      const found = await verify([a, b], ...flags);
      const isRepaired = flags.includes("--repair");
      expect([found.code, found.report.equal]).toEqual([isRepaired ? 0 : 1, isRepaired]);
      expect(found.report.in_flight).toEqual([]);
      expect(found.table!.differing.map(({ id }) => id).sort()).toEqual([...ids].sort());
      for (const read of found.table!.rows_read) expect(read).toBeLessThan(ROWS / 20);
      return found.table!;
    }
    const idOf = (i: number) =>
      a.sql<{ id: string }>("SELECT id FROM items WHERE rowid = ?", i)[0]!.id;
    const where = (i: number) => `WHERE id = '${idOf(i)}'`;

    // One row, newer on b.
    const one = idOf(77);
    plant(b, `UPDATE items SET value = -1, updated_at = updated_at + 5 ${where(77)}`);
    const [first] = (await expectFound([one])).differing;
    expect(first!.versions).toEqual([1_700_000_000_077, 1_700_000_000_082]);
    expect((await verify([a, b], "--repair")).code).toBe(0);
    expect((await a.item(one))?.value).toBe(-1);

    // A deleted row of which nobody remembers that it was deleted; one that is remembered.
    const [lost, gone] = [idOf(500), idOf(501)];
    plant(b, `DELETE FROM items ${where(500)}`, `DELETE FROM items ${where(501)}`);
    plant(
      b,
      `INSERT INTO _hooksync_tombstones VALUES('items', '${gone}', 1700000000501, 1700000000501)`,
    );
    const deleted = await expectFound([lost, gone], "--repair");
    expect(deleted.differing.find(({ id }) => id === gone)!.states).toEqual(["row", "deleted"]);
    expect(deleted.differing.find(({ id }) => id === lost)!.states).toEqual(["row", "nothing"]);
    expect([(await b.item(lost))?.value, await a.item(gone)]).toEqual([500, undefined]);

    // The same version and another type: each node's own rules decide, alike.
    const [real, text] = [idOf(900), idOf(901)];
    plant(
      b,
      `UPDATE items SET value = 900.0 ${where(900)}`,
      `UPDATE items SET value = '\\x00ff' ${where(901)}`,
    );
    plant(a, `UPDATE items SET value = x'00ff' ${where(901)}`);
    const tied = await expectFound([real, text], "--repair");
    const columnsOf = (id: string) => tied.differing.find((key) => key.id === id)!.columns;
    expect(columnsOf(real)).toEqual([{ column: "value", values: ["900", "900.0"] }]);
    expect(columnsOf(text)).toEqual([{ column: "value", values: ['"\\x00ff"', '"\\\\x00ff"'] }]);
    const types = "SELECT typeof(value) AS type FROM items WHERE id IN (?, ?) ORDER BY type";
    for (const node of [a, b])
      expect(node.sql(types, real, text)).toEqual([{ type: "blob" }, { type: "real" }]);

    // A thousand, all over the table, newer on one side or the other.
    const step = Math.floor(ROWS / 1_000);
    const many = Array.from({ length: 1_000 }, (_, at) => 1_000 + at * (step - 2));
    const list = (odd: number) => many.filter((_, at) => at % 2 === odd).join(",");
    const ids = a
      .sql<{ id: string }>(`SELECT id FROM items WHERE rowid IN (${many.join(",")})`)
      .map(({ id }) => id);
    for (const [odd, node] of [a, b].entries()) {
      const inList = `WHERE id IN (SELECT id FROM items WHERE rowid IN (${list(odd)}))`;
      plant(node, `UPDATE items SET name = 'changed', updated_at = updated_at + 1 ${inList}`);
    }
    const repaired = await expectFound(ids, "--repair");
    console.log(
      `1000 rows that differ were found by reading ${repaired.rows_read.join(" and ")} again`,
    );
    expect(repaired.differing.every((key) => key.repaired)).toBe(true);
    expect((await verify([a, b])).code).toBe(0);
    const changed = "SELECT count(*) AS n FROM items WHERE name = 'changed'";
    for (const node of [a, b]) expect(node.sql(changed)).toEqual([{ n: 1_000 }]);
  },
  TEST_MS_MAX,
);

test("three nodes, tables and columns that not all have, and what a person reads", async () => {
  await using fleet = new Fleet();
  const [a, b] = await twins(fleet, itemsScript(300));
  const c = fleet.declare("ours", "c", { flags: FLAGS });
  c.write(
    `${ITEMS.replace("value", "VALUE, extra")}; CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER)`,
  );
  await c.start();
  const rows = a.sql<{ id: string; name: string; value: number; updated_at: number }>(
    "SELECT id, name, value, updated_at FROM items ORDER BY rowid",
  );
  for (const { id, name, value, updated_at } of rows) {
    if (value === 9) continue;
    plant(
      c,
      `INSERT INTO items(id, name, value, updated_at, extra) VALUES('${id}', '${name}', ${value}, ${updated_at}, 7)`,
    );
  }
  const { code, out } = await run(["verify", a.url, b.url, c.url], { msMax: 20_000 });
  const nine = rows[8]!.id;
  expect(out).toBe(`table  a    b    c
items  300  300  299  1 differ
notes  -    -    0    not synced on a, b

items:
  the column extra is only on c and was not compared
  "${nine}"  a: version 1700000000009, b: version 1700000000009, c: nothing

notes:
  not synced on a: there is no such table, or it was not asked for (--tables)
  not synced on b: there is no such table, or it was not asked for (--tables)
`);
  expect(code).toBe(1);

  const repair = await verify([a, b, c], "--repair");
  expect(repair.code).toBe(1);
  const items = repair.report.tables.find(({ table }) => table === "items")!;
  expect(items.differing.map(({ id, repaired }) => [id, repaired])).toEqual([[nine, true]]);
  expect(c.sql(`SELECT value FROM items WHERE id = '${nine}'`)).toEqual([{ VALUE: 9 }]);
}, 30_000);

test("nodes whose rows are the same are not equal where one lacks a column or a table", async () => {
  await using fleet = new Fleet();
  const [a, b] = await twins(fleet, itemsScript(50));
  expect((await verify([a, b])).code).toBe(0);
  b.write("ALTER TABLE items ADD COLUMN extra");
  b.write("CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER)");
  a.write("CREATE TABLE notes(id TEXT PRIMARY KEY)");
  const table = async (node: Member) => {
    const { tables } = (await (await node.call("GET", "/health")).json()) as {
      tables: { synced: string[]; not_synced: unknown[] };
    };
    return tables;
  };
  await until("b syncs notes", async () => (await table(b)).synced.includes("notes"));
  await until("a cannot", async () => (await table(a)).not_synced.length === 1);
  const { code, out } = await run(["verify", "--repair", a.url, b.url], { msMax: 20_000 });
  expect(out).toBe(`table  a   b
items  50  50  equal in the columns that all have
notes  -   0   not synced on a

items:
  the column extra is only on b and was not compared

notes:
  not synced on a: it has no column updated_at
`);
  expect(code).toBe(1);
  a.write("DROP TABLE notes; ALTER TABLE items ADD COLUMN extra");
  b.write("DROP TABLE notes");
  await until("nobody has notes", async () => {
    const all = [...(await table(a)).not_synced, ...(await table(b)).not_synced];
    return all.length === 0 && (await verify([a, b])).code === 0;
  });
}, 30_000);

test("exact values survive a repair: digits, BLOBs, text that is not UTF-8, columns of other nodes", async () => {
  await using fleet = new Fleet();
  const [a, b] = await twins(fleet, ITEMS);
  plant(
    a,
    `INSERT INTO items VALUES('int', 'ü \u{1f600} "', 9007199254740993, 5), ('real', NULL, 1e300, 5), ('whole', NULL, 3.0, 5),
       ('blob', '\\x00', x'00ff', 5), ('broken', CAST(x'61ff62' AS TEXT), CAST(x'ff' AS TEXT), 5), ('inf', '', 9e999, 5),
       ('nul', CAST(x'6100' AS TEXT), NULL, 5), ('id with & % ''? ü', 'x', 1, 5)`,
  );
  // A column that neither has: what a newer node sent for it is kept, and travels, too.
  const change = (version: number, more: object) => ({
    op: "INSERT",
    table: "items",
    row: { id: "noted", name: "x", value: 1, updated_at: version, ...more },
    old_id: null,
  });
  const body = { batch_id: 7, changes: [change(3, { future: "kept" }), change(5, {})] };
  const headers = { "Content-Type": "application/json", "X-Hook-Sync": "v=1; db=00000000000000aa" };
  await fetch(`${a.url}/sync`, { method: "POST", headers, body: JSON.stringify(body) });
  expect((await verify([a, b], "--repair")).code).toBe(0);
  expect(b.content()).toEqual(a.content());
  const notes =
    "SELECT id, col, version, value FROM _hooksync_columns WHERE id <> '' ORDER BY id, col";
  expect(a.sql(notes)).toMatchObject([{ id: "noted", col: "future", version: 3 }]);
  expect(b.sql(notes)).toEqual(a.sql(notes));
}, 20_000);

test("a delete that one node never heard of, below a row that both have, takes its columns with it", async () => {
  await using fleet = new Fleet();
  const [a, b] = await twins(fleet, ITEMS);
  const change = (op: string, version: number, more: object) => ({
    op,
    table: "items",
    row: { id: "x", updated_at: version, ...more },
    old_id: op === "DELETE" ? "x" : null,
  });
  // `value` is of the older change: the newer one was made where there was no such column.
  const both = [change("INSERT", 3, { name: "", value: 1 }), change("UPDATE", 9, { name: "n" })];
  const headers = { "Content-Type": "application/json", "X-Hook-Sync": "v=1; db=00000000000000aa" };
  const post = async (node: Member, changes: readonly object[]) => {
    const body = JSON.stringify({ batch_id: 7, changes });
    expect((await fetch(`${node.url}/sync`, { method: "POST", headers, body })).status).toBe(200);
  };
  await post(a, both);
  await post(b, [...both, change("DELETE", 5, {})]);
  const row = "SELECT name, value, updated_at FROM items";
  expect([...a.sql(row), ...b.sql(row)]).toMatchObject([{ value: 1 }, { value: null }]);
  expect((await verify([a, b], "--repair")).code).toBe(0);
  expect([...a.sql(row), ...b.sql(row)]).toMatchObject([{ value: null }, { value: null }]);
}, 20_000);

test("what cannot be repaired stays different, and is said so", async () => {
  await using fleet = new Fleet();
  const [a, b] = await twins(fleet, ITEMS);
  plant(
    a,
    "INSERT INTO items VALUES('ahead', 'x', 1, 9000000000000), ('', 'x', 1, 5), ('fine', 'x', 1, 5)",
  );
  const { code, table } = await verify([a, b], "--repair");
  expect(code).toBe(1);
  expect(table!.differing.map(({ id, repaired }) => [id, repaired])).toEqual([
    ["", false],
    ["ahead", false],
    ["fine", true],
  ]);
}, 20_000);

test("changes in flight are waited for; when they do not arrive, nothing is claimed", async () => {
  await using fleet = new Fleet();
  const b = fleet.declare("ours", "b", { flags: ["--verify-every", "0"] });
  await b.start();
  await using front = new Front(b);
  const a = fleet.declare("ours", "a", { flags: FLAGS });
  a.peers = [front.url];
  await a.start();
  await a.create("first", 1);
  await settled([a, b]);

  front.isSyncHeld = true;
  await a.create("second", 2);
  const held = await verify([a, front], "--wait", "1");
  expect([held.code, held.report.equal]).toEqual([2, false]);
  expect(held.report.in_flight).toEqual([`a has 1 changes for ${front.url}`]);

  const waiting = verify([a, front], "--wait", "20");
  await until("verify asks for digests", () => front.requests.length > 0);
  front.isSyncHeld = false;
  const { code, report } = await waiting;
  expect([code, report.equal, report.in_flight]).toEqual([0, true, []]);
}, 40_000);

test("what another program wrote is in flight before its node has looked at it", async () => {
  await using fleet = new Fleet();
  const flags = ["--verify-every", "0", "--batch-ms", "60000"];
  const [a, b] = [fleet.declare("ours", "a", { flags }), fleet.declare("ours", "b", { flags })];
  connectAll([a, b]);
  await Promise.all([a.start(), b.start()]);
  await a.create("first", 1);
  await settled([a, b]);
  await using front = new Front(b);

  a.write("INSERT INTO items(id, updated_at) VALUES('from another program', 1)");
  const early = await verify([a, b], "--wait", "0");
  expect([early.code, early.report.in_flight]).toEqual([
    2,
    expect.arrayContaining(["a has not looked yet at what another program wrote"]),
  ]);

  const waiting = verify([a, front], "--wait", "20");
  await until("verify waits for it", () => front.healthRequests > 1);
  // With the next write of its own, or after --batch-ms, it looks.
  await a.create("second", 2);
  const { code, report } = await waiting;
  expect([code, report.equal, report.in_flight]).toEqual([0, true, []]);
}, 40_000);

test("nodes that write all the time are found equal", async () => {
  await using fleet = new Fleet();
  const [a, b] = await Promise.all(
    ["a", "b"].map((id) => fleet.declare("ours", id, { flags: FLAGS })),
  );
  a!.peers = [b!.url];
  b!.peers = [a!.url];
  await Promise.all([a!.start(), b!.start()]);
  const ids = await Promise.all(Array.from({ length: 50 }, (_, at) => a!.create("row", at)));
  await settled([a!, b!]);
  let isOver = false;
  async function write(node: Member, first: number) {
    for (let at = first; !isOver; at++) {
      await node.create("new", at);
      await node.update(ids[at % ids.length]!, `by ${node.id}`, at);
    }
  }
  const writers = [write(a!, 0), write(b!, 25)];
  const codes: number[] = [];
  for (let round = 0; round < 4; round++) codes.push((await verify([a!, b!])).code);
  isOver = true;
  await Promise.all(writers);
  // 2 only where some row changed at every look; 1 would be a lie.
  expect(codes.filter((code) => code !== 0 && code !== 2)).toEqual([]);
  expect((await verify([a!, b!])).code).toBe(0);
}, 40_000);

test("what cannot be compared: exit 2, and why", async () => {
  await using fleet = new Fleet();
  const a = await fleet.node("ours", [], { flags: ["--verify-every", "0"] });
  const recorder = fleet.recorder();
  const nobody = "http://127.0.0.1:1";
  const down = await run(["verify", a.url, nobody]);
  expect([down.code, down.out]).toEqual([2, ""]);
  expect(down.err).toStartWith(`hook-sync: could not compare: ${nobody}: `);
  const foreign = await run(["verify", a.url, recorder.url]);
  expect([foreign.code, foreign.err]).toEqual([
    2,
    `hook-sync: could not compare: ${recorder.url}: not found\n`,
  ]);
});

test("one node under two addresses is not compared with itself: exit 2, and why", async () => {
  await using fleet = new Fleet();
  const a = await fleet.node("ours", [], { flags: ["--verify-every", "0"] });
  const tap = fleet.tap(a);
  const { code, out, err } = await run(["verify", a.url, tap.url]);
  expect([code, out]).toEqual([2, ""]);
  expect(err).toBe(`hook-sync: could not compare: ${a.url} and ${tap.url} are one node\n`);
});

test.each([
  [[], "expected two nodes or more"],
  [["http://a:1"], "expected two nodes or more"],
  [["http://a:1", "http://a:1/"], "expected two nodes or more"],
  [["http://a:1", "b"], "URL"],
  [["http://a:1", "http://b:1", "--wait", "x"], "whole number of seconds"],
  [["http://a:1", "http://b:1", "--repai"], "did you mean --repair?"],
])("a wrong command line %j: exit 2, before anything is asked", async (argv, reason) => {
  const { code, err } = await run(["verify", ...argv]);
  expect(code).toBe(2);
  expect(err).toContain(reason);
  expect(err).toEndWith("Try: hook-sync help verify\n");
});
