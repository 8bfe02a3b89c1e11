/**
 * The gate before SQL that came out of a log: a follower runs one plain CREATE, ALTER or DROP and
 * nothing else, whatever a damaged log or a hostile source sends. Triggers are kept as text and not
 * run, since all they would write is in the log already.
 */
import { isWord, nameKey, sourceOf, type Token, tokenize } from "../base/sql-text.ts";
import { CdcError } from "./error.ts";

/** What a statement of a log does to the schema. */
export interface SchemaStatement {
  readonly action: "create" | "alter" | "drop";
  readonly type: "table" | "index" | "view" | "trigger";
  /** The name of the object (for ALTER the table), as it was written, without quotes. */
  readonly name: string;
  /** The table it stands on, for CREATE INDEX and CREATE TRIGGER; else `name`. */
  readonly target: string;
  /** What to run: without IF [NOT] EXISTS, so that a difference fails instead of being passed over. */
  readonly sql: string;
}

/** Tables that belong to an engine, to the log or to the follower: never captured, never changed. */
export function isInternalName(name: string): boolean {
  return /^(?:sqlite_|turso_cdc|__turso_internal|_cdc(?:$|_))/.test(nameKey(name));
}

/** The statement, or a CdcError ("statement-refused") that says what it is instead. */
export function checkSchemaStatement(sql: string): SchemaStatement {
  const tokens = trimmed(tokenize(sql));
  const action = ACTIONS.find((word) => isWord(tokens[0], word.toUpperCase()));
  if (action === undefined) throw refused(sql, "it is no CREATE, ALTER or DROP");
  let at = 1;
  if (action === "create" && isWord(tokens[at], "UNIQUE")) at++;
  const type = TYPES.find((word) => isWord(tokens[at], word.toUpperCase()));
  if (type === undefined)
    throw refused(sql, "of what kind is not plain TABLE, INDEX, VIEW, TRIGGER");
  const typeAt = at++;
  const exists = endOfExists(tokens, at);
  const { name, end } = readName(tokens, exists, sql);
  if (type !== "trigger" && tokens.some(({ value, kind }) => kind === "symbol" && value === ";")) {
    throw refused(sql, "it is more than one statement");
  }
  const target = action === "create" ? targetOf(tokens, { type, name, end }, sql) : name;
  if (isInternalName(name) || isInternalName(target))
    throw refused(sql, "it is about tables of ours");
  if (action === "create" && type === "table" && !isPlainTable(tokens, end)) {
    throw refused(sql, "it fills a table, so that what it writes is not known");
  }
  if (action === "alter" && type !== "table") throw refused(sql, "only tables are altered");
  const kept = [...tokens.slice(0, typeAt + 1), ...tokens.slice(exists)];
  return { action, type, name, target, sql: sourceOf(sql, kept) };
}

const ACTIONS = ["create", "alter", "drop"] as const;
const TYPES = ["table", "index", "view", "trigger"] as const;

function refused(sql: string, why: string): CdcError {
  return new CdcError("statement-refused", `not run, since ${why}: ${sql.slice(0, 200)}`);
}

/** Without semicolons at the end. */
function trimmed(tokens: readonly Token[]): readonly Token[] {
  let end = tokens.length;
  while (end > 0 && tokens[end - 1]!.value === ";" && tokens[end - 1]!.kind === "symbol") end--;
  return tokens.slice(0, end);
}

/** Where IF EXISTS or IF NOT EXISTS ends, if it stands there. */
function endOfExists(tokens: readonly Token[], at: number): number {
  if (!isWord(tokens[at], "IF")) return at;
  if (isWord(tokens[at + 1], "EXISTS")) return at + 2;
  return isWord(tokens[at + 1], "NOT") && isWord(tokens[at + 2], "EXISTS") ? at + 3 : at;
}

/** `name` or `main.name`. */
function readName(
  tokens: readonly Token[],
  at: number,
  sql: string,
): { readonly name: string; readonly end: number } {
  const name = nameAt(tokens[at]);
  if (name === undefined) throw refused(sql, "it names nothing");
  if (tokens[at + 1]?.value !== ".") return { name, end: at + 1 };
  const inner = nameAt(tokens[at + 2]);
  if (nameKey(name) !== "main" || inner === undefined) throw refused(sql, `it is about ${name}`);
  return { name: inner, end: at + 3 };
}

function nameAt(token: Token | undefined): string | undefined {
  if (token?.kind === "name" || token?.kind === "quoted-name") return token.value;
  return token?.kind === "text" ? token.value.slice(1, -1).replaceAll("''", "'") : undefined;
}

function targetOf(
  tokens: readonly Token[],
  { type, name, end }: { readonly type: string; readonly name: string; readonly end: number },
  sql: string,
): string {
  if (type !== "index" && type !== "trigger") return name;
  // A trigger says first when it runs; a column of that name is quoted there.
  const isOn = (token: Token, i: number) => i >= end && isWord(token, "ON");
  const at = type === "index" ? end : tokens.findIndex(isOn);
  if (!isWord(tokens[at], "ON")) throw refused(sql, "it names no table");
  return readName(tokens, at + 1, sql).name;
}

function isPlainTable(tokens: readonly Token[], at: number): boolean {
  return tokens[at]?.value === "(" && tokens[at]?.kind === "symbol";
}
