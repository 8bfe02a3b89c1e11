/**
 * The OpenAPI 3.1 description of what this node answers, made from the actual tables: which columns,
 * which of them the server makes, and in which form values travel without loss.
 */
import { type ColumnKind, columnKind, isBoolean, serverMade } from "../store/row-input.ts";
import type { Column, SyncedTable } from "../store/schema.ts";
import { BATCH_ROWS_MAX, LIST_ROWS, LIST_ROWS_MAX } from "./row-routes.ts";

type Json =
  | string
  | number
  | boolean
  | null
  | readonly Json[]
  | { readonly [member: string]: Json };
type JsonObject = { readonly [member: string]: Json };

const DESCRIPTION = `Rows of the synced tables of this node, its health, and the way in for its peers.

Every value has one lossless form, the same in answers and in what you send:

- INTEGER: digits, all of them, up to 64 bits. JSON.parse in JavaScript rounds those beyond 2^53; read them with a parser that does not.
- REAL: a number with a point or an exponent (1.0, 0.1, 1e300); infinity is 9.0e+999.
- TEXT: a string.
- BLOB: a string of \\x and hex digits, two for each byte (\\x00ff). In a column without a type such a string becomes a BLOB.
- NULL: null.

A column may hold values of another type than it declares, written by other programs; they are answered in the form of what they are. Text that is not UTF-8 is answered as \\x and hex.

id is a UUIDv7 unless a UUID is given. updated_at is the row's version; it, created_at (where it is INTEGER) and node_id (where it is TEXT) are made by the server, and ignored when they are sent. Generated columns are neither answered nor taken. Names of tables and columns are compared without regard to ASCII case.`;

/** The whole document. */
export function openApi(tables: readonly SyncedTable[], version: string): JsonObject {
  const names = schemaNames(tables);
  return {
    openapi: "3.1.0",
    info: { title: "hook-sync", version, description: DESCRIPTION, license: { name: "MIT" } },
    servers: [{ url: "/" }],
    security: [],
    paths: Object.fromEntries([
      ...fixedPaths(),
      ...tables.flatMap((table, at) => tablePaths(table, names[at]!)),
    ]),
    components: {
      schemas: Object.fromEntries([
        ["Error", ERROR_SCHEMA],
        ["Health", HEALTH_SCHEMA],
        ...tables.flatMap((table, at) => [
          [names[at]!, rowSchema(table)] as const,
          [`${names[at]!}.new`, inputSchema(table, true)] as const,
          [`${names[at]!}.change`, inputSchema(table, false)] as const,
        ]),
      ]),
    },
  };
}

/** Schemas are named by `[A-Za-z0-9._-]+`; tables by anything. */
function schemaNames(tables: readonly SyncedTable[]): string[] {
  const taken = new Set<string>();
  return tables.map((table, at) => {
    const plain = `row.${table.name.replace(/[^A-Za-z0-9_-]/g, "_")}`;
    const name = taken.has(plain) ? `${plain}-${at}` : plain;
    taken.add(name);
    return name;
  });
}

function tablePaths(table: SyncedTable, schema: string): [string, JsonObject][] {
  const path = `/api/${encodeURIComponent(table.name)}`;
  const row = ref(schema);
  const tags = [table.name];
  const idParameter = { name: "id", in: "path", required: true, schema: { type: "string" } };
  const change = (method: string) => ({
    tags,
    operationId: `${method}.${schema}`,
    summary: "Change the given columns; the others stay",
    requestBody: body(ref(`${schema}.change`)),
    responses: {
      "200": answer("The row as it is now", row),
      ...errors(400, 404, 409, 413, 415, 503, 507),
    },
  });
  return [
    [
      path,
      {
        get: {
          tags,
          operationId: `list.${schema}`,
          summary: "The newest rows",
          description:
            "By created_at, then id, both descending, where an index serves that order or the table is small. " +
            "A large table without such an index is listed by id (UUIDv7 ids rise with time) or in the order in which " +
            "rows were stored here; x-order says which. CREATE INDEX … ON table(created_at) gives the exact order. " +
            "A page of very large rows may be shorter than the limit.",
          parameters: [
            {
              name: "limit",
              in: "query",
              schema: { type: "integer", minimum: 1, maximum: LIST_ROWS_MAX, default: LIST_ROWS },
            },
            {
              name: "after",
              in: "query",
              description: "x-next-cursor of the page before.",
              schema: { type: "string" },
            },
          ],
          responses: {
            "200": {
              ...answer("The rows", { type: "array", items: row }),
              headers: {
                "x-order": {
                  description: "The order of the list.",
                  schema: { type: "string", enum: ["created_at", "id", "rowid"] },
                },
                "x-next-cursor": {
                  description:
                    "For `after`; missing on the last page. `Link` with rel=next has the whole address.",
                  schema: { type: "string" },
                },
              },
            },
            ...errors(400, 404, 503),
          },
        },
        post: {
          tags,
          operationId: `create.${schema}`,
          summary: "Create a row",
          requestBody: body(ref(`${schema}.new`)),
          responses: {
            "201": answer("The whole row", row),
            ...errors(400, 404, 409, 413, 415, 503, 507),
          },
        },
      },
    ],
    [
      `${path}/batch`,
      {
        post: {
          tags,
          operationId: `createMany.${schema}`,
          summary: "Create rows in one transaction: all or none",
          requestBody: body({
            type: "array",
            maxItems: BATCH_ROWS_MAX,
            items: ref(`${schema}.new`),
          }),
          responses: {
            "201": answer("How many, and their ids in the order of the request", {
              type: "object",
              required: ["created", "ids"],
              properties: {
                created: { type: "integer" },
                ids: { type: "array", items: { type: "string" } },
              },
            }),
            ...errors(400, 404, 409, 413, 415, 503, 507),
          },
        },
      },
    ],
    [
      `${path}/{id}`,
      {
        parameters: [idParameter],
        get: {
          tags,
          operationId: `read.${schema}`,
          summary: "One row",
          responses: { "200": answer("The row", row), ...errors(400, 404, 503) },
        },
        put: change("put"),
        patch: change("patch"),
        delete: {
          tags,
          operationId: `delete.${schema}`,
          summary: "Delete a row",
          responses: {
            "200": answer("Its id", {
              type: "object",
              required: ["deleted"],
              properties: { deleted: { type: "string" } },
            }),
            ...errors(400, 404, 409, 503, 507),
          },
        },
      },
    ],
  ];
}

function rowSchema(table: SyncedTable): JsonObject {
  return {
    type: "object",
    required: table.columns.map((column) => column.name),
    properties: Object.fromEntries(
      table.columns.map((column) => [column.name, columnSchema(table, column)]),
    ),
  };
}

function inputSchema(table: SyncedTable, isNew: boolean): JsonObject {
  const made = madeColumns(table);
  const given = table.columns.filter((column) => !made.has(column));
  const required = given.filter((column) => isNew && column.notNull && column.defaultSql === null);
  return {
    type: "object",
    ...(isNew ? {} : { minProperties: 1 }),
    ...(required.length === 0 ? {} : { required: required.map((column) => column.name) }),
    properties: Object.fromEntries([
      ...(isNew ? [[table.id.name, { type: "string", format: "uuid" }] as const] : []),
      ...given.map((column) => [column.name, columnSchema(table, column)] as const),
    ]),
  };
}

function madeColumns(table: SyncedTable): Set<Column> {
  const { createdAt, nodeId } = serverMade(table);
  return new Set(
    [table.id, table.version, createdAt, nodeId].filter((column) => column !== undefined),
  );
}

interface Form {
  /** Besides null. */
  readonly type: readonly string[];
  readonly [member: string]: Json;
}

const FORMS: Readonly<Record<ColumnKind, Form>> = {
  integer: { type: ["integer"], format: "int64" },
  real: { type: ["number"], format: "double" },
  text: { type: ["string"] },
  numeric: { type: ["number", "string"] },
  blob: {
    type: ["string"],
    pattern: "^\\\\x([0-9a-fA-F]{2})*$",
    description: "A BLOB as \\x and hex digits.",
  },
  any: {
    type: ["number", "string"],
    description: "Any value; a BLOB is \\x and hex digits.",
  },
};

const BOOLEAN_FORM: Form = {
  type: ["boolean", "number", "string"],
  description: "Answered as 1 or 0.",
};

function columnSchema(table: SyncedTable, column: Column): JsonObject {
  const form = isBoolean(column) ? BOOLEAN_FORM : FORMS[columnKind(column)];
  // Rows whose id is NULL stay out, whatever the table allows.
  const isNullable = !column.notNull && column !== table.id;
  const readOnly = madeColumns(table).has(column) ? { readOnly: true } : {};
  return { ...form, type: isNullable ? [...form.type, "null"] : form.type, ...readOnly };
}

function fixedPaths(): [string, JsonObject][] {
  return [
    [
      "/sync",
      {
        post: {
          operationId: "sync",
          summary: "A batch of changes from a peer",
          requestBody: body({
            type: "object",
            required: ["batch_id", "changes"],
            properties: {
              batch_id: { type: "integer" },
              changes: { type: ["array", "null"], items: { type: "object" } },
            },
          }),
          responses: {
            "200": answer("Committed", {
              type: "object",
              required: ["applied", "ack"],
              properties: { applied: { type: "integer" }, ack: { type: "integer" } },
            }),
            ...errors(400, 413, 415, 503, 507),
          },
        },
      },
    ],
    [
      "/health",
      {
        get: {
          operationId: "health",
          summary: "How the node is; 200 as long as it answers",
          responses: { "200": answer("The report", ref("Health")), ...errors(503) },
        },
      },
    ],
    [
      "/health/ready",
      {
        get: {
          operationId: "ready",
          summary: "Whether requests should be sent here",
          responses: {
            "200": answer("Yes", READY_SCHEMA),
            "503": answer("No", READY_SCHEMA),
          },
        },
      },
    ],
  ];
}

const ERROR_SCHEMA: JsonObject = {
  type: "object",
  required: ["error"],
  properties: { error: { type: "string" } },
};

const READY_SCHEMA: JsonObject = {
  type: "object",
  required: ["ready"],
  properties: { ready: { type: "boolean" }, reasons: { type: "array", items: { type: "string" } } },
};

const HEALTH_SCHEMA: JsonObject = {
  type: "object",
  required: ["ok", "node_id", "item_count", "pending_changes", "dead_letter", "peers"],
  properties: {
    ok: { type: "boolean" },
    node_id: { type: "string" },
    version: { type: "string" },
    item_count: { type: "integer" },
    pending_changes: { type: "integer" },
    last_change_id: { type: "integer" },
    newest_change_id: { type: "integer" },
    dead_letter: { type: "integer" },
    parked: { type: "integer" },
    peers: { type: "array", items: { type: "object" } },
    tables: { type: "object" },
    verified: { type: ["object", "null"] },
    reasons: { type: "array", items: { type: "string" } },
    warnings: { type: "array", items: { type: "string" } },
    sqlite_version: { type: "string" },
    uptime_s: { type: "number" },
  },
};

const STATUS_TEXT: Readonly<Record<number, string>> = {
  400: "The request is wrong; the error names the place",
  404: "No such row or table",
  409: "A constraint of the table refuses it",
  413: "Too large",
  415: "Not application/json in UTF-8",
  503: "Busy or starting; try again after Retry-After seconds",
  507: "The disk is full",
};

function errors(...statuses: number[]): JsonObject {
  return Object.fromEntries(
    statuses.map((status) => [String(status), answer(STATUS_TEXT[status]!, ref("Error"))]),
  );
}

function answer(description: string, schema: JsonObject): JsonObject {
  return { description, content: { "application/json": { schema } } };
}

function body(schema: JsonObject): JsonObject {
  return { required: true, content: { "application/json": { schema } } };
}

function ref(schema: string): JsonObject {
  return { $ref: `#/components/schemas/${schema}` };
}
