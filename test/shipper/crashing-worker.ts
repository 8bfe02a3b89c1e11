/** The shipper's worker, which fails when told that the log is settled up to `CRASH_AT`. */
import "../../lib/shipper/worker.ts";
import type { ToShipper } from "../../lib/shipper/messages.ts";

declare const self: Worker;

export const CRASH_AT = 666_666;

const real = self.onmessage;

self.onmessage = function (this: Worker, event: MessageEvent<ToShipper>) {
  if (event.data.kind === "settled" && event.data.through === CRASH_AT) {
    throw new Error("planted failure");
  }
  return real?.call(self, event);
};
