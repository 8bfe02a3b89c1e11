/**
 * Another program with another SQLite: Python's, which on most systems is years older than ours, or
 * where there is no Python, Bun's in a process of its own. Statements come as JSON lines, results go
 * back the same way.
 */
import { ENVIRONMENT } from "./node-process.ts";

const PYTHON = `
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
db.execute("PRAGMA foreign_keys = ON")
for line in sys.stdin:
    if not line.strip():
        continue
    try:
        cursor = db.execute(json.loads(line))
        rows = [[v.hex() if isinstance(v, bytes) else v for v in row] for row in cursor.fetchall()]
        print(json.dumps({"rows": rows}), flush=True)
    except Exception as error:
        print(json.dumps({"error": str(error)}), flush=True)
db.close()
`;

const BUN = `
const { Database } = require("bun:sqlite");
const db = new Database(process.argv.at(-1), { readwrite: true });
db.run("PRAGMA busy_timeout = 20000");
db.run("PRAGMA foreign_keys = ON");
const shown = (v) => (v instanceof Uint8Array ? Buffer.from(v).toString("hex") : v);
for await (const line of console) {
  if (!line.trim()) continue;
  try {
    const rows = db.prepare(JSON.parse(line)).values();
    console.log(JSON.stringify({ rows: rows.map((row) => row.map(shown)) }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }));
  }
}
db.close(true);
`;

/** The release of Python's SQLite, or undefined where there is none. */
export const OLD_SQLITE = pythonSqlite();

function pythonSqlite(): string | undefined {
  try {
    const { stdout, success } = Bun.spawnSync(
      ["python3", "-c", "import sqlite3; print(sqlite3.sqlite_version)"],
      { stdout: "pipe", stderr: "ignore" },
    );
    return success ? stdout.toString().trim() : undefined;
  } catch {
    return undefined;
  }
}

/** `old`: Python's, where there is one. */
export type Engine = "old" | "bun";

type Cell = string | number | null;

/** A program that has the file open, foreign keys on, one statement at a time. */
export class Program implements AsyncDisposable {
  readonly #child: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #lines: AsyncIterator<string>;

  constructor(path: string, engine: Engine = "old") {
    const command =
      engine === "bun" || OLD_SQLITE === undefined
        ? [process.execPath, "-e", BUN, path]
        : ["python3", "-c", PYTHON, path];
    this.#child = Bun.spawn(command, {
      env: ENVIRONMENT,
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#lines = readLines(this.#child.stdout);
  }

  /** The statement's rows; throws what SQLite says. */
  async sql(text: string): Promise<Cell[][]> {
    const answer = await this.attempt(text);
    if ("error" in answer) throw new Error(`${answer.error}: ${text}`);
    return answer.rows;
  }

  async attempt(text: string): Promise<{ rows: Cell[][] } | { error: string }> {
    this.#child.stdin.write(`${JSON.stringify(text)}\n`);
    await this.#child.stdin.flush();
    const line = await this.#lines.next();
    if (line.done) throw new Error("the program ended");
    return JSON.parse(line.value);
  }

  /** Ends as programs do: the connection closed. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#child.stdin.end();
    await this.#child.exited;
  }
}

async function* readLines(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of stream) {
    text += decoder.decode(chunk, { stream: true });
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n")) {
      yield text.slice(0, at);
      text = text.slice(at + 1);
    }
  }
}
