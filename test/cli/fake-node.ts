/**
 * `serve` around a node that does what a test wants: what serve owes (exit codes, signals, messages)
 * is seen from outside, without a port or a file. Run as a process by serve's tests.
 */
import { HookSyncError } from "../../lib/base/errors.ts";
import { runNode } from "../../lib/cli/serve.ts";
import { systemTerminal } from "../../lib/cli/terminal.ts";

const behaviour = process.env["FAKE_NODE"];
/** Keeps the process alive, as a listening socket would. */
const alive = setInterval(() => {}, 60_000);

const code = await runNode(
  Bun.argv.slice(2),
  {
    version: "0.0.0",
    workerUrl: new URL("file:///none.ts"),
    digestWorkerUrl: new URL("file:///none.ts"),
    env: process.env,
    terminal: systemTerminal,
  },
  async ({ log }) => {
    if (behaviour === "port-in-use") {
      throw new HookSyncError(
        "port-in-use",
        "port 9001 is in use",
        "Choose another with --listen.",
      );
    }
    if (behaviour === "bug-at-start") throw new TypeError("undefined is not a start");
    if (behaviour === "slow-start") {
      log.info("starting slowly");
      await Bun.sleep(300);
    }
    if (behaviour === "bug-later")
      setTimeout(() => {
        throw new TypeError("not a function later");
      }, 1);
    if (behaviour === "rejection-later")
      setTimeout(() => void Promise.reject(new TypeError("rejected later")), 1);
    return {
      url: "http://127.0.0.1:9001",
      summary: ["listening on http://127.0.0.1:9001", "peers: none"],
      stop: async () => {
        if (behaviour === "hanging-stop") await new Promise(() => {});
        await Bun.sleep(20);
        await systemTerminal.out("closed\n").catch(() => {});
        clearInterval(alive);
      },
    };
  },
);
process.exit(code);
