/**
 * The real engine against a follower that is killed again and again: random writes and schema changes
 * on two connections, served over HTTP to a process of its own. A reader of the follower's file never
 * sees two tables apart that are always changed together, and in the end everything is equal.
 * `SEEDS=500 bun test test/cdc/differential.test.ts` searches longer
 * (`FROM=400` goes on there), `SEED=7` replays one.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { enableCdc, pruneCdc, serveCdc } from "../../lib/cdc/index.ts";
import { parseWatermark } from "../../lib/cdc/stream.ts";
import { readLogEnd } from "../../lib/cdc/tailer.ts";
import { Seeded, seedsAsked } from "../support/seeded.ts";
import { contentOf } from "./support/content.ts";
import { Reader, startApplier, turn } from "./support/killed-follower.ts";
import { TursoSource } from "./support/turso-source.ts";
import { PAIR_SQL, Workload } from "./support/workload.ts";

const ROUNDS = 4;
const STEPS = 40;
const WAIT_MS = 300_000;

let checked = 0;
afterAll(() => expect(checked).toBeGreaterThan(0));

describe.each(seedsAsked(20))("seed %d", (seed) => {
  test(
    "follower and source are equal",
    async () => {
      checked += await run(seed);
    },
    WAIT_MS,
  );
});

async function run(seed: number): Promise<number> {
  const random = new Seeded(seed);
  // Every fourth fleet has changes that the log leaves out, so that followers need copies.
  const renames = seed % 4 === 0;
  using source = await TursoSource.open();
  const second = source.open();
  await enableCdc(second);
  source.writer.exec(PAIR_SQL);
  const path = join(source.folder, "copy.db");
  const reader = new Reader(path);
  let laterCopies = 0;
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch: (request) => {
      const after = parseWatermark(new URL(request.url).searchParams);
      if (after === null && reader.commit() > 0n) laterCopies++;
      const options = random.chance(0.5) ? { frameBytesMax: 20_000, memoryBytesMax: 50_000 } : {};
      return new Response(serveCdc(() => source.open(), after, { pollMs: 2, ...options }));
    },
  });
  const workload = new Workload(random, [source.writer, second], renames);
  let applier = startApplier(server.url.href, path);
  try {
    for (let round = 0; round < ROUNDS; round++) {
      for (let step = 0; step < STEPS; step++) {
        workload.step();
        // Lets the server send, and the applier be anywhere when it is killed.
        if (step % 5 === 0) await turn();
        reader.check();
      }
      if (random.chance(0.5)) await pruneCdc(source.writer, reader.commit());
      applier.kill("SIGKILL");
      await applier.exited;
      applier = startApplier(server.url.href, path);
    }
    // What the log leaves out is noticed with the next transaction that it has.
    workload.pay();
    const end = await readLogEnd(source.open());
    await reader.until(end.commit);
    expect(await reader.content()).toEqual(await contentOf(source.writer));
    expect(reader.mark()).toBe(end.mark);
    if (!renames) expect(laterCopies).toBe(0);
    return reader.checks;
  } finally {
    applier.kill("SIGKILL");
    await applier.exited;
    await server.stop(true);
    reader.close();
  }
}
