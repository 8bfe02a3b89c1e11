/**
 * Failures become answers here, and nowhere else. Every error answer is JSON `{"error": …}`; none shows
 * a stack, a path of this machine or SQL.
 */
import { HookSyncError, isBusy, isStaleSchema, RequestError } from "../base/errors.ts";
import { BatchError } from "../protocol/batch.ts";
import { refusalOf } from "../store/refusal.ts";
import { storeError } from "../store/write-queue.ts";

/** Headers of every JSON answer; RFC 8259 knows no charset for it. */
export const JSON_TYPE = { "content-type": "application/json" } as const;

/** What is retried soon should be retried after a pause, not at once. */
const RETRY_AFTER = { "retry-after": "1" } as const;

/** What the client gets, and whether the node's log should hear of it. */
export interface FailedAnswer {
  readonly response: Response;
  /** Not the client's doing, and worth a line in the log. */
  readonly isOurs: boolean;
}

/** `message` goes to the client as it is. */
export function errorAnswer(
  status: number,
  message: string,
  headers: Readonly<Record<string, string>> = {},
): Response {
  return new Response(JSON.stringify({ error: message }), {
    status,
    headers: { ...JSON_TYPE, ...headers },
  });
}

/** A 503 with Retry-After of one second. */
export function unavailable(message: string): Response {
  return errorAnswer(503, message, RETRY_AFTER);
}

/** Takes whatever was thrown; what nobody foresaw becomes a 500. */
export function answerError(error: unknown): FailedAnswer {
  if (error instanceof RequestError) {
    return {
      response: errorAnswer(error.status, error.message, error.headers),
      isOurs: error.status >= 500,
    };
  }
  if (error instanceof BatchError) return theirs(errorAnswer(400, error.message));
  // One that came with COMMIT, as a deferred foreign key does.
  const refusal = refusalOf(error);
  if (refusal) return theirs(errorAnswer(refusal.status, refusal.message));
  if (isBusy(error)) return theirs(unavailable("another program holds the database locked"));
  if (isStaleSchema(error))
    return theirs(unavailable("the table was just changed by another program"));
  return answerFailure(storeError(error));
}

function answerFailure(error: unknown): FailedAnswer {
  if (error instanceof HookSyncError) {
    switch (error.code) {
      case "busy":
      case "file-moved":
        return theirs(unavailable(error.message));
      case "disk-full":
        return { response: errorAnswer(507, error.message), isOurs: true };
      case "file-read-only":
      case "store-failed":
        return { response: errorAnswer(500, error.message), isOurs: true };
      default:
    }
  }
  return { response: errorAnswer(500, "internal error"), isOurs: true };
}

function theirs(response: Response): FailedAnswer {
  return { response, isOurs: false };
}
