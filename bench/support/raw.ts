/** Plain inserts by raw-process.ts, into a new file with or without our triggers. */
import { Database } from "bun:sqlite";
import { join } from "node:path";
import { BenchNode } from "./nodes.ts";
import { spawnOwn } from "./processes.ts";

let files = 0;

/** Rows a second. `full` because that is what ours runs at. */
export async function rawInserts(dir: string, rows: number, triggers: boolean): Promise<number> {
  const path = join(dir, `raw${files++}.db`);
  if (triggers) {
    const node = await BenchNode.start(dir, "ours", { dbPath: path });
    await node.stop();
  } else {
    const db = new Database(path);
    db.run(
      "CREATE TABLE items(id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT)",
    );
    db.close();
  }
  const script = join(import.meta.dir, "raw-process.ts");
  const child = spawnOwn([process.execPath, script, path, String(rows), "FULL"], "pipe");
  const [text, code] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  if (code !== 0) throw new Error(`plain inserts ended with ${code}`);
  return rows / Number(text);
}
