/** A follower in a process of its own that is killed again and again, and a reader of its file. */
import { Database as Sqlite } from "bun:sqlite";
import { expect } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { Replica } from "../../../lib/cdc/replica.ts";
import { contentOf } from "./content.ts";
import { PAIR_CHECK_SQL } from "./workload.ts";

const APPLIER = join(import.meta.dir, "applier.ts");

export function startApplier(url: string, path: string) {
  return Bun.spawn([process.execPath, APPLIER, url, path], { stdout: "ignore", stderr: "inherit" });
}

/** Lets servers send, and followers be anywhere when they are killed. */
export const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Another program that reads the follower's file. */
export class Reader implements Disposable {
  readonly #path: string;
  #db: Sqlite | undefined;
  checks = 0;

  constructor(path: string) {
    this.#path = path;
  }

  check(): void {
    const db = this.#open();
    if (db === undefined) return;
    const known = db.query("SELECT 1 FROM sqlite_schema WHERE name = 'received'").get();
    if (known === null) return;
    const row = db.query<{ difference: number | null }, []>(PAIR_CHECK_SQL).get();
    if (row?.difference != null) this.checks++;
    expect(row?.difference ?? 0).toBe(0);
  }

  commit(): bigint {
    return BigInt(this.#row()?.commit_id ?? 0);
  }

  /** The rows of one of its tables. */
  count(table: string): number {
    return this.#db!.query<{ n: number }, []>(`SELECT count(*) AS n FROM ${table}`).get()!.n;
  }

  mark(): string | undefined {
    return this.#row()?.mark;
  }

  async content(): Promise<unknown> {
    return await contentOf(this.#db!, new Replica(this.#db!).schemaDigest());
  }

  /** Until the follower is there; a follower that stops on the way fails by the test's time. */
  async until(commit: bigint): Promise<void> {
    for (let at = this.commit(); at < commit; at = this.commit()) {
      this.check();
      await Bun.sleep(2);
    }
  }

  close(): void {
    this.#db?.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #row(): { commit_id: string; mark: string } | null {
    const db = this.#open();
    const known = db?.query("SELECT 1 FROM sqlite_schema WHERE name = '_cdc_watermark'").get();
    if (db === undefined || known == null) return null;
    return db
      .query<{ commit_id: string; mark: string }, []>(
        "SELECT CAST(commit_id AS TEXT) AS commit_id, mark FROM _cdc_watermark",
      )
      .get();
  }

  #open(): Sqlite | undefined {
    if (this.#db === undefined && existsSync(this.#path)) {
      this.#db = new Sqlite(this.#path);
      this.#db.run("PRAGMA busy_timeout = 5000");
    }
    return this.#db;
  }
}
