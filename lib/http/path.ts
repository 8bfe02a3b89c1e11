/**
 * Paths as they were sent. A framework's own decoding passes malformed escapes on as they are and
 * decodes some of them twice, so that an id with a percent sign would name another row.
 */
import { RequestError } from "../base/errors.ts";

/** The path without query, still escaped; one trailing slash means the same as none. */
export function rawPath(request: Request): string {
  const { url } = request;
  const start = url.indexOf("/", url.indexOf("://") + 3);
  if (start < 0) return "/";
  let end = start + 1;
  while (end < url.length && url[end] !== "?" && url[end] !== "#") end++;
  if (end > start + 1 && url[end - 1] === "/") end--;
  return url.slice(start, end);
}

/** One segment of a path, decoded: of `/api/items/x` number 1 is `items`. */
export function segment(path: string, number: number): string {
  const text = path.split("/", number + 2)[number + 1] ?? "";
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
