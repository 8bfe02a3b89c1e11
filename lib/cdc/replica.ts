/**
 * The follower's database: batches in, nothing else. A batch and the watermark behind it are one
 * transaction, so that a reader sees the source as it was after some transaction, and a process that
 * is killed at any instant goes on exactly where it was.
 *
 * Rows are written with OR REPLACE: where the source let one row throw out others, its log may not
 * name them (UPDATE OR REPLACE in Turso, REPLACE without recursive_triggers in SQLite), and what a
 * row that was written there clashes with here can only be such a row.
 *
 * Foreign keys are checked at the end of a transaction, never in its middle, and only where that can
 * change nothing: an action (CASCADE, SET NULL; RESTRICT is one that cannot wait) is in the log
 * already, and must not happen twice. What is found is not refused. SQLite does not enforce keys unless
 * a program asks for it, so a source may hold orphans, its log says no less than that it does, and a
 * copy that refused them would stand still for ever. `keysHold` tells.
 *
 * Invariants (test/cdc/replica.test.ts):
 *   R1  at or below the watermark a batch does nothing.
 *   R2  a batch that does not follow the watermark, or fails in the middle, leaves everything as it was.
 *   R3  no statement of a log is run but one plain CREATE, ALTER or DROP (statement.ts).
 *   R4  a first copy replaces no tables that did not come from a source.
 */
import { Database, type SQLQueryBindings, type Statement } from "bun:sqlite";
import { sqliteCode } from "../base/errors.ts";
import { nameKey, quoteName } from "../base/sql-text.ts";
import { boundTo, placeOf } from "../base/sql-value.ts";
import type { Batch, CdcChange, CdcValue, Watermark } from "./change.ts";
import { CdcError } from "./error.ts";
import {
  digestSchema,
  isFollowed,
  keyColumns,
  SCHEMA_SQL,
  type SchemaColumn,
  type SchemaObject,
} from "./schema-digest.ts";
import { rowidName } from "./source-schema.ts";
import { allColumnNames, columnsOf, hasRowids, schemaVersion } from "./sqlite-table.ts";
import { checkSchemaStatement, type SchemaStatement } from "./statement.ts";

/** Beyond it the statements of all tables are made anew: one per table and mixture of kinds. */
const STATEMENTS_MAX = 500;

const CREATE_SQL = `
  CREATE TABLE IF NOT EXISTS _cdc_watermark (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    log TEXT NOT NULL,
    commit_id INTEGER NOT NULL,
    mark TEXT NOT NULL,
    source_time_ms INTEGER NOT NULL
  );
  CREATE TABLE IF NOT EXISTS _cdc_trigger (
    name TEXT PRIMARY KEY COLLATE NOCASE,
    table_name TEXT NOT NULL COLLATE NOCASE,
    sql TEXT NOT NULL
  )`;

const WATERMARK_SQL = `
  SELECT log, CAST(commit_id AS TEXT) AS commit_id, mark
  FROM _cdc_watermark`;

const SET_WATERMARK_SQL = `
  INSERT INTO _cdc_watermark (one, log, commit_id, mark, source_time_ms)
  VALUES (1, ?1, ?2, ?3, ?4)
  ON CONFLICT (one) DO UPDATE
  SET log = ?1, commit_id = ?2, mark = ?3, source_time_ms = ?4`;

type RowStatement = Statement<unknown, SQLQueryBindings[]>;

interface ReplicaTable {
  readonly name: string;
  /** A name that reaches the rowid; undefined for a table WITHOUT ROWID. */
  readonly rowid: string | undefined;
  readonly columns: readonly string[];
  /** The key of a table WITHOUT ROWID, in its order. */
  readonly key: readonly string[];
  /** By kind of change and the kinds of its values. */
  readonly write: Map<string, RowStatement>;
}

/** What applying a batch came to. */
export type ApplyOutcome = "applied" | "already-applied";

/** Foreign keys, and those of them that act. */
const KEYS_SQL = `
  SELECT count(*) AS n,
    count(*) FILTER (WHERE on_delete <> 'NO ACTION' OR on_update <> 'NO ACTION') AS acting
  FROM sqlite_schema AS s, pragma_foreign_key_list(s.name)
  WHERE s.type = 'table'`;

/** A follower's database. The connection is the replica's own: foreign keys are switched on it. */
export class Replica {
  readonly #db: Database;
  #owned: Database | undefined;
  readonly #tables = new Map<string, ReplicaTable>();
  #statements = 0;
  #digest: { readonly version: number; readonly text: string } | undefined;
  /** What the schema of this version lets be checked. */
  #keys: { readonly version: number; readonly canCheck: boolean } | undefined;
  readonly #checksKeys: boolean;
  #keysHold: boolean | undefined;
  #isChecking = false;

  /** `checksKeys` false: a batch is gone through once, and its rows go elsewhere. */
  constructor(db: Database, { checksKeys = true }: { readonly checksKeys?: boolean } = {}) {
    this.#db = db;
    this.#checksKeys = checksKeys;
    if (!checksKeys) this.#keysHold = false;
    db.run("PRAGMA foreign_keys = OFF");
    db.run("PRAGMA recursive_triggers = OFF");
    // A row that broke one was let through on the source, and a copy has what the source has.
    db.run("PRAGMA ignore_check_constraints = ON");
    if (db.query("SELECT 1 FROM sqlite_schema WHERE name = '_cdc_trigger'").get() === null) {
      db.run(CREATE_SQL);
    }
  }

  /** Opens or makes a follower's file, for readers beside it. */
  static open(path: string): Replica {
    const db = new Database(path, { create: true, readwrite: true });
    db.run("PRAGMA busy_timeout = 5000");
    db.run("PRAGMA journal_mode = WAL");
    const replica = new Replica(db);
    replica.#owned = db;
    return replica;
  }

  /** Whether the file is somebody's: it has tables and no watermark. No copy replaces those. */
  isForeign(): boolean {
    return this.watermark() === null && !this.#isEmpty();
  }

  /** How far it is; null before the first batch. */
  watermark(): Watermark | null {
    const row = this.#db
      .query<{ log: string; commit_id: string; mark: string }, []>(WATERMARK_SQL)
      .get();
    return row && { log: row.log, commit: BigInt(row.commit_id), mark: row.mark };
  }

  /** The digest of the schema as it is, with the triggers that are kept as text. */
  schemaDigest(): string {
    const version = schemaVersion(this.#db);
    if (this.#digest?.version === version) return this.#digest.text;
    const objects = this.#db.query<SchemaObject, []>(SCHEMA_SQL).all();
    const columns = new Map<string, readonly SchemaColumn[]>();
    for (const object of objects) {
      if (object.type !== "table" || !isFollowed(object)) continue;
      columns.set(object.name, columnsOf(this.#db, object.name));
    }
    const kept = objects.filter(({ type }) => type !== "trigger");
    const triggers = this.#db
      .query<SchemaObject, []>(
        "SELECT 'trigger' AS type, name, table_name AS tbl_name, sql FROM _cdc_trigger",
      )
      .all();
    const text = digestSchema([...kept, ...triggers], columns);
    this.#digest = { version, text };
    return text;
  }

  /**
   * False once a transaction left rows without what they refer to: the source holds them, too. Undefined
   * while nothing could be checked.
   */
  get keysHold(): boolean | undefined {
    return this.#keysHold;
  }

  /** See `applyBatch`. */
  apply(batch: Batch): ApplyOutcome {
    if (batch.kind === "copy" && this.#checksKeys) this.#keysHold = undefined;
    else if (this.#keysHold !== false && this.#canCheckKeys()) {
      const outcome = this.#applyChecked(batch);
      if (outcome !== undefined) return outcome;
    }
    return this.#transact(batch, false);
  }

  /** Undefined where it has to be done without checking. */
  #applyChecked(batch: Batch): ApplyOutcome | undefined {
    try {
      const outcome = this.#transact(batch, true);
      if (outcome === "applied") this.#keysHold = true;
      return outcome;
    } catch (error) {
      if (error instanceof Unchecked) return undefined;
      if (isOrphan(error)) this.#keysHold = false;
      // Keys that refer to nothing fail every write; what else it was comes again.
      else this.#keys = { version: schemaVersion(this.#db), canCheck: false };
      return undefined;
    }
  }

  #canCheckKeys(): boolean {
    const version = schemaVersion(this.#db);
    if (this.#keys?.version !== version) {
      const keys = this.#db.query<{ n: number; acting: number }, []>(KEYS_SQL).get()!;
      this.#keys = { version, canCheck: keys.n > 0 && keys.acting === 0 };
    }
    return this.#keys.canCheck;
  }

  #transact(batch: Batch, isChecking: boolean): ApplyOutcome {
    if (isChecking !== this.#isChecking) {
      this.#db.run(`PRAGMA foreign_keys = ${isChecking ? "ON" : "OFF"}`);
      this.#isChecking = isChecking;
    }
    this.#db.run("BEGIN IMMEDIATE");
    try {
      if (isChecking) this.#db.run("PRAGMA defer_foreign_keys = ON");
      const outcome = this.#applyInside(batch);
      this.#db.run("COMMIT");
      return outcome;
    } catch (error) {
      // A full disk may have rolled back already.
      if (this.#db.inTransaction) this.#db.run("ROLLBACK");
      this.#forget();
      throw asDivergence(error);
    }
  }

  /** Finalizes the statements; a database that was handed in stays open. */
  close(): void {
    this.#forget();
    this.#owned?.close();
  }

  #applyInside(batch: Batch): ApplyOutcome {
    if (batch.kind === "copy") {
      if (this.isForeign()) {
        throw new CdcError("not-a-copy", "the file has tables of its own and was never a copy");
      }
      this.#empty();
    } else if (this.#isKnown(batch)) return "already-applied";
    // Somebody may have altered the file between two batches.
    if (this.#digest?.version !== schemaVersion(this.#db)) this.#forget();
    for (const change of batch.changes) this.#change(change);
    if (batch.schema !== null && this.schemaDigest() !== batch.schema) {
      throw new CdcError(
        "schema-differs",
        "the source has another schema than its log says: something was renamed, or made in a way " +
          "that its log leaves out",
      );
    }
    this.#db
      .query(SET_WATERMARK_SQL)
      .run(batch.log, batch.commit, batch.mark, Math.trunc(batch.timeMs));
    return "applied";
  }

  #isKnown(batch: Batch): boolean {
    const known = this.watermark();
    if (known === null) {
      if (batch.after === 0n && this.#isEmpty()) return false;
      throw new CdcError("out-of-order", "a transaction for a follower that has no copy yet");
    }
    if (known.log !== batch.log) {
      throw new CdcError("other-log", `a transaction of the log ${batch.log}, not ${known.log}`);
    }
    if (batch.commit < known.commit) return true;
    if (batch.commit === known.commit) {
      if (batch.mark === known.mark) return true;
      throw new CdcError("log-rewound", `another transaction at ${batch.commit} than before`);
    }
    if (batch.after === known.commit) return false;
    throw new CdcError(
      "out-of-order",
      `a transaction that follows ${batch.after} for a follower at ${known.commit}`,
    );
  }

  #isEmpty(): boolean {
    return !this.#db.query<SchemaObject, []>(SCHEMA_SQL).all().some(isFollowed);
  }

  #change(change: CdcChange): void {
    if (change.kind === "schema") {
      this.#changeSchema(change.sql);
      return;
    }
    const table = this.#tableOf(change.table);
    if (change.kind === "delete") {
      const { changes } = this.#removerOf(table, [change.rowid]).run(change.rowid);
      if (changes !== 1) throw missing(change.table, change.rowid);
      return;
    }
    const { rowid } = change;
    if ((rowid === null) !== (table.rowid === undefined)) {
      throw new CdcError("diverged", `${change.table} has rowids on one side only`);
    }
    if (change.kind === "remove") {
      const key = rowid === null ? change.key : [rowid];
      this.#removerOf(table, key).run(...key.map(boundTo));
      return;
    }
    const { values, kind } = change;
    if (values.length !== table.columns.length) {
      throw new CdcError(
        "diverged",
        `a row of ${values.length} values for ${table.columns.length} columns of ${change.table}`,
      );
    }
    const bindings = values.map(boundTo);
    if (rowid !== null) bindings.push(rowid);
    const { changes } = this.#writerOf(table, kind, values).run(...bindings);
    if (kind === "update" && changes !== 1) throw missing(change.table, rowid);
  }

  #changeSchema(text: string): void {
    const statement = checkSchemaStatement(text);
    // A dropped table would delete its rows first, and a new one may have keys that act.
    if (this.#isChecking) throw new Unchecked();
    const { action, type, name, sql } = statement;
    this.#forget();
    if (type === "trigger") {
      this.#changeTrigger(statement);
      return;
    }
    this.#db.run(sql);
    if (action === "drop" && type !== "index") {
      this.#db.query("DELETE FROM _cdc_trigger WHERE table_name = ?").run(name);
    }
  }

  /** Kept as text: on a copy nothing may write but the log. */
  #changeTrigger({ action, name, target, sql }: SchemaStatement): void {
    if (action === "create") {
      this.#db
        .query("INSERT INTO _cdc_trigger (name, table_name, sql) VALUES (?, ?, ?)")
        .run(name, target, sql);
      return;
    }
    const { changes } = this.#db.query("DELETE FROM _cdc_trigger WHERE name = ?").run(name);
    if (changes !== 1) throw new CdcError("diverged", `there is no trigger ${name} here`);
  }

  /** Everything but our own tables goes. */
  #empty(): void {
    this.#forget();
    const objects = this.#db.query<SchemaObject, []>(SCHEMA_SQL).all().filter(isFollowed);
    for (const type of ["trigger", "view", "table"]) {
      for (const object of objects) {
        if (object.type === type) {
          this.#db.run(`DROP ${type.toUpperCase()} IF EXISTS ${quoteName(object.name)}`);
        }
      }
    }
    this.#db.run("DELETE FROM _cdc_trigger");
    this.#db.run("DELETE FROM _cdc_watermark");
  }

  #tableOf(name: string): ReplicaTable {
    const known = this.#tables.get(nameKey(name));
    if (known !== undefined) return known;
    const columns = columnsOf(this.#db, name);
    if (columns.length === 0) throw new CdcError("diverged", `there is no table ${name} here`);
    const names = columns.map((column) => column.name);
    const rowid = hasRowids(this.#db, name) ? rowidName(allColumnNames(this.#db, name)) : undefined;
    if (rowid === undefined && hasRowids(this.#db, name)) {
      throw new CdcError("source-unfit", `columns of ${name} hide its rowid`);
    }
    const key = keyColumns(columns);
    const table = { name, rowid, columns: names, key, write: new Map() };
    this.#tables.set(nameKey(name), table);
    return table;
  }

  #writerOf(
    table: ReplicaTable,
    kind: "insert" | "update" | "put",
    values: readonly CdcValue[],
  ): RowStatement {
    const key = (kind === "update" ? "=" : "+") + values.map(placeOf).join();
    return table.write.get(key) ?? this.#prepare(table, key, writeSql(table, kind, values));
  }

  /** Takes the rowid, or the values of the key. */
  #removerOf(table: ReplicaTable, values: readonly CdcValue[]): RowStatement {
    const key = `-${values.map(placeOf).join()}`;
    return table.write.get(key) ?? this.#prepare(table, key, removeSql(table, values));
  }

  #prepare(table: ReplicaTable, key: string, sql: string): RowStatement {
    if (this.#statements >= STATEMENTS_MAX) this.#forgetWriters();
    const statement = this.#db.prepare<unknown, SQLQueryBindings[]>(sql);
    table.write.set(key, statement);
    this.#statements++;
    return statement;
  }

  #forgetWriters(): void {
    for (const { write } of this.#tables.values()) {
      for (const statement of write.values()) statement.finalize();
      write.clear();
    }
    this.#statements = 0;
  }

  #forget(): void {
    this.#forgetWriters();
    this.#tables.clear();
    this.#digest = undefined;
  }
}

/**
 * Applies a batch as one transaction: its rows and schema changes in order, and its watermark.
 * "already-applied" when the follower has it. Throws a CdcError where the batch does not fit what
 * the follower holds, any other error where the database fails; either way nothing has changed.
 */
export function applyBatch(replica: Replica, batch: Batch): ApplyOutcome {
  return replica.apply(batch);
}

/** The keys cannot be checked in this transaction. */
class Unchecked extends Error {}

function isOrphan(error: unknown): boolean {
  const cause = error instanceof CdcError ? error.cause : error;
  return sqliteCode(cause) === "SQLITE_CONSTRAINT_FOREIGNKEY";
}

function missing(table: string, rowid: bigint | null): CdcError {
  return new CdcError("diverged", `there is no row ${rowid} in ${table} here`);
}

function removeSql({ name, rowid, key }: ReplicaTable, values: readonly CdcValue[]): string {
  const columns = rowid === undefined ? key.map(quoteName) : [rowid];
  const where = columns.map((column, i) => `${column} = ${placeOf(values[i]!)}`);
  return `DELETE FROM ${quoteName(name)} WHERE ${where.join(" AND ")}`;
}

/** The rowid comes last: of two names for the same key SQLite takes the later. */
function writeSql(
  { name, rowid, columns }: ReplicaTable,
  kind: "insert" | "update" | "put",
  values: readonly CdcValue[],
): string {
  const table = quoteName(name);
  const names = columns.map(quoteName);
  if (kind !== "update") {
    const own = rowid === undefined ? [] : [rowid];
    const places = [...values.map(placeOf), ...own.map(() => "?")];
    return `
      INSERT OR REPLACE INTO ${table} (${[...names, ...own].join(", ")})
      VALUES (${places.join(", ")})`;
  }
  const sets = names.map((column, i) => `${column} = ${placeOf(values[i]!)}`);
  return `
    UPDATE OR REPLACE ${table}
    SET ${sets.join(", ")}
    WHERE ${rowid} = ?`;
}

/** Failures that say the rows or the schema differ; all others are the world's. */
const DIVERGENCE = /^SQLITE_(?:CONSTRAINT|ERROR|MISMATCH)/;

function asDivergence(error: unknown): unknown {
  if (error instanceof CdcError || !(error instanceof Error)) return error;
  if (!DIVERGENCE.test(sqliteCode(error))) return error;
  return new CdcError("diverged", `a change does not fit this copy: ${error.message}`, error);
}
