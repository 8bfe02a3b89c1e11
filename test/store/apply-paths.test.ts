/**
 * The chunk path against the row path: the same changes as one batch, the same with the triggers paused, one
 * by one, and one by one through the row path, must leave the same rows, tombstones, notes, log and parked changes, and count the same.
 */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { formatValue, type Value } from "../../lib/protocol/values.ts";
import { randomValue } from "../support/random-values.ts";
import { OURS, removeNodeFiles, T, TestNode, VirtualTime } from "../support/receive-fixture.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

afterAll(removeNodeFiles);

const SCHEMA = `
  CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT COLLATE NOCASE, n INTEGER, r REAL, x, d NUMERIC, updated_at INTEGER);
  CREATE TABLE "Other things"(ID TEXT PRIMARY KEY, "a b" TEXT, updated_at INTEGER, total AS (length("a b"))) WITHOUT ROWID;`;

interface Table {
  readonly name: string;
  readonly id: string;
  readonly columns: readonly string[];
}

const TABLES: readonly Table[] = [
  { name: "items", id: "id", columns: ["name", "n", "r", "x", "d"] },
  { name: "Other things", id: "ID", columns: ["a b"] },
];

/** What may be unusual in a change; each run has a few of them, so that each is met among usual rows. */
const ODDITIES = [
  "partial",
  "odd stamp",
  "unknown column",
  "generated column",
  "members in another order",
  "other case",
  "repeated member",
  "column twice by case",
  "delete without a row",
  "blobs member lost",
  "table in other case",
  "unknown table",
  "no id",
  "surrogate",
  "id as bytes",
] as const;
type Oddity = (typeof ODDITIES)[number];

interface Style {
  readonly ids: number;
  readonly versions: number;
  readonly deletes: number;
  readonly odd: readonly Oddity[];
  readonly palette: readonly Value[];
}

const TEXT = (value: string): Value => ({ kind: "text", value });

function randomStyle(random: Seeded): Style {
  const near = random.pick<readonly Value[]>([
    [TEXT("abc"), TEXT("ABC"), TEXT("abd")],
    [{ kind: "integer", value: 1n }, { kind: "real", value: 1 }, TEXT("1"), TEXT("1.0")],
    [{ kind: "blob", hex: "00" }, TEXT("\\x00"), { kind: "null" }],
    [],
  ]);
  return {
    ids: random.pick([6, 40, 40, 300]),
    versions: random.pick([1, 3, 1_000]),
    deletes: random.pick([0, 0.1, 0.4]),
    odd: random.shuffled(ODDITIES).slice(0, random.below(7)),
    palette: [...near, ...Array.from({ length: 4 - near.length }, () => randomValue(random))],
  };
}

function writeChange(random: Seeded, style: Style): string {
  const is = (oddity: Oddity) => style.odd.includes(oddity) && random.chance(0.1);
  const table = random.chance(0.85) ? TABLES[0]! : TABLES[1]!;
  const id = is("no id") ? "" : `row ${random.below(style.ids)}${is("surrogate") ? "\\ud800" : ""}`;
  const op = random.chance(style.deletes) ? "DELETE" : random.pick(["INSERT", "UPDATE"]);
  const isPartial = is("partial");
  const members: [string, string][] = [[table.id, `"${id}"`]];
  const blobs: string[] = [];
  for (const column of table.columns) {
    if (isPartial && random.chance(0.5)) continue;
    // Mostly what the row has anyway: ties and repeats that differ in one value, or in none.
    const usual = style.palette[(id.length + column.length) % style.palette.length]!;
    const value = random.chance(0.1) ? random.pick(style.palette) : usual;
    if (value.kind === "blob") blobs.push(column);
    const text = value.kind === "broken-text" ? '"plain"' : formatValue(value);
    members.push([column, text.replace("\\u005c", "\\\\")]);
  }
  const oddStamps = ["null", '"x"', "1.5", String(T + 9e6), "9007199254740993", "true"];
  const stamp = is("odd stamp") ? random.pick(oddStamps) : String(T + random.below(style.versions));
  members.push(["updated_at", stamp]);
  if (is("unknown column")) members.push(["unknown", random.pick(['"u"', "5", "null"])]);
  if (is("generated column")) members.push(["total", "5"]);
  if (is("repeated member")) members.push(["updated_at", stamp]);
  if (is("column twice by case")) members.push(["UPDATED_AT", stamp]);
  const ordered = is("members in another order") ? random.shuffled(members) : members;
  const isUpper = is("other case");
  const spelled = ordered.map(([name, text]) => `"${isUpper ? name.toUpperCase() : name}":${text}`);
  const row = op === "DELETE" && is("delete without a row") ? "null" : `{${spelled.join(",")}}`;
  const oldId = op === "DELETE" && random.chance(0.9) ? `"${id}"` : random.pick(["null", '""']);
  if (is("id as bytes")) blobs.push(table.id);
  const isNamed = blobs.length > 0 && !is("blobs member lost");
  const named = isNamed ? `,"blobs":${JSON.stringify(blobs)}` : "";
  const known = is("table in other case") ? table.name.toUpperCase() : table.name;
  const name = is("unknown table") ? "nowhere" : known;
  return `{"op":"${op}","table":"${name}","row":${row},"old_id":${oldId}${named}}`;
}

/** Says nothing of the change, and is unusual: so the row path decides it. */
const FOR_ROW_PATH = ',"texts":[]}';

function everything(node: TestNode): unknown {
  return {
    items: node.rows("items"),
    other: node.rows("Other things"),
    tombstones: node.tombstones(),
    notes: node.db
      .query("SELECT * FROM _hooksync_columns WHERE id <> '' ORDER BY tbl, id, col")
      .all(),
    parked: node
      .parked()
      .map(({ reason, change }) => `${reason} ${change.replace(FOR_ROW_PATH, "}")}`)
      .sort(),
    contested: node.db
      .query("SELECT tbl, id, step, since, due_at FROM _hooksync_contested ORDER BY tbl, id")
      .all(),
    origins: node.db
      .query("SELECT tbl, id, origin, is_foreign FROM _hooksync_origins ORDER BY tbl, id")
      .all(),
    log: node.log().map((entry) => JSON.stringify(entry)),
  };
}

function dropRepeats(changes: string[]): void {
  const seen = new Set<string>();
  const kept = changes.filter((change) => {
    const { table, row, old_id } = JSON.parse(change);
    const key = JSON.stringify([
      table.toLowerCase(),
      row?.id ?? row?.ID ?? old_id,
      row?.updated_at,
    ]);
    return !seen.has(key) && seen.add(key);
  });
  changes.splice(0, changes.length, ...kept);
}

/** What holds for both whatever the order in which rows of a table are written. */
function withoutOrder(all: unknown): unknown {
  const { log, ...rest } = all as { log: string[] };
  return { ...rest, log: [...log].sort() };
}

test.each([
  ["ours, no foreign peer heard", true, false],
  ["ours, a foreign peer heard before", true, true],
  ["foreign", false, true],
])("one batch or one by one: %s", async (_, isOurs, isActive) => {
  await forSeeds(10, async (random) => {
    const time = new VirtualTime();
    const open = () => new TestNode({ schema: SCHEMA, time });
    const [chunked, single, reference] = [open(), open(), open()];
    const paused = new TestNode({ schema: SCHEMA, time, pauseRowsMin: 1 });
    const nodes = [chunked, single, reference, paused];
    for (const node of nodes) {
      if (isActive) await node.sync([], { identity: null, from: "go" });
      // As an application left them before the node was there.
      node.db.run("UPDATE _meta SET value = 1");
      for (const [i, stamp] of ["NULL", "'x'", "1.5", "7"].entries()) {
        node.db.run(`INSERT INTO items(id, name, updated_at) VALUES ('row ${i}', 'own', ${stamp})`);
      }
      node.db.run("UPDATE _meta SET value = 0");
      await node.write(
        "INSERT INTO items(id, name, updated_at) VALUES ('row 4', 'own', 5), ('row 5', 'own', 6)",
      );
    }
    const style = randomStyle(random);
    const send = { identity: isOurs ? OURS : null, from: "a" };
    for (let round = 0; round < 4; round++) {
      const changes = Array.from({ length: random.pick([20, 60, 150]) }, () =>
        writeChange(random, style),
      );
      if (random.chance(0.3)) changes.push(...changes.slice(0, 30));
      // Of what a foreign node writes twice at one stamp in one batch, the last counts.
      if (!isOurs) dropRepeats(changes);
      const together = await chunked.sync(changes, send);
      const whilePaused = await paused.sync(changes, send);
      let apart = 0;
      let byRow = 0;
      for (const change of changes) {
        apart += await single.sync([change], send);
        byRow += await reference.sync([change.replace(/\}$/, FOR_ROW_PATH)], send);
      }
      expect([together, whilePaused, apart]).toEqual([byRow, byRow, byRow]);
      const expected = withoutOrder(everything(reference));
      expect(withoutOrder(everything(chunked))).toEqual(expected);
      expect(everything(paused)).toEqual(everything(chunked));
      expect(withoutOrder(everything(single))).toEqual(expected);
      time.pass(random.pick([0, 500, 2_000]));
    }
    for (const node of nodes) await node.close();
  });
});
