/**
 * The COMMIT records of a plain SQLite file's log. Its triggers cannot write them: no trigger knows
 * that it is the last one. A program that knows of the log writes them itself, and its transactions
 * reach followers one by one; those of all others end where a snapshot ends (tailer.ts).
 *
 * None is written while somebody has altered the schema and the log does not have it yet: what was
 * logged since is not all of it. `SqliteCapture.settle` puts the rest behind it, and ends it.
 */
import type { Database, Statement } from "bun:sqlite";
import { COMMIT } from "./log-entry.ts";
import { dropCaptureTriggers, LOG_COMMIT_SQL } from "./sqlite-log.ts";

/** The ends of one connection's write transactions. */
export class SqliteCommits {
  readonly #db: Database;
  readonly #newest: Statement<{ change_type: number }, []>;
  readonly #recorded: Statement<{ version: number }, []>;
  readonly #schemaVersion: Statement<{ schema_version: number }, []>;
  readonly #write: Statement;

  /** The file must have a log (SqliteCapture); the connection may write. */
  constructor(db: Database) {
    this.#db = db;
    this.#newest = db.query("SELECT change_type FROM _cdc ORDER BY change_id DESC LIMIT 1");
    this.#recorded = db.query("SELECT schema_version AS version FROM _cdc_state");
    this.#schemaVersion = db.query("PRAGMA schema_version");
    this.#write = db.query(LOG_COMMIT_SQL);
  }

  /**
   * Ends what the log holds so far, if that has no end. Within a write transaction: as the first thing
   * it ends what other programs wrote, as the last thing what this transaction did.
   */
  end(): void {
    try {
      const newest = this.#newest.get();
      if (newest === null || newest.change_type === COMMIT) return;
      if (this.#schemaVersion.get()!.schema_version !== this.#recorded.get()?.version) return;
      this.#write.run();
    } catch (error) {
      // Somebody took the log out of the file: no write fails for that.
      const missing = missingTable(error);
      if (missing === undefined) throw error;
      // Its triggers would fail every one. What keeps the log begins it anew (service.ts).
      if (missing === "_cdc") dropCaptureTriggers(this.#db);
    }
  }
}

/** The table of the log that is not there. */
function missingTable(error: unknown): string | undefined {
  const message = error instanceof Error ? error.message : "";
  return /^no such table: (?:main\.)?(_cdc\w*)/.exec(message)?.[1];
}
