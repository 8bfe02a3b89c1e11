import { describe, expect, test } from "bun:test";
import type { PeerHealth } from "../../lib/protocol/peer.ts";
import {
  Acknowledged,
  type HeardHealth,
  isEveryoneCaughtUp,
  repeatsEndBefore,
} from "../../lib/store/quiet.ts";

const NOW_MS = 1_800_000_000_000;
const DAY_MS = 24 * 3_600_000;

function heard(health: Partial<PeerHealth>, atMs = NOW_MS - 1_000): HeardHealth {
  const none = { identity: undefined, nodeId: "n", itemCount: 1, pendingChanges: 0, hub: false };
  return { health: { url: "http://a", ...none, ...health }, atMs, ackedMs: atMs };
}

const HUB = { hub: true, pendingChanges: undefined };
const OURS = { identity: { db: "aa00aa00" }, pendingChanges: 7 };

describe("repeats end", () => {
  test.each<[why: string, heard: HeardHealth[], endsBefore: number | undefined]>([
    ["when the foreign peer has nothing left, for what is older", [heard({})], NOW_MS - 1_000],
    ["not while it has", [heard({}), heard({ pendingChanges: 1 })], undefined],
    ["not while it cannot say", [heard({ pendingChanges: undefined })], undefined],
    ["as of the peer that was asked longest ago", [heard({}), heard({}, 5)], 5],
    ["not before it has what was written here", [{ ...heard({}), ackedMs: undefined }], undefined],
    ["as of what it has of that", [{ ...heard({}), ackedMs: 7 }], 7],
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

test("what a peer has acknowledged is known as of the last time it was heard before", () => {
  const acknowledged = new Acknowledged();
  const heard = (nowMs: number, through: number, lastAcked: number) =>
    acknowledged.heard({ lastAcked, pending: through - lastAcked }, through, nowMs);
  expect(acknowledged.heard(undefined, 5, 1)).toBeUndefined();
  expect(heard(10, 5, 5)).toBe(10);
  expect(heard(20, 8, 5)).toBe(10);
  expect(heard(30, 9, 7)).toBe(10);
  expect(heard(40, 12, 8)).toBe(20);
  expect(heard(50, 12, 12)).toBe(50);
  expect(heard(60, 14, 12)).toBe(50);
  // The clock was set back.
  expect(heard(15, 14, 13)).toBeUndefined();
  expect(heard(16, 20, 14)).toBe(15);
  // Its status is older than what was settled since.
  expect(acknowledged.heard({ lastAcked: 14, pending: 0 }, 21, 17)).toBe(16);
  for (let i = 0; i < 100; i++) heard(100 + i, 1_000 + i, 14);
  expect(heard(300, 2_000, 1_099)).toBe(199);
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
