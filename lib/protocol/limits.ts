/**
 * Every limit of the contract, once, with its reason. Where two depend on each other the relation is
 * asserted below. All of them can be changed by a flag or are defaults of one.
 */
import { assert } from "../base/assert.ts";

const MIB = 1024 * 1024;

/** What the existing nodes send at most; some of them refuse more. */
export const BATCH_CHANGES_MAX = 10_000;
/** Half of the smallest body limit met in the field (Go node and hub: 16 MiB), so that JSON escaping by a hub still fits. */
export const BATCH_BYTES_MAX = 8 * MIB;
/** Above the 100 MiB of the most generous existing node; a body is held in memory while it is applied. */
export const BODY_BYTES_MAX = 128 * MIB;
/** Long enough for a slow disk to apply a full batch, short enough that a silent peer is noticed. */
export const REQUEST_TIMEOUT_MS = 30_000;
/** A server closes a quiet socket only after the sender's time-out, so that the sender hears the answer. */
export const IDLE_TIMEOUT_MS = 120_000;
/** A full mesh of more is not what this protocol is for; each peer costs a link and a row. */
export const PEERS_MAX = 256;
/** Rows are flat objects in an array in an envelope: 4 levels. More is a mistake or an attack. */
export const JSON_DEPTH_MAX = 64;
/** Parked changes are kept for people; above this the node answers 507 instead of filling the disk. */
export const PARKED_BYTES_MAX = 1024 * MIB;
/** A version further ahead than this is a wrong clock, not a race (DESIGN.md, "Versions"). */
export const VERSION_AHEAD_MS_MAX = 3_600_000;
/** Above it JSON readers of other makes lose digits, so no stamp may be there. */
export const VERSION_MAX = Number.MAX_SAFE_INTEGER;
/** A peer that is away for weeks must not fill the disk: beyond it the slowest is filled anew later. */
export const LOG_BYTES_MAX = 4 * 1024 * MIB;
/** A follower that is away for longer takes a new copy: so long the log of `--cdc` is kept at most. */
export const CDC_KEEP_MS = 24 * 3_600_000;
/** The log of `--cdc` holds every row as it was written; more of it than this is not worth a copy. */
export const CDC_BYTES_MAX = 1024 * MIB;
/** How often another program's commits are looked for (`--batch-ms`). */
export const BATCH_MS = 50;
/** How long a deleted row's version is remembered after every peer knew of it. */
export const TOMBSTONE_RETENTION_MS = 30 * 24 * 3_600_000;
/** An idle mesh notices a peer that was restored from a backup within this time. */
export const HEALTH_MS = 60_000;
/** Rows that are in nobody's log come to the others after this time at the latest. */
export const VERIFY_MS = 24 * 3_600_000;
/** A reply is a few members; a peer that answers more is not one. */
export const REPLY_BYTES_MAX = 64 * 1024;

assert(IDLE_TIMEOUT_MS > REQUEST_TIMEOUT_MS, "a server must wait longer than a sender");
assert(BATCH_BYTES_MAX < BODY_BYTES_MAX, "our own batches must fit our own limit");
