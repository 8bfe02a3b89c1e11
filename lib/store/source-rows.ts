/**
 * Rows of a source outside of the mesh (another database that is followed), written into synced tables
 * as this node's own: captured by its triggers, settled like what other programs write, shipped to
 * everyone. The source knows its rows by rowid, the mesh by id, and the mesh has rows that the source
 * never had: so the file remembers which row of the source became which row here, and what was sent.
 *
 * What is new of the source's schema is made here (tables, columns, unique keys); what goes from it
 * takes its rows along, never a table or a column.
 *
 * Invariants (test/store/source-rows.test.ts):
 *   B1  a row that did not come from the source is not deleted, but where it stands in the way of one
 *       on a UNIQUE key.
 *   B2  a change of the source is a new local write: it wins over what the mesh had.
 *   B3  a copy writes only what the source changed since it was sent; what the mesh made of the rest
 *       stays. It deletes only what the source once sent and has no longer.
 *   B4  a row that is here already, as it comes, is not written: nothing goes round in circles.
 */
import type { Database, SQLQueryBindings, Statement } from "bun:sqlite";
import { boundTo, isBrokenText, placeOf, type SqlValue } from "../base/sql-value.ts";
import type { AskedTables } from "./adopt.ts";
import { readSelection, type Survey, survey, writeSelection } from "./catalog.ts";
import { dropSetting, setSetting, setting } from "./migrations.ts";
import {
  isInternalTable,
  readOtherRelations,
  readTables,
  type SyncedTable,
  type Table,
  type UniqueKey,
} from "./schema.ts";
import { isRefusal } from "./settle-rows.ts";
import { nameKey, quoteName } from "./sql.ts";

/** A table as the source has it. */
export interface SourceTable {
  readonly name: string;
  /** Its CREATE TABLE. */
  readonly sql: string;
  /** The stored ones, in the order of a row's values. */
  readonly columns: readonly SourceColumn[];
}

/** As the source declares it; `type` may be empty. */
export interface SourceColumn {
  readonly name: string;
  readonly type: string;
  /** Its DEFAULT as SQL. */
  readonly defaultSql: string | null;
}

/** A row is found by its rowid or, in a table WITHOUT ROWID, by its key. */
export interface SourceKey {
  readonly rowid: bigint | null;
  readonly key: readonly SqlValue[];
}

/** What is written by; `look` and `settle` are the store's, for the same transaction. */
export interface SourceRowsOptions {
  readonly db: Database;
  /** `--tables`: only these are taken. */
  readonly asked: AskedTables;
  readonly survey: () => Survey;
  /** The schema was changed in this transaction: triggers must follow at once. */
  readonly look: (nowMs: number) => void;
  /** Gives what was written so far its versions. */
  readonly settle: (nowMs: number) => void;
}

/** Rows that could not be written here. */
export interface RefusedRows {
  readonly table: string;
  readonly rows: number;
  readonly reason: string;
}

const CREATE_SQL = `
  CREATE TABLE IF NOT EXISTS _hooksync_taken(
    tbl TEXT, id TEXT, source_rowid INTEGER, hash INTEGER, run INTEGER,
    PRIMARY KEY(tbl, id)) WITHOUT ROWID;
  CREATE UNIQUE INDEX IF NOT EXISTS _hooksync_taken_rowid
  ON _hooksync_taken(tbl, source_rowid) WHERE source_rowid IS NOT NULL`;

/** Settings of ours. */
const STATE = "source:state";
const SCHEMA = "source:schema";
const SOURCE = "source:name";
const RUN = "source:run";
const INDEXES = "source:indexes";

/** Beyond it the statements of all tables are made anew: one per table and mixture of kinds. */
const STATEMENTS_MAX = 500;
/** Bits of a hash that SQLite and a number both hold. */
const HASH_BITS = 52n;
/** Rows that got a version here, remembered to see whether they come back from the source. */
const LIFTED_ROWS_MAX = 10_000;
const LIFTED_PER_ROW_MAX = 8;
/** Once may be chance: the same content written anew in the same millisecond. */
const RETURNED_MAX = 3;

type RowStatement = Statement<unknown, SQLQueryBindings[]>;

interface Plan {
  readonly source: SourceTable;
  readonly target: SyncedTable;
  /** Where in a row's values the columns stand that are written here. */
  readonly at: readonly number[];
  readonly idAt: number;
  /** -1 where the source has no versions. */
  readonly stampAt: number;
  readonly statements: Map<string, RowStatement>;
}

interface MadeIndex {
  readonly table: string;
  readonly index: string;
  readonly key: string;
}

/** What a node takes from its source. Everything but the constructor runs inside a transaction. */
export class SourceRows {
  readonly #options: SourceRowsOptions;
  readonly #db: Database;
  readonly #plans = new Map<string, Plan>();
  /** Tables by what they were when they were taken in, so that nothing is looked at twice. */
  #admitted = new Map<string, { readonly signature: string; readonly table: SourceTable }>();
  #leftOut = new Map<string, string>();
  readonly #remarks = new Map<string, string>();
  readonly #refused = new Map<string, { rows: number; reason: string }>();
  /** Tables whose rows are all sent again; what is not sent is gone. */
  #swept = new Set<string>();
  #run: number;
  #nowMs = 0;
  #statements = 0;
  /** Written in this transaction with a stamp that will not do. */
  #lifting: { plan: Plan; id: string; content: number; sent: SqlValue }[] = [];
  readonly #lifted = new Map<string, readonly string[]>();
  #returned = 0;

  constructor(options: SourceRowsOptions) {
    this.#options = options;
    this.#db = options.db;
    this.#db.run(CREATE_SQL);
    this.#run = Number(setting(this.#db, RUN) ?? 0);
  }

  /** What its user keeps: which source it is, how far it is, and its schema. */
  get state(): Readonly<Record<"source" | "position" | "schema", string | null>> {
    const text = (key: string) => {
      const value = setting(this.#db, key);
      return typeof value === "string" ? value : null;
    };
    return { source: text(SOURCE), position: text(STATE), schema: text(SCHEMA) };
  }

  /** Kept with the rows, in the same transaction; null: the position is none. */
  setPosition(position: string | null): void {
    if (position === null) dropSetting(this.#db, STATE);
    else setSetting(this.#db, STATE, position);
  }

  setSource(source: string): void {
    setSetting(this.#db, SOURCE, source);
  }

  setSchema(schema: string): void {
    setSetting(this.#db, SCHEMA, schema);
  }

  /** Tables of the source that are not taken, with the reasons, and what else a person should know. */
  get remarks(): readonly string[] {
    const left = [...this.#leftOut].map(([name, reason]) => `${name} is not taken in: ${reason}`);
    return [...left, ...this.#remarks.values()];
  }

  get refused(): readonly RefusedRows[] {
    return [...this.#refused].map(([table, known]) => ({ table, ...known }));
  }

  /** Whether rows that got their version here came back: the source hears this mesh. */
  get isCircle(): boolean {
    return this.#returned >= RETURNED_MAX;
  }

  /** First in the transaction. */
  begin(nowMs: number): void {
    this.#nowMs = nowMs;
  }

  /** After a rollback nothing of this transaction is true. */
  forget(): void {
    this.#forgetPlans();
    this.#admitted = new Map();
    this.#swept = new Set();
    this.#lifting = [];
    this.#run = Number(setting(this.#db, RUN) ?? 0);
  }

  // ── Tables ──────────────────────────────────────────────────────────────────────────────────

  /**
   * Makes this file have what the source's tables hold, and syncs it. `shape` is an empty database
   * with the source's schema.
   */
  admit(tables: Iterable<SourceTable>, shape: Database, nowMs: number): void {
    const known = readTables(shape);
    let [isChanged, isLooked] = [false, false];
    const made: string[] = [];
    const altered: [now: SourceTable, before: SourceTable][] = [];
    const present = new Set<string>();
    for (const table of tables) {
      const key = nameKey(table.name);
      present.add(key);
      const keys = known.get(key)?.uniqueKeys ?? [];
      const signature = JSON.stringify([table.sql, table.columns, keys.map(keyText)]);
      const before = this.#admitted.get(key);
      if (before?.signature === signature) continue;
      this.#admitted.set(key, { signature, table });
      isChanged = true;
      const outcome = this.#isAsked(key) ? this.#admitTable(table, keys) : "it is not in --tables";
      if (typeof outcome === "string") this.#leftOut.set(table.name, outcome);
      else {
        this.#leftOut.delete(table.name);
        isLooked = true;
        if (before !== undefined) altered.push([table, before.table]);
        if (outcome.isNew) made.push(key);
      }
    }
    for (const key of [...this.#admitted.keys()]) {
      if (present.has(key)) continue;
      this.#admitted.delete(key);
      isChanged = true;
    }
    for (const name of [...this.#leftOut.keys()]) {
      if (!present.has(nameKey(name))) this.#leftOut.delete(name);
    }
    if (isChanged) this.#forgetPlans();
    if (!isLooked) return;
    this.#options.look(nowMs);
    // Its rows are all written after this, and captured.
    for (const key of made) dropSetting(this.#db, `announce:${key}`);
    for (const [table, before] of altered) this.#fillAdded(table, before, shape);
  }

  /** ADD COLUMN gives every row of the source its DEFAULT, of which the log says nothing. */
  #fillAdded(table: SourceTable, before: SourceTable, shape: Database): void {
    const known = new Set(before.columns.map(({ name }) => nameKey(name)));
    const target = this.#planOf(table)?.target;
    if (target === undefined) return;
    for (const { name, defaultSql } of table.columns) {
      if (defaultSql === null || known.has(nameKey(name))) continue;
      const { value } = shape
        .query<{ value: string }, []>(`SELECT quote(${defaultSql}) AS value`)
        .get()!;
      const column = quoteName(name);
      try {
        this.#db
          .query(
            `UPDATE OR REPLACE ${quoteName(target.name)}
             SET ${column} = ${value}
             WHERE ${column} IS NOT ${value} AND ${quoteName(target.id.name)} IN (
               SELECT id FROM _hooksync_taken WHERE tbl = ?)`,
          )
          .run(target.key);
      } catch (error) {
        if (!isRefusal(error) || !this.#db.inTransaction) throw error;
        this.#refuse(target.name, (error as Error).message);
      }
    }
  }

  #isAsked(key: string): boolean {
    const { asked } = this.#options;
    return asked === undefined || asked === "*" || asked.some((name) => nameKey(name) === key);
  }

  /** Why not, or whether it was made. */
  #admitTable(table: SourceTable, keys: readonly UniqueKey[]): string | { isNew: boolean } {
    const key = nameKey(table.name);
    if (isInternalTable(table.name)) return "the name is one of hook-sync's own";
    const other = readOtherRelations(this.#db).find(({ name }) => nameKey(name) === key);
    if (other !== undefined) return `there is a ${other.type} of that name here`;
    this.#db.run("SAVEPOINT taken");
    try {
      const reason = this.#makeFit(table, keys);
      const isNew = reason?.isNew ?? false;
      const chosen = this.#selectionWith(key);
      const verdict = survey(this.#db, chosen);
      if (!verdict.synced.has(key)) {
        const why = verdict.notSynced.find(({ name }) => nameKey(name) === key)?.reason;
        this.#db.run("ROLLBACK TO taken");
        return why ?? "it cannot be synced";
      }
      writeSelection(this.#db, chosen);
      return { isNew };
    } catch (error) {
      if (!isRefusal(error) || !this.#db.inTransaction) throw error;
      this.#db.run("ROLLBACK TO taken");
      return (error as Error).message;
    } finally {
      if (this.#db.inTransaction) this.#db.run("RELEASE taken");
    }
  }

  #selectionWith(key: string) {
    const selection = readSelection(this.#db) ?? { all: false, names: [] };
    if (selection.all || selection.names.includes(key)) return selection;
    return { ...selection, names: [...selection.names, key] };
  }

  #makeFit(table: SourceTable, keys: readonly UniqueKey[]): { isNew: boolean } {
    const key = nameKey(table.name);
    const isNew = !readTables(this.#db).has(key);
    if (isNew) this.#db.run(table.sql);
    const wanted = isNew ? [] : [...table.columns];
    if (!this.#has(key, "updated_at")) wanted.push(VERSION_COLUMN);
    for (const { name, type } of wanted) {
      if (this.#has(key, nameKey(name))) continue;
      const plain = /^[\w ]*(?:\([\d ,+-]*\))?$/.test(type) ? type : "";
      const column = `${quoteName(name)} ${plain}`;
      this.#db.run(`ALTER TABLE ${quoteName(table.name)} ADD COLUMN ${column}`);
    }
    this.#followKeys(readTables(this.#db).get(key)!, keys);
    return { isNew };
  }

  #has(tableKey: string, column: string): boolean {
    const table = readTables(this.#db).get(tableKey)!;
    return table.columns.some(({ key }) => key === column) || table.generated.has(column);
  }

  /**
   * A row that REPLACE threw out on the source leaves no trace in its log: it goes here because the
   * same key stands here.
   */
  #followKeys(table: Table, keys: readonly UniqueKey[]): void {
    const made = this.#madeIndexes();
    const wanted = new Set(keys.map(keyText));
    for (const { table: of, index, key } of made) {
      if (of !== table.key || wanted.has(key)) continue;
      this.#db.run(`DROP INDEX IF EXISTS ${quoteName(index)}`);
    }
    const kept = made.filter((each) => each.table !== table.key || wanted.has(each.key));
    const here = readTables(this.#db).get(table.key)!.uniqueKeys;
    const standing = new Set(here.map(keyText));
    const stricter = here.find((each) => !wanted.has(keyText(each)));
    this.#remark(
      `stricter ${table.key}`,
      stricter &&
        `${table.name} has a UNIQUE key here (${stricter.columns.join(", ")}) that the source has not: rows that clash replace each other`,
    );
    for (const each of keys) {
      if (standing.has(keyText(each))) continue;
      const index = this.#makeIndex(table, each);
      if (index !== undefined) kept.push({ table: table.key, index, key: keyText(each) });
    }
    setSetting(this.#db, INDEXES, JSON.stringify(kept));
  }

  #makeIndex(table: Table, { terms, where, columns }: UniqueKey): string | undefined {
    const index = this.#freeName(`${table.name}_${columns.join("_")}_unique`);
    const parts = terms.map(({ sql, collation }) => `${sql} COLLATE ${quoteName(collation)}`);
    const only = where === undefined ? "" : ` WHERE ${where}`;
    const sql = `CREATE UNIQUE INDEX ${quoteName(index)} ON ${quoteName(table.name)} (${parts.join(", ")})${only}`;
    let failure = this.#failureOf(sql);
    // Rows that were sent under other rules are in the way of those that are sent now.
    if (failure !== undefined && this.#isSwept(table.key)) {
      this.#dropUnsent(table);
      failure = this.#failureOf(sql);
    }
    const columnsText = columns.join(", ");
    this.#remark(
      `loose ${table.key} ${columnsText}`,
      failure &&
        `${table.name} is UNIQUE on the source (${columnsText}) and cannot be here: ${failure}`,
    );
    return failure === undefined ? index : undefined;
  }

  #failureOf(sql: string): string | undefined {
    try {
      this.#db.run(sql);
      return undefined;
    } catch (error) {
      if (!isRefusal(error) || !this.#db.inTransaction) throw error;
      return (error as Error).message;
    }
  }

  /** Each of them is sent again, or gone. */
  #dropUnsent(table: Table): void {
    const unsent = "SELECT id FROM _hooksync_taken WHERE tbl = ?1 AND run <> ?2";
    this.#db
      .query(`DELETE FROM ${quoteName(table.name)} WHERE ${quoteName("id")} IN (${unsent})`)
      .run(table.key, this.#run);
    this.#db
      .query("DELETE FROM _hooksync_taken WHERE tbl = ?1 AND run <> ?2")
      .run(table.key, this.#run);
  }

  #freeName(name: string): string {
    const isTaken = this.#db.query("SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE");
    let free = name;
    for (let n = 2; isTaken.get(free) !== null; n++) free = `${name}_${n}`;
    return free;
  }

  #madeIndexes(): MadeIndex[] {
    const text = setting(this.#db, INDEXES);
    return typeof text === "string" ? (JSON.parse(text) as MadeIndex[]) : [];
  }

  #remark(about: string, text: string | undefined): void {
    if (text === undefined) this.#remarks.delete(about);
    else this.#remarks.set(about, text);
  }

  // ── Rows ────────────────────────────────────────────────────────────────────────────────────

  /** The row is like this in the source now. */
  put(source: SourceTable, rowid: bigint | null, values: readonly SqlValue[]): void {
    const plan = this.#planOf(source);
    if (plan === undefined) return;
    const { target } = plan;
    const id = values[plan.idAt];
    if (rowid !== null) {
      const before = this.#idOf(target.key, rowid);
      if (before !== undefined && before !== id) this.#drop(target, before);
    }
    if (typeof id !== "string") {
      this.#refuse(target.name, "ids that are NULL or BLOBs stay out");
      return;
    }
    const content = hashOf(plan.source, values, plan.stampAt);
    const hash = plan.stampAt < 0 ? content : hashOf(plan.source, values);
    // B3
    const isSame = this.#isSwept(target.key) && this.#hashOf(target.key, id) === hash;
    const isHere = isSame || this.#write(plan, id, values, content);
    this.#db
      .query(
        "INSERT OR REPLACE INTO _hooksync_taken(tbl, id, source_rowid, hash, run) VALUES (?, ?, ?, ?, ?)",
      )
      .run(target.key, id, rowid, isHere ? hash : null, this.#run);
  }

  /** The row is not in the source any more. */
  remove(source: SourceTable, { rowid, key }: SourceKey): void {
    const plan = this.#planOf(source);
    if (plan === undefined) return;
    const id = rowid === null ? key[0] : this.#idOf(plan.target.key, rowid);
    if (typeof id === "string") this.#drop(plan.target, id);
  }

  /** False where the row is not let in. */
  #write(plan: Plan, id: string, values: readonly SqlValue[], content: number): boolean {
    const found = this.#compare(plan, id, values);
    if (found !== null) this.#watchReturn(plan, id, values, content);
    if (found?.same === 1) return true;
    try {
      const written = this.#statement(plan, "update", values, updateSql);
      const bindings = plan.at.map((at) => boundTo(values[at]!));
      if (found === null || written.run(...bindings, id).changes === 0) {
        const stamp = plan.stampAt < 0 ? [this.#nowMs] : [];
        this.#statement(plan, "insert", values, insertSql).run(...bindings, ...stamp);
      }
    } catch (error) {
      if (!isRefusal(error) || !this.#db.inTransaction) throw error;
      this.#refuse(plan.target.name, (error as Error).message);
      return false;
    }
    const sent = plan.stampAt < 0 ? undefined : values[plan.stampAt];
    const isDoubtful = found !== null ? found.rises !== 1 : typeof sent !== "bigint";
    if (sent !== undefined && isDoubtful) this.#lifting.push({ plan, id, content, sent });
    return true;
  }

  #compare(
    plan: Plan,
    id: string,
    values: readonly SqlValue[],
  ): { same: number; rises: number } | null {
    const statement = this.#statement(plan, "compare", values, compareSql);
    const bindings = plan.at.map((at) => boundTo(values[at]!));
    return statement.get(...bindings, id) as { same: number; rises: number } | null;
  }

  #planOf(source: SourceTable): Plan | undefined {
    const key = nameKey(source.name);
    const known = this.#plans.get(key);
    if (known !== undefined) return known;
    const target = this.#admitted.has(key) ? this.#options.survey().synced.get(key) : undefined;
    if (target === undefined || this.#leftOut.has(source.name)) return undefined;
    const keys = source.columns.map(({ name }) => nameKey(name));
    const at = [...keys.keys()].filter((i) => target.columnByKey.has(keys[i]!));
    const statements = new Map<string, RowStatement>();
    const idAt = keys.indexOf(target.id.key);
    const stampAt = keys.indexOf(target.version.key);
    const plan = { source, target, at, idAt, stampAt, statements };
    this.#plans.set(key, plan);
    return plan;
  }

  #statement(
    plan: Plan,
    what: "compare" | "update" | "insert",
    values: readonly SqlValue[],
    sqlOf: (plan: Plan, places: readonly string[]) => string,
  ): RowStatement {
    const places = plan.at.map((at) => placeOf(values[at]!));
    const key = `${what} ${places.join()}`;
    const known = plan.statements.get(key);
    if (known !== undefined) return known;
    if (this.#statements >= STATEMENTS_MAX) this.#forgetStatements();
    const statement = this.#db.prepare<unknown, SQLQueryBindings[]>(sqlOf(plan, places));
    plan.statements.set(key, statement);
    this.#statements++;
    return statement;
  }

  #idOf(table: string, rowid: bigint): string | undefined {
    const row = this.#db
      .query<{ id: string }, [string, bigint]>(
        "SELECT id FROM _hooksync_taken WHERE tbl = ? AND source_rowid = ?",
      )
      .get(table, rowid);
    return row?.id;
  }

  #hashOf(table: string, id: string): number | null | undefined {
    const row = this.#db
      .query<{ hash: number | null }, [string, string]>(
        "SELECT hash FROM _hooksync_taken WHERE tbl = ? AND id = ?",
      )
      .get(table, id);
    return row?.hash;
  }

  #drop(target: SyncedTable, id: string): void {
    this.#delete(target, id);
    this.#db.query("DELETE FROM _hooksync_taken WHERE tbl = ? AND id = ?").run(target.key, id);
  }

  #delete(target: SyncedTable, id: string): void {
    const sql = `DELETE FROM ${quoteName(target.name)} WHERE ${quoteName(target.id.name)} = ?`;
    try {
      this.#db.query(sql).run(id);
    } catch (error) {
      if (!isRefusal(error) || !this.#db.inTransaction) throw error;
      this.#refuse(target.name, (error as Error).message);
    }
  }

  #refuse(table: string, reason: string): void {
    const known = this.#refused.get(table);
    this.#refused.set(table, { rows: (known?.rows ?? 0) + 1, reason });
  }

  // ── Everything again ────────────────────────────────────────────────────────────────────────

  /** All rows of a table, or of every table, are sent again from here on. */
  sweep(table?: string): void {
    if (this.#swept.size === 0) {
      this.#run++;
      setSetting(this.#db, RUN, this.#run);
    }
    const known = this.#db
      .query<{ tbl: string }, []>("SELECT DISTINCT tbl FROM _hooksync_taken")
      .all()
      .map(({ tbl }) => tbl);
    const keys = table === undefined ? [ALL, ...known] : [nameKey(table)];
    for (const key of keys) {
      this.#swept.add(key);
      // They may be numbered anew.
      this.#db.query("UPDATE _hooksync_taken SET source_rowid = NULL WHERE tbl = ?").run(key);
    }
  }

  #isSwept(key: string): boolean {
    return this.#swept.has(key) || this.#swept.has(ALL);
  }

  /** Deletes up to `rowsMax` rows that were not sent again; true when there may be more. */
  sweepOut(rowsMax: number): boolean {
    let left = rowsMax;
    for (const key of this.#swept) {
      const target = this.#options.survey().synced.get(key);
      const gone = this.#db
        .query<{ id: string }, [string, number, number]>(
          "SELECT id FROM _hooksync_taken WHERE tbl = ? AND run <> ? LIMIT ?",
        )
        .all(key, this.#run, left);
      for (const { id } of gone) {
        if (target !== undefined) this.#delete(target, id);
        this.#db.query("DELETE FROM _hooksync_taken WHERE tbl = ? AND id = ?").run(key, id);
      }
      left -= gone.length;
      if (left <= 0) return true;
      this.#swept.delete(key);
    }
    return false;
  }

  // ── Circles ─────────────────────────────────────────────────────────────────────────────────

  /** Last in the transaction: what was written gets its versions, and those it got here are noted. */
  end(nowMs: number): void {
    if (this.#lifting.length === 0) return;
    this.#options.settle(nowMs);
    for (const { plan, id, content, sent } of this.#lifting) {
      const { target } = plan;
      const row = this.#db
        .query<{ stamp: string }, [string]>(
          `SELECT CAST(${quoteName(target.version.name)} AS TEXT) AS stamp
           FROM ${quoteName(target.name)} WHERE ${quoteName(target.id.name)} = ?`,
        )
        .get(id);
      if (row !== null && row.stamp !== String(sent))
        this.#noteLifted(`${target.key} ${id}`, `${row.stamp} ${content}`);
    }
    this.#lifting = [];
  }

  #noteLifted(row: string, what: string): void {
    const known = this.#lifted.get(row) ?? [];
    this.#lifted.delete(row);
    this.#lifted.set(row, [...known, what].slice(-LIFTED_PER_ROW_MAX));
    if (this.#lifted.size <= LIFTED_ROWS_MAX) return;
    this.#lifted.delete(this.#lifted.keys().next().value!);
  }

  /** A version that was given here cannot be the source's, unless it got it from here. */
  #watchReturn(plan: Plan, id: string, values: readonly SqlValue[], content: number): void {
    if (plan.stampAt < 0 || this.#lifted.size === 0) return;
    const known = this.#lifted.get(`${plan.target.key} ${id}`);
    if (known?.includes(`${values[plan.stampAt]} ${content}`)) this.#returned++;
  }

  #forgetPlans(): void {
    this.#forgetStatements();
    this.#plans.clear();
  }

  #forgetStatements(): void {
    for (const { statements } of this.#plans.values()) {
      for (const statement of statements.values()) statement.finalize();
      statements.clear();
    }
    this.#statements = 0;
  }
}

const VERSION_COLUMN: SourceColumn = { name: "updated_at", type: "INTEGER", defaultSql: null };

/** No table's key. */
const ALL = "";

function keyText({ terms, where }: UniqueKey): string {
  const parts = terms.map(({ sql, collation }) => [nameKey(sql), nameKey(collation)]);
  return JSON.stringify([parts, where ?? null]);
}

// ── SQL of one table ──────────────────────────────────────────────────────────────────────────

function columnsOf({ source, at }: Plan): string[] {
  return at.map((i) => quoteName(source.columns[i]!.name));
}

/** OR REPLACE: a row that has one of its unique values now has it no longer on the source. */
function updateSql(plan: Plan, places: readonly string[]): string {
  const { name, id } = plan.target;
  const all = columnsOf(plan).map((column, i) => `${column} = ${numbered(places[i]!, i)}`);
  const own = plan.at.indexOf(plan.idAt);
  const sets = all.length > 1 ? all.filter((_, i) => i !== own) : all;
  return `
    UPDATE OR REPLACE ${quoteName(name)}
    SET ${sets.join(", ")}
    WHERE ${quoteName(id.name)} = ?${places.length + 1}`;
}

function insertSql(plan: Plan, places: readonly string[]): string {
  const { target, stampAt } = plan;
  const names = columnsOf(plan);
  const values = places.map(numbered);
  if (stampAt < 0) {
    names.push(quoteName(target.version.name));
    values.push(`?${places.length + 1}`);
  }
  return `
    INSERT OR REPLACE INTO ${quoteName(target.name)} (${names.join(", ")})
    VALUES (${values.join(", ")})`;
}

/** `same`: it is here as it comes, kinds and all. `rises`: its stamp is above the one here. */
function compareSql(plan: Plan, places: readonly string[]): string {
  const { target, stampAt, at } = plan;
  const same = columnsOf(plan).map((column, i) => {
    const place = numbered(places[i]!, i);
    return `(t.${column} IS ${place} AND typeof(t.${column}) = typeof(${place}))`;
  });
  const stamp = `?${at.indexOf(stampAt) + 1}`;
  const version = `t.${quoteName(target.version.name)}`;
  const rises =
    stampAt < 0
      ? "0"
      : `typeof(${stamp}) = 'integer' AND typeof(${version}) = 'integer' AND ${stamp} > ${version}`;
  return `
    SELECT ${same.join(" AND ")} AS same, ${rises} AS rises
    FROM ${quoteName(target.name)} AS t
    WHERE t.${quoteName(target.id.name)} = ?${places.length + 1}`;
}

function numbered(place: string, i: number): string {
  return place.replace("?", `?${i + 1}`);
}

/** Of the row's values by column, but the one at `without`. */
function hashOf(source: SourceTable, values: readonly SqlValue[], without = -1): number {
  // A column that came without a DEFAULT changes no row.
  const parts = values.map((value, i) => {
    return i === without || value === null ? "" : `${source.columns[i]!.name}=${textOf(value)}`;
  });
  return Number(
    BigInt.asUintN(
      Number(HASH_BITS),
      BigInt(Bun.hash(parts.filter((part) => part !== "").join("\n"))),
    ),
  );
}

function textOf(value: NonNullable<SqlValue>): string {
  if (typeof value === "bigint") return `i${value}`;
  if (typeof value === "number") return Object.is(value, -0) ? "r-0" : `r${value}`;
  if (typeof value === "string") return `t${value.length}:${value}`;
  return isBrokenText(value) ? `x${Buffer.from(value.bytes).toHex()}` : `b${value.toHex()}`;
}
