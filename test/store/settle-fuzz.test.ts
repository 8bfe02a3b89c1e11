/**
 * Whatever other programs write, under this SQLite and an older one: the node's log says it, with
 * versions that every peer takes. `SEEDS=5000 bun test settle-fuzz` searches longer.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { openPrograms, type Program } from "../support/old-sqlite.ts";
import { StoreFile } from "../support/open-store.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";
import { checkPass, readState } from "./capture-check.ts";
import { quietRows, randomSession, SCHEMAS, type WrittenSchema } from "./random-writes.ts";

let programs: Program[] = [];

beforeAll(async () => {
  programs = await openPrograms();
});

afterAll(() => {
  for (const program of programs) program.close();
});

const ROUNDS = 8;

async function fuzz(schema: WrittenSchema, random: Seeded): Promise<void> {
  await using file = new StoreFile(schema.sql);
  for (const sql of quietRows(schema)) file.write(sql);
  file.open({ asked: schema.asked });
  expect([...file.store.survey.synced.keys()].sort()).toEqual([...schema.asked].sort());
  const names = schema.tables.map((table) => table.name);
  for (let round = 0; round < ROUNDS; round++) {
    const before = readState(file.path, names);
    const did: string[] = [];
    for (let i = random.below(2); i >= 0; i--) {
      const program = random.pick(programs);
      const session = randomSession(schema, random);
      const errors = await program.run(file.path, session);
      did.push(
        ...session.map(
          (sql, at) => `${program.name}: ${sql}${errors[at] ? `  -- ${errors[at]}` : ""}`,
        ),
      );
    }
    file.clock.ms += random.pick([0, 1, 500, 60_000, -3_000]);
    const written = readState(file.path, names);
    try {
      await file.settle();
      checkPass({ path: file.path, nowMs: file.clock.ms, before, written });
    } catch (error) {
      (error as Error).message +=
        `\nin round ${round} of "${schema.name}" after\n${did.join("\n")}`;
      throw error;
    }
  }
  if (schema.integrity) file.write(schema.integrity);
  expect(file.kinds().filter((kind) => kind !== "registered")).toEqual([]);
}

test(
  "other programs' writes are settled into a log that leads from before to after",
  () => forSeeds(40, (random, seed) => fuzz(SCHEMAS[seed % SCHEMAS.length]!, random)),
  60_000 + Number(Bun.env["SEEDS"] ?? 0) * 500,
);
