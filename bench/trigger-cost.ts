/** What does capture cost a write, and would a cheaper trigger gain 1.3 times or more? */
import { Database, type Statement } from "bun:sqlite";
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { type Bench, compare, interleave, median, type Result } from "./support/bench.ts";
import { BenchNode } from "./support/nodes.ts";

const ROWS_PER_TRANSACTION = 10_000;
const GUARD = "(SELECT value FROM _meta WHERE key = 'syncing') = 0";

interface Trigger {
  readonly name: string;
  readonly sql: string;
}

/** Ways to capture, each made out of ours by leaving something away. */
const VARIANTS: Readonly<
  Record<string, { readonly what: string; readonly alter: (db: Database) => void }>
> = {
  ours: { what: "ours", alter: () => {} },
  none: {
    what: "no capture at all",
    alter: (db) => rewrite(db, () => undefined),
  },
  plain: {
    what: "a plain trigger: json_object of the values as they are, nothing else",
    alter: (db) => {
      rewrite(db, () => undefined);
      db.run(`
        CREATE TRIGGER items_ai AFTER INSERT ON items WHEN ${GUARD} BEGIN
          INSERT INTO _changes(op, table_name, row_id, row_data) VALUES ('INSERT', 'items', NEW.id,
            json_object('id', NEW.id, 'name', NEW.name, 'value', NEW.value,
              'created_at', NEW.created_at, 'updated_at', NEW.updated_at, 'node_id', NEW.node_id));
        END`);
    },
  },
  noAutoincrement: {
    what: "ours without AUTOINCREMENT",
    alter: (db) => {
      const { sql } = db
        .query<{ sql: string }, []>("SELECT sql FROM sqlite_master WHERE name = '_changes'")
        .get()!;
      const triggers = readTriggers(db);
      for (const { name } of triggers) db.run(`DROP TRIGGER "${name}"`);
      db.run("DROP TABLE _changes");
      db.run(sql.replace(/AUTOINCREMENT/i, ""));
      for (const trigger of triggers) db.run(trigger.sql);
    },
  },
  noGuard: {
    what: "ours without the syncing guard",
    alter: (db) => rewrite(db, ({ sql }) => sql.replaceAll(GUARD, "1")),
  },
  noLookBefore: {
    what: "ours without the look for rows that REPLACE throws out",
    alter: (db) => rewrite(db, ({ name, sql }) => (name.endsWith("_bi") ? undefined : sql)),
  },
  noTypes: {
    what: "ours without the look at each value's type",
    // `CASE typeof(x) WHEN … ELSE x END` becomes `x`.
    alter: (db) =>
      rewrite(db, ({ sql }) =>
        sql.replace(
          /CASE typeof\([^)]*\) (?:(?!CASE typeof)[\s\S])*? ELSE ((?:NEW|OLD|o)\."[^"]*") END/g,
          "$1",
        ),
      ),
  },
};

function readTriggers(db: Database): Trigger[] {
  return db.query<Trigger, []>("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").all();
}

function rewrite(db: Database, change: (trigger: Trigger) => string | undefined): void {
  for (const trigger of readTriggers(db)) {
    db.run(`DROP TRIGGER "${trigger.name}"`);
    const sql = change(trigger);
    if (sql !== undefined) db.run(sql);
  }
}

interface Contender {
  readonly db: Database;
  readonly insert: Statement;
}

function insertRows({ db, insert }: Contender, transactions: number): number {
  const beganMs = performance.now();
  for (let n = 0; n < transactions; n++) {
    db.run("BEGIN IMMEDIATE");
    const nowMs = Date.now();
    for (let i = 0; i < ROWS_PER_TRANSACTION; i++) {
      insert.run(Bun.randomUUIDv7(), `name number ${i}`, i, nowMs, nowMs, "bench");
    }
    db.run("COMMIT");
  }
  return ((transactions * ROWS_PER_TRANSACTION) / (performance.now() - beganMs)) * 1_000;
}

export const bench: Bench = {
  async run(context) {
    const transactions = context.size(10, 3);
    const made = join(context.dir, "made.db");
    await (await BenchNode.start(context.dir, "ours", { dbPath: made })).stop();
    const contenders = new Map<string, Contender>();
    for (const [name, variant] of Object.entries(VARIANTS)) {
      const path = join(context.dir, `${name}.db`);
      copyFileSync(made, path);
      const db = new Database(path);
      db.run("PRAGMA journal_mode = WAL");
      db.run("PRAGMA synchronous = NORMAL");
      variant.alter(db);
      const insert = db.prepare(
        "INSERT INTO items(id, name, value, created_at, updated_at, node_id) VALUES (?, ?, ?, ?, ?, ?)",
      );
      insertRows({ db, insert }, 1);
      contenders.set(name, { db, insert });
    }
    const rates = await interleave(
      context,
      Object.fromEntries(
        [...contenders].map(([name, contender]) => [
          name,
          () => Promise.resolve(insertRows(contender, transactions)),
        ]),
      ),
    );
    for (const { db, insert } of contenders.values()) {
      insert.finalize();
      db.close();
    }
    const results: Result[] = Object.entries(VARIANTS)
      .filter(([name]) => name !== "ours")
      .map(([name, { what }]) =>
        compare({
          what: `${what}, against ours`,
          ours: rates[name]!,
          theirs: rates["ours"]!,
          unit: "rows/s",
        }),
      );
    context.say(`ours: ${Math.round(median(rates["ours"]!))} rows/s`);
    return results;
  },
};
