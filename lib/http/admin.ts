/**
 * Who may change the mesh and copy whole files: programs on this machine, and whoever has the token. A
 * web page must not (its requests cannot be JSON without asking first), nor a stranger behind a proxy on
 * this machine (its requests come from the loopback address, but say that they were forwarded).
 */
import { createHash, timingSafeEqual } from "node:crypto";
import { RequestError } from "../base/errors.ts";

const FORWARDING_HEADERS = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];

/** What `requireAdmin` goes by: the request's head, and who sent it. */
export interface AdminCheck {
  readonly headers: Headers;
  /** The other end of the socket, or undefined where it is not known. */
  readonly remoteAddress: string | undefined;
  /** `--admin-token`, or undefined: then only this machine may. */
  readonly token: string | undefined;
}

/** Throws a 403 that says how, unless the request may change the mesh. */
export function requireAdmin({ headers, remoteAddress, token }: AdminCheck): void {
  const given = /^Bearer\s+(.+)$/i.exec(headers.get("authorization") ?? "")?.[1]?.trim();
  if (given !== undefined && token !== undefined && token !== "" && isSame(given, token)) return;
  const isForwarded = FORWARDING_HEADERS.some((name) => headers.has(name));
  if (given === undefined && !isForwarded && isLoopback(remoteAddress)) return;
  throw new RequestError(403, refusal(given !== undefined, token !== undefined && token !== ""));
}

/** A wrong token is refused on this machine, too: whoever sent one from here is told of the token. */
function refusal(isGiven: boolean, isExpected: boolean): string {
  if (isGiven && isExpected) return "the admin token that was sent is not the one of this node";
  if (isGiven)
    return "an admin token was sent, but this node has none: send none on its own machine (127.0.0.1), or start it with --admin-token";
  return isExpected
    ? "this is allowed only from this machine (127.0.0.1) or with Authorization: Bearer and the admin token"
    : "this is allowed only from this machine (127.0.0.1); start the node with --admin-token to allow it from elsewhere";
}

/** `::ffff:127.0.0.1` is what a dual-stack socket says of 127.0.0.1. */
function isLoopback(address: string | undefined): boolean {
  if (address === undefined) return false;
  const bare = address.replace(/^::ffff:/i, "");
  return bare === "::1" || /^127\.\d+\.\d+\.\d+$/.test(bare);
}

/** In constant time, also for texts of different lengths. */
function isSame(left: string, right: string): boolean {
  const hash = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(hash(left), hash(right));
}
