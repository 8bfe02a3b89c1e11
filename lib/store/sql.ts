/**
 * What the node reads out of the SQL that other people wrote: the parts of a trigger and the tables
 * it writes. Names as SQL text and the lexer are base/sql-text.ts, which others need too.
 */
import { isWord, nameKey, type Token, tokenize, unquoteText } from "../base/sql-text.ts";

export {
  isWord,
  nameKey,
  quoteName,
  quoteText,
  sourceOf,
  type Token,
  tokenize,
  unquoteText,
} from "../base/sql-text.ts";

/** A text from its bytes in hex: one that is not UTF-8 would not come back from a string as the same text. */
export function textOfHexSql(hex: string): string {
  return `CAST(unhex(${hex}) AS TEXT)`;
}

/** Whether a CREATE TABLE says of any of its constraints what a conflict does (ON CONFLICT REPLACE). */
export function statesConflictClause(tableSql: string): boolean {
  const tokens = tokenize(tableSql);
  return tokens.some((token, i) => isWord(token, "ON") && isWord(tokens[i + 1], "CONFLICT"));
}

/** Where the parts of a CREATE TRIGGER stand, as indexes into its tokens. */
export interface TriggerParts {
  readonly tokens: readonly Token[];
  /** The word WHEN, where there is one. */
  readonly when: number | undefined;
  /** The word BEGIN that opens the body. */
  readonly begin: number;
}

/** `begin` may also be a name, as most words before it: what follows tells. */
export function triggerParts(triggerSql: string): TriggerParts {
  const tokens = tokenize(triggerSql);
  const begin = tokens.findIndex(
    (token, i) =>
      isWord(token, "BEGIN") && STATEMENT_WORDS.some((word) => isWord(tokens[i + 1], word)),
  );
  const when = tokens.findIndex((token, i) => i < begin && isWord(token, "WHEN"));
  return { tokens, when: when < 0 ? undefined : when, begin };
}

const STATEMENT_WORDS = ["SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE"];

/**
 * The tables that a trigger's body writes, as `nameKey`s. Reads `INSERT|REPLACE INTO t`,
 * `UPDATE [OR …] t`, `DELETE FROM t` after the trigger's BEGIN.
 */
export function tablesWrittenBy(triggerSql: string): Set<string> {
  const { tokens, begin } = triggerParts(triggerSql);
  const written = new Set<string>();
  for (let i = begin + 1; i < tokens.length; i++) {
    const startsStatement = i === begin + 1 || tokens[i - 1]?.value === ";";
    let at = -1;
    if (isWord(tokens[i], "INTO")) at = i + 1;
    else if (isWord(tokens[i], "DELETE") && isWord(tokens[i + 1], "FROM")) at = i + 2;
    else if (isWord(tokens[i], "UPDATE") && startsStatement) {
      at = isWord(tokens[i + 1], "OR") ? i + 3 : i + 1;
    }
    const target = tokens[at];
    if (target?.kind === "text") written.add(nameKey(unquoteText(target.value)));
    else if (target && target.kind !== "symbol") written.add(nameKey(target.value));
  }
  return written;
}
