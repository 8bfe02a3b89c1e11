/** Bodies of POST /sync as a node of ours sends them, made ahead so that only receiving is measured. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";

export const CHANGES_PER_BATCH = 10_000;

/**
 * What receivers of ours take for a sender of ours. It does not say what it knows to be acknowledged: always
 * the same would look like a restored sender, whose every batch is looked through.
 */
export const SENDER_HEADERS = {
  "X-Node-Id": "bench",
  "X-Hook-Sync": "v=1; db=00112233445566778899aabbccddeeff; rest=0",
} as const;

interface Row {
  readonly id: string;
  readonly version: number;
}

function rowJson({ id, version }: Row, value: number): string {
  return (
    `{"id":"${id}","name":"name number ${value}","value":${value},` +
    `"created_at":${version},"updated_at":${version},"node_id":"bench"}`
  );
}

function change(op: string, row: Row, value: number): string {
  const oldId = op === "DELETE" ? `"${row.id}"` : "null";
  return `{"op":"${op}","table":"items","row":${rowJson(row, value)},"old_id":${oldId}}`;
}

class BodyWriter {
  readonly files: string[] = [];
  readonly #dir: string;
  readonly #name: string;
  #changes: string[] = [];
  #lastId = 0;

  constructor(dir: string, name: string) {
    this.#dir = dir;
    this.#name = name;
  }

  add(text: string): void {
    this.#changes.push(text);
    this.#lastId++;
    if (this.#changes.length === CHANGES_PER_BATCH) this.#flush();
  }

  #flush(): void {
    const file = join(this.#dir, `${this.#name}-${this.files.length}.json`);
    writeFileSync(file, `{"batch_id":${this.#lastId},"changes":[${this.#changes.join(",")}]}`);
    this.files.push(file);
    this.#changes = [];
  }
}

export interface SyncBodies {
  /** New rows only. */
  readonly fresh: readonly string[];
  /**
   * On top of `fresh`: six of ten new rows, two updates, one delete, and one update of a row that was
   * deleted before, which loses against its tombstone.
   */
  readonly mixed: readonly string[];
}

export function makeSyncBodies(dir: string, name: string, batches: number): SyncBodies {
  const nowMs = Date.now();
  const rows: Row[] = [];
  const newRow = (): Row => {
    const row = { id: Bun.randomUUIDv7(), version: nowMs - 1_000_000 + rows.length };
    rows.push(row);
    return row;
  };
  const fresh = new BodyWriter(dir, `${name}-fresh`);
  for (let i = 0; i < batches * CHANGES_PER_BATCH; i++) fresh.add(change("INSERT", newRow(), i));
  const mixed = new BodyWriter(dir, `${name}-mixed`);
  // Every row is touched once at most, so that the order of changes decides nothing.
  let next = 0;
  const deleted: Row[] = [];
  for (let i = 0; i < batches * CHANGES_PER_BATCH; i++) {
    switch (i % 10) {
      case 2:
      case 5: {
        const row = rows[next++]!;
        mixed.add(change("UPDATE", { id: row.id, version: row.version + 500_000 }, i));
        break;
      }
      case 8: {
        const row = rows[next++]!;
        deleted.push(row);
        mixed.add(change("DELETE", row, i));
        break;
      }
      case 9:
        mixed.add(change("UPDATE", deleted[deleted.length >> 1]!, i));
        break;
      default:
        mixed.add(change("INSERT", newRow(), i));
    }
  }
  return { fresh: fresh.files, mixed: mixed.files };
}
