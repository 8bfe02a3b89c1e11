/**
 * Whether an address leads to the node that asks. A node that ships to itself holds its own log for
 * ever; most such peers are a slip in a start script and can be seen from the address alone.
 */

/** Where a node can be reached, as far as it knows by itself. */
export interface OwnAddress {
  /** What the node listens on: a name or an address without brackets; undefined for all. */
  readonly hostname: string | undefined;
  readonly port: number;
  /** Names and addresses of this machine. */
  readonly hosts: readonly string[];
}

/**
 * True where `url` (an address that parses) is certainly the node's own. Under other names (DNS, a
 * port mapped by a router) a node knows itself only when it answers.
 */
export function isOwnAddress(url: string, own: OwnAddress): boolean {
  const { hostname, port, protocol } = new URL(url);
  if ((Number(port) || (protocol === "https:" ? 443 : 80)) !== own.port) return false;
  const host = bareHost(hostname);
  const listening = own.hostname === undefined ? "::" : listeningHost(own.hostname);
  if (isAny(listening)) {
    return isAny(host) || isLoopback(host) || own.hosts.some((name) => name.toLowerCase() === host);
  }
  if (host === listening) return true;
  // 127.0.0.1 and ::1 may be two nodes; "localhost" may be either, and 0.0.0.0 leads there too.
  const vague = [host, listening].some((name) => isAny(name) || !isLiteral(name));
  return vague && (isLoopback(host) || isAny(host)) && isLoopback(listening);
}

function isLiteral(host: string): boolean {
  return /^[\d.]+$|:/.test(host);
}

function isAny(host: string): boolean {
  return host === "0.0.0.0" || host === "::";
}

function isLoopback(host: string): boolean {
  return /^(127\.[\d.]+|::1|localhost|.+\.localhost)$/.test(host);
}

/** As an address of a peer would have it, so that the two can be compared. */
function listeningHost(hostname: string): string {
  const url = URL.parse(hostname.includes(":") ? `http://[${hostname}]` : `http://${hostname}`);
  return url === null ? hostname : bareHost(url.hostname);
}

/** Without brackets and the root's dot, and an IPv4 address in IPv6 clothing as IPv4. */
function bareHost(hostname: string): string {
  const bare = hostname.replace(/^\[|\]$|\.$/g, "");
  const mapped = /^::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(bare);
  if (mapped === null) return bare;
  const high = Number.parseInt(mapped[1]!, 16);
  const low = Number.parseInt(mapped[2]!, 16);
  return [high >> 8, high & 255, low >> 8, low & 255].join(".");
}
