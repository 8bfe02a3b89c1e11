/**
 * A follower as a process of its own, to be killed at any instant: follows the address it is given
 * into the file it is given, and asks for a copy whenever it is told that only one helps.
 */
import { Database } from "bun:sqlite";
import {
  CdcError,
  followCdc,
  formatWatermark,
  Replica,
  type Watermark,
} from "../../../lib/cdc/index.ts";

const [url, path] = process.argv.slice(2) as [string, string];
const db = new Database(path);
// First: a reader may hold the file that the one before left when it was killed.
db.run("PRAGMA busy_timeout = 5000");
db.run("PRAGMA journal_mode = WAL");
db.run("PRAGMA synchronous = OFF");
const replica = new Replica(db);

for (let from: Watermark | null = replica.watermark(); ; ) {
  try {
    const answer = await fetch(`${url}?${formatWatermark(from)}`);
    await followCdc(replica, answer.body!);
    from = replica.watermark();
  } catch (error) {
    if (!(error instanceof CdcError)) throw error;
    console.log(`${error.code}: ${error.message}`);
    from = error.needsCopy ? null : replica.watermark();
  }
}
