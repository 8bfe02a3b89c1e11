/**
 * What a schema is, in one short text, so that a follower notices when its own is no longer the
 * source's. The two may be kept by different engines, which write the same table differently (when it
 * is altered, one moves constraints to the end, writes != for <> and VARCHAR for VARCHAR(10)): what is
 * compared is the columns in order and the words of each statement. Where that says "different" of what is the same,
 * the follower takes a copy too many; it never says "the same" of different columns.
 */
import { nameKey, type Token, tokenize } from "../base/sql-text.ts";
import { isInternalName } from "./statement.ts";

/** A row of sqlite_schema. */
export interface SchemaObject {
  readonly type: string;
  readonly name: string;
  readonly tbl_name: string;
  /** Null for what a constraint made by itself. */
  readonly sql: string | null;
}

/** A row of PRAGMA table_info. */
export interface SchemaColumn {
  readonly name: string;
  readonly type: string;
  readonly notnull: number;
  readonly pk: number;
}

/** The names of the key, in its order; none in a table that has none but the rowid. */
export function keyColumns(columns: readonly SchemaColumn[]): string[] {
  const keyed = columns.filter(({ pk }) => pk > 0).sort((a, b) => a.pk - b.pk);
  return keyed.map(({ name }) => name);
}

/** Reads what the digest is made of; `rowid` too, by which Turso's log names an object. */
export const SCHEMA_SQL = `
  SELECT CAST(rowid AS TEXT) AS id, type, name, tbl_name, sql
  FROM sqlite_schema
  WHERE sql IS NOT NULL`;

/** Whether an object takes part in following: not an engine's, ours, or made by a constraint. */
export function isFollowed({ name, tbl_name, sql }: SchemaObject): boolean {
  return sql !== null && !isInternalName(name) && !isInternalName(tbl_name);
}

/** 32 hexadecimal digits. `columns` has those of every followed table. */
export function digestSchema(
  objects: readonly SchemaObject[],
  columns: ReadonlyMap<string, readonly SchemaColumn[]>,
): string {
  const parts = objects
    .filter(isFollowed)
    .map((object) => [
      object.type,
      nameKey(object.name),
      nameKey(object.tbl_name),
      wordsOf(object),
      object.type === "table" ? (columns.get(object.name) ?? []).map(columnOf) : [],
    ]);
  const texts = parts.map((part) => JSON.stringify(part)).sort();
  return new Bun.CryptoHasher("sha256").update(texts.join("\n")).digest("hex").slice(0, 32);
}

function columnOf({ name, type, notnull, pk }: SchemaColumn): unknown[] {
  // Of a key of several columns one engine numbers all of them 1.
  return [nameKey(name), typeOf(type), Number(notnull), Number(pk) > 0];
}

/** Without its numbers, which mean nothing to SQLite. */
function typeOf(type: string): string {
  return nameKey(type).replace(/\(.*\)|\s/g, "");
}

/** A table's constraints move when it is altered: there the order of words says nothing. */
function wordsOf({ type, sql }: SchemaObject): string[] {
  const words = tokenize(type === "table" ? sql!.replace(TYPE_NUMBERS, "$1 ") : sql!)
    .map(wordOf)
    .filter((word) => !LEFT_OUT.has(word))
    .filter((_, i, all) => !isExistsClause(all, i));
  return type === "table" ? words.sort() : words;
}

/** After a word that is no DEFAULT: VARCHAR(10), DECIMAL (5, 2). */
const TYPE_NUMBERS = /\b((?!default\b)[A-Za-z]+)\s*\(\s*[+-]?\d+\s*(?:,\s*[+-]?\d+\s*)?\)/gi;

const LEFT_OUT: ReadonlySet<string> = new Set(["(", ")", ",", ";"]);
const SPELLINGS: Readonly<Record<string, string>> = { "<>": "!=", "==": "=" };

function wordOf({ kind, value }: Token): string {
  if (kind === "text") return value;
  return SPELLINGS[value] ?? nameKey(value);
}

/** One engine keeps IF NOT EXISTS in the text of an index, the other does not. */
function isExistsClause(words: readonly string[], i: number): boolean {
  const at = (from: number) => words.slice(from, from + 3).join(" ") === "if not exists";
  return at(i) || at(i - 1) || at(i - 2);
}
