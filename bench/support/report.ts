/** What a run says at its end: the table and the machine it is true for. */
import { Database } from "bun:sqlite";
import { cpus, loadavg } from "node:os";
import { meets, type Result } from "./bench.ts";

export interface Report {
  readonly name: string;
  readonly question: string;
  readonly results: readonly Result[];
}

const HEADINGS = ["bench", "what", "numbers", "ratio", "target", "verdict"] as const;

/** As Markdown, so that it can go into a README as it is. */
export function table(reports: readonly Report[]): string {
  const rows = reports.flatMap(({ name, results }) =>
    results.map((result) => [
      name,
      result.what,
      result.numbers,
      result.ratio.toFixed(2),
      targetText(result),
      verdict(result),
    ]),
  );
  const all = [[...HEADINGS], ...rows];
  const widths = HEADINGS.map((_, at) => Math.max(...all.map((row) => row[at]!.length)));
  const line = (row: readonly string[]) =>
    `| ${row.map((cell, at) => cell.padEnd(widths[at]!)).join(" | ")} |`;
  const rule = `|${widths.map((width) => "-".repeat(width + 2)).join("|")}|`;
  return [line(HEADINGS), rule, ...rows.map(line)].join("\n");
}

function targetText({ target }: Result): string {
  if (target === undefined) return "";
  return "atLeast" in target ? `≥ ${target.atLeast}` : `≤ ${target.atMost}`;
}

export function verdict(result: Result): string {
  const isMet = meets(result);
  return isMet === undefined ? "reported" : isMet ? "meets" : "misses";
}

export interface Machine {
  readonly date: string;
  readonly cores: number;
  readonly cpu: string;
  /** Before the run and after it: more than the run itself makes means somebody else was at work. */
  readonly loadBefore: number;
  readonly loadAfter: number;
  readonly bun: string;
  readonly sqlite: string;
}

export function machine(loadBefore: number): Machine {
  const db = new Database(":memory:");
  const { version } = db
    .query<{ version: string }, []>("SELECT sqlite_version() AS version")
    .get()!;
  db.close();
  return {
    date: new Date().toISOString().slice(0, 16).replace("T", " "),
    cores: cpus().length,
    cpu: cpus()[0]?.model ?? "unknown",
    loadBefore,
    loadAfter: loadavg()[0]!,
    bun: Bun.version,
    sqlite: version,
  };
}

export function machineLine(m: Machine): string {
  const load = `load ${m.loadBefore.toFixed(1)} before, ${m.loadAfter.toFixed(1)} after`;
  return `${m.date} UTC, ${m.cores} cores (${m.cpu}), ${load}, Bun ${m.bun}, SQLite ${m.sqlite}`;
}
