/**
 * What the main thread and the shipper's worker say to each other. Messages carry values, never a
 * promise that they are still current. The main thread owns everything that is written to the file;
 * the worker owns the links to the peers and only reads.
 */
import type { LogLevel } from "../base/log.ts";
import type { Mark } from "../protocol/identity.ts";
import type { PeerHealth, PeerStart } from "../protocol/peer.ts";

/** Fixed for the life of a worker: with other peers another one is started. */
export interface ShipperConfig {
  readonly dbPath: string;
  readonly nodeId: string;
  readonly dbId: string;
  /** Our address as others see it (`--url`), sent as X-Node-Url. */
  readonly nodeUrl: string | undefined;
  readonly batchChangesMax: number;
  readonly batchBytesMax: number;
  readonly requestTimeoutMs: number;
  /** Whether HTTP_PROXY and friends are used to reach peers (`--use-proxy`). */
  readonly useProxy: boolean;
  readonly settledThrough: number;
  /** Whether the log holds entries for one peer alone (a fill). */
  readonly targeted?: boolean;
  readonly peers: readonly PeerStart[];
}

/** From the main thread, in order; `start` comes first and once. */
export type ToShipper =
  | { readonly kind: "start"; readonly config: ShipperConfig }
  /**
   * A commit settled the log up to this change id; nothing past it may be read. `rewritten` says that
   * entries at or below it were changed (a column was renamed): what was read ahead is read again.
   */
  | {
      readonly kind: "settled";
      readonly through: number;
      readonly rewritten?: boolean;
      readonly targeted?: boolean;
    }
  /** Read GET /health of these peers now (all of them when absent). */
  | { readonly kind: "read-health"; readonly peers?: readonly string[] }
  /** It is decided how this peer goes on: ship to it. */
  | { readonly kind: "release"; readonly peer: string }
  /** Ship until nothing waits, then answer `drained`; give up `withinMs` from now. */
  | { readonly kind: "drain"; readonly withinMs: number }
  | { readonly kind: "stop" };

/** Changes that this peer will never take, for the dead letters. */
export interface Refusal {
  /** Change ids of the log, ascending. */
  readonly changeIds: readonly number[];
  /** For people: what the peer said. */
  readonly reason: string;
  readonly attempts: number;
}

/** From the worker, in order; nothing comes after `stopped`. */
export type FromShipper =
  | { readonly kind: "ready" }
  /** The watermark of a peer moved. Persist it, with the refusals, in one transaction; then prune. */
  | {
      readonly kind: "moved";
      readonly peer: string;
      /** Never below an earlier one; the same as before when a change was taken out of turn. */
      readonly through: number;
      /** What the peer is, as far as its answer told. */
      readonly make?: PeerStatus["make"];
      /** The file that acknowledged, where it is one of ours. */
      readonly dbId?: string | undefined;
      /** The largest batch id that the peer acknowledged so far, when it just acknowledged one. */
      readonly ackedBatchId?: number;
      readonly refusal?: Refusal;
    }
  | { readonly kind: "status"; readonly peers: readonly PeerStatus[] }
  | { readonly kind: "peer-health"; readonly health: PeerHealth }
  /** A peer of ours committed less, or more, of this file's batches than it acknowledged to it. */
  | {
      readonly kind: "mark-differs";
      readonly peer: string;
      /** The file that answered. */
      readonly db: string;
      /** The last batch id acknowledged when the request was sent. */
      readonly prev: number;
      readonly last: Mark;
    }
  /** A peer of ours once committed a batch that what it got from this file later does not continue. */
  | {
      readonly kind: "mark-doubted";
      readonly peer: string;
      readonly db: string;
      readonly mark: Mark;
    }
  | {
      readonly kind: "log";
      readonly level: LogLevel;
      readonly message: string;
      readonly fields: Readonly<Record<string, unknown>>;
    }
  /** `pending` is what the peer that is furthest behind still lacks. */
  | { readonly kind: "drained"; readonly pending: number }
  | { readonly kind: "stopped" };

/** The kinds of PeerLink, as /health shows them; a retry does not hide what it is a retry of. */
export type PeerStateName =
  | "idle"
  | "sending"
  | "waiting"
  | "bisecting"
  | "refusing"
  | "not-admitted";

/** One peer as /health shows it. Sent whenever something of it changed, at most every 100 ms. */
export interface PeerStatus {
  readonly url: string;
  readonly state: PeerStateName;
  readonly nodeId: string | undefined;
  /** Undefined until the peer answered once: ours send the identity header, foreign ones do not. */
  readonly make: "ours" | "foreign" | undefined;
  readonly dbId: string | undefined;
  readonly lastAcked: number;
  /** Settled changes past the watermark. */
  readonly pending: number;
  readonly lastError: string | undefined;
  /** Wall clock, ms, of the last reply of any kind. */
  readonly lastContactMs: number | undefined;
  /** The peer's clock minus ours, ms, from the `Date` of its replies; whole seconds at best. */
  readonly clockOffsetMs: number | undefined;
}

export type { PeerHealth, PeerStart };
