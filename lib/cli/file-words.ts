/** The words of the commands that work on a file at rest: `--db F`, switches, and what the command takes. */
import { type FlagSpec, type FlagWords, type Mistake, readFlags } from "../base/flags.ts";

/** A flag that can also be shown in the usage. */
export interface FileFlag extends FlagSpec {
  readonly help: string;
}

/** The one file that such a command works on. */
export const DB_FLAG: FileFlag = { name: "db", value: "FILE", help: "SQLite file" };

/** What was typed; a command looks at `mistakes` before anything else. */
export interface FileWords {
  /** Empty where none was given, which is among the mistakes. */
  readonly path: string;
  readonly flags: FlagWords;
  readonly mistakes: readonly Mistake[];
}

/** `wordsMax`: how many bare words the command takes. */
export function readFileWords(
  argv: readonly string[],
  specs: readonly FileFlag[],
  wordsMax = 0,
): FileWords {
  const flags = readFlags(argv, specs);
  const mistakes = [...flags.mistakes];
  const path = flags.values.get("db")?.[0];
  if (path === undefined && !mistakes.some(({ where }) => /^--?db$/.test(where))) {
    const right = "missing; expected the file: --db node1.db";
    mistakes.push({ where: "--db", value: undefined, right });
  } else if (path === "") mistakes.push({ where: "--db", value: path, right: "expected a file" });
  for (const word of flags.words.slice(wordsMax)) {
    mistakes.push({ where: "argument", value: word, right: "expected no such word here" });
  }
  return { path: path ?? "", flags, mistakes };
}
