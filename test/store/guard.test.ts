/** Which conditions keep a trigger quiet while received rows are applied, compared with what SQLite does. */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { isGuarded } from "../../lib/store/guard.ts";

const G = "(SELECT value FROM _meta WHERE key = 'syncing') = 0";

function trigger(condition: string): string {
  return `CREATE TRIGGER t AFTER UPDATE ON items WHEN ${condition} BEGIN INSERT INTO fired VALUES(1); END`;
}

/** Whether it fires for some row with the flag up. */
function fires(condition: string): boolean {
  using db = new Database(":memory:");
  db.run("CREATE TABLE _meta(key TEXT PRIMARY KEY, value INTEGER)");
  db.run("INSERT INTO _meta VALUES('syncing', 1)");
  db.run(
    "CREATE TABLE items(id, v, end); CREATE TABLE fired(n); INSERT INTO items VALUES('a', 0, 9)",
  );
  db.run(trigger(condition));
  for (const v of [0, 1, 2]) db.query("UPDATE items SET v = ?").run(v);
  return db.query("SELECT 1 FROM fired").get() !== null;
}

test.each([
  G,
  `(${G})`,
  `((${G}) AND NEW.v = 1)`,
  `NEW.v = 1 AND ${G} AND NEW.id <> ''`,
  `${G} AND (NEW.v = 1 OR NEW.v = 2)`,
  `(${G} AND NEW.v = 1) OR (NEW.v = 2 AND ${G})`,
  `NEW.v BETWEEN 0 AND 2 AND ${G}`,
  `CASE NEW.v WHEN 1 THEN 1 ELSE 0 END AND /* it */ ${G}`,
  `NEW.end > NEW.v AND ${G}`,
  `EXISTS (SELECT 1 FROM items WHERE end > NEW.v) AND CASE WHEN NEW.end THEN 1 END AND ${G}`,
  `CASE WHEN ${G} THEN NEW.v > 0 ELSE 0 END`,
  `CASE WHEN NOT (${G}) THEN 0 WHEN NEW."end" THEN OLD.v IS NOT NEW.v END`,
  `iif(${G}, NEW.rowid > 0, 0)`,
  "0 = (SELECT value FROM _meta WHERE key = 'syncing')",
  "(SELECT value = 0 FROM _meta WHERE key = 'syncing')",
  "(SELECT m.value FROM main._meta AS m WHERE m.key = 'syncing') IS NOT 1 AND NEW.v",
  "NOT EXISTS (SELECT 1 FROM _meta WHERE key = 'syncing' AND value = 1)",
  `coalesce((SELECT value FROM "_meta" WHERE "key" = 'syncing'), 0) = 0`,
])("%s is a guard", (condition) => {
  expect(fires(condition)).toBe(false);
  expect(isGuarded(trigger(condition))).toBe(true);
});

test.each([
  `${G} OR NEW.v = 1`,
  `NEW.v = 1 OR ${G}`,
  `${G} AND NEW.v = 1 OR NEW.v = 2`,
  `NEW.v = 1 AND (${G} OR 1)`,
  `NOT ${G}`,
  `NOT (${G})`,
  `(${G}) = 0`,
  `${G} = 0`,
  `${G} + 1`,
  `${G} BETWEEN 0 AND 1`,
  `NEW.v BETWEEN ${G} AND 2`,
  `(${G}) IN (0, 1)`,
  `CASE WHEN ${G} THEN 1 ELSE 1 END`,
  `(SELECT count(*) = 0 FROM items WHERE NEW.v AND ${G})`,
  `NEW.v = 1 /* AND ${G} */`,
  "(SELECT value FROM _meta WHERE key = 'syncing') = 1",
])("%s is none", (condition) => {
  expect(fires(condition)).toBe(true);
  expect(isGuarded(trigger(condition))).toBe(false);
});
