/**
 * How the node is, for people, other nodes and orchestrators. `/health` answers 200 as long as the
 * process can answer at all (existing nodes read it so); `/health/ready` turns to 503 when requests
 * should go elsewhere.
 */
import { Hono } from "hono";
import {
  formatIdentity,
  IDENTITY_HEADER,
  type Identity,
  parseIdentity,
} from "../protocol/identity.ts";
import type { PeerStatus } from "../shipper/messages.ts";
import type { FillProgress } from "../store/filler.ts";
import type { Unqualified } from "../store/schema.ts";
import { JSON_TYPE } from "./errors.ts";

/** What comparing with neighbours found. */
export interface VerifiedReport {
  /** Wall clock, ms. */
  readonly atMs: number;
  /** How many neighbours. */
  readonly neighbours: number;
  /** Rows that were not the same. */
  readonly differing: number;
  /** Those of them that are now. */
  readonly repaired: number;
  /** All that were repaired since the node started. */
  readonly repairedInAll: number;
  /** Tables and columns that not everyone has, for people; they are not compared. */
  readonly notCompared: readonly string[];
}

/** A follower that gave its name. */
export interface FollowerReport {
  readonly name: string;
  /** Rows of the log that it had not asked for the end of, nor was sent. */
  readonly behind: number;
  readonly isConnected: boolean;
  /** Wall clock, ms. */
  readonly seenMs: number;
}

/** How a node stands to the source that it follows into its mesh. */
export interface FollowingReport {
  readonly source: string;
  readonly state: string;
  /** The log and the position in it; undefined before the first copy. */
  readonly log: string | undefined;
  readonly commit: string | undefined;
  /** Applied since the node started. */
  readonly transactions: number;
  readonly copies: number;
  /** What the source has that is not here, and how old what is here is; see lib/cdc/follower.ts. */
  readonly lagTransactions: number | undefined;
  readonly lagMs: number | undefined;
  readonly lastError: string | undefined;
  /** Tables that are not taken in, and what else a person should know. */
  readonly remarks: readonly string[];
  readonly refused: readonly {
    readonly table: string;
    readonly rows: number;
    readonly reason: string;
  }[];
}

/** What /health says; `healthJson` gives it the names of PROTOCOL.md, "REST and health". */
export interface HealthReport {
  /** False when capture is broken, the disk is full or a table was lost; never for a peer that is down. */
  readonly ok: boolean;
  /** Why it is not, for people. */
  readonly reasons: readonly string[];
  /** What should be looked at and does not make the node unhealthy. */
  readonly warnings: readonly string[];
  readonly nodeId: string;
  readonly version: string;
  /** Rows of all synced tables. */
  readonly itemCount: number;
  /** Rows of `_changes`. */
  readonly pendingChanges: number;
  /** The newest change of the log that peers may get; a peer has all when it acknowledged this one. */
  readonly lastChangeId: number;
  /** The newest of the log; above the one before it lies what other programs wrote and nobody looked at yet. */
  readonly newestChangeId: number;
  /** Rows of `_dead_letter`. */
  readonly deadLetter: number;
  /** Those of them that were received. */
  readonly parked: number;
  readonly peers: readonly PeerStatus[];
  /** The last comparison with neighbours of ours; undefined until there was one. */
  readonly verified: VerifiedReport | undefined;
  /** Peers that get everything from the beginning just now. */
  readonly fills: readonly FillProgress[];
  readonly tables: {
    readonly synced: readonly string[];
    readonly notSynced: readonly Unqualified[];
  };
  /** Named followers of the node's change log; absent where it keeps none. */
  readonly followers?: readonly FollowerReport[];
  /** Absent where it follows nothing. */
  readonly following?: FollowingReport;
  readonly sqliteVersion: string;
  readonly uptimeS: number;
}

/** Asked at every request; both answer from what the node knows, without asking peers. */
export interface HealthSource {
  health(): HealthReport;
  /** With `last=`, the mark of that file, where a peer of ours asks. */
  identity(askedByDb: string | undefined): Identity;
}

/** Open to everyone: orchestrators and existing nodes send no token. */
export function healthRoutes(source: HealthSource): Hono {
  return new Hono()
    .get("/health", (c) => {
      const askedByDb = parseIdentity(c.req.header(IDENTITY_HEADER))?.db;
      return new Response(JSON.stringify(healthJson(source.health())), {
        headers: { ...JSON_TYPE, [IDENTITY_HEADER]: formatIdentity(source.identity(askedByDb)) },
      });
    })
    .get("/health/ready", () => {
      const { ok, reasons } = source.health();
      return new Response(JSON.stringify({ ready: ok, reasons }), {
        status: ok ? 200 : 503,
        headers: JSON_TYPE,
      });
    });
}

/** The report with the names of the contract; what is not known is null. */
export function healthJson(report: HealthReport): Readonly<Record<string, unknown>> {
  return {
    ok: report.ok,
    node_id: report.nodeId,
    version: report.version,
    item_count: report.itemCount,
    pending_changes: report.pendingChanges,
    last_change_id: report.lastChangeId,
    newest_change_id: report.newestChangeId,
    dead_letter: report.deadLetter,
    parked: report.parked,
    peers: report.peers.map((peer) => peerJson(peer, report.fills)),
    tables: { synced: report.tables.synced, not_synced: report.tables.notSynced },
    verified: report.verified === undefined ? null : verifiedJson(report.verified),
    ...(report.followers === undefined ? {} : { followers: report.followers.map(followerJson) }),
    ...(report.following === undefined ? {} : { following: followingJson(report.following) }),
    reasons: report.reasons,
    warnings: report.warnings,
    sqlite_version: report.sqliteVersion,
    uptime_s: report.uptimeS,
  };
}

function followingJson(report: FollowingReport): Readonly<Record<string, unknown>> {
  const { source, state, transactions, copies, remarks, refused } = report;
  return {
    source,
    state,
    log: report.log ?? null,
    commit: report.commit ?? null,
    transactions,
    copies,
    lag_transactions: report.lagTransactions ?? null,
    lag_ms: report.lagMs ?? null,
    last_error: report.lastError ?? null,
    remarks,
    refused,
  };
}

function followerJson(report: FollowerReport): Readonly<Record<string, unknown>> {
  const { name, behind, seenMs, isConnected } = report;
  return { name, behind, seen: seenMs, connected: isConnected };
}

function verifiedJson(verified: VerifiedReport): Readonly<Record<string, unknown>> {
  return {
    at: verified.atMs,
    neighbours: verified.neighbours,
    differing: verified.differing,
    repaired: verified.repaired,
    repaired_in_all: verified.repairedInAll,
    not_compared: verified.notCompared,
  };
}

function peerJson(
  peer: PeerStatus,
  fills: readonly FillProgress[],
): Readonly<Record<string, unknown>> {
  const fill = fills.find(({ url }) => url === peer.url);
  return {
    url: peer.url,
    // The name that existing nodes have for it.
    peer_url: peer.url,
    node_id: peer.nodeId ?? null,
    make: peer.make ?? null,
    state: peer.state,
    last_acked: peer.lastAcked,
    pending: peer.pending,
    last_error: peer.lastError ?? null,
    last_contact: peer.lastContactMs ?? null,
    clock_offset_ms: peer.clockOffsetMs ?? null,
    filling: fill === undefined ? null : { reason: fill.reason, changes: fill.entries },
  };
}
