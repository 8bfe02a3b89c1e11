/**
 * `hook-sync alter`: the ALTER TABLE that SQLite refuses while capture triggers name the column, as one
 * transaction with all that depends on it; a node may run on the file meanwhile.
 *
 * Exit codes: 0 done; 1 refused, and nothing was changed; 2 for a wrong command line.
 */
import { HookSyncError } from "../base/errors.ts";
import { type Command, EXIT_FAILED, EXIT_OK, EXIT_USAGE, type Runtime } from "./command.ts";
import { DB_FLAG, type FileFlag, readFileWords } from "./file-words.ts";
import { flagLines, mistakesText } from "./usage.ts";

const FLAGS: readonly FileFlag[] = [DB_FLAG];

/** Works on the file itself; needs no running node. */
export const alter: Command = {
  name: "alter",
  summary: "run one ALTER TABLE on a synced table",
  usage: `Usage: hook-sync alter --db FILE "ALTER TABLE …"

SQLite refuses DROP COLUMN while a trigger names the column, and the capture triggers name all. This
takes them off, runs the statement, puts the changes that wait to be sent right, and puts the
triggers back, in one transaction: done whole or not at all. A node may run on the file meanwhile.
Each node's file is altered on its own; until all are, they sync the columns they share.

${flagLines(FLAGS)}
  hook-sync alter --db node1.db "ALTER TABLE items DROP COLUMN note"
  hook-sync alter --db node1.db "ALTER TABLE items RENAME COLUMN name TO title"
`,
  run: runAlter,
};

async function runAlter(argv: readonly string[], { terminal }: Runtime): Promise<number> {
  const { path, flags, mistakes } = readFileWords(argv, FLAGS, 1);
  const { alterTable, parseAlteration } = await import("../store/alter-table.ts");
  const [text] = flags.words;
  const alteration = parseAlteration(text ?? "");
  if (mistakes.length > 0 || "right" in alteration) {
    const wrong =
      "right" in alteration ? [{ where: "SQL", value: text, right: alteration.right }] : [];
    await terminal.err(mistakesText([...mistakes, ...wrong], "hook-sync help alter"));
    return EXIT_USAGE;
  }
  try {
    const { table, isSynced } = alterTable(path, alteration);
    const said = isSynced ? "it is synced as before" : "no capture trigger stands on it";
    await terminal.out(`${table}: done; ${said}\n`);
    return EXIT_OK;
  } catch (error) {
    if (!(error instanceof HookSyncError)) throw error;
    await terminal.err(`hook-sync: ${error.message}. ${error.hint}\n`);
    return EXIT_FAILED;
  }
}
