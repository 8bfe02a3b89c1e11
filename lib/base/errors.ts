/**
 * The failures that the world causes, each with a code for programs and a hint for people.
 * Wrong input from a client is a RequestError (a 4xx); our own mistakes are assertions.
 */

/** What a program may act upon; the text of a HookSyncError is for people and may change. */
export type ErrorCode =
  | "file-missing-folder"
  | "file-not-a-database"
  | "file-in-use"
  | "file-read-only"
  | "file-newer"
  | "file-damaged"
  | "file-too-old"
  | "file-moved"
  | "file-foreign-tables"
  | "tables-not-chosen"
  | "source-of-mesh"
  | "port-in-use"
  | "port-refused"
  | "busy"
  | "disk-full"
  | "store-failed";

/** Something outside of us failed. `message` says what, `hint` says what to do. */
export class HookSyncError extends Error {
  override name = "HookSyncError";
  readonly code: ErrorCode;
  readonly hint: string;
  constructor(code: ErrorCode, message: string, hint: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.hint = hint;
  }
}

/** A request that cannot be served as it is. `status` is the HTTP answer, `message` its `error`. */
export class RequestError extends Error {
  override name = "RequestError";
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  constructor(status: number, message: string, headers: Record<string, string> = {}) {
    super(message);
    this.status = status;
    this.headers = headers;
  }
}

/** `SQLITE_…`, or empty where the error has no code. */
export function sqliteCode(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "";
}

/** Whether another connection is in the way, so that trying again may help. */
export function isBusy(error: unknown): boolean {
  const code = sqliteCode(error);
  return code.startsWith("SQLITE_BUSY") || code.startsWith("SQLITE_LOCKED");
}

/** A column or table went away and settling has not noticed yet; within a second it will have. */
export function isStaleSchema(error: unknown): boolean {
  return (
    sqliteCode(error) === "SQLITE_ERROR" &&
    /^(no such (column|table|index)|table .* has no column)/.test((error as Error).message)
  );
}
