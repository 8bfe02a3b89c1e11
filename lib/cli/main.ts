/**
 * Which command a command line means. A line that begins with a flag, or is empty, is `serve`: that
 * is how the nodes of other makes are started.
 */
import { unknownName } from "../base/flags.ts";
import { alter } from "./alter.ts";
import { backfill } from "./backfill.ts";
import { check } from "./check.ts";
import { type Command, EXIT_OK, EXIT_USAGE, type Runtime } from "./command.ts";
import { detach } from "./detach.ts";
import { follow } from "./follow.ts";
import { peer } from "./peer.ts";
import { serve } from "./serve.ts";
import { snapshot } from "./snapshot.ts";
import { status } from "./status.ts";
import { verify } from "./verify.ts";

/** In the order of the overview. */
export const COMMANDS: readonly Command[] = [
  serve,
  status,
  verify,
  peer,
  backfill,
  snapshot,
  follow,
  check,
  alter,
  detach,
];

/** Runs what `argv` asks for; answers with the exit code. */
export async function main(argv: readonly string[], runtime: Runtime): Promise<number> {
  const { terminal, version } = runtime;
  const [first = "", ...rest] = argv;
  if (/^(--?version|-[vV]|version)$/.test(first)) {
    await terminal.out(`hook-sync ${version}\n`);
    return EXIT_OK;
  }
  if (first === "help") return help(rest[0], runtime);

  const named = COMMANDS.find((command) => command.name === first);
  if (named === undefined && first !== "" && !first.startsWith("-")) {
    return unknownCommand(first, runtime);
  }
  const asked = argv.slice(0, argv.includes("--") ? argv.indexOf("--") : undefined);
  if (asked.some((word) => /^(--?help|-h)$/.test(word))) return help(named?.name, runtime);
  return (named ?? serve).run(named === undefined ? argv : rest, runtime);
}

async function help(name: string | undefined, runtime: Runtime): Promise<number> {
  const command = COMMANDS.find((known) => known.name === name);
  if (command === undefined && name !== undefined) return unknownCommand(name, runtime);
  await runtime.terminal.out(command?.usage ?? overview(runtime.version));
  return EXIT_OK;
}

async function unknownCommand(name: string, { terminal }: Runtime): Promise<number> {
  const names = COMMANDS.map((command) => command.name);
  const right = unknownName(name, "command", name, names);
  await terminal.err(`hook-sync: ${JSON.stringify(name)}: ${right}\nTry: hook-sync help\n`);
  return EXIT_USAGE;
}

function overview(version: string): string {
  const shown = [...COMMANDS, { name: "help", summary: "show this, or how COMMAND is used" }];
  const width = Math.max(...shown.map(({ name }) => name.length));
  const lines = shown.map(({ name, summary }) => `  ${name.padEnd(width)}  ${summary}\n`);
  return `hook-sync ${version}: SQLite files that replicate to each other, every one writable.

Commands:
${lines.join("")}
${serve.usage}`;
}
