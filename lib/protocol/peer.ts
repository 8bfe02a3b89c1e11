import type { Identity } from "./identity.ts";

/** Where shipping to one peer goes on. */
export interface PeerStart {
  /** Normalised base URL, without a trailing slash: `http://host:9002`. */
  readonly url: string;
  /** Highest change id this peer needs no more (acknowledged, or set aside as dead letters). */
  readonly watermark: number;
  /** Last batch id this peer acknowledged; 0 for none. Sent as `prev=`. */
  readonly prev: number;
  /** The file that acknowledged it, where that is known. */
  readonly dbId?: string | undefined;
  /** Nothing is shipped before it is decided whether it must be filled: its mark would no longer tell. */
  readonly isHeld?: boolean;
}

/** What GET /health of a peer answered. */
export interface PeerHealth {
  readonly url: string;
  readonly identity: Identity | undefined;
  readonly nodeId: string | undefined;
  readonly itemCount: number | undefined;
  readonly pendingChanges: number | undefined;
  /** A relay hub: what waits behind it cannot be known. */
  readonly hub: boolean;
}
