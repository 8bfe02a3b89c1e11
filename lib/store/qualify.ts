/**
 * Which tables can be synced (DESIGN.md, "Schema"). One that does not qualify is named with the reason
 * and with the SQL that would help (remedies.ts), and never stops the start. Reads only.
 */

import type { Database } from "bun:sqlite";
import { sqliteCode } from "../base/errors.ts";
import { guardRemedy, indexRemedy, rebuildRemedy, stampRemedy } from "./remedies.ts";
import {
  STAMP_MS_MAX,
  type SyncedTable,
  type Table,
  type Unqualified,
  type UserTrigger,
  versionKeys,
} from "./schema.ts";
import { nameKey, quoteName } from "./sql.ts";

/** What surrounds the table and has a say. */
export interface Surroundings {
  /** nameKeys of the synced tables that this trigger of the table writes, itself or through others. */
  readonly writesSynced: (trigger: UserTrigger) => readonly string[];
  /** It was synced before: what is odd about its content now is put right, and no reason to lose it. */
  readonly isAdopted: boolean;
}

/** The capture triggers name every column, and `json_object` is called for 60 at a time. */
const COLUMNS_MAX = 500;
/** How many stamps are looked at from each end of a table to tell milliseconds from microseconds. */
const STAMP_SAMPLE_ROWS = 1_000;

/** Why this table cannot be synced, or the table with its two columns named. */
export function qualifyTable(
  db: Database,
  table: Table,
  surroundings: Surroundings,
): SyncedTable | Unqualified {
  const { writesSynced, isAdopted } = surroundings;
  const no = (reason: string, remedy: string): Unqualified => ({
    name: table.name,
    reason,
    remedy,
  });
  const rebuild = (reason: string, wanted: string) =>
    no(
      reason,
      rebuildRemedy(db, table, wanted, (trigger) => writesSynced(trigger).length > 0),
    );
  const columnByKey = new Map(table.columns.map((column) => [column.key, column]));

  const id = columnByKey.get("id");
  if (!id) return rebuild("it has no column id", "a TEXT PRIMARY KEY named id");
  const primary = primaryKey(db, table.name);
  if (primary.length !== 1 || nameKey(primary[0]!) !== "id") {
    return rebuild(
      `its PRIMARY KEY is not id alone (it is: ${primary.join(", ") || "none"})`,
      "id as the only PRIMARY KEY",
    );
  }
  if (id.affinity !== "text") {
    return rebuild(
      `its id is ${id.declaredType || "without a type"}, and ids must be TEXT: numbers given out by two machines would clash`,
      "id TEXT PRIMARY KEY",
    );
  }
  const collation = idCollation(db, table.name);
  if (collation.toUpperCase() !== "BINARY") {
    return rebuild(
      `its id compares by ${collation}, other nodes compare bytes`,
      "id without COLLATE",
    );
  }

  const version = columnByKey.get("updated_at");
  if (!version) {
    if (table.generated.has("updated_at")) {
      return rebuild("its updated_at is generated", "updated_at INTEGER as an ordinary column");
    }
    return no(
      "it has no column updated_at",
      `ALTER TABLE ${quoteName(table.name)} ADD COLUMN updated_at INTEGER;`,
    );
  }
  if (version.affinity !== "integer") {
    return rebuild(
      `its updated_at is ${version.declaredType || "without a type"}, and versions must be INTEGER milliseconds`,
      "updated_at INTEGER (milliseconds since 1970)",
    );
  }
  const held = versionKeys(table);
  if (held.length > 0) {
    const reason =
      "its updated_at has to be UNIQUE, and rows that change at the same moment have the same version";
    const isDeclared = held.some(({ name }) => name.startsWith("sqlite_autoindex_"));
    if (isDeclared) return rebuild(reason, "updated_at without UNIQUE");
    return no(reason, indexRemedy(db, held));
  }
  if (table.columns.length > COLUMNS_MAX) {
    return no(
      `it has ${table.columns.length} columns, more than ${COLUMNS_MAX}`,
      "Split the table.",
    );
  }
  const missing = isAdopted ? undefined : missingPart(db, table);
  if (missing !== undefined) {
    return no(
      `plain SQLite cannot write to it (${missing}): something in it exists in the application only`,
      "Leave out what the indexes, checks and triggers of the table need from the application's own program.",
    );
  }
  const odd = isAdopted ? undefined : oddStamp(db, table.name, version.name);
  if (odd !== undefined) return no(odd, stampRemedy(table.name, version.name));

  const harmful = table.userTriggers.filter(
    (trigger) => !trigger.guarded && writesSynced(trigger).length > 0,
  );
  if (harmful.length > 0) {
    const written = harmful.map(
      (trigger) => `${trigger.name} writes ${writesSynced(trigger).join(", ")}`,
    );
    return no(
      `its trigger ${written.join("; ")}, also when received rows are applied: nodes would differ`,
      guardRemedy(harmful),
    );
  }
  return { ...table, id, version, columnByKey };
}

/**
 * Whether it is kept out by what its stamps hold: that changes without a change of the schema. It is asked
 * whenever another program has written, and is done with the first odd one.
 */
export function holdsOddStamps(db: Database, table: Table): boolean {
  const version = table.columns.find(({ key }) => key === "updated_at");
  // Where the primary key is another one, it is not the stamps, and to sort by id could take long.
  if (version?.affinity !== "integer" || primaryKey(db, table.name).map(nameKey).join() !== "id")
    return false;
  const c = quoteName(version.name);
  const hasOdd = (order: string) =>
    `EXISTS (SELECT 1 FROM (${sampleSql(table.name, c, order)}) WHERE ${stampKindSql(c)} <> 'ms')`;
  return db.query(`SELECT 1 WHERE ${hasOdd("ASC")} OR ${hasOdd("DESC")}`).get() !== null;
}

function primaryKey(db: Database, table: string): string[] {
  return db
    .prepare<{ name: string }, [string]>(
      "SELECT name FROM pragma_table_xinfo(?) WHERE pk > 0 ORDER BY pk",
    )
    .all(table)
    .map(({ name }) => name);
}

function idCollation(db: Database, table: string): string {
  const index = db
    .prepare<{ coll: string }, [string]>(
      `SELECT x.coll FROM pragma_index_list(?) AS l, pragma_index_xinfo(l.name) AS x
       WHERE l.origin = 'pk' AND x.seqno = 0`,
    )
    .get(table);
  return index?.coll ?? "BINARY";
}

/**
 * A function, collation or module that the application adds to its own SQLite, and that writing to
 * the table needs: no received row could be applied. SQLite says so when it compiles a statement.
 */
function missingPart(db: Database, table: Table): string | undefined {
  const t = quoteName(table.name);
  const columns = table.columns.map((column) => `${quoteName(column.name)} = NULL`);
  for (const sql of [
    `INSERT INTO ${t}(id) VALUES (NULL)`,
    `UPDATE ${t} SET ${columns.join(", ")}`,
    `DELETE FROM ${t}`,
  ]) {
    try {
      db.prepare(`EXPLAIN ${sql}`).finalize();
    } catch (error) {
      if (sqliteCode(error).startsWith("SQLITE_ERROR")) return (error as Error).message;
      throw error;
    }
  }
  return undefined;
}

/** `ms` for a stamp, or for none, as they should be; the others by their type, or `fine`. */
function stampKindSql(column: string): string {
  return `CASE WHEN typeof(${column}) NOT IN ('integer', 'null') THEN typeof(${column})
               WHEN ${column} NOT BETWEEN -${STAMP_MS_MAX} AND ${STAMP_MS_MAX} THEN 'fine'
               ELSE 'ms' END`;
}

function sampleSql(table: string, column: string, order: string): string {
  return `SELECT ${column} FROM ${quoteName(table)} ORDER BY ${quoteName("id")} ${order} LIMIT ${STAMP_SAMPLE_ROWS}`;
}

/** What is wrong with the stamps in a sample of the rows, or undefined. */
function oddStamp(db: Database, table: string, column: string): string | undefined {
  const c = quoteName(column);
  const sample = (order: string) =>
    db
      .prepare<{ kind: string; stamp: string | null }, []>(
        `SELECT ${stampKindSql(c)} AS kind, min(CAST(${c} AS TEXT)) AS stamp
         FROM (${sampleSql(table, c, order)}) GROUP BY kind`,
      )
      .all();
  const odd = [...sample("ASC"), ...sample("DESC")].find(({ kind }) => kind !== "ms");
  if (odd === undefined) return undefined;
  if (odd.kind !== "fine") {
    return `its updated_at holds ${odd.kind} values (${odd.stamp}), and versions are integers`;
  }
  const unit = odd.stamp !== null && odd.stamp.length > 17 ? "nanoseconds" : "microseconds";
  return `its updated_at holds ${unit} (${odd.stamp}), and versions are milliseconds`;
}
