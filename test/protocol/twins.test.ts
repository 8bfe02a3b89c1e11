import { expect, test } from "bun:test";
import type { Identity } from "../../lib/protocol/identity.ts";
import type { PeerHealth } from "../../lib/protocol/peer.ts";
import { relationOf, type Self, twinWarnings } from "../../lib/protocol/twins.ts";

const SELF: Self = { nodeId: "a", db: "aa", run: "01" };

function peer(name: string, nodeId: string | undefined, identity?: Identity): PeerHealth {
  return {
    url: `http://${name}`,
    identity,
    nodeId,
    itemCount: 0,
    pendingChanges: 0,
    hub: false,
  };
}

test.each<[PeerHealth, string]>([
  [peer("x", "a", { db: "aa", run: "01" }), "self"],
  [peer("x", "a", { db: "aa", run: "02" }), "copy"],
  [peer("x", "a", { db: "bb", run: "01" }), "other"],
  [peer("x", "a"), "other"],
  // An older node does not say it: then nothing is claimed.
  [peer("x", "a", { db: "aa" }), "self"],
])("%j is to this node: %s", (health, relation) => {
  expect(relationOf(SELF, health)).toBe(relation as never);
});

test("without a run of its own a node takes a copy for itself", () => {
  const copy = peer("x", "a", { db: "aa", run: "02" });
  expect(relationOf({ ...SELF, run: undefined }, copy)).toBe("self");
});

test.each<[string, PeerHealth[], RegExp[]]>([
  ["nothing of peers that are who they seem", [peer("x", "x", { db: "bb" }), peer("y", "y")], []],
  ["itself", [peer("x", "a", { db: "aa", run: "01" })], [/^the peer http:\/\/x is this very node/]],
  [
    "itself under two addresses, once each",
    [peer("x", "a", { db: "aa", run: "01" }), peer("y", "a", { db: "aa", run: "01" })],
    [/x is this very node/, /y is this very node/],
  ],
  ["a copy of its file", [peer("x", "a", { db: "aa", run: "02" })], [/x runs on a copy of this/]],
  ["a namesake", [peer("x", "a", { db: "bb", run: "02" })], [/x has the same --id as this node/]],
  ["a foreign namesake", [peer("x", "a")], [/x has the same --id as this node/]],
  [
    "one node under two addresses",
    [peer("x", "x", { db: "bb", run: "02" }), peer("y", "x", { db: "bb", run: "02" })],
    [/x and http:\/\/y are one node under two addresses/],
  ],
  [
    "copies of one file",
    [peer("x", "x", { db: "bb", run: "02" }), peer("y", "x", { db: "bb", run: "03" })],
    [/x and http:\/\/y run on copies of one file/],
  ],
  [
    "two peers of one name",
    [peer("x", "x", { db: "bb", run: "02" }), peer("y", "x", { db: "cc", run: "03" })],
    [/x and http:\/\/y have the same --id/],
  ],
  [
    "one of ours and a foreign one of one name",
    [peer("x", "x", { db: "bb" }), peer("y", "x")],
    [/have the same --id/],
  ],
  [
    "foreign ones of one name, of which less is known",
    [peer("x", "x"), peer("y", "x")],
    [/have the same id: they are one node under two addresses, or two/],
  ],
  ["nothing of nodes without a name", [peer("x", undefined), peer("y", undefined)], []],
])("says %s", (_, peers, texts) => {
  const found = twinWarnings(SELF, peers);
  expect(found).toHaveLength(texts.length);
  for (const [at, text] of texts.entries()) expect(found[at]).toMatch(text);
});
