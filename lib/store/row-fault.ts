/** Which errors of SQLite one row is guilty of, and what to do with such a row. */
import { sqliteCode } from "../base/errors.ts";
import type { Failure } from "./apply-parts.ts";

/** What one row can be guilty of; a full disk or damage is nobody's fault and must fail the batch. */
export function isRowFault(error: unknown): error is Error {
  const code = sqliteCode(error);
  return (
    code.startsWith("SQLITE_CONSTRAINT") ||
    code === "SQLITE_MISMATCH" ||
    code === "SQLITE_TOOBIG" ||
    code === "SQLITE_ERROR" ||
    code === "SQLITE_RANGE" ||
    // An index that triggers keep (FTS5) is out of step with its table: the file itself is fine.
    code === "SQLITE_CORRUPT_VTAB"
  );
}

/** Why such a row is parked, which also decides when it is tried again. */
export function failureOf(error: Error): Failure {
  const reason = error.message;
  switch (sqliteCode(error)) {
    case "SQLITE_CONSTRAINT_UNIQUE":
      return { code: "unique", reason };
    case "SQLITE_CONSTRAINT_TRIGGER":
    case "SQLITE_ERROR":
      return { code: "trigger", reason };
    case "SQLITE_CORRUPT_VTAB":
      return { code: "trigger", reason: "an index that triggers keep is out of step; rebuild it" };
    default:
      return { code: "constraint", reason };
  }
}
