/**
 * `GET /snapshot`: a copy of the whole file, whole and consistent, from which another node can start.
 * For whoever may change the mesh: the copy holds everything, also tables that are not served.
 */
import { Hono } from "hono";
import type { CopyStream } from "../store/snapshot.ts";
import { requireAdmin } from "./admin.ts";
import type { Membership } from "./peer-routes.ts";

/** Where whole copies come from, and how long a request may wait for one. */
export interface CopySource {
  /** Resolves when the copy is made, which takes as long as reading the file. */
  copy(): Promise<CopyStream>;
  /** The request may be quiet for longer than others. */
  keepOpen(request: Request): void;
}

/** The first byte comes when the whole copy is made: minutes, for a large file. */
export function snapshotRoutes(
  copies: CopySource,
  membership: Pick<Membership, "remoteAddress" | "adminToken">,
): Hono {
  return new Hono().get("/snapshot", async (c) => {
    const request = c.req.raw;
    requireAdmin({
      headers: request.headers,
      remoteAddress: membership.remoteAddress(request),
      token: membership.adminToken,
    });
    copies.keepOpen(request);
    const { stream, bytes } = await copies.copy();
    const headers = {
      "content-type": "application/vnd.sqlite3",
      "content-length": String(bytes),
      "content-disposition": 'attachment; filename="snapshot.db"',
    };
    return new Response(stream, { headers });
  });
}
