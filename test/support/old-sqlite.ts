/**
 * Other programs that write to a node's file, with the SQLite builds they bring along: this Bun's own,
 * and the older one of the system's Python. What our triggers do has to be the same under both.
 *
 * Where there is no Python, the tests that need it are left out and that is said; with CI set it is
 * an error, since nothing else shows that the triggers run on an older SQLite.
 */
import { Database } from "bun:sqlite";

/** A program that runs statements on a connection of its own, opened for them and closed again. */
export interface Program {
  readonly name: string;
  readonly sqliteVersion: string;
  /** Runs each statement by itself; returns the errors by position, "" where there was none. */
  run(path: string, statements: readonly string[]): Promise<string[]>;
  /** Runs a text of many statements, as somebody would paste it; returns the error, or "". */
  paste(path: string, sql: string): Promise<string>;
  close(): void;
}

/** The SQLite of this Bun. */
export function bunProgram(): Program {
  return {
    name: "this build",
    sqliteVersion: new Database(":memory:")
      .query<{ v: string }, []>("SELECT sqlite_version() AS v")
      .get()!.v,
    run: (path, statements) => {
      const db = new Database(path);
      db.run("PRAGMA busy_timeout = 5000; PRAGMA synchronous = OFF");
      const errors = statements.map((sql) => {
        try {
          db.run(sql);
          return "";
        } catch (error) {
          return (error as Error).message;
        }
      });
      if (db.inTransaction) db.run("ROLLBACK");
      db.close(true);
      return Promise.resolve(errors);
    },
    async paste(path, sql) {
      return (await this.run(path, [sql]))[0]!;
    },
    close: () => {},
  };
}

const PYTHON_SCRIPT = `
import json, sqlite3, sys
print(sqlite3.sqlite_version, flush=True)
for line in sys.stdin:
    path, statements = json.loads(line)
    db = sqlite3.connect(path, timeout=5, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    errors = []
    for sql in statements if isinstance(statements, list) else [statements]:
        try:
            if sql is statements:
                db.executescript(sql)
            else:
                db.execute(sql).fetchall()
            errors.append("")
        except sqlite3.Error as error:
            errors.append(str(error))
    if db.in_transaction:
        db.execute("ROLLBACK")
    db.close()
    print(json.dumps(errors), flush=True)
`;

/** The SQLite of the system's Python, in a process that lives until `close`. */
async function pythonProgram(): Promise<Program> {
  const child = Bun.spawn(["python3", "-c", PYTHON_SCRIPT], {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
  });
  const lines = linesOf(child.stdout);
  const version = await lines.next();
  if (version.done) throw new Error("python3 has no module sqlite3");
  const ask = async (path: string, statements: readonly string[] | string) => {
    child.stdin.write(`${JSON.stringify([path, statements])}\n`);
    child.stdin.flush();
    const answer = await lines.next();
    if (answer.done) throw new Error("python3 ended");
    return JSON.parse(answer.value) as string[];
  };
  return {
    name: "an older build",
    sqliteVersion: version.value,
    run: ask,
    paste: async (path, sql) => (await ask(path, sql))[0]!,
    close: () => {
      child.stdin.end();
      child.kill();
    },
  };
}

async function* linesOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<string, void> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of stream) {
    rest += decoder.decode(chunk, { stream: true });
    for (let end = rest.indexOf("\n"); end >= 0; end = rest.indexOf("\n")) {
      yield rest.slice(0, end);
      rest = rest.slice(end + 1);
    }
  }
}

const isRequired = (process.env["CI"] ?? "") !== "";
const hasPython = Bun.which("python3") !== null;

/** This build, and an older one where there is one. Tests close them. */
export async function openPrograms(): Promise<Program[]> {
  if (!hasPython && isRequired) throw new Error("an older SQLite is needed: no command `python3`");
  if (!hasPython) console.warn("left out: triggers under an older SQLite (no command `python3`)");
  return hasPython ? [bunProgram(), await pythonProgram()] : [bunProgram()];
}
