/**
 * A source at random against a bridge that is ended again and again: rows by value and kind are the
 * same in the node's file as in the source's, in every table that can be in a mesh, and rows of the
 * mesh's own stay. `SEEDS=500 bun test test/bridge-fuzz.test.ts` searches longer, `SEED=7` replays one.
 */
import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { systemTimers } from "../lib/base/clock.ts";
import { createLogger } from "../lib/base/log.ts";
import { Bridge } from "../lib/bridge.ts";
import { CdcError } from "../lib/cdc/error.ts";
import { CdcTailer, readCopy, SqliteCapture } from "../lib/cdc/index.ts";
import { TursoSource } from "./cdc/support/turso-source.ts";
import { StoreFile } from "./support/open-store.ts";
import { Seeded, seedsAsked } from "./support/seeded.ts";

const ROUNDS = 12;
const STEPS = 15;
const KEYS = 12;

/** What another program does to the source, each with what may be refused. */
class Source {
  readonly db: Database;
  readonly capture: SqliteCapture;
  readonly #random: Seeded;
  #columns = 0;

  constructor(path: string, random: Seeded) {
    this.#random = random;
    this.db = new Database(path);
    this.db.run("PRAGMA journal_mode = WAL");
    this.db.run("PRAGMA synchronous = OFF");
    this.db.run(`CREATE TABLE notes (id TEXT PRIMARY KEY, mail UNIQUE, v, updated_at INTEGER)`);
    this.db.run(`CREATE TABLE bare (v, id TEXT PRIMARY KEY)`);
    this.db.run(`CREATE TABLE flat (id TEXT PRIMARY KEY, v) WITHOUT ROWID`);
    this.db.run(`CREATE TABLE numbered (id INTEGER PRIMARY KEY, v)`);
    this.capture = SqliteCapture.open(this.db, random);
  }

  step(): void {
    if (this.#random.chance(0.12)) this.#try(this.#schema());
    else if (this.#random.chance(0.02)) this.#try("VACUUM");
    else if (this.#random.chance(0.5)) this.#try(this.#statement());
    else {
      const statements = Array.from({ length: this.#random.below(6) }, () => this.#statement());
      this.db.run("BEGIN");
      for (const each of statements) this.#try(each);
      this.db.run(this.#random.chance(0.1) ? "ROLLBACK" : "COMMIT");
    }
  }

  #try(sql: string): void {
    try {
      this.db.run(sql);
    } catch (error) {
      if (!/constraint|no such|duplicate|already/i.test(String(error))) throw error;
    }
  }

  #id(): string {
    return `'k${this.#random.below(KEYS)}'`;
  }

  #value(): string {
    return this.#random.pick(["1", "1.0", "'1'", "x'31'", "NULL", "-0.0", "9223372036854775807"]);
  }

  #statement(): string {
    const random = this.#random;
    const table = random.pick(["notes", "notes", "bare", "bare", "flat", "numbered"]);
    const or = random.pick(["", "", "OR REPLACE", "OR IGNORE"]);
    if (random.chance(0.2)) return `DELETE FROM ${table} WHERE id = ${this.#id()}`;
    if (table === "numbered") return `INSERT INTO numbered (v) VALUES (${this.#value()})`;
    if (random.chance(0.15)) {
      return `UPDATE ${or} ${table} SET id = ${this.#id()} WHERE id = ${this.#id()}`;
    }
    if (random.chance(0.3))
      return `UPDATE ${table} SET v = ${this.#value()} WHERE id = ${this.#id()}`;
    if (table !== "notes") {
      return `INSERT ${or} INTO ${table} (id, v) VALUES (${this.#id()}, ${this.#value()})`;
    }
    const mail = random.pick(["NULL", `'m${random.below(4)}'`]);
    const at = random.pick(["NULL", "1", String(random.below(100)), "1800000000001"]);
    const values = `${this.#id()}, ${mail}, ${this.#value()}, ${at}`;
    return `INSERT ${or} INTO notes (id, mail, v, updated_at) VALUES (${values})`;
  }

  #schema(): string {
    const random = this.#random;
    const table = random.pick(["notes", "bare", "flat"]);
    return random.pick([
      `ALTER TABLE ${table} ADD COLUMN c${this.#columns++} DEFAULT ${random.pick(["1", "NULL"])}`,
      `DROP TABLE bare; CREATE TABLE bare (id TEXT PRIMARY KEY, v UNIQUE)`,
      `CREATE TABLE made AS SELECT 1 AS id; ALTER TABLE flat RENAME TO away; ALTER TABLE away RENAME TO flat; DROP TABLE made`,
      "CREATE UNIQUE INDEX once ON bare (v)",
      "DROP INDEX once",
      "CREATE INDEX slow ON notes (v)",
      "DROP INDEX slow",
    ]);
  }
}

/** Columns of the source, by value and kind; versions are the mesh's. */
function content(source: Database, db: Database): Record<string, unknown> {
  const all: Record<string, unknown> = {};
  for (const table of ["notes", "bare", "flat"]) {
    const names = source
      .query<{ name: string }, [string]>("SELECT name FROM pragma_table_info(?)")
      .all(table)
      .map(({ name }) => name)
      .filter((name) => name !== "updated_at")
      .sort();
    const columns = names.map((name) => `typeof(${name}), quote(${name})`);
    all[table] = db
      .query(`SELECT id, ${columns.join(", ")} FROM ${table} WHERE id LIKE 'k%' ORDER BY id`)
      .values();
  }
  return all;
}

function openBridge(file: StoreFile, random: Seeded): Bridge {
  const { clock } = file;
  return new Bridge({
    source: { kind: "file", path: "unused" },
    isNew: false,
    store: file.open({ makesDefaultTable: false }),
    path: file.path,
    ownMesh: () => ({ dbIds: new Set(), urls: new Set() }),
    log: createLogger({ level: "error", format: "text", clock, write: () => {} }),
    clock,
    timers: systemTimers,
    random,
  });
}

describe.each(seedsAsked(10))("seed %d", (seed) => {
  test("the node's file has what the source has", async () => {
    const random = new Seeded(seed);
    await using file = new StoreFile();
    const source = new Source(join(file.folder, "source.db"), random);
    const open = () => openBridge(file, random);
    let bridge = open();
    let reader = new Database(source.db.filename, { readonly: true });
    let tailer: CdcTailer | undefined;
    /** Up to `max` transactions, or all. */
    const pump = async (max = Number.POSITIVE_INFINITY) => {
      source.capture.settle();
      for (let n = 0; n < max; ) {
        const after = bridge.watermark();
        if (after === null) {
          const copy = await readCopy(reader, 0);
          await bridge.apply(copy);
          copy.close();
          continue;
        }
        tailer ??= new CdcTailer(reader, after);
        const batch = await tailer.pollBatch();
        if (batch === null) return;
        n++;
        file.clock.ms += random.below(3);
        try {
          await bridge.apply(batch);
        } catch (error) {
          if (!(error instanceof CdcError && error.needsCopy)) throw error;
          throw new Error(`seed ${seed}: ${error.code} ${error.message}`);
        } finally {
          batch.close();
        }
      }
    };
    await pump();
    file.write("INSERT INTO notes (id, v) VALUES ('mine', 'own')");
    for (let round = 0; round < ROUNDS; round++) {
      for (let step = 0; step < STEPS; step++) source.step();
      await pump(random.chance(0.5) ? random.below(5) : undefined);
      if (random.chance(0.3)) {
        await bridge.stop();
        await file.close();
        bridge = open();
        tailer?.close();
        tailer = undefined;
      }
      if (random.chance(0.15)) {
        // Fallen out of the log.
        tailer?.close();
        tailer = undefined;
        source.capture.settle();
        const copy = await readCopy(reader, 0);
        await bridge.apply(copy);
        copy.close();
      }
      if (random.chance(0.2)) {
        reader.close();
        reader = new Database(source.db.filename, { readonly: true });
        tailer?.close();
        tailer = undefined;
      }
    }
    source.db.run("INSERT INTO flat (id) VALUES ('kend')");
    await pump();
    const expected = content(source.db, source.db);
    expect(content(source.db, file.store.db)).toEqual(expected);
    expect(file.rows("SELECT v FROM notes WHERE id = 'mine'")).toEqual([{ v: "own" }]);
    expect(bridge.report().remarks).toEqual([expect.stringContaining("numbered is not taken in")]);
    // Every row of a synced table has been told: a peer that has all changes has all rows.
    await file.runDue();
    const newest = new Map(file.entries().map((e) => [`${e.table_name} ${e.row_id}`, e.op]));
    for (const table of ["notes", "bare", "flat"]) {
      for (const { id } of file.rows<{ id: string }>(`SELECT id FROM ${table}`)) {
        expect([table, id, newest.get(`${table} ${id}`)]).not.toContain("DELETE");
        expect(newest.has(`${table} ${id}`)).toBe(true);
      }
    }
    await bridge.stop();
    reader.close();
    source.db.close();
  }, 60_000);

  test("and what a Turso database has", async () => {
    const random = new Seeded(seed);
    await using file = new StoreFile();
    using source = await TursoSource.open();
    const { writer } = source;
    writer.exec("CREATE TABLE notes (id TEXT PRIMARY KEY, mail UNIQUE, v, updated_at INTEGER)");
    writer.exec("CREATE TABLE bare (v, id TEXT PRIMARY KEY)");
    const id = () => `'k${random.below(KEYS)}'`;
    const value = () => random.pick(["1", "1.5", "'1'", "x'31'", "NULL", "9223372036854775807"]);
    const statement = () => {
      const or = random.pick(["", "OR REPLACE", "OR IGNORE"]);
      const mail = random.pick(["NULL", `'m${random.below(4)}'`]);
      return random.pick([
        `INSERT ${or} INTO notes (id, mail, v) VALUES (${id()}, ${mail}, ${value()})`,
        `INSERT ${or} INTO bare (id, v) VALUES (${id()}, ${value()})`,
        `UPDATE notes SET id = ${id()} WHERE id = ${id()}`,
        `UPDATE ${or} notes SET mail = ${mail} WHERE id = ${id()}`,
        `UPDATE bare SET v = ${value()} WHERE id > ${id()}`,
        `DELETE FROM ${random.pick(["notes", "bare"])} WHERE id = ${id()}`,
      ]);
    };
    let columns = 0;
    const schema = () =>
      random.pick([
        `ALTER TABLE bare ADD COLUMN c${columns++} ${random.pick(["", "DEFAULT 7"])}`,
        "DROP TABLE bare",
        "CREATE TABLE bare (id TEXT PRIMARY KEY, v)",
      ]);
    const attempt = (sql: string) => {
      try {
        writer.exec(sql);
      } catch (error) {
        if (!/constraint|no such|already|no transaction/i.test(String(error))) throw error;
      }
    };
    let bridge = openBridge(file, random);
    let tailer: CdcTailer | undefined;
    const pump = async () => {
      if (bridge.watermark() === null) {
        const copy = await readCopy(source.open(), 0);
        await bridge.apply(copy);
        copy.close();
      }
      tailer ??= new CdcTailer(source.open(), bridge.watermark());
      for (let batch = await tailer.pollBatch(); batch !== null; batch = await tailer.pollBatch()) {
        await bridge.apply(batch);
        batch.close();
      }
    };
    await pump();
    for (let round = 0; round < ROUNDS; round++) {
      for (let step = 0; step < STEPS; step++) {
        if (random.chance(0.1)) attempt(schema());
        else {
          writer.exec("BEGIN IMMEDIATE");
          for (let n = random.below(5); n >= 0; n--) attempt(statement());
          attempt(random.chance(0.1) ? "ROLLBACK" : "COMMIT");
          if (writer.inTransaction) attempt("ROLLBACK");
        }
      }
      await pump();
      if (!random.chance(0.3)) continue;
      await bridge.stop();
      await file.close();
      tailer?.close();
      tailer = undefined;
      bridge = openBridge(file, random);
    }
    attempt("CREATE TABLE bare (id TEXT PRIMARY KEY, v)");
    await pump();
    for (const table of ["notes", "bare"]) {
      const names = writer
        .prepare(`PRAGMA table_info(${table})`)
        .all()
        .map((column) => (column as { name: string }).name)
        .filter((name) => name !== "updated_at");
      const columnsSql = names.map((name) => `typeof(${name}) || ' ' || quote(${name}) AS ${name}`);
      const sql = `SELECT id AS k, ${columnsSql.join(", ")} FROM ${table} ORDER BY 1`;
      expect(file.store.db.query(sql).all()).toEqual(writer.prepare(sql).all());
    }
    await bridge.stop();
  }, 60_000);
});
