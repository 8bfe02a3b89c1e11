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
import { hashChange, type Identity, type Mark } from "../protocol/identity.ts";
import { type ApplyTally, emptyTally, Guilty, runWithout, type Sender } from "./apply-parts.ts";
import type { Origin } from "./healing.ts";
import { readChange } from "./read-change.ts";
import { nameKey } from "./sql.ts";
import type { Store } from "./store.ts";
import { NOTHING_SUPERSEDED, supersededIn } from "./superseded.ts";
import type { WriteTransaction } from "./write-queue.ts";

/** As http/sync-routes.ts has read it: the bytes have not been looked at. */
export interface SyncRequest {
  readonly body: Uint8Array;
  /** X-Node-Id. */
  readonly nodeId: string | undefined;
  /** X-Node-Url of a sender without our header: a hub's mark on what it forwards. */
  readonly nodeUrl: string | undefined;
  readonly identity: Identity | undefined;
}

/** `applied` and `ack` as PROTOCOL.md has them. */
export interface SyncAnswer {
  readonly applied: number;
  readonly ack: number;
  /** With `last=`, the mark as it was before this batch. */
  readonly identity: Identity;
}

/** Between two looks at whether the transaction has become long; about two milliseconds. */
const SLICE_CHANGES = 1_000;
/** Bodies held at once; above it a sender is asked to come back, instead of filling the memory. */
const BODIES_BYTES_MAX = 256 * 1024 * 1024;
const BODIES_MAX = 64;
/** Of what a sender calls itself; it is kept with every change of it that is parked. */
const NAME_LENGTH_MAX = 256;

/** One per node: it bounds the bodies held at once, and answers 503 beyond that. */
export class Receiver {
  readonly #store: Store;
  readonly #heard: (identity: Identity | undefined, nodeId: string | undefined) => void;
  #bodies = 0;
  #bodyBytes = 0;
  #hubChanges = 0;

  /** `heard` is told of every batch that was committed. */
  constructor(
    store: Store,
    heard: (identity: Identity | undefined, nodeId: string | undefined) => void,
  ) {
    this.#store = store;
    this.#heard = heard;
  }

  async receive(request: SyncRequest): Promise<SyncAnswer> {
    const { refusal } = this.#store.queue;
    if (refusal) throw refusal;
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
    const guilty = new Guilty();
    let applied = 0;
    let marks: Pick<Identity, "last" | "doubt"> = {};
    let at = 0;
    do {
      const from = at;
      const part = await runWithout(guilty, () =>
        this.#store.queue.run("apply", (transaction) => {
          this.#store.queue.noteOthers();
          const tally = emptyTally();
          const to = this.#applyPart(batch, from, sender, guilty, transaction, tally);
          if (to === batch.changes.length) {
            this.#store.applier.retryParked(transaction.nowMs, tally, guilty);
            marks = this.#mark(request, batch);
          }
          transaction.logged(tally.logged);
          return { tally, to };
        }),
      );
      applied += part.tally.applied;
      if (part.tally.parked > 0 || this.#store.healing.isActive) this.#store.lookAgain();
      at = part.to;
    } while (at < batch.changes.length);
    this.#heard(request.identity, request.nodeId);
    return {
      applied,
      ack: batch.batchId,
      identity: { db: this.#store.dbId, ...marks },
    };
  }

  /** As much as a transaction should take; returns how far it got. */
  #applyPart(
    batch: ReceivedBatch,
    from: number,
    sender: Sender,
    guilty: Guilty,
    transaction: WriteTransaction,
    tally: ApplyTally,
  ): number {
    const { nowMs } = transaction;
    const { changes } = batch;
    if (!sender.isOurs) this.#store.healing.activate(nowMs);
    let to = from;
    do {
      const start = to;
      to = Math.min(start + SLICE_CHANGES, changes.length);
      this.#store.applier.apply(start, to, { batch: changes, sender, nowMs, tally, guilty });
    } while (to < changes.length && !transaction.isLong());
    this.#store.applier.endPart();
    return to;
  }

  /** Returns the mark as it was, and one that the sender must know of besides. */
  #mark(request: SyncRequest, batch: ReceivedBatch): Pick<Identity, "last" | "doubt"> {
    if (request.identity === undefined) return {};
    const { db, prev = 0 } = request.identity;
    const { peers } = this.#store;
    const before = peers.mark(db);
    const last = batch.changes.at(-1);
    // This file lost what its sender takes for granted. The mark stays below that, whatever comes late or
    // twice, until the sender has seen it and starts over.
    const isLost = prev > before.batchId;
    if (last !== undefined && !isLost) {
      if (isDoubtful(before, request.identity, batch)) peers.keepDoubt(db, before);
      peers.setMark(db, { batchId: batch.batchId, hash: hashOf(last) });
    }
    const doubt = peers.doubt(db);
    return { last: before, ...(doubt === undefined ? {} : { doubt }) };
  }

  /** Whether it can be applied at all, be it too early now. */
  #isSound(change: ReceivedChange): boolean {
    const { survey } = this.#store;
    const read = readChange(change, { survey, nowMs: Number.POSITIVE_INFINITY, isOurs: false });
    return read.kind === "upsert" || read.kind === "delete";
  }

  #sender(request: SyncRequest, batch: ReceivedBatch): Sender {
    const name = (request.nodeId ?? request.nodeUrl ?? "a node without a name").slice(
      0,
      NAME_LENGTH_MAX,
    );
    const isOurs = request.identity !== undefined;
    const isThroughHub = !isOurs && request.nodeUrl !== undefined;
    const { openedMs } = this.#store;
    const own: Origin = { name: isOurs ? request.identity!.db : name, isForeign: !isOurs };
    return {
      name,
      isOurs,
      superseded:
        isOurs || isThroughHub
          ? NOTHING_SUPERSEDED
          : supersededIn(batch.changes, (at) => this.#isSound(batch.changes[at]!)),
      originOf: () =>
        isThroughHub
          ? { name: `hub ${name} ${openedMs}.${this.#hubChanges++}`, isForeign: true }
          : own,
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
 * Whether the sender, who does not know that this mark's batch was acknowledged, goes past it with a batch
 * that lacks the mark's change. Mostly it has gone on for good reasons, which its log tells; or it is a
 * restored one that gives out the same numbers again, and this mark is all that ever shows it.
 */
function isDoubtful(mark: Mark, { prev }: Identity, { batchId, changes }: ReceivedBatch): boolean {
  if (prev === undefined || prev >= mark.batchId || batchId < mark.batchId) return false;
  return changes.findLast((change) => hashOf(change) === mark.hash) === undefined;
}

/** The hash of a batch's last change, for the mark. */
function hashOf(change: ReceivedChange): string {
  const { value } = change;
  if (!isObject(value)) return "0";
  const row = member(value, "row");
  const own = (name: string) =>
    isObject(row)
      ? (Object.entries(row).find(([key]) => nameKey(key) === name)?.[1] ?? null)
      : null;
  const oldId = member(value, "old_id");
  const id = value["op"] === "DELETE" && typeof oldId === "string" ? oldId : own("id");
  return hashChange(member(value, "op"), member(value, "table"), id, own("updated_at"));
}
