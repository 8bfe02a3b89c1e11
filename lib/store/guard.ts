/**
 * Whether a trigger of the application does nothing while received rows are applied, as its WHEN says
 * (DESIGN.md, "Capture triggers"). That the flag is mentioned there is not enough: `guard AND a OR b` is
 * no guard. What the parts of the condition come to with the flag up, SQLite itself is asked.
 */
import { Database } from "bun:sqlite";
import { isWord, nameKey, quoteName, sourceOf, type Token, triggerParts } from "./sql.ts";

/** False where it cannot be told: then the table does not qualify, and the remedy says what can. */
export function isGuarded(triggerSql: string): boolean {
  const { tokens, when, begin } = triggerParts(triggerSql);
  if (when === undefined) return false;
  const condition = tokens.slice(when + 1, begin);
  return mentionsFlag(condition) && isQuiet(triggerSql, condition);
}

function mentionsFlag(condition: readonly Token[]): boolean {
  const words = condition.map((token) => nameKey(token.value));
  return words.includes("_meta") && words.some((word) => word.includes("syncing"));
}

/** Whether it is false, whatever the row is: of an OR all parts must be, of an AND one. */
function isQuiet(sql: string, condition: readonly Token[]): boolean {
  const choices = partsAt("OR", condition);
  if (choices.length > 1) return choices.every((part) => isQuiet(sql, part));
  const terms = partsAt("AND", condition);
  if (terms.length > 1) return terms.some((part) => isQuiet(sql, part));
  const inner = withoutParentheses(condition);
  return inner ? isQuiet(sql, inner) : isFalseWhileApplying(sql, condition);
}

/** Both bind loosest of all; the AND of a BETWEEN, and what stands in a CASE, is no such word. */
function partsAt(word: "AND" | "OR", condition: readonly Token[]): Token[][] {
  const parts: Token[][] = [[]];
  const open: string[] = [];
  let betweens = 0;
  for (const [i, token] of condition.entries()) {
    if (token.value === "(" || isWord(token, "CASE")) open.push(token.value);
    else if (token.value === ")") open.pop();
    // `end` is also a usual name of a column, which needs no quotes.
    else if (isWord(token, "END") && open.at(-1) !== "(" && condition[i - 1]?.value !== ".")
      open.pop();
    const isOutside = open.length === 0;
    if (isOutside && isWord(token, "BETWEEN")) betweens++;
    const isOfBetween = isOutside && isWord(token, "AND") && betweens > 0;
    if (isOfBetween) betweens--;
    if (isOutside && isWord(token, word) && !isOfBetween) parts.push([]);
    else parts.at(-1)!.push(token);
  }
  return parts;
}

/** What is within the parentheses that it stands in as a whole, where it stands in such, and is no query. */
function withoutParentheses(condition: readonly Token[]): readonly Token[] | undefined {
  const [first, second] = condition;
  const isQuery = ["SELECT", "WITH", "VALUES"].some((word) => isWord(second, word));
  if (first?.value !== "(" || isQuery) return undefined;
  let depth = 0;
  const end = condition.findIndex((token) => {
    if (token.value === "(") depth++;
    return token.value === ")" && --depth === 0;
  });
  return end === condition.length - 1 ? condition.slice(1, -1) : undefined;
}

/** Asked whenever the schema changes, of each trigger: one is opened for all, and nothing writes to it. */
let flagUp: Database | undefined;

function openFlagUp(): Database {
  const db = new Database(":memory:");
  db.run("CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER)");
  db.run("INSERT INTO _meta VALUES('syncing', 1)");
  return db;
}

/** What comes to false without a look at the row; what depends on it, or on other tables, cannot be told. */
function isFalseWhileApplying(sql: string, condition: readonly Token[]): boolean {
  flagUp ??= openFlagUp();
  // A value of the row is an error to whoever reads it, and CASE reads only what it comes to.
  const values = rowColumns(condition).map((name) => `json('{' || key) AS ${quoteName(name)}`);
  const row = `(SELECT ${["0 AS _hooksync", ...values].join(", ")} FROM _meta)`;
  try {
    using statement = flagUp.prepare<{ fires: number }, []>(
      `SELECT (${sourceOf(sql, condition)}) IS TRUE AS fires FROM ${row} AS new, ${row} AS old`,
    );
    return statement.get()?.fires === 0;
  } catch {
    return false;
  }
}

/** The columns that are read of NEW and OLD. */
function rowColumns(condition: readonly Token[]): string[] {
  const names = new Map<string, string>();
  for (const [i, { value }] of condition.entries()) {
    const isOfRow = ["new", "old"].includes(nameKey(condition[i - 2]?.value ?? ""));
    if (isOfRow && condition[i - 1]!.value === ".") names.set(nameKey(value), value);
  }
  return [...names.values()];
}
