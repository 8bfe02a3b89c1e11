/**
 * `hook-sync/cdc`: following a database transaction by transaction, for programs that embed it. A
 * source is read by a tailer or served as a stream of frames; a replica applies what comes.
 *
 *     source ─► CdcTailer ─► Batch ─► encodeFrames ─► … ─► FrameReader ─► Batch ─► applyBatch ─► copy
 *
 * Nothing here knows of HTTP or of the mesh, and no driver but bun:sqlite, for the copy, is imported.
 */
export {
  type Batch,
  BrokenText,
  type CdcChange,
  type CdcValue,
  type Watermark,
} from "./change.ts";
export { type ClosedFileOutcome, followClosedFile } from "./closed-file.ts";
export type { CdcConnection, CdcStatement, MaybePromise } from "./connection.ts";
export { readCopy } from "./copy.ts";
export { CdcError, type CdcErrorCode } from "./error.ts";
export { Follower, type FollowerOptions, type FollowerStatus } from "./follower.ts";
export {
  CHANGE_BYTES_MAX,
  type EncodeOptions,
  encodeBeat,
  encodeFrames,
  encodeStop,
  FRAME_BYTES_MAX,
  type FrameEvent,
  type FrameOptions,
  FrameReader,
} from "./frames.ts";
export { type LogIdentity, readLogIdentity } from "./log-identity.ts";
export { decodeRecord } from "./record.ts";
export { type ApplyOutcome, applyBatch, Replica } from "./replica.ts";
export { ChangeSpool, type SpoolOptions } from "./spool.ts";
export { SqliteCapture } from "./sqlite-capture.ts";
export { SqliteCommits } from "./sqlite-commits.ts";
export {
  type FollowOptions,
  type FollowTarget,
  followCdc,
  formatWatermark,
  parseWatermark,
  type ServeOptions,
  type StreamConnection,
  serveCdc,
} from "./stream.ts";
export { CdcTailer, readLogEnd } from "./tailer.ts";
export { enableCdc, pruneCdc, writeCdc } from "./turso.ts";
