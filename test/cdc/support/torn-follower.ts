/** A follower as one must not be: each change of a transaction is a transaction of its own. */
import { Database } from "bun:sqlite";
import { FrameReader, Replica } from "../../../lib/cdc/index.ts";

const [url, path] = process.argv.slice(2) as [string, string];
const db = new Database(path);
db.run("PRAGMA busy_timeout = 5000");
db.run("PRAGMA journal_mode = WAL");
db.run("PRAGMA synchronous = OFF");
const replica = new Replica(db);
const frames = new FrameReader();
const answer = await fetch(`${url}/cdc/stream`);
for await (const chunk of answer.body!) {
  for (const event of frames.read(chunk)) {
    if (event.kind !== "batch") continue;
    if (event.batch.kind === "copy") replica.apply(event.batch);
    else {
      for (const change of event.batch.changes) {
        if (change.kind !== "put") continue;
        const places = change.values.map(() => "?").join(", ");
        db.query(`INSERT OR REPLACE INTO ${change.table} VALUES (${places})`).run(
          ...(change.values as (bigint | string | null)[]),
        );
      }
    }
    event.batch.close();
  }
}
