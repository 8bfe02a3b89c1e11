/**
 * A plain SQLite file as a source: keeps the log (sqlite-log.ts) and what it cannot keep by itself,
 * the schema. Anybody may alter the file at any time; `settle` notices by PRAGMA schema_version, puts
 * the difference into the log as statements, and captures again what was written under triggers that
 * no longer fitted. Until that is done a tailer gives out nothing: a batch never ends between a schema
 * change and its place in the log.
 *
 * What one statement cannot say (a rename, a dropped column, a table that was built anew, rowids that
 * VACUUM gave out anew) is sent as a table dropped, made and filled in one transaction. In the log it
 * is filled in parts, so that a large table holds up nobody who writes: the table's triggers stand by
 * then, and an entry says what a row is at that moment, so that entries of others may lie between.
 *
 * Invariants (test/cdc/sqlite.test.ts):
 *   Q1  in a settled file, the log's end and the file are the same: applying one gives the other.
 *   Q2  what is recorded (_cdc_object) is what applying the log leads to, at every commit.
 *   Q3  until the last part is logged the file does not pass for settled: no batch ends before.
 */
import type { Database } from "bun:sqlite";
import { type Random, systemRandom } from "../base/random.ts";
import { quoteName, tokenize } from "../base/sql-text.ts";
import { CdcError } from "./error.ts";
import { keyColumns, SCHEMA_SQL, type SchemaObject } from "./schema-digest.ts";
import { isRowidName, rowidName } from "./source-schema.ts";
import { SqliteCommits } from "./sqlite-commits.ts";
import {
  CANARY_ROWID,
  CAPTURE_TRIGGER,
  CREATE_LOG_SQL,
  captureTriggers,
  dropCaptureTriggers,
  keyedPartSql,
  LOG_STATEMENT_SQL,
  type LoggedTable,
  logTouchedRowsSql,
  partSql,
  triggerNames,
} from "./sqlite-log.ts";
import { followedObjects, VIRTUAL_SQL } from "./sqlite-objects.ts";
import { allColumnNames, columnsOf, hasRowids, schemaVersion } from "./sqlite-table.ts";

/** Bound how long one prune and one part of a settle hold the write lock. */
const PRUNE_ROWS_MAX = 5_000;
const PART_ROWS_MAX = 5_000;
/** With a column of each, by which it is known from another program's table of that name. */
const LOG_COLUMNS = {
  _cdc: "change_type",
  _cdc_object: "tbl_name",
  _cdc_state: "planned",
  _cdc_log: "complete",
  _cdc_canary: "kept",
  _cdc_rebuild: "rows_from",
} as const;
const LOG_TABLES = Object.keys(LOG_COLUMNS);
/** No schema's version: the log is not there yet. */
const UNSETTLED = -1;
const ROWID_MIN = -(2n ** 63n);

/** One that runs before the row is written cannot end what is done; RAISE may, and any write in it. */
const ENDING_TRIGGER = /\bAFTER\b[\s\S]*\b(?:raise|insert|replace|update|delete)\b/i;
const UNIQUE_INDEX = /^\s*CREATE\s+UNIQUE\b/i;

interface Known extends SchemaObject {
  readonly sql: string;
  /** The names of the stored columns as JSON; "" for what is no table. */
  readonly columns: string;
}

/** What became of a table since it was looked at last. */
type Fate = "same" | "new" | "column-added" | "rebuilt";

interface Current {
  readonly objects: readonly SchemaObject[];
  readonly tables: ReadonlyMap<string, LoggedTable>;
}

/** The log of one file. The connection is one that may write; it is not closed here. */
export class SqliteCapture {
  readonly #db: Database;
  #ends: SqliteCommits | undefined;
  /** Up to where the log was certainly written under the schema that is recorded. */
  #fittingTo: bigint | undefined;

  private constructor(db: Database) {
    this.#db = db;
  }

  /** Begins or goes on with the log of a file, settled. Throws "source-unfit" where it cannot be. */
  static open(db: Database, random: Random = systemRandom): SqliteCapture {
    const capture = SqliteCapture.openUnsettled(db, random);
    capture.settle();
    return capture;
  }

  /** The same, for one who then calls `settlePart` until there is nothing left. */
  static openUnsettled(db: Database, random: Random = systemRandom): SqliteCapture {
    const capture = new SqliteCapture(db);
    if (!SqliteCapture.isWhole(db)) {
      refuseOthersTables(db);
      // Somebody took out a part of it: what is left is no log.
      SqliteCapture.remove(db);
      capture.#begin(random);
    }
    return capture;
  }

  /** Whether all tables of the log are there. */
  static isWhole(db: Database): boolean {
    const { n } = db
      .query<{ n: number }, [string]>(
        `SELECT count(*) AS n FROM sqlite_schema
         WHERE type = 'table' AND name IN (SELECT value FROM json_each(?))`,
      )
      .get(JSON.stringify(LOG_TABLES))!;
    return n === LOG_TABLES.length;
  }

  /** Whether nobody has changed the schema since it was settled. Cheap. */
  get isSettled(): boolean {
    return schemaVersion(this.#db) === this.#state().schema_version;
  }

  /** Puts what happened to the schema into the log; true when there was something. */
  settle(): boolean {
    let isChanged = false;
    while (this.settlePart()) isChanged = true;
    return isChanged;
  }

  /** One short transaction of it, with so many rows; false when there was nothing to do. */
  settlePart(rowsMax = PART_ROWS_MAX): boolean {
    // In this order: what is logged by now was logged under the schema that is looked at next.
    const newest = this.newest();
    if (this.isSettled) {
      this.#fittingTo = newest;
      return false;
    }
    const isChanged = this.#transaction(() => {
      if (this.isSettled) return false;
      if (schemaVersion(this.#db) !== this.#state().planned) this.#plan();
      if (this.#fillSome(rowsMax)) this.#finish();
      return true;
    });
    this.#fittingTo = undefined;
    return isChanged;
  }

  /** The newest change id, 0 for an empty log. */
  newest(): bigint {
    const row = this.#db
      .query<{ id: string | null }, []>("SELECT CAST(max(change_id) AS TEXT) AS id FROM _cdc")
      .get();
    return BigInt(row?.id ?? 0);
  }

  /** Deletes up to 5,000 of the oldest rows below `through`, keeping that one and the one before it. */
  prune(through: bigint): number {
    return this.#db
      .query(
        `DELETE FROM _cdc WHERE change_id IN (
           SELECT change_id FROM _cdc
           WHERE change_id < (
             SELECT min(change_id) FROM (
               SELECT change_id FROM _cdc WHERE change_id <= ? ORDER BY change_id DESC LIMIT 2))
           ORDER BY change_id LIMIT ${PRUNE_ROWS_MAX})`,
      )
      .run(through).changes;
  }

  /** Takes the log and its triggers out of the file. */
  static remove(db: Database): void {
    db.transaction(() => {
      dropCaptureTriggers(db);
      for (const table of [...LOG_TABLES, "_cdc_follower"]) db.run(`DROP TABLE IF EXISTS ${table}`);
    }).immediate();
  }

  #begin(random: Random): void {
    const { encoding } = this.#db.query<{ encoding: string }, []>("PRAGMA encoding").get()!;
    if (encoding !== "UTF-8") throw unfit(`its texts are ${encoding}; only UTF-8 is followed`);
    this.#transaction(() => {
      const current = this.#readCurrent();
      const isComplete = current.objects.length === 0 ? 1 : 0;
      this.#db.run(CREATE_LOG_SQL);
      this.#db.run(
        "CREATE TABLE _cdc_log (one INTEGER PRIMARY KEY CHECK (one = 1), log TEXT NOT NULL, complete INTEGER NOT NULL)",
      );
      this.#db.run("INSERT INTO _cdc_log VALUES (1, ?, ?)", [random.hex(16), isComplete]);
      this.#db.run(`INSERT INTO _cdc_state VALUES (1, ${UNSETTLED}, 0, 0)`);
      this.#capture(current);
      this.#record(current);
      this.#finish();
    });
  }

  #transaction<T>(run: () => T): T {
    this.#db.run("BEGIN IMMEDIATE");
    try {
      const result = run();
      this.#db.run("COMMIT");
      return result;
    } catch (error) {
      if (this.#db.inTransaction) this.#db.run("ROLLBACK");
      throw error;
    }
  }

  /** Everything but the rows of tables that are new or made anew. */
  #plan(): void {
    const current = this.#readCurrent();
    const known = this.#db.query<Known, []>("SELECT * FROM _cdc_object").all();
    const fates = this.#fatesOf(current, known);
    this.#db.run("DELETE FROM _cdc_rebuild");
    this.#logDrops(known, current, fates);
    for (const [name, table] of current.tables) this.#logTable(table, fates.get(name)!, current);
    this.#logCreates(known, current, fates);
    this.#capture(current);
    this.#record(current);
  }

  /** Logs a part of the rows that are still to be logged; true when that was the last. */
  #fillSome(rowsMax: number): boolean {
    let left = rowsMax;
    for (const name of this.#unfilled()) {
      const table = this.#readTable(name);
      const logged =
        left <= 0
          ? undefined
          : table.rowid === undefined
            ? this.#fillKeyed(table, left)
            : this.#fill(table, left);
      if (logged === undefined) return false;
      left -= logged;
      this.#db.query("DELETE FROM _cdc_rebuild WHERE name = ?").run(name);
    }
    return true;
  }

  /** So many rows, or how many were left; undefined where there may be more. */
  #fill(table: LoggedTable, rowsMax: number): number | undefined {
    const { end, log } = partSql(table);
    const { through, n } = this.#db
      .query<{ through: string | null; n: number }, [number]>(end)
      .get(rowsMax)!;
    if (n > 0) this.#db.query(log).run(through);
    if (n < rowsMax) return n;
    this.#db
      .query("UPDATE _cdc_rebuild SET rows_from = CAST(? AS INTEGER) + 1 WHERE name = ?")
      .run(through, table.name);
    return undefined;
  }

  /**
   * The same for a table WITHOUT ROWID. Where a part ended is kept in a TEMP table: a key of any values
   * does not leave SQL. A process that comes after this one begins the table again, which does no harm.
   */
  #fillKeyed(table: LoggedTable, rowsMax: number): number | undefined {
    // What is left of another plan, on this connection, is not taken for a part of this one.
    const part = `_cdc_part_${this.#state().planned}`;
    const hasBegun =
      this.#db.query("SELECT 1 FROM sqlite_temp_schema WHERE name = ?").get(part) !== null;
    const { next, log, rest } = keyedPartSql(table, hasBegun ? part : undefined);
    this.#db.run("DROP TABLE IF EXISTS temp._cdc_next");
    this.#db.query(next).run(rowsMax - 1);
    const isMore = this.#db.query("SELECT 1 FROM temp._cdc_next").get() !== null;
    const { changes } = this.#db.query(isMore ? log : rest).run();
    if (hasBegun) this.#db.run(`DROP TABLE temp.${part}`);
    // No ALTER … RENAME: it fails where any view of the application is broken.
    if (isMore) this.#db.run(`CREATE TEMP TABLE ${part} AS SELECT * FROM temp._cdc_next`);
    this.#db.run("DROP TABLE temp._cdc_next");
    return isMore ? undefined : changes;
  }

  #unfilled(): readonly string[] {
    return this.#db
      .query<{ name: string }, []>("SELECT name FROM _cdc_rebuild ORDER BY name")
      .all()
      .map(({ name }) => name);
  }

  #finish(): void {
    this.#db
      .query("UPDATE _cdc_state SET schema_version = ?, settled = ?")
      .run(schemaVersion(this.#db), this.newest());
    this.#ends ??= new SqliteCommits(this.#db);
    this.#ends.end();
  }

  #fatesOf(current: Current, known: readonly Known[]): Map<string, Fate> {
    const before = new Map(
      known.filter(({ type }) => type === "table").map((each) => [each.name, each]),
    );
    const fates = new Map<string, Fate>();
    const wasVacuumed = this.#wasVacuumed();
    const isRemade = this.#unexplained(current, known) >= 2;
    const doubtful = doubtfulKeys(current, known, isRemade);
    const unlogged = this.#unloggedTables(current);
    const unfilled = new Set(this.#unfilled());
    for (const [name, table] of current.tables) {
      const fate = this.#fateOf(table, current, before.get(name), wasVacuumed);
      const stood = fate === "same" || fate === "column-added";
      const isDoubtful =
        unfilled.has(name) || unlogged.has(name) || (doubtful.has(name) && this.#isTouched(name));
      fates.set(name, stood && isDoubtful ? "rebuilt" : fate);
    }
    return fates;
  }

  /**
   * Tables with a trigger that may end a write and keep what is done (RAISE, or a constraint that fails
   * while the statement says OR FAIL), and that is newer than ours: it runs first, and the row that it
   * ended with was not logged. A statement that ran under such a trigger and dropped it again is missed.
   */
  #unloggedTables(current: Current): ReadonlySet<string> {
    const followed = new Set(
      current.objects.filter(({ type }) => type === "trigger").map(({ name }) => name),
    );
    const tables = new Set<string>();
    const ours = new Set<string>();
    for (const { name, tbl_name, sql } of this.#triggers()) {
      if (CAPTURE_TRIGGER.test(name)) ours.add(tbl_name);
      else if (ours.has(tbl_name) && followed.has(name) && ENDING_TRIGGER.test(sql)) {
        tables.add(tbl_name);
      }
    }
    return tables;
  }

  /** In the order in which they were made; they run in the opposite one. */
  #triggers(): readonly {
    readonly name: string;
    readonly tbl_name: string;
    readonly sql: string;
  }[] {
    return this.#db
      .query<{ name: string; tbl_name: string; sql: string }, []>(
        "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid",
      )
      .all();
  }

  /** Versions of the schema that no difference tells of: what was dropped and made anew leaves two. */
  #unexplained(current: Current, known: readonly Known[]): number {
    const changed = known.filter((object) => !isUnchanged(object, current)).length;
    const appeared = current.objects.filter((object) => !isKnown(object, known)).length;
    return schemaVersion(this.#db) - this.#state().planned - changed - appeared;
  }

  /** What is logged behind it may have been written after the schema was altered; no COMMIT is. */
  #since(): number {
    const commit = this.#db
      .query<{ id: number }, []>(
        "SELECT change_id AS id FROM _cdc WHERE change_type = 2 ORDER BY change_id DESC LIMIT 1",
      )
      .get();
    return Math.max(Number(this.#fittingTo ?? 0), this.#state().settled, commit?.id ?? 0);
  }

  #isTouched(table: string): boolean {
    return (
      this.#db
        .query("SELECT 1 FROM _cdc WHERE change_id > ? AND table_name = ? LIMIT 1")
        .get(this.#since(), table) !== null
    );
  }

  #wasVacuumed(): boolean {
    const row = this.#db.query<{ id: number }, []>("SELECT rowid AS id FROM _cdc_canary").get();
    return row?.id !== CANARY_ROWID;
  }

  #fateOf(
    table: LoggedTable,
    current: Current,
    before: Known | undefined,
    wasVacuumed: boolean,
  ): Fate {
    if (before === undefined) return "new";
    const { sql } = sqlOf(current, "table", table.name);
    if (!this.#isCaptured(table.name)) return "rebuilt";
    const isRenumbered = wasVacuumed && table.rowid !== undefined;
    if (isRenumbered && !this.#hasIntegerKey(table, current)) return "rebuilt";
    if (sql === before.sql && before.columns === JSON.stringify(table.columns)) return "same";
    const added = addedColumn(before, table, sql!);
    if (added === undefined || table.rowid === undefined) return "rebuilt";
    // Triggers that knew the rowid by that name took the column for it.
    return isRowidName(table.columns.at(-1)!) ? "rebuilt" : "column-added";
  }

  /** Whether our triggers stand on it: they go with a table that is dropped and made anew. */
  #isCaptured(table: string): boolean {
    return triggerNames(table).every((name) => this.#hasTrigger(name, table));
  }

  /** Only an alias of the rowid is given out by SQLite when NULL is inserted; its type says so. */
  #hasIntegerKey(table: LoggedTable, current: Current): boolean {
    const keys = columnsOf(this.#db, table.name).filter(({ pk }) => pk > 0);
    const { sql } = sqlOf(current, "table", table.name);
    return (
      keys.length === 1 &&
      /^integer$/i.test(keys[0]!.type) &&
      // A historical accident: with DESC behind the column it is an ordinary key.
      !/primary\s+key\s+desc/i.test(sql!)
    );
  }

  /** What is gone or changed; what stood on a dropped table went with it. */
  #logDrops(known: readonly Known[], current: Current, fates: ReadonlyMap<string, Fate>): void {
    const stays = (name: string) => {
      const fate = fates.get(name);
      return fate === "same" || fate === "column-added";
    };
    for (const type of ["view", "trigger", "index"]) {
      for (const object of known) {
        if (object.type !== type || isUnchanged(object, current)) continue;
        const isOnTable = current.tables.has(object.tbl_name) || wasTable(known, object.tbl_name);
        if (type !== "view" && isOnTable && !stays(object.tbl_name)) continue;
        this.#logStatement(`DROP ${type.toUpperCase()} ${quoteName(object.name)}`);
      }
    }
    for (const { type, name } of known) {
      if (type === "table" && !stays(name)) this.#logStatement(`DROP TABLE ${quoteName(name)}`);
    }
  }

  #logTable(table: LoggedTable, fate: Fate, current: Current): void {
    const { sql } = sqlOf(current, "table", table.name);
    switch (fate) {
      case "same":
        return;
      case "column-added": {
        const before = this.#db
          .query<Known, [string]>("SELECT * FROM _cdc_object WHERE type = 'table' AND name = ?")
          .get(table.name)!;
        const definition = addedColumn(before, table, sql!);
        this.#logStatement(`ALTER TABLE ${quoteName(table.name)} ADD COLUMN ${definition}`);
        // Logged by triggers that did not know the column.
        this.#db.run(logTouchedRowsSql(table, this.#since()));
        return;
      }
      case "new":
      case "rebuilt":
        this.#logStatement(sql!);
        this.#db
          .query("INSERT INTO _cdc_rebuild (name, rows_from) VALUES (?, ?)")
          .run(table.name, ROWID_MIN);
    }
  }

  #logCreates(known: readonly Known[], current: Current, fates: ReadonlyMap<string, Fate>): void {
    const before = new Map(known.map((each) => [`${each.type} ${each.name}`, each]));
    for (const type of ["index", "view", "trigger"]) {
      for (const object of current.objects) {
        if (object.type !== type) continue;
        const fate = fates.get(object.tbl_name);
        const went = fate === "new" || fate === "rebuilt";
        if (!went && before.get(`${type} ${object.name}`)?.sql === object.sql) continue;
        this.#logStatement(object.sql!);
      }
    }
  }

  #logStatement(sql: string): void {
    this.#db.query(LOG_STATEMENT_SQL).run(sql);
  }

  /**
   * Makes the triggers what they should be, and the newest of their tables: those run first. Behind
   * one of the application's they would not run where that one fails and the write stays (OR FAIL).
   */
  #capture(current: Current): void {
    const standing = this.#triggers();
    const ours = standing.filter(({ name }) => CAPTURE_TRIGGER.test(name));
    const kept = new Set<string>();
    for (const table of current.tables.values()) {
      const wanted = captureTriggers(table);
      const newest = standing.filter(({ tbl_name }) => tbl_name === table.name).slice(-3);
      const stands = wanted.every(({ name, sql }) =>
        newest.some((trigger) => trigger.name === name && trigger.sql === sql),
      );
      if (stands) for (const { name } of wanted) kept.add(name);
    }
    for (const { name } of ours) {
      if (!kept.has(name)) this.#db.run(`DROP TRIGGER ${quoteName(name)}`);
    }
    for (const table of current.tables.values()) {
      for (const { name, sql } of captureTriggers(table)) if (!kept.has(name)) this.#db.run(sql);
    }
  }

  #record(current: Current): void {
    this.#db.run("DELETE FROM _cdc_canary");
    this.#db.run("INSERT INTO _cdc_canary (rowid) VALUES (?)", [CANARY_ROWID]);
    this.#db.run("DELETE FROM _cdc_object");
    const insert = this.#db.query("INSERT INTO _cdc_object VALUES (?, ?, ?, ?, ?)");
    for (const { type, name, tbl_name, sql } of current.objects) {
      const table = type === "table" ? current.tables.get(name) : undefined;
      insert.run(type, name, tbl_name, sql, table ? JSON.stringify(table.columns) : "");
    }
    this.#db
      .query("UPDATE _cdc_state SET schema_version = ?, planned = ?")
      .run(UNSETTLED, schemaVersion(this.#db));
  }

  #readCurrent(): Current {
    const all = this.#db.query<SchemaObject, []>(SCHEMA_SQL).all();
    const virtual = this.#db.query<{ name: string }, []>(VIRTUAL_SQL).all();
    const objects = followedObjects(
      all,
      virtual.map(({ name }) => name),
    );
    const tables = new Map<string, LoggedTable>();
    for (const { type, name } of objects) {
      if (type === "table") tables.set(name, this.#readTable(name));
    }
    return { objects, tables };
  }

  #readTable(name: string): LoggedTable {
    const columns = columnsOf(this.#db, name);
    const names = columns.map((column) => column.name);
    const isKeyed = !hasRowids(this.#db, name);
    const rowid = isKeyed ? undefined : rowidName(allColumnNames(this.#db, name));
    if (!isKeyed && rowid === undefined) throw unfit(`columns of ${name} hide its rowid`);
    return { name, columns: names, rowid, key: keyColumns(columns) };
  }

  #state(): {
    readonly schema_version: number;
    readonly planned: number;
    readonly settled: number;
  } {
    return this.#db
      .query<{ schema_version: number; planned: number; settled: number }, []>(
        "SELECT schema_version, planned, settled FROM _cdc_state",
      )
      .get()!;
  }

  #hasTrigger(name: string, table: string): boolean {
    return (
      this.#db
        .query("SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND name = ? AND tbl_name = ?")
        .get(name, table) !== null
    );
  }
}

/** A table that was never the log's is not dropped for having its name. */
function refuseOthersTables(db: Database): void {
  const other = db
    .query<{ name: string }, [string]>(
      `SELECT t.name FROM json_each(?) AS ours JOIN sqlite_schema AS t ON lower(t.name) = ours.key
       WHERE t.type = 'table'
         AND NOT EXISTS (SELECT 1 FROM pragma_table_info(t.name) AS c WHERE c.name = ours.value)`,
    )
    .get(JSON.stringify({ ...LOG_COLUMNS, _cdc_follower: "seen_ms" }));
  if (other !== null)
    throw unfit(`its table ${other.name} has a name of the log's, and is another's`);
}

function unfit(why: string): CdcError {
  return new CdcError("source-unfit", `this file cannot be followed: ${why}`);
}

function sqlOf(current: Current, type: string, name: string): SchemaObject {
  return current.objects.find((object) => object.type === type && object.name === name)!;
}

function isUnchanged(object: Known, current: Current): boolean {
  return current.objects.some(
    ({ type, name, sql }) => type === object.type && name === object.name && sql === object.sql,
  );
}

/**
 * Tables whose UNIQUE indexes were not the same all the while. In the log what was written comes before
 * an index goes or comes: on a follower that still has one, a row throws out another that stayed; on
 * one that has it not yet, a row stays that REPLACE threw out.
 */
function doubtfulKeys(
  current: Current,
  known: readonly Known[],
  isRemade: boolean,
): ReadonlySet<string> {
  const isUnique = ({ type, sql }: SchemaObject) => type === "index" && UNIQUE_INDEX.test(sql!);
  const gone = known.filter((index) => isRemade || !isUnchanged(index, current));
  const come = current.objects.filter((index) => !isKnown(index, known));
  return new Set([...gone, ...come].filter(isUnique).map((index) => index.tbl_name));
}

function isKnown(object: SchemaObject, known: readonly Known[]): boolean {
  return known.some(
    ({ type, name, sql }) => type === object.type && name === object.name && sql === object.sql,
  );
}

function wasTable(known: readonly Known[], name: string): boolean {
  return known.some((object) => object.type === "table" && object.name === name);
}

/** The definition of the one column that ALTER TABLE … ADD COLUMN put behind the others. */
function addedColumn(before: Known, table: LoggedTable, sql: string): string | undefined {
  const columns: readonly string[] = JSON.parse(before.columns);
  const isPrefix = columns.every((name, i) => table.columns[i] === name);
  if (!isPrefix || table.columns.length !== columns.length + 1) return undefined;
  const start = before.sql.lastIndexOf(")");
  const end = before.sql.slice(start);
  const added = sql.slice(start, sql.length - end.length);
  if (!sql.startsWith(before.sql.slice(0, start)) || !sql.endsWith(end)) return undefined;
  if (!/^\s*,\s*\S/.test(added)) return undefined;
  const definition = added.replace(/^\s*,\s*/, "");
  return isOnePart(definition) ? definition : undefined;
}

/** A constraint that was added as well stands behind a comma of its own. */
function isOnePart(definition: string): boolean {
  let depth = 0;
  for (const { kind, value } of tokenize(definition)) {
    if (kind !== "symbol") continue;
    if (value === "(") depth++;
    if (value === ")") depth--;
    if (value === "," && depth === 0) return false;
  }
  return true;
}
