/**
 * What may have left nodes different without any change that could be shipped leads to a comparison, and
 * that to equal rows: nobody has to ask for it.
 */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { content, freePort, type NodeProcess, Nodes, until } from "./support/node-process.ts";

const TEST_MS_MAX = 90_000;

const table = (name: string) => `CREATE TABLE ${name}(id TEXT PRIMARY KEY, n, updated_at INTEGER)`;

/** Two nodes, each the other's peer, on files that hold these tables. */
function pair(team: Nodes, schema: string, flags: readonly string[]): [NodeProcess, NodeProcess] {
  const [here, there] = [freePort(), freePort()];
  const make = (id: string, port: number, other: number) => {
    const node = team.make({ id, port, peers: [`http://127.0.0.1:${other}`], flags });
    using db = new Database(node.dbPath);
    db.run(schema);
    return node;
  };
  return [make("a", here, there), make("b", there, here)];
}

async function untilEqual(nodes: readonly NodeProcess[], name: string, rows: number) {
  await until(
    `${name} has ${rows} rows, the same on both`,
    () => {
      const [a, b] = nodes.map((node) => content(node.dbPath, name));
      return a!.length === rows && Bun.deepEquals(a, b);
    },
    60_000,
  );
}

const noted = (node: NodeProcess) => node.rows<{ n: unknown }>("SELECT n FROM notes")[0]?.n;

test(
  "a table that one node syncs later has what was written to it meanwhile",
  async () => {
    await using team = new Nodes();
    const nodes = pair(team, `${table("one")}; ${table("two")}`, ["--tables", "one,two"]);
    const [a, b] = nodes;
    a.flags = ["--tables", "one"];
    await Promise.all(nodes.map((node) => node.start()));
    await b.call("POST", "/api/two", { n: 1 });
    await b.call("POST", "/api/one", { n: 1 });
    await untilEqual(nodes, "one", 1);
    a.file((db) => db.run("INSERT INTO two(id, n) VALUES ('past', 2)"));
    await a.stop();
    a.flags = ["--tables", "one,two"];
    await a.start();
    await untilEqual(nodes, "two", 2);
  },
  TEST_MS_MAX,
);

test(
  "a table that another program puts back as it was gets what is newer elsewhere",
  async () => {
    await using team = new Nodes();
    const nodes = pair(team, table("notes"), ["--tables", "notes"]);
    const [a, b] = nodes;
    await Promise.all(nodes.map((node) => node.start()));
    const { body } = await a.call("POST", "/api/notes", { n: "old" });
    await untilEqual(nodes, "notes", 1);
    a.file((db) => db.run("CREATE TABLE backup AS SELECT * FROM notes"));
    await b.call("PUT", `/api/notes/${body.id}`, { n: "new" });
    await until("the edit is here", () => noted(a) === "new");
    a.file((db) =>
      db.run(`BEGIN; DROP TABLE notes; ${table("notes")};
        INSERT INTO notes SELECT * FROM backup; COMMIT`),
    );
    await untilEqual(nodes, "notes", 1);
    expect(noted(a)).toBe("new");
  },
  TEST_MS_MAX,
);
