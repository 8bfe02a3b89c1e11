/**
 * The HTTP face of a node, without the socket: `createApp(…).fetch` answers a Request. Each group of
 * routes has its own file; here they are joined, and what no route answers becomes a 404 or a 405.
 * There is no middleware: a route with a single handler takes Hono's short way.
 */
import { Hono } from "hono";
import type { SyncedTable } from "../store/schema.ts";
import { BodyReader } from "./body.ts";
import { type CdcSource, cdcRoutes } from "./cdc-routes.ts";
import { type DigestSource, digestRoutes } from "./digest-routes.ts";
import { answerError, errorAnswer, JSON_TYPE, unavailable } from "./errors.ts";
import { type HealthSource, healthRoutes } from "./health-routes.ts";
import { openApi } from "./openapi.ts";
import { rawPath, segment } from "./path.ts";
import { type Membership, peerRoutes } from "./peer-routes.ts";
import { type RowRoutesOptions, rowRoutes } from "./row-routes.ts";
import { type CopySource, snapshotRoutes } from "./snapshot-routes.ts";
import { type SyncReceiver, syncRoutes } from "./sync-routes.ts";
import { TableIndex } from "./table-index.ts";

/** What a node hands its HTTP face. What is a function is asked anew for each request. */
export interface AppOptions extends HealthSource, Pick<RowRoutesOptions, "queue" | "repository"> {
  /** A body beyond it is a 413. */
  readonly bodyBytesMax: number;
  /** Of this program, for `/` and `/openapi.json`. */
  readonly version: string;
  /** The synced tables now; another array whenever anything of them changed. */
  tables(): readonly SyncedTable[];
  readonly sync: SyncReceiver;
  readonly membership: Membership;
  readonly digests: DigestSource;
  readonly copies: CopySource;
  /** Absent where the node keeps no log for followers. */
  readonly cdc?: CdcSource;
  readonly nodeId: string;
  /** A request failed through no fault of the client: for the log. */
  reportError(error: unknown, request: { readonly method: string; readonly path: string }): void;
}

/** Opens no socket. A failure of ours is answered without its cause and told to `reportError`. */
export function createApp(options: AppOptions): Hono {
  const { queue, repository, bodyBytesMax, version } = options;
  const tables = new TableIndex(() => options.tables());
  const bodies = new BodyReader({ bytesMax: bodyBytesMax });
  const app = new Hono({ getPath: rawPath });
  app.route("/", syncRoutes(options.sync, bodies));
  app.route("/", healthRoutes(options));
  app.route("/", peerRoutes(options.membership, bodies));
  app.route("/", digestRoutes({ ...options, bodies, tables, allTables: () => options.tables() }));
  app.route("/", snapshotRoutes(options.copies, options.membership));
  const cdc = options.cdc ?? { stream: () => undefined };
  app.route("/", cdcRoutes(cdc, options.copies, options.membership));
  app.route("/", rowRoutes({ repository, queue, tables, bodies }));
  app.get("/", () => {
    const links = { name: "hook-sync", version, openapi: "/openapi.json", health: "/health" };
    return new Response(JSON.stringify(links), { headers: JSON_TYPE });
  });
  app.get(
    "/openapi.json",
    descriptionOf(() => options.tables(), version),
  );

  const known = knownPaths(app);
  app.notFound((c) => {
    const { path } = c.req;
    const methods = known
      .filter((route) => route.pattern.test(path))
      .flatMap((route) => route.methods);
    const isApi = path.startsWith("/api/");
    if (methods.length === 0 || (isApi && tables.find(segment(path, 1)) === undefined)) {
      return errorAnswer(
        404,
        isApi ? "no such table is synced here" : "no such path; see /openapi.json",
      );
    }
    const allow = [...new Set(methods)].join(", ");
    return errorAnswer(405, `${c.req.method} is not possible here; possible: ${allow}`, { allow });
  });
  app.onError((error, c) => {
    const { response, isOurs } = answerError(error);
    if (isOurs) options.reportError(error, { method: c.req.method, path: c.req.path });
    return response;
  });
  return app;
}

/** What a node answers to everything while its file is being opened. */
export function answerStarting(): Response {
  return unavailable("the node is starting");
}

interface KnownPath {
  readonly pattern: RegExp;
  readonly methods: readonly string[];
}

function knownPaths(app: Hono): KnownPath[] {
  return app.routes.map(({ path, method }) => ({
    pattern: new RegExp(`^${path.replaceAll(".", "\\.").replace(/:\w+/g, "[^/]+")}$`),
    methods: method === "GET" ? ["GET", "HEAD"] : [method],
  }));
}

/** The description is made again only when the tables changed. */
function descriptionOf(tables: () => readonly SyncedTable[], version: string): () => Response {
  let described: readonly SyncedTable[] | undefined;
  let json = "";
  return () => {
    const current = tables();
    if (current !== described) {
      json = JSON.stringify(openApi(current, version));
      described = current;
    }
    return new Response(json, { headers: JSON_TYPE });
  };
}
