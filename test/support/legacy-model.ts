/**
 * A node of another make, in memory: numbers are doubles, a row that arrives replaces whatever is not
 * newer (so the last arrival wins a tie), deletes are forgotten, and its own writes are stamped by its
 * own clock, whatever they replace.
 */
type Row = Record<string, unknown> & { id: string; updated_at: number };

interface Logged {
  readonly op: string;
  readonly row: Row;
}

export class LegacyModel {
  readonly rows = new Map<string, Row>();
  /** What it captured and has to send. */
  readonly log: Logged[] = [];

  /** Its own write. */
  put(row: Row): void {
    const op = this.rows.has(row.id) ? "UPDATE" : "INSERT";
    this.rows.set(row.id, row);
    this.log.push({ op, row });
  }

  delete(id: string): void {
    const row = this.rows.get(id);
    if (!row) return;
    this.rows.delete(id);
    this.log.push({ op: "DELETE", row });
  }

  /** A change from a peer, as JSON text; nothing of it is captured. */
  receive(change: string): void {
    const {
      op,
      row,
      old_id: oldId,
    } = JSON.parse(change) as {
      op: string;
      row: Row | null;
      old_id: string | null;
    };
    const id = op === "DELETE" ? (oldId ?? row?.id) : row?.id;
    if (id === undefined || id === null) return;
    const known = this.rows.get(id);
    if (known && row && row.updated_at < known.updated_at) return;
    if (op === "DELETE") this.rows.delete(id);
    else if (row) this.rows.set(id, row);
  }

  /** As its triggers write it, with Go's empty old_id. */
  static format({ op, row }: Logged): string {
    return JSON.stringify({ op, table: "items", row, old_id: op === "DELETE" ? row.id : "" });
  }

  /** Reduced, as every node should have it. */
  content(): string[] {
    return [...this.rows.values()]
      .map((row) => JSON.stringify([row.id, row["name"], row["value"], row.updated_at]))
      .sort();
  }
}
