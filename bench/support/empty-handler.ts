/**
 * What Hono on Bun can do at most: reads the body, answers with as many bytes as an inserted row, and
 * touches no database.
 */
import { Hono } from "hono";

const port = Number(process.argv[process.argv.indexOf("--listen") + 1]!.split(":").at(-1));
const app = new Hono();
app.get("/health", (c) => c.json({ ok: true }));
app.post("/api/items", async (c) => {
  const { name, value } = await c.req.json<{ name: string; value: number }>();
  const id = "0197a5a0-0000-7000-8000-000000000000";
  const created_at = 1_750_000_000_000;
  return c.json({ id, name, value, created_at, updated_at: created_at, node_id: "empty" }, 201);
});
Bun.serve({ hostname: "127.0.0.1", port, fetch: app.fetch });
