import { describe, expect, test } from "bun:test";
import type { PeerHealth } from "../../lib/protocol/peer.ts";
import { type HeardHealth, isEveryoneCaughtUp, repeatsEndBefore } from "../../lib/store/quiet.ts";

const NOW_MS = 1_800_000_000_000;
const DAY_MS = 24 * 3_600_000;

function heard(health: Partial<PeerHealth>, atMs = NOW_MS - 1_000): HeardHealth {
  const none = { identity: undefined, nodeId: "n", itemCount: 1, pendingChanges: 0, hub: false };
  return { health: { url: "http://a", ...none, ...health }, atMs };
}

const HUB = { hub: true, pendingChanges: undefined };
const OURS = { identity: { db: "aa00aa00" }, pendingChanges: 7 };

describe("repeats end", () => {
  test.each<[why: string, heard: HeardHealth[], endsBefore: number | undefined]>([
    ["when the foreign peer has nothing left, for what is older", [heard({})], NOW_MS - 1_000],
    ["not while it has", [heard({}), heard({ pendingChanges: 1 })], undefined],
    ["not while it cannot say", [heard({ pendingChanges: undefined })], undefined],
    ["as of the peer that was asked longest ago", [heard({}), heard({}, 5)], 5],
    ["behind a hub after a day", [heard(HUB)], NOW_MS - 1_000 - DAY_MS],
    [
      "behind a hub not while a peer beside it has some",
      [heard(HUB), heard({ pendingChanges: 2 })],
      undefined,
    ],
    ["after a day where foreign nodes only send", [heard(OURS)], NOW_MS - DAY_MS],
    ["whatever ours still have to send", [heard({}), heard(OURS)], NOW_MS - 1_000],
  ])("%s", (_, peers, endsBefore) => {
    expect(repeatsEndBefore(peers, NOW_MS)).toBe(endsBefore);
  });
});

describe("everyone has everything", () => {
  const peer = { url: "http://a", pending: 0 };
  test.each<
    [
      why: string,
      isSo: boolean,
      last: HeardHealth | undefined,
      pending: number,
      rest: number | undefined,
    ]
  >([
    ["when the peer's log is empty", true, heard({}), 0, undefined],
    ["not while we have something for it", false, heard({}), 1, undefined],
    ["not before it was asked", false, undefined, 0, undefined],
    ["not while it may have something for us", false, heard(OURS), 0, undefined],
    ["when what it has is for others", true, heard(OURS), 0, 0],
    ["not when what it has is for us", false, heard(OURS), 0, 3],
    [
      "not when it was last heard of two minutes ago",
      false,
      heard({}, NOW_MS - 120_001),
      0,
      undefined,
    ],
    ["behind a hub, which cannot say more", true, heard(HUB), 0, undefined],
  ])("%s", (_, isSo, last, pending, rest) => {
    const peers = new Map(last === undefined ? [] : [[peer.url, last]]);
    const restOf = new Map(rest === undefined ? [] : [["aa00aa00", rest]]);
    expect(isEveryoneCaughtUp([{ ...peer, pending }], peers, restOf, NOW_MS)).toBe(isSo);
  });
});
