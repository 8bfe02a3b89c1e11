/**
 * A node as one would write it in an afternoon, to measure ours against: Hono and bun:sqlite, one
 * transaction per request, capture by plain triggers, changes shipped on a 50 ms tick through
 * JSON.parse and JSON.stringify, received row by row with INSERT OR REPLACE. Statements are prepared
 * once; it is meant to be a fair opponent, not a slow one. It has none of ours's guarantees.
 */
import { Database } from "bun:sqlite";
import { parseArgs } from "node:util";
import { Hono } from "hono";

const { values: flags } = parseArgs({
  options: {
    id: { type: "string" },
    db: { type: "string" },
    listen: { type: "string" },
    peer: { type: "string", multiple: true, default: [] },
    synchronous: { type: "string", default: "normal" },
  },
});
const nodeId = flags.id!;
const TICK_MS = 50;
const BATCH_CHANGES_MAX = 10_000;

const db = new Database(flags.db!);
db.run("PRAGMA journal_mode = WAL");
db.run(`PRAGMA synchronous = ${flags.synchronous}`);
db.run("PRAGMA busy_timeout = 5000");
db.run(`
  CREATE TABLE IF NOT EXISTS items(
    id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE IF NOT EXISTS _meta(key TEXT PRIMARY KEY, value INTEGER);
  CREATE TABLE IF NOT EXISTS _changes(
    change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, table_name TEXT, row_id TEXT, row_data TEXT);
  CREATE TABLE IF NOT EXISTS _peer_state(peer_url TEXT PRIMARY KEY, last_acked INTEGER DEFAULT 0);
  INSERT OR IGNORE INTO _meta(key, value) VALUES ('syncing', 0);`);
for (const [suffix, op, side] of [
  ["ai", "INSERT", "NEW"],
  ["au", "UPDATE", "NEW"],
  ["ad", "DELETE", "OLD"],
]) {
  db.run(`
    CREATE TRIGGER IF NOT EXISTS items_${suffix} AFTER ${op} ON items
    WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
    BEGIN
      INSERT INTO _changes(op, table_name, row_id, row_data) VALUES ('${op}', 'items', ${side}.id,
        json_object('id', ${side}.id, 'name', ${side}.name, 'value', ${side}.value,
          'created_at', ${side}.created_at, 'updated_at', ${side}.updated_at, 'node_id', ${side}.node_id));
    END`);
}
const peers = flags.peer;
for (const peer of peers) db.run("INSERT OR IGNORE INTO _peer_state(peer_url) VALUES (?)", [peer]);

interface Row {
  id: string;
  name: string;
  value: number;
  created_at: number;
  updated_at: number;
  node_id: string;
}

interface Change {
  op: string;
  table: string;
  row: Row;
  old_id: string | null;
}

const insert = db.prepare(
  "INSERT INTO items(id, name, value, created_at, updated_at, node_id) VALUES (?, ?, ?, ?, ?, ?)",
);
const versionOf = db.prepare<{ updated_at: number }, [string]>(
  "SELECT updated_at FROM items WHERE id = ?",
);
const replace = db.prepare(
  "INSERT OR REPLACE INTO items(id, name, value, created_at, updated_at, node_id) VALUES (?, ?, ?, ?, ?, ?)",
);
const remove = db.prepare("DELETE FROM items WHERE id = ?");
const setSyncing = db.prepare("UPDATE _meta SET value = ? WHERE key = 'syncing'");

function create(name: string, value: number) {
  const id = Bun.randomUUIDv7();
  const created_at = Date.now();
  insert.run(id, name, value, created_at, created_at, nodeId);
  return { id, name, value, created_at, node_id: nodeId };
}

const createMany = db.transaction((items: { name: string; value: number }[]) => {
  for (const { name, value } of items) create(name, value);
});

const apply = db.transaction((changes: Change[]) => {
  setSyncing.run(1);
  let applied = 0;
  for (const { op, row, old_id } of changes) {
    const id = op === "DELETE" ? old_id! : row.id;
    const stored = versionOf.get(id);
    if (stored && stored.updated_at > row.updated_at) continue;
    if (op === "DELETE") remove.run(id);
    else replace.run(row.id, row.name, row.value, row.created_at, row.updated_at, row.node_id);
    applied++;
  }
  setSyncing.run(0);
  return applied;
});

// ── Shipping ──────────────────────────────────────────────────────────────────────────────────────

const lastAcked = db.prepare<{ last_acked: number }, [string]>(
  "SELECT last_acked FROM _peer_state WHERE peer_url = ?",
);
const setAcked = db.prepare("UPDATE _peer_state SET last_acked = ? WHERE peer_url = ?");
const pending = db.prepare<
  { change_id: number; op: string; table_name: string; row_id: string; row_data: string },
  [number, number]
>("SELECT * FROM _changes WHERE change_id > ? ORDER BY change_id LIMIT ?");
const prune = db.prepare(
  "DELETE FROM _changes WHERE change_id <= (SELECT min(last_acked) FROM _peer_state)",
);

async function ship(peer: string): Promise<void> {
  for (;;) {
    const rows = pending.all(lastAcked.get(peer)!.last_acked, BATCH_CHANGES_MAX);
    const last = rows.at(-1);
    if (last === undefined) return;
    const changes = rows.map((row) => ({
      op: row.op,
      table: row.table_name,
      row: JSON.parse(row.row_data),
      old_id: row.op === "DELETE" ? row.row_id : null,
    }));
    const response = await fetch(`${peer}/sync`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Node-Id": nodeId },
      body: JSON.stringify({ batch_id: last.change_id, changes }),
    });
    const { ack } = (await response.json()) as { ack: number };
    if (ack !== last.change_id) return;
    setAcked.run(ack, peer);
  }
}

async function tick(): Promise<void> {
  await Promise.all(peers.map((peer) => ship(peer).catch(() => undefined)));
  if (peers.length > 0) prune.run();
  setTimeout(tick, TICK_MS);
}

// ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────

const app = new Hono();
app.get("/health", (c) => c.json({ ok: true, node_id: nodeId, peers }));
app.post("/api/items", async (c) => {
  const { name, value } = await c.req.json<{ name: string; value: number }>();
  return c.json(create(name, value), 201);
});
app.post("/api/items/batch", async (c) => {
  const items = await c.req.json<{ name: string; value: number }[]>();
  createMany(items);
  return c.json({ created: items.length }, 201);
});
app.post("/sync", async (c) => {
  const { batch_id, changes } = await c.req.json<{ batch_id: number; changes: Change[] }>();
  return c.json({ applied: apply(changes), ack: batch_id });
});
Bun.serve({
  hostname: "127.0.0.1",
  port: Number(flags.listen!.split(":").at(-1)),
  fetch: app.fetch,
  maxRequestBodySize: 128 * 1024 * 1024,
});
void tick();
