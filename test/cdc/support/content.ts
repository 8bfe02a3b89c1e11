/** Everything a database holds that a follower must have: schema, rowids, values and their kinds. */
import { quoteName } from "../../../lib/base/sql-text.ts";
import { type CdcConnection, inSnapshot, selectAll } from "../../../lib/cdc/connection.ts";
import { readSourceSchema, rowidName } from "../../../lib/cdc/source-schema.ts";

/** By table, a line per row; comparable between engines, and of one moment. */
export async function contentOf(connection: CdcConnection): Promise<Record<string, unknown>> {
  return await inSnapshot(connection, async () => {
    const schema = await readSourceSchema(connection);
    const content: Record<string, unknown> = { schema: schema.digest };
    for (const [table, columns] of schema.columns) {
      content[`columns of ${table}`] = columns.map(({ name, pk }) => [name, Number(pk)]);
      const rows = await selectAll<Record<string, unknown>>(
        connection,
        rowsSql(
          table,
          columns.map(({ name }) => name),
        ),
      );
      content[table] = rows.map((row) =>
        [row["id"], ...columns.map((_, i) => `${row[`t${i}`]}:${row[`v${i}`]}`)].join(" | "),
      );
    }
    return content;
  });
}

function rowsSql(table: string, columns: readonly string[]): string {
  const rowid = rowidName(columns)!;
  const values = columns.map((column, i) => {
    const name = `${quoteName(table)}.${quoteName(column)}`;
    return `, typeof(${name}) AS t${i}, CASE typeof(${name})
      WHEN 'real' THEN ${name}
      WHEN 'null' THEN NULL
      ELSE hex(CAST(${name} AS BLOB)) END AS v${i}`;
  });
  return `
    SELECT CAST(${rowid} AS TEXT) AS id${values.join("")}
    FROM ${quoteName(table)}
    ORDER BY ${quoteName(table)}.${rowid}`;
}
