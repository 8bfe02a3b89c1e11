/**
 * What can go wrong between a change log and its follower, each with a code for programs. The one
 * question a follower asks of a failure is whether a new copy heals it: going on wrongly never does.
 */

/** What a failure is; programs go by it. */
export type CdcErrorCode =
  /** Bytes that are no record, image or frame: damaged on the way, or another format. */
  | "malformed"
  /** The stream ended inside a frame or a transaction. Ask again from the watermark. */
  | "cut"
  /** A frame or a batch that does not follow the one before it. Ask again from the watermark. */
  | "out-of-order"
  /** A single change larger than a frame's transaction may carry, or a frame above the limit. */
  | "too-large"
  /** The source cannot be followed exactly; the message says what stands in the way. */
  | "source-unfit"
  /** The schema was altered and its log has not caught up. Ask again. */
  | "unsettled"
  /** The source's database failed, or a table of its log is gone. Ask again. */
  | "source-failed"
  /** A file that has tables and was never a follower's: a copy would replace them. */
  | "not-a-copy"
  /** The watermark is of another log. */
  | "other-log"
  /** The log no longer (or never) reached back to the watermark. */
  | "log-pruned"
  /** The log has something else at the watermark: restored from a backup, or begun anew. */
  | "log-rewound"
  /** The log leaves out, or cannot express, what happened on the source. */
  | "log-incomplete"
  /** Source and follower no longer have the same schema. */
  | "schema-differs"
  /** A change does not fit what the follower holds. */
  | "diverged"
  /** A schema change that is not one plain CREATE, ALTER or DROP. Nothing of it was run. */
  | "statement-refused";

const NEEDS_COPY: ReadonlySet<CdcErrorCode> = new Set<CdcErrorCode>([
  "other-log",
  "log-pruned",
  "log-rewound",
  "log-incomplete",
  "schema-differs",
  "diverged",
  "statement-refused",
]);

/** A failure of following, with its code. */
export class CdcError extends Error {
  override name = "CdcError";
  readonly code: CdcErrorCode;
  constructor(code: CdcErrorCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
  }
  /** Whether only a new copy of the source helps the follower. */
  get needsCopy(): boolean {
    return NEEDS_COPY.has(this.code);
  }
}

const CODES: ReadonlySet<string> = new Set<CdcErrorCode>([
  ...NEEDS_COPY,
  "malformed",
  "cut",
  "out-of-order",
  "too-large",
  "source-unfit",
  "unsettled",
  "source-failed",
  "not-a-copy",
]);

/** Whether a text from a stream is one of the codes. */
export function isCdcErrorCode(text: unknown): text is CdcErrorCode {
  return typeof text === "string" && CODES.has(text);
}
