/**
 * The network between simulated machines: it delays, loses, repeats, reorders, cuts and answers in
 * place of the one that was asked. Bodies are bytes, and replies are status, headers and text, so that
 * the real parsers on both ends see what they would see on a socket.
 */
import type { NodeAnswer, NodeCall } from "../../lib/shipper/node-client.ts";
import type { RawReply } from "../../lib/shipper/transport.ts";
import type { Chance } from "./chance.ts";
import { EPOCH_MS, type World } from "./world.ts";

export interface WireRequest {
  readonly body: Uint8Array<ArrayBuffer>;
  readonly nodeId: string;
  readonly nodeUrl: string | undefined;
  /** The text of the X-Hook-Sync header. */
  readonly identity: string | undefined;
  /** Not on the wire: which of the sender's files it is of, see `fileOf`. */
  readonly file?: number;
}

export interface WireReply {
  readonly status: number;
  readonly text: string;
  readonly identity: string | undefined;
  readonly retryAfterMs?: number;
}

/** Anything with an address. `reset`: the process went away before it answered. */
export interface Machine {
  readonly url: string;
  /** It knows what it deleted: a copy of an old request may arrive any time later. */
  readonly remembersDeletes: boolean;
  readonly isUp: boolean;
  /** It takes any answer with status 200 for an acknowledgement. */
  readonly believesAll?: boolean;
  sync(request: WireRequest): Promise<WireReply | "reset">;
  /** `identity`: the X-Hook-Sync header of who asks. */
  health(identity: string | undefined): WireReply;
  /** Everything else that nodes of ours ask each other. */
  answer?(call: NodeCall): Promise<WireReply | "reset">;
}

export type Exchange =
  | {
      readonly kind: "replied";
      readonly reply: WireReply;
      readonly raw: RawReply;
      readonly serverTimeMs: number;
    }
  | { readonly kind: "failed"; readonly reason: string; readonly cutOff: boolean };

/** How likely each thing is to befall one request; 0 where a seed leaves it out. */
export interface NetworkFaults {
  /** Usual time of one way, ms. */
  readonly delayMs: number;
  /** A request or reply that takes far longer than usual. */
  readonly late: number;
  readonly lateMs: number;
  readonly loseRequest: number;
  readonly loseReply: number;
  readonly repeat: number;
  readonly cutReply: number;
  /** A proxy answers instead: 502, 503, 429 with Retry-After, 302, 404. */
  readonly proxyAnswers: number;
  /** The same, after the request went through. */
  readonly proxyAnswersLate: number;
  /** 200 with something that is no acknowledgement. */
  readonly portal: number;
  /** The wrong batch is acknowledged; never so often in a row that it would be believed. */
  readonly mismatch: number;
  /** A 400, 409 or 422 that the peer never sent; as above. */
  readonly refuse: number;
  readonly notAdmitted: number;
  /** Bodies longer than this get a 413 from a proxy. */
  readonly bodyBytesMax: number | undefined;
}

export const QUIET_NETWORK: NetworkFaults = {
  delayMs: 5,
  late: 0,
  lateMs: 0,
  loseRequest: 0,
  loseReply: 0,
  repeat: 0,
  cutReply: 0,
  proxyAnswers: 0,
  proxyAnswersLate: 0,
  portal: 0,
  mismatch: 0,
  refuse: 0,
  notAdmitted: 0,
  bodyBytesMax: undefined,
};

/** Five in a row would be believed (PROTOCOL.md, the failure table): then changes are set aside. */
const UNBELIEVED_IN_A_ROW_MAX = 3;
/** A request that vanished is given up by whoever has no time limit of its own. */
const RESET_MS = 10_000;

export type FaultCounts = Map<string, number>;

interface Wall {
  readonly from: string;
  readonly to: string;
  /** `refused` at once, or `silent` until the sender gives up. */
  readonly kind: "refused" | "silent";
}

type Undelivered = { reason: string; cutOff: boolean; afterMs: number };

export class Network {
  readonly #world: World;
  readonly #chance: Chance;
  readonly #machines = new Map<string, Machine>();
  readonly #counts: FaultCounts;
  readonly #walls = new Set<Wall>();
  /** Untrue refusals in a row, by link. */
  readonly #untrue = new Map<string, number>();
  /** The largest batch that a machine really acknowledged, by link. */
  readonly #acknowledged = new Map<string, number>();
  faults: NetworkFaults;
  /** Machines behind a slow line: how much longer every way to and from them takes, ms. */
  readonly slowMs = new Map<string, number>();
  /** How often each machine's process has ended, and how often its file was changed for another. */
  readonly #ends = new Map<string, number>();
  readonly #files = new Map<string, number>();
  /** Requests that somebody waits for, and copies that are still on their way. */
  inFlight = 0;
  /** Batches delivered to a machine, and when the last one was. */
  deliveries = 0;
  lastDeliveryMs = 0;

  constructor(world: World, chance: Chance, faults: NetworkFaults, counts: FaultCounts) {
    this.#world = world;
    this.#chance = chance;
    this.faults = faults;
    this.#counts = counts;
  }

  add(machine: Machine): void {
    this.#machines.set(machine.url, machine);
  }

  /** The machine answers at this address, too. */
  addAlias(url: string, machine: Machine): void {
    this.#machines.set(url, machine);
  }

  /** Nothing gets from one to the other until the returned function is called. */
  separate(from: string, to: string, kind: Wall["kind"]): () => void {
    const wall: Wall = { from, to, kind };
    this.#walls.add(wall);
    this.#count(`partition (${kind})`);
    return () => this.#walls.delete(wall);
  }

  /** The process behind this address ended, or its shipping for a change of the peers: its connections, too. */
  ended(url: string): void {
    this.#ends.set(url, (this.#ends.get(url) ?? 0) + 1);
  }

  /** POST /sync. Without a time limit only the network itself ends a request that was lost. */
  post(
    from: string,
    to: string,
    request: WireRequest,
    timeoutMs: number | undefined,
  ): Promise<Exchange> {
    return this.#exchange(from, to, timeoutMs, (finish, fail) => {
      const link = `${from} ${to}`;
      const { faults } = this;
      const chance = this.#chance;
      const instead = this.#answerInstead(from, link, request);
      if (instead !== undefined) return this.#after(from, to, () => finish(instead));
      if (this.#hits(faults.loseRequest, "request lost")) {
        return fail({ reason: "the request was lost", cutOff: true, afterMs: RESET_MS });
      }
      if (this.#hits(faults.repeat, "request repeated")) {
        this.inFlight++;
        // It may arrive long after the first, when its sender has gone on.
        const afterMs = this.#machines.get(to)?.remembersDeletes ? chance.spread(1, 5_000) : 0;
        this.#world.at((afterMs > 0 ? this.#travelMs(from, to) : 0) + afterMs, () => {
          this.inFlight--;
          const machine = this.#machines.get(to);
          if (machine?.isUp) void this.#deliver(to, machine, request, from);
        });
      }
      const ends = this.#ends.get(from);
      this.#after(from, to, () => {
        const machine = this.#machines.get(to);
        if (machine === undefined || !machine.isUp) {
          return fail({ reason: "ECONNREFUSED", cutOff: false, afterMs: 0 });
        }
        // What a process that has ended still had on its way may arrive after what the next one sent.
        // Nobody could tell a node without tombstones that such a request is old.
        if (this.#ends.get(from) !== ends && !machine.remembersDeletes) {
          return fail({ reason: "ECONNRESET", cutOff: true, afterMs: 0 });
        }
        void this.#deliver(to, machine, request, from).then((reply) => {
          if (reply === "reset") return fail({ reason: "ECONNRESET", cutOff: true, afterMs: 1 });
          const wall = this.#wallBetween(to, from);
          if (wall !== undefined || this.#hits(faults.loseReply, "reply lost")) {
            return fail({ reason: "the reply was lost", cutOff: true, afterMs: RESET_MS });
          }
          this.#after(to, from, () => finish(this.#spoil(link, reply)));
        });
      });
    });
  }

  /** GET /health. */
  readHealth(
    from: string,
    to: string,
    identity: string | undefined,
    timeoutMs: number,
  ): Promise<Exchange> {
    return this.#exchange(from, to, timeoutMs, (finish, fail) => {
      if (this.#hits(this.faults.loseRequest, "request lost")) {
        return fail({ reason: "the request was lost", cutOff: true, afterMs: RESET_MS });
      }
      this.#after(from, to, () => {
        const machine = this.#machines.get(to);
        if (machine === undefined || !machine.isUp) {
          return fail({ reason: "ECONNREFUSED", cutOff: false, afterMs: 0 });
        }
        const reply = machine.health(identity);
        // Its mark says what it committed, also where nobody heard the acknowledgement.
        const last = /last=(\d+)\./.exec(reply.identity ?? "")?.[1];
        if (last !== undefined) this.setAcknowledged(from, to, Number(last));
        this.#after(to, from, () => finish(reply));
      });
    });
  }

  #exchange(
    from: string,
    to: string,
    timeoutMs: number | undefined,
    begin: (finish: (reply: WireReply) => void, fail: (how: Undelivered) => void) => void,
  ): Promise<Exchange> {
    this.inFlight++;
    return new Promise((resolve) => {
      let isOver = false;
      const end = (exchange: Exchange) => {
        if (isOver) return;
        isOver = true;
        this.inFlight--;
        cancel?.();
        resolve(exchange);
      };
      const cancel =
        timeoutMs === undefined
          ? undefined
          : this.#world.at(timeoutMs, () =>
              end({ kind: "failed", reason: `no answer within ${timeoutMs} ms`, cutOff: true }),
            );
      const fail = ({ reason, cutOff, afterMs }: Undelivered) =>
        void this.#world.at(afterMs, () => end({ kind: "failed", reason, cutOff }));
      const finish = (reply: WireReply) => end(this.#replied(reply));
      const wall = this.#wallBetween(from, to);
      if (wall === undefined) return begin(finish, fail);
      if (wall.kind === "refused")
        return fail({ reason: "EHOSTUNREACH", cutOff: false, afterMs: 3 });
      fail({ reason: "no route", cutOff: true, afterMs: RESET_MS });
    });
  }

  /** A call of a comparison. `from` asks itself without a network. */
  async call(from: string, call: NodeCall): Promise<NodeAnswer> {
    const { node: to, timeoutMs } = call;
    const exchange = await this.#exchange(from, to, timeoutMs, (finish, fail) => {
      const isOwn = from === to;
      if (!isOwn && this.#hits(this.faults.loseRequest, "request lost")) {
        return fail({ reason: "the request was lost", cutOff: true, afterMs: RESET_MS });
      }
      if (!isOwn && this.#hits(this.faults.proxyAnswers, "proxy answers")) {
        return this.#after(from, to, () => finish(this.#proxyAnswer()));
      }
      const travel = (run: () => void) =>
        isOwn ? void this.#world.at(0, run) : this.#after(from, to, run);
      travel(() => {
        const machine = this.#machines.get(to);
        if (machine?.answer === undefined || !machine.isUp) {
          return fail({ reason: "ECONNREFUSED", cutOff: false, afterMs: 0 });
        }
        if (call.method === "POST" && call.path === "/sync") this.deliveries++;
        void machine.answer(call).then((reply) => {
          if (reply === "reset") return fail({ reason: "ECONNRESET", cutOff: true, afterMs: 1 });
          if (!isOwn && this.#hits(this.faults.loseReply, "reply lost")) {
            return fail({ reason: "the reply was lost", cutOff: true, afterMs: RESET_MS });
          }
          travel(() => finish(reply));
        });
      });
    });
    if (exchange.kind === "failed") return exchange;
    const { status, text } = exchange.reply;
    return { kind: "answered", status, text, json: parsed(text) };
  }

  async #deliver(
    to: string,
    machine: Machine,
    request: WireRequest,
    from: string,
  ): Promise<WireReply | "reset"> {
    const file = this.#files.get(from);
    this.deliveries++;
    this.lastDeliveryMs = this.#world.nowMs;
    if (this.#world.isTraced) this.#traceBatch(machine, request, from);
    const reply = await machine.sync(request);
    // What the sender's file before this one had sent says nothing of the log of this one.
    if (reply !== "reset" && reply.status === 200 && this.#files.get(from) === file) {
      const ack = Number(/"ack":(\d+)/.exec(reply.text)?.[1] ?? 0);
      if (ack > this.acknowledged(from, to)) this.#acknowledged.set(`${from} ${to}`, ack);
    }
    return reply;
  }

  /**
   * The largest batch id that `to` acknowledged to `from`, heard of or not, at whatever address: a peer
   * that is added again goes on from where it was under another.
   */
  acknowledged(from: string, to: string): number {
    const machine = this.#machines.get(to);
    const acks = [...this.#machines]
      .filter(([url, other]) => url === to || other === machine)
      .map(([url]) => this.#acknowledged.get(`${from} ${url}`) ?? 0);
    return Math.max(...acks);
  }

  /** `to` has what `from` had logged up to here, though no acknowledgement says so. */
  setAcknowledged(from: string, to: string, through: number): void {
    this.#acknowledged.set(`${from} ${to}`, Math.max(through, this.acknowledged(from, to)));
  }

  /** All that was acknowledged to this sender, by receiver. */
  acknowledgedTo(from: string): Map<string, number> {
    const start = `${from} `;
    return new Map(
      [...this.#acknowledged]
        .filter(([link]) => link.startsWith(start))
        .map(([link, ack]) => [link.slice(start.length), ack]),
    );
  }

  /** How often this machine's file was changed for another. */
  fileOf(url: string): number {
    return this.#files.get(url) ?? 0;
  }

  /** Its file is another one now, of which this was acknowledged. */
  changedFile(from: string, acknowledged: ReadonlyMap<string, number>): void {
    this.#files.set(from, (this.#files.get(from) ?? 0) + 1);
    for (const link of this.#acknowledged.keys()) {
      if (link.startsWith(`${from} `)) this.#acknowledged.delete(link);
    }
    for (const [to, ack] of acknowledged) this.#acknowledged.set(`${from} ${to}`, ack);
  }

  #traceBatch(machine: Machine, request: WireRequest, from: string): void {
    const batch: unknown = JSON.parse(new TextDecoder().decode(request.body));
    const { batch_id: batchId, changes } = batch as {
      batch_id: number;
      changes:
        | {
            op: string;
            table: string;
            row: Record<string, unknown> | null;
            old_id: string | null;
          }[]
        | null;
    };
    for (const { op, table, row, old_id: oldId } of changes ?? []) {
      const id = op === "DELETE" ? oldId : row?.["id"];
      this.#world.trace(
        `${from} → ${machine.url} #${batchId} ${op} ${JSON.stringify(row)}`,
        `${table}/${id}`,
      );
    }
  }

  #replied(reply: WireReply): Exchange {
    const { status, text, retryAfterMs = 0 } = reply;
    return {
      kind: "replied",
      reply,
      raw: { status, text, location: status < 400 ? "/login" : undefined, retryAfterMs },
      // `Date` has whole seconds.
      serverTimeMs: Math.floor((EPOCH_MS + this.#world.nowMs) / 1_000) * 1_000,
    };
  }

  /** What a proxy, a portal or a guard says instead of passing the request on. */
  #answerInstead(from: string, link: string, request: WireRequest): WireReply | undefined {
    const { faults } = this;
    if (faults.bodyBytesMax !== undefined && request.body.length > faults.bodyBytesMax) {
      this.#count("413");
      return answer(413, "<html>Request Entity Too Large</html>");
    }
    if (this.#hits(faults.proxyAnswers, "proxy answers")) return this.#proxyAnswer();
    if (this.#hits(faults.notAdmitted, "not admitted")) return answer(403, "no");
    // The hub takes any 200 for an acknowledgement; what it loses so, nobody can bring back.
    if (this.#machines.get(from)?.believesAll !== true && this.#hits(faults.portal, "portal")) {
      return answer(200, this.#chance.pick(["<html>Welcome</html>", "{}", "", '{"ack":null}']));
    }
    if (this.#mayBeUntrue(link) && this.#hits(faults.refuse, "untrue refusal")) {
      this.#untrue.set(link, (this.#untrue.get(link) ?? 0) + 1);
      return answer(this.#chance.pick([400, 409, 422]), "no");
    }
    return undefined;
  }

  /** The way back. */
  #spoil(link: string, reply: WireReply): WireReply {
    const { faults } = this;
    if (this.#hits(faults.proxyAnswersLate, "proxy answers late")) return this.#proxyAnswer();
    if (this.#hits(faults.cutReply, "reply cut")) {
      return { ...reply, text: reply.text.slice(0, this.#chance.below(reply.text.length)) };
    }
    if (
      reply.status === 200 &&
      this.#mayBeUntrue(link) &&
      this.#hits(faults.mismatch, "mismatch")
    ) {
      this.#untrue.set(link, (this.#untrue.get(link) ?? 0) + 1);
      return { ...reply, text: reply.text.replace(/"ack":\d+/, '"ack":999999999') };
    }
    if (reply.status === 200) this.#untrue.delete(link);
    return reply;
  }

  #mayBeUntrue(link: string): boolean {
    return (this.#untrue.get(link) ?? 0) < UNBELIEVED_IN_A_ROW_MAX;
  }

  #proxyAnswer(): WireReply {
    const status = this.#chance.pick([500, 502, 503, 504, 429, 302, 404, 405]);
    const retryAfterMs = status === 429 || status === 503 ? this.#chance.between(0, 5) * 1_000 : 0;
    return { ...answer(status, "<html>proxy</html>"), retryAfterMs };
  }

  #after(from: string, to: string, run: () => void): void {
    this.#world.at(this.#travelMs(from, to), run);
  }

  #travelMs(from: string, to: string): number {
    const { delayMs, late, lateMs } = this.faults;
    const slowMs = (this.slowMs.get(from) ?? 0) + (this.slowMs.get(to) ?? 0);
    if (this.#hits(late, "late")) return slowMs + this.#chance.spread(delayMs, lateMs);
    return slowMs + Math.round(delayMs * (0.5 + this.#chance.next()));
  }

  #wallBetween(from: string, to: string): Wall | undefined {
    for (const wall of this.#walls) if (wall.from === from && wall.to === to) return wall;
    return undefined;
  }

  #hits(probability: number, fault: string): boolean {
    if (probability === 0 || !this.#chance.hits(probability)) return false;
    this.#count(fault);
    return true;
  }

  #count(fault: string): void {
    this.#counts.set(fault, (this.#counts.get(fault) ?? 0) + 1);
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function answer(status: number, text: string): WireReply {
  return { status, text, identity: undefined };
}
