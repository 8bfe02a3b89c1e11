/**
 * Four nodes, each with all others as its peers, written through all of them at once: by REST in
 * batches and alone, and past them by other programs with SQL, one of them with an SQLite years older.
 * In the end all have the same rows, by value and type, nothing waits and nothing was given up; also
 * when random nodes are killed all the while.
 *
 * HOOK_SYNC_MESH_ROWS sets how many rows are written (each of the two runs); 100000 is the product's
 * promise, the default is what the gate has time for.
 */
import { expect, test } from "bun:test";
import { content, freePort, type NodeProcess, Nodes, until } from "./support/node-process.ts";
import { Program } from "./support/old-sqlite.ts";

const ROWS = Number(process.env["HOOK_SYNC_MESH_ROWS"] ?? 6_000);
/** Generous for a machine that does other things besides: 100 rows a second and a start. */
const RUN_MS_MAX = 60_000 + ROWS * 10;

const TABLES = ["things", 'odd "name'];
const SCHEMA = `
  CREATE TABLE things(
    id TEXT PRIMARY KEY, name TEXT, n INTEGER, r REAL, b BLOB, anything,
    created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE "odd ""name"(
    id TEXT PRIMARY KEY, thing TEXT REFERENCES things ON DELETE CASCADE, "a b" TEXT UNIQUE,
    twice GENERATED ALWAYS AS ("a b" || "a b"), Updated_At INTEGER) WITHOUT ROWID;`;

/** Also where the writing is over sooner: what is still under way then is worth disturbing, too. */
const KILLS_MIN = 6;

/** Rows that everyone writes all the time. */
const HOT = Array.from({ length: 12 }, (_, i) => `00000000-0000-7000-8000-0000000000${i + 10}`);

/** What must be there, and must not, when everything has arrived. */
interface Promised {
  readonly kept: string[];
  readonly deleted: string[];
}

const pick = <T>(from: readonly T[]): T => from[Math.floor(Math.random() * from.length)]!;

/** One request, repeated while its node is down or starting. Undefined where it was not found. */
async function request(node: NodeProcess, method: string, path: string, body?: unknown) {
  return until(
    `${node.id} answers ${method} ${path}`,
    async () => {
      const answer = await node.call(method, path, body);
      if (answer.status === 503) return false;
      if (answer.status < 300 || answer.status === 404) return answer;
      throw new Error(`${answer.status} ${JSON.stringify(answer.body)}`);
    },
    RUN_MS_MAX,
  );
}

async function writeByRest(node: NodeProcess, rows: number, promised: Promised): Promise<void> {
  const path = "/api/things";
  for (let written = 0; written < rows; ) {
    // In batches of a hundred, and every tenth row alone.
    const batch = Array.from({ length: Math.min(100, rows - written) }, (_, i) => ({
      id: Bun.randomUUIDv7(),
      name: `${node.id} 😀 ${written + i}`,
      n: written + i,
      r: (written + i) / 8,
      anything: i % 2 === 0 ? i : `text ${i}`,
    }));
    await request(node, "POST", `${path}/batch`, batch).catch(async (error) => {
      // Answered with a conflict: it was committed, and the answer was lost with the node.
      if (!String(error).includes("409")) throw error;
    });
    written += batch.length;
    promised.kept.push(...batch.map(({ id }) => id));
    const alone = Array.from({ length: Math.min(10, rows - written) }, (_, i) => ({
      name: `${i}`,
    }));
    const made = await Promise.all(alone.map((row) => request(node, "POST", path, row)));
    written += alone.length;
    promised.kept.push(...made.map(({ body }) => body.id as string));
    await request(node, "PATCH", `${path}/${pick(HOT)}`, { name: `${node.id} ${written}` });
    await request(node, "PUT", `${path}/${batch[0]!.id}`, { n: -1, r: 2 });
    const gone = batch.at(-1)!.id;
    await request(node, "DELETE", `${path}/${gone}`);
    promised.kept.splice(promised.kept.indexOf(gone), 1);
    promised.deleted.push(gone);
  }
}

async function writeBySql(node: NodeProcess, rows: number, promised: Promised): Promise<void> {
  await using program = new Program(node.dbPath, node.id < "c" ? "old" : "bun");
  const values = (i: number) =>
    pick([
      `'plain ${i}', ${i}, ${i}.0, x'00ff${"ab".repeat(i % 5)}', NULL`,
      `'NUL' || char(0) || 'and 😀', 9223372036854775807, 9.0e+999, NULL, x''`,
      `'', -9223372036854775808, 0.1, x'', 9007199254740993`,
      `NULL, NULL, NULL, NULL, 1e300`,
    ]);
  for (let written = 0; written < rows; ) {
    const things = Array.from({ length: 40 }, (_, i) => `${node.id}-${written + i}`);
    const odd = Array.from({ length: 10 }, (_, i) => `${node.id}:${written + i}`);
    const now = "CAST(strftime('%s', 'now') AS INTEGER) * 1000";
    const insert = (id: string, i: number) =>
      `('${id}', ${values(written + i)}, ${now}, ${now} + ${i}, 'by SQL')`;
    const doomed = things[1]!;
    await program.sql("BEGIN IMMEDIATE");
    await program.sql(`INSERT INTO things VALUES ${things.map(insert).join(", ")}`);
    await program.sql(
      `INSERT INTO "odd ""name" VALUES ${odd.map((id, i) => `('${id}', '${things[i]}', '${id} unique', ${i})`).join(", ")}`,
    );
    await program.sql(`UPDATE things SET name = name || '!', n = 5 WHERE id = '${things[0]}'`);
    await program.sql("COMMIT");
    // Stamps of all kinds, REPLACE, an upsert, a cascade; each a transaction of its own.
    await program.sql(
      `UPDATE things SET name = '${node.id} by SQL ${written}', updated_at = ${pick(["1", now, `${now} + 60000`, "updated_at"])} WHERE id = '${pick(HOT)}'`,
    );
    await program.sql(`REPLACE INTO things(id, name) VALUES ('${things[2]}', 'replaced')`);
    await program.sql(
      `INSERT INTO things(id, name, updated_at) VALUES ('${things[3]}', 'x', 1)
       ON CONFLICT(id) DO UPDATE SET name = 'upserted', updated_at = ${now}`,
    );
    await program.sql(`DELETE FROM things WHERE id = '${doomed}'`);
    written += things.length + odd.length;
    // What belongs to a row goes with it, also when REPLACE throws the row out.
    promised.kept.push(...things.filter((id) => id !== doomed), odd[0]!, ...odd.slice(3));
    promised.deleted.push(doomed, odd[1]!, odd[2]!);
  }
}

/**
 * Kills one node after the other, as a power cut would, until told to stop. Between two kills passes
 * a few times what a start takes, so that a busy machine has as much work done per life as an idle one.
 */
async function killAtRandom(nodes: readonly NodeProcess[], isOver: () => boolean): Promise<number> {
  let kills = 0;
  while (!isOver() || kills < KILLS_MIN) {
    const node = pick(nodes);
    await node.stop("SIGKILL");
    const startedMs = performance.now();
    await node.start();
    kills++;
    const startMs = performance.now() - startedMs;
    await Bun.sleep(startMs * (1 + 3 * Math.random()));
  }
  return kills;
}

async function isQuiet(nodes: readonly NodeProcess[]): Promise<boolean> {
  const healths = await Promise.all(nodes.map((node) => node.health()));
  return healths.every(({ ok, pending_changes }) => ok && pending_changes === 0);
}

test.each([
  ["nobody is harmed", false],
  ["random nodes are killed all the while", true],
])(
  `${ROWS} rows through four nodes, and %s: equal by value and type, nothing left over`,
  async (_, isDeadly) => {
    await using team = new Nodes();
    await Bun.write(`${team.root}/schema.sql`, SCHEMA);
    const ids = ["a", "b", "c", "d"];
    const ports = ids.map(() => freePort());
    const nodes = ids.map((id, at) =>
      team.make({
        id,
        port: ports[at]!,
        peers: ports.filter((_, i) => i !== at).map((port) => `http://127.0.0.1:${port}`),
        flags: ["--schema", `${team.root}/schema.sql`],
      }),
    );
    await Promise.all(nodes.map((node) => node.start()));
    const hot = HOT.map((id) => `('${id}', 'hot', 1)`).join(", ");
    nodes[0]!.exec(`INSERT INTO things(id, name, updated_at) VALUES ${hot}`);
    await until("the hot rows are everywhere", () =>
      nodes.every((node) => node.rows("SELECT 1 FROM things").length === HOT.length),
    );

    const startedMs = performance.now();
    const promised: Promised = { kept: [...HOT], deleted: [] };
    const share = ROWS / nodes.length / 2;
    let isWritten = false;
    const writing = Promise.all(
      nodes.flatMap((node) => [
        writeByRest(node, share, promised),
        writeBySql(node, share, promised),
      ]),
    ).finally(() => {
      isWritten = true;
    });
    const killing = isDeadly ? killAtRandom(nodes, () => isWritten) : Promise.resolve(0);
    const [, kills] = await Promise.all([writing, killing]);
    const writtenMs = performance.now();
    await until("nothing waits any more", () => isQuiet(nodes), RUN_MS_MAX);
    const quietMs = performance.now();

    const healths = await Promise.all(nodes.map((node) => node.health()));
    expect(healths.map(({ dead_letter, parked }) => [dead_letter, parked])).toEqual(
      nodes.map(() => [0, 0]),
    );
    expect(await Promise.all(nodes.map((node) => node.stop()))).toEqual([0, 0, 0, 0]);
    expect(nodes.flatMap((node) => node.leftovers())).toEqual([]);
    let compared = 0;
    for (const table of TABLES) {
      const [first, ...others] = nodes.map((node) => content(node.dbPath, table));
      for (const [at, other] of others.entries()) {
        const differing = first!.flatMap((row, i) => (row === other[i] ? [] : [[row, other[i]]]));
        expect([nodes[at + 1]!.id, table, other.length, differing.slice(0, 3)]).toEqual([
          nodes[at + 1]!.id,
          table,
          first!.length,
          [],
        ]);
      }
      compared += first!.length;
    }
    const found = new Set(
      TABLES.flatMap((table) =>
        nodes[0]!.rows<{ id: string }>(`SELECT id FROM "${table.replace('"', '""')}"`),
      ).map(({ id }) => id),
    );
    expect(promised.kept.filter((id) => !found.has(id))).toEqual([]);
    expect(promised.deleted.filter((id) => found.has(id))).toEqual([]);
    for (const node of nodes)
      expect(node.rows("PRAGMA integrity_check")).toEqual([{ integrity_check: "ok" }]);
    const seconds = (from: number, to: number) => ((to - from) / 1_000).toFixed(1);
    console.log(
      `mesh: ${compared} rows on each of four, written in ${seconds(startedMs, writtenMs)} s, ` +
        `quiet ${seconds(writtenMs, quietMs)} s later, ${kills} kills`,
    );
    if (isDeadly) expect(kills).toBeGreaterThanOrEqual(KILLS_MIN);
  },
  2 * RUN_MS_MAX,
);
