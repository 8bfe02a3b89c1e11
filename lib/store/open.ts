/**
 * From a path to an open database, or one clear reason why not. What can be refused is refused
 * before anything is written: a typed-in path must never turn somebody's file into a node's.
 */
import { Database } from "bun:sqlite";
import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  lstatSync,
  openSync,
  readlinkSync,
  readSync,
  realpathSync,
  statSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { HookSyncError, isBusy, sqliteCode } from "../base/errors.ts";

/** Held while a node uses a file; free again when the process ends, however it ends. */
export interface FileLock {
  release(): void;
}

/** W3 of write-queue.ts: the event loop never waits longer for another program's lock. */
const BUSY_TIMEOUT_MS = 5;
/** While opening nothing else waits for us, and another program may be at work. */
const OPENING_BUSY_TIMEOUT_MS = 5_000;
/** 8 MiB: holds the inner pages of some million rows; SQLite's default of 2 MB does not. */
const CACHE_KIB = 8_192;
/** As many as Linux follows. */
const LINKS_MAX = 40;

// `query` keeps statements by their text; the default of 20 would prepare most of ours every time.
Database.MAX_QUERY_CACHE_SIZE = 1_000;

/** The real path of a database that may not exist yet. Throws where it cannot be one. */
export function resolvePath(path: string): string {
  if (existsSync(path)) {
    const real = realpathSync(path);
    refuseOtherKinds(path, real);
    refuseOtherFormats(real);
    refuseReadOnly(real);
    return real;
  }
  const real = placeOf(path);
  try {
    accessSync(dirname(real), constants.W_OK);
  } catch {
    throw new HookSyncError(
      "file-read-only",
      `${path} cannot be made: its folder is read-only`,
      "Check the folder's permissions.",
    );
  }
  return real;
}

/** Only files: opening a pipe waits for whoever writes into it, and nothing would end that. */
export function refuseOtherKinds(path: string, real: string): void {
  const kind = statSync(real);
  if (kind.isFile()) return;
  throw new HookSyncError(
    "file-not-a-database",
    `${path} is ${kind.isDirectory() ? "a folder" : "a pipe, a socket or a device"}`,
    "Give the path of a file.",
  );
}

/**
 * Where SQLite would make the file. It follows a link whose target is not there yet, and so must the
 * claim: once the file is there, everybody else comes to it by its own name.
 */
function placeOf(path: string, linksFollowed = 0): string {
  const folder = dirname(path);
  if (!existsSync(folder)) {
    throw new HookSyncError(
      "file-missing-folder",
      `the folder of ${path} does not exist`,
      `Make it first: mkdir -p ${folder}`,
    );
  }
  const place = join(realpathSync(folder), basename(path));
  if (lstatSync(place, { throwIfNoEntry: false })?.isSymbolicLink() !== true) return place;
  if (linksFollowed === LINKS_MAX) {
    throw new HookSyncError(
      "file-not-a-database",
      `${path} is a link that leads back to itself`,
      "Give the path of a file.",
    );
  }
  return placeOf(resolve(dirname(place), readlinkSync(place)), linksFollowed + 1);
}

/** Which file stands under this path; undefined: none. */
export function fileMark(path: string): string | undefined {
  const found = statSync(path, { bigint: true, throwIfNoEntry: false });
  return found && `${found.dev} ${found.ino}`;
}

/** Whether the file has a second name, by a hard link: opened under both, SQLite would ruin it. */
export function hasOtherName(path: string): boolean {
  return (statSync(path, { throwIfNoEntry: false })?.nlink ?? 1) > 1;
}

function refuseOtherFormats(path: string): void {
  const header = Buffer.alloc(16);
  const file = openFile(path);
  const length = readSync(file, header, 0, 16, 0);
  closeSync(file);
  // A file of zero bytes is a fresh database.
  if (length === 0 || header.toString("latin1") === "SQLite format 3\0") return;
  throw new HookSyncError(
    "file-not-a-database",
    `${path} is not an SQLite database`,
    "Give another path with --db.",
  );
}

function openFile(path: string): number {
  try {
    return openSync(path, "r");
  } catch (error) {
    throw new HookSyncError(
      "file-read-only",
      `${path} cannot be read: ${(error as Error).message}`,
      "Check its permissions.",
    );
  }
}

function refuseReadOnly(path: string): void {
  try {
    accessSync(path, constants.W_OK);
    accessSync(dirname(path), constants.W_OK);
  } catch {
    throw new HookSyncError(
      "file-read-only",
      `${path} (or its folder) is read-only`,
      "A node writes to its file and beside it (-wal, -shm): check the permissions.",
    );
  }
}

/**
 * Claims the file for this process. There is no flock here; a second database, locked by SQLite
 * itself, does the same and is freed by the system after kill -9. It is left behind on purpose:
 * deleting it while another process opens it would let both in.
 */
export function lockFile(path: string): FileLock {
  const lockPath = `${path}.hook-sync-lock`;
  const lock = openLock(lockPath);
  try {
    lock.run("PRAGMA journal_mode = MEMORY");
    lock.run("PRAGMA locking_mode = EXCLUSIVE");
    lock.run("BEGIN EXCLUSIVE");
  } catch (error) {
    lock.close();
    if (!isBusy(error)) throw openError(lockPath, error);
    throw new HookSyncError(
      "file-in-use",
      `${path} is in use by another hook-sync node`,
      "Stop that one first, or give this one its own file with --db.",
    );
  }
  return {
    release: () => {
      lock.run("ROLLBACK");
      lock.close(true);
    },
  };
}

function openLock(lockPath: string): Database {
  try {
    return new Database(lockPath, { create: true });
  } catch (error) {
    throw openError(lockPath, error);
  }
}

/** `synchronous` as in PRAGMA: `full` loses no committed write to a power cut. */
export interface OpenOptions {
  readonly path: string;
  readonly synchronous: "full" | "normal";
}

/** The one writing connection. WAL, and never a long wait for a lock once `doneOpening` was called. */
export function openDatabase(options: OpenOptions): Database {
  let db: Database | undefined;
  try {
    db = new Database(options.path, { create: true, strict: true });
    beOpening(db);
    db.run(`PRAGMA cache_size = -${CACHE_KIB}`);
    // Reads the header: damage and other formats show here.
    db.prepare("SELECT count(*) FROM sqlite_master").get();
    return db;
  } catch (error) {
    db?.close();
    throw openError(options.path, error);
  }
}

/** Once nothing speaks against using the file: how it is written from now on. */
export function setJournal(db: Database, options: OpenOptions): void {
  db.run("PRAGMA journal_mode = WAL");
  db.run(`PRAGMA synchronous = ${options.synchronous.toUpperCase()}`);
}

/** While the node starts it waits for other programs, as nothing waits for it yet. */
export function beOpening(db: Database): void {
  db.run(`PRAGMA busy_timeout = ${OPENING_BUSY_TIMEOUT_MS}`);
}

/** From here on it waits for a lock for BUSY_TIMEOUT_MS only: requests wait behind it. */
export function doneOpening(db: Database): void {
  db.run(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`);
}

/** A connection that only reads, for the shipper and for long looks. */
export function openReader(path: string): Database {
  const db = new Database(path, { readonly: true, strict: true });
  db.run(`PRAGMA busy_timeout = ${OPENING_BUSY_TIMEOUT_MS}`);
  db.run("PRAGMA query_only = ON");
  return db;
}

/** Names the file and what to do; a HookSyncError comes back as it is. */
export function openError(path: string, error: unknown): HookSyncError {
  if (error instanceof HookSyncError) return error;
  const code = sqliteCode(error);
  const text = error instanceof Error ? error.message : String(error);
  if (code === "SQLITE_NOTADB") {
    return new HookSyncError(
      "file-not-a-database",
      `${path} is not an SQLite database`,
      "Give another path with --db.",
      error,
    );
  }
  if (code.startsWith("SQLITE_CORRUPT")) {
    return new HookSyncError(
      "file-damaged",
      `${path} is damaged: ${text}`,
      "Restore it from a backup, or start from a copy of another node's file.",
      error,
    );
  }
  if (isBusy(error)) {
    return new HookSyncError(
      "busy",
      `another program holds ${path} locked`,
      "End its transaction and try again.",
      error,
    );
  }
  if (code.startsWith("SQLITE_READONLY") || code === "SQLITE_CANTOPEN" || code === "SQLITE_PERM") {
    return new HookSyncError(
      "file-read-only",
      `${path} cannot be written: ${text}`,
      "Check its permissions and those of its folder.",
      error,
    );
  }
  return new HookSyncError(
    "store-failed",
    `${path} cannot be used: ${text}`,
    "See the message; nothing was changed.",
    error,
  );
}
