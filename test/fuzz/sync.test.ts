/**
 * POST /sync against generated and damaged bodies: never a crash, never a 500, never a capture, never a row
 * that differs from what the valid part of the bodies alone would give (life.ts).
 *
 * `FUZZ_LIVES=10000 bun test test/fuzz` searches longer, ten bodies to a life; `FUZZ_SEED=123` lives one again.
 * A run in `bun test` takes the same few lives each time, so that a red run stays red; `FUZZ_FROM=5000` starts
 * elsewhere.
 */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { removeNodeFiles } from "../support/receive-fixture.ts";
import { describe, Finding, live, randomLife, shrink, type Tally } from "./life.ts";

const LIVES = 10;
/** Each lives a shorter life again. */
const SHRINK_ATTEMPTS_MAX = 300;

// Generous: the machine may be busy, and the count is for the caller to choose.
setDefaultTimeout(24 * 3_600_000);

afterAll(removeNodeFiles);

test("hostile bodies leave what their valid part alone would leave", async () => {
  const only = Bun.env["FUZZ_SEED"];
  const from = Number(only ?? Bun.env["FUZZ_FROM"] ?? 1);
  const lives = only === undefined ? Number(Bun.env["FUZZ_LIVES"] ?? LIVES) : 1;
  const tally: Tally = { bodies: 0, refused: 0, changes: 0, invalid: 0, applied: 0 };
  for (let seed = from; seed < from + lives; seed++) {
    const life = randomLife(seed);
    try {
      await live(life, tally);
    } catch (error) {
      const small = error instanceof Finding ? await shrink(life, SHRINK_ATTEMPTS_MAX) : life;
      throw new Error(
        `${String(error)}\nreplay with FUZZ_SEED=${seed} bun test test/fuzz\n${describe(small)}\n${await wordsOf(small)}`,
        { cause: error },
      );
    }
  }
  console.log(
    `fuzz: lives ${from} to ${from + lives - 1}: ${tally.bodies} bodies (${tally.refused} refused), ` +
      `${tally.changes} changes (${tally.invalid} invalid, ${tally.applied} applied)`,
  );
  if (only !== undefined) return;
  // A search that met nothing found nothing.
  expect(tally.refused).toBeGreaterThan(lives / 4);
  expect(tally.invalid).toBeGreaterThan(lives);
  expect(tally.applied).toBeGreaterThan(20 * lives);
});

/** What the small one says is wrong, which may be another thing than the large one said. */
async function wordsOf(life: Parameters<typeof live>[0]): Promise<string> {
  try {
    await live(life);
    return "(not found again)";
  } catch (error) {
    return String(error);
  }
}
