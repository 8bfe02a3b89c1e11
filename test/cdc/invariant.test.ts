/**
 * A program that reads a follower's file in a loop for the whole run never sees two tables apart that
 * the source always changes in one transaction, while the follower is killed again and again. The same
 * program sees it at once with a follower that does not keep transactions whole.
 */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Started, start } from "../cli/run.ts";

const MS_MAX = 90_000;
const TRANSACTIONS = 600;
const READER = join(import.meta.dir, "support", "invariant-reader.ts");
const TORN = join(import.meta.dir, "support", "torn-follower.ts");

let folder = "";
let ends: (() => Promise<unknown>)[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cdc-invariant-"));
});
afterEach(async () => {
  await Promise.all(ends.map((end) => end()));
  ends = [];
  rmSync(folder, { recursive: true, force: true });
});

function begin(...argv: string[]): Started {
  const each = start(argv, { msMax: MS_MAX });
  ends.push(() => {
    each.kill("SIGKILL");
    return each.exited;
  });
  return each;
}

function program(entry: string, ...argv: string[]) {
  const each = Bun.spawn([process.execPath, entry, ...argv], {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
    timeout: MS_MAX,
  });
  ends.push(() => {
    each.kill("SIGKILL");
    return each.exited;
  });
  return each;
}

const SCHEMA = `
  CREATE TABLE taken (k INTEGER PRIMARY KEY, v INTEGER);
  CREATE TABLE given (k INTEGER PRIMARY KEY, v INTEGER, n INTEGER);
  CREATE TABLE entry (k INTEGER PRIMARY KEY, v INTEGER);
  INSERT INTO taken VALUES (1, 0), (2, 0);
  INSERT INTO given VALUES (1, 0, 0), (2, 0, 0)`;

/** What belongs together is changed in one transaction, in several statements. */
function pay(db: Database, n: number): void {
  const k = 1 + (n % 2);
  db.transaction(() => {
    db.run("UPDATE taken SET v = v - ? WHERE k = ?", [n, k]);
    for (let part = 0; part < 3; part++) {
      db.run("INSERT INTO entry (v) VALUES (?)", [n]);
      db.run("UPDATE given SET n = n + 1 WHERE k = ?", [3 - k]);
    }
    db.run("UPDATE given SET v = v + ? WHERE k = ?", [n, 3 - k]);
  }).immediate();
}

async function source(): Promise<{ url: string; db: Database }> {
  const path = join(folder, "node.db");
  const node = begin("--id", "n", "--db", path, "--listen", "127.0.0.1:0", "--cdc");
  const text = await node.printed("out", "no peers");
  const db = new Database(path);
  db.run("PRAGMA busy_timeout = 20000");
  db.run("PRAGMA synchronous = OFF");
  ends.push(async () => db.close());
  db.run(SCHEMA);
  return { url: /listening on (\S+)/.exec(text)![1]!, db };
}

interface Seen {
  readonly checks: number;
  readonly states: number;
  readonly broken: number;
}

test(
  "a reader never sees half of a transaction",
  async () => {
    const { url, db } = await source();
    const copy = join(folder, "copy.db");
    let follower = begin("follow", url, "--db", copy);
    await follower.printed("out", "copied");
    const reader = program(READER, copy);
    for (let n = 1; n <= TRANSACTIONS; n++) {
      pay(db, n);
      if (n % 2 === 0) await Bun.sleep(1);
      if (n % 150 !== 0) continue;
      follower.kill("SIGKILL");
      await follower.exited;
      follower = begin("follow", url, "--db", copy);
    }
    using read = new Database(copy);
    read.run("PRAGMA busy_timeout = 5000");
    const entries = () => read.query<{ n: number }, []>("SELECT count(*) AS n FROM entry").get()!.n;
    while (entries() < 3 * TRANSACTIONS) await Bun.sleep(5);
    reader.stdin.end();
    const seen = (await new Response(reader.stdout).json()) as Seen;
    expect(seen.broken).toBe(0);
    // It looked all the time, at many different moments.
    expect(seen.states).toBeGreaterThan(20);
    expect(seen.checks).toBeGreaterThan(seen.states);
  },
  MS_MAX,
);

test(
  "and would see it: a follower that tears transactions apart is found out",
  async () => {
    const { url, db } = await source();
    const copy = join(folder, "copy.db");
    program(TORN, url, copy);
    const reader = program(READER, copy);
    let isSeen = false;
    void reader.exited.then(() => {
      isSeen = true;
    });
    for (let n = 1; !isSeen; n++) {
      pay(db, n);
      await Bun.sleep(1);
    }
    expect(((await new Response(reader.stdout).json()) as Seen).broken).toBeGreaterThan(0);
  },
  MS_MAX,
);
