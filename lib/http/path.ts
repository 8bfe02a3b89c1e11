/**
 * Paths as they were sent. A framework's own decoding passes malformed escapes on as they are and
 * decodes some of them twice, so that an id with a percent sign would name another row; and it takes
 * the first segment for a host where a request has none.
 */
import { RequestError } from "../base/errors.ts";

const SLASH = 47;

/** The path without query, still escaped; one trailing slash means the same as none. */
export function rawPath(request: Request): string {
  const url = address(request);
  const start = url.indexOf("/", url.indexOf("://") + 3);
  if (start < 0) return "/";
  const query = url.indexOf("?", start);
  const fragment = url.indexOf("#", start);
  let end = url.length;
  if (fragment >= 0) end = fragment;
  if (query >= 0 && query < end) end = query;
  if (end > start + 1 && url.charCodeAt(end - 1) === SLASH) end--;
  return url.slice(start, end);
}

/** What stands behind the question mark. */
export function searchParams(request: Request): URLSearchParams {
  const [url = ""] = address(request).split("#", 1);
  const start = url.indexOf("?");
  return new URLSearchParams(start < 0 ? "" : url.slice(start + 1));
}

/** Without a usable Host (HTTP/1.0 needs none) a request has only the path for its address. */
function address({ url }: Request): string {
  return url.charCodeAt(0) === SLASH ? new URL(`http://node${url}`).href : url;
}

/** One segment of a path, decoded: of `/api/items/x` number 1 is `items`. */
export function segment(path: string, number: number): string {
  let start = 1;
  for (let i = 0; i < number; i++) {
    start = path.indexOf("/", start) + 1;
    if (start === 0) return "";
  }
  const end = path.indexOf("/", start);
  const text = end < 0 ? path.slice(start) : path.slice(start, end);
  if (!text.includes("%")) return text;
  try {
    return decodeURIComponent(text);
  } catch {
    throw new RequestError(
      400,
      "the path has a malformed escape (% must be followed by UTF-8 as hex)",
    );
  }
}
