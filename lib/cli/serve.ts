/**
 * `hook-sync serve`: runs one node until it is told to stop.
 *
 * Exit codes: 0 after SIGTERM or SIGINT, when everything was finished and the file is closed; 1
 * where the world is in the way (port or file in use); 2 for a wrong configuration, before anything
 * was touched; 70 for a mistake of our own. A second signal ends the process at once, as it would
 * have without us (128 and its number): nothing that was answered is lost by that.
 */
import { readFileSync } from "node:fs";
import { hostname, networkInterfaces } from "node:os";
import { systemClock, systemTimers } from "../base/clock.ts";
import { HookSyncError } from "../base/errors.ts";
import { createLogger, type Logger } from "../base/log.ts";
import { systemRandom } from "../base/random.ts";
import { type Config, loadConfig, SETTINGS } from "../config.ts";
import type { RunningNode, startNode } from "../node.ts";
import {
  type Command,
  EXIT_FAILED,
  EXIT_OK,
  EXIT_OUR_MISTAKE,
  EXIT_USAGE,
  type Runtime,
} from "./command.ts";
import { logSink } from "./log-sink.ts";
import { askDirectly } from "./node-words.ts";
import { flagLines, mistakesText } from "./usage.ts";

/** Comes back with the exit code when the node has stopped, or could not start. */
export const serve: Command = {
  name: "serve",
  summary: "run a node (what happens without a command)",
  usage: `Usage: hook-sync [serve] --id NAME --db FILE [flags]

Runs one node: it keeps the SQLite file, answers HTTP and syncs with its peers.

${flagLines(SETTINGS)}
-id NAME and --id=NAME are taken as well. Each flag is also a variable (--batch-ms is
HOOK_SYNC_BATCH_MS; lists with commas) and a key of the TOML file given by --config
(batch-ms = 50, peer = ["http://host:9002"]). Flags win over variables, variables over the file.

Two nodes on one machine, each in a terminal of its own:
  hook-sync --id node1 --db node1.db --listen :9001 --peer http://127.0.0.1:9002
  hook-sync --id node2 --db node2.db --listen :9002 --peer http://127.0.0.1:9001
`,
  // The node is loaded once the configuration stands: mistakes and help are answered without it.
  run: (argv, runtime) =>
    runNode(argv, runtime, async (options) => (await import("../node.ts")).startNode(options)),
};

/** Above what a stop takes (2 s to drain, then closing), below the 10 s of container runtimes. */
const STOP_MS_MAX = 8_000;

/** The whole life of one node; `start` makes it. */
export async function runNode(
  argv: readonly string[],
  runtime: Runtime,
  start: typeof startNode,
): Promise<number> {
  const { terminal, version, workerUrl, digestWorkerUrl } = runtime;
  const loaded = loadConfig({ argv, env: runtime.env, readText, ownHosts: ownHosts() });
  if ("mistakes" in loaded) {
    await terminal.err(mistakesText(loaded.mistakes, "hook-sync help serve"));
    return EXIT_USAGE;
  }
  const { config, warnings } = loaded;
  const log = createLogger({
    level: config.logLevel,
    format: config.logFormat,
    clock: systemClock,
    write: logSink(process.stderr),
  });
  if (!config.useProxy) askDirectly(runtime.env);
  endOnOurMistakes(log);
  const stopAsked = firstSignal(log);
  for (const warning of warnings) log.warn(warning);

  let node: RunningNode;
  try {
    node = await start({
      config,
      workerUrl,
      digestWorkerUrl,
      log,
      clock: systemClock,
      random: systemRandom,
      version,
    });
  } catch (error) {
    if (!(error instanceof HookSyncError)) throw error;
    await terminal.err(failureText(error, config));
    return EXIT_FAILED;
  }
  tellStart(summaryText(node.summary, config), log);

  const signal = await stopAsked;
  log.info("stopping", { signal });
  systemTimers.after(STOP_MS_MAX, () => {
    log.error("stopping took too long; ended as it stands", { after_ms: STOP_MS_MAX });
    process.exit(EXIT_FAILED);
  });
  await node.stop();
  log.info("stopped");
  return EXIT_OK;
}

/**
 * `timeout` and npm pass on a signal that the whole group has had already: what comes so soon is the same
 * wish. Nobody means it twice within it.
 */
const SAME_SIGNAL_MS = 20;

/**
 * Resolves with the first SIGTERM or SIGINT. Handlers of our own also make both work in process 1 of
 * a container, where a signal without a handler is ignored.
 */
function firstSignal(log: Logger): Promise<string> {
  const numbers = { SIGINT: 2, SIGTERM: 15 } as const;
  return new Promise((resolve) => {
    let firstMs: number | undefined;
    for (const signal of ["SIGINT", "SIGTERM"] as const) {
      process.on(signal, () => {
        const nowMs = systemClock.monotonicMs();
        if (firstMs === undefined) {
          firstMs = nowMs;
          resolve(signal);
          return;
        }
        if (nowMs - firstMs < SAME_SIGNAL_MS) return;
        log.warn("told to stop a second time; ended at once", { signal });
        process.exit(128 + numbers[signal]);
      });
    }
  });
}

/**
 * A broken assumption ends the process: going on could write something wrong. The file is safe, a
 * commit is whole or not there.
 */
function endOnOurMistakes(log: Logger): void {
  const end = (error: unknown) => {
    const stack = error instanceof Error ? error.stack : undefined;
    log.error("a mistake in hook-sync itself; please report it", { error, stack });
    process.exit(EXIT_OUR_MISTAKE);
  };
  process.on("uncaughtException", end);
  process.on("unhandledRejection", end);
}

/** The node runs whether or not anybody can read this. */
function tellStart(lines: string, log: Logger): void {
  const write = logSink(process.stdout, (error) =>
    log.warn("standard output cannot be written", { error }),
  );
  write(lines);
}

/** As in the lines of the log, which these stand among. */
function now(): string {
  return new Date(systemClock.nowMs()).toISOString();
}

function failureText(error: HookSyncError, config: Config): string {
  if (config.logFormat === "json") {
    const { code, message, hint } = error;
    return `${JSON.stringify({ time: now(), level: "error", message, code, hint })}\n`;
  }
  return `hook-sync: ${error.message}. ${error.hint}\n`;
}

function summaryText(summary: readonly string[], config: Config): string {
  if (config.logFormat === "text") return summary.join("\n");
  const time = now();
  return summary.map((message) => JSON.stringify({ time, level: "info", message })).join("\n");
}

function readText(path: string): string {
  // Editors on Windows begin a file with a mark that neither SQL nor TOML knows.
  return readFileSync(path, "utf8").replace(/^\uFEFF/, "");
}

function ownHosts(): string[] {
  const addresses = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  return [hostname(), ...addresses.map(({ address }) => address)];
}
