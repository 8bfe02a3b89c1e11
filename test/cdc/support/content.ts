/** Everything a database holds that a follower must have: schema, rowids, values and their kinds. */
import { quoteName } from "../../../lib/base/sql-text.ts";
import { type CdcConnection, inSnapshot, selectAll } from "../../../lib/cdc/connection.ts";
import type { SchemaColumn, SchemaObject } from "../../../lib/cdc/schema-digest.ts";
import { readSourceSchema, rowidName } from "../../../lib/cdc/source-schema.ts";

/**
 * By table, a line per row; comparable between engines, and of one moment. `digest` is a replica's,
 * which keeps triggers as text.
 */
export async function contentOf(
  connection: CdcConnection,
  digest?: string,
): Promise<Record<string, unknown>> {
  return await inSnapshot(connection, async () => {
    const schema = await readSourceSchema(connection);
    const content: Record<string, unknown> = { schema: digest ?? schema.digest };
    for (const [table, columns] of schema.columns) {
      content[`columns of ${table}`] = columns.map(({ name, pk }) => [name, Number(pk)]);
      const rows = await selectAll<Record<string, unknown>>(
        connection,
        rowsSql(table, columns, isKeyed(schema.followed, table)),
      );
      content[table] = rows.map((row) =>
        [row["id"], ...columns.map((_, i) => `${row[`t${i}`]}:${row[`v${i}`]}`)].join(" | "),
      );
    }
    return content;
  });
}

function isKeyed(objects: readonly SchemaObject[], table: string): boolean {
  const sql = objects.find(({ type, name }) => type === "table" && name === table)?.sql ?? "";
  return /WITHOUT ROWID$/i.test(sql);
}

function rowsSql(table: string, columns: readonly SchemaColumn[], keyed: boolean): string {
  const names = columns.map(({ name }) => name);
  const key = columns.filter(({ pk }) => pk > 0).map(({ name }) => quoteName(name));
  const rowid = keyed ? "NULL" : `${quoteName(table)}.${rowidName(names)!}`;
  const values = names.map((column, i) => {
    const name = `${quoteName(table)}.${quoteName(column)}`;
    return `, typeof(${name}) AS t${i}, CASE typeof(${name})
      WHEN 'real' THEN ${name}
      WHEN 'null' THEN NULL
      ELSE hex(CAST(${name} AS BLOB)) END AS v${i}`;
  });
  return `
    SELECT CAST(${rowid} AS TEXT) AS id${values.join("")}
    FROM ${quoteName(table)}
    ORDER BY ${keyed ? key.join(", ") : rowid}`;
}
