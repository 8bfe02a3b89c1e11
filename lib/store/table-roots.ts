/**
 * Whether a table is still the one it was. SQLite's advice for larger schema changes is to make the table
 * anew, copy the rows, and give it the old name and the old triggers: then everything looks as before, but
 * what the copying changed was captured by nobody. Such a table begins at another page of the file. VACUUM
 * moves tables as well, but then ours with them.
 */
import type { Database } from "bun:sqlite";
import { setSetting, setting } from "./migrations.ts";
import type { SyncedTable } from "./schema.ts";
import { nameKey } from "./sql.ts";

interface Roots {
  /** First pages of tables of ours, which nobody rebuilds. */
  readonly anchors: readonly number[];
  readonly tables: Readonly<Record<string, number>>;
}

/** As the file was when it was made: each look at the schema makes another. */
export class TableRoots {
  readonly #db: Database;
  readonly #before: Roots | undefined;
  readonly #now: ReadonlyMap<string, number>;

  /** As the file is now, against what was written last. */
  constructor(db: Database) {
    this.#db = db;
    const text = setting(db, "roots");
    this.#before = typeof text === "string" ? (JSON.parse(text) as Roots) : undefined;
    const rows = db
      .query<{ name: string; rootpage: number }, []>(
        "SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0",
      )
      .all();
    this.#now = new Map(rows.map((row) => [nameKey(row.name), row.rootpage]));
  }

  /** Whether this table was made anew since then. */
  isOther(table: SyncedTable): boolean {
    const before =
      this.#before && Object.hasOwn(this.#before.tables, table.key)
        ? this.#before.tables[table.key]
        : undefined;
    if (before === undefined || this.#isShuffled()) return false;
    return before !== this.#now.get(table.key);
  }

  /** Inside the caller's transaction. */
  write(tables: Iterable<SyncedTable>): void {
    const roots: Roots = {
      anchors: this.#anchors(),
      tables: Object.fromEntries(
        [...tables].map((table) => [table.key, this.#now.get(table.key) ?? 0]),
      ),
    };
    setSetting(this.#db, "roots", JSON.stringify(roots));
  }

  /** VACUUM moved everything; a file that vacuums itself moves tables whenever one is dropped. */
  #isShuffled(): boolean {
    const automatic = this.#db.query<{ auto_vacuum: number }, []>("PRAGMA auto_vacuum").get();
    if (automatic?.auto_vacuum !== 0) return true;
    return JSON.stringify(this.#before?.anchors) !== JSON.stringify(this.#anchors());
  }

  #anchors(): number[] {
    return [...this.#now]
      .filter(([name]) => /^_(changes|meta|hooksync)/.test(name))
      .map(([, root]) => root);
  }
}
