/**
 * Batches as bytes. A frame is four bytes of length (big-endian) and that many bytes: a header as
 * one line of JSON, a line break, then a piece of the transaction's text, which is one change per
 * line. A transaction above a frame's limit, or a single change above it, goes on in the next frame
 * wherever the limit falls; only the last of its frames says that it is whole.
 *
 *   transaction or copy   {"v":1,"kind":…,"log":…,"after":"12","commit":"15","part":0,"last":true,
 *                          and in part 0 "mark":…,"time":…,"schema":…, and "behind":3 where it is known
 *                          how many transactions the log had after this one}
 *   heartbeat             {"v":1,"kind":"beat"}      the source is there and has nothing new, or
 *                         with "behind":3 has something that it cannot send yet
 *   stop                  {"v":1,"kind":"stop","code":…,"message":…}     why nothing more will come
 *
 * Invariants (test/cdc/frames.test.ts):
 *   F1  a batch comes out only when its last frame is there, whole.
 *   F2  whatever is cut, oversized, repeated or out of order is a CdcError, never a batch.
 *   F3  a reader holds at most one frame, one change and what a spool keeps in memory.
 */
import type { Batch } from "./change.ts";
import { decodeChange, encodeChange, readInt64 } from "./change-text.ts";
import { CdcError, type CdcErrorCode, isCdcErrorCode } from "./error.ts";
import { ChangeSpool, type SpoolOptions } from "./spool.ts";

const MIB = 1024 * 1024;

/** A frame is held in memory at both ends; larger ones are a mistake or an attack. */
export const FRAME_BYTES_MAX = 16 * MIB;

/** One change is one JSON text, and SQLite's largest value (1 GB) in base64 is near what a string holds. */
export const CHANGE_BYTES_MAX = 1536 * MIB;

const VERSION = 1;
const LENGTH_BYTES = 4;
/** Longer than any header but a stop's, whose message is cut. */
const HEADER_BYTES_MAX = 4096;
const MESSAGE_LENGTH_MAX = 1000;
const LINE_BREAK = 10;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** A frame limit other than the default is for tests. */
export interface FrameOptions extends SpoolOptions {
  readonly frameBytesMax?: number;
}

/** What `encodeFrames` goes by. */
export interface EncodeOptions extends FrameOptions {
  /** How many transactions the log holds after this one; absent where that is not known. */
  readonly behind?: number | undefined;
}

/** The frames of a batch, one after the other, so that a slow reader holds one in memory. */
export function* encodeFrames(batch: Batch, options: EncodeOptions = {}): Generator<Uint8Array> {
  const bodyBytesMax = (options.frameBytesMax ?? FRAME_BYTES_MAX) - HEADER_BYTES_MAX;
  let pieces: Buffer[] = [];
  let bytes = 0;
  let part = 0;
  const take = (last: boolean) => {
    const frame = encodeFrame(headerOf(batch, part, last, options.behind), pieces);
    pieces = [];
    bytes = 0;
    part++;
    return frame;
  };
  for (const change of batch.changes) {
    let line = Buffer.from(`${encodeChange(change)}\n`);
    if (line.length > CHANGE_BYTES_MAX) {
      throw new CdcError("too-large", `a change of ${line.length} bytes cannot be sent`);
    }
    while (bytes + line.length > bodyBytesMax) {
      const room = bodyBytesMax - bytes;
      pieces.push(line.subarray(0, room));
      line = line.subarray(room);
      yield take(false);
    }
    pieces.push(line);
    bytes += line.length;
  }
  yield take(true);
}

function headerOf(
  batch: Batch,
  part: number,
  last: boolean,
  behind: number | undefined,
): Record<string, unknown> {
  const { kind, log, mark, timeMs: time, schema } = batch;
  const [after, commit] = [batch.after.toString(), batch.commit.toString()];
  const common = { kind, log, after, commit, part, last };
  return part === 0 ? { ...common, mark, time, schema, behind } : common;
}

/** Says that the source is there; `behind` where it has what it cannot send yet. */
export function encodeBeat(behind = 0): Uint8Array {
  return encodeFrame(behind > 0 ? { kind: "beat", behind } : { kind: "beat" }, []);
}

function readBehind({ behind }: Record<string, unknown>): number | undefined {
  const isCounted = typeof behind === "number" && Number.isSafeInteger(behind) && behind >= 0;
  return isCounted ? behind : undefined;
}

/** Says why the stream ends, so that the follower knows whether to ask again or for a copy. */
export function encodeStop(error: CdcError): Uint8Array {
  const message = error.message.slice(0, MESSAGE_LENGTH_MAX);
  return encodeFrame({ kind: "stop", code: error.code, message }, []);
}

function encodeFrame(header: Record<string, unknown>, body: readonly Buffer[]): Uint8Array {
  const line = Buffer.from(`${JSON.stringify({ v: VERSION, ...header })}\n`);
  const length = Buffer.alloc(LENGTH_BYTES);
  const bytes = Buffer.concat([length, line, ...body]);
  bytes.writeUInt32BE(bytes.length - LENGTH_BYTES, 0);
  return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** What a stream says. A batch is the caller's, who closes it. */
export type FrameEvent =
  | { readonly kind: "batch"; readonly batch: Batch; readonly behind: number | undefined }
  | { readonly kind: "beat"; readonly behind: number }
  | { readonly kind: "stop"; readonly code: CdcErrorCode; readonly message: string };

interface PartHeader {
  readonly kind: "transaction" | "copy";
  readonly log: string;
  readonly after: bigint;
  readonly commit: bigint;
  readonly part: number;
  readonly last: boolean;
}

interface FirstHeader extends PartHeader {
  readonly mark: string;
  readonly timeMs: number;
  readonly schema: string | null;
  readonly behind: number | undefined;
}

/** A transaction whose last frame has not come. */
interface Open {
  readonly first: FirstHeader;
  readonly part: number;
  readonly spool: ChangeSpool;
  /** The pieces of a change that goes on in the next frame. */
  readonly rest: readonly Uint8Array[];
  readonly restBytes: number;
}

/** Bytes of a stream, cut anywhere, into what they say. */
export class FrameReader {
  readonly #options: FrameOptions;
  readonly #frameBytesMax: number;
  #chunks: Uint8Array[] = [];
  #bytes = 0;
  #open: Open | undefined;
  /** Where the last batch ended; each next one must follow it. */
  #position: { readonly log: string; readonly commit: bigint } | undefined;

  constructor(options: FrameOptions = {}) {
    this.#options = options;
    this.#frameBytesMax = options.frameBytesMax ?? FRAME_BYTES_MAX;
  }

  /** Takes the next bytes and yields what is complete. After a throw, `close` and begin anew. */
  *read(chunk: Uint8Array): Generator<FrameEvent> {
    if (chunk.length > 0) {
      this.#chunks.push(chunk);
      this.#bytes += chunk.length;
    }
    for (let frame = this.#take(); frame !== undefined; frame = this.#take()) {
      const event = this.#readFrame(frame);
      if (event !== undefined) yield event;
    }
  }

  /** The stream ended: throws when it ended inside something. */
  end(): void {
    if (this.#bytes > 0) throw new CdcError("cut", "the stream ended inside a frame");
    if (this.#open) throw new CdcError("cut", "the stream ended inside a transaction");
  }

  /** Gives back what an unfinished transaction holds. */
  close(): void {
    this.#open?.spool.close();
    this.#open = undefined;
    this.#chunks = [];
    this.#bytes = 0;
  }

  /** A whole frame without its length, once it is there. */
  #take(): Uint8Array | undefined {
    if (this.#bytes < LENGTH_BYTES) return undefined;
    if (this.#chunks[0]!.length < LENGTH_BYTES) this.#join();
    const length = new DataView(this.#chunks[0]!.buffer, this.#chunks[0]!.byteOffset).getUint32(0);
    if (length === 0 || length > this.#frameBytesMax) {
      throw new CdcError(
        "too-large",
        `a frame of ${length} bytes; 1 to ${this.#frameBytesMax} are taken`,
      );
    }
    if (this.#bytes < LENGTH_BYTES + length) return undefined;
    this.#join();
    const all = this.#chunks[0]!;
    const frame = all.subarray(LENGTH_BYTES, LENGTH_BYTES + length);
    const rest = all.subarray(LENGTH_BYTES + length);
    this.#chunks = rest.length > 0 ? [rest] : [];
    this.#bytes = rest.length;
    return frame;
  }

  #join(): void {
    if (this.#chunks.length > 1) this.#chunks = [new Uint8Array(Buffer.concat(this.#chunks))];
  }

  #readFrame(frame: Uint8Array): FrameEvent | undefined {
    const headerEnd = frame.indexOf(LINE_BREAK);
    if (headerEnd < 0) throw malformed("no header");
    const header = readHeader(frame.subarray(0, headerEnd));
    const body = frame.subarray(headerEnd + 1);
    switch (header["kind"]) {
      case "beat":
        return { kind: "beat", behind: readBehind(header) ?? 0 };
      case "stop":
        return readStop(header);
      case "transaction":
      case "copy":
        return this.#readPart(header["kind"], header, body);
      default:
        throw malformed("an unknown kind");
    }
  }

  #readPart(
    kind: Batch["kind"],
    header: Record<string, unknown>,
    body: Uint8Array,
  ): FrameEvent | undefined {
    const part = readPartHeader(kind, header);
    if (this.#open === undefined) this.#begin(part, header);
    else this.#goOn(this.#open, part);
    this.#addLines(body);
    if (!part.last) return undefined;
    const { first, spool, restBytes } = this.#open!;
    if (restBytes > 0) throw malformed("a change without an end");
    this.#open = undefined;
    this.#position = { log: first.log, commit: first.commit };
    const { log, after, commit, mark, timeMs, schema, behind } = first;
    const close = () => spool.close();
    const changes = spool;
    return {
      kind: "batch",
      batch: { kind, log, after, commit, mark, timeMs, schema, changes, close },
      behind,
    };
  }

  #begin(part: PartHeader, header: Record<string, unknown>): void {
    if (part.part !== 0) throw outOfOrder(`part ${part.part} comes first`);
    const known = this.#position;
    if (part.kind === "transaction") {
      if (part.commit <= part.after) throw outOfOrder(`${part.commit} follows ${part.after}`);
      if (known && (known.log !== part.log || known.commit !== part.after)) {
        throw outOfOrder(`what follows ${part.after} comes after ${known.commit}`);
      }
    }
    const { mark, time, schema } = header;
    if (typeof mark !== "string" || typeof time !== "number") throw malformed("no mark or time");
    if (schema !== null && typeof schema !== "string") throw malformed("no schema");
    const first = { ...part, mark, timeMs: time, schema, behind: readBehind(header) };
    const spool = new ChangeSpool(this.#options);
    this.#open = { first, part: 0, spool, rest: [], restBytes: 0 };
  }

  #goOn(open: Open, part: PartHeader): void {
    const { first } = open;
    const same =
      first.kind === part.kind &&
      first.log === part.log &&
      first.after === part.after &&
      first.commit === part.commit;
    if (!same || part.part !== open.part + 1) {
      throw outOfOrder(`part ${part.part} of ${part.commit} after ${open.part} of ${first.commit}`);
    }
    this.#open = { ...open, part: part.part };
  }

  #addLines(body: Uint8Array): void {
    let { rest, restBytes } = this.#open!;
    const { spool } = this.#open!;
    const end = body.lastIndexOf(LINE_BREAK);
    if (end >= 0) {
      const whole = body.subarray(0, end);
      const text = rest.length > 0 ? Buffer.concat([...rest, whole]) : whole;
      for (const line of linesOf(text)) spool.push(decodeChange(line));
      [rest, restBytes] = [[], 0];
    }
    if (end + 1 < body.length) {
      // A copy: the frame's memory is the chunk's and would be held with it.
      rest = [...rest, body.slice(end + 1)];
      restBytes += body.length - end - 1;
    }
    if (restBytes > CHANGE_BYTES_MAX) throw new CdcError("too-large", "a change without an end");
    this.#open = { ...this.#open!, rest, restBytes };
  }
}

function linesOf(bytes: Uint8Array): string[] {
  try {
    return utf8.decode(bytes).split("\n");
  } catch (cause) {
    throw new CdcError("malformed", "not a frame: changes that are not UTF-8", cause);
  }
}

function malformed(what: string): CdcError {
  return new CdcError("malformed", `not a frame: ${what}`);
}

function outOfOrder(what: string): CdcError {
  return new CdcError("out-of-order", `frames out of order: ${what}`);
}

function readHeader(bytes: Uint8Array): Record<string, unknown> {
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new CdcError("malformed", "not a frame: no JSON header", cause);
  }
  if (typeof header !== "object" || header === null) throw malformed("no header");
  const members = header as Record<string, unknown>;
  if (members["v"] !== VERSION) throw malformed(`version ${String(members["v"])}`);
  return members;
}

function readStop(header: Record<string, unknown>): FrameEvent {
  const { code, message } = header;
  if (!isCdcErrorCode(code) || typeof message !== "string") throw malformed("no reason");
  return { kind: "stop", code, message };
}

function readPartHeader(kind: Batch["kind"], header: Record<string, unknown>): PartHeader {
  const { log, part, last } = header;
  if (typeof log !== "string" || log === "") throw malformed("no log");
  if (typeof part !== "number" || !Number.isSafeInteger(part)) throw malformed("no part");
  if (typeof last !== "boolean") throw malformed("no end");
  const after = readInt64(header["after"]);
  return { kind, log, after, commit: readInt64(header["commit"]), part, last };
}
