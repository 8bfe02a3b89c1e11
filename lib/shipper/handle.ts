/**
 * The main thread's end of the shipper: starts the worker, keeps it running, and remembers where it
 * stands. A worker that dies of a mistake of ours is reported and replaced by one that goes on from
 * the last positions heard, which may send a batch again and is harmless; without this a node would
 * look healthy and ship nothing.
 */
import { retryPauseMs } from "../base/backoff.ts";
import { type Cancel, type Clock, systemClock, systemTimers, type Timers } from "../base/clock.ts";
import { type Random, systemRandom } from "../base/random.ts";
import type { FromShipper, PeerStart, PeerStatus, ShipperConfig, ToShipper } from "./messages.ts";

/** A worker that ran this long before it died is no sign of a mistake that comes at once. */
const STABLE_MS = 60_000;
/** A worker answers within milliseconds; one that does not is stuck and is ended. */
const STOP_MS_MAX = 1_000;
const DRAIN_MS_GRACE = 250;

/** Clock, chance and timers are for restarting it: the worker has its own. */
export interface ShipperHandleOptions {
  /** Made in server.ts, where the bundler sees it: `new URL("./lib/shipper/worker.ts", import.meta.url)`. */
  readonly workerUrl: URL | string;
  readonly config: ShipperConfig;
  /** Everything the worker says. */
  readonly onMessage: (message: FromShipper) => void;
  readonly clock?: Clock;
  readonly random?: Random;
  readonly timers?: Timers;
}

/** What is asked of the worker happens later; only `drain` and `stop` tell when it is done. */
export interface ShipperHandle {
  /** Tells that the log is settled up to this change id; see `ToShipper` for `rewritten`. */
  settled(through: number, rewritten?: boolean, targeted?: boolean): void;
  /** Ships until nothing waits, at most this long; answers how much the last peer still lacks. */
  drain(withinMs: number): Promise<number>;
  /** Asks these peers, or all, for their /health; the answers come as messages. */
  readHealth(peers?: readonly string[]): void;
  /** Ships to a peer that was held until it was decided how it goes on. */
  release(peer: string): void;
  /** The peers as last heard. */
  status(): readonly PeerStatus[];
  /** Ends the worker; when it is over, the worker's connection to the file is closed. */
  stop(): Promise<void>;
}

/** Starts shipping. A node without peers needs no thread for it. */
export function startShipper(options: ShipperHandleOptions): ShipperHandle {
  const shipper = new WorkerShipper(options);
  shipper.start();
  return shipper;
}

class WorkerShipper implements ShipperHandle {
  readonly #options: ShipperHandleOptions;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #timers: Timers;
  readonly #positions: Map<string, PeerStart>;
  #settledThrough: number;
  #targeted: boolean;
  #status: readonly PeerStatus[];
  #worker: Worker | undefined;
  #startedAtMs = 0;
  /** Deaths in a row. */
  #deaths = 0;
  #cancelRestart: Cancel | undefined;
  #stopping: Promise<void> | undefined;
  #onStopped: (() => void) | undefined;
  #draining: Promise<number> | undefined;
  #onDrained: ((pending: number) => void) | undefined;

  constructor(options: ShipperHandleOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#random = options.random ?? systemRandom;
    this.#timers = options.timers ?? systemTimers;
    this.#settledThrough = options.config.settledThrough;
    this.#targeted = options.config.targeted ?? false;
    this.#positions = new Map(options.config.peers.map((peer) => [peer.url, peer]));
    this.#status = options.config.peers.map((peer) => unheard(peer, this.#settledThrough));
  }

  start(): void {
    if (this.#positions.size === 0) return;
    const worker = new Worker(this.#options.workerUrl, { name: "shipper", smol: true });
    this.#worker = worker;
    this.#startedAtMs = this.#clock.monotonicMs();
    worker.onmessage = (event: MessageEvent<FromShipper>) => {
      if (worker === this.#worker) this.#take(event.data);
    };
    worker.onerror = (event) => {
      event.preventDefault();
      this.#died(worker, firstLine(event.message));
    };
    worker.addEventListener("close", () => this.#died(worker, "the thread ended"));
    const peers = [...this.#positions.values()];
    this.#send({
      kind: "start",
      config: {
        ...this.#options.config,
        settledThrough: this.#settledThrough,
        targeted: this.#targeted,
        peers,
      },
    });
  }

  settled(through: number, rewritten = false, targeted = false): void {
    // Most commits of a node that receives log nothing, and the worker would be woken by each.
    const isKnown = through <= this.#settledThrough && targeted === this.#targeted;
    if (isKnown && !rewritten) return;
    this.#targeted = targeted;
    this.#settledThrough = Math.max(this.#settledThrough, through);
    this.#send({ kind: "settled", through, rewritten, targeted });
  }

  readHealth(peers?: readonly string[]): void {
    this.#send(peers === undefined ? { kind: "read-health" } : { kind: "read-health", peers });
  }

  release(peer: string): void {
    const start = this.#positions.get(peer);
    if (start !== undefined) this.#positions.set(peer, { ...start, isHeld: false });
    this.#send({ kind: "release", peer });
  }

  status(): readonly PeerStatus[] {
    return this.#status;
  }

  drain(withinMs: number): Promise<number> {
    if (this.#positions.size === 0) return Promise.resolve(0);
    this.#draining ??= new Promise((resolve) => {
      // The worker may be dead just now, or die of it.
      const cancel = this.#timers.after(withinMs + DRAIN_MS_GRACE, () => {
        this.#onDrained?.(this.#status.reduce((most, { pending }) => Math.max(most, pending), 0));
      });
      this.#onDrained = (pending) => {
        cancel();
        this.#draining = undefined;
        this.#onDrained = undefined;
        resolve(pending);
      };
      this.#send({ kind: "drain", withinMs });
    });
    return this.#draining;
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.#cancelRestart?.();
    const worker = this.#worker;
    if (worker === undefined) return;
    await new Promise<void>((resolve) => {
      const cancel = this.#timers.after(STOP_MS_MAX, resolve);
      this.#onStopped = () => {
        cancel();
        resolve();
      };
      this.#send({ kind: "stop" });
    });
    this.#worker = undefined;
    worker.terminate();
  }

  #take(message: FromShipper): void {
    switch (message.kind) {
      case "moved": {
        const { peer: url, through: watermark, ackedBatchId } = message;
        const before = this.#positions.get(url);
        const prev = ackedBatchId ?? before?.prev ?? 0;
        this.#positions.set(url, { ...before, url, watermark, prev });
        break;
      }
      case "status":
        this.#status = message.peers;
        break;
    }
    this.#options.onMessage(message);
    if (message.kind === "stopped") this.#onStopped?.();
    if (message.kind === "drained") this.#onDrained?.(message.pending);
  }

  #died(worker: Worker, error: string): void {
    // An error is followed by the end of the thread, and a stopped thread ends too.
    if (worker !== this.#worker) return;
    this.#worker = undefined;
    worker.terminate();
    if (this.#stopping !== undefined) {
      this.#onStopped?.();
      return;
    }
    const livedMs = this.#clock.monotonicMs() - this.#startedAtMs;
    this.#deaths = livedMs < STABLE_MS ? this.#deaths + 1 : 1;
    const pauseMs = retryPauseMs(this.#deaths, this.#random);
    this.#options.onMessage({
      kind: "log",
      level: "error",
      message: "the shipper failed and is started again",
      fields: { error, pauseMs },
    });
    this.#cancelRestart = this.#timers.after(pauseMs, () => this.start());
  }

  #send(message: ToShipper): void {
    this.#worker?.postMessage(message);
  }
}

/** What is known of a peer before the worker says anything: nobody must take it for a node without peers. */
export function unheard({ url, watermark }: PeerStart, settledThrough: number): PeerStatus {
  const pending = Math.max(0, settledThrough - watermark);
  return {
    url,
    state: pending === 0 ? "idle" : "waiting",
    nodeId: undefined,
    make: undefined,
    dbId: undefined,
    lastAcked: watermark,
    pending,
    lastError: undefined,
    lastContactMs: undefined,
    clockOffsetMs: undefined,
  };
}

/** Bun puts the lines of source around the place before the message. */
function firstLine(text: string): string {
  return /^\w*[Ee]rror: .*$/m.exec(text)?.[0] ?? text.split("\n", 1)[0] ?? text;
}
