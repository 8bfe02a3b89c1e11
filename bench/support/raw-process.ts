/**
 * Plain inserts with bun:sqlite in a process of their own: what SQLite itself can do, to hold ours
 * against. One prepared INSERT per row, 10,000 rows in a transaction, ids and stamps as ours makes them.
 *
 *   bun raw-process.ts FILE ROWS SYNCHRONOUS   →   seconds
 *
 * The file exists; where it has our triggers, they run.
 */
import { Database } from "bun:sqlite";

const ROWS_PER_TRANSACTION = 10_000;

const [path, rowsText, synchronous] = process.argv.slice(2) as [string, string, string];
const db = new Database(path);
db.run("PRAGMA journal_mode = WAL");
db.run(`PRAGMA synchronous = ${synchronous}`);
// As ours has it.
db.run("PRAGMA cache_size = -32768");
const insert = db.prepare(
  "INSERT INTO items(id, name, value, created_at, updated_at, node_id) VALUES (?, ?, ?, ?, ?, ?)",
);

function insertRows(count: number): void {
  db.run("BEGIN IMMEDIATE");
  const nowMs = Date.now();
  for (let i = 0; i < count; i++) {
    insert.run(Bun.randomUUIDv7(), `name number ${i}`, i, nowMs, nowMs, "raw");
  }
  db.run("COMMIT");
}

// Compiled and cached before it counts, as a running node is.
insertRows(ROWS_PER_TRANSACTION);
const beganMs = performance.now();
for (let left = Number(rowsText); left > 0; left -= ROWS_PER_TRANSACTION) {
  insertRows(Math.min(left, ROWS_PER_TRANSACTION));
}
console.log((performance.now() - beganMs) / 1_000);
db.close();
