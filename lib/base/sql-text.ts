/**
 * The only place where names become SQL text, and a small lexer for the SQL that other people
 * wrote (triggers, indexes, schema changes), so that a name in a string or a comment is never taken
 * for a name.
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

/** A word of SQL with its place: `sql.slice(start, end)` is how it was written. */
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

/** The content of a string literal; SQLite takes one for a name where only a name can stand. */
export function unquoteText(literal: string): string {
  return literal.slice(1, -1).replaceAll("''", "'");
}
