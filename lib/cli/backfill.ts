/**
 * `hook-sync backfill`: sends a peer everything once more. Nodes of our make ask for that themselves
 * when they need it; nodes of other makes cannot.
 *
 * Exit codes: 0 it has begun; 1 the node refused or cannot be reached; 2 for a wrong command line.
 */
import { answered, callNode, complaint } from "../shipper/node-client.ts";
import { type Command, EXIT_OK, type Runtime } from "./command.ts";
import {
  askDirectly,
  fail,
  NODE_FLAG,
  type NodeFlag,
  readNodeWords,
  readUrl,
  refuse,
  TOKEN_FLAG,
} from "./node-words.ts";
import { flagLines } from "./usage.ts";

const PEER_FLAG: NodeFlag = {
  name: "peer",
  value: "URL",
  help: "the peer that is to get everything, as the node knows it",
};
const FLAGS = [PEER_FLAG, NODE_FLAG, TOKEN_FLAG];

/** Only starts it: the node goes on by itself, also over restarts. */
export const backfill: Command = {
  name: "backfill",
  summary: "send a peer every row and every delete once more",
  usage: `Usage: hook-sync backfill --peer URL [--node URL]

Sends the peer everything the node has. That harms nothing: what the peer has newer stays, and live
changes keep flowing in between. For peers of other makes that were restored or replaced; those of this
make are filled by themselves. "hook-sync status" shows how far it is.

${flagLines(FLAGS)}
  hook-sync backfill --peer http://host:9002
`,
  run: runBackfill,
};

async function runBackfill(argv: readonly string[], runtime: Runtime): Promise<number> {
  const { node, token, flags, mistakes } = readNodeWords(argv, FLAGS, runtime.env);
  for (const word of flags.words) {
    mistakes.push({ where: "argument", value: word, right: "expected no such word here" });
  }
  const given = flags.values.get("peer")?.[0];
  if (given === undefined && !mistakes.some(({ where }) => /^--?peer$/.test(where))) {
    const right = "missing; expected the peer: --peer http://host:9002";
    mistakes.push({ where: "--peer", value: undefined, right });
  }
  const url = given === undefined ? "" : readUrl("--peer", given, mistakes);
  if (mistakes.length > 0) return refuse(runtime, mistakes, "backfill");
  askDirectly(runtime.env);
  const answer = await callNode({
    node,
    method: "POST",
    path: "/peers/backfill",
    body: { peer: url },
    token,
  });
  if (answered(answer, "filling") !== true) return fail(runtime, node, complaint(answer));
  await runtime.terminal.out(`${node} sends everything to ${url}\n`);
  return EXIT_OK;
}
