/**
 * `hook-sync peer`: who a running node ships to, and changing that without a restart.
 *
 * Exit codes: 0 done; 1 the node refused or cannot be reached; 2 for a wrong command line.
 */
import { answered, callNode, complaint, listedPeers } from "../shipper/node-client.ts";
import { type Command, EXIT_OK, type Runtime } from "./command.ts";
import {
  askDirectly,
  fail,
  JSON_FLAG,
  NODE_FLAG,
  type NodeWords,
  readNodeWords,
  readUrl,
  refuse,
  TOKEN_FLAG,
} from "./node-words.ts";
import { columnsText, flagLines } from "./usage.ts";

const FLAGS = [NODE_FLAG, TOKEN_FLAG, JSON_FLAG];
const ACTIONS = ["list", "add", "remove"];

/** Speaks to a running node; a file at rest keeps the peers it has. */
export const peer: Command = {
  name: "peer",
  summary: "list, add or remove the peers of a running node",
  usage: `Usage: hook-sync peer list|add|remove [--node URL] [PEER_URL]

Changes are kept in the node's file. Each node has a list of its own: a new node must be added on all
others, and they on it ("hook-sync serve --join" does all of it). A removed peer no longer holds the log
of changes; when it comes back it gets everything once more.

${flagLines(FLAGS)}
  hook-sync peer list
  hook-sync peer add --node http://127.0.0.1:9001 http://host:9002
  hook-sync peer remove http://host:9002
`,
  run: runPeer,
};

async function runPeer(argv: readonly string[], runtime: Runtime): Promise<number> {
  const words = readNodeWords(argv, FLAGS, runtime.env);
  const [action = "", ...urls] = words.flags.words;
  const { mistakes } = words;
  if (!ACTIONS.includes(action)) {
    const value = action === "" ? undefined : action;
    mistakes.push({ where: "peer", value, right: `expected ${ACTIONS.join(", ")}` });
  }
  const wanted = action === "add" || action === "remove" ? 1 : 0;
  if (urls.length < wanted) {
    const right = `missing; expected a peer: hook-sync peer ${action} http://host:9002`;
    mistakes.push({ where: "PEER_URL", value: undefined, right });
  }
  for (const word of urls.slice(wanted)) {
    mistakes.push({ where: "argument", value: word, right: "expected no such word here" });
  }
  const [url = ""] = urls.slice(0, wanted).map((text) => readUrl("PEER_URL", text, mistakes));
  if (mistakes.length > 0) return refuse(runtime, mistakes, "peer");
  askDirectly(runtime.env);
  switch (action) {
    case "add":
      return add(words, url, runtime);
    case "remove":
      return remove(words, url, runtime);
    default:
      return list(words, runtime);
  }
}

async function list({ node, isJson }: NodeWords, runtime: Runtime): Promise<number> {
  const answer = await callNode({ node, method: "GET", path: "/peers" });
  const peers = listedPeers(answer);
  if (answer.kind === "failed" || peers === undefined) {
    return fail(runtime, node, complaint(answer));
  }
  if (isJson) {
    await runtime.terminal.out(`${answer.text}\n`);
    return EXIT_OK;
  }
  const lines = peers.map(({ url, node_id, make, configured }) => [
    url,
    node_id ?? "?",
    make === "ours" ? "hook-sync for Bun" : !make ? "not heard of yet" : "another make",
    configured ? "from the configuration" : "added while running",
  ]);
  await runtime.terminal.out(peers.length === 0 ? "no peers\n" : columnsText(lines));
  return EXIT_OK;
}

async function add({ node, token }: NodeWords, url: string, runtime: Runtime): Promise<number> {
  const answer = await callNode({ node, method: "POST", path: "/peers", body: { url }, token });
  const isNew = answered(answer, "added");
  if (typeof isNew !== "boolean") return fail(runtime, node, complaint(answer));
  await runtime.terminal.out(
    isNew
      ? `${node} ships to ${url} from now on; that node needs this one as a peer, too\n`
      : `${url} was a peer already\n`,
  );
  return EXIT_OK;
}

async function remove({ node, token }: NodeWords, url: string, runtime: Runtime): Promise<number> {
  const path = `/peers/${encodeURIComponent(url)}`;
  const answer = await callNode({ node, method: "DELETE", path, token });
  if (answered(answer, "removed") === undefined) return fail(runtime, node, complaint(answer));
  await runtime.terminal.out(`${node} no longer ships to ${url}\n`);
  return EXIT_OK;
}
