/**
 * Who wins, from the changes alone (DESIGN.md, "Winner" and "Unknown columns"): every node decides the
 * same without asking another, in every order of arrival.
 *
 * Between versions that differ the higher wins; a delete beats a row of the same version. Between two
 * rows of the same version the one of larger reduced content wins, column by column in the order of
 * lower-cased names, and takes all its columns. Rows of equal reduced content are one row that lost
 * digits on the way: each column keeps its richer value, and nothing is announced.
 *
 * Nodes get a column at different times, so a change may lack columns that others carry. Then the rule
 * holds for every column by itself: it has the value of the greatest change that carried it, by
 * (version, content). A column whose change is not the row's own is remembered in a note. What each node
 * holds is therefore the maximum of what it has seen, whatever the order (W1), and a change seen twice
 * changes nothing (W2).
 */
import { VERSION_MAX } from "./limits.ts";
import { compareReduced, compareRichness, reduce, type Value } from "./values.ts";

/** Values by lower-cased column name, without `id` and `updated_at`. */
export type Content = ReadonlyMap<string, Value>;

/** Below every version: of a stamp that is no integer, and of a column that no change ever carried. */
export const VERSION_NEVER = -VERSION_MAX - 1;

/** Where the value of one column comes from, if not from the row's own change. */
export interface ColumnNote {
  readonly version: number;
  readonly value: Value;
  /** What the change carried, all of it; undefined where that is not known, or the row's own. */
  readonly source?: Content | undefined;
  /** The change was the row's own when this was noted: it still is while the versions are equal. */
  readonly isOwn?: boolean;
}

/** By lower-cased column name; a column without a note has its value from the row's change. */
export type Notes = ReadonlyMap<string, ColumnNote>;

/** What a node holds of a row. */
export interface Held {
  readonly version: number;
  /** The columns this node has. */
  readonly cells: Content;
  /** Of columns it has or lacks; a column it lacks is always noted. */
  readonly notes: Notes;
}

/** A change that carries a row, as far as deciding needs it. */
export interface Incoming {
  readonly version: number;
  /** The columns that came, known here or not. */
  readonly cells: Content;
}

/** What becomes of a held row: nothing is written for an outcome of `stale`. */
export interface Merge {
  /** `stale`: nothing of it counts. `same`: it, or a richer form of it, is held already. */
  readonly outcome: "took" | "same" | "stale";
  /** A tie of different reduced contents. */
  readonly isContested: boolean;
  readonly version: number;
  /** Columns this node has, to be written. */
  readonly write: Content;
  /** The notes that should stand afterwards. */
  readonly notes: Notes;
}

/** Of two changes of one version, by reduced forms; a column that did not come is below NULL. */
export function compareContent(left: Content, right: Content): number {
  const names = new Set([...left.keys(), ...right.keys()]);
  for (const name of [...names].sort(compareNames)) {
    const [l, r] = [left.get(name), right.get(name)];
    if (l === undefined || r === undefined) return l === undefined ? -1 : 1;
    const order = compareReduced(reduce(l), reduce(r));
    if (order !== 0) return order;
  }
  return 0;
}

/** What a row becomes by a change that no tombstone holds back. */
export function merge(held: Held, incoming: Incoming): Merge {
  const own = ownContent(held);
  const order = incoming.version - held.version || compareContent(incoming.cells, own);
  const version = Math.max(held.version, incoming.version);
  // Of equal contents either is the row's own: they differ in digits at most.
  const rowSources = order > 0 ? [incoming.cells] : order < 0 ? [own] : [own, incoming.cells];
  const stamps = new Map<string, ColumnNote>();
  for (const [name, value] of held.cells) {
    if (!held.notes.has(name)) stamps.set(name, { version: held.version, value, source: own });
  }
  for (const [name, note] of held.notes) {
    stamps.set(name, isRowsOwn(note, held) ? { ...note, source: own } : note);
  }
  const write = new Map<string, Value>();
  let took = false;
  for (const [name, value] of incoming.cells) {
    const stamp = { version: incoming.version, value, source: incoming.cells };
    const known = stamps.get(name);
    if (known !== undefined && compareStamps(stamp, known) <= 0) continue;
    stamps.set(name, stamp);
    took = true;
    if (held.cells.has(name)) write.set(name, value);
  }
  const notes = new Map<string, ColumnNote>();
  for (const [name, stamp] of stamps) {
    const { value, source } = stamp;
    const isRows = stamp.version === version && rowSources.includes(source ?? NOTHING);
    if (!isRows) notes.set(name, { version: stamp.version, value, source });
    else if (!held.cells.has(name)) notes.set(name, { version, value, source, isOwn: true });
  }
  return {
    outcome: took || order > 0 ? "took" : order === 0 ? "same" : "stale",
    isContested: incoming.version === held.version && order !== 0,
    version,
    write,
    notes,
  };
}

/** What the row's own change carried. */
export function ownContent(held: Held): Content {
  const own = new Map<string, Value>();
  for (const [name, value] of held.cells) if (!held.notes.has(name)) own.set(name, value);
  for (const [name, note] of held.notes) {
    if (isRowsOwn(note, held)) own.set(name, note.value);
  }
  return own;
}

function isRowsOwn(note: ColumnNote, held: Held): boolean {
  return note.isOwn === true && note.version === held.version;
}

/** A delete of `version` below a row that stays: what was last carried at or below it is gone. */
export function resetNotes(notes: Notes, version: number): { gone: string[]; kept: Notes } {
  const gone = [...notes].filter(([, note]) => note.version <= version).map(([name]) => name);
  return { gone, kept: new Map([...notes].filter(([, note]) => note.version > version)) };
}

const NOTHING: Content = new Map();

function compareStamps(left: ColumnNote, right: ColumnNote): number {
  if (left.version !== right.version) return left.version - right.version;
  if (left.source && right.source) {
    const order = compareContent(left.source, right.source);
    if (order !== 0) return order;
  }
  return (
    compareReduced(reduce(left.value), reduce(right.value)) ||
    compareRichness(left.value, right.value)
  );
}

function compareNames(left: string, right: string): number {
  return left < right ? -1 : left > right ? 1 : 0;
}
