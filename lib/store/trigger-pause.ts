/**
 * Writing many rows of a table without its capture triggers. They cost more than the rows themselves,
 * also where they do nothing: SQLite runs a program for each of them and each row, and copies the rows
 * of a statement first. So they are taken out of the schema and put back in the same transaction, which
 * holds the write lock: nobody else ever sees the file without them, and a crash leaves it with them.
 * What others see is that the schema changed, to what it was: their connections read it again.
 *
 * Invariants:
 *   P1  a transaction is committed only when every trigger is back, with the text that it had.
 *   P2  this node does not take it for a change of the schema by others.
 *   P3  only where all triggers of a table are ours: those of others fire for every row.
 */
import type { Database } from "bun:sqlite";
import { type SyncedTable, TRIGGER_MARK } from "./schema.ts";
import { quoteName } from "./sql.ts";

/**
 * Fewer rows do not pay. Each gains a microsecond; taking away and putting back cost a millisecond, with
 * statements to be prepared anew besides, and 10 to 40 microseconds for each entry of the schema go to
 * every connection that reads it again: the shipper's, and those of other programs.
 */
const ROWS_MIN = 2_000;
const ROWS_PER_SCHEMA_ENTRY = 60;

interface Trigger {
  readonly name: string;
  readonly sql: string;
}

/** `onEnd` hears which version the schema had, and which it has now: it is the same schema. */
export interface TriggerPauseOptions {
  readonly db: Database;
  readonly onEnd: (before: number, after: number) => void;
  /** From how many rows on, if not as many as pay for it. */
  readonly rowsMin?: number | undefined;
}

/** One per writing connection. */
export class TriggerPause {
  readonly #options: TriggerPauseOptions;
  readonly #db: Database;
  /** What was taken away, by the table's key. */
  readonly #taken = new Map<string, readonly Trigger[]>();
  /** As it was before the first one was taken away. */
  #schemaVersion = 0;
  #isUsable = true;

  constructor(options: TriggerPauseOptions) {
    this.#options = options;
    this.#db = options.db;
  }

  /** Whether everything is as it should be at a commit. */
  get isOver(): boolean {
    return this.#taken.size === 0;
  }

  /**
   * From now on until `end` the table has no triggers, if that pays for so many rows. What is thrown,
   * here or by `end`, must undo the transaction. Returns whether it has none.
   */
  begin(table: SyncedTable, rows: number): boolean {
    if (this.#taken.has(table.key)) return true;
    if (!this.#isUsable || rows < (this.#options.rowsMin ?? ROWS_MIN)) return false;
    const triggers = this.#triggersOf(table, rows);
    if (triggers.length === 0) return false;
    if (this.isOver) this.#schemaVersion = this.#readSchemaVersion();
    this.#taken.set(table.key, triggers);
    this.#changeSchema(triggers.map(({ name }) => `DROP TRIGGER ${quoteName(name)}`));
    return true;
  }

  /** Puts back what was taken away; in the transaction in which it was. */
  end(): void {
    if (this.isOver) return;
    this.#changeSchema([...this.#taken.values()].flat().map(({ sql }) => sql));
    this.#taken.clear();
    this.#options.onEnd(this.#schemaVersion, this.#readSchemaVersion());
  }

  /** After a rollback: the triggers are back without our doing. */
  forget(): void {
    this.#taken.clear();
  }

  /** None where they must stay. */
  #triggersOf(table: SyncedTable, rows: number): readonly Trigger[] {
    const schema = this.#db
      .query<{ entries: number; cdc: number }, []>(
        "SELECT count(*) AS entries, total(name LIKE '\\_cdc%' ESCAPE '\\') AS cdc FROM sqlite_master",
      )
      .get()!;
    const isLarge = rows < schema.entries * ROWS_PER_SCHEMA_ENTRY;
    // Who keeps a log for followers notes each change of the schema in it.
    if ((isLarge && this.#options.rowsMin === undefined) || schema.cdc > 0) return [];
    const triggers = this.#db
      .query<Trigger, [string]>(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY rowid",
      )
      .all(table.name);
    return triggers.every(({ sql }) => sql.includes(TRIGGER_MARK)) ? triggers : [];
  }

  #readSchemaVersion(): number {
    return this.#db.query<{ schema_version: number }, []>("PRAGMA schema_version").get()!
      .schema_version;
  }

  #changeSchema(statements: readonly string[]): void {
    try {
      for (const sql of statements) this.#db.run(sql);
    } catch (error) {
      // The transaction is undone and tried again: then with the triggers where they are.
      this.#isUsable = false;
      throw error;
    }
  }
}
