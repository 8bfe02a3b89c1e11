/**
 * What nodes of ours ask each other besides taking batches, answered by a simulated one: the real routes
 * of health and digests over the real digester, without its thread.
 */
import type { Hono } from "hono";
import type { Clock, Timers } from "../../lib/base/clock.ts";
import type { Random } from "../../lib/base/random.ts";
import { BodyReader } from "../../lib/http/body.ts";
import { type DigestSource, digestRoutes } from "../../lib/http/digest-routes.ts";
import { answerError } from "../../lib/http/errors.ts";
import { healthRoutes } from "../../lib/http/health-routes.ts";
import { TableIndex } from "../../lib/http/table-index.ts";
import type { Mesh } from "../../lib/mesh.ts";
import { rowBatch } from "../../lib/shipper/row-batch.ts";
import { ColumnNotes } from "../../lib/store/column-notes.ts";
import { Digester } from "../../lib/store/digester.ts";
import type { SyncedTable } from "../../lib/store/schema.ts";
import type { Store } from "../../lib/store/store.ts";

export interface FaceOptions {
  readonly store: Store;
  readonly mesh: Mesh;
  readonly path: string;
  readonly nodeId: string;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
}

export class Face {
  readonly #digester: Digester;
  readonly #app: Hono;
  #tables: { survey: unknown; list: readonly SyncedTable[] } = { survey: undefined, list: [] };

  constructor(options: FaceOptions) {
    const { store, mesh, nodeId, clock } = options;
    this.#digester = new Digester(options);
    const allTables = () => this.#currentTables(store);
    this.#app = digestRoutes({
      bodies: new BodyReader({ bytesMax: 8 * 1024 * 1024 }),
      digests: this.#digests(options.random),
      tables: new TableIndex(allTables),
      allTables,
      nodeId,
    });
    this.#app.route(
      "/",
      healthRoutes({
        identity: (askedByDb) => store.identity(askedByDb),
        health: () => ({
          ok: true,
          reasons: [],
          warnings: [],
          nodeId,
          version: "0",
          itemCount: 1,
          pendingChanges: store.log.pending(),
          lastChangeId: store.settledThrough,
          newestChangeId: store.newestChange,
          verified: undefined,
          deadLetter: 0,
          parked: 0,
          peers: mesh.status(),
          fills: store.filler.progress(),
          tables: { synced: [], notSynced: [] },
          sqliteVersion: "",
          uptimeS: Math.floor(clock.monotonicMs() / 1_000),
        }),
      }),
    );
    this.#app.onError((error) => answerError(error).response);
  }

  async answer(request: Request): Promise<{ status: number; text: string }> {
    const response = await this.#app.fetch(request);
    return { status: response.status, text: await response.text() };
  }

  /** Its connections are closed when the events of this moment are over. */
  close(): void {
    void this.#digester.close();
  }

  #currentTables(store: Store): readonly SyncedTable[] {
    const { survey } = store;
    if (this.#tables.survey !== survey)
      this.#tables = { survey, list: [...survey.synced.values()] };
    return this.#tables.list;
  }

  /** Readings take no virtual time, so that none has to be asked for again. */
  #digests(random: Random): DigestSource {
    const digester = this.#digester;
    return {
      read: async (tables, isSlow) => {
        const snapshot = random.hex(8);
        return { kind: "done", snapshot, tables: await digester.read(snapshot, tables, isSlow) };
      },
      result: (snapshot) => Promise.reject(new Error(`nobody waits for ${snapshot}`)),
      buckets: async (snapshot, key, ranges, most) => digester.buckets(snapshot, key, ranges, most),
      keysIn: async (snapshot, key, ranges) => digester.keysIn(snapshot, key, ranges),
      keysOf: async (table, ids) => digester.keysOf(table, ids),
      rows: async (table, ids, bytesMax) => {
        const { reader } = digester;
        return rowBatch(reader, new ColumnNotes(reader), table, ids, bytesMax).body;
      },
    };
  }
}
