/**
 * `hook-sync verify`: proves that nodes hold the same rows, or names the keys that differ, and makes
 * them the same where that is asked.
 *
 * Exit codes: 0 equal, or made so; 1 different; 2 could not tell: a node cannot be reached, changes did
 * not arrive in time, or the command line is wrong.
 */
import { systemClock, systemTimers } from "../base/clock.ts";
import type { Mistake } from "../base/flags.ts";
import { readCount } from "../base/read-value.ts";
import type { KeyState } from "../protocol/digest.ts";
import {
  type ComparedTable,
  type Comparison,
  ComparisonError,
  compareNodes,
  type DifferingKey,
  isEqual,
} from "../shipper/comparison.ts";
import { type Command, EXIT_FAILED, EXIT_OK, EXIT_USAGE, type Runtime } from "./command.ts";
import {
  askDirectly,
  JSON_FLAG,
  type NodeFlag,
  readNodeWords,
  readUrl,
  refuse,
  withAdvice,
} from "./node-words.ts";
import { columnsText, flagLines } from "./usage.ts";

const EXIT_COULD_NOT_TELL = EXIT_USAGE;
const WAIT_S = 30;

const REPAIR_FLAG: NodeFlag = {
  name: "repair",
  value: undefined,
  help: "send the winners of rows that differ to the nodes that lack them",
};
const WAIT_FLAG: NodeFlag = {
  name: "wait",
  value: "SECONDS",
  help: `how long changes in flight may take to arrive (${WAIT_S})`,
};
const FLAGS = [REPAIR_FLAG, WAIT_FLAG, JSON_FLAG];

/** Changes nothing without --repair. */
export const verify: Command = {
  name: "verify",
  summary: "compare the rows of running nodes, and repair what differs",
  usage: `Usage: hook-sync verify URL URL… [--repair] [--json]

Compares any number of nodes of this make, table by table: one hash each where they are equal; where
not, only the ranges that differ are read again, down to the keys. Waits for changes that are on their
way. Values are compared exactly: 1 and 1.0 differ, and so do a BLOB and its text. A table or a column
that not every node has is a difference. With --repair each row that differs gets the version that wins by
the usual rules, on every node; nothing becomes older.

Exit code 0: equal, or repaired; 1: different; 2: could not tell.

${flagLines(FLAGS)}
  hook-sync verify http://a:9001 http://b:9001
  hook-sync verify --repair http://a:9001 http://b:9001 http://c:9001
`,
  run: runVerify,
};

async function runVerify(argv: readonly string[], runtime: Runtime): Promise<number> {
  const { flags, mistakes, isJson } = readNodeWords(argv, FLAGS, {});
  const nodes = [...new Set(flags.words.map((word) => readUrl("URL", word, mistakes)))];
  if (nodes.length < 2) {
    const right = "expected two nodes or more: hook-sync verify http://a:9001 http://b:9001";
    mistakes.push({ where: "URL", value: nodes[0], right });
  }
  const waitMs = readWaitMs(flags.values.get("wait")?.[0], mistakes);
  if (mistakes.length > 0) return refuse(runtime, mistakes, "verify");
  askDirectly(runtime.env);
  const isRepairing = flags.values.get("repair")?.[0] === "true";
  let comparison: Comparison;
  try {
    comparison = await compareNodes({
      nodes,
      isSlow: false,
      repairAs: isRepairing ? "hook-sync-verify" : undefined,
      waitMs,
      clock: systemClock,
      timers: systemTimers,
    });
  } catch (error) {
    if (!(error instanceof ComparisonError)) throw error;
    await runtime.terminal.err(`hook-sync: could not compare: ${withAdvice(error.message)}\n`);
    return EXIT_COULD_NOT_TELL;
  }
  await runtime.terminal.out(isJson ? comparisonJson(comparison) : comparisonText(comparison));
  if (isEqual(comparison)) return EXIT_OK;
  return comparison.inFlight.length > 0 ? EXIT_COULD_NOT_TELL : EXIT_FAILED;
}

function readWaitMs(text: string | undefined, mistakes: Mistake[]): number {
  if (text === undefined) return WAIT_S * 1_000;
  const read = readCount("seconds", 0, 86_400)(text);
  if ("value" in read) return read.value * 1_000;
  mistakes.push({ where: "--wait", value: text, right: read.right });
  return 0;
}

// ── As text ───────────────────────────────────────────────────────────────────────────────────

/** Keys shown of each table; --json has all. */
const KEYS_SHOWN = 20;

/** What a person reads. */
export function comparisonText(comparison: Comparison): string {
  const { nodes, tables, inFlight } = comparison;
  const head = ["table", ...nodes.map(({ id }) => id), ""];
  const lines = tables.map((table) => [
    table.table,
    ...table.rows.map((rows) => (rows === undefined ? "-" : rowsText(rows))),
    verdictText(table, nodes),
  ]);
  const blocks = [columnsText([head, ...lines])];
  for (const table of tables) {
    const notes = noteLines(table, nodes);
    if (notes.length > 0) blocks.push(`${[`${table.table}:`, ...notes].join("\n")}\n`);
  }
  if (inFlight.length > 0) {
    const reasons = inFlight.map((reason) => `  ${reason}\n`);
    blocks.push(`could not tell for certain, as changes were on their way:\n${reasons.join("")}`);
  }
  return blocks.join("\n");
}

function verdictText(table: ComparedTable, nodes: Comparison["nodes"]): string {
  const { rows, missing, partColumns, differing, hasMore } = table;
  const parts: string[] = [];
  const repaired = differing.filter(({ isRepaired }) => isRepaired).length;
  if (differing.length > 0) {
    parts.push(`${hasMore ? "more than " : ""}${rowsText(differing.length)} differ`);
  }
  if (repaired > 0) parts.push(`${rowsText(repaired)} repaired`);
  if (missing.length > 0) {
    parts.push(`not synced on ${missing.map(({ node }) => nodes[node]!.id).join(", ")}`);
  }
  const isCompared = rows.filter((count) => count !== undefined).length > 1;
  if (differing.length === 0 && isCompared) {
    parts.unshift(partColumns.length === 0 ? "equal" : "equal in the columns that all have");
  }
  return parts.join(", ");
}

function noteLines(table: ComparedTable, nodes: Comparison["nodes"]): string[] {
  const lines = table.missing.map(
    ({ node, reason }) => `  not synced on ${nodes[node]!.id}: ${reason}`,
  );
  for (const { column, nodes: places } of table.partColumns) {
    const ids = places.map((at) => nodes[at]!.id);
    lines.push(`  the column ${column} is only on ${ids.join(", ")} and was not compared`);
  }
  const counts = table.tombstones.filter((count) => count !== undefined);
  if (new Set(counts).size > 1) {
    lines.push(
      `  deletes remembered: ${counts.join(", ")} (each node forgets them in its own time)`,
    );
  }
  for (const key of table.differing.slice(0, KEYS_SHOWN)) lines.push(...keyLines(key, nodes));
  const more = table.differing.length - KEYS_SHOWN;
  if (more > 0) lines.push(`  and ${rowsText(more)} more; --json shows all`);
  if (table.hasMore) {
    lines.push(
      "  more rows differ than are worth repairing one by one: see hook-sync help backfill",
    );
  }
  return lines;
}

function keyLines(key: DifferingKey, nodes: Comparison["nodes"]): string[] {
  const states = key.states.map((state, at) => `${nodes[at]!.id}: ${stateText(state)}`);
  const repaired = key.isRepaired ? " (repaired)" : "";
  const columns = key.columns.map(
    ({ column, values }) => `    ${column}: ${values.map(shortened).join(" | ")}`,
  );
  return [`  ${JSON.stringify(key.id)}  ${states.join(", ")}${repaired}`, ...columns];
}

function stateText(state: KeyState | undefined): string {
  if (state === undefined) return "nothing";
  const version = state.version === null ? "without a version" : `version ${state.version}`;
  return state.deleted ? `deleted at ${version}` : version;
}

function shortened(value: string): string {
  return value.length > 60 ? `${value.slice(0, 60)}…` : value;
}

function rowsText(count: number): string {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

// ── As JSON ───────────────────────────────────────────────────────────────────────────────────

/** The same for programs, with all keys. */
export function comparisonJson(comparison: Comparison): string {
  const report = {
    equal: isEqual(comparison),
    nodes: comparison.nodes.map(({ url, id }) => ({ url, node_id: id })),
    tables: comparison.tables.map((table) => ({
      table: table.table,
      rows: table.rows.map((rows) => rows ?? null),
      tombstones: table.tombstones.map((count) => count ?? null),
      not_synced_on: table.missing.map(({ node, reason }) => ({
        node_id: comparison.nodes[node]!.id,
        reason,
      })),
      columns_of_some: table.partColumns,
      differing: table.differing.map(({ id, states, columns, isRepaired }) => ({
        id,
        versions: states.map((state) => state?.version ?? null),
        states: states.map((state) =>
          state === undefined ? "nothing" : state.deleted ? "deleted" : "row",
        ),
        columns,
        repaired: isRepaired,
      })),
      more_differ: table.hasMore,
      rows_read: table.rowsRead,
    })),
    in_flight: comparison.inFlight,
  };
  return `${JSON.stringify(report)}\n`;
}
