/**
 * The wire itself. What ours sends for the fixed script of writes is kept as a golden file, so that no
 * change of it slips in unseen; and what the nodes in the field were recorded sending is played to ours.
 *
 * After a change on purpose: HOOK_SYNC_GOLDEN=write bun test test/interop/wire
 */
import { expect, setDefaultTimeout, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { available, Fleet, type Member, TEST_MS_MAX } from "./support/fleet.ts";
import {
  normalised,
  type Recorded,
  readRecording,
  recordedNode,
  recordScript,
} from "./support/script.ts";

setDefaultTimeout(TEST_MS_MAX);

const GOLDEN = "golden/ours.jsonl";

/** The headers that are part of the contract; what names a file or a place in it is left open. */
function contractHeaders({ headers }: Recorded): Record<string, string> {
  const identity = headers["x-hook-sync"] ?? "";
  return {
    "content-type": headers["content-type"] ?? "",
    "x-node-id": headers["x-node-id"] ?? "",
    "x-hook-sync": identity.replace(/\bdb=[0-9a-f]{8,64}/, "db=<db>"),
  };
}

test.skipIf(!available("ours"))("ours sends for the fixed script what it always sent", async () => {
  await using fleet = new Fleet();
  const { member, peer } = await recordedNode(fleet, "ours");
  const seen = await recordScript(member, peer);
  const bodies = normalised(seen);
  const lines = seen.map((request, i) => ({
    step: request.step,
    headers: contractHeaders(request),
    body: bodies[i]?.body ?? "",
  }));
  if (process.env["HOOK_SYNC_GOLDEN"] === "write") {
    const text = lines.map((line) => `${JSON.stringify(line)}\n`).join("");
    writeFileSync(join(import.meta.dir, GOLDEN), text);
  }
  expect(lines).toEqual(readRecording(GOLDEN));
});

/** The script's SQL rows before the last step: integers as digits, reals as numbers. */
const BEFORE_DELETE_ALL = [
  ["2^53+1", "odd", "integer", "9007199254740992"],
  ["empty", "forgot", "integer", "0"],
  // Rounded out of the 64-bit range by their senders, and kept as SQLite reads them.
  ["max", "max", "real", 2 ** 63],
  ["min", "min", "real", -(2 ** 63)],
  ["nostamp", "x", "integer", "1"],
  ["null", null, "null", null],
  ["null2", null, "null", null],
  ["r-0.1", "real", "real", -0.1],
  ["r1.5", "real", "real", 1.5],
  ["r1e300", "real", "real", 1e300],
  ["rtext", "1.0", "integer", "7"],
];

async function play(member: Member, recorded: Recorded[]): Promise<void> {
  for (const { step, headers, body } of recorded) {
    const response = await fetch(`${member.url}/sync`, { method: "POST", headers, body });
    const { batch_id } = JSON.parse(body) as { batch_id: number };
    expect([step, response.status, await response.json()]).toMatchObject([
      step,
      200,
      { ack: batch_id },
    ]);
  }
}

function scriptRows(member: Member): unknown[][] {
  return member
    .sql<{ id: string; name: string | null; type: string; value: string | number | null }>(
      `SELECT id, name, typeof(value) type, iif(typeof(value) = 'integer', CAST(value AS TEXT), value) value
       FROM items WHERE node_id IS NOT 'recorded' ORDER BY id`,
    )
    .map(({ id, name, type, value }) => [id, name, type, value]);
}

test.skipIf(!available("ours")).each(["go", "node", "bun", "go-through-hub", "node-through-hub"])(
  "the recorded traffic of %s, played to ours",
  async (name) => {
    await using fleet = new Fleet();
    const peer = fleet.recorder();
    const member = await fleet.node("ours", [peer]);
    const recorded = readRecording(`recordings/${name}.jsonl`);
    const writes = recorded.slice(0, -1);
    await play(member, writes);
    expect(scriptRows(member)).toEqual(BEFORE_DELETE_ALL);
    expect(
      member.sql("SELECT name, value FROM items WHERE node_id = 'recorded' ORDER BY value"),
    ).toEqual([
      { name: "a", value: 1 },
      { name: "b", value: 2 },
      { name: 'ü😀\0"\\', value: 3 },
    ]);
    await play(member, recorded);
    // Of `null`, whose id was changed, its sender never said that it is gone. Of `empty` it sent two
    // versions with one stamp: ours has lifted the winner above them, and so above the delete.
    expect(member.sql("SELECT id FROM items ORDER BY id")).toEqual([
      { id: "empty" },
      { id: "null" },
    ]);
    const content = member.content();
    await play(member, recorded);
    await play(member, recorded.toReversed());
    expect(member.content()).toEqual(content);
    expect((await member.health()).dead_letter).toBe(0);
  },
);
