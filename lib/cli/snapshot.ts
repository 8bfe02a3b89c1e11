/**
 * `hook-sync snapshot`: a copy of a node's file while the node runs, whole and checked, from which
 * another node can start: under another --id it is a file of its own.
 *
 * Exit codes: 0 done; 1 refused or failed, and there is no OUT; 2 for a wrong command line.
 */
import { existsSync, rmSync, statSync } from "node:fs";
import { HookSyncError } from "../base/errors.ts";
import { downloadFrom } from "../shipper/node-client.ts";
import { type Command, EXIT_FAILED, EXIT_OK, type Runtime } from "./command.ts";
import {
  askDirectly,
  fail,
  NODE_FLAG,
  type NodeFlag,
  readNodeWords,
  refuse,
  TOKEN_FLAG,
} from "./node-words.ts";
import { flagLines } from "./usage.ts";

const DB_FLAG: NodeFlag = {
  name: "db",
  value: "FILE",
  help: "copy this file, on this machine, instead of asking a node",
};
/** Here without a default: nothing is copied that was not named. */
const SOURCE_FLAG: NodeFlag = { ...NODE_FLAG, help: "copy the file of this running node" };
const FLAGS = [SOURCE_FLAG, TOKEN_FLAG, DB_FLAG];

/** Asks a node or reads its file; the copy is checked before it gets its name. */
export const snapshot: Command = {
  name: "snapshot",
  summary: "copy a node's file while it runs, to start another node from",
  usage: `Usage: hook-sync snapshot --node URL|--db FILE OUT

Makes a consistent copy of the whole file while its node runs, checks it, and gives it the name OUT only
then. A node that starts on the copy under another --id gets from the others only what is newer. Whoever
asks a node must be on its machine or have its --admin-token.

${flagLines(FLAGS)}
  hook-sync snapshot --db node1.db copy.db
  hook-sync snapshot --node http://host:9001 --admin-token "$TOKEN" node4.db
`,
  run: runSnapshot,
};

async function runSnapshot(argv: readonly string[], runtime: Runtime): Promise<number> {
  const { node, token, flags, mistakes } = readNodeWords(argv, FLAGS, runtime.env);
  const db = flags.values.get("db")?.[0];
  const [out, ...others] = flags.words;
  if (db !== undefined && flags.values.has("node")) {
    mistakes.push({ where: "--db", value: db, right: "expected either --db or --node" });
  }
  if (db === undefined && !flags.values.has("node") && mistakes.length === 0) {
    mistakes.push({ where: "--node", value: undefined, right: "missing; expected --node or --db" });
  }
  if (out === undefined || out === "") {
    const right = "missing; expected the file to write: copy.db";
    mistakes.push({ where: "OUT", value: out, right });
  }
  for (const word of others) {
    mistakes.push({ where: "argument", value: word, right: "expected no such word here" });
  }
  if (mistakes.length > 0) return refuse(runtime, mistakes, "snapshot");
  askDirectly(runtime.env);
  try {
    const failed = await (db === undefined
      ? copyOfNode(node, token, out!, runtime)
      : copyOfFile(db, out!));
    if (failed !== undefined) return failed;
  } catch (error) {
    if (!(error instanceof HookSyncError)) throw error;
    await runtime.terminal.err(`hook-sync: ${error.message}. ${error.hint}\n`);
    return EXIT_FAILED;
  }
  const mib = (statSync(out!).size / 1_048_576).toFixed(1);
  await runtime.terminal.out(`${out}: ${mib} MiB, checked\n`);
  return EXIT_OK;
}

async function copyOfFile(db: string, out: string): Promise<undefined> {
  const { snapshotFile } = await import("../store/snapshot.ts");
  snapshotFile(db, out);
}

async function copyOfNode(
  node: string,
  token: string | undefined,
  out: string,
  runtime: Runtime,
): Promise<number | undefined> {
  const { prepareOut, publish } = await import("../store/snapshot.ts");
  const written = prepareOut(out);
  try {
    const complaint = await downloadFrom({ node, path: "/snapshot", token, file: written });
    if (complaint !== undefined) return await fail(runtime, node, complaint);
    publish(written, out);
    return undefined;
  } finally {
    if (existsSync(written)) rmSync(written);
  }
}
