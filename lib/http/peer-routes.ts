/** Membership without restarts: the peers, adding and removing them, and filling one. */
import { Hono } from "hono";
import { RequestError } from "../base/errors.ts";
import { parsePeerUrl } from "../protocol/peer-url.ts";
import { requireAdmin } from "./admin.ts";
import type { BodyReader } from "./body.ts";
import { JSON_TYPE } from "./errors.ts";
import { segment } from "./path.ts";

/** One peer as /peers shows it. */
export interface MemberReport {
  readonly url: string;
  readonly node_id: string | null;
  readonly make: "ours" | "foreign" | null;
  /** In the configuration, and so there again after the next start. */
  readonly configured: boolean;
}

/** The node's own list of peers; a change of it lasts, in the node's file. */
export interface Membership {
  peers(): readonly MemberReport[];
  /** This node's address for others (`--url`), or null where it was not given. */
  readonly ownUrl: string | null;
  /** False where it was a peer already. Throws a RequestError where it cannot be one. */
  add(url: string): Promise<boolean>;
  /** False where it is no peer. */
  remove(url: string): Promise<boolean>;
  /** False where it is no peer. */
  fill(url: string): Promise<boolean>;
  readonly adminToken: string | undefined;
  remoteAddress(request: Request): string | undefined;
}

/** Bodies here are one address. */
const BODY_BYTES_MAX = 16 * 1024;

/** Anybody may read the list; changing it takes what admin.ts asks for. */
export function peerRoutes(membership: Membership, bodies: BodyReader): Hono {
  const guard = (request: Request) =>
    requireAdmin({
      headers: request.headers,
      remoteAddress: membership.remoteAddress(request),
      token: membership.adminToken,
    });
  return new Hono()
    .get("/peers", () => answer(200, { url: membership.ownUrl, peers: membership.peers() }))
    .post("/peers", async (c) => {
      guard(c.req.raw);
      const url = await readUrl(bodies, c.req.raw, "url");
      const added = await membership.add(url);
      return answer(added ? 201 : 200, { url, added });
    })
    .post("/peers/backfill", async (c) => {
      guard(c.req.raw);
      const url = await readUrl(bodies, c.req.raw, "peer");
      if (!(await membership.fill(url)))
        throw new RequestError(404, `${url} is not a peer of this node`);
      return answer(202, { peer: url, filling: true });
    })
    .delete("/peers/:url", async (c) => {
      guard(c.req.raw);
      const url = parseUrl(segment(c.req.path, 1), "the peer in the path");
      if (!(await membership.remove(url)))
        throw new RequestError(404, `${url} is not a peer of this node`);
      return answer(200, { removed: url });
    });
}

async function readUrl(bodies: BodyReader, request: Request, name: string): Promise<string> {
  const body = await bodies.json(request, BODY_BYTES_MAX);
  const given =
    typeof body === "object" && body !== null && !Array.isArray(body)
      ? (body as Record<string, unknown>)[name]
      : undefined;
  if (typeof given !== "string") {
    throw new RequestError(400, `expected {"${name}": "http://host:9001"}`);
  }
  return parseUrl(given, name);
}

function parseUrl(text: string, place: string): string {
  const parsed = parsePeerUrl(text);
  if ("wrong" in parsed) throw new RequestError(400, `${place}: ${parsed.wrong}`);
  return parsed.url;
}

function answer(status: number, body: unknown): Response {
  return new Response(JSON.stringify(body), { status, headers: JSON_TYPE });
}
