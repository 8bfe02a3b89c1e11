/**
 * What the tailer and the copy know of a source's schema within one read transaction, and what makes
 * a Turso database unfit to be followed: what its log leaves out would be wrong rows on a follower.
 */
import { nameKey, quoteName } from "../base/sql-text.ts";
import { type CdcConnection, selectAll } from "./connection.ts";
import { CdcError } from "./error.ts";
import {
  digestSchema,
  isFollowed,
  SCHEMA_SQL,
  type SchemaColumn,
  type SchemaObject,
} from "./schema-digest.ts";
import { followedObjects, VIRTUAL_SQL } from "./sqlite-objects.ts";

/** An object of the source with its rowid in sqlite_schema. */
export interface SourceObject extends SchemaObject {
  readonly id: string;
}

/** The schema as one snapshot sees it. */
export interface SourceSchema {
  /** PRAGMA schema_version: while it stays, all of this does. */
  readonly version: number;
  readonly digest: string;
  /** Everything that has a statement, internal tables too. */
  readonly objects: readonly SourceObject[];
  /** Those that followers have. */
  readonly followed: readonly SourceObject[];
  /** The columns of every followed table. */
  readonly columns: ReadonlyMap<string, readonly SchemaColumn[]>;
}

/** Reads the schema, or gives `known` back where it is still true. */
export async function readSourceSchema(
  connection: CdcConnection,
  known?: SourceSchema,
): Promise<SourceSchema> {
  const [versionRow] = await selectAll<{ schema_version: number }>(
    connection,
    "PRAGMA schema_version",
  );
  const version = Number(versionRow?.schema_version);
  if (known !== undefined && known.version === version) return known;
  const objects = await selectAll<SourceObject>(connection, SCHEMA_SQL);
  const followed = await followedOf(connection, objects);
  const columns = new Map<string, readonly SchemaColumn[]>();
  for (const object of followed) {
    if (object.type !== "table") continue;
    const sql = `PRAGMA table_info(${quoteName(object.name)})`;
    columns.set(object.name, await selectAll<SchemaColumn>(connection, sql));
  }
  return { version, digest: digestSchema(followed, columns), objects, followed, columns };
}

/** A plain SQLite file may have more that is left out, and can be asked for it. */
async function followedOf(
  connection: CdcConnection,
  objects: readonly SourceObject[],
): Promise<readonly SourceObject[]> {
  if (!isPlainFile(objects)) return objects.filter(isFollowed);
  const virtual = await selectAll<{ name: string }>(connection, VIRTUAL_SQL);
  const names = virtual.map(({ name }) => name);
  return followedObjects(objects, names);
}

/** Whether the log is a plain SQLite file's own, not Turso's. */
export function isPlainFile(objects: readonly SchemaObject[]): boolean {
  return objects.some(({ type, name }) => type === "table" && name === "_cdc");
}

/** Throws "source-unfit" with the first thing that Turso's log would leave out. */
export async function refuseUnfit(connection: CdcConnection, schema: SourceSchema): Promise<void> {
  if (isPlainFile(schema.objects)) return;
  const { followed } = schema;
  for (const { type, name, sql } of followed) {
    if (type === "trigger") throw unfit(`rows that trigger ${name} writes are lost from the log`);
    if (type !== "table") continue;
    if (/^\s*CREATE\s+VIRTUAL\b/i.test(sql!)) throw unfit(`${name} is a virtual table`);
    await refuseUnfitTable(connection, name, sql!);
  }
}

async function refuseUnfitTable(
  connection: CdcConnection,
  name: string,
  sql: string,
): Promise<void> {
  const keys = await selectAll<{ on_update: string; on_delete: string }>(
    connection,
    `PRAGMA foreign_key_list(${quoteName(name)})`,
  );
  const actions = keys.flatMap((key) => [key.on_update, key.on_delete]);
  const action = actions.find((each) => ACTIONS.has(each));
  if (action)
    throw unfit(`rows that a foreign key of ${name} changes (${action}) are lost from it`);
  const columns = await selectAll<{ name: string; hidden: number }>(
    connection,
    `PRAGMA table_xinfo(${quoteName(name)})`,
  );
  if (columns.some(({ hidden }) => Number(hidden) !== 0))
    throw unfit(`${name} has generated columns`);
  if (isWithoutRowid(sql)) throw unfit(`${name} has no rowids`);
  const names = columns.map((column) => column.name);
  if (rowidName(names) === undefined) throw unfit(`columns of ${name} hide its rowid`);
}

/** As the end of a CREATE TABLE says it. */
export function isWithoutRowid(sql: string): boolean {
  return /\bWITHOUT\s+ROWID\s*(?:,\s*STRICT\s*)?$/i.test(sql);
}

/** The actions that change rows; NO ACTION and RESTRICT do not. */
const ACTIONS: ReadonlySet<string> = new Set(["CASCADE", "SET NULL", "SET DEFAULT"]);

function unfit(why: string): CdcError {
  return new CdcError("source-unfit", `this database cannot be followed: ${why}`);
}

const ROWID_NAMES = ["rowid", "_rowid_", "oid"];

/** Whether a column of this name hides one of the rowid's. */
export function isRowidName(column: string): boolean {
  return ROWID_NAMES.includes(nameKey(column));
}

/** A name under which the rowid of a table with these columns, generated ones too, can be reached. */
export function rowidName(columns: readonly string[]): string | undefined {
  const taken = new Set(columns.map(nameKey));
  return ROWID_NAMES.find((name) => !taken.has(name));
}
