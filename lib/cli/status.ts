/**
 * `hook-sync status`: how a running node is, for people: what /health says, in sentences.
 *
 * Exit codes: 0 the node is well; 1 it is not, or cannot be reached; 2 for a wrong command line.
 */
import { answered, callNode, complaint, type NodeAnswer } from "../shipper/node-client.ts";
import { type Command, EXIT_FAILED, EXIT_OK, type Runtime } from "./command.ts";
import { askDirectly, fail, JSON_FLAG, NODE_FLAG, readNodeWords, refuse } from "./node-words.ts";
import { columnsText, flagLines } from "./usage.ts";

const FLAGS = [NODE_FLAG, JSON_FLAG];

/** Needs no token: /health is open to everyone. */
export const status: Command = {
  name: "status",
  summary: "say how a running node and its peers are",
  usage: `Usage: hook-sync status [--node URL] [--json]

Says whether the node is well, what waits for whom, and what could not be delivered or applied. With
--json: what GET /health answers.

${flagLines(FLAGS)}
  hook-sync status
  hook-sync status --node http://host:9002
`,
  run: runStatus,
};

async function runStatus(argv: readonly string[], runtime: Runtime): Promise<number> {
  const { node, isJson, flags, mistakes } = readNodeWords(argv, FLAGS, runtime.env);
  for (const word of flags.words) {
    mistakes.push({ where: "argument", value: word, right: "expected no such word here" });
  }
  if (mistakes.length > 0) return refuse(runtime, mistakes, "status");
  askDirectly(runtime.env);
  const answer = await callNode({ node, method: "GET", path: "/health" });
  if (answer.kind === "failed" || answer.status !== 200 || !isHealth(answer)) {
    return fail(runtime, node, complaint(answer));
  }
  const health = answer.json as Health;
  await runtime.terminal.out(isJson ? `${answer.text}\n` : statusText(node, health));
  return health.ok ? EXIT_OK : EXIT_FAILED;
}

/** A node's, or a relay hub's, which has neither a name nor peers. */
function isHealth(answer: NodeAnswer): boolean {
  return typeof answered(answer, "node_id") === "string" || answered(answer, "hub") === true;
}

/** What /health says, as far as it is shown; nodes of other makes say less. */
export interface Health {
  readonly ok: boolean;
  readonly node_id?: string;
  readonly version?: string;
  readonly item_count?: number;
  readonly pending_changes?: number;
  readonly dead_letter?: number;
  readonly parked?: number;
  readonly uptime_s?: number;
  readonly tables?: {
    readonly synced: readonly string[];
    readonly not_synced: readonly { readonly name: string; readonly reason: string }[];
  };
  /** A Go node that has none says null. */
  readonly peers?: readonly (PeerHealth | string)[] | null;
  readonly verified?: {
    readonly at: number;
    readonly neighbours: number;
    readonly differing: number;
    readonly repaired: number;
    readonly not_compared?: readonly string[];
  } | null;
  readonly followers?: readonly {
    readonly name: string;
    readonly behind: number;
    readonly seen: number;
    readonly connected?: boolean;
  }[];
  readonly following?: {
    readonly source: string;
    readonly state: string;
    readonly lag_transactions: number | null;
    readonly lag_ms: number | null;
    readonly last_error: string | null;
    readonly remarks: readonly string[];
    readonly refused: readonly {
      readonly table: string;
      readonly rows: number;
      readonly reason: string;
    }[];
  };
  readonly reasons?: readonly string[];
  readonly warnings?: readonly string[];
}

interface PeerHealth {
  readonly url?: string;
  readonly peer_url: string;
  readonly node_id?: string | null;
  readonly state?: string;
  readonly pending?: number;
  readonly last_error?: string | null;
  readonly filling?: { readonly reason: string; readonly changes: number } | null;
}

/** What a person reads. */
export function statusText(node: string, health: Health): string {
  const { version, uptime_s, tables, reasons = [], warnings = [] } = health;
  const peers = health.peers ?? [];
  const about = [
    version && `hook-sync ${version}`,
    uptime_s !== undefined && `up ${span(uptime_s)}`,
  ];
  const known = about.filter((part) => typeof part === "string");
  const lines = [
    `${health.node_id ?? "a hub"} at ${node}: ${health.ok ? "well" : "NOT WELL"}${known.length > 0 ? ` (${known.join(", ")})` : ""}`,
    ...reasons.map((reason) => `  wrong: ${reason}`),
    ...warnings.map((warning) => `  look at: ${warning}`),
    ...(tables === undefined ? [] : [`tables   ${tables.synced.join(", ") || "none"}`]),
    ...(tables?.not_synced ?? []).map(({ name, reason }) => `         not ${name}: ${reason}`),
    ...(health.item_count === undefined ? [] : [`rows     ${shown(health.item_count)}`]),
    `log      ${changes(health.pending_changes ?? 0)} kept for peers`,
    ...letterLines(health),
    ...verifiedLines(health),
    ...followingLines(health),
    peers.length === 0 ? "no peers" : "peers",
  ];
  return `${lines.join("\n")}\n${columnsText(peers.map(peerCells))}${followersText(health)}`;
}

function followingLines({ following }: Health): string[] {
  if (following === undefined) return [];
  const { source, state, lag_transactions: count, lag_ms: lagMs, last_error: error } = following;
  const lag =
    count === 0
      ? "has everything"
      : `${count === null ? "an unknown number of" : shown(count)} transactions behind`;
  const since = lagMs === null || count === 0 ? "" : `, as it was ${span(lagMs / 1000)} ago`;
  return [
    `follows  ${source}: ${state}, ${lag}${since}`,
    ...(error === null ? [] : [`         ${error}`]),
    ...following.remarks.map((remark) => `         ${remark}`),
    ...following.refused.map(
      ({ table, rows, reason }) => `         ${shown(rows)} rows of ${table} not let in: ${reason}`,
    ),
  ];
}

function followersText({ followers = [] }: Health): string {
  if (followers.length === 0) return "";
  const cells = followers.map(({ name, behind, seen, connected }) => [
    `  ${name}`,
    behind === 0 ? "has everything" : `${changes(behind)} behind`,
    connected ? "connected" : `away; it asked last at ${new Date(seen).toISOString()}`,
  ]);
  return `followers\n${columnsText(cells)}`;
}

function letterLines({ dead_letter = 0, parked = 0 }: Health): string[] {
  if (dead_letter === 0) return [];
  return [
    `kept     ${shown(dead_letter)} dead ${dead_letter === 1 ? "letter" : "letters"}, ${shown(parked)} of them received: see the table _dead_letter`,
  ];
}

function verifiedLines({ verified }: Health): string[] {
  if (!verified) return [];
  const { at, neighbours, differing, repaired, not_compared = [] } = verified;
  const found =
    differing === 0 ? "equal" : `${shown(differing)} rows differed, ${shown(repaired)} repaired`;
  const nodes = `${neighbours} neighbour${neighbours === 1 ? "" : "s"}`;
  return [
    `compared ${new Date(at).toISOString()} with ${nodes}: ${found}`,
    ...not_compared.map((missing) => `         ${missing}`),
  ];
}

function peerCells(peer: PeerHealth | string): string[] {
  if (typeof peer === "string") return [`  ${peer}`];
  const { state = "?", pending = 0, last_error: error, filling } = peer;
  return [
    `  ${peer.url ?? peer.peer_url}`,
    peer.node_id ?? "?",
    state,
    filling ? `being filled (${filling.reason}): ${changes(filling.changes)} so far` : "",
    pending === 0 ? "has everything" : `${changes(pending)} ${pending === 1 ? "waits" : "wait"}`,
    error ?? "",
  ].filter((cell, at) => cell !== "" || at < 3);
}

function changes(count: number): string {
  return `${shown(count)} change${count === 1 ? "" : "s"}`;
}

/** `1,000,412` */
function shown(count: number): string {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

function span(seconds: number): string {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7_200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800
    ? `${Math.floor(seconds / 3_600)} h`
    : `${Math.floor(seconds / 86_400)} days`;
}
