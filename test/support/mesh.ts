/**
 * A few nodes of ours that send each other everything they log, in any order, any grouping and any
 * number of times: what a mesh may do to changes, without the network.
 */
import { parseBatch } from "../../lib/protocol/batch.ts";
import type { TestNode } from "./receive-fixture.ts";
import type { Seeded } from "./seeded.ts";

interface Member {
  readonly node: TestNode;
  /** Changes that wait for this node, with who sent them. */
  readonly mailbox: { readonly from: number; readonly change: string }[];
  collectedThrough: number;
}

export class Mesh {
  readonly members: readonly Member[];
  readonly #random: Seeded;
  /** Probability that a delivered change stays in the mailbox, to come again. */
  readonly #repeats: number;

  constructor(nodes: readonly TestNode[], random: Seeded, repeats = 0.2) {
    this.members = nodes.map((node) => ({ node, mailbox: [], collectedThrough: 0 }));
    this.#random = random;
    this.#repeats = repeats;
  }

  get nodes(): readonly TestNode[] {
    return this.members.map(({ node }) => node);
  }

  get isQuiet(): boolean {
    return this.members.every(({ mailbox }) => mailbox.length === 0);
  }

  /** Puts what this node logged since into everybody else's mailbox. */
  collect(from: number): void {
    const sender = this.members[from]!;
    const batch = sender.node.batchAfter(sender.collectedThrough);
    if (!batch) return;
    sender.collectedThrough = batch.through;
    const changes = parseBatch(batch.body).changes.map((change) => change.source());
    for (const [to, member] of this.members.entries()) {
      if (to !== from) member.mailbox.push(...changes.map((change) => ({ from, change })));
    }
    this.collect(from);
  }

  /** Every peer has acknowledged everything: the log is empty, as after pruning. */
  prune(at: number): void {
    this.collect(at);
    this.members[at]!.node.db.run("DELETE FROM _changes");
  }

  /** A few of the waiting changes of this node, in any order. */
  async deliverSome(to: number, most = 4): Promise<void> {
    const { node, mailbox } = this.members[to]!;
    if (mailbox.length === 0) return;
    const count = 1 + this.#random.below(most);
    const from = this.#random.pick(mailbox).from;
    const chosen = this.#random
      .shuffled(mailbox.filter((each) => each.from === from))
      .slice(0, count);
    for (const each of chosen) {
      if (!this.#random.chance(this.#repeats)) mailbox.splice(mailbox.indexOf(each), 1);
    }
    await node.sync(
      chosen.map(({ change }) => change),
      { from: `node-${from}`, identity: { db: this.members[from]!.node.store.dbId } },
    );
    this.collect(to);
  }

  /** Until nothing is left to say. */
  async deliverAll(): Promise<void> {
    for (let rounds = 0; !this.isQuiet; rounds++) {
      if (rounds > 10_000) throw new Error("the mesh does not come to rest");
      const waiting = this.members.flatMap(({ mailbox }, at) => (mailbox.length > 0 ? [at] : []));
      await this.deliverSome(this.#random.pick(waiting), 8);
    }
  }

  async close(): Promise<void> {
    for (const { node } of this.members) await node.close();
  }
}
