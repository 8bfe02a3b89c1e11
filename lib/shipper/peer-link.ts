/**
 * One peer, seen from the shipper: what to do next, never how.
 *
 *            settled                     acked, or a batch set aside
 *     idle ──────────► sending ◄────────────────────────────────────┐
 *       ▲               │ │ │ │                                     │
 *       └── nothing ────┘ │ │ └── refused five times ─► bisecting ──┤
 *                         │ │                             │   ▲     │
 *          failed,        │ └── not admitted ─► not-      │   └ pieces, one by one
 *          refused,       ▼                     admitted  └ nothing accepted ─► refusing
 *          mismatched   waiting ── timer ─► sending  ▲          slow timer ─► sending
 *                                                    └ slow timer ─► sending
 *
 * `step` is a plain function of (link, event, chance). It reads no clock, opens no socket and
 * touches no table, so that the simulator can take many links through a bad network without waiting
 * for any of it. The driver in shipper.ts carries out the effects and feeds the outcome back.
 * Draining is no state of a link: it is the driver's wish, told to a pausing link by `hurry`.
 *
 * Invariants (test/shipper/peer-link.test.ts):
 *   L1  The watermark never goes down.
 *   L2  At most one batch is in flight per peer; while a link pauses, none is.
 *   L3  The watermark passes a change only when the peer acknowledged it, or together with a refusal
 *       that names it.
 *   L4  An outcome of the connection class alone never leads to a refusal and never loses the place
 *       of a bisection.
 *   L5  A batch that is tried five times because of the answer is the same batch five times: changes
 *       that came later are not set aside with it.
 *   L6  Of ten or more changes of which the peer takes none, none is set aside.
 */
import { assert } from "../base/assert.ts";
import { ATTEMPTS_MAX, retryPauseMs, slowPauseMs } from "../base/backoff.ts";
import type { Random } from "../base/random.ts";
import { BODY_BYTES_MAX } from "../protocol/limits.ts";

/** Fewer refused changes than this may be bad changes; this many and no good one is a bad peer. */
export const REFUSING_CHANGES_MIN = 10;
/** Refused changes of one bisection held back until the peer takes one; then a sample decides. */
export const HELD_CHANGES_MAX = 256;
/** A sample of this size misses a half that the peer would take once in four thousand million rounds. */
export const PROBE_CHANGES_MAX = 32;
/** A peer that says "later" is believed up to here: a proxy's "in a day" must not stop replication. */
export const RETRY_AFTER_MS_MAX = 300_000;
/** Batches taken at a learned size before twice as much is tried: one in 33 is wasted at most. */
export const LEARNED_SIZE_ACKS = 32;
/** No peer has a limit below this: a 413 for less is not about size, and not believed at once (L6). */
export const SMALL_BODY_BYTES = 4_096;
/** A body that broke off this often may be what breaks the peer; below it size is no explanation. */
const CUT_OFF_FAILURES_MIN = 3;
const CUT_OFF_BYTES_MIN = 256 * 1024;

/** What the driver sent, as it found it in the log. */
export interface Sent {
  readonly count: number;
  /** Largest change id of the batch, its `batch_id`. */
  readonly through: number;
  readonly bytes: number;
}

/** Which changes to send: after `after`, leaving out `skip`, up to the bounds that are given. */
export interface BatchWindow {
  readonly after: number;
  /** Undefined: as far as the log is settled. */
  readonly through: number | undefined;
  readonly skip: number;
  /** Undefined: the configured bounds alone count. */
  readonly changesMax: number | undefined;
  readonly bytesMax: number | undefined;
}

/** A body size that this peer was seen to need, and how many batches it has taken since. */
interface LearnedSize {
  readonly bytesMax: number;
  readonly acks: number;
}

/** The attempts since this peer last made progress. */
interface Series {
  /** Failures of the connection class in a row. */
  readonly failures: number;
  readonly refusals: number;
  readonly mismatches: number;
  /** Set while the batch must stay the same (L5). */
  readonly through: number | undefined;
  /** The first batch of this series that the peer called too large, before it was cut. */
  readonly uncut: Sent | undefined;
  /** What the peer was known for when this attempt began. */
  readonly trouble: "refusing" | "not-admitted" | undefined;
  /** Slow pauses taken so far. */
  readonly rounds: number;
}

/** A series after an answer of any kind: nobody is kept out any more. */
type Answered = Series & { readonly trouble: "refusing" | undefined };

/** Changes refused one by one, not yet reported. All changes up to `through` were. */
interface Held {
  readonly through: number;
  readonly reason: string;
  readonly attempts: number;
}

interface Bisection {
  /** The last change of the batch under the knife. */
  readonly end: number;
  /** Everything up to here is decided: accepted, set aside, or held. */
  readonly position: number;
  /** Sizes of the pieces that follow, the next one last. */
  readonly pieces: readonly number[];
  /** Whether refused changes may be set aside (L6). */
  readonly decided: boolean;
  readonly held: readonly Held[];
  readonly heldCount: number;
  /** Single changes still to be tried out of turn, counted from `position`; empty: no sampling. */
  readonly probe: readonly number[];
  readonly failures: number;
  readonly mismatches: number;
  readonly trouble: "refusing" | undefined;
  readonly rounds: number;
}

/** Why a link is not sending: `asked` is a pause that the peer asked for. */
export type Pause = "backoff" | "asked";

interface Standing {
  readonly watermark: number;
  readonly size: LearnedSize | undefined;
}

/** Where shipping to one peer stands. */
export type PeerLink = Standing &
  (
    | { readonly kind: "idle" }
    | { readonly kind: "sending"; readonly series: Series }
    | { readonly kind: "waiting"; readonly series: Series; readonly pause: Pause }
    | {
        readonly kind: "bisecting";
        readonly bisection: Bisection;
        readonly pause: Pause | undefined;
      }
    | { readonly kind: "refusing"; readonly rounds: number }
    | { readonly kind: "not-admitted"; readonly rounds: number }
  );

/** One half of the table of cells below: what a link can be. */
export type LinkKind = PeerLink["kind"];

/** What happened. All but the first and the last two answer a `send`. */
export type LinkEvent =
  /** There are settled changes past the watermark. */
  | { readonly kind: "settled" }
  /** The window that was asked for holds no change. */
  | { readonly kind: "nothing" }
  | { readonly kind: "acked"; readonly sent: Sent }
  | { readonly kind: "mismatched"; readonly sent: Sent; readonly reason: string }
  | { readonly kind: "refused"; readonly sent: Sent; readonly reason: string }
  | { readonly kind: "too-large"; readonly sent: Sent; readonly reason: string }
  | { readonly kind: "not-admitted"; readonly retryAfterMs: number }
  | {
      readonly kind: "failed";
      readonly sent: Sent;
      readonly retryAfterMs: number;
      /** The peer was reached and the exchange broke off: a smaller body may get through. */
      readonly cutOff: boolean;
    }
  | { readonly kind: "timer-fired" }
  /** Somebody waits for this peer (drain): do not sit out a pause of our own making. */
  | { readonly kind: "hurry" };

/** The other half: a kind left out there does not compile. */
export type EventKind = LinkEvent["kind"];

/** What the driver is to do, in this order. At most one of `send` and `wake` is in a step. */
export type LinkEffect =
  | { readonly kind: "send"; readonly window: BatchWindow }
  | { readonly kind: "wake"; readonly delayMs: number }
  /** The watermark is now `through`; the acknowledgement let it pass `count` changes. */
  | {
      readonly kind: "acked";
      readonly through: number;
      readonly batchId: number;
      readonly count: number;
    }
  /** The watermark is now `through`; all changes since `after` are for the dead letters. */
  | {
      readonly kind: "set-aside";
      readonly after: number;
      readonly through: number;
      readonly reason: string;
      readonly attempts: number;
    };

/** Where nothing happened `link` is the very object that came in. */
export interface Step {
  readonly link: PeerLink;
  readonly effects: readonly LinkEffect[];
}

type LinkOf<S extends LinkKind> = Extract<PeerLink, { kind: S }>;
type EventOf<E extends EventKind> = Extract<LinkEvent, { kind: E }>;
type Cell<S extends LinkKind, E extends EventKind> = (
  link: LinkOf<S>,
  event: EventOf<E>,
  random: Random,
) => Step;

const FRESH: Series = {
  failures: 0,
  refusals: 0,
  mismatches: 0,
  through: undefined,
  uncut: undefined,
  trouble: undefined,
  rounds: 0,
};

/** A link at its start. */
export function openLink(watermark: number): PeerLink {
  return { kind: "idle", watermark, size: undefined };
}

/** What lasts longer than a hiccup and is worth a line in the log. */
export type Trouble = "down" | "not-admitted" | "refusing";

/** Below ATTEMPTS_MAX failures in a row: the trouble the link had before, or undefined. */
export function troubleOf(link: PeerLink): Trouble | undefined {
  switch (link.kind) {
    case "idle":
      return undefined;
    case "sending":
    case "waiting":
      return link.series.failures >= ATTEMPTS_MAX ? "down" : link.series.trouble;
    case "bisecting":
      return link.bisection.failures >= ATTEMPTS_MAX ? "down" : link.bisection.trouble;
    case "refusing":
    case "not-admitted":
      return link.kind;
  }
}

/** Every state against every event; a cell that is missing does not compile. */
const CELLS: { readonly [S in LinkKind]: { readonly [E in EventKind]: Cell<S, E> } } = {
  idle: {
    settled: (link) => send(link, FRESH),
    nothing: neverWithoutBatch,
    acked: neverWithoutBatch,
    mismatched: neverWithoutBatch,
    refused: neverWithoutBatch,
    "too-large": neverWithoutBatch,
    "not-admitted": neverWithoutBatch,
    failed: neverWithoutBatch,
    "timer-fired": stay,
    hurry: stay,
  },
  sending: {
    // The outcome decides; what is read next includes the new changes.
    settled: stay,
    nothing: onNothing,
    acked: onAcked,
    mismatched: onMismatched,
    refused: onRefused,
    "too-large": onTooLarge,
    "not-admitted": (link, event, random) =>
      keepOut(link, event, link.series.trouble === "not-admitted" ? link.series.rounds : 0, random),
    failed: onFailed,
    "timer-fired": stay,
    hurry: stay,
  },
  waiting: {
    settled: stay,
    nothing: neverWithoutBatch,
    acked: neverWithoutBatch,
    mismatched: neverWithoutBatch,
    refused: neverWithoutBatch,
    "too-large": neverWithoutBatch,
    "not-admitted": neverWithoutBatch,
    failed: neverWithoutBatch,
    "timer-fired": (link) => send(link, link.series),
    hurry: (link) => (link.pause === "asked" ? stay(link) : send(link, link.series)),
  },
  bisecting: {
    settled: stay,
    nothing: onNothingInPiece,
    acked: onPieceAcked,
    mismatched: onPieceMismatched,
    refused: onPieceRefused,
    "too-large": onPieceTooLarge,
    // What was decided stays decided; the rest starts over once the peer lets us in.
    "not-admitted": (link, event, random) => keepOut(link, event, 0, random),
    failed: onPieceFailed,
    "timer-fired": (link, _event, random) =>
      link.pause === undefined ? stay(link) : goOn(link, link.bisection, random),
    hurry: (link, _event, random) =>
      link.pause === "backoff" ? goOn(link, link.bisection, random) : stay(link),
  },
  refusing: {
    settled: stay,
    nothing: neverWithoutBatch,
    acked: neverWithoutBatch,
    mismatched: neverWithoutBatch,
    refused: neverWithoutBatch,
    "too-large": neverWithoutBatch,
    "not-admitted": neverWithoutBatch,
    failed: neverWithoutBatch,
    "timer-fired": (link) => send(link, { ...FRESH, trouble: "refusing", rounds: link.rounds }),
    hurry: stay,
  },
  "not-admitted": {
    settled: stay,
    nothing: neverWithoutBatch,
    acked: neverWithoutBatch,
    mismatched: neverWithoutBatch,
    refused: neverWithoutBatch,
    "too-large": neverWithoutBatch,
    "not-admitted": neverWithoutBatch,
    failed: neverWithoutBatch,
    "timer-fired": (link) => send(link, { ...FRESH, trouble: "not-admitted", rounds: link.rounds }),
    hurry: stay,
  },
};

/** Takes a link over an event: the link as it is then, and what to do about it. */
export function step(link: PeerLink, event: LinkEvent, random: Random): Step {
  // The table's type pairs each cell with its state and event; indexing by both loses that pairing.
  const cell = CELLS[link.kind][event.kind] as unknown as (
    link: PeerLink,
    event: LinkEvent,
    random: Random,
  ) => Step;
  const next = cell(link, event, random);
  assert(next.link.watermark >= link.watermark, "a watermark went down (L1)");
  return next;
}

function stay(link: PeerLink): Step {
  return { link, effects: [] };
}

function neverWithoutBatch(link: PeerLink, event: LinkEvent): Step {
  assert(false, `"${event.kind}" came while ${link.kind}, with no batch in flight (L2)`);
}

/** Sends what follows the watermark. */
function send(standing: Standing, series: Series, ...before: LinkEffect[]): Step {
  const { watermark, size } = standing;
  const window: BatchWindow = {
    after: watermark,
    through: series.through,
    skip: 0,
    changesMax: undefined,
    bytesMax: size?.bytesMax,
  };
  return {
    link: { kind: "sending", watermark, size, series },
    effects: [...before, { kind: "send", window }],
  };
}

function wait(standing: Standing, series: Series, pauseMs: number, pause: Pause): Step {
  const { watermark, size } = standing;
  return {
    link: { kind: "waiting", watermark, size, series, pause },
    effects: [{ kind: "wake", delayMs: pauseMs }],
  };
}

function onNothing(link: LinkOf<"sending">): Step {
  const { watermark, size, series } = link;
  // A bounded batch may have gone from the log meanwhile; what follows it has not been looked at.
  if (series.through !== undefined) return send(link, FRESH);
  return { link: { kind: "idle", watermark, size }, effects: [] };
}

function onAcked(link: LinkOf<"sending">, event: EventOf<"acked">): Step {
  const { sent } = event;
  return send({ watermark: sent.through, size: grown(link.size) }, FRESH, accepted(sent));
}

function onMismatched(link: LinkOf<"sending">, event: EventOf<"mismatched">, random: Random): Step {
  const { sent, reason } = event;
  const mismatches = link.series.mismatches + 1;
  if (mismatches < ATTEMPTS_MAX) {
    const series = { ...answered(link.series), mismatches, through: sent.through };
    return wait(link, series, retryPauseMs(mismatches, random), "backoff");
  }
  const standing = { watermark: sent.through, size: link.size };
  return send(standing, FRESH, setAside(link.watermark, sent.through, reason, mismatches));
}

function onRefused(link: LinkOf<"sending">, event: EventOf<"refused">, random: Random): Step {
  const { series } = link;
  const refusals = series.refusals + 1;
  // A peer known to refuse had its five attempts; one more of each kind is all a slow round needs.
  if (refusals < ATTEMPTS_MAX && series.trouble !== "refusing") {
    const next = { ...answered(series), refusals, through: event.sent.through };
    return wait(link, next, retryPauseMs(refusals, random), "backoff");
  }
  return bisect(link, event.sent, event.reason, refusals, random);
}

function onTooLarge(link: LinkOf<"sending">, event: EventOf<"too-large">, random: Random): Step {
  const { sent, reason } = event;
  const series = answered(link.series);
  const uncut = series.uncut ?? sent;
  if (sent.count > 1) {
    const next = { ...FRESH, uncut, trouble: series.trouble, rounds: series.rounds };
    return send({ ...link, size: cut(sent) }, next);
  }
  const believed = sent.bytes >= SMALL_BODY_BYTES || uncut.count < REFUSING_CHANGES_MIN;
  if (believed && series.trouble === undefined) {
    const standing = { watermark: sent.through, size: link.size };
    return send(standing, FRESH, setAside(link.watermark, sent.through, reason, 1));
  }
  // It may be the peer that is at fault: go on change by change, and hold what is refused until one
  // is taken (L6).
  const rest = uncut.count - 1;
  const bisection: Bisection = {
    ...openBisection(uncut, sent.through, series),
    pieces: rest > 0 ? [rest] : [],
    held: [{ through: sent.through, reason, attempts: 1 }],
    heldCount: 1,
    probe: series.trouble === undefined ? [] : spread(rest, random),
  };
  return goOn(link, bisection, random);
}

function onFailed(link: LinkOf<"sending">, event: EventOf<"failed">, random: Random): Step {
  const failures = link.series.failures + 1;
  const { trouble, rounds } = answered(link.series);
  const pause = pauseAfterFailure(failures, event.retryAfterMs, random);
  if (mayHelpToCut(event, failures)) {
    const series = { ...FRESH, failures, trouble, rounds };
    return wait({ ...link, size: cut(event.sent) }, series, pause.ms, pause.kind);
  }
  return wait(link, { ...link.series, failures, trouble }, pause.ms, pause.kind);
}

function keepOut(
  standing: Standing,
  event: EventOf<"not-admitted">,
  roundsBefore: number,
  random: Random,
): Step {
  const rounds = roundsBefore + 1;
  const { watermark, size } = standing;
  const delayMs = Math.max(slowPauseMs(rounds, random), bounded(event.retryAfterMs));
  return {
    link: { kind: "not-admitted", watermark, size, rounds },
    effects: [{ kind: "wake", delayMs }],
  };
}

/** The batch was refused as a whole: find out which of its changes are. */
function bisect(
  link: LinkOf<"sending">,
  sent: Sent,
  reason: string,
  attempts: number,
  random: Random,
): Step {
  const series = answered(link.series);
  const bisection = openBisection(sent, link.watermark, series);
  if (sent.count === 1) {
    if (!bisection.decided) return refuse(link, series.rounds, random);
    const standing = { watermark: sent.through, size: link.size };
    return send(standing, FRESH, setAside(link.watermark, sent.through, reason, attempts));
  }
  const probe = series.trouble === undefined ? [] : spread(sent.count, random);
  return goOn(link, { ...bisection, pieces: halves(sent.count), probe }, random);
}

function openBisection(batch: Sent, position: number, series: Answered): Bisection {
  const { trouble, rounds } = series;
  return {
    end: batch.through,
    position,
    pieces: [],
    decided: batch.count < REFUSING_CHANGES_MIN && trouble === undefined,
    held: [],
    heldCount: 0,
    probe: [],
    failures: 0,
    mismatches: 0,
    trouble,
    rounds,
  };
}

function onNothingInPiece(
  link: LinkOf<"bisecting">,
  _event: EventOf<"nothing">,
  random: Random,
): Step {
  const { bisection } = link;
  if (bisection.probe.length > 0) return missedProbe(link, random);
  return goOn(link, { ...bisection, pieces: [] }, random);
}

function onPieceAcked(link: LinkOf<"bisecting">, event: EventOf<"acked">, random: Random): Step {
  const { bisection, watermark } = link;
  const { sent } = event;
  const { position } = bisection;
  const flushed = flush(watermark, bisection.held);
  const next: Bisection = { ...openly(bisection), probe: [] };
  const size = grown(link.size);
  if (bisection.probe.length > 0) {
    // Taken out of turn: it proves that the peer takes something, and is sent once more in its turn.
    const proof: LinkEffect = { ...accepted(sent), through: position, count: 0 };
    return goOn({ watermark: position, size }, next, random, ...flushed, proof);
  }
  const standing = { watermark: sent.through, size };
  return goOn(standing, past(next, sent), random, ...flushed, accepted(sent));
}

function onPieceMismatched(
  link: LinkOf<"bisecting">,
  event: EventOf<"mismatched">,
  random: Random,
): Step {
  const { bisection, watermark } = link;
  const { sent, reason } = event;
  const mismatches = bisection.mismatches + 1;
  if (mismatches < ATTEMPTS_MAX) {
    const next = { ...bisection, mismatches, failures: 0 };
    return pauseBisection(link, next, retryPauseMs(mismatches, random), "backoff");
  }
  if (bisection.probe.length > 0) return missedProbe(link, random);
  // It answers like a peer and acknowledges something else: the table's row for that, piece by piece.
  const moved = setAside(bisection.position, sent.through, reason, mismatches);
  const flushed = flush(watermark, bisection.held);
  const standing = { watermark: sent.through, size: link.size };
  return goOn(standing, past(openly(bisection), sent), random, ...flushed, moved);
}

function onPieceRefused(
  link: LinkOf<"bisecting">,
  event: EventOf<"refused">,
  random: Random,
): Step {
  const { bisection } = link;
  if (bisection.probe.length > 0) return missedProbe(link, random);
  const { sent, reason } = event;
  if (sent.count === 1) return refuseOne(link, sent, reason, ATTEMPTS_MAX, random);
  const rest = without(bisection.pieces, sent.count);
  const next = { ...heard(bisection), pieces: [...rest, ...halves(sent.count)] };
  return goOn(link, next, random);
}

function onPieceTooLarge(
  link: LinkOf<"bisecting">,
  event: EventOf<"too-large">,
  random: Random,
): Step {
  const { bisection } = link;
  if (bisection.probe.length > 0) return missedProbe(link, random);
  const { sent, reason } = event;
  if (sent.count === 1) return refuseOne(link, sent, reason, 1, random);
  return goOn({ ...link, size: cut(sent) }, heard(bisection), random);
}

function onPieceFailed(link: LinkOf<"bisecting">, event: EventOf<"failed">, random: Random): Step {
  const failures = link.bisection.failures + 1;
  const pause = pauseAfterFailure(failures, event.retryAfterMs, random);
  const size = mayHelpToCut(event, failures) ? cut(event.sent) : link.size;
  const bisection = { ...link.bisection, failures };
  return pauseBisection({ watermark: link.watermark, size }, bisection, pause.ms, pause.kind);
}

/** One change that the peer does not take, alone on the wire. */
function refuseOne(
  link: LinkOf<"bisecting">,
  sent: Sent,
  reason: string,
  attempts: number,
  random: Random,
): Step {
  const { bisection, watermark } = link;
  const next = past(heard(bisection), sent);
  if (bisection.decided) {
    const standing = { watermark: sent.through, size: link.size };
    const moved = setAside(watermark, sent.through, reason, attempts);
    return goOn(standing, next, random, moved);
  }
  const held = withHeld(bisection.held, { through: sent.through, reason, attempts });
  const heldCount = bisection.heldCount + 1;
  const probe = heldCount === HELD_CHANGES_MAX ? spread(countOf(next.pieces), random) : [];
  return goOn(link, { ...next, held, heldCount, probe }, random);
}

/** A change tried out of turn was not taken. When the whole sample was not, the peer is refusing. */
function missedProbe(link: LinkOf<"bisecting">, random: Random): Step {
  const probe = link.bisection.probe.slice(1);
  if (probe.length === 0) return refuse(link, link.bisection.rounds, random);
  return goOn(link, { ...heard(link.bisection), probe }, random);
}

/** The next piece of a bisection, or what comes after its last one. */
function goOn(
  standing: Standing,
  bisection: Bisection,
  random: Random,
  ...before: LinkEffect[]
): Step {
  const { watermark, size } = standing;
  const [skip] = bisection.probe;
  const changesMax = skip === undefined ? bisection.pieces.at(-1) : 1;
  if (changesMax === undefined) {
    if (bisection.held.length > 0) return refuse(standing, bisection.rounds, random);
    return send(standing, FRESH, ...before);
  }
  const window: BatchWindow = {
    after: bisection.position,
    through: bisection.end,
    skip: skip ?? 0,
    changesMax,
    bytesMax: size?.bytesMax,
  };
  return {
    link: { kind: "bisecting", watermark, size, bisection, pause: undefined },
    effects: [...before, { kind: "send", window }],
  };
}

function pauseBisection(
  standing: Standing,
  bisection: Bisection,
  pauseMs: number,
  pause: Pause,
): Step {
  const { watermark, size } = standing;
  return {
    link: { kind: "bisecting", watermark, size, bisection, pause },
    effects: [{ kind: "wake", delayMs: pauseMs }],
  };
}

/** Keeps everything and looks again much later, with bodies of full size: that was not the reason. */
function refuse(standing: Standing, roundsBefore: number, random: Random): Step {
  const rounds = roundsBefore + 1;
  return {
    link: { kind: "refusing", watermark: standing.watermark, size: undefined, rounds },
    effects: [{ kind: "wake", delayMs: slowPauseMs(rounds, random) }],
  };
}

function accepted(sent: Sent): Extract<LinkEffect, { kind: "acked" }> {
  return { kind: "acked", through: sent.through, batchId: sent.through, count: sent.count };
}

function setAside(after: number, through: number, reason: string, attempts: number): LinkEffect {
  return { kind: "set-aside", after, through, reason, attempts };
}

/** Reports the held refusals, one effect per stretch with the same reason. */
function flush(watermark: number, held: readonly Held[]): LinkEffect[] {
  let after = watermark;
  return held.map(({ through, reason, attempts }) => {
    const moved = setAside(after, through, reason, attempts);
    after = through;
    return moved;
  });
}

function withHeld(held: readonly Held[], next: Held): readonly Held[] {
  const last = held.at(-1);
  const same = last?.reason === next.reason && last.attempts === next.attempts;
  return [...(same ? held.slice(0, -1) : held), next];
}

/** The connection works, and the peer lets us in. */
function answered(series: Series): Answered {
  const trouble = series.trouble === "refusing" ? series.trouble : undefined;
  return { ...series, failures: 0, trouble };
}

/** The same for a piece, whose attempts are over with its answer. */
function heard(bisection: Bisection): Bisection {
  return { ...bisection, failures: 0, mismatches: 0 };
}

/** The peer takes something: what it refused before that, and refuses from here on, may be set aside. */
function openly(bisection: Bisection): Bisection {
  return { ...heard(bisection), decided: true, held: [], heldCount: 0, trouble: undefined };
}

function past(bisection: Bisection, sent: Sent): Bisection {
  return {
    ...bisection,
    position: sent.through,
    pieces: without(bisection.pieces, sent.count),
  };
}

/** The next piece less the changes that went: fewer than it holds where the body's size was the bound. */
function without(pieces: readonly number[], count: number): readonly number[] {
  const next = pieces.at(-1) ?? 0;
  const rest = pieces.slice(0, -1);
  return next > count ? [...rest, next - count] : rest;
}

/** Two pieces for one, the first of them last as in `pieces`. */
function halves(count: number): readonly number[] {
  const first = Math.ceil(count / 2);
  return [count - first, first];
}

function countOf(pieces: readonly number[]): number {
  return pieces.reduce((sum, count) => sum + count, 0);
}

/** Places spread evenly over `count` changes, ascending, each at random within its stretch. */
function spread(count: number, random: Random): readonly number[] {
  const size = Math.min(count, PROBE_CHANGES_MAX);
  return Array.from({ length: size }, (_, index) =>
    Math.floor(((index + random.next()) * count) / size),
  );
}

function cut(sent: Sent): LearnedSize {
  return { bytesMax: Math.max(1, Math.floor(sent.bytes / 2)), acks: 0 };
}

function grown(size: LearnedSize | undefined): LearnedSize | undefined {
  if (size === undefined) return undefined;
  if (size.acks + 1 < LEARNED_SIZE_ACKS) return { ...size, acks: size.acks + 1 };
  const bytesMax = size.bytesMax * 2;
  return bytesMax > BODY_BYTES_MAX ? undefined : { bytesMax, acks: 0 };
}

/** Some servers close the connection on a body they find too large, without a word. */
function mayHelpToCut(event: EventOf<"failed">, failures: number): boolean {
  const { cutOff, sent } = event;
  if (!cutOff || failures < CUT_OFF_FAILURES_MIN) return false;
  return sent.count > 1 && sent.bytes > CUT_OFF_BYTES_MIN;
}

function pauseAfterFailure(
  failures: number,
  retryAfterMs: number,
  random: Random,
): { ms: number; kind: Pause } {
  const ownMs = retryPauseMs(failures, random);
  const askedMs = bounded(retryAfterMs);
  return askedMs > ownMs ? { ms: askedMs, kind: "asked" } : { ms: ownMs, kind: "backoff" };
}

function bounded(retryAfterMs: number): number {
  return Math.min(retryAfterMs, RETRY_AFTER_MS_MAX);
}
