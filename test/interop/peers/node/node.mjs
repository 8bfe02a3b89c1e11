// A hook-sync node in JavaScript: a third reading of the wire contract, on Node and better-sqlite3. It
// behaves as the JS nodes in the field do, and its faults are its purpose. On purpose it
//
//   - takes numbers as doubles, so integers above 2^53 lose digits;
//   - replaces the whole row by the message's columns (INSERT OR REPLACE);
//   - answers 400 for a whole batch when one row of it is bad, and so holds up its sender;
//   - lets the last arrival win a tie (>=) and stamps with its own clock, whatever it replaces;
//   - keeps no tombstones: a late INSERT revives a deleted row;
//   - sets a batch aside as dead letters on the first wrong acknowledgement;
//   - ships to its peers one after the other, without a time limit, on a tick.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { parseArgs } from "node:util";
import Database from "better-sqlite3";

const BODY_BYTES_MAX = 100 * 1024 * 1024;
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

const { values: flags } = parseArgs({
  options: {
    id: { type: "string" },
    db: { type: "string" },
    listen: { type: "string", default: ":9001" },
    peer: { type: "string", multiple: true, default: [] },
    "batch-ms": { type: "string", default: "50" },
    "batch-size": { type: "string", default: "10000" },
    "clock-offset-ms": { type: "string", default: "0" },
  },
});
const nodeId = flags.id;
const peers = flags.peer.map((url) => url.replace(/\/+$/, ""));
const batchSize = Number(flags["batch-size"]);
const now = () => Date.now() + Number(flags["clock-offset-ms"]);

// ---- the file ----

const db = new Database(flags.db, { timeout: 5000 });
db.pragma("journal_mode = WAL");
db.pragma("synchronous = NORMAL");
db.exec(`
  CREATE TABLE IF NOT EXISTS items (
    id TEXT PRIMARY KEY, name TEXT, value INTEGER, created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE IF NOT EXISTS _meta (key TEXT PRIMARY KEY, value INTEGER);
  CREATE TABLE IF NOT EXISTS _changes (
    change_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, table_name TEXT, row_id TEXT, row_data TEXT);
  CREATE TABLE IF NOT EXISTS _dead_letter (
    dead_id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT, row_id TEXT, row_data TEXT,
    failed_at INTEGER, retry_count INTEGER DEFAULT 0);
  CREATE TABLE IF NOT EXISTS _peer_state (peer_url TEXT PRIMARY KEY, last_acked INTEGER DEFAULT 0);
  INSERT OR IGNORE INTO _meta(key, value) VALUES('syncing', 0);
`);
for (const peer of peers)
  db.prepare("INSERT OR IGNORE INTO _peer_state(peer_url) VALUES(?)").run(peer);

// Every user table with an id and an updated_at is captured. Triggers that are there already stay.
const tables = new Set();
for (const table of db
  .prepare("SELECT name FROM sqlite_master WHERE type = 'table'")
  .pluck()
  .all()) {
  if (!NAME.test(table) || table.startsWith("_") || table.startsWith("sqlite_")) continue;
  const columns = db.prepare("SELECT name FROM pragma_table_info(?)").pluck().all(table);
  if (!columns.includes("id") || !columns.includes("updated_at")) continue;
  tables.add(table);
  const row = (side) =>
    columns.map((c) => `'${c.replaceAll("'", "''")}', ${side}.${quote(c)}`).join(", ");
  for (const [suffix, op, side] of [
    ["ai", "INSERT", "NEW"],
    ["au", "UPDATE", "NEW"],
    ["ad", "DELETE", "OLD"],
  ]) {
    db.exec(`CREATE TRIGGER IF NOT EXISTS ${table}_${suffix} AFTER ${op} ON ${table}
      WHEN (SELECT value FROM _meta WHERE key = 'syncing') = 0
      BEGIN
        INSERT INTO _changes(op, table_name, row_id, row_data)
        VALUES('${op}', '${table}', ${side}.id, json_object(${row(side)}));
      END`);
  }
}

function quote(name) {
  return `"${name.replaceAll('"', '""')}"`;
}

// ---- receiving ----

const prepared = new Map();
function prepare(sql) {
  if (!prepared.has(sql)) prepared.set(sql, db.prepare(sql));
  return prepared.get(sql);
}

const apply = db.transaction((changes) => {
  prepare("UPDATE _meta SET value = 1 WHERE key = 'syncing'").run();
  let applied = 0;
  for (const change of changes) applied += applyOne(change);
  prepare("UPDATE _meta SET value = 0 WHERE key = 'syncing'").run();
  return applied;
});

function applyOne({ op, table, row, old_id: oldId }) {
  if (!tables.has(table)) throw new Error(`no table ${table}`);
  const id = op === "DELETE" ? (oldId ?? row.id) : row.id;
  const stored = prepare(`SELECT updated_at FROM ${table} WHERE id = ?`).pluck().get(id);
  if (row && stored !== undefined && stored > row.updated_at) return 0;
  if (op === "DELETE") {
    prepare(`DELETE FROM ${table} WHERE id = ?`).run(id);
  } else if (op === "INSERT" || op === "UPDATE") {
    const columns = Object.keys(row);
    for (const column of columns) if (!NAME.test(column)) throw new Error(`bad column ${column}`);
    prepare(
      `INSERT OR REPLACE INTO ${table} (${columns.join(", ")}) VALUES (${columns.map(() => "?").join(", ")})`,
    ).run(...Object.values(row));
  } else {
    throw new Error(`no operation ${op}`);
  }
  return 1;
}

// ---- shipping ----

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let stopping = false;

async function shipForEver() {
  while (!stopping) {
    await sleep(Number(flags["batch-ms"]));
    for (const peer of peers)
      await drain(peer).catch((error) => console.error(peer, error.message));
    if (peers.length > 0 && !stopping) prune();
  }
}

/** Sends batch after batch until the peer has everything or cannot be reached five times in a row. */
async function drain(peer) {
  for (let failures = 0; !stopping; ) {
    const lastAcked = prepare("SELECT last_acked FROM _peer_state WHERE peer_url = ?")
      .pluck()
      .get(peer);
    const rows = prepare(
      `SELECT change_id, op, table_name, row_id, row_data FROM _changes
       WHERE change_id > ? ORDER BY change_id LIMIT ?`,
    ).all(lastAcked, batchSize);
    if (rows.length === 0) return;
    const batchId = rows.at(-1).change_id;
    const changes = rows.map((r) => ({
      op: r.op,
      table: r.table_name,
      row: JSON.parse(r.row_data),
      old_id: r.op === "DELETE" ? r.row_id : null,
    }));
    try {
      const ack = await post(peer, { batch_id: batchId, changes });
      if (stopping) return;
      if (ack !== batchId) deadLetter(rows);
      prepare("UPDATE _peer_state SET last_acked = ? WHERE peer_url = ?").run(batchId, peer);
      failures = 0;
    } catch (error) {
      if (++failures === 5) throw error;
      await sleep(50 * 2 ** (failures - 1));
    }
  }
}

async function post(peer, batch) {
  const response = await fetch(`${peer}/sync`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Node-Id": nodeId },
    body: JSON.stringify(batch),
  });
  if (response.status !== 200)
    throw new Error(`answered ${response.status}: ${await response.text()}`);
  return (await response.json()).ack;
}

const deadLetter = db.transaction((rows) => {
  for (const r of rows) {
    prepare(
      "INSERT INTO _dead_letter(op, row_id, row_data, failed_at, retry_count) VALUES(?, ?, ?, ?, 1)",
    ).run(r.op, r.row_id, r.row_data, now());
  }
});

function prune() {
  const acked = peers.map((p) =>
    prepare("SELECT last_acked FROM _peer_state WHERE peer_url = ?").pluck().get(p),
  );
  prepare("DELETE FROM _changes WHERE change_id <= ?").run(Math.min(...acked));
}

// ---- HTTP ----

const insertItem = (item, at) => {
  const id = randomUUID();
  prepare(
    "INSERT INTO items(id, name, value, created_at, updated_at, node_id) VALUES(?, ?, ?, ?, ?, ?)",
  ).run(id, item.name, item.value, at, at, nodeId);
  return id;
};
const insertItems = db.transaction((items, at) => {
  for (const item of items) insertItem(item, at);
});

/** Method and path, `:id` standing for one segment, to what answers [status, body]. */
const routes = {
  "POST /sync": (_, batch) => {
    try {
      return [200, { applied: apply.immediate(batch.changes), ack: batch.batch_id }];
    } catch (error) {
      return [400, { error: error.message }];
    }
  },
  "GET /health": () => {
    const count = (table) => prepare(`SELECT count(*) FROM ${table}`).pluck().get();
    return [
      200,
      {
        ok: true,
        node_id: nodeId,
        item_count: count("items"),
        pending_changes: count("_changes"),
        dead_letter: count("_dead_letter"),
        peers,
      },
    ];
  },
  "POST /api/items": (_, item) => {
    const at = now();
    const id = insertItem(item, at);
    return [200, { id, name: item.name, value: item.value, created_at: at, node_id: nodeId }];
  },
  "POST /api/items/batch": (_, items) => {
    insertItems.immediate(items, now());
    return [200, { created: items.length }];
  },
  "GET /api/items": () => [
    200,
    prepare("SELECT * FROM items ORDER BY created_at DESC LIMIT 100").all(),
  ],
  "GET /api/items/:id": (id) => {
    const row = prepare("SELECT * FROM items WHERE id = ?").get(id);
    return row ? [200, row] : [404, { error: "not found" }];
  },
  "PUT /api/items/:id": (id, { name, value }) => {
    const at = now();
    prepare("UPDATE items SET name = ?, value = ?, updated_at = ? WHERE id = ?").run(
      name,
      value,
      at,
      id,
    );
    return [200, { id, name, value, updated_at: at }];
  },
  "DELETE /api/items/:id": (id) => {
    prepare("DELETE FROM items WHERE id = ?").run(id);
    return [200, { deleted: id }];
  },
};

const server = createServer(async (request, response) => {
  const answer = (status, body) => {
    response.writeHead(status, { "Content-Type": "application/json" });
    response.end(JSON.stringify(body));
  };
  try {
    const path = new URL(request.url, "http://node").pathname;
    const [, item, id] = path.match(/^(\/api\/items\/)([^/]+)$/) ?? [];
    const route =
      routes[`${request.method} ${path}`] ?? (item && routes[`${request.method} ${item}:id`]);
    if (!route) return answer(404, { error: "not found" });
    const pieces = [];
    let bytes = 0;
    for await (const piece of request) {
      bytes += piece.length;
      if (bytes > BODY_BYTES_MAX) return answer(413, { error: "body too large" });
      pieces.push(piece);
    }
    let body;
    if (request.method === "POST" || request.method === "PUT") {
      try {
        body = JSON.parse(Buffer.concat(pieces).toString());
      } catch (error) {
        return answer(400, { error: error.message });
      }
    }
    answer(...route(id === undefined ? undefined : decodeURIComponent(id), body));
  } catch (error) {
    answer(500, { error: error.message });
  }
});

const [, host, port] = flags.listen.match(/^(.*):(\d+)$/);
server.listen(Number(port), host === "" ? undefined : host.replace(/^\[|\]$/g, ""));
shipForEver();

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => {
    stopping = true;
    server.close();
    server.closeAllConnections();
    db.close();
    process.exit(0);
  });
}
