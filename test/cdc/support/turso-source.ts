/** A Turso database with a change log, on disk, and a follower in memory beside it. */
import { Database as Sqlite } from "bun:sqlite";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Database as Turso } from "@tursodatabase/database/compat";
import type { Batch, Watermark } from "../../../lib/cdc/change.ts";
import { applyBatch, Replica } from "../../../lib/cdc/replica.ts";
import type { SpoolOptions } from "../../../lib/cdc/spool.ts";
import { CdcTailer } from "../../../lib/cdc/tailer.ts";
import { enableCdc } from "../../../lib/cdc/turso.ts";

export type { Turso };

export class TursoSource implements Disposable {
  readonly folder: string;
  readonly path: string;
  readonly writer: Turso;
  readonly #opened: { close(): void }[] = [];

  private constructor(folder: string) {
    this.folder = folder;
    this.path = join(folder, "source.db");
    this.writer = this.open();
  }

  /** A new database with capture on; `before` is run before that. */
  static async open(before = ""): Promise<TursoSource> {
    const source = new TursoSource(mkdtempSync(join(tmpdir(), "cdc-turso-")));
    if (before !== "") source.writer.exec(before);
    await enableCdc(source.writer);
    return source;
  }

  /** One without capture, for what comes before it. */
  static plain(): TursoSource {
    return new TursoSource(mkdtempSync(join(tmpdir(), "cdc-turso-")));
  }

  /** Another connection, closed with the source. */
  open(): Turso {
    const connection = new Turso(this.path);
    // No power cut is meant here, and an fsync for each commit would be most of the time.
    connection.exec("PRAGMA synchronous = OFF");
    this.#opened.push(connection);
    return connection;
  }

  tailer(after: Watermark | null = null, options: SpoolOptions = {}): CdcTailer {
    return new CdcTailer(this.open(), after, options);
  }

  [Symbol.dispose](): void {
    for (const connection of this.#opened) {
      try {
        connection.close();
      } catch {
        // Closed by the test.
      }
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export class Follower implements Disposable {
  readonly db: Sqlite;
  readonly replica: Replica;
  constructor(path = ":memory:") {
    this.db = new Sqlite(path);
    this.replica = new Replica(this.db);
  }
  [Symbol.dispose](): void {
    this.replica.close();
    this.db.close();
  }
}

/** All batches there are, each closed after its changes were taken out. */
export async function drain(tailer: CdcTailer): Promise<Batch[]> {
  const batches: Batch[] = [];
  for (let batch = await tailer.pollBatch(); batch !== null; batch = await tailer.pollBatch()) {
    const changes = [...batch.changes];
    batch.close();
    batches.push({ ...batch, changes });
  }
  return batches;
}

/** Applies all there is; how many transactions it was. */
export async function follow(tailer: CdcTailer, replica: Replica): Promise<number> {
  const batches = await drain(tailer);
  for (const batch of batches) applyBatch(replica, batch);
  return batches.length;
}
