/**
 * The shipper of a simulated node: what lib/shipper/worker.ts and handle.ts do, without the thread. The
 * two halves still only exchange messages, which take a moment, so that either may be ended between
 * two of them.
 */
import type { Database } from "bun:sqlite";
import type { Timers } from "../../lib/base/clock.ts";
import { formatIdentity, parseIdentity } from "../../lib/protocol/identity.ts";
import { LogBatchSource } from "../../lib/shipper/batch.ts";
import {
  type ShipperHandle,
  type ShipperHandleOptions,
  unheard,
} from "../../lib/shipper/handle.ts";
import type { FromShipper, PeerStatus } from "../../lib/shipper/messages.ts";
import { Shipper } from "../../lib/shipper/shipper.ts";
import {
  type HealthOutcome,
  judgeReply,
  type Outcome,
  parseHealth,
  type Reply,
  type SyncRequest,
  type Transport,
} from "../../lib/shipper/transport.ts";
import { openReader } from "../../lib/store/open.ts";
import type { Exchange, Network, WireRequest } from "./network.ts";

export interface SimShipperOptions extends ShipperHandleOptions {
  readonly network: Network;
  /** The address of the node that ships. */
  readonly url: string;
  readonly timers: Timers;
  /** Carries a message from one half to the other. */
  readonly later: (run: () => void) => void;
}

/** The longest way of a message between the two halves. */
export const MESSAGE_MS_MAX = 20;

export class SimShipper implements ShipperHandle {
  readonly #options: SimShipperOptions;
  readonly #reader: Database;
  readonly #source: LogBatchSource;
  readonly #shipper: Shipper;
  #status: readonly PeerStatus[];
  #onDrained: ((pending: number) => void) | undefined;
  #isClosed = false;
  #isHeard = true;

  constructor(options: SimShipperOptions) {
    this.#options = options;
    const { config, clock, random, timers } = options;
    this.#status = config.peers.map((peer) => unheard(peer, config.settledThrough));
    this.#reader = openReader(config.dbPath);
    this.#source = new LogBatchSource({ ...config, db: this.#reader });
    this.#shipper = new Shipper({
      config,
      clock: clock!,
      random: random!,
      timers,
      transport: new SimTransport(options),
      source: this.#source,
      post: (message) => options.later(() => this.#take(message)),
    });
    this.#tell(() => this.#shipper.start());
  }

  settled(through: number, rewritten?: boolean, targeted?: boolean): void {
    this.#tell(() => this.#shipper.settled(through, rewritten, targeted));
  }

  readHealth(peers?: readonly string[]): void {
    this.#tell(() => this.#shipper.readHealth(peers));
  }

  release(peer: string): void {
    this.#tell(() => this.#shipper.release(peer));
  }

  status(): readonly PeerStatus[] {
    return this.#status;
  }

  drain(withinMs: number): Promise<number> {
    return new Promise((resolve) => {
      // As in the real one: it may have been ended meanwhile.
      this.#options.timers.after(withinMs + MESSAGE_MS_MAX, () => resolve(0));
      this.#onDrained = resolve;
      this.#tell(() => this.#shipper.drain(withinMs));
    });
  }

  /** As the real one: what it had said before is still heard, nothing after. */
  async stop(): Promise<void> {
    this.end();
    await new Promise<void>((resolve) => void this.#options.timers.after(MESSAGE_MS_MAX, resolve));
    this.#isHeard = false;
  }

  /** Nothing is sent or said any more, and the file is let go. */
  end(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#options.network.ended(this.#options.url);
    this.#shipper.stop();
    this.#source.close();
    this.#reader.close(true);
  }

  #tell(run: () => void): void {
    this.#options.later(() => {
      if (!this.#isClosed) run();
    });
  }

  #take(message: FromShipper): void {
    if (!this.#isHeard) return;
    if (message.kind === "status") this.#status = message.peers;
    this.#options.onMessage(message);
    if (message.kind === "drained") this.#onDrained?.(message.pending);
  }
}

class SimTransport implements Transport {
  readonly #options: SimShipperOptions;

  constructor(options: SimShipperOptions) {
    this.#options = options;
  }

  async send(request: SyncRequest): Promise<Outcome> {
    const { network, url, config } = this.#options;
    const wire: WireRequest = {
      body: request.body,
      nodeId: config.nodeId,
      nodeUrl: config.nodeUrl,
      identity: formatIdentity(request.identity),
      file: network.fileOf(url),
    };
    const { requestTimeoutMs } = config;
    const exchange = await network.post(url, request.peer, wire, requestTimeoutMs);
    if (exchange.kind === "failed") {
      const { reason, cutOff } = exchange;
      return { kind: "failed", reason, cutOff, retryAfterMs: 0, reply: undefined };
    }
    return { ...judgeReply(exchange.raw, request.batchId), reply: replyOf(exchange) };
  }

  async readHealth(peer: string): Promise<HealthOutcome> {
    const { network, url, config } = this.#options;
    const identity = formatIdentity({ db: config.dbId });
    const exchange = await network.readHealth(url, peer, identity, config.requestTimeoutMs);
    if (exchange.kind === "failed") return { kind: "failed", reason: exchange.reason };
    const reply = replyOf(exchange);
    const health = parseHealth(peer, exchange.reply.text, reply.identity);
    if (health === undefined) return { kind: "no-health", reason: "no", reply };
    return { kind: "health", health, reply };
  }
}

function replyOf(exchange: Extract<Exchange, { kind: "replied" }>): Reply {
  return {
    identity: parseIdentity(exchange.reply.identity),
    serverTimeMs: exchange.serverTimeMs,
  };
}
