/**
 * Takes one POST /sync from its bytes to its answer: parse, apply in parts, mark, acknowledge.
 *
 * A batch takes several transactions, so that a local write waits at most a few milliseconds; the ack
 * and the sender's mark come with the last. A batch that is cut short is sent again and harmless (A3).
 */
import { RequestError } from "../base/errors.ts";
import {
  BatchError,
  isObject,
  member,
  parseBatch,
  type ReceivedBatch,
  type ReceivedChange,
} from "../protocol/batch.ts";
import type { Identity, Mark } from "../protocol/identity.ts";
import type { ApplyTally, Guilty, Sender } from "./apply.ts";
import type { Origin } from "./healing.ts";
import type { Store } from "./store.ts";
import type { WriteTransaction } from "./write-queue.ts";

export interface SyncRequest {
  readonly body: Uint8Array;
  /** X-Node-Id. */
  readonly nodeId: string | undefined;
  /** X-Node-Url of a sender without our header: a hub's mark on what it forwards. */
  readonly nodeUrl: string | undefined;
  readonly identity: Identity | undefined;
}

export interface SyncAnswer {
  readonly applied: number;
  readonly ack: number;
  /** With `last=`, the mark as it was before this batch. */
  readonly identity: Identity;
}

/** Between two looks at whether the transaction has become long; about a millisecond. */
const SLICE_CHANGES = 500;
/** Bodies held at once; above it a sender is asked to come back, instead of filling the memory. */
const BODIES_BYTES_MAX = 256 * 1024 * 1024;
const BODIES_MAX = 64;

export class Receiver {
  readonly #store: Store;
  readonly #heard: (identity: Identity | undefined) => void;
  #bodies = 0;
  #bodyBytes = 0;
  #hubChanges = 0;

  /** `heard` is told of every batch that was committed. */
  constructor(store: Store, heard: (identity: Identity | undefined) => void) {
    this.#store = store;
    this.#heard = heard;
  }

  async receive(request: SyncRequest): Promise<SyncAnswer> {
    const isAlone = this.#bodies === 0;
    if (
      !isAlone &&
      (this.#bodies >= BODIES_MAX || this.#bodyBytes + request.body.length > BODIES_BYTES_MAX)
    ) {
      throw new RequestError(503, "too many batches at once", { "Retry-After": "1" });
    }
    this.#bodies++;
    this.#bodyBytes += request.body.length;
    try {
      return await this.#apply(request);
    } finally {
      this.#bodies--;
      this.#bodyBytes -= request.body.length;
    }
  }

  async #apply(request: SyncRequest): Promise<SyncAnswer> {
    const batch = parse(request.body);
    const sender = this.#sender(request, batch);
    const guilty: Guilty = new Map();
    let applied = 0;
    let before: Mark | undefined;
    let at = 0;
    do {
      const from = at;
      const part = await this.#run(guilty, (transaction) => {
        const tally: ApplyTally = { applied: 0, parked: 0, leftOut: 0, logged: 0 };
        if (!sender.isOurs) this.#store.healing.activate(transaction.nowMs);
        let to = from;
        do {
          const start = to;
          to = Math.min(start + SLICE_CHANGES, batch.changes.length);
          this.#store.applier.apply(
            batch.changes,
            start,
            to,
            sender,
            transaction.nowMs,
            tally,
            guilty,
          );
        } while (to < batch.changes.length && !transaction.isLong());
        if (to === batch.changes.length) {
          this.#store.applier.retryParked(transaction.nowMs, tally);
          before = this.#mark(request, batch);
        }
        transaction.logged(tally.logged);
        return { tally, to };
      });
      applied += part.tally.applied;
      if (part.tally.parked > 0 || this.#store.healing.isActive) this.#store.lookAgain();
      at = part.to;
    } while (at < batch.changes.length);
    this.#heard(request.identity);
    return {
      applied,
      ack: batch.batchId,
      identity: { db: this.#store.dbId, ...(before === undefined ? {} : { last: before }) },
    };
  }

  /** A trigger that rolls the transaction back names its change in `guilty`; then it goes without it. */
  async #run<T>(guilty: Guilty, work: (transaction: WriteTransaction) => T): Promise<T> {
    for (;;) {
      const known = guilty.size;
      try {
        return await this.#store.queue.run("apply", work);
      } catch (error) {
        if (guilty.size === known) throw error;
      }
    }
  }

  /** Returns the mark as it was; `retryParked` may have applied parts of a batch that is repeated. */
  #mark(request: SyncRequest, batch: ReceivedBatch): Mark | undefined {
    if (request.identity === undefined) return undefined;
    const { db } = request.identity;
    const before = this.#store.peers.mark(db);
    const last = batch.changes.at(-1);
    if (last !== undefined) {
      this.#store.peers.setMark(db, { batchId: batch.batchId, hash: hashChange(last) });
    }
    return before;
  }

  #sender(request: SyncRequest, batch: ReceivedBatch): Sender {
    const name = request.nodeId ?? request.nodeUrl ?? "a node without a name";
    const isOurs = request.identity !== undefined;
    const isThroughHub = !isOurs && request.nodeUrl !== undefined;
    const superseded = isOurs || isThroughHub ? undefined : supersededIn(batch);
    const own: Origin = { name: isOurs ? request.identity!.db : `${name}`, isForeign: !isOurs };
    return {
      name,
      ...(superseded === undefined ? {} : { superseded }),
      isOurs,
      originOf: () =>
        isThroughHub ? { name: `hub ${name} ${this.#hubChanges++}`, isForeign: true } : own,
    };
  }
}

function parse(body: Uint8Array): ReceivedBatch {
  try {
    return parseBatch(body);
  } catch (error) {
    if (error instanceof BatchError) throw new RequestError(400, error.message);
    throw error;
  }
}

/**
 * Changes of a foreign node's own batch that a later one of the same row replaced without a new stamp:
 * what their users write twice within a millisecond, or without touching updated_at. Taken one by one
 * they would tie, and the content, not the order they were made in, would decide. Within one batch the
 * order is known; across batches it is not, and there the content decides for every node alike.
 */
export function supersededIn(batch: ReceivedBatch): ReadonlySet<number> {
  const superseded = new Set<number>();
  const lastByRow = new Map<string, { index: number; version: unknown; columns: number }>();
  for (const [index, { value }] of batch.changes.entries()) {
    if (!isObject(value)) continue;
    const row = member(value, "row");
    const op = member(value, "op");
    if (!isObject(row) || (op !== "INSERT" && op !== "UPDATE" && op !== "DELETE")) continue;
    const version = member(row, "updated_at");
    // What will be parked replaces nothing.
    const isWhole = Object.values(row).every((cell) => typeof cell !== "object" || cell === null);
    if (!Number.isSafeInteger(version) || !isWhole) continue;
    const key = JSON.stringify([member(value, "table") ?? null, member(row, "id") ?? null]);
    const before = lastByRow.get(key);
    const columns = Object.keys(row).length;
    if (before && before.version === version && before.columns <= columns) {
      superseded.add(before.index);
    }
    lastByRow.set(key, { index, version, columns });
  }
  return superseded;
}

/**
 * A short hash that tells two changes of one number apart: sender and receiver make it from what both
 * have, the operation, the table, the id and the version.
 */
export function hashChange(change: ReceivedChange): string {
  const { value } = change;
  if (!isObject(value)) return "0";
  const row = member(value, "row");
  const own = (name: string) => (isObject(row) ? (member(row, name) ?? null) : null);
  const id = value["op"] === "DELETE" ? (member(value, "old_id") ?? own("id")) : own("id");
  return shortHash([
    member(value, "op") ?? null,
    member(value, "table") ?? null,
    id,
    own("updated_at"),
  ]);
}

export function shortHash(parts: readonly unknown[]): string {
  return new Bun.CryptoHasher("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, 12);
}
