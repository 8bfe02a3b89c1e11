/**
 * Reads the images that the triggers of a plain SQLite file write (sqlite-log.ts). They come as bytes:
 * a text that is not UTF-8 stands in them as it is.
 */
import { BrokenText, type CdcChange, type CdcValue } from "./change.ts";
import { decodeValue, readInt64 } from "./change-text.ts";
import { CdcError } from "./error.ts";
import type { LogRow } from "./log-entry.ts";
import { textFrom } from "./record.ts";

/** What a row of such a log says; a COMMIT says nothing. Throws "log-incomplete" where it says none. */
export function readSqliteChange(row: LogRow): CdcChange | undefined {
  try {
    return readChange(row);
  } catch (cause) {
    if (!(cause instanceof CdcError)) throw cause;
    // It stays as it is: only a copy, which begins behind it, leads past it.
    const why = cause.message;
    throw new CdcError("log-incomplete", `row ${row.change_id} of the log is none: ${why}`, cause);
  }
}

function readChange(row: LogRow): CdcChange | undefined {
  const { table_name: table, change_type: type } = row;
  if (type === 2) return undefined;
  if (table === null) throw unreadable(row);
  if (table === "sqlite_schema") {
    const sql = row.updates === null ? null : textFrom(row.updates);
    if (typeof sql !== "string") throw unreadable(row);
    return { kind: "schema", sql };
  }
  const rowid = row.id === null ? null : readInt64(row.id);
  if ((type === 1 || type === 0) && row.after !== null) {
    return { kind: "put", table, rowid, values: readImage(row.after) };
  }
  if (type === -1 && rowid !== null) return { kind: "remove", table, rowid, key: [] };
  if (type === -1 && row.before !== null) {
    return { kind: "remove", table, rowid, key: readImage(row.before) };
  }
  throw unreadable(row);
}

function unreadable(row: LogRow): CdcError {
  return new CdcError("malformed", `type ${row.change_type} of ${row.table_name} without a row`);
}

/** The values of an image. */
export function readImage(bytes: Uint8Array): CdcValue[] {
  const text = textFrom(bytes);
  const isBroken = text instanceof BrokenText;
  let values: unknown;
  try {
    // One character per byte: every text is then put together from its bytes.
    values = JSON.parse(isBroken ? Buffer.from(bytes).toString("latin1") : text);
  } catch (cause) {
    throw new CdcError("malformed", "an image that is not JSON", cause);
  }
  if (!Array.isArray(values)) throw new CdcError("malformed", "an image that is no array");
  return values.map((value: unknown) => {
    if (isBroken && typeof value === "string") return textFrom(Buffer.from(value, "latin1"));
    return decodeValue(value);
  });
}
