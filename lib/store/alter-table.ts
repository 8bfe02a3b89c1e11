/**
 * One ALTER TABLE on a synced table (DESIGN.md, "Capture triggers"). SQLite refuses DROP COLUMN while a
 * trigger names the column, and ours name all of them; and a column renamed leaves the old name in
 * what waits to be sent. So, in one transaction: our triggers go, the statement runs, what waits
 * follows, our triggers come back. A node that runs on the file sees a new schema whose triggers fit.
 */
import type { Database } from "bun:sqlite";
import { HookSyncError, isBusy, sqliteCode } from "../base/errors.ts";
import {
  installTriggers,
  readKnown,
  readSelection,
  removeTriggers,
  survey,
  triggerState,
  writeKnownTables,
} from "./catalog.ts";
import { removeCdcTriggers } from "./cdc-names.ts";
import { followColumns, followTableRenames, renameTable } from "./follow-schema.ts";
import { refuseOtherShapes, setting, wasOurs } from "./migrations.ts";
import { openDatabase } from "./open.ts";
import { existingFile } from "./read-unchanged.ts";
import { isInternalTable, readTables } from "./schema.ts";
import { isWord, nameKey, type Token, tokenize } from "./sql.ts";

/** What a statement means to do, as far as it matters here. */
export interface Alteration {
  /** The statement alone, without what may follow it. */
  readonly sql: string;
  readonly table: string;
  /** For RENAME TO. */
  readonly renamedTo: string | undefined;
}

/** One ALTER TABLE and nothing else, or what would be right. */
export function parseAlteration(text: string): Alteration | { readonly right: string } {
  const single =
    'expected one ALTER TABLE statement, such as "ALTER TABLE notes DROP COLUMN draft"';
  const tokens = tokenize(text);
  while (isSymbol(tokens.at(-1), ";")) tokens.pop();
  const [alter, word] = tokens;
  if (!isWord(alter, "ALTER") || !isWord(word, "TABLE")) return { right: single };
  if (tokens.some((token) => isSymbol(token, ";"))) return { right: `${single}, and only one` };
  // SQLite would take it for the end of the text.
  if (text.includes("\0")) return { right: `${single}, without a NUL character` };
  const isQualified = isSymbol(tokens[3], ".");
  const schema = isQualified ? nameOf(tokens[2]) : "main";
  const table = nameOf(tokens[isQualified ? 4 : 2]);
  if (schema === undefined || table === undefined) return { right: single };
  if (nameKey(schema) !== "main") return { right: "expected a table of this file (schema main)" };
  const rest = tokens.slice(isQualified ? 5 : 3);
  const isRename = rest.length === 3 && isWord(rest[0], "RENAME") && isWord(rest[1], "TO");
  return {
    sql: text.slice(0, tokens.at(-1)!.end),
    table,
    renamedTo: isRename ? nameOf(rest[2]) : undefined,
  };
}

function isSymbol(token: Token | undefined, symbol: string): boolean {
  return token?.kind === "symbol" && token.value === symbol;
}

/** SQLite also takes a string where a name must stand. */
function nameOf(token: Token | undefined): string | undefined {
  if (token === undefined || token.kind === "symbol" || token.kind === "number") return undefined;
  return token.kind === "text" ? token.value.slice(1, -1).replaceAll("''", "'") : token.value;
}

/** `table` is its name after the statement, which may have renamed it. */
export interface AlterOutcome {
  readonly table: string;
  /** Whether our triggers stood on it, and stand there again. */
  readonly isSynced: boolean;
}

/** Runs it, or throws HookSyncError and has changed nothing. */
export function alterTable(path: string, alteration: Alteration): AlterOutcome {
  const db = openDatabase({ path: existingFile(path), synchronous: "full" });
  try {
    db.run("BEGIN IMMEDIATE");
    const outcome = alter(db, alteration);
    db.run("COMMIT");
    return outcome;
  } catch (error) {
    if (db.inTransaction) db.run("ROLLBACK");
    throw alterError(path, error);
  } finally {
    db.close(true);
  }
}

function alter(db: Database, alteration: Alteration): AlterOutcome {
  refuseOtherShapes(db);
  const key = nameKey(alteration.table);
  if (isInternalTable(alteration.table)) {
    throw refusal(`${alteration.table} belongs to hook-sync or to SQLite`, "Leave it as it is.");
  }
  if (!readTables(db).has(key)) {
    throw refusal(`there is no ordinary table ${alteration.table}`, "Correct its name.");
  }
  const selection = wasOurs(db) ? readSelection(db) : undefined;
  if (selection === undefined) {
    // No node of ours has used the file; a log for followers may stand in the way.
    removeCdcTriggers(db, key);
    db.prepare(alteration.sql).run();
    return { table: alteration.renamedTo ?? alteration.table, isSynced: false };
  }

  const settledThrough = Number(setting(db, "settled_through") ?? 0);
  // First what others changed since a node last looked, so that it is not taken for part of this.
  const known = readKnown(db);
  followTableRenames(db, known, settledThrough);
  const before = survey(db, readSelection(db) ?? selection).synced.get(key);
  const remembered = known.get(key);
  const state = before ? triggerState(db, before) : "missing";
  if (before && remembered && state === "outdated")
    followColumns(db, before, remembered.columns, settledThrough);

  if (before || selection.all || selection.names.includes(key)) removeTriggers(db, key);
  removeCdcTriggers(db, key);
  db.prepare(alteration.sql).run();
  const name = alteration.renamedTo ?? alteration.table;
  if (!before) return { table: name, isSynced: false };

  if (alteration.renamedTo !== undefined) renameTable(db, before.name, name, settledThrough);
  const { synced, notSynced } = survey(db, readSelection(db) ?? selection);
  const after = synced.get(nameKey(name));
  if (!after) {
    const why = notSynced.find((other) => nameKey(other.name) === nameKey(name));
    throw refusal(
      `${before.name} could not be synced any more: ${why?.reason ?? "it does not qualify then"}`,
      "Leave it out of --tables first, if that is what you want.",
    );
  }
  const columns = before.columns.map((column) => column.name);
  followColumns(db, after, columns, settledThrough);
  // Where they were missing, the node must see that: writes may have gone unseen.
  if (state !== "missing") installTriggers(db, after);
  if (remembered) {
    known.delete(key);
    known.set(after.key, { name: after.name, columns: after.columns.map((column) => column.name) });
  }
  writeKnownTables(db, known.values());
  return { table: after.name, isSynced: true };
}

function refusal(message: string, hint: string): HookSyncError {
  return new HookSyncError("store-failed", message, hint);
}

function alterError(path: string, error: unknown): unknown {
  if (error instanceof HookSyncError) return error;
  if (isBusy(error)) {
    return new HookSyncError(
      "busy",
      `another program holds ${path} locked`,
      "End its transaction and try again; nothing was changed.",
      error,
    );
  }
  if (sqliteCode(error) === "SQLITE_ERROR" || sqliteCode(error).startsWith("SQLITE_CONSTRAINT")) {
    const text = (error as Error).message;
    return new HookSyncError(
      "store-failed",
      `SQLite refuses: ${text}`,
      "Nothing was changed. Triggers, views and indexes of your own that name the column must go first.",
      error,
    );
  }
  return error;
}
