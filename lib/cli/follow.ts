/**
 * `hook-sync follow`: a read copy of one database that goes from one committed transaction to the
 * next. The source is a node with --cdc, a program that serves a Turso database (lib/cdc), or a file
 * at rest.
 *
 * Exit codes: 0 told to stop, or a file's end was reached; 1 the copy's own file or the source's
 * cannot be used; 2 for a wrong command line. A source that is away is waited for.
 */
import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { systemClock, systemTimers } from "../base/clock.ts";
import { HookSyncError } from "../base/errors.ts";
import { type Mistake, readFlags } from "../base/flags.ts";
import { systemRandom } from "../base/random.ts";
import type { BridgeSource } from "../bridge.ts";
import { CdcError } from "../cdc/error.ts";
import { Follower, type FollowerStatus } from "../cdc/follower.ts";
import { Replica } from "../cdc/replica.ts";
import { SETTINGS } from "../config.ts";
import { createCopyApp } from "../http/copy-app.ts";
import { streamFrom } from "../shipper/node-client.ts";
import { CopyRows } from "../store/copy-rows.ts";
import { fileMark } from "../store/open.ts";
import { type Command, EXIT_FAILED, EXIT_OK, type Runtime } from "./command.ts";
import { DB_FLAG, readFileWords } from "./file-words.ts";
import { askDirectly, type NodeFlag, readUrl, refuse, TOKEN_FLAG } from "./node-words.ts";
import { runNode } from "./serve.ts";
import { flagLines } from "./usage.ts";

const NAME_FLAG: NodeFlag = {
  name: "name",
  value: "NAME",
  help: "how the source remembers this follower: it keeps its log for those it knows",
};
const LISTEN_FLAG: NodeFlag = {
  name: "listen",
  value: "ADDR",
  help: "answer GET /health and GET /api/TABLE here, on this machine: :9003",
};
const INTO_MESH_FLAG: NodeFlag = {
  name: "into-mesh",
  value: undefined,
  help: "run a node that brings what the source has into its mesh; see below",
};
const SOURCE_TOKEN_FLAG: NodeFlag = {
  name: "source-token",
  value: "TEXT",
  help: "with --into-mesh: the source's --admin-token; --admin-token is the node's own then",
};
const NEW_SOURCE_FLAG: NodeFlag = {
  name: "new-source",
  value: undefined,
  help: "with --into-mesh: SOURCE took the place of the one this file has rows from",
};
/** Beside those of a node. */
const BRIDGE_FLAGS = [NAME_FLAG, INTO_MESH_FLAG, SOURCE_TOKEN_FLAG, NEW_SOURCE_FLAG];
const FLAGS = [
  { ...DB_FLAG, help: "the copy" },
  NAME_FLAG,
  LISTEN_FLAG,
  TOKEN_FLAG,
  INTO_MESH_FLAG,
  SOURCE_TOKEN_FLAG,
  NEW_SOURCE_FLAG,
];

/** A file at rest is named by where it is. */
const FILE_SOURCE = /^(?:turso|sqlite)-file:(.+)$/;

/** Comes back when it is told to stop; a copy of a file at rest ends by itself. */
export const follow: Command = {
  name: "follow",
  summary: "keep a read copy of a node's file, transaction by transaction",
  usage: `Usage: hook-sync follow SOURCE --db COPY [--name NAME] [--listen ADDR]
       hook-sync follow SOURCE --into-mesh --id NAME --db FILE [flags of serve]

Makes COPY a copy of the source and keeps it one. Programs that read it see the source as it was after
some transaction, never half of one. Tables that the source creates, alters or drops follow. What the
copy held before is replaced; do not write it. A file with tables that no follower made is refused.

SOURCE is a node that runs with --cdc, or a program that serves its database (http://host:9001), or a
file that no program has open: turso-file:app.db, sqlite-file:node1.db. A file is followed to its end.

${flagLines(FLAGS)}
  hook-sync follow http://127.0.0.1:9001 --db copy.db --name copy1
  hook-sync follow turso-file:app.db --db copy.db

With --into-mesh one process is a node, with every flag of serve (hook-sync help serve), and follows
SOURCE at the same time: each transaction becomes one of FILE, is captured like any other write and
shipped to the peers. Tables with id TEXT PRIMARY KEY are made in FILE where they are missing (with an
updated_at where the source has none) and synced; the others are named in /health. --tables takes those
alone. The first copy changes what is different and deletes nothing that did not come from the source.
SOURCE must not belong to the same mesh.

  hook-sync follow http://127.0.0.1:9001 --into-mesh --id bridge --db bridge.db --listen :9004 \\
    --peer http://127.0.0.1:9002
`,
  run: runFollow,
};

async function runFollow(argv: readonly string[], runtime: Runtime): Promise<number> {
  if (argv.some((word) => /^--?into-mesh(?:=true)?$/.test(word))) return bridge(argv, runtime);
  const words = readFileWords(argv, FLAGS, 1);
  const mistakes = [...words.mistakes];
  const { file, node } = readSource(words.flags.words[0], mistakes);
  const listen = words.flags.values.get("listen")?.[0];
  const address = listen === undefined ? undefined : readListen(listen);
  if (listen !== undefined && address === undefined) {
    mistakes.push({ where: "--listen", value: listen, right: "expected :9003 or 127.0.0.1:9003" });
  }
  if (mistakes.length > 0) return refuse(runtime, mistakes, "follow");
  if (file !== undefined && !existsSync(file)) return tell(runtime, `there is no file ${file}`);
  let replica: Replica;
  try {
    replica = Replica.open(words.path);
  } catch (error) {
    return tell(runtime, `${words.path}: ${(error as Error).message}`);
  }
  try {
    if (replica.isForeign()) {
      return await tell(
        runtime,
        `${words.path} has tables of its own and is no copy: name a file that is not there`,
      );
    }
    if (file !== undefined) return await followFile(file, words.path, replica, runtime);
    const name = words.flags.values.get("name")?.[0];
    const token =
      words.flags.values.get("admin-token")?.[0] ?? runtime.env["HOOK_SYNC_ADMIN_TOKEN"];
    askDirectly(runtime.env);
    return await followNode({ node, name, token, address, copy: words.path, replica, runtime });
  } catch (error) {
    return tell(runtime, failureText(error, words.path));
  } finally {
    replica.close();
  }
}

/** Of the two one is said: a file at rest, or a node's address; neither where it is a mistake. */
function readSource(
  given: string | undefined,
  mistakes: Mistake[],
): { readonly file: string | undefined; readonly node: string } {
  if (given === undefined || given === "") {
    const right = "missing; expected what to follow: http://host:9001 or turso-file:app.db";
    mistakes.push({ where: "SOURCE", value: undefined, right });
    return { file: undefined, node: "" };
  }
  const file = FILE_SOURCE.exec(given)?.[1];
  return { file, node: file === undefined ? readUrl("SOURCE", given, mistakes) : "" };
}

/** The node's own flags go on to it; what is wrong with them it says itself. */
async function bridge(argv: readonly string[], runtime: Runtime): Promise<number> {
  const { values, words, mistakes: wrong } = readFlags(argv, [...SETTINGS, ...BRIDGE_FLAGS]);
  const mistakes = [...wrong];
  const [given, ...more] = words;
  const { file: path, node: url } = readSource(given, mistakes);
  for (const word of more) {
    mistakes.push({ where: "argument", value: word, right: "expected no such word here" });
  }
  if (mistakes.length > 0) return refuse(runtime, mistakes, "follow");
  if (path !== undefined && !existsSync(path)) return tell(runtime, `there is no file ${path}`);
  const named = values.get("name")?.[0];
  const token = values.get("source-token")?.[0];
  const own = SETTINGS.flatMap((setting) =>
    (values.get(setting.name) ?? []).map((text) => `--${setting.name}=${text}`),
  );
  return runNode(own, runtime, async (options) => {
    const name = named ?? options.config.id;
    const source: BridgeSource =
      path === undefined ? { kind: "node", url, name, token } : { kind: "file", path };
    return (await import("../node.ts")).startNode({
      ...options,
      bridge: { source, isNew: values.get("new-source")?.[0] === "true" },
    });
  });
}

/** Whatever it was, the copy is as it was after its last transaction. */
function failureText(error: unknown, copy: string): string {
  if (error instanceof HookSyncError) return `${error.message}. ${error.hint}`;
  if (error instanceof CdcError) return error.message;
  const what = error instanceof Error ? error.message : String(error);
  return `${what}. Start it again: it goes on from what ${copy} has; if that does not help, remove ${copy}, and it begins with a new copy`;
}

async function tell({ terminal }: Runtime, what: string): Promise<number> {
  await terminal.err(`hook-sync: ${what}\n`);
  return EXIT_FAILED;
}

async function followFile(
  file: string,
  copy: string,
  replica: Replica,
  { terminal }: Runtime,
): Promise<number> {
  const { followClosedFile } = await import("../cdc/closed-file.ts");
  const { copied, transactions } = await followClosedFile(file, replica, systemClock.nowMs());
  const what =
    copied === undefined
      ? `${transactions} transaction${transactions === 1 ? "" : "s"} applied`
      : `copied, since ${copied}`;
  await terminal.out(`${copy}: ${what}\n`);
  return EXIT_OK;
}

interface Following {
  readonly node: string;
  readonly name: string | undefined;
  readonly token: string | undefined;
  readonly address: Address | undefined;
  /** The copy's file. */
  readonly copy: string;
  readonly replica: Replica;
  readonly runtime: Runtime;
}

async function followNode(following: Following): Promise<number> {
  const { node, name, token, address, copy, replica, runtime } = following;
  const { terminal } = runtime;
  const named = name === undefined ? "" : `name=${encodeURIComponent(name)}`;
  let told: string | undefined;
  const mark = fileMark(copy);
  const follower = new Follower({
    replica,
    checkFile: () => {
      if (fileMark(copy) === mark) return;
      const what = `${copy} was removed or replaced while it followed ${node}`;
      throw new HookSyncError(
        "file-moved",
        what,
        "Start it again: it takes a new copy, or goes on.",
      );
    },
    clock: systemClock,
    timers: systemTimers,
    random: systemRandom,
    spool: { folder: dirname(copy) },
    connect: (query, signal) => {
      const parameters = [query, named].filter((part) => part !== "").join("&");
      return streamFrom({ node, path: `/cdc/stream?${parameters}`, token, signal });
    },
    onBatch: ({ kind, commit }) => {
      if (kind === "copy") void terminal.out(`copied up to ${commit}\n`);
      if (told !== undefined) void terminal.out(`following ${node} again\n`);
      told = undefined;
    },
    onEnd: (reason) => {
      // Once for each reason: a source that is away for a night is one line.
      if (reason !== undefined && reason !== told)
        void terminal.err(`hook-sync: ${node}: ${reason}\n`);
      told = reason;
    },
  });
  const server = address === undefined ? undefined : serveCopy(address, following, follower);
  const stop = () => follower.stop();
  process.on("SIGTERM", stop);
  process.on("SIGINT", stop);
  if (server !== undefined) await terminal.out(`health at ${server.url}health\n`);
  try {
    await follower.run();
    return EXIT_OK;
  } finally {
    process.off("SIGTERM", stop);
    process.off("SIGINT", stop);
    await server?.stop();
  }
}

interface Address {
  readonly hostname: string;
  readonly port: number;
}

/** Without a host, this machine only: a copy shows everything. */
function readListen(text: string): Address | undefined {
  const match = /^(?:(\[[^\]]+\]|[^:]*):)?(\d{1,5})$/.exec(text);
  const port = Number(match?.[2]);
  if (match === null || port > 65_535) return undefined;
  return { hostname: match[1] === undefined || match[1] === "" ? "127.0.0.1" : match[1], port };
}

function serveCopy(address: Address, following: Following, follower: Follower) {
  const { node, copy, replica } = following;
  const rows = new CopyRows(copy);
  const server = Bun.serve({
    ...address,
    fetch: createCopyApp({ rows, health: () => healthOf(node, replica, follower.status) }),
  });
  const stop = async () => {
    await server.stop(true);
    rows.close();
  };
  return { url: server.url, stop };
}

function healthOf(
  source: string,
  replica: Replica,
  status: FollowerStatus,
): Readonly<Record<string, unknown>> {
  const watermark = replica.watermark();
  return {
    ok: watermark !== null && (status.state === "following" || status.state === "connecting"),
    source,
    state: status.state,
    log: watermark?.log ?? null,
    commit: watermark === null ? null : watermark.commit.toString(),
    transactions: status.transactions,
    copies: status.copies,
    lag_transactions: status.lagTransactions,
    lag_ms: status.lagMs,
    last_error: status.lastError,
    foreign_keys_hold: replica.keysHold ?? null,
  };
}
