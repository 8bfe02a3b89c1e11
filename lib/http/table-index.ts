/** Finds a synced table by the name a client used. A Map, never an object: `/api/constructor` is unknown. */
import type { SyncedTable } from "../store/schema.ts";
import { nameKey } from "../store/sql.ts";

/** Follows the tables: it is made anew at the first question after they changed. */
export class TableIndex {
  readonly #tables: () => readonly SyncedTable[];
  #indexed: readonly SyncedTable[] | undefined;
  #byKey: ReadonlyMap<string, SyncedTable> = new Map();

  /** `tables` gives another array whenever anything of them changed. */
  constructor(tables: () => readonly SyncedTable[]) {
    this.#tables = tables;
  }

  find(name: string): SyncedTable | undefined {
    const tables = this.#tables();
    if (tables !== this.#indexed) {
      this.#byKey = new Map(tables.map((table) => [table.key, table]));
      this.#indexed = tables;
    }
    return this.#byKey.get(name) ?? this.#byKey.get(nameKey(name));
  }
}
