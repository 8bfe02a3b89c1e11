/**
 * A program that reads a follower's file as fast as it can, for as long as its input stays open: how
 * often the two tables that are always changed together were there, in how many states, and how often
 * they did not belong together.
 */
import { Database } from "bun:sqlite";

const db = new Database(process.argv[2]!);
db.run("PRAGMA busy_timeout = 5000");

const READ_SQL = `
  SELECT (SELECT total(v) FROM taken) AS taken, (SELECT total(v) FROM given) AS given,
    (SELECT count(*) FROM entry) AS entries, (SELECT total(n) FROM given) AS counted`;

let isOver = false;
void (async () => {
  for await (const _ of Bun.stdin.stream()) {
    // Nothing is said; only the end counts.
  }
  isOver = true;
})();

let [checks, states, broken] = [0, 0, 0];
let last = "";
while (!isOver) {
  for (let n = 0; n < 50; n++) {
    const isThere = db.query("SELECT count(*) AS n FROM sqlite_schema WHERE name = 'entry'").get();
    if ((isThere as { n: number }).n === 0) break;
    const row = db.query(READ_SQL).get() as Record<string, number>;
    checks++;
    if (row["taken"]! + row["given"]! !== 0 || row["entries"] !== row["counted"]) broken++;
    const state = JSON.stringify(row);
    if (state !== last) states++;
    last = state;
  }
  if (broken > 0) break;
  await new Promise((resolve) => setImmediate(resolve));
}
console.log(JSON.stringify({ checks, states, broken }));
process.exit();
