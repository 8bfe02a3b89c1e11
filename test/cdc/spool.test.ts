/** Changes held in memory or in a file are the same changes. */
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CdcChange } from "../../lib/cdc/change.ts";
import { ChangeSpool } from "../../lib/cdc/spool.ts";
import { forSeeds, Seeded } from "../support/seeded.ts";
import { randomChange } from "./support/values.ts";

const folder = mkdtempSync(join(tmpdir(), "cdc-spool-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test("what goes in comes out, twice, whatever part of it lies in a file", async () => {
  await forSeeds(20, (random) => {
    const spool = new ChangeSpool({ folder, memoryBytesMax: random.pick([1, 5_000, 10_000_000]) });
    const changes = Array.from({ length: random.below(400) }, () => randomChange(random));
    for (const change of changes) spool.push(change);
    expect(spool.count).toBe(changes.length);
    expect([...spool]).toEqual(changes);
    expect([...spool]).toEqual(changes);
    spool.close();
  });
});

describe("a transaction above the limit", () => {
  const large = (n: number): CdcChange => ({
    kind: "insert",
    table: "t",
    rowid: BigInt(n),
    values: [new Uint8Array(700_000).fill(n)],
  });

  test("goes to a file, and comes back from it", () => {
    const spool = new ChangeSpool({ folder, memoryBytesMax: 2_000_000 });
    for (let n = 0; n < 12; n++) spool.push(large(n));
    expect(spool.spilled).toBe(true);
    let n = 0;
    for (const change of spool) expect(change).toEqual(large(n++));
    expect(n).toBe(12);
    spool.close();
  });

  test("leaves nothing behind", () => {
    const spool = new ChangeSpool({ folder, memoryBytesMax: 1 });
    spool.push(large(1));
    spool.push(large(2));
    spool.close();
    spool.close();
    expect(readdirSync(folder)).toEqual([]);
  });

  test("is not to be had after it was closed", () => {
    const spool = new ChangeSpool({ folder });
    spool.push(randomChange(new Seeded(1)));
    spool.close();
    expect(() => [...spool]).toThrow("closed");
    expect(() => spool.push(large(1))).toThrow("closed");
  });
});
