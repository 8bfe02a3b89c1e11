/**
 * `GET /cdc/stream`: the change log as it grows, from a follower's position or with a copy first;
 * `GET /cdc/snapshot`: the copy alone. For whoever may change the mesh: both hold everything, also
 * tables that are not served.
 */
import { Hono } from "hono";
import { RequestError } from "../base/errors.ts";
import { requireAdmin } from "./admin.ts";
import { searchParams } from "./path.ts";
import type { Membership } from "./peer-routes.ts";
import type { CopySource } from "./snapshot-routes.ts";

/** The node's log, if it keeps one. */
export interface CdcSource {
  /**
   * The stream that these parameters ask for; `once` for a copy and nothing more. Undefined where the
   * node keeps no log; throws a RequestError for a position that is none.
   */
  stream(parameters: URLSearchParams, once: boolean): ReadableStream<Uint8Array> | undefined;
}

/** The routes of the log. */
export function cdcRoutes(
  source: CdcSource,
  copies: Pick<CopySource, "keepOpen">,
  membership: Pick<Membership, "remoteAddress" | "adminToken">,
): Hono {
  const answer = (request: Request, once: boolean): Response => {
    requireAdmin({
      headers: request.headers,
      remoteAddress: membership.remoteAddress(request),
      token: membership.adminToken,
    });
    const stream = source.stream(searchParams(request), once);
    if (stream === undefined) {
      throw new RequestError(404, "this node keeps no change log; start it with --cdc");
    }
    copies.keepOpen(request);
    return new Response(stream, { headers: { "content-type": "application/octet-stream" } });
  };
  return new Hono()
    .get("/cdc/stream", (c) => answer(c.req.raw, false))
    .get("/cdc/snapshot", (c) => answer(c.req.raw, true));
}
