/**
 * The main thread's end of the thread that reads whole tables: starts it when something is asked, and
 * ends it when nothing was asked for a while, so that a node that nobody compares pays nothing for it.
 */
import type { Cancel, Timers } from "../base/clock.ts";
import { HookSyncError, RequestError } from "../base/errors.ts";
import type {
  DigestQuestions,
  Failure,
  FromDigester,
  Question,
  QuestionKind,
  ToDigester,
} from "./digest-messages.ts";

/** The thread opens connections of its own to `dbPath`, which only read. */
export interface DigestHandleOptions {
  /** Made in server.ts, where the bundler sees it. */
  readonly workerUrl: URL;
  readonly dbPath: string;
  readonly timers: Timers;
}

/** Longer than a comparison rests between two questions; its snapshots end with the thread. */
const IDLE_MS = 300_000;
/** A slice is 5 ms, a copy of the file cannot be cut short: it is ended with the thread. */
const STOP_MS_MAX = 1_000;

interface Waiting {
  readonly resolve: (answer: never) => void;
  readonly reject: (error: Error) => void;
}

/** One per node. After `stop` every question is refused as busy. */
export class DigestHandle {
  readonly #options: DigestHandleOptions;
  readonly #waiting = new Map<number, Waiting>();
  #asked = 0;
  #worker: Worker | undefined;
  #cancelIdle: Cancel | undefined;
  #onStopped: (() => void) | undefined;
  #isStopping = false;

  constructor(options: DigestHandleOptions) {
    this.#options = options;
  }

  /** Asks; a refusal comes as the RequestError or SQLite error it was over there. */
  ask<K extends QuestionKind>(
    kind: K,
    ask: DigestQuestions[K]["ask"],
  ): Promise<DigestQuestions[K]["answer"]> {
    if (this.#isStopping) {
      return Promise.reject(new HookSyncError("busy", "the node is stopping", "Ask another one."));
    }
    this.#cancelIdle?.();
    this.#worker ??= this.#start();
    const number = this.#asked++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(number, { resolve, reject });
      this.#send({ kind: "ask", number, question: { kind, ask } as Question });
    });
  }

  /** Ends the thread; its connections to the file are closed then. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#cancelIdle?.();
    await this.#end();
  }

  #start(): Worker {
    const worker = new Worker(this.#options.workerUrl, { name: "digests", smol: true });
    worker.onmessage = (event: MessageEvent<FromDigester>) => {
      if (worker === this.#worker) this.#take(event.data);
    };
    worker.onerror = (event) => {
      event.preventDefault();
      this.#died(worker, event.message);
    };
    worker.addEventListener("close", () => this.#died(worker, "the thread ended"));
    worker.postMessage({ kind: "start", dbPath: this.#options.dbPath } satisfies ToDigester);
    return worker;
  }

  #take(message: FromDigester): void {
    if (message.kind === "stopped") {
      this.#onStopped?.();
      return;
    }
    const waiting = this.#waiting.get(message.number);
    this.#waiting.delete(message.number);
    if (message.kind === "answer") waiting?.resolve(message.answer as never);
    else waiting?.reject(errorOf(message.failure));
    if (this.#waiting.size > 0 || this.#isStopping) return;
    this.#cancelIdle?.();
    this.#cancelIdle = this.#options.timers.after(IDLE_MS, () => void this.#end());
  }

  async #end(): Promise<void> {
    const worker = this.#worker;
    if (worker === undefined) return;
    await new Promise<void>((resolve) => {
      const cancel = this.#options.timers.after(STOP_MS_MAX, resolve);
      this.#onStopped = () => {
        cancel();
        resolve();
      };
      this.#send({ kind: "stop" });
    });
    this.#onStopped = undefined;
    if (worker === this.#worker) this.#forget("the node is stopping");
    worker.terminate();
  }

  #died(worker: Worker, reason: string): void {
    if (worker !== this.#worker) return;
    worker.terminate();
    this.#forget(reason);
    this.#onStopped?.();
  }

  #forget(reason: string): void {
    this.#worker = undefined;
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const { reject } of waiting) {
      reject(new HookSyncError("busy", `reading was ended: ${reason}`, "Try again."));
    }
  }

  #send(message: ToDigester): void {
    this.#worker?.postMessage(message);
  }
}

function errorOf({ message, status, code }: Failure): Error {
  if (status !== undefined) return new RequestError(status, message);
  return Object.assign(new Error(message), code === undefined ? {} : { code });
}
