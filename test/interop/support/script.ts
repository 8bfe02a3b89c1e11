/**
 * The fixed script of writes behind recordings/ and golden/: the same steps on every make of node, one
 * after the other, and what a peer receives for each. Ids and stamps are named by their order of
 * appearance, so that two runs can be compared as text, down to the digits of every number.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { type Fleet, type Make, type Member, until } from "./fleet.ts";
import type { Recorder, SyncRequest } from "./wire.ts";

const T = 1_700_000_000_000;
const insert = (...rows: string[]) =>
  `INSERT INTO items(id, name, value, created_at, updated_at, node_id) VALUES ${rows.join(", ")}`;

interface Step {
  name: string;
  run(member: Member, ids: string[]): Promise<void> | void;
}

/** What was done to the recorded nodes, in order. */
const STEPS: readonly Step[] = [
  {
    name: "POST one",
    async run(member, ids) {
      ids.push(await member.create("foo", 42));
    },
  },
  { name: "PUT", run: (member, ids) => member.update(ids[0] ?? "", "bar", 43) },
  { name: "DELETE", run: (member, ids) => member.remove(ids[0] ?? "") },
  {
    name: "POST batch of three",
    async run(member) {
      const items = [
        { name: "a", value: 1 },
        { name: "b", value: 2 },
        { name: 'ü😀\0"\\', value: 3 },
      ];
      await member.call("POST", "/api/items/batch", items);
    },
  },
  ...(
    [
      ["NULLs", insert(`('null', NULL, NULL, ${T}, ${T}, 'sql')`)],
      ["empty text, zero", insert(`('empty', '', 0, ${T}, ${T}, 'sql')`)],
      [
        "largest and smallest integer",
        insert(
          `('max', 'max', 9223372036854775807, ${T}, ${T}, 'sql')`,
          `('min', 'min', -9223372036854775808, ${T}, ${T}, 'sql')`,
          `('2^53+1', 'odd', 9007199254740993, ${T}, ${T}, 'sql')`,
        ),
      ],
      [
        "reals",
        insert(
          `('r1.5', 'real', 1.5, ${T}, ${T}, 'sql')`,
          `('r1e300', 'real', 1e300, ${T}, ${T}, 'sql')`,
          `('r-0.1', 'real', -0.1, ${T}, ${T}, 'sql')`,
          `('rtext', '1.0', '7', ${T}, ${T}, 'sql')`,
        ),
      ],
      [
        "insert, update, delete of one row in one transaction",
        `${insert(`('life', 'x', 1, ${T}, ${T}, 'sql')`)};
         UPDATE items SET name = 'y', updated_at = ${T + 1} WHERE id = 'life';
         DELETE FROM items WHERE id = 'life'`,
      ],
      ["update that forgets the stamp", "UPDATE items SET name = 'forgot' WHERE id = 'empty'"],
      ["id changed", "UPDATE items SET id = 'null2' WHERE id = 'null'"],
      ["null stamp", insert("('nostamp', 'x', 1, NULL, NULL, NULL)")],
      ["delete all", "DELETE FROM items"],
    ] as const
  ).map(([name, sql]) => ({ name: `SQL: ${name}`, run: (member: Member) => member.write(sql) })),
];

/** One request of a recording. */
export interface Recorded {
  step: string;
  headers: Record<string, string>;
  body: string;
}

/** Runs the script on a started member and gives what its peer received for each step. */
export async function recordScript(member: Member, peer: Recorder): Promise<Recorded[]> {
  const recorded: Recorded[] = [];
  const ids: string[] = [];
  const known = new Set<number>();
  const isNew = ({ batchId }: SyncRequest) => !known.has(batchId);
  for (const step of STEPS) {
    await step.run(member, ids);
    await until(`what "${step.name}" sends`, () => peer.requests.some(isNew));
    await until("the log to be empty", async () => (await member.health()).pending_changes === 0);
    for (const request of peer.requests.filter(isNew)) {
      if (!isNew(request)) continue; // a hub sends some batches twice
      known.add(request.batchId);
      recorded.push({ step: step.name, headers: request.headers, body: request.raw });
    }
  }
  return recorded;
}

/** The requests kept in a file of recordings/ or golden/. */
export function readRecording(path: string): Recorded[] {
  const text = readFileSync(join(import.meta.dir, "..", path), "utf8");
  return text
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Recorded);
}

const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;
/** Milliseconds of now, not of the script's own stamps around T. */
const STAMP = /\b1(?!70000000000)\d{12}\b/g;

/** The steps and bodies with ids and stamps named in order of appearance. */
export function normalised(recorded: Recorded[]): { step: string; body: string }[] {
  const names = new Map<string, string>();
  const nameAs = (kind: string) => (found: string) => {
    const known = names.get(found);
    if (known !== undefined) return known;
    const name = `<${kind} ${[...names.values()].filter((n) => n.startsWith(`<${kind}`)).length + 1}>`;
    names.set(found, name);
    return name;
  };
  return recorded.map(({ step, body }) => ({
    step,
    body: body.replace(UUID, nameAs("id")).replace(STAMP, nameAs("stamp")),
  }));
}

/** A node of the given make that ships to a recorder, named as in the recordings. */
export async function recordedNode(
  fleet: Fleet,
  make: Make,
): Promise<{ member: Member; peer: Recorder }> {
  const peer = fleet.recorder();
  const member = fleet.declare(make, "recorded");
  member.peers = [peer.url];
  await member.start();
  return { member, peer };
}
