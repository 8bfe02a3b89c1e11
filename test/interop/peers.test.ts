/**
 * The reference peers themselves: they are worth testing against only as long as they put on the wire
 * what the nodes in the field do, and can sync with each other without any node of ours.
 */
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { available, Fleet, type Member, settled, TEST_MS_MAX, until } from "./support/fleet.ts";
import { normalised, readRecording, recordedNode, recordScript } from "./support/script.ts";

setDefaultTimeout(TEST_MS_MAX);

describe.each(["go", "node"] as const)("the %s peer", (make) => {
  test.skipIf(!available(make))("sends what the recorded node of its make sent", async () => {
    await using fleet = new Fleet();
    const { member, peer } = await recordedNode(fleet, make);
    const seen = await recordScript(member, peer);
    const wanted = readRecording(`recordings/${make}.jsonl`);
    expect(normalised(seen)).toEqual(normalised(wanted));
    for (const [i, { headers }] of seen.entries()) {
      expect(headers).toMatchObject(wanted[i]?.headers ?? {});
    }
  });

  test.skipIf(!available(make, "hub"))("is forwarded by the hub as recorded", async () => {
    await using fleet = new Fleet();
    const peer = fleet.recorder();
    const hub = await fleet.node("hub", [peer]);
    const member = await fleet.node(make, [hub]);
    const seen = await recordScript(member, peer);
    const wanted = readRecording(`recordings/${make}-through-hub.jsonl`);
    const nodeId = (body: string) =>
      body.replaceAll(`"node_id":"${member.id}"`, '"node_id":"recorded"');
    expect(normalised(seen.map((r) => ({ ...r, body: nodeId(r.body) })))).toEqual(
      normalised(wanted),
    );
    for (const { headers } of seen) {
      expect([headers["x-node-id"], headers["x-node-url"]]).toEqual([hub.id, hub.url]);
    }
  });
});

describe.each([
  ["go", "node"],
  ["go", "go"],
  ["node", "node"],
] as const)("%s and %s without ours", (left, right) => {
  test.skipIf(!available(left, right))("hold the same rows after writes on both", async () => {
    await using fleet = new Fleet();
    const [a, b] = (await fleet.mesh(left, right)) as [Member, Member];
    const kept = await a.create("kept", 1);
    const doomed = await b.create("doomed", 2);
    await settled([a, b]);
    await Promise.all([b.update(kept, "edited", 3), a.remove(doomed)]);
    await Promise.all([a.createMany(500), b.createMany(500)]);
    expect(await settled([a, b])).toHaveLength(1_001);
    expect((await a.item(kept))?.name).toBe("edited");
    expect(await b.item(doomed)).toBeUndefined();
  });
});

describe.skipIf(!available("hub", "go", "node"))("the hub", () => {
  test("forwards to everybody else, and back to a sender that does not say who it is", async () => {
    await using fleet = new Fleet();
    const [go, node, hub] = [fleet.declare("go"), fleet.declare("node"), fleet.declare("hub")];
    const back = fleet.tap(go);
    hub.peers = [back.url, node.url];
    [go.peers, node.peers] = [[hub.url], [hub.url]];
    await Promise.all([hub.start(), go.start(), node.start()]);
    const id = await go.create("through the hub", 1);
    await until(
      "the row on the node peer",
      async () => (await node.item(id))?.name === "through the hub",
    );
    await until("the echo", () => back.changes.some((change) => change.row?.["id"] === id));
    await settled([go, node, hub]);
  });

  test("keeps what it acknowledged while its peers are down and it is killed", async () => {
    await using fleet = new Fleet();
    const [go, node, hub] = [fleet.declare("go"), fleet.declare("node"), fleet.declare("hub")];
    hub.peers = [node.url];
    go.peers = [hub.url];
    await Promise.all([hub.start(), go.start()]);
    await go.createMany(50);
    await until("acknowledged", async () => (await go.health()).pending_changes === 0);
    await hub.restart();
    await node.start();
    expect(await settled([go, node, hub])).toHaveLength(50);
  });
});
