/**
 * `/api/<table>`: the rows of every synced table. A request is checked before it waits for the write
 * queue, so that a wrong one never opens a transaction; a refusal by the file comes back as a value,
 * so that it does not undo the other writes of its group.
 */
import { type Context, Hono } from "hono";
import { RequestError } from "../base/errors.ts";
import { Garbage } from "../base/garbage.ts";
import type { Repository } from "../store/repository.ts";
import type { RowInput, RowReader } from "../store/row-input.ts";
import type { SyncedTable } from "../store/schema.ts";
import type { Later, WriteQueue, WriteTransaction } from "../store/write-queue.ts";
import type { BodyReader } from "./body.ts";
import { JSON_TYPE } from "./errors.ts";
import { searchParams, segment } from "./path.ts";
import type { TableIndex } from "./table-index.ts";

/** What the REST routes read and write by. */
export interface RowRoutesOptions {
  readonly repository: Repository;
  readonly queue: Pick<WriteQueue, "run">;
  readonly tables: TableIndex;
  readonly bodies: BodyReader;
}

/** What existing nodes answer. */
export const LIST_ROWS = 100;
/** A page is held in memory; 1,000 rows of usual size are some hundred kilobytes. */
export const LIST_ROWS_MAX = 1_000;
/** One transaction of about a second, in which nothing else is answered. */
export const BATCH_ROWS_MAX = 100_000;

/** Some thousand rows, read into several objects each. */
const BATCH_BYTES_COLLECTED = 256 * 1024;

const OK = { headers: JSON_TYPE } as const;
const CREATED = { status: 201, headers: JSON_TYPE } as const;

/** Writes are answered after their commit. */
export function rowRoutes(options: RowRoutesOptions): Hono {
  const { repository, queue, tables, bodies } = options;
  const garbage = new Garbage(BATCH_BYTES_COLLECTED);

  function tableOf(c: Context): SyncedTable {
    const name = segment(c.req.path, 1);
    const table = tables.find(name);
    if (table === undefined) throw noSuchTable();
    return table;
  }

  /**
   * Runs a write that `input` was read for. Another program may change the table while the write
   * waits; settling notices in the same transaction, and what was given is read again.
   */
  async function write<Input, Result>(
    table: SyncedTable,
    read: (reader: RowReader) => Input,
    work: (
      table: SyncedTable,
      input: Input,
      transaction: WriteTransaction,
    ) => Result | RequestError | Later<Result | RequestError>,
  ): Promise<Result> {
    const input = read(repository.reader(table));
    const outcome = await queue.run("local", (transaction) => {
      const current = tables.find(table.key);
      if (current === table) return work(table, input, transaction);
      if (current === undefined) return noSuchTable();
      try {
        return work(current, read(repository.reader(current)), transaction);
      } catch (error) {
        if (error instanceof RequestError) return error;
        throw error;
      }
    });
    if (outcome instanceof RequestError) throw outcome;
    return outcome;
  }

  async function update(c: Context): Promise<Response> {
    const table = tableOf(c);
    const id = segment(c.req.path, 2);
    const body = await bodies.json(c.req.raw);
    const row = await write(
      table,
      (reader) => reader.change(body, id),
      (current, input: RowInput, transaction) => repository.update(current, id, input, transaction),
    );
    return new Response(row, OK);
  }

  return new Hono()
    .post("/api/:table", async (c) => {
      const table = tableOf(c);
      const body = await bodies.json(c.req.raw);
      const row = await write(
        table,
        (reader) => reader.newRow(body),
        (current, input, transaction) => repository.create(current, input, transaction),
      );
      return new Response(row, CREATED);
    })
    .post("/api/:table/batch", async (c) => {
      const table = tableOf(c);
      const body = readBatch(await bodies.json(c.req.raw));
      const ids = await write(
        table,
        (reader) => reader.newRows(body),
        (current, inputs, transaction) => repository.createMany(current, inputs, transaction),
      );
      garbage.left(Number(c.req.raw.headers.get("content-length")));
      return new Response(JSON.stringify({ created: ids.length, ids }), CREATED);
    })
    .get("/api/:table", (c) => {
      const table = tableOf(c);
      const query = searchParams(c.req.raw);
      const limit = readLimit(query.get("limit"));
      const list = repository.list(table, limit, query.get("after") ?? undefined);
      const headers: Record<string, string> = { ...JSON_TYPE, "x-order": list.order };
      if (list.next !== undefined) {
        headers["x-next-cursor"] = list.next;
        headers["link"] = `<${c.req.path}?limit=${limit}&after=${list.next}>; rel="next"`;
      }
      return new Response(list.json, { headers });
    })
    .get("/api/:table/:id", (c) => {
      const row = repository.read(tableOf(c), segment(c.req.path, 2));
      if (row === undefined) throw new RequestError(404, "no such row");
      return new Response(row, OK);
    })
    .put("/api/:table/:id", update)
    .patch("/api/:table/:id", update)
    .delete("/api/:table/:id", async (c) => {
      const id = segment(c.req.path, 2);
      await write(
        tableOf(c),
        () => undefined,
        (current, _input, transaction) => repository.remove(current, id, transaction),
      );
      return new Response(JSON.stringify({ deleted: id }), OK);
    });
}

function noSuchTable(): RequestError {
  return new RequestError(404, "no such table is synced here");
}

function readBatch(body: unknown): readonly unknown[] {
  if (!Array.isArray(body)) throw new RequestError(400, "expected a JSON array of rows");
  if (body.length > BATCH_ROWS_MAX) {
    throw new RequestError(
      413,
      `${body.length} rows are too many for one batch; send at most ${BATCH_ROWS_MAX}`,
    );
  }
  return body;
}

/** `limit=` of a list; throws a 400. */
export function readLimit(text: string | null): number {
  if (text === null) return LIST_ROWS;
  const limit = /^\d{1,9}$/.test(text) ? Number(text) : 0;
  if (limit < 1 || limit > LIST_ROWS_MAX) {
    throw new RequestError(400, `limit: expected a number from 1 to ${LIST_ROWS_MAX}`);
  }
  return limit;
}
