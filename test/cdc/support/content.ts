/** Everything a database holds that a follower must have: schema, rowids, values and their kinds. */
import { type CdcConnection, selectAll } from "../../../lib/cdc/connection.ts";
import { readSourceSchema } from "../../../lib/cdc/source-schema.ts";

/** By table, a line per row; comparable between engines. */
export async function contentOf(connection: CdcConnection): Promise<Record<string, unknown>> {
  const schema = await readSourceSchema(connection);
  const content: Record<string, unknown> = { schema: schema.digest };
  for (const [table, columns] of schema.columns) {
    content[`columns of ${table}`] = columns.map(({ name, type, pk }) => [name, type, Number(pk)]);
    const parts = columns.map(({ name }) => {
      const column = `"${name.replaceAll('"', '""')}"`;
      return `typeof(${column}) || ':' || CASE typeof(${column})
        WHEN 'null' THEN ''
        WHEN 'real' THEN CASE WHEN abs(${column}) > 1e308 THEN 'large' ELSE printf('%.15g', ${column}) END
        ELSE hex(CAST(${column} AS BLOB)) END`;
    });
    const sql = `
      SELECT CAST(rowid AS TEXT) || '|' || ${parts.join(" || '|' || ")} AS line
      FROM "${table.replaceAll('"', '""')}"
      ORDER BY rowid`;
    const rows = await selectAll<{ line: string }>(connection, sql);
    content[table] = rows.map(({ line }) => line);
  }
  return content;
}
