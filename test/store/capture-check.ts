/**
 * What must be true after other programs wrote and the node settled it, whatever they wrote: the log
 * leads from the state before to the state after, by value and by type, and no peer has a reason to
 * refuse any of it.
 */
import { Database } from "bun:sqlite";
import { VERSION_AHEAD_MS_MAX } from "../../lib/protocol/limits.ts";
import { readRowJson, type Value } from "../../lib/protocol/values.ts";

/** Rows by id, each its columns' values in a form that tells kind and content. */
export type TableState = ReadonlyMap<string, ReadonlyMap<string, string>>;

export interface FileState {
  readonly tables: ReadonlyMap<string, TableState>;
  /** By table key and id. */
  readonly tombstones: ReadonlyMap<string, number>;
  readonly newestChange: number;
}

interface LogEntry {
  readonly change_id: number;
  readonly op: string;
  readonly table_name: string;
  readonly row_id: string;
  readonly json: Uint8Array;
}

export function readState(path: string, tables: readonly string[]): FileState {
  const db = new Database(path, { readonly: true });
  try {
    return {
      tables: new Map(tables.map((name) => [name, readTable(db, name)])),
      tombstones: new Map(
        db
          .query<{ at: string; version: number }, []>(
            "SELECT tbl || '/' || id AS at, version FROM _hooksync_tombstones",
          )
          .all()
          .map(({ at, version }) => [at, version]),
      ),
      newestChange: db
        .query<{ id: number }, []>(
          `SELECT max(coalesce((SELECT max(change_id) FROM _changes), 0),
                      coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_changes'), 0)) AS id`,
        )
        .get()!.id,
    };
  } finally {
    db.close();
  }
}

/** Read without any of our own SQL: what SQLite itself says of each value. */
function readTable(db: Database, name: string): TableState {
  const t = `"${name.replaceAll('"', '""')}"`;
  const columns = db
    .query<{ name: string }, [string]>("SELECT name FROM pragma_table_info(?)")
    .all(name)
    .map((column) => column.name);
  const parts = columns.map((column) => {
    const c = `"${column.replaceAll('"', '""')}"`;
    return `CASE typeof(${c}) WHEN 'text' THEN 'text:' || hex(CAST(${c} AS BLOB)) WHEN 'blob' THEN 'blob:' || hex(${c})
      WHEN 'real' THEN 'real:' || printf('%!.20g', ${c}) WHEN 'integer' THEN 'integer:' || ${c} ELSE 'null' END`;
  });
  const rows = db
    .query(`SELECT ${parts.join(", ")} FROM ${t} WHERE typeof(id) = 'text'`)
    .values() as string[][];
  const idAt = columns.indexOf("id");
  return new Map(
    rows.map((row) => [row[idAt]!, new Map(columns.map((column, i) => [column, normal(row[i]!)]))]),
  );
}

/** Two spellings of one number are the same. */
function normal(value: string): string {
  if (!value.startsWith("real:")) return value;
  const text = value.slice(5);
  return `real:${text === "Inf" ? Number.POSITIVE_INFINITY : text === "-Inf" ? Number.NEGATIVE_INFINITY : Number(text)}`;
}

function formOf(value: Value): string {
  switch (value.kind) {
    case "null":
      return "null";
    case "integer":
      return `integer:${value.value}`;
    case "real":
      return `real:${value.value}`;
    case "text":
      return `text:${Buffer.from(value.value).toString("hex").toUpperCase()}`;
    case "broken-text":
      return `text:${value.hex.toUpperCase()}`;
    case "blob":
      return `blob:${value.hex.toUpperCase()}`;
  }
}

export interface Pass {
  readonly path: string;
  readonly nowMs: number;
  /** Before the other programs wrote. */
  readonly before: FileState;
  /** After they wrote, before the node settled it. */
  readonly written: FileState;
}

/** Throws what is wrong, in words. */
export function checkPass({ path, nowMs, before, written }: Pass): void {
  const after = readState(path, [...before.tables.keys()]);
  const log = readLog(path, before.newestChange);
  checkOrder(log);
  const touched = new Map(log.map((entry) => [`${entry.table_name}/${entry.row_id}`, entry]));
  if (touched.size < log.length) fail("a row has more than one entry");
  for (const [name, rows] of after.tables) {
    const replayed = new Map(before.tables.get(name)!);
    for (const entry of log) if (entry.table_name === name) replay(replayed, entry);
    equalTables(`${name}: the log replayed`, replayed, rows);
    checkWritten(name, written.tables.get(name)!, rows);
    const ids = new Set([...before.tables.get(name)!.keys(), ...rows.keys()]);
    for (const id of ids) {
      const entry = touched.get(`${name}/${textOf(id)}`);
      const old = before.tables.get(name)!.get(id);
      const row = rows.get(id);
      if (textOf(id) === "quiet" && entry) fail(`${name}: an entry for a row that nobody touched`);
      if (!entry) continue;
      const buried = before.tombstones.get(`${name.toLowerCase()}/${textOf(id)}`);
      if (row) checkVersion(`${name}/${textOf(id)}`, row, old, buried, nowMs);
    }
  }
  for (const entry of log) if (entry.op === "DELETE") checkDelete(entry, before, after);
}

function checkOrder(log: readonly LogEntry[]): void {
  const ops = log.map((entry) => entry.op);
  if (
    ops.lastIndexOf("DELETE") > ops.findIndex((op) => op !== "DELETE") &&
    ops.some((op) => op !== "DELETE")
  )
    fail(`a DELETE stands behind other entries: ${ops.join(" ")}`);
}

function replay(rows: Map<string, ReadonlyMap<string, string>>, entry: LogEntry): void {
  const id = `text:${Buffer.from(entry.row_id).toString("hex").toUpperCase()}`;
  if (entry.op === "DELETE") {
    if (!rows.has(id)) return;
    rows.delete(id);
    return;
  }
  const row = readRowJson(entry.json);
  rows.set(id, new Map([...row].map(([name, value]) => [name, formOf(value)])));
}

/** Settling sets versions, and nothing else. */
function checkWritten(name: string, written: TableState, after: TableState): void {
  const without = (rows: TableState): TableState =>
    new Map(
      [...rows].map(([id, row]) => [
        id,
        new Map([...row].filter(([column]) => column !== "updated_at")),
      ]),
    );
  equalTables(`${name}: what was written`, without(written), without(after));
}

function checkVersion(
  at: string,
  row: ReadonlyMap<string, string>,
  old: ReadonlyMap<string, string> | undefined,
  buried: number | undefined,
  nowMs: number,
): void {
  const stamp = row.get("updated_at")!;
  if (!stamp.startsWith("integer:")) fail(`${at}: its stamp is ${stamp}`);
  const version = Number(stamp.slice(8));
  const replaced = old ? versionOf(old) : -Infinity;
  if (version <= replaced)
    fail(`${at}: its version ${version} is not above ${replaced}, which it replaced`);
  if (buried !== undefined && version <= buried)
    fail(`${at}: its version ${version} is not above its tombstone ${buried}`);
  const most = Math.max(nowMs + VERSION_AHEAD_MS_MAX, replaced + 1, (buried ?? 0) + 1);
  if (version > most) fail(`${at}: its version ${version} is too far ahead`);
}

function checkDelete(entry: LogEntry, before: FileState, after: FileState): void {
  const at = `${entry.table_name}/${entry.row_id}`;
  const id = `text:${Buffer.from(entry.row_id).toString("hex").toUpperCase()}`;
  if (after.tables.get(entry.table_name)!.has(id)) fail(`${at}: a DELETE of a row that is there`);
  const sent = readRowJson(entry.json).get("updated_at")!;
  const version = sent.kind === "integer" ? Number(sent.value) : Number.NaN;
  const tombstone = after.tombstones.get(`${entry.table_name.toLowerCase()}/${entry.row_id}`);
  if (tombstone !== version) fail(`${at}: deleted at ${version}, its tombstone says ${tombstone}`);
  const old = before.tables.get(entry.table_name)!.get(id);
  if (old && version < versionOf(old))
    fail(`${at}: deleted at ${version}, below ${versionOf(old)}`);
}

/** As peers read it. */
function versionOf(row: ReadonlyMap<string, string>): number {
  const stamp = row.get("updated_at")!;
  if (!stamp.startsWith("integer:")) return 0;
  const version = Number(stamp.slice(8));
  return Math.abs(version) < Number.MAX_SAFE_INTEGER ? version : 0;
}

function readLog(path: string, after: number): LogEntry[] {
  const db = new Database(path, { readonly: true });
  try {
    const left = db
      .query(
        "SELECT (SELECT count(*) FROM _hooksync_noted) AS noted, (SELECT value FROM _meta) AS flag",
      )
      .get();
    if (JSON.stringify(left) !== '{"noted":0,"flag":0}') fail(`left over: ${JSON.stringify(left)}`);
    return db
      .query<LogEntry, [number]>(
        `SELECT change_id, op, table_name, row_id, CAST(row_data AS BLOB) AS json FROM _changes
         WHERE change_id > ? ORDER BY change_id`,
      )
      .all(after);
  } finally {
    db.close();
  }
}

function equalTables(what: string, left: TableState, right: TableState): void {
  const lines = (rows: TableState) =>
    [...rows]
      .map(([, row]) =>
        [...row]
          .sort()
          .map(([c, v]) => `${c}=${v}`)
          .join(" "),
      )
      .sort();
  const [expected, found] = [lines(left), lines(right)];
  const missing = found.filter((line) => !expected.includes(line));
  const extra = expected.filter((line) => !found.includes(line));
  if (missing.length + extra.length > 0)
    fail(`${what}: has ${JSON.stringify(extra)} where the table has ${JSON.stringify(missing)}`);
}

function textOf(form: string): string {
  return Buffer.from(form.slice(5), "hex").toString();
}

function fail(what: string): never {
  throw new Error(what);
}
