/**
 * The changes of one transaction until it is whole: in memory while they are few, in a file beyond
 * that. A window of so many rows would stop for ever on the first transaction that is larger, and
 * memory alone would end the process on the first that is larger than it.
 */
import { closeSync, mkdtempSync, openSync, readSync, rmSync, unlinkSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert } from "../base/assert.ts";
import { BrokenText, type CdcChange, type CdcValue } from "./change.ts";
import { decodeChange, encodeChange } from "./change-text.ts";
import { CdcError } from "./error.ts";

const MIB = 1024 * 1024;

/** About what a frame holds; most transactions are a thousandth of it. */
export const SPOOL_BYTES_MAX = 16 * MIB;

/** How much is read or written at once where changes lie in a file. */
const PIECE_BYTES = MIB;

/** Where a transaction is held that is too large for memory. */
export interface SpoolOptions {
  /** Above this the changes go to a file; default 16 MiB. */
  readonly memoryBytesMax?: number;
  /** Default: the system's folder for temporary files. */
  readonly folder?: string;
}

/** A list of changes of any length: filled once, then gone through as often as wanted, then closed. */
export class ChangeSpool implements Iterable<CdcChange> {
  readonly #bytesMax: number;
  readonly #folder: string;
  #held: CdcChange[] = [];
  #heldBytes = 0;
  #file: SpillFile | undefined;
  #count = 0;
  #closed = false;

  constructor(options: SpoolOptions = {}) {
    this.#bytesMax = options.memoryBytesMax ?? SPOOL_BYTES_MAX;
    this.#folder = options.folder ?? tmpdir();
  }

  /** How many changes it holds. */
  get count(): number {
    return this.#count;
  }

  /** Whether they are in a file. */
  get spilled(): boolean {
    return this.#file !== undefined;
  }

  /** Adds one at the end. */
  push(change: CdcChange): void {
    assert(!this.#closed, "a change after the spool was closed");
    this.#count++;
    this.#held.push(change);
    this.#heldBytes += bytesOf(change);
    if (this.#file === undefined && this.#heldBytes > this.#bytesMax) {
      this.#file = new SpillFile(this.#folder);
    }
    if (this.#file !== undefined && this.#heldBytes > PIECE_BYTES) this.#spill(this.#file);
  }

  *[Symbol.iterator](): Iterator<CdcChange> {
    assert(!this.#closed, "changes of a closed batch");
    if (this.#file !== undefined) {
      for (const line of this.#file.lines()) yield decodeChange(line);
    }
    yield* this.#held;
  }

  /** Deletes the file. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#held = [];
    this.#file?.close();
  }

  #spill(file: SpillFile): void {
    for (const change of this.#held) file.append(encodeChange(change));
    file.flush();
    this.#held = [];
    this.#heldBytes = 0;
  }
}

/** Roughly, and never less than what a change costs in memory. */
function bytesOf(change: CdcChange): number {
  let bytes = 100;
  if (change.kind === "schema") return bytes + change.sql.length * 2;
  if (change.kind === "delete") return bytes;
  for (const value of change.kind === "remove" ? change.key : change.values)
    bytes += 16 + sizeOf(value);
  return bytes;
}

function sizeOf(value: CdcValue): number {
  if (typeof value === "string") return value.length * 2;
  if (value instanceof Uint8Array) return value.length;
  return value instanceof BrokenText ? value.bytes.length : 0;
}

/** Lines with their length before them; nothing of it is left when the process is killed. */
class SpillFile {
  readonly #descriptor: number;
  readonly #folder: string;
  #unwritten: Buffer[] = [];
  #unwrittenBytes = 0;
  #bytes = 0;

  constructor(parent: string) {
    this.#folder = mkdtempSync(join(parent, "hook-sync-cdc-"));
    const path = join(this.#folder, "changes");
    this.#descriptor = openSync(path, "w+");
    try {
      unlinkSync(path);
      rmSync(this.#folder, { recursive: true });
    } catch {
      // Where an open file cannot be unlinked, close() does it.
    }
  }

  append(line: string): void {
    const text = Buffer.from(line);
    const length = Buffer.alloc(4);
    length.writeUInt32BE(text.length);
    this.#unwritten.push(length, text);
    this.#unwrittenBytes += 4 + text.length;
    if (this.#unwrittenBytes > PIECE_BYTES) this.flush();
  }

  flush(): void {
    const piece = Buffer.concat(this.#unwritten);
    for (let at = 0; at < piece.length; ) {
      at += writeSync(this.#descriptor, piece, at, piece.length - at, this.#bytes + at);
    }
    this.#bytes += piece.length;
    this.#unwritten = [];
    this.#unwrittenBytes = 0;
  }

  *lines(): Generator<string> {
    let buffer = Buffer.alloc(PIECE_BYTES);
    let start = 0;
    let end = 0;
    let at = 0;
    /** Makes `bytes` bytes lie in the buffer from `start` on. */
    const need = (bytes: number) => {
      if (end - start >= bytes) return;
      const next = bytes > buffer.length ? Buffer.alloc(bytes) : buffer;
      buffer.copy(next, 0, start, end);
      buffer = next;
      end -= start;
      start = 0;
      while (end < bytes) {
        const got = readSync(this.#descriptor, buffer, end, buffer.length - end, at);
        if (got === 0) throw new CdcError("cut", "the file of a large transaction was cut");
        end += got;
        at += got;
      }
    };
    while (at < this.#bytes || start < end) {
      need(4);
      const length = buffer.readUInt32BE(start);
      need(4 + length);
      yield buffer.toString("utf8", start + 4, start + 4 + length);
      start += 4 + length;
    }
  }

  close(): void {
    closeSync(this.#descriptor);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
