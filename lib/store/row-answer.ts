/**
 * The answer to an INSERT, made from what was inserted instead of read from the file again: a fifth of
 * what a POST costs in SQLite. Only where nothing else can be in the row: every column is given or made
 * by the server, and holds a text, a NULL or an integer as it is. Anything else is left to the file.
 */
import {
  type Binding,
  columnKind,
  type RowInput,
  type RowStamps,
  readShape,
  type ServerMade,
} from "./row-input.ts";
import type { SyncedTable } from "./schema.ts";

/** One column of the answer, in the order of the table. */
interface Member {
  /** What stands before its value. */
  readonly before: string;
  readonly value: (id: string, row: RowInput, stamps: RowStamps) => Binding;
}

const encoder = new TextEncoder();

/** Good for one table and one shape of given columns. */
export class RowAnswer {
  readonly #members: readonly Member[];

  private constructor(members: readonly Member[]) {
    this.#members = members;
  }

  /** Undefined where rows of this shape may hold what only the file knows. The table has no triggers but ours. */
  static of(table: SyncedTable, shape: string, made: ServerMade): RowAnswer | undefined {
    const given = readShape(table, shape);
    const members: Member[] = [];
    for (const column of table.columns) {
      const before = `${members.length === 0 ? "{" : ","}${JSON.stringify(column.name)}:`;
      const kind = columnKind(column);
      if (kind !== "text" && kind !== "integer") return undefined;
      const place = given.findIndex((slot) => slot.column === column);
      if (column === table.id) members.push({ before, value: (id) => id });
      else if (column === table.version)
        members.push({ before, value: (_id, _row, { version }) => version });
      else if (column === made.createdAt)
        members.push({ before, value: (_id, _row, { nowMs }) => nowMs });
      else if (column === made.nodeId)
        members.push({ before, value: (_id, _row, { nodeId }) => nodeId });
      else if (place >= 0) members.push({ before, value: (_id, row) => row.values[place]! });
      else return undefined;
    }
    return new RowAnswer(members);
  }

  /** Undefined where a value is stored in another form than it was given. */
  json(id: string, row: RowInput, stamps: RowStamps): Uint8Array<ArrayBuffer> | undefined {
    let text = "";
    for (const { before, value } of this.#members) {
      const written = writeValue(value(id, row, stamps));
      if (written === undefined) return undefined;
      text += before + written;
    }
    return encoder.encode(`${text}}`);
  }
}

function writeValue(value: Binding): string | undefined {
  switch (typeof value) {
    case "string":
      return JSON.stringify(value);
    case "bigint":
      return value.toString();
    case "number":
      // Beyond that Bun binds it as REAL.
      return Number.isSafeInteger(value) ? value.toString() : undefined;
    default:
      return value === null ? "null" : undefined;
  }
}
