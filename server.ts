/**
 * The entry, run by Bun or compiled into the executable. It names the files of the workers, which must
 * be written out here so that the compiler finds them, and hands the words of the command line on.
 */
import { main } from "./lib/cli/main.ts";
import { systemTerminal } from "./lib/cli/terminal.ts";
import { version } from "./package.json" with { type: "json" };

const code = await main(Bun.argv.slice(2), {
  version,
  workerUrl: new URL("./lib/shipper/worker.ts", import.meta.url),
  digestWorkerUrl: new URL("./lib/shipper/digest-worker.ts", import.meta.url),
  env: process.env,
  terminal: systemTerminal,
});
process.exit(code);
