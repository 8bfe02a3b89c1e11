/**
 * The header in which nodes of ours tell each other which file they are and how far they got
 * (DESIGN.md, "Identity"). Nodes of other makes ignore it; a sender without it is foreign.
 */

/** Ours alone (DESIGN.md, "Identity"): requests, replies and /health carry it. */
export const IDENTITY_HEADER = "X-Hook-Sync";
/** The sender's --id; of the contract (PROTOCOL.md, "POST /sync"). */
export const NODE_ID_HEADER = "X-Node-Id";
/** The sender's --url, or a hub's own on what it forwards (PROTOCOL.md, "REST and health"). */
export const NODE_URL_HEADER = "X-Node-Url";

/** The largest batch id a receiver committed from one sender, with a hash of that batch's last change. */
export interface Mark {
  readonly batchId: number;
  readonly hash: string;
}

/** One header of ours, taken apart; a request, a reply and /health each fill some of it. */
export interface Identity {
  /** Random id of the sender's file. */
  readonly db: string;
  /** In a request: the last batch id this receiver acknowledged to this file. */
  readonly prev?: number;
  /** Changes still waiting for the other side. */
  readonly rest?: number;
  /** In a reply: the mark as it was before the batch. */
  readonly last?: Mark;
  /** In a reply: an earlier mark that what came after it does not continue. */
  readonly doubt?: Mark;
  /** In /health: random for each start, which tells two processes with copies of one file apart. */
  readonly run?: string;
}

/** `v=1; db=3f…; prev=41; rest=0; last=41.9c0d…` */
export function formatIdentity(identity: Identity): string {
  let text = `v=1; db=${identity.db}`;
  if (identity.prev !== undefined) text += `; prev=${identity.prev}`;
  if (identity.rest !== undefined) text += `; rest=${identity.rest}`;
  if (identity.last !== undefined) text += `; last=${formatMark(identity.last)}`;
  if (identity.doubt !== undefined) text += `; doubt=${formatMark(identity.doubt)}`;
  if (identity.run !== undefined) text += `; run=${identity.run}`;
  return text;
}

const DB_PATTERN = /^[0-9a-f]{8,64}$/;
const RUN_PATTERN = /^[0-9a-f]{1,64}$/;
const MARK_PATTERN = /^(\d{1,16})\.([0-9a-f]{1,64})$/;

/** What the header says, or undefined where it is missing or not ours: then the sender counts as foreign. */
export function parseIdentity(header: string | null | undefined): Identity | undefined {
  if (!header || header.length > 1_024) return undefined;
  const members = new Map<string, string>();
  for (const part of header.split(";")) {
    const at = part.indexOf("=");
    if (at > 0) members.set(part.slice(0, at).trim(), part.slice(at + 1).trim());
  }
  const db = members.get("db");
  if (members.get("v") !== "1" || db === undefined || !DB_PATTERN.test(db)) return undefined;
  const last = parseMark(members.get("last"));
  const doubt = parseMark(members.get("doubt"));
  const prev = readCount(members.get("prev"));
  const rest = readCount(members.get("rest"));
  const run = members.get("run");
  return {
    db,
    ...(prev === undefined ? {} : { prev }),
    ...(rest === undefined ? {} : { rest }),
    ...(last ? { last } : {}),
    ...(doubt ? { doubt } : {}),
    ...(run !== undefined && RUN_PATTERN.test(run) ? { run } : {}),
  };
}

/** As `last=` has it: batch id and hash. */
export function formatMark({ batchId, hash }: Mark): string {
  return `${batchId}.${hash}`;
}

/** Undefined where it is missing or makes no sense. */
export function parseMark(text: string | undefined): Mark | undefined {
  const mark = MARK_PATTERN.exec(text ?? "");
  return mark ? { batchId: Number(mark[1]), hash: mark[2]! } : undefined;
}

function readCount(text: string | undefined): number | undefined {
  if (text === undefined || !/^\d{1,16}$/.test(text)) return undefined;
  const count = Number(text);
  return Number.isSafeInteger(count) ? count : undefined;
}

/**
 * A short hash that tells two changes of one number apart: sender and receiver make it from what both
 * have, the operation, the table, the id and the version.
 */
export function hashChange(op: unknown, table: unknown, id: unknown, version: unknown): string {
  const parts = JSON.stringify([op ?? null, table ?? null, id ?? null, version ?? null]);
  return new Bun.CryptoHasher("sha256").update(parts).digest("hex").slice(0, 12);
}
