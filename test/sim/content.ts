/** What a node's tables hold, as text that is equal exactly where value and type are. */
import type { Database } from "bun:sqlite";

/** Rows by `table/id`. */
export type Content = ReadonlyMap<string, string>;

/**
 * `exact`: by value and type. Otherwise as much of it as survives a node that keeps numbers as doubles
 * and bytes as text (DESIGN.md, "Winner").
 */
export function readContent(db: Database, tables: readonly string[], exact: boolean): Content {
  const content = new Map<string, string>();
  for (const table of tables) {
    const columns = db
      .query<{ name: string }, [string]>("SELECT name FROM pragma_table_info(?) ORDER BY name")
      .all(table)
      .map((column) => column.name);
    const cells = columns.map(
      (c) => `CASE typeof(${c}) WHEN 'null' THEN 'null' WHEN 'integer' THEN 'integer ' || ${c}
        WHEN 'real' THEN 'real ' || printf('%!.20g', ${c})
        ELSE typeof(${c}) || ' ' || hex(CAST(${c} AS BLOB)) END AS ${c}`,
    );
    const rows = db.query<Record<string, string>, []>(`SELECT ${cells.join(", ")} FROM ${table}`);
    for (const row of rows.all()) {
      const id = Buffer.from(row["id"]!.slice("text ".length), "hex").toString();
      const shown = columns.map((c) => `${c}=${exact ? row[c] : reduce(row[c]!)}`);
      content.set(`${table}/${id}`, shown.join("; "));
    }
  }
  return content;
}

function reduce(cell: string): string {
  const [kind, value = ""] = cell.split(" ");
  switch (kind) {
    case "integer":
    case "real":
      return `number ${Number(value)}`;
    case "text":
      return `text ${isUtf8(value) ? value : wireText(value)}`;
    case "blob":
      return `text ${wireText(value)}`;
    default:
      return cell;
  }
}

function wireText(hex: string): string {
  return Buffer.from(`\\x${hex.toLowerCase()}`).toString("hex").toUpperCase();
}

function isUtf8(hex: string): boolean {
  const bytes = Buffer.from(hex, "hex");
  return Buffer.from(bytes.toString()).equals(bytes);
}

/** Keys of rows that are not the same in both. */
export function difference(left: Content, right: Content): string[] {
  const keys = new Set([...left.keys(), ...right.keys()]);
  return [...keys].filter((key) => left.get(key) !== right.get(key));
}
