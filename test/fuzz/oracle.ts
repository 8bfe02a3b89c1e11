/**
 * What PROTOCOL.md's rules say of a body, decided a second time and in another way than lib does: whether it
 * is a batch at all, which of its changes can ever apply, and the plainest batch that says the same without
 * the others. SQLite itself is asked what a constraint or a trigger refuses.
 */
import { Database, type SQLQueryBindings } from "bun:sqlite";
import {
  array,
  depthOf,
  type Json,
  JsonError,
  type Member,
  memberOf,
  object,
  plain,
  readJson,
  text,
} from "./json-tree.ts";
import { type FuzzTable, foldName, SCHEMA, SYNCED, sameName, tableNamed } from "./tables.ts";

export interface Judged {
  readonly json: Json;
  /** What is left of it where it can apply; undefined: it is parked, or left out. */
  readonly clean: Json | undefined;
  /** `table/id`, as far as it says. */
  readonly row: string;
  readonly isLeftOut: boolean;
  readonly isRowlessDelete: boolean;
  /** A constraint or a trigger is what refuses it. */
  readonly isRefused: boolean;
  /** It has every column of its table and no other. */
  readonly isWhole: boolean;
  /** Of an upsert that can apply: what SQLite stores of it, by column, and at which version. */
  readonly stored: ReadonlyMap<string, string> | undefined;
  readonly version: number;
}

export type Verdict =
  | { readonly kind: "no batch" }
  | { readonly kind: "batch"; readonly batchId: number; readonly changes: readonly Judged[] };

const DEPTH_MAX = 64;
const COLUMNS_MAX = 2_000;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Oracle {
  readonly #db = new Database(":memory:");

  constructor() {
    this.#db.run(SCHEMA);
  }

  close(): void {
    this.#db.close();
  }

  judge(body: Uint8Array, isOurs: boolean): Verdict {
    const envelope = readBody(body);
    const batchId = envelope && wholeNumber(memberOf(envelope, "batch_id"));
    const changes = envelope && memberOf(envelope, "changes");
    if (batchId === undefined || envelope === undefined || depthOf(envelope) > DEPTH_MAX) {
      return { kind: "no batch" };
    }
    if (changes?.kind === "array") {
      const judged = changes.items.map((change) => this.#judgeChange(change, isOurs));
      return { kind: "batch", batchId, changes: judged };
    }
    const isNull = changes?.kind === "token" && changes.text === "null";
    return isNull ? { kind: "batch", batchId, changes: [] } : { kind: "no batch" };
  }

  #judgeChange(json: Json, isOurs: boolean): Judged {
    const named = stringOf(memberOf(json, "table"));
    const row = memberOf(json, "row");
    const ids = rowIds(json);
    const read = readChange(json, isOurs);
    const stored = read?.cells && this.#store(read.table, read.cells);
    const refused = stored === "refused";
    return {
      json,
      clean: refused ? undefined : read?.clean,
      row: read ? `${foldName(read.table.name)}/${read.id}` : `${named}/${ids[0] ?? ""}`,
      isLeftOut: named !== undefined && sameName(named, "secrets") && isReadable(json),
      isRowlessDelete: read !== undefined && read.clean !== undefined && row?.kind !== "object",
      isRefused: refused,
      isWhole: read?.isWhole ?? false,
      stored: stored === "refused" ? undefined : stored,
      version: read?.version ?? 0,
    };
  }

  /** What becomes of these cells in an empty table. */
  #store(
    table: FuzzTable,
    cells: ReadonlyMap<string, Cell>,
  ): ReadonlyMap<string, string> | "refused" {
    const names = [...cells.keys()].map((name) => `"${name}"`);
    const marks = [...cells.values()].map(({ mark }) => mark);
    const shown = names.map((name) => shownSql(name));
    this.#db.run("BEGIN");
    try {
      this.#db
        .query(`INSERT INTO "${table.name}"(${names}) VALUES (${marks})`)
        .run(...[...cells.values()].map(({ value }) => value));
      const [values] = this.#db.query(`SELECT ${shown} FROM "${table.name}"`).values();
      return new Map([...cells.keys()].map((name, i) => [name, String(values![i])]));
    } catch (error) {
      if (table.isStrict) return "refused";
      throw error;
    } finally {
      if (this.#db.inTransaction) this.#db.run("ROLLBACK");
    }
  }
}

/** A stored value as text: its kind and its bytes, and a REAL's digits. */
export function shownSql(column: string): string {
  return `typeof(${column}) || ':' || hex(${column}) || ':' || quote(${column})`;
}

/** A value with how it must be bound to be what it is. */
interface Cell {
  readonly mark: string;
  readonly value: SQLQueryBindings;
}

/** The batch of what can apply, spelled as plainly as can be. */
export function cleanBody(batchId: number, changes: readonly Judged[]): Uint8Array {
  const clean = changes.flatMap((change) => change.clean ?? []);
  return new TextEncoder().encode(`{"batch_id":${batchId},"changes":${plain(array(clean))}}`);
}

function readBody(body: Uint8Array): Json | undefined {
  try {
    const json = readJson(utf8.decode(body));
    return json.kind === "object" ? json : undefined;
  } catch (error) {
    if (error instanceof JsonError || error instanceof TypeError) return undefined;
    throw error;
  }
}

/** The ids it mentions, the row's first. */
export function rowIds(change: Json): string[] {
  const row = memberOf(change, "row");
  const inRow =
    row?.kind === "object" ? row.members.find(({ name }) => sameName(name, "id")) : undefined;
  return [stringOf(inRow?.value), stringOf(memberOf(change, "old_id"))].flatMap((id) => id ?? []);
}

// ── One change ──────────────────────────────────────────────────────────────────────────────────

interface Read {
  readonly table: FuzzTable;
  readonly id: string;
  readonly clean: Json | undefined;
  /** By declared name, of an upsert that is well formed. */
  readonly cells: ReadonlyMap<string, Cell> | undefined;
  readonly isWhole: boolean;
  readonly version: number;
}

/** Whether op and table are such that the table's name decides. */
function isReadable(change: Json): boolean {
  return !repeats(change) && isOp(stringOf(memberOf(change, "op")));
}

function isOp(op: string | undefined): op is string {
  return op === "INSERT" || op === "UPDATE" || op === "DELETE";
}

/** A member stands twice in it or in its row. */
function repeats(change: Json): boolean {
  const row = memberOf(change, "row");
  return [change, row].some(
    (json) =>
      json?.kind === "object" &&
      new Set(json.members.map(({ name }) => name)).size !== json.members.length,
  );
}

/** Undefined for what is parked before its row is known, or belongs to no table of ours. */
function readChange(change: Json, isOurs: boolean): Read | undefined {
  if (change.kind !== "object" || !isReadable(change)) return undefined;
  const op = stringOf(memberOf(change, "op"))!;
  const named = stringOf(memberOf(change, "table"));
  const table = named === undefined ? undefined : tableNamed(named);
  if (table === undefined || !SYNCED.includes(table.name)) return undefined;
  const row = memberOf(change, "row");
  const oldId = stringOf(memberOf(change, "old_id"));
  const members = row?.kind === "object" ? row.members : [];
  const idMember = members.find(({ name }) => sameName(name, "id"));
  const isDelete = op === "DELETE";
  const id = isDelete && oldId ? oldId : stringOf(idMember?.value);
  if (!id?.isWellFormed()) return undefined;
  const blobs = namesIn(memberOf(change, "blobs"));
  const texts = namesIn(memberOf(change, "texts"));
  if (idMember && (blobs?.has(idMember.name) || texts?.has(idMember.name))) return undefined;

  const asBefore = (names: ReadonlySet<string> | undefined): Json | undefined =>
    names &&
    array(
      [...names]
        .filter((name) => members.some((member) => member.name === name))
        .map((name) => text(isOurs ? declared(table, name) : name)),
    );
  const rebuilt = (rowJson: Json): Json =>
    object([
      ["op", text(op)],
      ["table", text(isOurs ? table.name : named!)],
      ["row", rowJson],
      ["old_id", isDelete ? text(id) : { kind: "token", text: "null" }],
      ...(blobs ? [["blobs", asBefore(blobs)!] as const] : []),
      ...(texts ? [["texts", asBefore(texts)!] as const] : []),
    ]);
  const hasRow = row !== undefined && !(row.kind === "token" && row.text === "null");
  if (isDelete && !hasRow) {
    const clean = rebuilt({ kind: "token", text: "null" });
    return { table, id, clean, cells: undefined, isWhole: true, version: 0 };
  }
  const folded = new Set(members.map(({ name }) => foldName(name)));
  if (row?.kind !== "object" || members.length > COLUMNS_MAX || folded.size !== members.length) {
    return undefined;
  }
  const stamp = members.find(({ name }) => sameName(name, "updated_at"))?.value;
  const isNullStamp = stamp === undefined || (stamp.kind === "token" && stamp.text === "null");
  const version = isNullStamp ? 0 : wholeNumber(stamp);
  if (version === undefined) return undefined;

  const known = new Map<string, Cell>();
  const kept: Member[] = [];
  let isWellFormed = true;
  let hasUnknown = false;
  for (const member of members) {
    const column = columnNamed(table, member.name);
    if (column === "generated") {
      // Foreign batches are compared by how many members a row has.
      if (!isOurs) kept.push(member);
      continue;
    }
    hasUnknown ||= column === undefined;
    const cell = readCell(member.value, {
      isBlob: blobs
        ? blobs.has(member.name)
        : !isOurs && column !== undefined && table.untyped.includes(column),
      isCertain: blobs?.has(member.name) ?? false,
      isBrokenText: texts?.has(member.name) ?? false,
    });
    const isNameFine = member.name.isWellFormed();
    if (cell === undefined || !isNameFine) isWellFormed = false;
    else if (column !== undefined) known.set(column, cell);
    const name = isOurs ? declared(table, member.name) : member.name;
    const value = sameName(name, "id") ? text(id) : member.value;
    kept.push({ name, value });
  }
  const order = [table.id, ...table.columns, "updated_at"].map(foldName);
  const place = ({ name }: Member) => {
    const at = order.indexOf(foldName(name));
    return at < 0 ? order.length : at;
  };
  const ordered = kept.toSorted((left, right) => place(left) - place(right));
  const clean = rebuilt({ kind: "object", members: ordered });
  if (isDelete) return { table, id, clean, cells: undefined, isWhole: true, version };
  if (!isWellFormed) {
    return { table, id, clean: undefined, cells: undefined, isWhole: false, version };
  }
  known.set("updated_at", { mark: "?", value: version });
  const isWhole = !hasUnknown && table.columns.every((column) => known.has(column));
  return { table, id, clean, cells: known, isWhole, version };
}

function columnNamed(table: FuzzTable, name: string): string | undefined {
  if (table.generated.some((column) => sameName(column, name))) return "generated";
  return [table.id, ...table.columns, "updated_at"].find((column) => sameName(column, name));
}

function declared(table: FuzzTable, name: string): string {
  const column = columnNamed(table, name);
  return column === undefined || column === "generated" ? name : column;
}

const INT64_MAX = 2n ** 63n - 1n;

/** The value, or undefined where no column can hold it. */
function readCell(
  json: Json,
  named: { isBlob: boolean; isCertain: boolean; isBrokenText: boolean },
): Cell | undefined {
  const plainly = (value: SQLQueryBindings): Cell => ({ mark: "?", value });
  if (json.kind === "token") {
    if (json.text === "null") return plainly(null);
    if (json.text === "true" || json.text === "false") return plainly(json.text === "true" ? 1 : 0);
    if (/^-?\d+$/.test(json.text)) {
      const whole = BigInt(json.text);
      if (whole <= INT64_MAX && whole >= -INT64_MAX - 1n) return plainly(whole);
    }
    return { mark: "CAST(? AS REAL)", value: Number(json.text) };
  }
  if (json.kind !== "string") return undefined;
  const hex = /^\\x((?:[0-9a-f]{2})*)$/i.exec(json.value)?.[1];
  if (named.isBlob || named.isBrokenText) {
    if (hex !== undefined) {
      return { mark: named.isBrokenText ? "CAST(? AS TEXT)" : "?", value: Buffer.from(hex, "hex") };
    }
    if (named.isCertain || named.isBrokenText) return undefined;
  }
  return json.value.isWellFormed() ? plainly(json.value) : undefined;
}

function stringOf(json: Json | undefined): string | undefined {
  return json?.kind === "string" ? json.value : undefined;
}

function wholeNumber(json: Json | undefined): number | undefined {
  if (json?.kind !== "token" || !/^[-0-9]/.test(json.text)) return undefined;
  // No number is -0 here.
  const value = Number(json.text) + 0;
  return Number.isSafeInteger(value) ? value : undefined;
}

/** The texts of an array; undefined where it is none, which is as if it were missing. */
function namesIn(json: Json | undefined): ReadonlySet<string> | undefined {
  if (json?.kind !== "array") return undefined;
  return new Set(json.items.flatMap((item) => stringOf(item) ?? []));
}
