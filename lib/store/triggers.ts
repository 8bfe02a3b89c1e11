/**
 * The capture triggers of one table, as text (DESIGN.md, "Capture triggers"). They live in the file
 * and are run by whatever SQLite other programs have, so they use nothing newer than 3.24 with JSON1.
 * They only record; what the records mean is decided when they are settled (settle.ts).
 *
 *   bi  before INSERT: note the rows that INSERT OR REPLACE may throw out without firing a trigger
 *   bu  before UPDATE of a unique key: the same
 *   ai  after INSERT, au after UPDATE, ad after DELETE: write the log, in the writer's transaction
 */
import { rowJsonSql } from "./row-json.ts";
import { type SyncedTable, TRIGGER_MARK, type UniqueKey } from "./schema.ts";
import { quoteName, quoteText } from "./sql.ts";

export interface Trigger {
  readonly name: string;
  readonly sql: string;
}

type Kind = "bi" | "bu" | "ai" | "au" | "ad";

const GUARD = "(SELECT value FROM _meta WHERE key = 'syncing') = 0";

/**
 * The triggers this table should have. `isTaken` says whether a name belongs to a trigger of the
 * application (the customary names of FTS5 triggers are ours, too): then ours gets another.
 */
export function captureTriggers(table: SyncedTable, isTaken: (name: string) => boolean): Trigger[] {
  const kinds: Kind[] = ["bi", "bu", "ai", "au", "ad"];
  return kinds.map((kind) => {
    const customary = `${table.name}_${kind}`;
    const name = isTaken(customary) ? `_hooksync_${table.name}_${kind}` : customary;
    return { name, sql: triggerSql(table, kind, name) };
  });
}

function triggerSql(table: SyncedTable, kind: Kind, name: string): string {
  const head = (event: string, when: string) =>
    `CREATE TRIGGER ${quoteName(name)} ${event} ON ${quoteName(table.name)}\nWHEN ${when}\nBEGIN ${TRIGGER_MARK}\n`;
  const id = quoteName(table.id.name);
  const version = quoteName(table.version.name);
  const label = quoteText(table.name);
  const log = (op: string, alias: "NEW" | "OLD", was: string, where: string) =>
    `  INSERT INTO _changes(op, table_name, row_id, row_data, was)\n` +
    `  SELECT '${op}', ${label}, ${alias}.${id}, ${rowJsonSql(alias, table.columns)}, ${was}${where};\n`;
  switch (kind) {
    case "bi": {
      // The cheap test first: almost every INSERT replaces nothing.
      const clashes = clashSql(table, `o.${id} = NEW.${id}`, table.uniqueKeys);
      const when = `${clashes.map((clash) => `EXISTS (${clash("1")})`).join(" OR ")}`;
      const exists = clashes.length > 1 ? `(${when})` : when;
      return `${head("BEFORE INSERT", `${exists} AND ${GUARD}`)}${noteSql(table, clashes, `NEW.${id}`)}END`;
    }
    case "bu": {
      const columns = new Set([table.id.key, ...table.uniqueKeys.flatMap(keyColumns)]);
      const names = table.columns
        .filter((column) => columns.has(column.key))
        .map((c) => quoteName(c.name));
      const clashes = clashSql(
        table,
        `o.${id} = NEW.${id}`,
        table.uniqueKeys,
        `o.${id} <> OLD.${id}`,
      );
      return `${head(`BEFORE UPDATE OF ${names.join(", ")}`, GUARD)}${noteSql(table, clashes, `OLD.${id}`)}END`;
    }
    case "ai":
      return `${head("AFTER INSERT", `${GUARD} AND typeof(NEW.${id}) = 'text'`)}${log("INSERT", "NEW", "NULL", "")}END`;
    case "ad":
      return `${head("AFTER DELETE", `${GUARD} AND typeof(OLD.${id}) = 'text'`)}${log("DELETE", "OLD", `OLD.${version}`, "")}END`;
    case "au": {
      const sameId = `OLD.${id} IS NEW.${id}`;
      return (
        head("AFTER UPDATE", GUARD) +
        log(
          "DELETE",
          "OLD",
          `OLD.${version}`,
          ` WHERE NOT (${sameId}) AND typeof(OLD.${id}) = 'text'`,
        ) +
        log(
          "UPDATE",
          "NEW",
          `CASE WHEN ${sameId} THEN OLD.${version} END`,
          ` WHERE typeof(NEW.${id}) = 'text'`,
        ) +
        "END"
      );
    }
  }
}

function keyColumns(key: UniqueKey): readonly string[] {
  return key.terms.flatMap((term) => term.columns);
}

/** One SELECT for every way in which a row `o` may stand in the way of NEW; `what` is its result. */
function clashSql(
  table: SyncedTable,
  sameId: string,
  keys: readonly UniqueKey[],
  besides?: string,
): ((what: string) => string)[] {
  const conditions = [sameId, ...keys.map((key) => keyClashSql(table, key))];
  return conditions.map(
    (condition) => (what: string) =>
      `SELECT ${what} FROM ${quoteName(table.name)} AS o WHERE ${condition}${besides ? ` AND ${besides}` : ""}`,
  );
}

function keyClashSql(table: SyncedTable, key: UniqueKey): string {
  const terms = key.terms.map((term) => {
    const column = table.columns.find(
      (c) => c.key === term.columns[0] && quoteName(c.name) === term.sql,
    );
    // Under OR REPLACE a NULL for a NOT NULL column becomes the default, which is not in NEW yet.
    const fresh =
      column?.notNull && column.defaultSql !== null
        ? `coalesce(${term.newSql}, ${column.defaultSql})`
        : term.newSql;
    return `${term.sql} = ${fresh} COLLATE ${quoteName(term.collation)}`;
  });
  return [...terms, ...(key.where === undefined ? [] : [`(${key.where})`])].join(" AND ");
}

/** The older note stays; a row that was noted without its content gets it. */
function noteSql(table: SyncedTable, clashes: ((what: string) => string)[], ownId: string): string {
  const id = `o.${quoteName(table.id.name)}`;
  const row = `CASE WHEN ${id} <> ${ownId} THEN ${rowJsonSql("o", table.columns)} END`;
  const at = "coalesce((SELECT max(change_id) FROM _changes), 0)";
  const values = `${quoteText(table.name)}, ${id}, o.${quoteName(table.version.name)}, ${row}, ${at}`;
  return clashes
    .map(
      (clash) =>
        `  INSERT INTO _hooksync_noted(tbl, id, version, row, at)\n` +
        `  ${clash(values)} AND typeof(${id}) = 'text'\n` +
        `  ON CONFLICT(tbl, id) DO UPDATE SET row = excluded.row\n` +
        `  WHERE row IS NULL AND excluded.row IS NOT NULL;\n`,
    )
    .join("");
}
