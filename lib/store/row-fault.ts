/** Which errors of SQLite one row is guilty of, and what to do with such a row. */
import type { ParkCode } from "./read-change.ts";
import { sqliteCode } from "./write-queue.ts";

/** What one row can be guilty of; a full disk or damage is nobody's fault and must fail the batch. */
export function isRowFault(error: unknown): boolean {
  const code = sqliteCode(error);
  return (
    code.startsWith("SQLITE_CONSTRAINT") ||
    code === "SQLITE_MISMATCH" ||
    code === "SQLITE_TOOBIG" ||
    code === "SQLITE_ERROR" ||
    code === "SQLITE_RANGE"
  );
}

/** When such a row should be tried again. */
export function parkCodeOf(error: unknown): ParkCode {
  const code = sqliteCode(error);
  if (code === "SQLITE_CONSTRAINT_UNIQUE") return "unique";
  if (code === "SQLITE_CONSTRAINT_TRIGGER" || code === "SQLITE_ERROR") return "trigger";
  return "constraint";
}
