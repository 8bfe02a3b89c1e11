/**
 * Who wins, from the two rows alone (DESIGN.md, "Winner"): every node decides the same without
 * asking another, in every order of arrival.
 *
 * Between versions that differ the higher wins; a delete beats a row of the same version. This file
 * decides between two rows of the same version: the larger reduced content, column by column in the
 * order of lower-cased names, takes the whole row. Rows with equal reduced content are the same row
 * that lost digits on the way: each column keeps its richer value, and nothing is announced.
 */
import { compareReduced, compareRichness, reduce, sameValue, type Value } from "./values.ts";

/** Values by lower-cased column name. */
export type Content = ReadonlyMap<string, Value>;

export type TieVerdict =
  /** Nothing to write: what is stored is the incoming row, or a richer form of it. */
  | { readonly kind: "same" }
  /** The stored row wins; `contested`: their reduced contents differ. */
  | { readonly kind: "keep"; readonly contested: true }
  /** Write these values. `contested` as above; without it only digits come back. */
  | { readonly kind: "take"; readonly values: Content; readonly contested: boolean };

const NULL: Value = { kind: "null" };

/** Both sides have the same columns. */
export function judgeTie(stored: Content, incoming: Content): TieVerdict {
  const names = [...stored.keys()].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  for (const name of names) {
    const order = compareReduced(
      reduce(incoming.get(name) ?? NULL),
      reduce(stored.get(name) ?? NULL),
    );
    if (order > 0) return { kind: "take", values: incoming, contested: true };
    if (order < 0) return { kind: "keep", contested: true };
  }
  return richer(stored, incoming, false);
}

/** The two sides do not have the same columns: each column that came is decided on its own. */
export function judgeTieByColumn(stored: Content, incoming: Content): TieVerdict {
  const values = new Map<string, Value>();
  let contested = false;
  for (const [name, value] of incoming) {
    const known = stored.get(name) ?? NULL;
    const order = compareReduced(reduce(value), reduce(known));
    if (order !== 0) contested = true;
    if (order > 0 || (order === 0 && compareRichness(value, known) > 0)) values.set(name, value);
  }
  if (values.size > 0) return { kind: "take", values, contested };
  return contested ? { kind: "keep", contested: true } : { kind: "same" };
}

function richer(stored: Content, incoming: Content, contested: boolean): TieVerdict {
  const values = new Map<string, Value>();
  for (const [name, value] of incoming) {
    const known = stored.get(name) ?? NULL;
    if (!sameValue(value, known) && compareRichness(value, known) > 0) values.set(name, value);
  }
  return values.size > 0 ? { kind: "take", values, contested } : { kind: "same" };
}
