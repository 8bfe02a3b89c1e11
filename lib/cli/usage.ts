/** The texts that a person sees: how a command is used, and what was wrong with how it was used. */
import { type FlagSpec, type Mistake, quote } from "../base/flags.ts";

/** `  --batch-ms MS   how often …`, one line a flag, the texts in one column. */
export function flagLines(flags: readonly (FlagSpec & { readonly help: string })[]): string {
  const heads = flags.map(
    ({ name, value }) => `--${name}${value === undefined ? "" : ` ${value}`}`,
  );
  const width = Math.max(...heads.map((head) => head.length));
  return flags.map(({ help }, at) => `  ${heads[at]!.padEnd(width)}  ${help}\n`).join("");
}

/** All mistakes, one line each, and what to do. */
export function mistakesText(mistakes: readonly Mistake[], tryThis: string): string {
  const lines = mistakes.map(({ where, value, right }) => {
    const shown = value === undefined ? "" : ` ${quote(value)}`;
    return `hook-sync: ${where}${shown}: ${right}\n`;
  });
  return `${lines.join("")}Try: ${tryThis}\n`;
}

/** Rows of cells in columns, a line each; the last cell of a row is as long as it is. */
export function columnsText(rows: readonly (readonly string[])[]): string {
  const widths: number[] = [];
  for (const row of rows) {
    for (const [at, cell] of row.slice(0, -1).entries()) {
      widths[at] = Math.max(widths[at] ?? 0, cell.length);
    }
  }
  const lines = rows.map((row) =>
    row.map((cell, at) => (at === row.length - 1 ? cell : cell.padEnd(widths[at]!))).join("  "),
  );
  return lines.map((line) => `${line.trimEnd()}\n`).join("");
}
