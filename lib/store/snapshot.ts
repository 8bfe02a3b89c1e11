/**
 * A consistent copy of a file that others go on writing: SQLite's own VACUUM INTO over a connection
 * that only reads, written beside its place, checked, and renamed, so that a copy under the asked name
 * is always whole.
 */
import { Database } from "bun:sqlite";
import {
  closeSync,
  existsSync,
  fsyncSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from "node:fs";
import { open } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { HookSyncError, sqliteCode } from "../base/errors.ts";
import { openError } from "./open.ts";
import { existingFile } from "./read-unchanged.ts";
import { quoteText } from "./sql.ts";

/** Copies a database into a file that must not be there; takes as long as reading all of it. */
export function copyInto(path: string, out: string): void {
  // Not with query_only, which would forbid writing the copy, too.
  const db = new Database(path, { readonly: true });
  try {
    db.run(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`);
    db.run(`VACUUM INTO ${quoteText(out)}`);
  } catch (error) {
    rmSync(out, { force: true });
    throw error;
  } finally {
    db.close(true);
  }
}

/** A copy on its way out; the file behind it is gone when it is read or given up. */
export interface CopyStream {
  readonly bytes: number;
  readonly stream: ReadableStream<Uint8Array>;
}

/** While another program recovers the file, or folds its -wal into it. */
const BUSY_TIMEOUT_MS = 5_000;
const CHUNK_BYTES = 1024 * 1024;
/** Between the name of a database and what tells its copies apart. */
const COPY_MARK = ".hook-sync-copy-";

/** Where a copy of this database waits to be sent: beside it, where there is room for it, if anywhere. */
export function copyPath(path: string, unique: string): string {
  return `${path}${COPY_MARK}${unique}`;
}

/** Copies that a killed process left. */
export function removeLeftCopies(path: string): void {
  for (const name of readdirSync(dirname(path))) {
    if (name.startsWith(basename(path) + COPY_MARK)) rmSync(join(dirname(path), name));
  }
}

/** Streams a copy and removes it. */
export async function streamCopy(path: string): Promise<CopyStream> {
  const { size } = statSync(path);
  const file = await open(path, "r");
  const end = async () => {
    await file.close();
    rmSync(path, { force: true });
  };
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { bytesRead, buffer } = await file.read(new Uint8Array(CHUNK_BYTES), 0, CHUNK_BYTES);
      if (bytesRead > 0) return controller.enqueue(buffer.subarray(0, bytesRead));
      await end();
      controller.close();
    },
    cancel: end,
  });
  return { bytes: size, stream };
}

/** The copy of a file at rest or in use; `out` is there only when it is whole. */
export function snapshotFile(path: string, out: string): void {
  const real = existingFile(path);
  const written = prepareOut(out);
  try {
    copyInto(real, written);
    publish(written, out);
  } catch (error) {
    rmSync(written, { force: true });
    throw openError(path, error);
  }
}

/** Where a copy is written until it is whole. Throws where `out` is there already: it may be in use. */
export function prepareOut(out: string): string {
  if (existsSync(out)) {
    throw new HookSyncError(
      "file-in-use",
      `${out} is there already`,
      "Give another name, or remove it first; a node may be using it.",
    );
  }
  if (!existsSync(dirname(out))) {
    throw new HookSyncError(
      "file-missing-folder",
      `the folder of ${out} does not exist`,
      `Make it first: mkdir -p ${dirname(out)}`,
    );
  }
  // SQLite would take what is left of another file for the newest part of this one.
  const left = [`${out}-wal`, `${out}-journal`].find((path) => existsSync(path));
  if (left !== undefined) {
    throw new HookSyncError(
      "file-in-use",
      `${left} is there already, of another file that was ${out}`,
      "Give another name, or remove it first; a node may be using it.",
    );
  }
  const written = `${out}.part`;
  rmSync(written, { force: true });
  return written;
}

/** Checks what was written and gives it its name. */
export function publish(written: string, out: string): void {
  checkWhole(written);
  syncToDisk(written);
  renameSync(written, out);
  if (process.platform !== "win32") syncToDisk(dirname(out));
}

function checkWhole(path: string): void {
  const db = new Database(path, { readonly: true });
  try {
    const found = db
      .prepare<{ integrity_check: string }, []>("PRAGMA integrity_check(5)")
      .all()
      .map((row) => row.integrity_check);
    if (found.length === 1 && found[0] === "ok") return;
    throw new HookSyncError(
      "file-damaged",
      `the copy is damaged: ${found.join("; ")}`,
      "Check the original with PRAGMA integrity_check, and the disk.",
    );
  } catch (error) {
    if (sqliteCode(error) !== "SQLITE_NOTADB") throw openError("the copy", error);
    throw new HookSyncError(
      "file-not-a-database",
      "what came is not an SQLite database",
      "Is that the address of a node?",
      error,
    );
  } finally {
    db.close(true);
  }
}

function syncToDisk(path: string): void {
  const file = openSync(path, "r");
  try {
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}
