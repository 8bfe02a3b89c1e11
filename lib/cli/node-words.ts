/** The words of the commands that ask a running node: where it is, and the token that lets one change it. */
import { type FlagSpec, type FlagWords, type Mistake, readFlags } from "../base/flags.ts";
import { parsePeerUrl, withoutCredentials } from "../protocol/peer-url.ts";
import { forgetProxies } from "../shipper/transport.ts";
import { EXIT_FAILED, EXIT_USAGE, type Runtime } from "./command.ts";
import { mistakesText } from "./usage.ts";

/** A flag that can also be shown in the usage. */
export interface NodeFlag extends FlagSpec {
  readonly help: string;
}

/** Where a node listens that was started without --listen, on this machine. */
const NODE_DEFAULT = "http://127.0.0.1:9001";

/** Whoever does not give it asks the default node of this machine. */
export const NODE_FLAG: NodeFlag = {
  name: "node",
  value: "URL",
  help: `the node to ask (${NODE_DEFAULT})`,
};

/** For what changes a node or copies its file; all else is open. */
export const TOKEN_FLAG: NodeFlag = {
  name: "admin-token",
  value: "TEXT",
  help: "its --admin-token, where it runs on another machine; also HOOK_SYNC_ADMIN_TOKEN",
};

/** For programs; the text is for people and may change. */
export const JSON_FLAG: NodeFlag = {
  name: "json",
  value: undefined,
  help: "one JSON object instead of text",
};

/** What was typed, with `node` in its one spelling; look at `mistakes` first. */
export interface NodeWords {
  readonly node: string;
  readonly token: string | undefined;
  readonly isJson: boolean;
  readonly flags: FlagWords;
  readonly mistakes: Mistake[];
}

/** Reads the flags that most of these commands share; bare words are the command's own. */
export function readNodeWords(
  argv: readonly string[],
  specs: readonly NodeFlag[],
  env: Runtime["env"],
): NodeWords {
  const flags = readFlags(argv, specs);
  const mistakes = [...flags.mistakes];
  const node = readUrl("--node", flags.values.get("node")?.[0] ?? NODE_DEFAULT, mistakes);
  const token = flags.values.get("admin-token")?.[0] ?? env["HOOK_SYNC_ADMIN_TOKEN"];
  return {
    node,
    token: token === "" ? undefined : token,
    isJson: flags.values.get("json")?.[0] === "true",
    flags,
    mistakes,
  };
}

/** The address in its one spelling; what is wrong with it goes to the mistakes. */
export function readUrl(where: string, text: string, mistakes: Mistake[]): string {
  const parsed = parsePeerUrl(text);
  if ("url" in parsed) return parsed.url;
  mistakes.push({ where, value: withoutCredentials(text), right: parsed.wrong });
  return text;
}

/** Nodes are asked directly: a proxy for the web knows nothing of them. */
export function askDirectly(env: Runtime["env"]): void {
  forgetProxies(env as Record<string, string | undefined>);
}

/** Tells what is wrong with the command line; answers with the exit code. */
export async function refuse(
  { terminal }: Runtime,
  mistakes: readonly Mistake[],
  command: string,
): Promise<number> {
  await terminal.err(mistakesText(mistakes, `hook-sync help ${command}`));
  return EXIT_USAGE;
}

/** Tells that a node did not do what was asked; answers with the exit code. */
export async function fail({ terminal }: Runtime, node: string, why: string): Promise<number> {
  await terminal.err(`hook-sync: ${withoutCredentials(node)}: ${withAdvice(why)}\n`);
  return EXIT_FAILED;
}

/** Why there was no answer, and what to look at where nobody listens at the address. */
export function withAdvice(why: string): string {
  return why.includes("ECONNREFUSED") ? `${why}; does a node run there?` : why;
}
