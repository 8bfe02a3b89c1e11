/**
 * Nodes that are not who they seem: this very node among its own peers, one peer under two addresses,
 * two nodes with one --id, two processes on copies of one file. The first two only cost traffic; nodes of
 * one --id cannot be told apart by people, and those on copies not even by their peers. Each is said as
 * long as it is so.
 */
import type { PeerHealth } from "./peer.ts";

/** What this node would see if it looked at itself. */
export interface Self {
  readonly nodeId: string;
  /** Of the file. */
  readonly db: string;
  /** Of the process; undefined where that cannot be known. */
  readonly run: string | undefined;
}

/** What a peer that answered is to this node; a copy of the file has its db id, and another process. */
export function relationOf(
  self: Self,
  { identity }: Pick<PeerHealth, "identity">,
): "self" | "copy" | "other" {
  if (identity?.db !== self.db) return "other";
  const isCopy = self.run !== undefined && identity.run !== undefined && identity.run !== self.run;
  return isCopy ? "copy" : "self";
}

/** A sentence for each, for people. */
export function twinWarnings(self: Self, peers: readonly PeerHealth[]): string[] {
  const others = peers.filter((peer) => relationOf(self, peer) === "other");
  return [
    ...peers.flatMap((peer) => ownTwin(self, peer) ?? []),
    ...others.flatMap((peer, at) =>
      others.slice(at + 1).flatMap((other) => pairOf(peer, other) ?? []),
    ),
  ];
}

function ownTwin(self: Self, peer: PeerHealth): string | undefined {
  const { url, nodeId } = peer;
  switch (relationOf(self, peer)) {
    case "self":
      return `the peer ${url} is this very node: remove it from the peers`;
    case "copy":
      return `the peer ${url} runs on a copy of this node's file under the same --id: give each its own`;
    case "other":
      return nodeId === self.nodeId
        ? `the peer ${url} has the same --id as this node: give each its own`
        : undefined;
  }
}

function pairOf(left: PeerHealth, right: PeerHealth): string | undefined {
  const both = `the peers ${left.url} and ${right.url}`;
  const oneNode = `${both} are one node under two addresses: remove one of them`;
  const [one, other] = [left.identity, right.identity];
  if (one !== undefined && one.db === other?.db) {
    return one.run === other.run
      ? oneNode
      : `${both} run on copies of one file under the same --id: give each its own`;
  }
  if (left.nodeId === undefined || left.nodeId !== right.nodeId) return undefined;
  // Of other makes nothing tells two nodes of one name from one node.
  return one === undefined && other === undefined
    ? `${both} have the same id: they are one node under two addresses, or two that need ids of their own`
    : `${both} have the same --id: give each its own`;
}
