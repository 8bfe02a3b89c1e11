/**
 * The worker's entry: one thread that reads the change log and talks to the peers, so that neither a
 * large batch nor a slow peer ever costs a writer or a reader of the node a millisecond.
 *
 * It takes the messages of `ToShipper` and answers with those of `FromShipper`. A failure that is not
 * the world's ends it: the main thread hears of it, and starts another one (handle.ts).
 */
import { Database } from "bun:sqlite";
import { assert } from "../base/assert.ts";
import { systemClock, systemTimers } from "../base/clock.ts";
import { Garbage } from "../base/garbage.ts";
import { systemRandom } from "../base/random.ts";
import { LogBatchSource } from "./batch.ts";
import type { FromShipper, ShipperConfig, ToShipper } from "./messages.ts";
import { Shipper } from "./shipper.ts";
import { FetchTransport, forgetProxies, type Transport } from "./transport.ts";

declare const self: Worker;

/** At the start there is nothing else to do than to wait until another program has let go. */
const OPEN_TIMEOUT_MS = 1_000;
/** Later a read meets a lock hardly ever, and peers must not wait for it: it is tried again. */
const BUSY_TIMEOUT_MS = 20;

/**
 * Bodies lie outside of this thread's heap, which is small and would be collected too seldom for them: ten
 * that were long sent stayed, 20 MB. A collection takes a millisecond.
 */
const SENT_BYTES_COLLECTED = 4 * 1024 * 1024;

interface Running {
  readonly shipper: Shipper;
  readonly source: LogBatchSource;
  readonly db: Database;
}

listen();

function listen(): void {
  let running: Running | undefined;
  self.onmessage = (event: MessageEvent<ToShipper>) => {
    const message = event.data;
    if (message.kind === "start") {
      assert(running === undefined, "a worker is started once");
      running = open(message.config);
      return running.shipper.start();
    }
    assert(running !== undefined, `"${message.kind}" came before "start"`);
    switch (message.kind) {
      case "settled":
        return running.shipper.settled(message.through, message.rewritten, message.targeted);
      case "read-health":
        return running.shipper.readHealth(message.peers);
      case "release":
        return running.shipper.release(message.peer);
      case "drain":
        return running.shipper.drain(message.withinMs);
      case "stop":
        return close(running);
    }
  };
}

function open(config: ShipperConfig): Running {
  if (!config.useProxy) forgetProxies(process.env);
  const db = new Database(config.dbPath, { readonly: true });
  db.run(`PRAGMA busy_timeout = ${OPEN_TIMEOUT_MS}`);
  const source = new LogBatchSource({ ...config, db });
  db.run(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`);
  const shipper = new Shipper({
    config,
    clock: systemClock,
    random: systemRandom,
    timers: systemTimers,
    transport: collecting(new FetchTransport({ ...config, nowMs: systemClock.nowMs })),
    source,
    post,
  });
  return { shipper, source, db };
}

function collecting(transport: Transport): Transport {
  const garbage = new Garbage(SENT_BYTES_COLLECTED, () => Bun.gc(true));
  return {
    readHealth: (peer, signal) => transport.readHealth(peer, signal),
    async send(request, signal) {
      const outcome = await transport.send(request, signal);
      garbage.left(request.body.length);
      return outcome;
    },
  };
}

/** The file is closed before the main thread hears of it: its own connection must be the last. */
function close({ shipper, source, db }: Running): void {
  shipper.stop();
  source.close();
  db.close(true);
  post({ kind: "stopped" });
}

function post(message: FromShipper): void {
  self.postMessage(message);
}
