/**
 * A program that owns a Turso database and lets others follow it. Run it with a path and a port:
 *
 *     npx bun test/cdc/example/turso-source.ts turso.db 9101
 *     curl -X POST 'http://127.0.0.1:9101/transfer?from=ann&to=ben&amount=5'
 *
 * A follower asks for /cdc/stream, first without a position (it is sent a copy and then each
 * transaction), later with its own: see followCdc and formatWatermark.
 */
import { Database } from "@tursodatabase/database/compat";
import { CdcError, enableCdc, parseWatermark, serveCdc, writeCdc } from "hook-sync/cdc";

const [path = "turso.db", port = "9101"] = process.argv.slice(2);
const db = new Database(path);
// Of each connection that writes: Turso captures by connection.
await enableCdc(db);
await writeCdc(db, () => {
  db.exec("CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)");
  db.exec("INSERT OR IGNORE INTO accounts VALUES ('ann', 100), ('ben', 100)");
});

async function transfer(from: string, to: string, amount: number): Promise<void> {
  await writeCdc(db, () => {
    const add = db.prepare("UPDATE accounts SET balance = balance + ? WHERE id = ?");
    add.run(-amount, from);
    add.run(amount, to);
  });
}

function stream(request: Request): Response {
  try {
    const after = parseWatermark(new URL(request.url).searchParams);
    // A connection for this follower alone; it is closed with the stream.
    return new Response(serveCdc(() => new Database(path), after));
  } catch (error) {
    if (!(error instanceof CdcError)) throw error;
    return new Response(error.message, { status: 400 });
  }
}

const server = Bun.serve({
  hostname: "127.0.0.1",
  port: Number(port),
  // Longer than the pause between two heartbeats.
  idleTimeout: 60,
  routes: {
    "/cdc/stream": stream,
    "/transfer": {
      POST: async (request) => {
        const query = new URL(request.url).searchParams;
        await transfer(query.get("from") ?? "", query.get("to") ?? "", Number(query.get("amount")));
        return new Response("done\n");
      },
    },
  },
});
console.log(`followers are welcome at ${server.url}cdc/stream`);
