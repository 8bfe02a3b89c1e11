/**
 * Which objects of a plain SQLite file are followed. All but those of an engine, of the log, of the
 * mesh (each node has its own), and virtual tables with the tables they keep themselves: what those
 * hold is made from other tables, by modules that a follower may not have.
 */
import { nameKey } from "../base/sql-text.ts";
import { isFollowed, type SchemaObject } from "./schema-digest.ts";

/** Virtual tables and the tables behind them, as `nameKey`s. */
export const VIRTUAL_SQL = `
  SELECT name
  FROM pragma_table_list
  WHERE schema = 'main' AND type IN ('virtual', 'shadow')`;

/** The tables of the contract between nodes, where a file is a node's. */
const MESH_TABLES: ReadonlySet<string> = new Set([
  "_meta",
  "_changes",
  "_dead_letter",
  "_peer_state",
]);

const NODE_TRIGGER = /\b_changes\b|\/\* hook-sync \*\//;

/** Those of `objects` that are followed. `virtual` has the names that VIRTUAL_SQL gave. */
export function followedObjects<T extends SchemaObject>(
  objects: readonly T[],
  virtual: readonly string[],
): readonly T[] {
  const left = new Set(virtual.map(nameKey));
  const names = new Set(objects.map(({ name }) => nameKey(name)));
  const isNode = [...MESH_TABLES].every((name) => names.has(name));
  const isLeft = (name: string) => {
    const key = nameKey(name);
    return left.has(key) || (isNode && (MESH_TABLES.has(key) || key.startsWith("_hooksync")));
  };
  return objects.filter((object) => {
    if (!isFollowed(object) || isLeft(object.name) || isLeft(object.tbl_name)) return false;
    // A node's capture triggers, of whichever make: they serve the log between nodes.
    return !(isNode && object.type === "trigger" && NODE_TRIGGER.test(object.sql!));
  });
}
