/**
 * All that a source holds, as one batch: how a follower begins, and begins again when it has fallen
 * out of the log. Taken in one read transaction, so that the copy and its watermark are the same
 * moment. The end of what a snapshot shows is the end of a transaction, whether or not a COMMIT
 * stands there in the log.
 */
import { quoteName } from "../base/sql-text.ts";
import type { Batch, CdcValue } from "./change.ts";
import { Breath, type CdcConnection, inSnapshot, selectAll } from "./connection.ts";
import { CdcError } from "./error.ts";
import { textFrom } from "./record.ts";
import { keyColumns, type SchemaColumn } from "./schema-digest.ts";
import {
  isWithoutRowid,
  readSourceSchema,
  refuseUnfit,
  rowidName,
  type SourceSchema,
} from "./source-schema.ts";
import { ChangeSpool, type SpoolOptions } from "./spool.ts";
import { readLogEnd } from "./tailer.ts";

const PAGE_ROWS = 256;
/** Each page goes through all before it. */
const KEYED_PAGE_ROWS = 5_000;
/** Each takes two of the 2,000 columns that a result has at most: a wider table is read in parts. */
const COLUMNS_PER_READ = 900;

/** A copy of everything. The connection must not be in a transaction; the caller closes the batch. */
export async function readCopy(
  connection: CdcConnection,
  timeMs: number,
  options: SpoolOptions = {},
): Promise<Batch> {
  const spool = new ChangeSpool(options);
  try {
    return await inSnapshot(connection, async () => {
      const watermark = await readLogEnd(connection);
      const schema = await readSourceSchema(connection);
      await refuseUnfit(connection, schema);
      await fill(spool, connection, schema);
      const close = () => spool.close();
      const digest = schema.digest;
      return {
        kind: "copy",
        ...watermark,
        after: 0n,
        timeMs,
        schema: digest,
        changes: spool,
        close,
      };
    });
  } catch (error) {
    spool.close();
    throw error;
  }
}

/** Tables and their rows first, then what stands on them. */
async function fill(
  spool: ChangeSpool,
  connection: CdcConnection,
  schema: SourceSchema,
): Promise<void> {
  const objects = schema.followed;
  for (const { type, name, sql } of objects) {
    if (type !== "table") continue;
    spool.push({ kind: "schema", sql: sql! });
    const columns = schema.columns.get(name)!;
    if (isWithoutRowid(sql!)) await copyKeyedRows(spool, connection, name, columns);
    else await copyRows(spool, connection, name, columns);
  }
  for (const type of ["index", "view", "trigger"]) {
    for (const object of objects) {
      if (object.type === type) spool.push({ kind: "schema", sql: object.sql! });
    }
  }
}

async function copyRows(
  spool: ChangeSpool,
  connection: CdcConnection,
  table: string,
  schemaColumns: readonly SchemaColumn[],
): Promise<void> {
  const columns = schemaColumns.map((column) => column.name);
  // Generated columns are not copied, and can hide the rowid.
  const all = await selectAll<{ name: string }>(
    connection,
    `PRAGMA table_xinfo(${quoteName(table)})`,
  );
  const rowid = rowidName(all.map(({ name }) => name));
  if (rowid === undefined) throw new CdcError("source-unfit", `columns of ${table} hide its rowid`);
  const breath = new Breath();
  let where = "";
  let after: string[] = [];
  while (true) {
    const rows = await readWide(connection, table, columns, after, (values) => {
      return `
  SELECT CAST(${rowid} AS TEXT) AS id, ${values}
  FROM ${quoteName(table)}
  ${where}
  ORDER BY ${quoteName(table)}.${rowid}
  LIMIT ${PAGE_ROWS}`;
    });
    for (const row of rows) {
      const rowid = BigInt(String(row["id"]));
      spool.push({ kind: "insert", table, rowid, values: readValues(row, columns) });
    }
    const last = rows.at(-1);
    if (last === undefined || rows.length < PAGE_ROWS) return;
    await breath.take();
    where = `WHERE ${rowid} > CAST(? AS INTEGER)`;
    after = [String(last["id"])];
  }
}

/** By offset: a key of any kinds of values cannot be passed to every driver exactly. */
async function copyKeyedRows(
  spool: ChangeSpool,
  connection: CdcConnection,
  table: string,
  schemaColumns: readonly SchemaColumn[],
): Promise<void> {
  const columns = schemaColumns.map((column) => column.name);
  const key = keyColumns(schemaColumns).map((name) => `${quoteName(table)}.${quoteName(name)}`);
  const breath = new Breath();
  for (let offset = 0; ; offset += KEYED_PAGE_ROWS) {
    const rows = await readWide(connection, table, columns, [], (values) => {
      return `
  SELECT ${values}
  FROM ${quoteName(table)}
  ORDER BY ${key.join(", ")}
  LIMIT ${KEYED_PAGE_ROWS} OFFSET ${offset}`;
    });
    for (const row of rows) {
      spool.push({ kind: "put", table, rowid: null, values: readValues(row, columns) });
    }
    if (rows.length < KEYED_PAGE_ROWS) return;
    await breath.take();
  }
}

function readValues(row: Record<string, unknown>, columns: readonly string[]): CdcValue[] {
  return columns.map((_, i) => readValue(row[`t${i}`], row[`v${i}`]));
}

/** A page with all of its columns: within one snapshot every part has the same rows in the same order. */
async function readWide(
  connection: CdcConnection,
  table: string,
  columns: readonly string[],
  parameters: readonly string[],
  pageSql: (values: string) => string,
): Promise<Record<string, unknown>[]> {
  let rows: Record<string, unknown>[] | undefined;
  for (let from = 0; from < columns.length; from += COLUMNS_PER_READ) {
    const sql = pageSql(valuesSql(table, columns, from));
    const part = await selectAll<Record<string, unknown>>(connection, sql, ...parameters);
    if (rows === undefined) rows = part;
    else for (const [at, row] of rows.entries()) Object.assign(row, part[at]);
  }
  return rows!;
}

/** Integers as their digits and texts as their bytes: no driver can round or cut those. */
function valuesSql(table: string, columns: readonly string[], from: number): string {
  const values = columns.slice(from, from + COLUMNS_PER_READ).map((column, at) => {
    const i = from + at;
    const name = `${quoteName(table)}.${quoteName(column)}`;
    return `
    typeof(${name}) AS t${i},
    CASE typeof(${name})
      WHEN 'integer' THEN CAST(${name} AS TEXT)
      WHEN 'text' THEN CAST(${name} AS BLOB)
      ELSE ${name}
    END AS v${i}`;
  });
  return values.join(",");
}

function readValue(type: unknown, value: unknown): CdcValue {
  switch (type) {
    case "null":
      return null;
    case "integer":
      return BigInt(String(value));
    case "real":
      return Number(value);
    case "text":
      return textFrom(value as Uint8Array);
    default:
      return new Uint8Array(value as Uint8Array);
  }
}
