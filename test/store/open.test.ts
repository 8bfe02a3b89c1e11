/**
 * From a path to an open file, or one clear reason why not, with whatever stood there untouched (DL37 of
 * the field reports, and issue "Start").
 */
import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HookSyncError } from "../../lib/base/errors.ts";
import {
  hasOtherName,
  lockFile,
  openDatabase,
  openError,
  resolvePath,
} from "../../lib/store/open.ts";
import { readUnchanged } from "../../lib/store/read-unchanged.ts";
import { Store } from "../../lib/store/store.ts";
import { StoreFile, T } from "../support/open-store.ts";

class Folder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), "hook-sync-open-"));
  file(name: string, content?: string | Uint8Array): string {
    const path = join(this.path, name);
    if (content !== undefined) writeFileSync(path, content);
    return path;
  }
  [Symbol.dispose](): void {
    chmodSync(this.path, 0o700);
    rmSync(this.path, { recursive: true });
  }
}

/** The code of the error that `run` throws, and its message. */
function refusal(run: () => unknown): [code: string, message: string] {
  try {
    run();
  } catch (error) {
    if (error instanceof HookSyncError) return [error.code, error.message];
    throw error;
  }
  return ["none", ""];
}

const APP = `CREATE TABLE notes(id TEXT PRIMARY KEY, updated_at INTEGER); INSERT INTO notes VALUES('a', ${T})`;

function database(path: string, sql: string): Uint8Array {
  const db = new Database(path);
  db.run(sql);
  db.close(true);
  return readFileSync(path);
}

describe("a path that cannot be a node's file", () => {
  test("a text, also a short one and one with a database's first letters", () => {
    using folder = new Folder();
    for (const [i, text] of [
      "x",
      "hello, world, this is no database",
      "SQLite format 2\0 or so",
    ].entries()) {
      const path = folder.file(`t${i}`, text);
      expect(refusal(() => resolvePath(path))).toEqual([
        "file-not-a-database",
        `${path} is not an SQLite database`,
      ]);
      expect(readFileSync(path, "utf8")).toBe(text);
    }
    expect(readdirSync(folder.path)).toHaveLength(3);
  });

  test("a folder, and a folder that is not there", () => {
    using folder = new Folder();
    expect(refusal(() => resolvePath(folder.path))[0]).toBe("file-not-a-database");
    const missing = join(folder.path, "no", "node.db");
    expect(refusal(() => resolvePath(missing))).toEqual([
      "file-missing-folder",
      `the folder of ${missing} does not exist`,
    ]);
    expect(existsSync(join(folder.path, "no"))).toBe(false);
  });

  test("a pipe, at once, and a device", () => {
    using folder = new Folder();
    const pipe = folder.file("pipe");
    expect(spawnSync("mkfifo", [pipe]).status).toBe(0);
    for (const path of [pipe, "/dev/zero"]) {
      const expected = ["file-not-a-database", `${path} is a pipe, a socket or a device`];
      expect(refusal(() => resolvePath(path)) as string[]).toEqual(expected);
      expect(refusal(() => readUnchanged(path, () => 0)) as string[]).toEqual(expected);
    }
  });

  test("a link that leads to itself, or into a folder that is not there", () => {
    using folder = new Folder();
    const loop = folder.file("loop");
    symlinkSync("loop", loop);
    expect(refusal(() => resolvePath(loop))[0]).toBe("file-not-a-database");
    const lost = folder.file("lost");
    symlinkSync("no/node.db", lost);
    expect(refusal(() => resolvePath(lost))[0]).toBe("file-missing-folder");
  });

  // Root may write anywhere, whatever the permissions say.
  test.skipIf(process.getuid?.() === 0)("a file or folder that is read-only", () => {
    using folder = new Folder();
    const path = folder.file("node.db");
    const before = database(path, APP);
    chmodSync(path, 0o400);
    expect(refusal(() => resolvePath(path))[0]).toBe("file-read-only");
    chmodSync(path, 0o600);
    chmodSync(folder.path, 0o500);
    expect(refusal(() => resolvePath(path))[0]).toBe("file-read-only");
    expect(refusal(() => resolvePath(join(folder.path, "new.db")))[0]).toBe("file-read-only");
    expect(readFileSync(path)).toEqual(Buffer.from(before));
  });

  test("one that another program holds locked", () => {
    using folder = new Folder();
    const path = folder.file("node.db");
    const before = database(path, APP);
    const other = new Database(path);
    other.run("BEGIN EXCLUSIVE");
    // As opening does, which would wait 5 s.
    const db = new Database(path, { strict: true });
    expect(() => db.query("SELECT * FROM notes").all()).toThrow("locked");
    try {
      db.query("SELECT * FROM notes").all();
    } catch (error) {
      expect(openError(path, error)).toMatchObject({
        code: "busy",
        message: `another program holds ${path} locked`,
      });
    }
    db.close();
    other.run("ROLLBACK");
    other.close(true);
    expect(readFileSync(path)).toEqual(Buffer.from(before));
  });

  test("one whose pages are damaged", () => {
    using folder = new Folder();
    const path = folder.file("node.db");
    const bytes = Buffer.from(database(path, APP));
    bytes.fill(0xff, 100, 1_000);
    writeFileSync(path, bytes);
    expect(resolvePath(path)).toBe(path);
    expect(refusal(() => openDatabase({ path, synchronous: "full" }))[0]).toBe("file-damaged");
    expect(refusal(() => Store.inspect(path, "*"))[0]).toBe("file-damaged");
    expect(readFileSync(path)).toEqual(bytes);
  });

  test.each([
    [
      "of a newer version",
      "file-newer",
      `CREATE TABLE _hooksync(key TEXT PRIMARY KEY, value) WITHOUT ROWID; INSERT INTO _hooksync VALUES('level', 99); ${APP}`,
    ],
    [
      "with tables of our names that are another program's",
      "file-foreign-tables",
      `CREATE TABLE _meta(a); ${APP}`,
    ],
    ["whose tables nobody asked for", "tables-not-chosen", APP],
  ])("one %s stays byte for byte as it is", async (_, code, sql) => {
    await using file = new StoreFile();
    const before = database(file.path, sql);
    expect(refusal(() => Store.inspect(file.path, undefined))[0]).toBe(code);
    expect(refusal(() => file.open())[0]).toBe(code);
    expect(readFileSync(file.path)).toEqual(Buffer.from(before));
    expect(readdirSync(file.folder)).toEqual(["node.db"]);
  });
});

test("a file of no bytes and one that is not there are fresh databases", async () => {
  for (const content of ["", undefined]) {
    await using file = new StoreFile();
    if (content !== undefined) writeFileSync(file.path, content);
    expect(resolvePath(file.path)).toBe(file.path);
    file.open();
    expect([...file.store.survey.synced.keys()]).toEqual(["items"]);
  }
});

test("a link leads to its file, so that two names are one lock", () => {
  using folder = new Folder();
  const path = folder.file("real.db", "");
  const link = join(folder.path, "link.db");
  symlinkSync(path, link);
  expect(resolvePath(link)).toBe(path);
});

test("a second name by a hard link is seen", () => {
  using folder = new Folder();
  const path = folder.file("real.db", "");
  expect(hasOtherName(path)).toBe(false);
  linkSync(path, join(folder.path, "other.db"));
  expect(hasOtherName(path)).toBe(true);
});

test("the file is in WAL mode, with full durability unless asked otherwise, and leaves no -wal", async () => {
  await using file = new StoreFile();
  const pragma = (name: string) => file.store.db.query(`PRAGMA ${name}`).values()[0]![0];
  file.open({ synchronous: "full" });
  expect([pragma("journal_mode"), pragma("synchronous")]).toEqual(["wal", 2]);
  // W3: the event loop never waits long for a lock.
  expect(pragma("busy_timeout")).toBeLessThanOrEqual(5);
  await file.close();
  file.open({ synchronous: "normal" });
  expect(pragma("synchronous")).toBe(1);
  await file.close();
  expect(readdirSync(file.folder)).toEqual(["node.db"]);
});

test("what is written while another program holds the lock waits, and then goes on", async () => {
  await using file = new StoreFile();
  file.open();
  const other = new Database(file.path);
  other.run("BEGIN IMMEDIATE");
  const written = file.store.queue.run("apply", () => "written");
  await new Promise((resolve) => setTimeout(resolve, 30));
  other.run("COMMIT");
  other.close();
  expect(await written).toBe("written");
});

describe("the claim on a file", () => {
  const HOLD = `import { lockFile } from "${import.meta.dir}/../../lib/store/open.ts";
    const lock = lockFile(process.argv[1]); console.log("held"); setInterval(() => lock, 1000);`;

  test("a second one is refused, one after its release is not", () => {
    using folder = new Folder();
    const path = folder.file("node.db", "");
    const lock = lockFile(path);
    expect(refusal(() => lockFile(path))).toEqual([
      "file-in-use",
      `${path} is in use by another hook-sync node`,
    ]);
    lock.release();
    lockFile(path).release();
  });

  test("through a link to a file that was not there yet, too", () => {
    using folder = new Folder();
    const link = folder.file("link");
    symlinkSync("node.db", link);
    const before = resolvePath(link);
    const lock = lockFile(before);
    openDatabase({ path: before, synchronous: "full" }).close(true);
    expect(refusal(() => lockFile(resolvePath(link)))[0]).toBe("file-in-use");
    lock.release();
  });

  test("another process is refused, until the first ends, even by kill -9", async () => {
    using folder = new Folder();
    const path = folder.file("node.db", "");
    const holder = Bun.spawn([process.execPath, "-e", HOLD, path], {
      stdout: "pipe",
      stderr: "inherit",
    });
    const [said] = await Array.fromAsync(firstChunk(holder.stdout));
    expect(said).toBe("held\n");
    expect(refusal(() => lockFile(path))[0]).toBe("file-in-use");
    holder.kill("SIGKILL");
    await holder.exited;
    lockFile(path).release();
  });
});

async function* firstChunk(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  for await (const chunk of stream) {
    yield new TextDecoder().decode(chunk);
    return;
  }
}

test("a closed program that ended in the middle of a transaction leaves nothing of it", async () => {
  await using file = new StoreFile(APP);
  file.open({ asked: ["notes"] });
  await file.close();
  const half = Bun.spawnSync([
    process.execPath,
    "-e",
    `import { Database } from "bun:sqlite"; const db = new Database("${file.path}");
     db.run("BEGIN IMMEDIATE"); db.run("UPDATE _meta SET value = 1"); db.run("DELETE FROM notes"); process.kill(process.pid, "SIGKILL");`,
  ]);
  expect(half.signalCode).toBe("SIGKILL");
  file.open();
  expect(file.rows("SELECT count(*) AS n FROM notes")).toEqual([{ n: 1 }]);
  expect(file.kinds()).toEqual(["registered"]);
  file.write("INSERT INTO notes(id) VALUES('b')");
  await file.settle();
  expect(file.log()).toEqual(["INSERT b"]);
});

test("a folder named like the file's lock is said, not taken", () => {
  using folder = new Folder();
  const path = folder.file("node.db", "");
  mkdirSync(`${path}.hook-sync-lock`);
  expect(refusal(() => lockFile(path))).toEqual([
    "file-read-only",
    `${path}.hook-sync-lock cannot be written: unable to open database file`,
  ]);
});
