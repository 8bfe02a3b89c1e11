/**
 * `hook-sync check`: what a file's tables are fit for, before a node touches it. Whoever has an
 * application's database of five years wants to know what would be synced, why the rest would not,
 * and what a start changes; so this changes nothing, not even by leaving a -wal behind.
 *
 * Exit codes: 0 where everything asked for fits, 1 where something does not (or the file cannot be
 * read), 2 for a wrong command line.
 */
import { systemClock } from "../base/clock.ts";
import { HookSyncError } from "../base/errors.ts";
import type { Mistake } from "../base/flags.ts";
import type {
  Adoption,
  ForeignKey,
  Inspection,
  RowCounts,
  TableReport,
  TriggerReport,
  Verdict,
} from "../store/inspection.ts";
import { type Command, EXIT_FAILED, EXIT_OK, EXIT_USAGE, type Runtime } from "./command.ts";
import { DB_FLAG, type FileFlag, readFileWords } from "./file-words.ts";
import { flagLines, mistakesText } from "./usage.ts";

const FLAGS: readonly FileFlag[] = [
  DB_FLAG,
  {
    name: "tables",
    value: "A,B",
    repeats: true,
    help: "tables to ask for, or '*' for all that qualify (default: as the file was started with)",
  },
  { name: "json", value: undefined, help: "one JSON object instead of text" },
];

/** Reads the whole file, every row of it. */
export const check: Command = {
  name: "check",
  summary: "say which tables of a file can be synced, and what a start would change",
  usage: `Usage: hook-sync check --db FILE [--tables A,B] [--json]

Says of every table whether it can be synced, why not, and the SQL that helps. Changes nothing; a
node may run on the file meanwhile. Exit code 0: all tables asked for fit; 1: one does not.

${flagLines(FLAGS)}
  hook-sync check --db app.db
  hook-sync check --db app.db --tables notes,tags
`,
  run: runCheck,
};

async function runCheck(argv: readonly string[], { terminal }: Runtime): Promise<number> {
  const { path, flags, mistakes } = readFileWords(argv, FLAGS);
  const asked = readAsked(flags.values.get("tables"));
  if (mistakes.length > 0 || "mistake" in asked) {
    const all = [...mistakes, ...("mistake" in asked ? [asked.mistake] : [])];
    await terminal.err(mistakesText(all, "hook-sync help check"));
    return EXIT_USAGE;
  }
  const show = flags.values.get("json")?.[0] === "true" ? inspectionJson : inspectionText;
  const { readUnchanged } = await import("../store/read-unchanged.ts");
  const { inspect } = await import("../store/inspection.ts");
  try {
    const nowMs = systemClock.nowMs();
    const found = readUnchanged(path, (db, mode) =>
      inspect(db, { ...mode, asked: asked.tables, nowMs }),
    );
    await terminal.out(show(path, found));
    return isAllFit(found) ? EXIT_OK : EXIT_FAILED;
  } catch (error) {
    if (!(error instanceof HookSyncError)) throw error;
    await terminal.err(`hook-sync: ${error.message}. ${error.hint}\n`);
    return EXIT_FAILED;
  }
}

type Asked =
  | { readonly tables: readonly string[] | "*" | undefined }
  | { readonly mistake: Mistake };

function readAsked(given: readonly string[] | undefined): Asked {
  if (given === undefined) return { tables: undefined };
  const names = given.flatMap((text) => text.split(",")).map((name) => name.trim());
  if (names.every((name) => name === "*")) return { tables: "*" };
  if (!names.includes("") && !names.includes("*")) return { tables: names };
  const right = "expected names of tables, such as --tables a,b, or '*' alone for all that qualify";
  return { mistake: { where: "--tables", value: given.join(","), right } };
}

/** With `'*'` whatever fits was asked for, so nothing can be amiss. */
function isAllFit({ obstacle, asked, tables, missing }: Inspection): boolean {
  if (obstacle || missing.length > 0) return false;
  return asked === "*" || tables.every(({ isAsked, unfit }) => !isAsked || !unfit);
}

// ── As text ───────────────────────────────────────────────────────────────────────────────────

/** What a person reads. */
export function inspectionText(path: string, found: Inspection): string {
  const fit = found.tables.filter(({ unfit }) => !unfit);
  const blocks = [
    [
      `file ${path}: ${historyText(found.usedBy)}; ${count(found.tables.length, "table")}, ${fit.length} fit`,
    ],
    ...found.tables.map(tableLines),
    ...found.missing.map((verdict) => [
      `${verdict.name}: cannot be synced: ${verdict.reason}`,
      ...remedyLines(verdict),
    ]),
  ];
  if (found.others.length > 0) {
    const names = found.others.map(({ name, type }) => `${name} (${type})`);
    blocks.push([`never synced, as they hold no rows of their own: ${names.join(", ")}`]);
  }
  blocks.push(startLines(found));
  return blocks.map((lines) => `${lines.join("\n")}\n`).join("\n");
}

function historyText(usedBy: Inspection["usedBy"]): string {
  if (usedBy === undefined) return "never used by a node";
  if (usedBy.make === "other") return "used by a node of another make";
  return `used by hook-sync${usedBy.nodeId === undefined ? "" : ` as ${usedBy.nodeId}`}`;
}

function tableLines(table: TableReport): string[] {
  const { name, unfit, isAsked, rows, columns, generatedColumns } = table;
  const verdict = unfit ? `cannot be synced: ${unfit.reason}` : "fits";
  const generated = generatedColumns === 0 ? "" : ` (${generatedColumns} generated: not sent)`;
  const facts = [
    `${count(rows.all, "row")}, ${count(columns, "column")}${generated}${isAsked ? "; asked for" : ""}`,
    ...rowNotes(rows, unfit === undefined),
    ...table.triggers.map((trigger) => triggerNote(trigger)),
    ...table.foreignKeys.map((key) => foreignKeyNote(key, unfit === undefined)),
  ];
  if (!unfit && table.uniqueKeys.length > 0) {
    facts.push(
      `UNIQUE besides id (${table.uniqueKeys.join("; ")}): of two rows that clash the older is deleted, on every node alike`,
    );
  }
  return [`${name}: ${verdict}`, ...facts.map((fact) => `  ${fact}`), ...remedyLines(unfit)];
}

function remedyLines(verdict: Verdict | undefined): string[] {
  if (!verdict) return [];
  return ["  what helps:", ...verdict.remedy.split("\n").map((line) => `    ${line}`)];
}

function rowNotes(rows: RowCounts, isFit: boolean): string[] {
  const notes: [number, string][] = [
    [rows.withoutStamp, "without updated_at: version 0, they lose against anything stamped"],
    [rows.withOtherStamp, "whose updated_at is no integer: they get a new one when they change"],
    [rows.withFineStamp, "whose updated_at is not in milliseconds"],
    [
      rows.withStampInSeconds,
      "whose updated_at looks like seconds: milliseconds are expected, writes by REST outweigh them",
    ],
    [
      rows.withStampAhead,
      "stamped more than an hour ahead: other nodes keep them until they are due",
    ],
    [rows.withOddId, "whose id is NULL or a BLOB: they stay out"],
  ];
  return notes
    .filter(([rows], at) => rows > 0 && (isFit || at > 0))
    .map(([rows, note]) => `${count(rows, "row")} ${note}`);
}

function triggerNote({ name, writes, isGuarded, isFine, hasOurName }: TriggerReport): string {
  const what = writes.length === 0 ? "writes no table" : `writes ${writes.join(", ")}`;
  const kept = hasOurName ? "; it keeps its name" : "";
  if (isGuarded)
    return `trigger ${name} ${what}: fine, it is quiet while received rows are applied${kept}`;
  if (!isFine) return `trigger ${name} ${what}: runs for received rows, too, and must not`;
  return `trigger ${name} ${what}: fine, it runs for received rows, too${kept}`;
}

function foreignKeyNote(key: ForeignKey, isFit: boolean): string {
  const { columns, parent, onDelete, onUpdate, isParentSynced } = key;
  const actions = [
    ...(onDelete === "NO ACTION" ? [] : [`ON DELETE ${onDelete}`]),
    ...(onUpdate === "NO ACTION" ? [] : [`ON UPDATE ${onUpdate}`]),
  ];
  const text = ["foreign key", columns, "to", parent, ...actions].join(" ");
  if (isFit && isParentSynced) return `${text}: fine, what it causes is sent as changes`;
  if (isFit) return `${text}: ${parent} is not synced, so rows may arrive without their parent`;
  if (!isParentSynced) return text;
  return `${text}: ${parent} is synced and this is not: when a parent is deleted elsewhere, its rows stay here`;
}

function startLines({ obstacle, asked, tables, adoption }: Inspection): string[] {
  if (obstacle) return [`no node starts on this file: ${obstacle.reason}. ${obstacle.remedy}`];
  const fit = tables.filter(({ unfit }) => !unfit).map(({ name }) => name);
  if (asked === undefined) {
    if (tables.length === 0) return ["a start makes the table items, or what --schema makes"];
    if (fit.length === 0) return ["a start needs --tables, and no table fits yet"];
    return [
      `a start needs --tables, for example --tables ${fit.join(",")} (or '*': all that qualify, also later ones)`,
    ];
  }
  const changes = adoptionLines(adoption);
  if (changes.length === 0) return ["a start changes nothing in this file"];
  return ["a start with these tables would", ...changes.map((line) => `  ${line}`)];
}

function adoptionLines(adoption: Adoption): string[] {
  const lines: string[] = [];
  const { toWal, tablesAdded, columnsAdded, tablesCaptured, tablesRecaptured } = adoption;
  if (toWal) lines.push("switch it to WAL mode");
  if (tablesAdded.length > 0) lines.push(`add the tables ${tablesAdded.join(", ")}`);
  if (columnsAdded.length > 0) lines.push(`add the columns ${columnsAdded.join(", ")}`);
  if (tablesCaptured.length > 0)
    lines.push(`add 5 capture triggers to ${tablesCaptured.join(", ")}`);
  if (tablesRecaptured.length > 0)
    lines.push(`replace the capture triggers of ${tablesRecaptured.join(", ")}`);
  for (const { table, rows } of adoption.rowsZeroed)
    lines.push(`set updated_at to 0 in ${count(rows, "row")} of ${table}`);
  if (adoption.pendingChanges > 0 && lines.length > 0)
    lines.push(`carry on with ${count(adoption.pendingChanges, "logged change")}`);
  if (lines.length > 0) lines.push("and leave everything else as it is");
  return lines;
}

function count(n: number, what: string): string {
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}

// ── As JSON ───────────────────────────────────────────────────────────────────────────────────

/** The same for programs; names as in /health. */
export function inspectionJson(path: string, found: Inspection): string {
  const { usedBy, asked, adoption, others } = found;
  const report = {
    file: path,
    ok: isAllFit(found),
    used_by: usedBy ? { make: usedBy.make, node_id: usedBy.nodeId ?? null } : null,
    obstacle: found.obstacle ?? null,
    asked: asked ?? null,
    tables: found.tables.map(tableJson),
    missing: found.missing,
    others,
    adoption: {
      to_wal: adoption.toWal,
      tables_added: adoption.tablesAdded,
      columns_added: adoption.columnsAdded,
      tables_captured: adoption.tablesCaptured,
      tables_recaptured: adoption.tablesRecaptured,
      rows_zeroed: adoption.rowsZeroed,
      pending_changes: adoption.pendingChanges,
    },
  };
  return `${JSON.stringify(report)}\n`;
}

function tableJson(table: TableReport) {
  const { rows, unfit } = table;
  return {
    name: table.name,
    asked: table.isAsked,
    fits: unfit === undefined,
    reason: unfit?.reason ?? null,
    remedy: unfit?.remedy ?? null,
    columns: table.columns,
    generated_columns: table.generatedColumns,
    rows: rows.all,
    rows_without_stamp: rows.withoutStamp,
    rows_with_other_stamp: rows.withOtherStamp,
    rows_with_fine_stamp: rows.withFineStamp,
    rows_with_stamp_in_seconds: rows.withStampInSeconds,
    rows_with_stamp_ahead: rows.withStampAhead,
    rows_with_odd_id: rows.withOddId,
    captured_by: table.capturedBy ?? null,
    triggers: table.triggers.map(({ name, writes, isGuarded, isFine }) => ({
      name,
      writes,
      guarded: isGuarded,
      fine: isFine,
    })),
    foreign_keys: table.foreignKeys.map((key) => ({
      columns: key.columns,
      parent: key.parent,
      on_delete: key.onDelete,
      on_update: key.onUpdate,
      parent_synced: key.isParentSynced,
    })),
    unique_keys: table.uniqueKeys,
  };
}
