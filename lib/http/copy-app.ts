/**
 * The HTTP face of a follower: its health, and the rows of its copy for reading. Whatever would write
 * is answered 405: what a copy holds comes from its source alone.
 */
import { RequestError } from "../base/errors.ts";
import type { CopyRows } from "../store/copy-rows.ts";
import { answerError, errorAnswer, JSON_TYPE } from "./errors.ts";

const LIMIT = 100;
const LIMIT_MAX = 1_000;

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
  const url = new URL(request.url);
  const [first, table, id, ...more] = url.pathname.split("/").slice(1).map(decode);
  const isApi = first === "api" && table !== undefined && table !== "" && more.length === 0;
  if (!isApi && url.pathname !== "/health") {
    return errorAnswer(404, "no such path; there are /health and /api/TABLE");
  }
  if (request.method !== "GET" && request.method !== "HEAD") {
    return errorAnswer(405, "this is a read copy: write to its source", { allow: "GET, HEAD" });
  }
  if (!isApi) return json(JSON.stringify(health()));
  if (id !== undefined && id !== "") {
    const row = rows.row(table, id);
    return row === undefined ? errorAnswer(404, "no such row here") : json(row);
  }
  const { limit, after } = readPage(url.searchParams);
  const page = rows.list(table, limit, after);
  if (page === undefined) return errorAnswer(404, "no such table here");
  return json(page.json, page.next === undefined ? {} : { "x-next-cursor": page.next });
}

function json(text: string, headers: Readonly<Record<string, string>> = {}): Response {
  return new Response(text, { headers: { ...JSON_TYPE, ...headers } });
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw new RequestError(400, "the path is not UTF-8");
  }
}

function readPage(query: URLSearchParams): { limit: number; after: string | undefined } {
  const limit = query.get("limit") ?? String(LIMIT);
  if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1 || Number(limit) > LIMIT_MAX) {
    throw new RequestError(400, `limit: expected a whole number from 1 to ${LIMIT_MAX}`);
  }
  const after = query.get("after") ?? undefined;
  if (after !== undefined && !/^-?\d{1,18}$/.test(after)) {
    throw new RequestError(400, "after: expected the X-Next-Cursor of the page before");
  }
  return { limit: Number(limit), after };
}
