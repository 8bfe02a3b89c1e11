/** The example, run as it stands, with the real engine and a follower over HTTP. */
import { afterEach, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CdcError, followCdc, formatWatermark } from "../../lib/cdc/index.ts";
import { Follower } from "./support/turso-source.ts";

const EXAMPLE = join(import.meta.dir, "example", "turso-source.ts");
let stop = async () => {};
afterEach(() => stop());

async function start(): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "cdc-example-"));
  const path = join(folder, "app.db");
  const child = Bun.spawn([process.execPath, EXAMPLE, path, "0"], { stderr: "inherit" });
  stop = async () => {
    child.kill("SIGKILL");
    await child.exited;
    rmSync(folder, { recursive: true, force: true });
  };
  let text = "";
  for await (const chunk of child.stdout) {
    text += new TextDecoder().decode(chunk);
    const url = /http\S+(?=cdc\/stream\n)/.exec(text)?.[0];
    if (url !== undefined) return url;
  }
  throw new Error(`the example ended: ${text}`);
}

test("the example is under 60 lines, and a follower has its transfers whole", async () => {
  expect(readFileSync(EXAMPLE, "utf8").trimEnd().split("\n").length).toBeLessThan(60);
  const url = await start();
  using follower = new Follower();
  const balances = () => {
    return follower.db.query("SELECT balance FROM accounts ORDER BY id").values().flat();
  };
  /** Follows until the balances are these. */
  const until = async (expected: readonly number[]) => {
    const from = formatWatermark(follower.replica.watermark());
    const answer = await fetch(`${url}cdc/stream?${from}`);
    const enough = new Error("enough");
    const onBatch = () => {
      const [ann, ben] = balances() as [number, number];
      expect(ann + ben).toBe(200);
      if (ann === expected[0] && ben === expected[1]) throw enough;
    };
    await followCdc(follower.replica, answer.body!, { onBatch }).catch((error) => {
      if (error !== enough) throw error;
    });
  };
  await until([100, 100]);
  for (let n = 0; n < 10; n++) {
    await fetch(`${url}transfer?from=ann&to=ben&amount=5`, { method: "POST" });
  }
  await until([50, 150]);
  expect(follower.replica.watermark()!.commit).toBeGreaterThan(30n);
}, 60_000);

test("a position that is none is refused", async () => {
  const url = await start();
  expect((await fetch(`${url}cdc/stream?after=x&log=L`)).status).toBe(400);
  const other = await fetch(`${url}cdc/stream?after=5&log=L`);
  using follower = new Follower();
  const failure = await followCdc(follower.replica, other.body!).catch((error) => error);
  expect(failure).toBeInstanceOf(CdcError);
  expect(failure.needsCopy).toBe(true);
}, 60_000);
