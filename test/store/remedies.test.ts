/**
 * Each table that does not qualify is named with the reason, and the SQL printed with it makes it
 * qualify: pasted into this SQLite or an older one, with its rows, keys, indexes and triggers kept.
 */
import { Database } from "bun:sqlite";
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { surveyAll } from "../../lib/store/catalog.ts";
import { openPrograms, type Program } from "../support/old-sqlite.ts";

/** Many small files: on a machine that does other things as well it may take a while. */
const LOADED_MS_MAX = 30_000;

let programs: Program[] = [];

beforeAll(async () => {
  programs = await openPrograms();
});

afterAll(() => {
  for (const program of programs) program.close();
});

interface Remedied {
  readonly reason: string;
  readonly db: Database;
  all(sql: string): unknown[][];
}

/** Makes the table, pastes what is printed for it, and hands out the file afterwards. */
async function remedy(
  program: Program,
  sql: string,
  name: string,
  look: (file: Remedied) => void | Promise<void>,
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "hook-sync-remedies-"));
  const path = join(folder, "app.db");
  const db = new Database(path);
  try {
    db.run("PRAGMA synchronous = OFF");
    db.run(sql);
    const [refused] = surveyAll(db).notSynced.filter((table) => table.name === name);
    expect(refused?.reason).toBeString();
    // Where cascades are on, dropping a table deletes its rows first.
    const pasted = `PRAGMA foreign_keys = ON;\n${refused!.remedy}`;
    expect(await program.paste(path, pasted)).toBe("");
    expect(surveyAll(db).notSynced.filter((table) => table.name === name)).toEqual([]);
    expect([...surveyAll(db).synced.values()].map((table) => table.name)).toContain(name);
    await look({
      reason: refused!.reason,
      db,
      all: (query) => db.query(query).values() as unknown[][],
    });
    expect(db.query("PRAGMA integrity_check").values()).toEqual([["ok"]]);
  } finally {
    db.close();
    rmSync(folder, { recursive: true });
  }
}

const MS = 1_700_000_000_000;

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

  const simple: [string, string, string, unknown[][]][] = [
    ["no column id", "body TEXT, updated_at INTEGER", `('x', ${MS})`, [["x", MS]]],
    [
      "another primary key",
      "uid INTEGER PRIMARY KEY, body, updated_at INTEGER",
      `(7, 'x', ${MS})`,
      [["x", MS]],
    ],
    [
      "a numeric id",
      "id INTEGER PRIMARY KEY, body, updated_at INTEGER",
      `(7, 'x', ${MS})`,
      [["x", MS]],
    ],
    [
      "an id without a type",
      "id PRIMARY KEY, body, updated_at INTEGER",
      `(x'00ff', 'b', ${MS}), (5, 'i', ${MS}), ('5', 't', ${MS}), (NULL, 'n', ${MS})`,
      [
        ["b", MS],
        ["i", MS],
        ["n", MS],
        ["t", MS],
      ],
    ],
    [
      "an id that ignores case",
      "id TEXT PRIMARY KEY COLLATE NOCASE, body, updated_at INTEGER",
      `('A', 'x', ${MS})`,
      [["x", MS]],
    ],
    [
      "an id that is no key",
      "id TEXT, body, updated_at INTEGER",
      `('a', 'x', ${MS}), ('a', 'y', ${MS}), (NULL, 'z', 5)`,
      [
        ["x", MS],
        ["y", MS],
        ["z", 5],
      ],
    ],
    [
      "an id that is one of two keys",
      "t TEXT, id TEXT, body, updated_at INTEGER, PRIMARY KEY(t, id)",
      `('u', '1', 'x', ${MS}), ('v', '1', 'y', ${MS})`,
      [
        ["x", MS],
        ["y", MS],
      ],
    ],
    [
      "STRICT and a numeric id",
      "id INT PRIMARY KEY, body TEXT, updated_at INT) STRICT; --",
      `(7, 'x', ${MS})`,
      [["x", MS]],
    ],
    [
      "WITHOUT ROWID and a numeric id",
      "id INT PRIMARY KEY, body TEXT, updated_at INT) WITHOUT ROWID; --",
      `(7, 'x', ${MS})`,
      [["x", MS]],
    ],
    ["no updated_at", "id TEXT PRIMARY KEY, body", "('a', 'x')", [["x", null]]],
    [
      "updated_at as text",
      "id TEXT PRIMARY KEY, body, updated_at TEXT",
      "('a', 'x', '2023-11-14 22:13:20')",
      [["x", MS]],
    ],
    [
      "updated_at as text, with digits and fractions",
      "id TEXT PRIMARY KEY, body, updated_at TEXT",
      `('a', 'digits', '${MS + 1}'), ('b', 'number', ${MS + 2}), ('c', 'real', ${MS + 3}.0), ('d', 's', '1700000000'), ('e', 's.', '1700000000.123'),
       ('f', 'us', '${MS}456'), ('g', 'us real', ${MS * 1e3}.0), ('h', 'ns', ' ${MS}999999 '), ('i', 'zero', '0'), ('j', 'minus', '-5'),
       ('k', 'iso', '2023-11-14T22:13:20.500Z'), ('l', 'zone', '2023-11-15T00:13:59.999+02:00'), ('m', 'long', '2023-11-14 22:13:20.123456'), ('n', 'old', '1969-12-31 23:59:59.999')`,
      [
        ["digits", MS + 1],
        ["iso", MS + 500],
        ["long", MS + 123],
        ["minus", -5],
        ["ns", MS],
        ["number", MS + 2],
        ["old", -1],
        ["real", MS + 3],
        ["s", MS],
        ["s.", MS + 123],
        ["us", MS],
        ["us real", MS],
        ["zero", 0],
        ["zone", MS + 39_999],
      ],
    ],
    [
      "updated_at as DATETIME",
      "id TEXT PRIMARY KEY, body, updated_at DATETIME",
      "('a', 'x', '2023-11-14T22:13:20Z'), ('b', 'y', 1700000000.5)",
      [
        ["x", MS],
        ["y", MS + 500],
      ],
    ],
    [
      "updated_at as REAL, and microseconds",
      "id TEXT PRIMARY KEY, body, updated_at REAL",
      "('a', 'x', 1700000000000000.0)",
      [["x", MS]],
    ],
    [
      "updated_at that is generated",
      `id TEXT PRIMARY KEY, body, updated_at INTEGER AS (${MS}) VIRTUAL`,
      "('a', 'x')",
      [["x", MS]],
    ],
    [
      "updated_at as a column of other values in every row",
      "id TEXT PRIMARY KEY, body TEXT UNIQUE, updated_at INTEGER UNIQUE, UNIQUE(updated_at, body)",
      `('a', 'x', ${MS}), ('b', 'y', 5)`,
      [
        ["x", MS],
        ["y", 5],
      ],
    ],
    [
      "updated_at as the key",
      "id TEXT, body, updated_at INTEGER PRIMARY KEY",
      `('a', 'x', ${MS})`,
      [["x", MS]],
    ],
    [
      "stamps of every kind",
      "id TEXT PRIMARY KEY, body, updated_at INTEGER",
      `('a', 'us', ${MS}000), ('b', 'ns', ${MS}000000), ('c', 'text', '2023-11-14 22:13:20'), ('d', 'ms', ${MS}), ('e', 'null', NULL), ('f', 'real', 1.5), ('g', 'blob', x'00'), ('h', 's', 1700000000.25), ('i', 'least', -9223372036854775808)`,
      [
        ["blob", null],
        ["least", -9_223_372_036_854],
        ["ms", MS],
        ["ns", MS],
        ["null", null],
        ["real", 1],
        ["s", MS + 250],
        ["text", MS],
        ["us", MS],
      ],
    ],
  ];
  for (const [what, columns, rows, expected] of simple) {
    here(what, (program) => {
      const create = `CREATE TABLE t(${columns})`.replace("; --)", "");
      const names = columns.startsWith("id TEXT PRIMARY KEY, body, updated_at INTEGER AS")
        ? "(id, body)"
        : "";
      return remedy(program, `${create}; INSERT INTO t${names} VALUES ${rows}`, "t", ({ all }) => {
        expect(all("SELECT body, updated_at FROM t ORDER BY body")).toEqual(expected);
        const ids = all("SELECT DISTINCT id FROM t WHERE typeof(id) = 'text'");
        expect(ids).toHaveLength(expected.length);
      });
    });
  }

  here("ids that were numbers or keys stay what they were, as text", async (program) => {
    await remedy(
      program,
      "CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, updated_at INTEGER); INSERT INTO t VALUES(7, 1), (12, 1)",
      "t",
      ({ all, db }) => {
        expect(all("SELECT id FROM t ORDER BY id")).toEqual([["12"], ["7"]]);
        // An application that counted on being given a number goes on.
        db.run("INSERT INTO t(updated_at) VALUES(1)");
        expect(all("SELECT length(id) FROM t WHERE id NOT IN ('7', '12')")).toEqual([[32]]);
      },
    );
  });

  here(
    "a table with everything keeps its keys, defaults, indexes, triggers and children",
    async (program) => {
      await remedy(
        program,
        `CREATE TABLE owner(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO owner VALUES('o', 1);
       CREATE TABLE "my t"(id INTEGER PRIMARY KEY, "k 1" TEXT NOT NULL DEFAULT none, mail TEXT UNIQUE COLLATE NOCASE, n INTEGER DEFAULT (1 + 1),
         at TEXT DEFAULT CURRENT_TIMESTAMP, owner TEXT REFERENCES owner(id) ON DELETE CASCADE, updated_at TEXT, UNIQUE("k 1", n));
       CREATE INDEX by_n ON "my t"(n DESC) WHERE n > 0;
       CREATE TABLE child(id TEXT PRIMARY KEY, p INTEGER REFERENCES "my t"(id) ON DELETE CASCADE, updated_at INTEGER);
       CREATE VIEW seen AS SELECT id, mail FROM "my t";
       CREATE TABLE log(n INTEGER PRIMARY KEY, what TEXT);
       CREATE TRIGGER logged AFTER INSERT ON "my t" BEGIN INSERT INTO log(what) VALUES(NEW.mail); END;
       CREATE TRIGGER touch AFTER UPDATE OF mail ON "my t" WHEN NEW.mail <> 'quiet' -- else not
       BEGIN UPDATE "my t" SET updated_at = 5 WHERE id = NEW.id; END;
       INSERT INTO "my t"(id, mail, owner, updated_at) VALUES(1, 'a@x', 'o', '2023-11-14 22:13:20');
       INSERT INTO child VALUES('c', 1, 1)`,
        "my t",
        ({ all, db }) => {
          expect(all(`SELECT id, "k 1", mail, n, owner, updated_at FROM "my t"`)).toEqual([
            ["1", "none", "a@x", 2, "o", MS],
          ]);
          expect(all("SELECT id, mail FROM seen")).toEqual([["1", "a@x"]]);
          expect(all("SELECT id FROM child")).toEqual([["c"]]);
          db.run("PRAGMA foreign_keys = ON");
          expect(all("PRAGMA foreign_key_check")).toEqual([]);
          expect(() => db.run(`INSERT INTO "my t"(id, mail) VALUES('2', 'A@X')`)).toThrow("UNIQUE");
          expect(() => db.run(`INSERT INTO "my t"(id, "k 1") VALUES('2', NULL)`)).toThrow(
            "NOT NULL",
          );
          db.run(`INSERT INTO "my t"(id, mail, n) VALUES('2', 'b@x', 7)`);
          expect(all("SELECT what FROM log ORDER BY n")).toEqual([["a@x"], ["b@x"]]);
          expect(
            all(
              "SELECT name FROM sqlite_master WHERE tbl_name = 'my t' AND sql IS NOT NULL AND type <> 'table' ORDER BY name",
            ),
          ).toEqual([["by_n"], ["logged"], ["touch"]]);
          db.run(`UPDATE "my t" SET mail = 'c@x' WHERE id = '2'`);
          expect(all(`SELECT updated_at FROM "my t" WHERE id = '2'`)).toEqual([[5]]);
          db.run("DELETE FROM owner");
          expect(all("SELECT count(*) FROM child")).toEqual([[0]]);
        },
      );
    },
  );

  here(
    "indexes that keep updated_at unique are ordinary ones, and others stay as they are",
    (program) =>
      remedy(
        program,
        `CREATE TABLE t(id TEXT PRIMARY KEY, n, updated_at INTEGER, s INTEGER AS (updated_at / 1000));
       CREATE UNIQUE INDEX one ON t(updated_at DESC) WHERE n > 0; CREATE UNIQUE INDEX /* two */ "t w o" ON t(s);
       CREATE UNIQUE INDEX pair ON t(n, updated_at); INSERT INTO t(id, n, updated_at) VALUES('a', 1, ${MS})`,
        "t",
        ({ reason, all, db }) => {
          expect(reason).toContain("has to be UNIQUE");
          db.run(`INSERT INTO t(id, n, updated_at) VALUES('b', 2, ${MS})`);
          expect(() => db.run(`INSERT INTO t(id, n, updated_at) VALUES('c', 2, ${MS})`)).toThrow();
          expect(all("SELECT name FROM sqlite_master WHERE type = 'index' AND sql > ''")).toEqual([
            ["pair"],
            ["one"],
            ["t w o"],
          ]);
          expect(all("SELECT sql FROM sqlite_master WHERE name = 'one'")).toEqual([
            ["CREATE INDEX one ON t(updated_at DESC) WHERE n > 0"],
          ]);
        },
      ),
  );

  const touches: [string, string][] = [
    [
      "without a WHEN",
      "CREATE TRIGGER touch AFTER UPDATE OF body ON notes BEGIN UPDATE notes SET updated_at = 5 WHERE id = NEW.id; END",
    ],
    [
      "with FOR EACH ROW",
      "CREATE TRIGGER touch AFTER UPDATE OF body ON notes FOR EACH ROW -- every\n BEGIN UPDATE notes SET updated_at = 5 WHERE id = NEW.id; END",
    ],
    [
      "with a WHEN",
      "CREATE TRIGGER touch AFTER UPDATE ON notes WHEN NEW.body <> OLD.body OR OLD.body IS NULL BEGIN UPDATE notes SET updated_at = 5 WHERE id = NEW.id; END",
    ],
    [
      "with a comment behind its WHEN",
      "CREATE TRIGGER touch AFTER UPDATE ON notes WHEN NEW.body <> OLD.body -- BEGIN only then\nBEGIN UPDATE notes SET updated_at = 5 WHERE id = NEW.id; END",
    ],
    [
      "of any name, with quotes and keywords",
      `CREATE TRIGGER "when ""begin""" AFTER UPDATE OF "begin", body ON "notes" WHEN (NEW."begin" IS NULL AND 'BEGIN' <> "body") /* WHEN */ BEGIN UPDATE "notes" SET updated_at = 5 WHERE id = NEW.id; END`,
    ],
    [
      "through another table's trigger",
      `CREATE TRIGGER touch AFTER UPDATE OF body ON notes BEGIN INSERT INTO counts VALUES(1, NEW.id); END;
      CREATE TRIGGER back AFTER INSERT ON counts BEGIN UPDATE notes SET updated_at = 5 WHERE id = NEW.who; END`,
    ],
    [
      "through a view's trigger",
      `CREATE TRIGGER touch AFTER UPDATE OF body ON notes BEGIN UPDATE shown SET updated_at = 5 WHERE id = NEW.id; END;
      CREATE TRIGGER through INSTEAD OF UPDATE ON shown BEGIN UPDATE notes SET updated_at = NEW.updated_at WHERE id = NEW.id; END`,
    ],
  ];
  for (const [what, sql] of touches) {
    here(`a touch trigger ${what}`, (program) =>
      remedy(
        program,
        `CREATE TABLE notes(id TEXT PRIMARY KEY, body TEXT, "begin" TEXT, updated_at INTEGER);
         CREATE TABLE counts(n, who); CREATE VIEW shown AS SELECT * FROM notes; ${sql};
         INSERT INTO notes VALUES('a', 'x', NULL, 1)`,
        "notes",
        ({ reason, all, db }) => {
          expect(reason).toContain("writes notes");
          db.run("UPDATE notes SET body = 'y'");
          expect(all("SELECT updated_at FROM notes")).toEqual([[5]]);
          db.run(
            "UPDATE notes SET updated_at = 9; UPDATE _meta SET value = 1; UPDATE notes SET body = 'z'",
          );
          expect(all("SELECT updated_at FROM notes")).toEqual([[9]]);
        },
      ),
    );
  }

  here("two harmful triggers at once, and harmless ones beside them", (program) =>
    remedy(
      program,
      `CREATE TABLE notes(id TEXT PRIMARY KEY, body TEXT, updated_at INTEGER); CREATE TABLE log(n INTEGER PRIMARY KEY, what);
       CREATE TRIGGER one AFTER INSERT ON notes BEGIN UPDATE notes SET updated_at = 1 WHERE id = NEW.id; END;
       CREATE TRIGGER two AFTER UPDATE OF body ON notes BEGIN UPDATE notes SET updated_at = 2 WHERE id = NEW.id; END;
       CREATE TRIGGER three AFTER UPDATE ON notes BEGIN INSERT INTO log(what) VALUES('x'); END`,
      "notes",
      ({ reason, all }) => {
        expect(reason).toContain("one writes notes; two writes notes");
        const guarded = all(
          "SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%syncing%' ORDER BY name",
        );
        expect(guarded).toEqual([["one"], ["two"]]);
      },
    ),
  );
});

test("a table that nothing helps is told so", () => {
  const db = new Database(":memory:");
  const columns = Array.from({ length: 499 }, (_, i) => `c${i}`);
  db.run(`CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER, ${columns.join(", ")})`);
  db.run("CREATE VIEW v AS SELECT 1; CREATE VIRTUAL TABLE f USING fts5(x)");
  expect(surveyAll(db).notSynced).toEqual([
    { name: "t", reason: "it has 501 columns, more than 500", remedy: "Split the table." },
  ]);
});
