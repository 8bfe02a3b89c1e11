/**
 * The body of a request, checked before anything is made of it: its kind, its size, its encoding.
 * Browsers send other kinds than application/json across sites without asking, so the check of the
 * kind is also what keeps web pages from writing to a node.
 */
import { RequestError } from "../base/errors.ts";
import { BATCH_BYTES_MAX } from "../protocol/limits.ts";
import { parseJson } from "../store/row-input.ts";

/** Below this a body is read at once: hundreds of them together are no weight. */
const SMALL_BYTES = 1024 * 1024;
/** Of larger bodies on their way in, all together; any one of them is let in when it is alone. */
const ROOM_BYTES = 512 * 1024 * 1024;
/** What nodes send each other has a part of it to itself: senders of more that stall hold up no mesh. */
const BATCHES_PART = 1 / 4;

/** Size and place of one node's bodies. */
export interface BodyReaderOptions {
  /** A body beyond it is a 413. */
  readonly bytesMax: number;
  readonly roomBytes?: number;
}

interface Waiting {
  readonly bytes: number;
  readonly enter: () => void;
}

class Room {
  readonly #bytes: number;
  readonly #waiting: Waiting[] = [];
  #taken = 0;

  constructor(bytes: number) {
    this.#bytes = bytes;
  }

  /** In the order they came, so that a large one is not passed for ever. */
  enter(bytes: number): Promise<void> {
    return new Promise((enter) => {
      this.#waiting.push({ bytes, enter });
      this.#letIn();
    });
  }

  leave(bytes: number): void {
    this.#taken -= bytes;
    this.#letIn();
  }

  #letIn(): void {
    for (;;) {
      const [next] = this.#waiting;
      if (next === undefined) return;
      if (this.#taken > 0 && this.#taken + next.bytes > this.#bytes) return;
      this.#waiting.shift();
      this.#taken += next.bytes;
      next.enter();
    }
  }
}

/**
 * Reads bodies: one per node, so that many large ones at once do not fill the memory. One that has to
 * wait stays with its sender: nothing is taken from a connection until its body is read.
 */
export class BodyReader {
  readonly #bytesMax: number;
  readonly #batches: Room;
  readonly #others: Room;

  constructor({ bytesMax, roomBytes = ROOM_BYTES }: BodyReaderOptions) {
    this.#bytesMax = bytesMax;
    this.#batches = new Room(roomBytes * BATCHES_PART);
    this.#others = new Room(roomBytes * (1 - BATCHES_PART));
  }

  #roomFor(bytes: number): Room {
    return bytes <= BATCH_BYTES_MAX ? this.#batches : this.#others;
  }

  /** Integers beyond 2^53 come as BigInt (`parseJson`). Throws a RequestError: 400, 413 or 415. */
  async json(request: Request, bytesMax = this.#bytesMax): Promise<unknown> {
    const body = await this.bytes(request, bytesMax);
    return parseJson(decode(body));
  }

  /** The bytes of a body that says it is JSON. No async function: each costs a request a turn more. */
  bytes(request: Request, bytesMax = this.#bytesMax): Promise<Uint8Array> {
    try {
      checkHead(request.headers, bytesMax);
    } catch (error) {
      return Promise.reject(error);
    }
    return this.#receive(request, bytesMax).catch((error) => {
      if (error instanceof RequestError) throw error;
      // The sender went away.
      throw new RequestError(400, "the body ended early");
    });
  }

  /** A length that was said has been checked. */
  #receive(request: Request, bytesMax: number): Promise<Uint8Array> {
    const length = request.headers.get("content-length");
    if (length === null) return this.#receiveChunks(request, bytesMax);
    const bytes = Number(length);
    return bytes <= SMALL_BYTES ? request.bytes() : this.#receiveLarge(request, bytes);
  }

  async #receiveLarge(request: Request, bytes: number): Promise<Uint8Array> {
    const room = this.#roomFor(bytes);
    await room.enter(bytes);
    try {
      return await request.bytes();
    } finally {
      room.leave(bytes);
    }
  }

  async #receiveChunks(request: Request, bytesMax: number): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    let bytes = 0;
    let room: Room | undefined;
    try {
      for await (const chunk of request.body ?? []) {
        bytes += chunk.length;
        // Leaving the loop cancels the rest.
        if (bytes > bytesMax) throw tooLarge(bytesMax);
        chunks.push(chunk);
        if (bytes <= SMALL_BYTES || room !== undefined) continue;
        // For all that may come: two that each waited for more would wait for each other.
        room = this.#roomFor(bytesMax);
        await room.enter(bytesMax);
      }
    } finally {
      room?.leave(bytesMax);
    }
    return Buffer.concat(chunks);
  }
}

function checkHead(headers: Headers, bytesMax: number): void {
  const type = headers.get("content-type");
  if (type !== "application/json" && !isJson(type)) throw unsupportedType(type);
  const encoding = headers.get("content-encoding");
  if (encoding !== null && encoding.toLowerCase() !== "identity") {
    throw new RequestError(
      415,
      `Content-Encoding ${encoding} is not understood; send the body as it is`,
      {
        "accept-encoding": "identity",
      },
    );
  }
  if (Number(headers.get("content-length")) > bytesMax) throw tooLarge(bytesMax);
}

const utf8 = new TextDecoder("utf-8", { fatal: true });

function decode(body: Uint8Array): string {
  try {
    return utf8.decode(body);
  } catch {
    throw new RequestError(400, "the body is not valid UTF-8");
  }
}

/** `application/json`, perhaps with `charset=utf-8` and other parameters. */
function isJson(type: string | null): boolean {
  const [kind, ...parameters] = (type ?? "")
    .toLowerCase()
    .split(";")
    .map((part) => part.trim());
  if (kind !== "application/json") return false;
  const charset = parameters.find((parameter) => parameter.startsWith("charset="));
  return charset === undefined || /^charset="?utf-?8"?$/.test(charset);
}

function unsupportedType(type: string | null): RequestError {
  const found = type === null ? "no Content-Type" : `Content-Type ${type.slice(0, 100)}`;
  return new RequestError(
    415,
    `expected JSON in UTF-8, found ${found}; send the header "Content-Type: application/json"`,
  );
}

function tooLarge(bytesMax: number): RequestError {
  return new RequestError(413, `the body is larger than ${bytesMax} bytes`);
}
