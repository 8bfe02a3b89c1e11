/** What a command of the command line is, and what it gets from the process around it. */
import type { Terminal } from "./terminal.ts";

/** What the entry and the process bring in. */
export interface Runtime {
  readonly version: string;
  /** The shipper's worker; only the entry can name it so that it is found in the executable too. */
  readonly workerUrl: URL;
  /** The worker that reads whole tables; as above. */
  readonly digestWorkerUrl: URL;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly terminal: Terminal;
}

/** One of the words after `hook-sync`; main.ts finds it by `name`. */
export interface Command {
  readonly name: string;
  /** One line for the list of commands. */
  readonly summary: string;
  /** What `hook-sync help NAME` shows. */
  readonly usage: string;
  /** Does the work; answers with the exit code. */
  run(argv: readonly string[], runtime: Runtime): Promise<number>;
}

/** Exit codes; more than 128 is a signal's number and 128. */
export const EXIT_OK = 0;
/** The world failed: a port in use, a file that cannot be opened. */
export const EXIT_FAILED = 1;
/** What was asked for makes no sense; nothing was done. */
export const EXIT_USAGE = 2;
/** Our own mistake (EX_SOFTWARE). */
export const EXIT_OUR_MISTAKE = 70;
