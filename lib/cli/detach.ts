/**
 * `hook-sync detach`: the way back. A file taken out of syncing is as it was before, with the data it
 * has now; what was still to be sent is gone, so that needs --force.
 *
 * Exit codes: 0 done (or nothing to do); 1 refused, and nothing was changed; 2 for a wrong command line.
 */
import { HookSyncError } from "../base/errors.ts";
import type { DetachOutcome, Losses } from "../store/detach.ts";
import { type Command, EXIT_FAILED, EXIT_OK, EXIT_USAGE, type Runtime } from "./command.ts";
import { DB_FLAG, type FileFlag, readFileWords } from "./file-words.ts";
import { flagLines, mistakesText } from "./usage.ts";

const FLAGS: readonly FileFlag[] = [
  DB_FLAG,
  {
    name: "force",
    value: undefined,
    help: "also where changes that were not sent, or not applied, are lost",
  },
];

/** Refuses a file that a node uses, with --force as well. */
export const detach: Command = {
  name: "detach",
  summary: "take everything of hook-sync out of a file; data stays as it is",
  usage: `Usage: hook-sync detach --db FILE [--force]

Takes the capture triggers and the tables of hook-sync out of the file. Data, and triggers and indexes
of your own, stay as they are. Stop the node first. The file stays in WAL mode, SQLite keeps its own
sqlite_sequence, and FILE.hook-sync-lock may be deleted.

${flagLines(FLAGS)}
  hook-sync detach --db node1.db
`,
  run: runDetach,
};

async function runDetach(argv: readonly string[], { terminal }: Runtime): Promise<number> {
  const { path, flags, mistakes } = readFileWords(argv, FLAGS);
  if (mistakes.length > 0) {
    await terminal.err(mistakesText(mistakes, "hook-sync help detach"));
    return EXIT_USAGE;
  }
  const isForced = flags.values.get("force")?.[0] === "true";
  const store = await import("../store/detach.ts");
  try {
    const outcome = store.detach(path, isForced);
    if (outcome.kind === "refused") {
      await terminal.err(
        `hook-sync: ${path} holds what would be lost: ${lossesText(outcome.losses)}. Start the node and let it send, or add --force.\n`,
      );
      return EXIT_FAILED;
    }
    await terminal.out(outcomeText(path, outcome));
    return EXIT_OK;
  } catch (error) {
    if (!(error instanceof HookSyncError)) throw error;
    await terminal.err(`hook-sync: ${error.message}. ${error.hint}\n`);
    return EXIT_FAILED;
  }
}

/** What would go, or went, with the log: `3 unsent changes (http://b:9001 lacks 3), 1 parked change`. */
export function lossesText({ unsent, peers, parked, refused }: Losses): string {
  const parts: string[] = [];
  if (unsent > 0) {
    const lacking = peers.filter((peer) => peer.unsent > 0);
    const who =
      peers.length === 0
        ? "no peer has been set"
        : lacking.map((peer) => `${peer.url} lacks ${peer.unsent}`).join(", ");
    parts.push(`${count(unsent, "unsent change")} (${who})`);
  }
  if (parked > 0) parts.push(`${count(parked, "dead letter")} that could not be applied here`);
  if (refused > 0) parts.push(`${count(refused, "dead letter")} that a peer refused`);
  return parts.join(", ") || "nothing";
}

function outcomeText(
  path: string,
  outcome: Exclude<DetachOutcome, { readonly kind: "refused" }>,
): string {
  if (outcome.kind === "nothing-there") return `${path}: nothing of hook-sync is in it\n`;
  const { tables, losses, kept } = outcome;
  const lines = [
    `${path}: detached; no longer captured: ${tables.join(", ") || "no table was"}`,
    `lost with the log: ${lossesText(losses)}`,
  ];
  for (const { table, reader } of kept) {
    lines.push(
      `${table} stays, because your ${reader} reads it; once that is gone: DROP TABLE ${table};`,
    );
  }
  lines.push("the file stays in WAL mode; PRAGMA journal_mode = DELETE changes that");
  return `${lines.join("\n")}\n`;
}

function count(n: number, what: string): string {
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}
