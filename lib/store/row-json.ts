/**
 * The SQL that turns a row into the JSON text of the log and of the REST answers, exact for every
 * value on every SQLite since 3.24 (DESIGN.md, "Capture triggers" and "Values on the wire").
 *
 * A BLOB becomes the string `\x` + hex whose backslash is written as the escape \u005c. Readers of
 * any make see the plain string; we still see, in the stored text, that it was a BLOB and not a text
 * of the same characters (json_quote writes that one as \\), without another column.
 */
import { BODY_BYTES_MAX } from "../protocol/limits.ts";
import { quoteName, quoteText } from "./sql.ts";
import { isOddSql } from "./versions.ts";

/** How the text of a stored BLOB begins, quote included. */
export const BLOB_MARK = '"\\u005cx';

/** What `columnsJson` needs to know of a column. */
export interface JsonColumn {
  readonly name: string;
  /**
   * What may stand in it besides NULL; narrower is faster. "text": or a BLOB. "stamp": the version, as
   * others take it.
   */
  readonly holds: "integer" | "text" | "anything" | "stamp";
}

/** Old builds take at most 127 arguments; with more the whole file becomes unreadable to them. */
const COLUMNS_PER_CALL_MAX = 60;

/**
 * Of a BLOB the log takes no more: in hex it is larger than any body then, so that its change is set
 * aside instead of sent (shipper/batch.ts), and the write that it is captured from does not fail at
 * SQLite's limit for a text. Texts have no such bound, since looking at each would cost every write.
 */
const LOGGED_BLOB_BYTES = BODY_BYTES_MAX / 2;

/** A JSON object of all columns of `alias` (a table's name or alias). */
export function rowJsonSql(alias: string, columns: readonly JsonColumn[]): string {
  return objectSql(alias, columns, (blob) => blob);
}

/** The same for an entry of the log; `alias` may be NEW or OLD. */
export function loggedRowSql(alias: string, columns: readonly JsonColumn[]): string {
  return objectSql(alias, columns, (blob) => `substr(${blob}, 1, ${LOGGED_BLOB_BYTES})`);
}

function objectSql(
  alias: string,
  columns: readonly JsonColumn[],
  bound: (blob: string) => string,
): string {
  const calls: string[] = [];
  for (let at = 0; at < columns.length; at += COLUMNS_PER_CALL_MAX) {
    const part = columns.slice(at, at + COLUMNS_PER_CALL_MAX);
    const members = part.map(
      (column) => `${quoteText(column.name)}, ${valueSql(alias, column, bound)}`,
    );
    calls.push(`json_object(${members.join(", ")})`);
  }
  if (calls.length === 1) return calls[0]!;
  // A value ends in a quote, a digit or a letter, so that exactly the outer braces go.
  const inner = calls.map((call) => `trim(${call}, '{}')`);
  return `'{' || ${inner.join(" || ',' || ")} || '}'`;
}

/** `$."name"` for json_extract; a quote inside a name is written as JSON writes it. */
export function jsonPath(name: string): string {
  return `$.${JSON.stringify(name)}`;
}

function valueSql(alias: string, column: JsonColumn, bound: (blob: string) => string): string {
  const value = `${alias}.${quoteName(column.name)}`;
  if (column.holds === "integer") return value;
  if (column.holds === "stamp") {
    return `CASE WHEN ${value} IS NOT NULL AND ${isOddSql(value)} THEN 0 ELSE ${value} END`;
  }
  const blob = `WHEN 'blob' THEN json('"\\u005cx' || lower(hex(${bound(value)})) || '"')`;
  // In NEW a text that json() made is still marked as JSON, and would be taken for an object of ours.
  const text = alias === "NEW" ? `${value} || ''` : value;
  if (column.holds === "text") return `CASE typeof(${value}) ${blob} ELSE ${text} END`;
  const real = `WHEN 'real' THEN ${realSql(value)}`;
  return `CASE typeof(${value}) WHEN 'integer' THEN ${value} ${real} ${blob} ELSE ${text} END`;
}

/** 20 digits are exact on old and new builds; an infinity is a number that overflows to it again. */
function realSql(value: string): string {
  return (
    `json(CASE WHEN abs(${value}) <= 1.7976931348623157e308 THEN printf('%!.20g', ${value}) ` +
    `WHEN ${value} > 0 THEN '9.0e+999' ELSE '-9.0e+999' END)`
  );
}
