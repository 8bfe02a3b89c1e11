/**
 * The HTTP face of a follower: its health, and the rows of its copy for reading. Whatever would write
 * is answered 405: what a copy holds comes from its source alone.
 */
import { RequestError } from "../base/errors.ts";
import type { CopyRows } from "../store/copy-rows.ts";
import { answerError, errorAnswer, JSON_TYPE } from "./errors.ts";
import { rawPath, searchParams, segment } from "./path.ts";
import { readLimit } from "./row-routes.ts";

/** One or two segments behind it, neither of them empty. */
const ROWS_PATH = /^\/api\/[^/]+(?:\/[^/]+)?$/;

/** What a follower has to show. */
export interface CopyAppOptions {
  readonly rows: Pick<CopyRows, "list" | "row">;
  /** How the follower is; `ok` and whatever else there is to say. */
  health(): Readonly<Record<string, unknown>>;
}

/** Answers a Request. */
export function createCopyApp(options: CopyAppOptions): (request: Request) => Response {
  return (request) => {
    try {
      return answer(request, options);
    } catch (error) {
      return answerError(error).response;
    }
  };
}

function answer(request: Request, { rows, health }: CopyAppOptions): Response {
  const path = rawPath(request);
  const isRows = ROWS_PATH.test(path);
  if (!isRows && path !== "/health") {
    return errorAnswer(404, "no such path; there are /health and /api/TABLE");
  }
  if (request.method !== "GET" && request.method !== "HEAD") {
    return errorAnswer(405, "this is a read copy: write to its source", { allow: "GET, HEAD" });
  }
  if (!isRows) return json(JSON.stringify(health()));
  const [table, id] = [segment(path, 1), segment(path, 2)];
  if (id !== "") {
    const row = rows.row(table, id);
    return row === undefined ? errorAnswer(404, "no such row here") : json(row);
  }
  const query = searchParams(request);
  const page = rows.list(table, readLimit(query.get("limit")), readCursor(query.get("after")));
  if (page === undefined) return errorAnswer(404, "no such table here");
  return json(page.json, page.next === undefined ? {} : { "x-next-cursor": page.next });
}

function json(text: string, headers: Readonly<Record<string, string>> = {}): Response {
  return new Response(text, { headers: { ...JSON_TYPE, ...headers } });
}

function readCursor(text: string | null): string | undefined {
  if (text !== null && !/^-?\d{1,18}$/.test(text)) {
    throw new RequestError(400, "after: expected the X-Next-Cursor of the page before");
  }
  return text ?? undefined;
}
