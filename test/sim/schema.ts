/** The tables of the simulated fleet: the default one, one with every kind of value, one with a second key. */

export interface SimTable {
  readonly name: string;
  readonly sql: string;
  readonly columns: readonly string[];
}

export interface Schema {
  readonly name: string;
  readonly tables: readonly SimTable[];
  /** Columns that nodes get later, at different times, by table. */
  readonly later: readonly {
    readonly table: string;
    readonly column: string;
    readonly sql: string;
  }[];
}

function table(name: string, ...columns: readonly string[]): SimTable {
  return {
    name,
    sql: `CREATE TABLE ${name}(${columns.join(", ")})`,
    columns: columns.map((column) => column.split(" ")[0]!),
  };
}

const ITEMS = table(
  "items",
  "id TEXT PRIMARY KEY",
  "name TEXT",
  "value INTEGER",
  "created_at INTEGER",
  "updated_at INTEGER",
  "node_id TEXT",
);

/** `extra` has no type: what is put there stays what it is. */
const NOTES = table(
  "notes",
  "id TEXT PRIMARY KEY",
  "body TEXT",
  "photo BLOB",
  "price REAL",
  "extra",
  "updated_at INTEGER",
);

const ACCOUNTS = table(
  "accounts",
  "id TEXT PRIMARY KEY",
  "email TEXT UNIQUE",
  "n INTEGER NOT NULL DEFAULT 7",
  "updated_at INTEGER",
);

export const SCHEMAS = {
  plain: { name: "plain", tables: [ITEMS, NOTES], later: [] },
  unique: { name: "unique", tables: [ITEMS, ACCOUNTS], later: [] },
  growing: {
    name: "growing",
    tables: [ITEMS],
    later: [
      { table: "items", column: "color", sql: "ALTER TABLE items ADD COLUMN color TEXT" },
      {
        table: "items",
        column: "size",
        sql: "ALTER TABLE items ADD COLUMN size INTEGER DEFAULT 5",
      },
    ],
  },
} as const satisfies Record<string, Schema>;

/** Arguments of json_object. */
export function captureColumns(columns: readonly string[], side: string): string {
  return columns.map((column) => `'${column}', ${side}.${column}`).join(", ");
}
