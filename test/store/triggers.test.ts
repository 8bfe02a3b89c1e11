/**
 * The capture triggers: their whole text for one table, and what they record, for tables of every shape,
 * under this SQLite and an older one. What settling makes of the records is tested in settle.test.ts.
 */
import { Database } from "bun:sqlite";
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { installTriggers, survey } from "../../lib/store/catalog.ts";
import { migrate } from "../../lib/store/migrations.ts";
import { captureTriggers } from "../../lib/store/triggers.ts";
import { openPrograms, type Program } from "../support/old-sqlite.ts";
import { StoreFile } from "../support/open-store.ts";

function triggersOf(sql: string, isTaken: (name: string) => boolean = () => false) {
  const db = new Database(":memory:");
  db.run(sql);
  const [table] = survey(db, { all: true, names: [] }).synced.values();
  return captureTriggers(table!, isTaken);
}

const GUARD = "(SELECT value FROM _meta WHERE key = 'syncing') = 0";
const BLOB = (value: string) =>
  `WHEN 'blob' THEN json('"\\u005cx' || lower(hex(substr(${value}, 1, 67108864))) || '"')`;
const REAL = (value: string) =>
  `WHEN 'real' THEN json(CASE WHEN abs(${value}) <= 1.7976931348623157e308 THEN printf('%!.20g', ${value}) ` +
  `WHEN ${value} > 0 THEN '9.0e+999' ELSE '-9.0e+999' END)`;

/** As row-json.test.ts has shown it to be exact. */
function rowJson(alias: "NEW" | "OLD" | "o"): string {
  const strip = alias === "NEW" ? " || ''" : "";
  const text = (name: string) =>
    `'${name}', CASE typeof(${alias}."${name}") ${BLOB(`${alias}."${name}"`)} ELSE ${alias}."${name}"${strip} END`;
  const stamp = `${alias}."updated_at"`;
  return (
    `json_object(${text("id")}, ${text("email")}, 'updated_at', CASE typeof(${stamp}) WHEN 'integer' THEN ${stamp} ` +
    `${REAL(stamp)} ${BLOB(stamp)} ELSE ${stamp}${strip} END)`
  );
}

function note(row: string, where: string, again: string): string {
  return (
    `  INSERT INTO _hooksync_noted(tbl, id, version, row, at)\n` +
    `  SELECT 'notes', o."id", o."updated_at", ${row}, coalesce((SELECT max(change_id) FROM _changes), 0)\n` +
    `  FROM "notes" AS o WHERE ${where} AND typeof(o."id") = 'text'\n` +
    `  ON CONFLICT(tbl, id) ${again};\n`
  );
}

test("the triggers of a table, whole", () => {
  const [bi, bu, ai, au, ad] = triggersOf(
    `CREATE TABLE notes(id TEXT PRIMARY KEY, email TEXT COLLATE NOCASE UNIQUE, updated_at INTEGER)`,
  );
  const sameId = 'o."id" = NEW."id"';
  const sameEmail = 'o."email" = NEW."email" COLLATE "NOCASE"';
  const other = (own: string) => `o."id" IS NOT ${own}."id"`;
  const fill = "DO UPDATE SET row = excluded.row WHERE row IS NULL";
  expect(bi!.sql).toBe(
    `CREATE TRIGGER "notes_bi" BEFORE INSERT ON "notes"\n` +
      `WHEN (EXISTS (SELECT 1 FROM "notes" AS o WHERE ${sameId}) OR EXISTS (SELECT 1 FROM "notes" AS o WHERE ${sameEmail})) AND ${GUARD}\n` +
      `BEGIN /* hook-sync */\n${note("NULL", sameId, "DO NOTHING")}${note(rowJson("o"), `${sameEmail} AND ${other("NEW")}`, fill)}END`,
  );
  const exists = (clash: string) =>
    `EXISTS (SELECT 1 FROM "notes" AS o WHERE ${clash} AND ${other("OLD")})`;
  expect(bu!.sql).toBe(
    `CREATE TRIGGER "notes_bu" BEFORE UPDATE OF "id", "email" ON "notes"\n` +
      `WHEN (${exists(sameId)} OR ${exists(sameEmail)}) AND ${GUARD}\n` +
      `BEGIN /* hook-sync */\n${note(rowJson("o"), `${sameId} AND ${other("OLD")}`, fill)}${note(rowJson("o"), `${sameEmail} AND ${other("OLD")}`, fill)}END`,
  );
  const into = "  INSERT INTO _changes(op, table_name, row_id, row_data, was)\n";
  expect(ai!.sql).toBe(
    `CREATE TRIGGER "notes_ai" AFTER INSERT ON "notes"\n` +
      `WHEN ${GUARD} AND typeof(NEW."id") = 'text'\n` +
      `BEGIN /* hook-sync */\n${into}  VALUES ('INSERT', 'notes', NEW."id", ${rowJson("NEW")}, NULL);\nEND`,
  );
  const same = 'OLD."id" IS NEW."id"';
  expect(au!.sql).toBe(
    `CREATE TRIGGER "notes_au" AFTER UPDATE ON "notes"\n` +
      `WHEN ${GUARD}\n` +
      `BEGIN /* hook-sync */\n` +
      `${into}  SELECT 'DELETE', 'notes', OLD."id", ${rowJson("OLD")}, OLD."updated_at"\n` +
      `  WHERE NOT (${same}) AND typeof(OLD."id") = 'text';\n` +
      `${into}  SELECT 'UPDATE', 'notes', NEW."id", ${rowJson("NEW")}, CASE WHEN ${same} THEN coalesce(OLD."updated_at", 0) END\n` +
      `  WHERE typeof(NEW."id") = 'text';\nEND`,
  );
  expect(ad!.sql).toBe(
    `CREATE TRIGGER "notes_ad" AFTER DELETE ON "notes"\n` +
      `WHEN ${GUARD} AND typeof(OLD."id") = 'text'\n` +
      `BEGIN /* hook-sync */\n${into}  VALUES ('DELETE', 'notes', OLD."id", ${rowJson("OLD")}, OLD."updated_at");\nEND`,
  );
});

test("names that the application uses for its own triggers are left to it", () => {
  const taken = new Set(["notes_ai", "notes_bu"]);
  const names = triggersOf("CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER)", (name) =>
    taken.has(name),
  ).map((trigger) => trigger.name);
  expect(names).toEqual([
    "notes_bi",
    "_hooksync_notes_bu",
    "_hooksync_notes_ai",
    "notes_au",
    "notes_ad",
  ]);
});

test.each<[string, string, string[]]>([
  ["a column", "mail TEXT UNIQUE, x", ["sqlite_autoindex_t_2"]],
  ["two columns", "a, b TEXT COLLATE NOCASE, UNIQUE(a, b)", ["sqlite_autoindex_t_2"]],
  ["a default", "mail TEXT NOT NULL DEFAULT none UNIQUE", ["sqlite_autoindex_t_2"]],
  [
    "a partial index",
    "mail TEXT, gone INTEGER); CREATE UNIQUE INDEX i ON t(mail) WHERE gone = 0 -- no\n; --",
    ["i"],
  ],
  [
    "an expression",
    "mail TEXT); CREATE UNIQUE INDEX i ON t(lower(mail) /* low */ DESC); --",
    ["i"],
  ],
  [
    "a generated column",
    "mail TEXT, low TEXT AS (lower(mail)) VIRTUAL UNIQUE",
    ["sqlite_autoindex_t_2"],
  ],
])("an INSERT looks for rows in its way by the index, for %s", (_, columns, indexes) => {
  const db = new Database(":memory:");
  db.run(`CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER, ${columns})`);
  const [table] = survey(db, { all: true, names: [] }).synced.values();
  const [bi] = captureTriggers(table!, () => false);
  const asked = [...bi!.sql.matchAll(/EXISTS \((SELECT 1 FROM .*?)\)(?= OR EXISTS|\) AND)/g)];
  const plans = asked.map(([, sql]) => {
    // NEW is a row of its own here.
    const text = `WITH new AS (SELECT * FROM t LIMIT 1) SELECT (${sql}) FROM new`;
    const steps = db.query<{ detail: string }, []>(`EXPLAIN QUERY PLAN ${text}`).all();
    return steps.map((step) => step.detail).find((detail) => detail.includes(" o "))!;
  });
  expect(plans).toHaveLength(1 + indexes.length);
  for (const [i, index] of ["sqlite_autoindex_t_1", ...indexes].entries()) {
    expect(plans[i]).toStartWith("SEARCH o");
    expect(plans[i]).toContain(`INDEX ${index} (`);
  }
});

// ── What they record ────────────────────────────────────────────────────────────────────────────

/** Many small files: on a machine that does other things as well it may take a while. */
const LOADED_MS_MAX = 30_000;

let programs: Program[] = [];

beforeAll(async () => {
  programs = await openPrograms();
});

afterAll(() => {
  for (const program of programs) program.close();
});

const SCHEMA = `CREATE TABLE t(id TEXT PRIMARY KEY, mail TEXT UNIQUE, updated_at INTEGER);
  INSERT INTO t VALUES('a', 'm1', 5), ('b', 'm2', 6), ('c', NULL, NULL)`;

/** What one program's statements leave in the log and among the notes, before any settling. */
async function record(program: Program, sql: string, statements: readonly string[]) {
  const folder = mkdtempSync(join(tmpdir(), "hook-sync-triggers-"));
  const path = join(folder, "node.db");
  const db = new Database(path);
  try {
    db.run("PRAGMA synchronous = OFF");
    db.run(sql);
    migrate(db);
    for (const table of survey(db, { all: true, names: [] }).synced.values())
      installTriggers(db, table);
    const errors = await program.run(path, statements);
    const texts = (query: string) => db.query(query).values().flat();
    return {
      errors: errors.filter((error) => error !== ""),
      log: texts(
        "SELECT op || ' ' || row_id || ' ' || coalesce(was, '-') FROM _changes ORDER BY change_id",
      ),
      notes: texts(
        `SELECT id || ' ' || coalesce(version, '-') || CASE WHEN row IS NULL THEN '' ELSE ' with content' END
         FROM _hooksync_noted ORDER BY id`,
      ),
      rows: texts("SELECT row_data FROM _changes ORDER BY change_id").map((row) =>
        JSON.parse(row as string),
      ),
    };
  } finally {
    db.close();
    rmSync(folder, { recursive: true });
  }
}

const CASES: readonly (readonly [what: string, sql: string, log: string[], notes: string[]])[] = [
  ["an INSERT", "INSERT INTO t VALUES('x', 'm9', 7)", ["INSERT x -"], []],
  ["several rows", "INSERT INTO t(id) VALUES('x'), ('y')", ["INSERT x -", "INSERT y -"], []],
  [
    "INSERT … SELECT",
    "INSERT INTO t SELECT id || '2', NULL, 1 FROM t WHERE id < 'c'",
    ["INSERT a2 -", "INSERT b2 -"],
    [],
  ],
  ["an UPDATE", "UPDATE t SET updated_at = 8 WHERE id = 'a'", ["UPDATE a 5"], []],
  [
    "an UPDATE of a row without a stamp",
    "INSERT INTO t(id) VALUES('u'); UPDATE t SET mail = 'q' WHERE id = 'u'",
    ["INSERT u -", "UPDATE u 0"],
    [],
  ],
  ["an UPDATE of the id", "UPDATE t SET id = 'z' WHERE id = 'a'", ["DELETE a 5", "UPDATE z -"], []],
  ["a DELETE", "DELETE FROM t WHERE id = 'b'", ["DELETE b 6"], []],
  ["a REPLACE by id", "REPLACE INTO t VALUES('a', 'm1', 1)", ["INSERT a -"], ["a 5"]],
  [
    "a REPLACE by another key",
    "INSERT OR REPLACE INTO t VALUES('x', 'm2', 1)",
    ["INSERT x -"],
    ["b 6 with content"],
  ],
  [
    "a REPLACE by both",
    "INSERT OR REPLACE INTO t VALUES('a', 'm2', 1)",
    ["INSERT a -"],
    ["a 5", "b 6 with content"],
  ],
  [
    "UPDATE OR REPLACE",
    "UPDATE OR REPLACE t SET mail = 'm2' WHERE id = 'a'",
    ["UPDATE a 5"],
    ["b 6 with content"],
  ],
  [
    "UPDATE OR REPLACE of the id",
    "UPDATE OR REPLACE t SET id = 'b' WHERE id = 'a'",
    ["DELETE a 5", "UPDATE b -"],
    ["b 6 with content"],
  ],
  [
    "OR IGNORE",
    "INSERT OR IGNORE INTO t VALUES('x', 'm2', 1), ('y', NULL, 1)",
    ["INSERT y -"],
    ["b 6 with content"],
  ],
  [
    "an UPSERT that updates",
    "INSERT INTO t VALUES('a', 'm1', 9) ON CONFLICT(id) DO UPDATE SET updated_at = 9",
    ["UPDATE a 5"],
    ["a 5"],
  ],
  [
    "an UPSERT that does nothing",
    "INSERT INTO t VALUES('a', 'm1', 9) ON CONFLICT DO NOTHING",
    [],
    ["a 5"],
  ],
  ["a failed statement", "INSERT INTO t VALUES('x', 'q', 1), ('a', 'r', 1)", [], []],
  [
    "OR FAIL half-way",
    "INSERT OR FAIL INTO t VALUES('x', 'q', 1), ('a', 'r', 1)",
    ["INSERT x -"],
    ["a 5"],
  ],
  ["OR ROLLBACK", "INSERT OR ROLLBACK INTO t VALUES('x', 'q', 1), ('a', 'r', 1)", [], []],
  ["a NULL id", "INSERT INTO t VALUES(NULL, 'q', 1)", [], []],
  ["a BLOB id", "INSERT INTO t VALUES(x'00', 'q', 1)", [], []],
  ["an id set to NULL", "UPDATE t SET id = NULL WHERE id = 'a'", ["DELETE a 5"], []],
  ["a savepoint undone", "SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; RELEASE s", [], []],
  ["a transaction undone", "BEGIN; INSERT INTO t(id) VALUES('x'); ROLLBACK", [], []],
  [
    "a row that stays out and throws out another",
    "INSERT INTO t VALUES(NULL, 'q', 1); INSERT OR REPLACE INTO t VALUES(NULL, 'm1', 1); UPDATE OR REPLACE t SET mail = 'm2' WHERE mail = 'q'",
    [],
    ["a 5 with content", "b 6 with content"],
  ],
  [
    "a REPLACE of a row that stays out",
    "INSERT INTO t VALUES(x'00', 'bm', 1); REPLACE INTO t VALUES('x', 'bm', 1)",
    ["INSERT x -"],
    [],
  ],
];

describe.each([0, 1])("program %p", (which) => {
  const here = (name: string, run: (program: Program) => Promise<void>) =>
    test(
      name,
      async () => {
        const program = programs[which];
        // Left out, and said by openPrograms.
        if (program !== undefined) await run(program);
      },
      LOADED_MS_MAX,
    );

  here("records what happened, with every conflict policy", async (program) => {
    for (const recursive of ["OFF", "ON"]) {
      for (const [what, sql, log, notes] of CASES) {
        const before = [`PRAGMA recursive_triggers = ${recursive}`];
        const recorded = await record(program, SCHEMA, [...before, ...sql.split("; ")]);
        // With recursive triggers REPLACE fires delete triggers, too: then it is said twice.
        const deletes = recorded.log.filter(
          (entry) => !log.includes(entry as string) && String(entry).startsWith("DELETE"),
        );
        const said = recorded.log.filter((entry) => !deletes.includes(entry));
        expect([what, recursive, said]).toEqual([what, recursive, log]);
        expect([what, recorded.notes]).toEqual([what, notes]);
        if (recursive === "OFF") expect(deletes).toEqual([]);
      }
    }
  });

  here("captures columns of any name", async (program) => {
    const names = [
      "order",
      "a b",
      'q"t',
      "it's",
      "NEW",
      "OLD",
      "o",
      "__proto__",
      "größe",
      "😀",
      "Row",
      "x'00'",
      "`b`",
      "[c]",
    ];
    const quoted = names.map((name) => `"${name.replaceAll('"', '""')}"`);
    const table = `"we""ird 'tbl größe"`;
    const sql = `CREATE TABLE ${table}("ID" TEXT PRIMARY KEY, ${quoted.join(" TEXT, ")} TEXT UNIQUE, "Updated_At" INTEGER);
      CREATE UNIQUE INDEX "i ""1" ON ${table}("NEW", "o");
      INSERT INTO ${table}("ID", "NEW", "o") VALUES('r', 'n', 'o')`;
    const { errors, log, notes, rows } = await record(program, sql, [
      `INSERT OR REPLACE INTO ${table}("ID", ${quoted.join(", ")}, "Updated_At") VALUES('x', ${names.map((_, i) => (i === 4 ? "'n'" : i === 6 ? "'o'" : `'v${i}'`)).join(", ")}, 5)`,
      `UPDATE ${table} SET "order" = 'changed' WHERE "ID" = 'x'`,
      `DELETE FROM ${table}`,
    ]);
    expect(errors).toEqual([]);
    expect(log).toEqual(["INSERT x -", "UPDATE x 5", "DELETE x 5"]);
    expect(notes).toEqual(["r - with content"]);
    const expected = new Map<string, unknown>([
      ["ID", "x"],
      ...names.map((name, i): [string, unknown] => [name, i === 4 ? "n" : i === 6 ? "o" : `v${i}`]),
      ["Updated_At", 5],
    ]);
    expect(new Map(Object.entries(rows[0] as object))).toEqual(expected);
    expect(Object.keys(rows[2] as object)).toContain("__proto__");
  });

  here("captures 64, 128 and 500 columns", async (program) => {
    for (const count of [64, 128, 500]) {
      const names = Array.from({ length: count - 2 }, (_, i) => `c${i}`);
      const { errors, rows } = await record(
        program,
        `CREATE TABLE t(id TEXT PRIMARY KEY, ${names.join(", ")}, updated_at INTEGER, UNIQUE(c0))`,
        [
          `INSERT INTO t(id, ${names.join(", ")}) VALUES('x', ${names.map((_, i) => (i % 5 === 0 ? "NULL" : `'v' || ${i}`)).join(", ")})`,
          "UPDATE t SET c1 = 'w'",
          "DELETE FROM t",
        ],
      );
      expect(errors).toEqual([]);
      expect(rows).toHaveLength(3);
      for (const row of rows) expect(Object.keys(row as object)).toHaveLength(count);
      expect(rows[2]).toMatchObject({ id: "x", c0: null, c1: "w", c3: "v3", updated_at: null });
    }
  });

  here(
    "leaves generated columns out, also one that raises, and captures WITHOUT ROWID and STRICT",
    async (program) => {
      const generated = await record(
        program,
        `CREATE TABLE t(id TEXT PRIMARY KEY, doc TEXT, n INTEGER, updated_at INTEGER);
       INSERT INTO t VALUES('bad', 'no json', 1, 5);
       ALTER TABLE t ADD COLUMN kind TEXT AS (json_extract(doc, '$.kind')) VIRTUAL`,
        [
          "INSERT INTO t(id, doc) VALUES('x', '{}')",
          "UPDATE t SET n = 2 WHERE id = 'x'",
          "DELETE FROM t",
        ],
      );
      expect(generated.errors).toEqual([]);
      expect(generated.log).toEqual(["INSERT x -", "UPDATE x 0", "DELETE bad 5", "DELETE x -"]);
      expect(generated.rows[1]).toEqual({ id: "x", doc: "{}", n: 2, updated_at: null });

      const strict = await record(
        program,
        "CREATE TABLE t(updated_at INT, n INT UNIQUE, id TEXT PRIMARY KEY, a ANY) STRICT, WITHOUT ROWID; INSERT INTO t VALUES(5, 1, 'a', 1)",
        [
          "INSERT OR REPLACE INTO t VALUES(6, 1, 'b', 1.0)",
          "UPDATE t SET id = 'c', a = x'ff'",
          "DELETE FROM t",
        ],
      );
      expect(strict.errors).toEqual([]);
      expect(strict.log).toEqual(["INSERT b -", "DELETE b 6", "UPDATE c -", "DELETE c 6"]);
      expect(strict.notes).toEqual(["a 5 with content"]);
    },
  );

  here("notes rows in the way as SQLite sees them", async (program) => {
    const clashes: [string, string[], string[]][] = [
      ["mail TEXT COLLATE NOCASE UNIQUE, a, b", ["('a', 'X', 1, 1)", "('n', 'x', 1, 1)"], ["a"]],
      ["mail TEXT UNIQUE, a, b", ["('a', 'X', 1, 1)", "('n', 'x', 1, 1)"], []],
      ["mail, a, b, UNIQUE(a, b)", ["('a', 1, 2, 3)", "('n', 1, 2, 3)"], ["a"]],
      ["mail, a, b, UNIQUE(a, b)", ["('a', 1, 2, NULL)", "('n', 1, 2, NULL)"], []],
      ["mail TEXT, a, b, UNIQUE(mail)", ["('a', 5, 1, 1)", "('n', '5', 1, 1)"], ["a"]],
      [
        "mail, a, b); CREATE UNIQUE INDEX i ON t(mail) WHERE a = 1; --",
        ["('a', 'x', 1, 1)", "('n', 'x', 1, 1)"],
        ["a"],
      ],
      [
        "mail, a, b); CREATE UNIQUE INDEX i ON t(mail) WHERE a = 1; --",
        ["('a', 'x', 2, 1)", "('n', 'x', 1, 1)"],
        [],
      ],
      [
        "mail, a, b); CREATE UNIQUE INDEX i ON t(a > 1 OR b IS NULL, mail); --",
        ["('a', 'x', 2, 1)", "('n', 'x', 0, NULL)"],
        ["a"],
      ],
      [
        "mail, a, b); CREATE UNIQUE INDEX i ON t(a > 1 OR b IS NULL, mail); --",
        ["('a', 'x', 2, 1)", "('n', 'x', 0, 1)"],
        [],
      ],
      ["mail, a, b AS (mail || a) UNIQUE", ["('a', 'x', 'yz')", "('n', 'xy', 'z')"], ["a"]],
      ["mail, a, b AS (mail || a) UNIQUE", ["('a', 'x', 'yz')", "('n', 'xy', 'q')"], []],
      [
        "mail TEXT NOT NULL DEFAULT none UNIQUE, a, b",
        ["('a', 'none', 1, 1)", "('n', NULL, 1, 1)"],
        ["a"],
      ],
      [
        'mail TEXT NOT NULL DEFAULT "no ne" UNIQUE, a, b',
        ["('a', 'no ne', 1, 1)", "('n', NULL, 1, 1)"],
        ["a"],
      ],
      [
        "mail INT NOT NULL DEFAULT (1 + 1 /* two */ -- 2\n), a, b); CREATE UNIQUE INDEX i ON t(mail * 2); --",
        ["('a', 2, 1, 1)", "('n', NULL, 1, 1)"],
        ["a"],
      ],
    ];
    for (const [columns, [first, second], expected] of clashes) {
      const sql = `CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER DEFAULT 5, ${columns})`;
      const names = columns.includes(" AS (") ? "id, mail, a" : "id, mail, a, b";
      const { errors, notes } = await record(
        program,
        `${sql.replace("; --)", "")};INSERT INTO t(${names}) VALUES${first}`,
        [`INSERT OR REPLACE INTO t(${names}) VALUES${second}`],
      );
      expect([columns, errors]).toEqual([columns, []]);
      expect([columns, second, notes]).toEqual([
        columns,
        second,
        expected.map((id) => `${id} 5 with content`),
      ]);
    }
  });

  here("notes a row that an UPDATE moves into a partial index would throw out", async (program) => {
    const { log, notes } = await record(
      program,
      `CREATE TABLE t(id TEXT PRIMARY KEY, mail TEXT, gone INTEGER, updated_at INTEGER);
       CREATE UNIQUE INDEX i ON t(mail) WHERE gone = 0;
       INSERT INTO t VALUES('a', 'x', 0, 5), ('b', 'x', 1, 6)`,
      ["UPDATE OR REPLACE t SET gone = 0 WHERE id = 'b'"],
    );
    expect(log).toEqual(["UPDATE b 6"]);
    expect(notes).toEqual(["a 5 with content"]);
  });

  here("notes a row that an UPDATE of what a key is made of would throw out", async (program) => {
    const { notes } = await record(
      program,
      `CREATE TABLE t(id TEXT PRIMARY KEY, mail TEXT, low TEXT AS (lower(mail)) UNIQUE, updated_at INTEGER);
       INSERT INTO t(id, mail, updated_at) VALUES('a', 'x', 5), ('b', 'y', 6)`,
      ["UPDATE OR REPLACE t SET mail = 'X' WHERE id = 'b'"],
    );
    expect(notes).toEqual(["a 5 with content"]);
  });

  here("keeps the older note, and fills in its content", async (program) => {
    const { notes } = await record(program, SCHEMA, [
      "INSERT OR IGNORE INTO t VALUES('a', 'x', 1)",
      "UPDATE t SET updated_at = 50 WHERE id = 'a'",
      "INSERT OR IGNORE INTO t VALUES('y', 'm1', 1)",
      "UPDATE t SET updated_at = 51 WHERE id = 'a'",
    ]);
    expect(notes).toEqual(["a 5 with content"]);
  });
});

test("nothing is recorded while received rows are applied", async () => {
  await using file = new StoreFile(SCHEMA);
  file.open({ asked: ["t"] });
  file.write(`BEGIN; UPDATE _meta SET value = 1; INSERT OR REPLACE INTO t VALUES('x', 'm1', 1);
    UPDATE t SET id = 'z' WHERE id = 'b'; DELETE FROM t; UPDATE _meta SET value = 0; COMMIT`);
  expect(file.log()).toEqual([]);
  expect(file.rows("SELECT * FROM _hooksync_noted")).toEqual([]);
});
