/**
 * The address of a peer in its one spelling. `http://Host:80/`, `http://host` and `http://host/`
 * are the same peer: spelt two ways it would get every batch twice and hold the log twice, and a
 * watermark stored under the other spelling would not be found again.
 */

/** Only `url` may be stored or compared: it is the one spelling. */
export type PeerUrl =
  | { readonly url: string }
  /** Why it is none, as a sentence for a person. Never repeats a password. */
  | { readonly wrong: string };

const URL_LENGTH_MAX = 2_048;

/**
 * Host in lower case, default port left out, no slash at the end; a path is kept, as a prefix for
 * peers behind a proxy.
 */
export function parsePeerUrl(text: string): PeerUrl {
  const trimmed = text.trim();
  if (trimmed === "") return { wrong: "expected an address such as http://host:9001" };
  if (trimmed.length > URL_LENGTH_MAX) {
    return { wrong: `expected at most ${URL_LENGTH_MAX} characters` };
  }
  if (!/^[A-Za-z][A-Za-z0-9+.-]*:\/\//.test(trimmed)) {
    const guess = URL.parse(`http://${trimmed}`);
    const example =
      guess !== null && !/[\s@]/.test(trimmed) ? `http://${trimmed}` : "http://host:9001";
    return { wrong: `expected an address with http:// or https://, such as ${example}` };
  }
  const url = URL.parse(trimmed);
  if (url === null) return { wrong: "expected an address such as http://host:9001" };
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    return { wrong: `expected http:// or https://, not ${url.protocol}//` };
  }
  if (url.username !== "" || url.password !== "") {
    return {
      wrong: "expected no user or password in the address: it is shown in logs and /health",
    };
  }
  if (url.search !== "" || trimmed.includes("?")) return { wrong: "expected no ?query" };
  if (url.hash !== "" || trimmed.includes("#")) return { wrong: "expected no #fragment" };
  if (url.port === "0") return { wrong: "expected the port the peer listens on, not 0" };
  return { url: url.origin + url.pathname.replace(/\/+$/, "") };
}

/** One address as it may be shown: without user and password, also where it does not parse. */
export function withoutCredentials(text: string): string {
  return text.replace(/^([A-Za-z][A-Za-z0-9+.-]*:\/\/)?.*@/s, "$1…@");
}
