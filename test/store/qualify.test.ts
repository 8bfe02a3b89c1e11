/**
 * Which tables qualify where the reason has no SQL to help, and which do although they look odd. The
 * others are in remedies.test.ts, each with its remedy.
 */
import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { surveyAll } from "../../lib/store/catalog.ts";
import { openPrograms } from "../support/old-sqlite.ts";
import { StoreFile } from "../support/open-store.ts";

function look(sql: string) {
  const db = new Database(":memory:");
  db.run(sql);
  const { synced, notSynced } = surveyAll(db);
  return [...synced.keys(), ...notSynced.map(({ name, reason }) => `${name}: ${reason}`)];
}

test.each([
  ["id VARCHAR(36) PRIMARY KEY, updated_at BIGINT"],
  ["updated_at INT, ID TEXT NOT NULL PRIMARY KEY, x"],
  ["id TEXT, updated_at INTEGER, PRIMARY KEY(id DESC)"],
  ["id TEXT PRIMARY KEY ON CONFLICT REPLACE, updated_at INTEGER NOT NULL DEFAULT 0"],
  ["id TEXT PRIMARY KEY, updated_at INTEGER, low TEXT AS (lower(id)) UNIQUE"],
  [`id TEXT PRIMARY KEY, updated_at INTEGER CHECK (updated_at > 0), up TEXT REFERENCES t(id)`],
])("a table of %s qualifies", (columns) => {
  expect(look(`CREATE TABLE t(${columns})`)).toEqual(["t"]);
  expect(look(`CREATE TABLE t(${columns}) WITHOUT ROWID`)).toEqual(["t"]);
});

test("a sample of the stamps is looked at, from both ends", () => {
  const rows = (odd: number) =>
    `CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER);
     WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 5000)
     INSERT INTO t SELECT printf('%05d', i), CASE i WHEN ${odd} THEN 1700000000000000 ELSE 1700000000000 END FROM r`;
  expect(look(rows(1))[0]).toContain("microseconds (1700000000000000)");
  expect(look(rows(5_000))[0]).toContain("microseconds");
  expect(look(rows(2_500))).toEqual(["t"]);
});

test("only what is kept out by its stamps is looked at again for them", () => {
  const db = new Database(":memory:");
  db.run("CREATE TABLE odd(id TEXT PRIMARY KEY, updated_at INTEGER)");
  db.run("CREATE TABLE keyed(n INTEGER PRIMARY KEY, id TEXT, updated_at INTEGER)");
  db.run("INSERT INTO odd VALUES('a', 1700000000000000)");
  db.run("INSERT INTO keyed VALUES(1, 'a', 1700000000000000)");
  const { notSynced, oddlyStamped } = surveyAll(db);
  expect(notSynced.map(({ name }) => name)).toEqual(["odd", "keyed"]);
  expect(oddlyStamped.map(({ name }) => name)).toEqual(["odd"]);
});

test("seconds are not told from old milliseconds; NULL and zero are fine", () => {
  const sql = "CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO t VALUES";
  expect(look(`${sql} ('a', 1700000000), ('b', NULL), ('c', 0), ('d', -5)`)).toEqual(["t"]);
});

test.each([
  ["a function in an index", "CREATE INDEX i ON t(lower(x))", "lower", "owner"],
  ["a collation", "CREATE INDEX i ON t(x COLLATE NOCASE)", "NOCASE", "OWNERS"],
  [
    "a function in a trigger",
    "CREATE TRIGGER r AFTER UPDATE OF x ON t BEGIN SELECT lower(NEW.x); END",
    "lower",
    "owner",
  ],
])("%s that only the application has keeps a new table out", (_, sql, known, own) => {
  const db = new Database(":memory:");
  db.run(`CREATE TABLE t(id TEXT PRIMARY KEY, x, updated_at INTEGER); ${sql}`);
  // As the application left it, which knows what is missing here.
  const bytes = Buffer.from(db.serialize());
  bytes.write(own, bytes.indexOf(known));
  const [refused] = surveyAll(Database.deserialize(bytes)).notSynced;
  expect(refused?.reason).toMatch(
    /^plain SQLite cannot write to it \((no such function: owner|unknown function: owner\(\)|no such collation sequence: OWNERS)\): something/,
  );
});

test("a trigger that writes a table that is gone keeps a new table out", () => {
  const sql = `CREATE TABLE t(id TEXT PRIMARY KEY, updated_at INTEGER);
    CREATE TRIGGER r AFTER DELETE ON t BEGIN INSERT INTO gone VALUES(1); END`;
  expect(look(sql)[0]).toContain("no such table: main.gone");
});

test("a table that is synced already is not lost for it", async () => {
  await using file = new StoreFile("CREATE TABLE t(id TEXT PRIMARY KEY, x, updated_at INTEGER)");
  file.open({ asked: ["t"] });
  file.write("CREATE TRIGGER r AFTER DELETE ON t BEGIN INSERT INTO gone VALUES(1); END");
  await file.settle();
  file.write("INSERT INTO t(id) VALUES('a')");
  await file.settle();
  expect(file.log()).toEqual(["INSERT a"]);
  expect(file.kinds()).toEqual(["registered"]);
});

test("five years of an application: what fits is synced, and its own statements go on", async () => {
  const programs = await openPrograms();
  for (const program of programs) {
    const wide = Array.from({ length: 68 }, (_, i) => `c${i} TEXT`);
    await using file = new StoreFile(`
      CREATE TABLE users(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, updated_at INTEGER);
      CREATE TABLE posts(id TEXT PRIMARY KEY, author INTEGER REFERENCES users(id) ON DELETE SET NULL, body TEXT, updated_at INTEGER);
      CREATE TABLE likes(id TEXT PRIMARY KEY, post TEXT REFERENCES posts(id) ON DELETE CASCADE, updated_at INTEGER);
      CREATE TABLE wide(id TEXT PRIMARY KEY, ${wide.join(", ")}, updated_at INTEGER);
      CREATE TABLE micro(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO micro VALUES('m', 1700000000000000);
      CREATE TABLE touched(id TEXT PRIMARY KEY, n, updated_at INTEGER);
      CREATE TRIGGER touch AFTER UPDATE OF n ON touched BEGIN UPDATE touched SET updated_at = 7 WHERE id = NEW.id; END;
      CREATE TABLE audit(n INTEGER PRIMARY KEY, what TEXT);
      CREATE VIRTUAL TABLE found USING fts5(body, content = 'posts', content_rowid = 'rowid');
      CREATE TRIGGER posts_ai AFTER INSERT ON posts BEGIN INSERT INTO found(rowid, body) VALUES(new.rowid, new.body); INSERT INTO audit(what) VALUES('new ' || new.id); END;
      CREATE TRIGGER posts_ad AFTER DELETE ON posts BEGIN INSERT INTO found(found, rowid, body) VALUES('delete', old.rowid, old.body); END;
      CREATE TRIGGER posts_au AFTER UPDATE ON posts BEGIN INSERT INTO found(found, rowid, body) VALUES('delete', old.rowid, old.body);
        INSERT INTO found(rowid, body) VALUES(new.rowid, new.body); END;
      CREATE VIEW recent AS SELECT * FROM posts ORDER BY updated_at DESC LIMIT 10;
      INSERT INTO users(name) VALUES('ann'), ('bob'); INSERT INTO posts VALUES('p0', 1, 'first words', NULL)`);
    const { survey } = file.open({ asked: "*" });
    expect([...survey.synced.keys()]).toEqual(["posts", "likes", "wide"]);
    expect(survey.notSynced.map(({ name }) => name)).toEqual([
      "users",
      "micro",
      "touched",
      "audit",
    ]);
    const errors = await program.run(file.path, [
      "PRAGMA foreign_keys = ON",
      "INSERT INTO users(name) VALUES('cid')",
      "INSERT INTO posts(id, author, body) VALUES('p1', 3, 'blue whale'), ('p2', 2, 'red fox')",
      "INSERT INTO likes(id, post) VALUES('l1', 'p1'), ('l2', 'p2')",
      "INSERT INTO posts(id, body) VALUES('p2', 'grey fox') ON CONFLICT(id) DO UPDATE SET body = excluded.body",
      "DELETE FROM users WHERE name = 'cid'",
      "DELETE FROM posts WHERE id = 'p2'",
      "INSERT OR REPLACE INTO wide(id, c0, c67) VALUES('w', 'a', 'z')",
      "UPDATE touched SET n = 1",
      "INSERT INTO micro VALUES('m2', 1700000000000001)",
    ]);
    expect(errors.filter((error) => error !== "")).toEqual([]);
    await file.settle();
    expect(file.log().sort()).toEqual([
      "DELETE l2",
      "DELETE p2",
      "INSERT l1",
      "INSERT p1",
      "INSERT w",
    ]);
    expect(
      file.rows("SELECT body FROM found WHERE found MATCH 'whale OR fox OR words' ORDER BY body"),
    ).toEqual([{ body: "blue whale" }, { body: "first words" }]);
    file.write("INSERT INTO found(found) VALUES('integrity-check')");
    expect(file.rows("SELECT what FROM audit ORDER BY n").map(({ what }) => what)).toEqual([
      "new p0",
      "new p1",
      "new p2",
    ]);
    expect(file.rows("SELECT author FROM posts WHERE id = 'p1'")).toEqual([{ author: null }]);
    expect(file.kinds().filter((kind) => kind !== "registered")).toEqual([]);
    program.close();
  }
});
