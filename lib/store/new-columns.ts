/**
 * A table got a column (DESIGN.md, "Unknown columns"): what peers had sent for it before is written,
 * uncaptured, versions as they are; for all other rows it counts as never carried. Runs inside a
 * transaction, before anything is applied to the new shape, with the syncing flag up.
 */
import { formatValue, type Value } from "../protocol/values.ts";
import type { ApplyParts } from "./apply-parts.ts";
import { takeRenamed } from "./follow-schema.ts";
import { integer } from "./log-row.ts";
import { isRowFault } from "./row-fault.ts";
import type { Column, SyncedTable } from "./schema.ts";
import { quoteName } from "./sql.ts";

type Parts = Pick<ApplyParts, "db" | "columnNotes" | "deadLetters" | "writerFor" | "onEvent">;

/** What is new is told by the columns that the file remembers, not by an earlier look. */
export function followNewColumns(parts: Parts, table: SyncedTable, nowMs: number): void {
  const { columnNotes } = parts;
  const before = columnNotes.rememberedColumns(table.key);
  const added = table.columns.filter((column) => !before.has(column.key));
  for (const key of before) {
    if (!table.columnByKey.has(key)) columnNotes.columnDropped(table.key, key);
  }
  fillRenamed(parts, table, nowMs);
  if (added.length === 0) return;
  const isFirstLook = before.size === 0;
  const highest = isFirstLook ? undefined : highestVersion(parts, table);
  for (const column of added) {
    columnNotes.rememberColumn(table.key, column.key, highest);
    if (isFirstLook) continue;
    for (const waiting of columnNotes.waitingFor(table.key, column.key)) {
      fill(parts, table, column, waiting, nowMs);
    }
  }
}

/** A column has a name under which peers had sent newer values than it held under its old one. */
function fillRenamed(parts: Parts, table: SyncedTable, nowMs: number): void {
  const { db, columnNotes } = parts;
  for (const key of takeRenamed(db, table)) {
    const column = table.columnByKey.get(key);
    if (column === undefined) continue;
    columnNotes.forget();
    for (const waiting of columnNotes.waitingFor(table.key, key)) {
      fill(parts, table, column, waiting, nowMs);
    }
  }
}

function highestVersion({ db }: Parts, table: SyncedTable): number | undefined {
  const version = quoteName(table.version.name);
  const highest = db
    .prepare<{ version: number | null }, []>(
      `SELECT max(CASE typeof(${version}) WHEN 'integer' THEN ${version} ELSE 0 END) AS version
       FROM ${quoteName(table.name)}`,
    )
    .get();
  return highest?.version ?? undefined;
}

interface Waiting {
  readonly id: string;
  readonly version: number;
  readonly value: Value;
}

/** A value that the column does not take is parked as the change it came with, as far as it is known. */
function fill(
  parts: Parts,
  table: SyncedTable,
  column: Column,
  waiting: Waiting,
  nowMs: number,
): void {
  const { db, columnNotes, deadLetters, writerFor, onEvent } = parts;
  db.run("SAVEPOINT hooksync_fill");
  try {
    writerFor(table).update(waiting.id, new Map([[column.key, waiting.value]]));
    db.run("RELEASE hooksync_fill");
  } catch (error) {
    if (!isRowFault(error) || !db.inTransaction) throw error;
    db.run("ROLLBACK TO hooksync_fill");
    db.run("RELEASE hooksync_fill");
    const reason = `a value that came before the column ${column.name} was there: ${error.message}`;
    columnNotes.drop(table.key, waiting.id, column.key);
    deadLetters.park(
      {
        kind: "park",
        code: "constraint",
        reason,
        op: "UPDATE",
        table: table.name,
        id: waiting.id,
        version: waiting.version,
      },
      { peer: "this node", origin: { name: "", isForeign: false } },
      formatPartialChange(table, column, waiting),
      nowMs,
    );
    onEvent({ kind: "parked", peer: "this node", table: table.name, reason });
  }
}

function formatPartialChange(table: SyncedTable, column: Column, waiting: Waiting): string {
  const { id, version, value } = waiting;
  const name = JSON.stringify(column.name);
  const own = value.kind === "blob" ? "blobs" : value.kind === "broken-text" ? "texts" : undefined;
  const row =
    `{${JSON.stringify(table.id.name)}:${JSON.stringify(id)},${name}:${formatValue(value)},` +
    `${JSON.stringify(table.version.name)}:${formatValue(integer(version))}}`;
  return (
    `{"op":"UPDATE","table":${JSON.stringify(table.name)},"row":${row},"old_id":null` +
    `${own === undefined ? "" : `,"${own}":[${name}]`}}`
  );
}
