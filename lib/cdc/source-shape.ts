/**
 * The tables of a source without their rows: what the values of a change stand for, for a follower
 * that does not keep a copy. Schema changes are carried out on an empty database in memory, by the
 * same rules as on a copy, so that a schema that is not what the log says is noticed here, too.
 */
import { Database } from "bun:sqlite";
import { nameKey } from "../base/sql-text.ts";
import type { Batch, CdcChange, Watermark } from "./change.ts";
import { type ApplyOutcome, Replica } from "./replica.ts";

/** One column, as PRAGMA table_info has it. */
export interface ShapeColumn {
  readonly name: string;
  readonly type: string;
  /** Its DEFAULT as SQL, or null. */
  readonly defaultSql: string | null;
}

/** One table of a source. */
export interface ShapeTable {
  readonly name: string;
  /** Its CREATE TABLE. */
  readonly sql: string;
  /** The stored ones, in the order of a change's values. */
  readonly columns: readonly ShapeColumn[];
}

const STATEMENTS_SQL = `
  SELECT sql
  FROM sqlite_schema
  WHERE sql IS NOT NULL AND name NOT LIKE '\\_cdc\\_%' ESCAPE '\\'
  ORDER BY type <> 'table', type <> 'index', rowid`;

/** What a source's tables are at one position of its log. */
export class SourceShape {
  readonly #db = new Database(":memory:");
  readonly #replica: Replica;
  #tables: ReadonlyMap<string, ShapeTable> | undefined;

  /** From what `statements` gave; nothing is known with a null watermark. */
  constructor(statements: readonly string[], watermark: Watermark | null) {
    this.#replica = new Replica(this.#db, { checksKeys: false });
    if (watermark === null) return;
    const changes = statements.map((sql): CdcChange => ({ kind: "schema", sql }));
    const rest = { kind: "copy", after: 0n, timeMs: 0, schema: null } as const;
    this.#replica.apply({ ...watermark, ...rest, changes, close: () => {} });
  }

  /** The database without rows: for whoever knows more of schemas than this. */
  get db(): Database {
    return this.#db;
  }

  /** The tables, by nameKey. */
  get tables(): ReadonlyMap<string, ShapeTable> {
    this.#tables ??= this.#readTables();
    return this.#tables;
  }

  /** What makes the same shape again. */
  statements(): string[] {
    const sqlOf = (sql: string) => this.#db.query<{ sql: string }, []>(sql).all();
    const kept = sqlOf("SELECT sql FROM _cdc_trigger");
    return [...sqlOf(STATEMENTS_SQL), ...kept].map(({ sql }) => sql);
  }

  /**
   * Carries out the schema changes of a batch, each in its place among the others: `row` gets those,
   * `changed` is called after each schema change. Throws as a copy would where the batch does not
   * follow, and then nothing has changed here.
   */
  follow(
    batch: Batch,
    row: (change: Exclude<CdcChange, { kind: "schema" }>) => void,
    changed: () => void,
  ): ApplyOutcome {
    const forget = () => {
      this.#tables = undefined;
    };
    function* schemaChanges(): Generator<CdcChange> {
      for (const change of batch.changes) {
        if (change.kind !== "schema") row(change);
        else {
          yield change;
          forget();
          changed();
        }
      }
    }
    try {
      return this.#replica.apply({ ...batch, changes: schemaChanges() });
    } finally {
      forget();
    }
  }

  close(): void {
    this.#replica.close();
    this.#db.close();
  }

  #readTables(): Map<string, ShapeTable> {
    const rows = this.#db
      .query<{ name: string; sql: string }, []>(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_cdc\\_%' ESCAPE '\\'",
      )
      .all();
    return new Map(
      rows.map(({ name, sql }) => {
        const columns = this.#db
          .query<ShapeColumn, [string]>(
            "SELECT name, type, dflt_value AS defaultSql FROM pragma_table_info(?)",
          )
          .all(name);
        return [nameKey(name), { name, sql, columns }];
      }),
    );
  }
}
