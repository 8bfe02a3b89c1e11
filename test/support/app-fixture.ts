/** The HTTP app over a StoreFixture, with a scripted receiver for /sync and a report for /health. */
import type { Hono } from "hono";
import { createApp } from "../../lib/http/app.ts";
import type { DigestSource } from "../../lib/http/digest-routes.ts";
import type { HealthReport } from "../../lib/http/health-routes.ts";
import type { Membership } from "../../lib/http/peer-routes.ts";
import type { CopySource } from "../../lib/http/snapshot-routes.ts";
import type { SyncReply, SyncRequest } from "../../lib/http/sync-routes.ts";
import { StoreFixture } from "./store-fixture.ts";

export const BODY_BYTES_MAX = 64 * 1024;

export interface Answer {
  readonly status: number;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: what a client reads is JSON.
  readonly json: any;
  readonly headers: Headers;
}

export class AppFixture {
  readonly store: StoreFixture;
  readonly app: Hono;
  readonly received: SyncRequest[] = [];
  readonly reported: unknown[] = [];
  onSync: (request: SyncRequest) => SyncReply | Promise<SyncReply> = () => ({
    applied: 0,
    ack: 0,
    identity: { db: "0123456789abcdef" },
  });
  /** Where requests come from. */
  remoteAddress = "127.0.0.1";
  adminToken: string | undefined;
  /** What was asked of the membership, and came through: `add http://b`. */
  readonly membershipCalls: string[] = [];
  /** Scripted by the tests of their routes. */
  digests: Partial<DigestSource> = {};
  copies: Partial<CopySource> = {};
  /** What the log for followers was asked for: `after=5`. */
  readonly cdcCalls: string[] = [];
  report: HealthReport = {
    ok: true,
    reasons: [],
    warnings: [],
    nodeId: "node-a",
    version: "1.2.3",
    itemCount: 0,
    pendingChanges: 0,
    lastChangeId: 0,
    newestChangeId: 0,
    verified: undefined,
    deadLetter: 0,
    parked: 0,
    peers: [],
    fills: [],
    tables: { synced: ["items"], notSynced: [] },
    sqliteVersion: "3.54.1",
    uptimeS: 1,
  };

  constructor(schema?: string, synced?: readonly string[]) {
    this.store = new StoreFixture(schema, synced);
    this.app = createApp({
      version: "1.2.3",
      queue: this.store.queue,
      repository: this.store.repository,
      bodyBytesMax: BODY_BYTES_MAX,
      tables: () => this.store.tables(),
      sync: {
        apply: async (request) => {
          this.received.push(request);
          return this.onSync(request);
        },
      },
      health: () => this.report,
      identity: () => ({ db: "0123456789abcdef" }),
      nodeId: "node-a",
      digests: new Proxy({} as DigestSource, {
        get: (_, name) => this.digests[name as keyof DigestSource],
      }),
      copies: new Proxy({} as CopySource, {
        get: (_, name) => this.copies[name as keyof CopySource],
      }),
      cdc: {
        stream: (parameters) => {
          this.cdcCalls.push(parameters.toString());
          return new Blob(["frames"]).stream();
        },
      },
      membership: this.#membership(),
      reportError: (error) => this.reported.push(error),
    });
  }

  #membership(): Membership {
    const adminToken = () => this.adminToken;
    const note = async (what: string) => {
      this.membershipCalls.push(what);
      return true;
    };
    return {
      ownUrl: null,
      get adminToken() {
        return adminToken();
      },
      peers: () => [],
      add: (url) => note(`add ${url}`),
      remove: (url) => note(`remove ${url}`),
      fill: (url) => note(`fill ${url}`),
      remoteAddress: () => this.remoteAddress,
    };
  }

  async call(
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<Answer> {
    const init: RequestInit = { method, headers: { ...headers } };
    if (body !== undefined) {
      init.body =
        typeof body === "string" || body instanceof Uint8Array ? body : JSON.stringify(body);
      init.headers = { "content-type": "application/json", ...headers };
    }
    return readAnswer(await this.app.request(path, init));
  }
}

export async function readAnswer(response: Response): Promise<Answer> {
  const text = await response.text();
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    json = undefined;
  }
  return { status: response.status, text, json, headers: response.headers };
}
