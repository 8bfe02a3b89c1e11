/**
 * Looks into a database without leaving a trace. A file in WAL mode that nobody has open gets a -wal
 * and a -shm beside it from any ordinary reader, one that may only read included; those would stay.
 * Such a file is read as immutable instead, and looked at once more if it turned out not to be: a
 * node may start meanwhile.
 */
import { constants, Database } from "bun:sqlite";
import { closeSync, existsSync, openSync, readSync, realpathSync, statSync } from "node:fs";
import { HookSyncError } from "../base/errors.ts";
import { openError, openReader, refuseOtherKinds } from "./open.ts";

/** As often as a look is repeated because the file changed under it; then as an ordinary reader. */
const LOOKS_MAX = 3;
/** Offset of the two version numbers of the header: 2 is WAL. */
const HEADER_MODE_AT = 18;
const HEADER_BYTES = 100;
const MODE_WAL = 2;

/** What an immutable database does not say of itself. */
export interface FileMode {
  readonly isWal: boolean;
}

/** The result of `look`, and the file as it was. Throws HookSyncError where it cannot be read. */
export function readUnchanged<T>(path: string, look: (db: Database, mode: FileMode) => T): T {
  const real = existingFile(path);
  for (let attempt = 1; ; attempt++) {
    const before = fingerprint(real);
    const isImmutable = before.isWal && !before.isOpen && attempt <= LOOKS_MAX;
    const result = lookOnce(real, isImmutable, (db) => look(db, before));
    if (!isImmutable || fingerprint(real).text === before.text) return result;
  }
}

function lookOnce<T>(path: string, isImmutable: boolean, look: (db: Database) => T): T {
  let db: Database | undefined;
  try {
    db = isImmutable ? openImmutable(path) : openReader(path);
    return look(db);
  } catch (error) {
    throw openError(path, error);
  } finally {
    db?.close(true);
  }
}

function openImmutable(path: string): Database {
  const encoded = path.split("/").map(encodeURIComponent).join("/");
  return new Database(
    `file:${encoded}?immutable=1`,
    constants.SQLITE_OPEN_READONLY | constants.SQLITE_OPEN_URI,
  );
}

/** The real path of a database that is there. */
export function existingFile(path: string): string {
  if (!existsSync(path)) {
    throw new HookSyncError(
      "file-not-a-database",
      `there is no file ${path}`,
      "Give the path of an SQLite database.",
    );
  }
  const real = realpathSync(path);
  refuseOtherKinds(path, real);
  return real;
}

/** `text` shows whether somebody wrote meanwhile; `isOpen`, whether somebody may be about to. */
function fingerprint(path: string): FileMode & { text: string; isOpen: boolean } {
  const header = Buffer.alloc(HEADER_BYTES);
  let length = 0;
  try {
    const file = openSync(path, "r");
    length = readSync(file, header, 0, HEADER_BYTES, 0);
    closeSync(file);
  } catch (error) {
    throw new HookSyncError(
      "file-read-only",
      `${path} cannot be read: ${(error as Error).message}`,
      "Check its permissions.",
    );
  }
  const { size, mtimeMs, ino } = statSync(path);
  const isOpen = existsSync(`${path}-wal`) || existsSync(`${path}-shm`);
  return {
    text: [header.toString("latin1", 0, length), size, mtimeMs, ino, isOpen].join(),
    isWal: length === HEADER_BYTES && header[HEADER_MODE_AT] === MODE_WAL,
    isOpen,
  };
}
