/**
 * The only place where names become SQL text, and a small lexer for the SQL that other people
 * wrote (triggers, indexes), so that a name in a string or a comment is never taken for a name.
 */

/** `name` as an identifier, whatever it holds. */
export function quoteName(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/** `text` as a string literal. A NUL would end the SQL text, so it is written as char(0). */
export function quoteText(text: string): string {
  return text
    .split("\0")
    .map((part) => `'${part.replaceAll("'", "''")}'`)
    .join(" || char(0) || ");
}

/** SQLite compares names of tables and columns by ASCII case only. */
export function nameKey(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

export interface Token {
  readonly kind: "name" | "quoted-name" | "text" | "number" | "symbol";
  /** The name without its quotes, or the token as it stands. */
  readonly value: string;
  /** Where it stands in the source. */
  readonly start: number;
  readonly end: number;
}

/** SQLite takes every character beyond ASCII for a letter, and only these for blanks. */
const TOKEN =
  /[ \t\n\f\r]+|--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|[A-Za-z_$@:?\u{80}-\u{10ffff}][\w$\u{80}-\u{10ffff}]*|\d[\w.]*|->>?|<<|>>|\|\||<>|[<>!=]=|[\s\S]/gu;

/** The tokens of an SQL text, blanks and comments left out. */
export function tokenize(sql: string): Token[] {
  const tokens: Token[] = [];
  for (const match of sql.matchAll(TOKEN)) {
    const text = match[0];
    const start = match.index;
    const end = start + text.length;
    const first = text[0]!;
    if (/[ \t\n\f\r]/.test(first) || text.startsWith("--") || text.startsWith("/*")) continue;
    if (first === "'") tokens.push({ kind: "text", value: text, start, end });
    else if (first === '"' || first === "`" || first === "[") {
      tokens.push({ kind: "quoted-name", value: unquoteName(text), start, end });
    } else if (/[A-Za-z_\u0080-\uffff]/.test(first)) {
      tokens.push({ kind: "name", value: text, start, end });
    } else if (/\d/.test(first)) tokens.push({ kind: "number", value: text, start, end });
    else tokens.push({ kind: "symbol", value: text, start, end });
  }
  return tokens;
}

function unquoteName(text: string): string {
  const inner = text.slice(1, -1);
  if (text[0] === '"') return inner.replaceAll('""', '"');
  if (text[0] === "`") return inner.replaceAll("``", "`");
  return inner;
}

/** Whether a token is this keyword (never a quoted name). */
export function isWord(token: Token | undefined, word: string): boolean {
  return token?.kind === "name" && token.value.toUpperCase() === word;
}

/** Whether a CREATE TABLE says of any of its constraints what a conflict does (ON CONFLICT REPLACE). */
export function statesConflictClause(tableSql: string): boolean {
  const tokens = tokenize(tableSql);
  return tokens.some((token, i) => isWord(token, "ON") && isWord(tokens[i + 1], "CONFLICT"));
}

/** The source of these tokens without comments: fit to be put anywhere in a longer statement. */
export function sourceOf(sql: string, tokens: readonly Token[]): string {
  let text = "";
  for (const [i, token] of tokens.entries()) {
    const previous = tokens[i - 1];
    if (previous !== undefined && previous.end < token.start) text += " ";
    text += sql.slice(token.start, token.end);
  }
  return text;
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

/** The content of a string literal; SQLite takes one for a name where only a name can stand. */
export function unquoteText(literal: string): string {
  return literal.slice(1, -1).replaceAll("''", "'");
}
