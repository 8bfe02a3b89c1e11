/**
 * SQLite refused a write: what a client may hear of it. Names the column, never shows SQL (the text
 * of a CHECK is part of SQLite's message).
 */
import { RequestError, sqliteCode } from "../base/errors.ts";
import type { SyncedTable } from "./schema.ts";
import { isWord, nameKey, type Token, tokenize } from "./sql.ts";

/** What SQLite says where a statement does not fit the schema (its parser, and resolve.c). */
const OF_THE_SCHEMA = /\bno such |\bhas no column|\bsyntax error|\bambiguous column/;

/**
 * The answer to a write that a rule of the file forbids, or undefined for any other failure. Without
 * a `table` (an error that came with COMMIT) columns go unnamed.
 */
export function refusalOf(error: unknown, table?: SyncedTable): RequestError | undefined {
  const message = error instanceof Error ? error.message : "";
  switch (sqliteCode(error)) {
    case "SQLITE_CONSTRAINT_PRIMARYKEY":
      return new RequestError(
        409,
        `${columnsOf(message, table)}: there is a row with this id already`,
      );
    case "SQLITE_CONSTRAINT_UNIQUE":
      return new RequestError(
        409,
        `${columnsOf(message, table)}: another row has this value already`,
      );
    case "SQLITE_CONSTRAINT_FOREIGNKEY":
      return foreignKeyRefusal();
    case "SQLITE_CONSTRAINT_NOTNULL":
      return new RequestError(400, `${columnsOf(message, table)}: must be given and not null`);
    case "SQLITE_CONSTRAINT_DATATYPE":
      return new RequestError(
        400,
        `${columnsOf(message, table)}: the value is of another type than the column`,
      );
    case "SQLITE_CONSTRAINT_CHECK":
      return new RequestError(
        400,
        `${checkedColumns(message, table)}: a CHECK constraint refuses the value`,
      );
    case "SQLITE_CONSTRAINT_TRIGGER":
      // An ON DELETE RESTRICT comes as this, too; a trigger's own text is written for people.
      if (message.startsWith("FOREIGN KEY")) return foreignKeyRefusal();
      return new RequestError(409, `a trigger refuses it: ${message}`);
    case "SQLITE_ERROR":
      // A generated column, an index or a CHECK that computes; what is missing is no client's doing.
      return table === undefined || OF_THE_SCHEMA.test(message)
        ? undefined
        : new RequestError(400, `an expression of the table cannot take the row: ${message}`);
    case "SQLITE_TOOBIG":
      return new RequestError(413, "a value is too large for SQLite");
    default:
      if (sqliteCode(error).startsWith("SQLITE_CONSTRAINT")) {
        return new RequestError(409, "a constraint of the table refuses it");
      }
      return undefined;
  }
}

function foreignKeyRefusal(): RequestError {
  return new RequestError(
    409,
    "a foreign key refuses it: the row it points to is missing, or rows point to this one",
  );
}

/** `UNIQUE constraint failed: items.a, items.b`, `cannot store TEXT value in INT column items.n`. */
function columnsOf(message: string, table: SyncedTable | undefined): string {
  if (table === undefined) return "the row";
  const found = table.columns.filter((column) => {
    const at = message.lastIndexOf(`${table.name}.${column.name}`);
    if (at < 0) return false;
    const end = at + table.name.length + 1 + column.name.length;
    return end === message.length || message.startsWith(", ", end);
  });
  return names(found.map((column) => column.name));
}

/** The columns of a CHECK, from its expression or, where it has a name, from the table's text. */
function checkedColumns(message: string, table: SyncedTable | undefined): string {
  if (table === undefined) return "the row";
  const rule = message.slice(message.indexOf(": ") + 2);
  const own = columnsAmong(tokenize(rule), table);
  if (own.length > 0) return names(own);
  const tokens = tokenize(table.sql);
  const at = tokens.findIndex(
    (token, i) =>
      isWord(token, "CONSTRAINT") &&
      tokens[i + 1]?.value === rule &&
      isWord(tokens[i + 2], "CHECK"),
  );
  return names(at < 0 ? [] : columnsAmong(parenthesized(tokens.slice(at + 3)), table));
}

/** The tokens from an opening parenthesis to the one that closes it. */
function parenthesized(tokens: readonly Token[]): readonly Token[] {
  let depth = 0;
  const end = tokens.findIndex((token) => {
    if (token.kind !== "symbol") return false;
    if (token.value === "(") depth++;
    if (token.value === ")") depth--;
    return depth === 0;
  });
  return tokens.slice(0, end);
}

function columnsAmong(tokens: readonly Token[], table: SyncedTable): string[] {
  const found = tokens
    .filter((token) => token.kind === "name" || token.kind === "quoted-name")
    .map((token) => table.columnByKey.get(nameKey(token.value))?.name)
    .filter((name) => name !== undefined);
  return [...new Set(found)];
}

function names(columns: readonly string[]): string {
  return columns.length === 0 ? "the row" : columns.join(", ");
}
