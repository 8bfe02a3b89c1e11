/**
 * The change log for followers (lib/cdc) in a node's file: its triggers stand on synced tables, too,
 * and must not be taken for the application's.
 */
import type { Database } from "bun:sqlite";
import { nameKey, quoteName } from "./sql.ts";

/** Whether a table or trigger is that log's. */
export function isCdcName(name: string): boolean {
  return /^_cdc(?:$|_)/.test(nameKey(name));
}

/** What the log is made of (lib/cdc); other names that begin like these are the application's. */
const LOG_TABLE = /^_cdc(?:_object|_state|_rebuild|_canary|_log|_follower)?$/;
const LOG_TRIGGER = /^_cdc_a[iud]_/;

/** Takes its triggers off a table, or off all: the node puts them back and sees that they were gone. */
export function removeCdcTriggers(db: Database, tableKey?: string): void {
  const triggers = db
    .prepare<{ name: string; tbl_name: string }, []>(
      "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'",
    )
    .all();
  for (const { name, tbl_name } of triggers) {
    const isElsewhere = tableKey !== undefined && nameKey(tbl_name) !== tableKey;
    if (!LOG_TRIGGER.test(nameKey(name)) || isElsewhere) continue;
    db.run(`DROP TRIGGER ${quoteName(name)}`);
  }
}

/** Takes all of it out of the file. */
export function removeCdc(db: Database): void {
  removeCdcTriggers(db);
  const tables = db
    .prepare<{ name: string }, []>("SELECT name FROM sqlite_master WHERE type = 'table'")
    .all();
  for (const { name } of tables) {
    if (LOG_TABLE.test(nameKey(name))) db.run(`DROP TABLE ${quoteName(name)}`);
  }
}
