import { describe, expect, test } from "bun:test";
import { ATTEMPTS_MAX } from "../../lib/base/backoff.ts";
import type { Random } from "../../lib/base/random.ts";
import {
  type EventKind,
  HELD_CHANGES_MAX,
  LEARNED_SIZE_ACKS,
  type LinkEffect,
  type LinkEvent,
  type LinkKind,
  openLink,
  type PeerLink,
  PROBE_CHANGES_MAX,
  RETRY_AFTER_MS_MAX,
  type Sent,
  SMALL_BODY_BYTES,
  step,
  troubleOf,
} from "../../lib/shipper/peer-link.ts";
import { seededRandom } from "./support.ts";

const NO_JITTER: Random = { next: () => 0, uuid: () => "", hex: () => "" };

/** Runs a script of events; the effects of each, in order. */
function play(link: PeerLink, events: readonly LinkEvent[], random = NO_JITTER) {
  const effects: LinkEffect[][] = [];
  let at = link;
  for (const event of events) {
    const next = step(at, event, random);
    at = next.link;
    effects.push([...next.effects]);
  }
  return { link: at, effects, all: effects.flat() };
}

const sent = (count: number, through: number, bytes = count * 10_000): Sent => ({
  count,
  through,
  bytes,
});
const BATCH = sent(100, 100);
const ONE = sent(1, 7);

const settled: LinkEvent = { kind: "settled" };
const nothing: LinkEvent = { kind: "nothing" };
const timer: LinkEvent = { kind: "timer-fired" };
const acked = (batch: Sent): LinkEvent => ({ kind: "acked", sent: batch });
const refused = (batch: Sent, reason = "400"): LinkEvent => ({
  kind: "refused",
  sent: batch,
  reason,
});
const mismatched = (batch: Sent): LinkEvent => ({ kind: "mismatched", sent: batch, reason: "ack" });
const tooLarge = (batch: Sent): LinkEvent => ({ kind: "too-large", sent: batch, reason: "413" });
const failed = (
  batch: Sent,
  over: { retryAfterMs?: number; cutOff?: boolean } = {},
): LinkEvent => ({
  kind: "failed",
  sent: batch,
  retryAfterMs: over.retryAfterMs ?? 0,
  cutOff: over.cutOff ?? false,
});
const notAdmitted = (retryAfterMs = 0): LinkEvent => ({ kind: "not-admitted", retryAfterMs });

const repeat = (times: number, ...events: LinkEvent[]): LinkEvent[] =>
  Array.from({ length: times }, () => events).flat();

const pauses = (effects: readonly LinkEffect[]) =>
  effects.flatMap((effect) => (effect.kind === "wake" ? [effect.delayMs] : []));
const windows = (effects: readonly LinkEffect[]) =>
  effects.flatMap((effect) => (effect.kind === "send" ? [effect.window] : []));
const moves = (effects: readonly LinkEffect[]) =>
  effects.filter((effect) => effect.kind === "acked" || effect.kind === "set-aside");

const SENDING = play(openLink(0), [settled]).link;
const REFUSED_FIVE_TIMES = [...repeat(4, refused(BATCH), timer), refused(BATCH)];
const BISECTING = play(SENDING, REFUSED_FIVE_TIMES).link;

describe("every state against every event", () => {
  const LINKS: Record<LinkKind, PeerLink> = {
    idle: openLink(0),
    sending: SENDING,
    waiting: play(SENDING, [failed(BATCH)]).link,
    bisecting: BISECTING,
    refusing: { kind: "refusing", watermark: 0, size: undefined, rounds: 1 },
    "not-admitted": play(SENDING, [notAdmitted()]).link,
  };
  const EVENTS: Record<EventKind, LinkEvent> = {
    settled,
    nothing,
    acked: acked(ONE),
    mismatched: mismatched(ONE),
    refused: refused(ONE),
    "too-large": tooLarge(ONE),
    "not-admitted": notAdmitted(),
    failed: failed(ONE),
    "timer-fired": timer,
    hurry: { kind: "hurry" },
  };
  /** The state that follows with what is done, "same" for nothing at all, "broken" for L2. */
  type Cell = "same" | "broken" | `${LinkKind}${"" | `: ${string}`}`;
  const WITHOUT_BATCH = {
    nothing: "broken",
    acked: "broken",
    mismatched: "broken",
    refused: "broken",
    "too-large": "broken",
    "not-admitted": "broken",
    failed: "broken",
  } as const;
  const TABLE: Record<LinkKind, Record<EventKind, Cell>> = {
    idle: {
      ...WITHOUT_BATCH,
      settled: "sending: send",
      "timer-fired": "same",
      hurry: "same",
    },
    sending: {
      settled: "same",
      nothing: "idle",
      acked: "sending: acked send",
      mismatched: "waiting: wake",
      refused: "waiting: wake",
      "too-large": "sending: set-aside send",
      "not-admitted": "not-admitted: wake",
      failed: "waiting: wake",
      "timer-fired": "same",
      hurry: "same",
    },
    waiting: {
      ...WITHOUT_BATCH,
      settled: "same",
      "timer-fired": "sending: send",
      hurry: "sending: send",
    },
    bisecting: {
      settled: "same",
      nothing: "sending: send",
      acked: "bisecting: acked send",
      mismatched: "bisecting: wake",
      refused: "bisecting: send",
      "too-large": "bisecting: send",
      "not-admitted": "not-admitted: wake",
      failed: "bisecting: wake",
      "timer-fired": "same",
      hurry: "same",
    },
    refusing: {
      ...WITHOUT_BATCH,
      settled: "same",
      "timer-fired": "sending: send",
      hurry: "same",
    },
    "not-admitted": {
      ...WITHOUT_BATCH,
      settled: "same",
      "timer-fired": "sending: send",
      hurry: "same",
    },
  };

  function outcome(link: PeerLink, event: LinkEvent): string {
    try {
      const next = step(link, event, NO_JITTER);
      if (next.link === link && next.effects.length === 0) return "same";
      const effects = next.effects.map(({ kind }) => kind).join(" ");
      return effects === "" ? next.link.kind : `${next.link.kind}: ${effects}`;
    } catch (error) {
      expect(String(error)).toContain("L2");
      return "broken";
    }
  }

  for (const [state, cells] of Object.entries(TABLE)) {
    for (const [event, cell] of Object.entries(cells)) {
      test(`${state} + ${event} → ${cell}`, () => {
        expect(outcome(LINKS[state as LinkKind], EVENTS[event as EventKind])).toBe(cell);
      });
    }
  }

  test("a paused bisection goes on with the timer, and when hurried", () => {
    const paused = play(BISECTING, [failed(BATCH)]).link;
    expect(outcome(paused, timer)).toBe("bisecting: send");
    expect(outcome(paused, { kind: "hurry" })).toBe("bisecting: send");
  });
});

describe("the failure table", () => {
  test("connection: five attempts with the contract's pauses, then growing ones, and nothing lost", () => {
    const { all, link } = play(SENDING, repeat(12, failed(BATCH), timer));
    expect(pauses(all).slice(0, 5)).toEqual([50, 100, 200, 400, 800]);
    expect(pauses(all).slice(5)).toEqual([1_600, 3_200, 4_000, 4_000, 4_000, 4_000, 4_000]);
    expect(windows(all).every(({ after, through }) => after === 0 && through === undefined)).toBe(
      true,
    );
    expect(moves(all)).toEqual([]);
    expect(link.watermark).toBe(0);
  });

  test("connection: never a dead letter, not after ten thousand attempts", () => {
    expect(moves(play(SENDING, repeat(10_000, failed(ONE), timer)).all)).toEqual([]);
  });

  test("a bounded batch that is gone from the log is not the end of what waits", () => {
    const { all, link } = play(SENDING, [refused(BATCH), timer, nothing]);
    expect(link.kind).toBe("sending");
    expect(windows(all).map(({ through }) => through)).toEqual([100, undefined]);
  });

  test("connection: the pauses start over after a success", () => {
    const script = [...repeat(3, failed(BATCH), timer), acked(BATCH), failed(sent(1, 101))];
    expect(pauses(play(SENDING, script).all)).toEqual([50, 100, 200, 50]);
  });

  test("connection: the changes that came meanwhile go with the next attempt", () => {
    const { all } = play(SENDING, [failed(ONE), settled, timer]);
    expect(windows(all).at(-1)?.through).toBeUndefined();
  });

  test("Retry-After is a floor for the pause, and has a ceiling", () => {
    const script = [
      failed(ONE, { retryAfterMs: 7_000 }),
      timer,
      failed(ONE, { retryAfterMs: 20 }),
      timer,
      failed(ONE, { retryAfterMs: 86_400_000 }),
    ];
    expect(pauses(play(SENDING, script).all)).toEqual([7_000, 100, RETRY_AFTER_MS_MAX]);
  });

  test("a pause that the peer asked for is sat out even in a hurry", () => {
    const asked = play(SENDING, [failed(ONE, { retryAfterMs: 7_000 })]).link;
    expect(step(asked, { kind: "hurry" }, NO_JITTER).effects).toEqual([]);
  });

  test("not admitted: kept, with slow retries", () => {
    const { all, link } = play(SENDING, [...repeat(6, notAdmitted(), timer), notAdmitted(90_000)]);
    expect(pauses(all)).toEqual([5_000, 10_000, 20_000, 40_000, 60_000, 60_000, 90_000]);
    expect(moves(all)).toEqual([]);
    expect(troubleOf(link)).toBe("not-admitted");
  });

  test("not admitted: over with the first acknowledgement", () => {
    const { link } = play(SENDING, [notAdmitted(), timer, acked(BATCH)]);
    expect(troubleOf(link)).toBeUndefined();
  });

  test("too large: the batch is cut until it fits, at once, and goes on from there", () => {
    const { all, link } = play(SENDING, [
      tooLarge(sent(100, 100, 1_000_000)),
      tooLarge(sent(50, 50, 490_000)),
      acked(sent(25, 25, 240_000)),
    ]);
    expect(windows(all).map(({ after, bytesMax }) => [after, bytesMax])).toEqual([
      [0, 500_000],
      [0, 245_000],
      [25, 245_000],
    ]);
    expect(pauses(all)).toEqual([]);
    expect(link.watermark).toBe(25);
  });

  test("too large: the size that fits is remembered for a while, then grows back", () => {
    let { link } = play(SENDING, [tooLarge(sent(100, 100, 1_000_000))]);
    let through = 0;
    const bytesMax = () => {
      link = play(link, [acked(sent(1, ++through))]).link;
      return link.size?.bytesMax;
    };
    for (let acks = 1; acks < LEARNED_SIZE_ACKS; acks++) expect(bytesMax()).toBe(500_000);
    expect(bytesMax()).toBe(1_000_000);
    for (let acks = 1; acks < LEARNED_SIZE_ACKS; acks++) expect(bytesMax()).toBe(1_000_000);
    expect(bytesMax()).toBe(2_000_000);
    for (let acks = 0; acks < LEARNED_SIZE_ACKS * 8; acks++) bytesMax();
    expect(link.size).toBeUndefined();
  });

  test("too large: a single change that still is goes to the dead letters with the reason", () => {
    const { all, link } = play(SENDING, [
      tooLarge(sent(2, 9, 9_000_000)),
      tooLarge(sent(1, 5, 8_900_000)),
      acked(sent(1, 9)),
    ]);
    expect(moves(all)).toEqual([
      { kind: "set-aside", after: 0, through: 5, reason: "413", attempts: 1 },
      { kind: "acked", through: 9, batchId: 9, count: 1 },
    ]);
    expect(link.watermark).toBe(9);
  });

  test("too large: a peer that says so of ten tiny changes is not believed", () => {
    const tiny = (through: number) => tooLarge(sent(1, through, SMALL_BODY_BYTES - 1));
    const script = Array.from({ length: 12 }, (_, index) => tiny(index + 1));
    const { all, link } = play(SENDING, [tooLarge(sent(12, 12, 9_000)), ...script]);
    expect(link).toMatchObject({ kind: "refusing", watermark: 0 });
    expect(moves(all)).toEqual([]);
  });

  test("too large: tiny changes refused so are set aside once another one is taken", () => {
    const tiny = (through: number) => tooLarge(sent(1, through, 100));
    const { all } = play(SENDING, [
      tooLarge(sent(12, 12, 9_000)),
      tiny(1),
      tiny(2),
      acked(sent(10, 12, 1_000)),
    ]);
    expect(moves(all)).toEqual([
      { kind: "set-aside", after: 0, through: 2, reason: "413", attempts: 1 },
      { kind: "acked", through: 12, batchId: 12, count: 10 },
    ]);
  });

  test("a body that breaks off three times is cut, one that never arrives is not", () => {
    const big = sent(100, 100, 1_000_000);
    const broken = play(SENDING, repeat(3, failed(big, { cutOff: true }), timer));
    expect(windows(broken.all).map(({ bytesMax }) => bytesMax)).toEqual([
      undefined,
      undefined,
      500_000,
    ]);
    const unreached = play(SENDING, repeat(9, failed(big), timer));
    expect(unreached.link.size).toBeUndefined();
    const small = play(SENDING, repeat(9, failed(sent(100, 100, 9_000), { cutOff: true }), timer));
    expect(small.link.size).toBeUndefined();
  });

  test("refused: five attempts at the same batch, then bisecting without pauses", () => {
    const { all } = play(SENDING, REFUSED_FIVE_TIMES);
    expect(pauses(all)).toEqual([50, 100, 200, 400]);
    expect(windows(all).map(({ through, changesMax }) => [through, changesMax])).toEqual([
      [100, undefined],
      [100, undefined],
      [100, undefined],
      [100, undefined],
      [100, 50],
    ]);
  });

  test("refused: a single change goes to the dead letters after five attempts", () => {
    const { all, link } = play(SENDING, [...repeat(4, refused(ONE), timer), refused(ONE, "bad")]);
    expect(moves(all)).toEqual([
      { kind: "set-aside", after: 0, through: 7, reason: "bad", attempts: ATTEMPTS_MAX },
    ]);
    expect(link).toMatchObject({ kind: "sending", watermark: 7 });
  });

  test("a wrong acknowledgement: exactly five attempts, then the batch is set aside and it goes on", () => {
    const { all, link } = play(SENDING, [
      ...repeat(4, mismatched(BATCH), settled, timer),
      mismatched(BATCH),
    ]);
    expect(pauses(all)).toEqual([50, 100, 200, 400]);
    expect(moves(all)).toEqual([
      { kind: "set-aside", after: 0, through: 100, reason: "ack", attempts: 5 },
    ]);
    expect(windows(all).map(({ after, through }) => [after, through])).toEqual([
      ...repeat(4).map(() => [0, 100]),
      [0, 100],
      [0, 100],
      [0, 100],
      [0, 100],
      [100, undefined],
    ]);
    expect(link).toMatchObject({ kind: "sending", watermark: 100 });
  });

  test("a wrong acknowledgement: connection errors in between neither count nor change the batch", () => {
    const script = [
      ...repeat(4, mismatched(BATCH), timer),
      ...repeat(9, failed(BATCH), timer),
      mismatched(BATCH),
    ];
    const { all } = play(SENDING, script);
    expect(moves(all)).toHaveLength(1);
    expect(
      windows(all)
        .slice(0, -1)
        .every(({ through }) => through === 100),
    ).toBe(true);
  });
});

describe("with a whole peer", () => {
  /** A log and a peer that refuses what it is told to; runs the link until it rests or pauses long. */
  class World {
    readonly accepted: number[] = [];
    readonly setAside: { id: number; reason: string; attempts: number }[] = [];
    requests = 0;
    #persisted = 0;
    link = openLink(0);
    /** What the peer says to these changes; undefined takes them. */
    answer: (ids: readonly number[], through: number, bytes: number) => LinkEvent | undefined =
      () => undefined;
    readonly random: Random;
    readonly log: number[];
    readonly changesMax: number;

    constructor(log: number[], random: Random = NO_JITTER, changesMax = 10_000) {
      this.log = log;
      this.random = random;
      this.changesMax = changesMax;
    }

    run(steps = 100_000): void {
      let event: LinkEvent = this.link.kind === "idle" ? settled : timer;
      for (let n = 0; n < steps; n++) {
        const before = this.link;
        const next = step(before, event, this.random);
        this.link = next.link;
        expect(this.link.watermark).toBeGreaterThanOrEqual(before.watermark);
        let follow: LinkEvent | undefined;
        for (const effect of next.effects) follow = this.#carryOut(effect) ?? follow;
        if (this.link.kind === "idle" || this.link.kind === "refusing") return;
        event = follow ?? timer;
      }
      throw new Error(`no rest within ${steps} steps`);
    }

    #carryOut(effect: LinkEffect): LinkEvent | undefined {
      switch (effect.kind) {
        case "wake":
          return timer;
        case "acked":
          this.#moved(effect.through);
          return undefined;
        case "set-aside":
          for (const id of this.#between(effect.after, effect.through)) {
            this.setAside.push({ id, reason: effect.reason, attempts: effect.attempts });
          }
          this.#moved(effect.through);
          return undefined;
        case "send":
          return this.#send(effect.window);
      }
    }

    /** What is reported is persisted: by then every change up to there must be accounted for (L3). */
    #moved(through: number): void {
      expect(through).toBeGreaterThanOrEqual(this.#persisted);
      const known = new Set([...this.accepted, ...this.setAside.map(({ id }) => id)]);
      expect(this.#between(this.#persisted, through).filter((id) => !known.has(id))).toEqual([]);
      this.#persisted = through;
    }

    #send(window: Extract<LinkEffect, { kind: "send" }>["window"]): LinkEvent {
      const { after, through, skip, changesMax, bytesMax } = window;
      let ids = this.#between(after, through ?? Number.POSITIVE_INFINITY).slice(skip);
      ids = ids.slice(0, Math.min(changesMax ?? this.changesMax, this.changesMax));
      if (bytesMax !== undefined) ids = ids.slice(0, Math.max(1, Math.floor(bytesMax / 1_000)));
      const last = ids.at(-1);
      if (last === undefined) return nothing;
      this.requests += 1;
      const batch = sent(ids.length, last, ids.length * 1_000);
      const event = this.answer(ids, last, batch.bytes);
      if (event !== undefined) return "sent" in event ? { ...event, sent: batch } : event;
      this.accepted.push(...ids);
      return acked(batch);
    }

    #between(after: number, through: number): number[] {
      return this.log.filter((id) => id > after && id <= through);
    }
  }

  const ids = (count: number) => Array.from({ length: count }, (_, index) => index + 1);
  const has = (batch: readonly number[], bad: ReadonlySet<number>) =>
    batch.some((id) => bad.has(id));

  test("one refused change of a hundred: it alone is set aside, everything else arrives in order", () => {
    const world = new World(ids(100));
    world.answer = (batch) => (batch.includes(50) ? refused(ONE, "400: row 50") : undefined);
    world.run();
    expect(world.setAside).toEqual([{ id: 50, reason: "400: row 50", attempts: 5 }]);
    expect(world.accepted).toEqual(ids(100).filter((id) => id !== 50));
    expect(world.requests).toBeLessThan(5 + 2 * Math.ceil(Math.log2(100)) + 2);
  });

  test("fewer than ten changes, all refused: all are set aside", () => {
    const world = new World(ids(9));
    world.answer = () => refused(ONE);
    world.run();
    expect(world.setAside.map(({ id }) => id)).toEqual(ids(9));
    expect(world.link.watermark).toBe(9);
  });

  test("ten changes, all refused: the peer is refusing, and nothing is set aside (L6)", () => {
    const world = new World(ids(10));
    world.answer = () => refused(ONE);
    world.run();
    expect(world.link).toMatchObject({ kind: "refusing", watermark: 0 });
    expect(troubleOf(world.link)).toBe("refusing");
    expect(world.setAside).toEqual([]);
  });

  test("the last of ten is taken: the nine before it are set aside", () => {
    const world = new World(ids(10));
    world.answer = (batch) => (batch.some((id) => id < 10) ? refused(ONE) : undefined);
    world.run();
    expect(world.setAside.map(({ id }) => id)).toEqual(ids(9));
    expect(world.accepted).toEqual([10]);
  });

  test("ten thousand refused changes are sampled, not sent one by one for ever", () => {
    const world = new World(ids(10_000));
    world.answer = () => refused(ONE);
    world.run();
    expect(world.link.kind).toBe("refusing");
    expect(world.setAside).toEqual([]);
    expect(world.requests).toBeLessThan(2 * HELD_CHANGES_MAX + PROBE_CHANGES_MAX + 40);
    const before = world.requests;
    world.run();
    expect(world.requests - before).toBe(1 + PROBE_CHANGES_MAX);
    expect(world.link).toMatchObject({ kind: "refusing", rounds: 2 });
  });

  test("a long run of bad changes before good ones does not make a peer refusing", () => {
    const world = new World(ids(2_000), seededRandom(1));
    world.answer = (batch) => (batch.some((id) => id <= 700) ? refused(ONE) : undefined);
    world.run();
    expect(world.setAside.map(({ id }) => id)).toEqual(ids(700));
    expect(new Set(world.accepted)).toEqual(new Set(ids(2_000).slice(700)));
    expect(world.link.kind).toBe("idle");
  });

  test("a refusing peer that was put right gets everything, nothing having been set aside", () => {
    const world = new World(ids(40));
    world.answer = () => refused(ONE);
    world.run();
    world.answer = () => undefined;
    world.run();
    expect(world.link).toMatchObject({ kind: "idle", watermark: 40 });
    expect(world.accepted).toEqual(ids(40));
    expect(world.setAside).toEqual([]);
  });

  test("a peer that has a limit and refuses all else is refusing, not a reason to lose the log", () => {
    const world = new World(ids(5_000));
    world.answer = () => tooLarge(ONE);
    world.run();
    // The size was not the reason: the next round is not bound to single changes.
    expect(world.link).toMatchObject({ kind: "refusing", size: undefined });
    world.run();
    world.run();
    expect(world.setAside).toEqual([]);
  });

  test("connection errors in the middle of a bisection do not lose its place (L4)", () => {
    const calm = new World(ids(100));
    const bad = new Set([3, 50, 77]);
    calm.answer = (batch) => (has(batch, bad) ? refused(ONE) : undefined);
    calm.run();
    const stormy = new World(ids(100));
    let calls = 0;
    stormy.answer = (batch) => {
      calls += 1;
      if (calls % 3 !== 0) return failed(ONE);
      return has(batch, bad) ? refused(ONE) : undefined;
    };
    stormy.run();
    expect(stormy.accepted).toEqual(calm.accepted);
    expect(stormy.setAside).toEqual(calm.setAside);
    expect(stormy.requests).toBe(calm.requests * 3);
  });

  test("a wrong acknowledgement in the middle of a bisection sets that piece aside after five", () => {
    const world = new World(ids(20));
    world.answer = (batch) => {
      if (batch.includes(4)) return refused(ONE);
      return batch.includes(15) ? mismatched(ONE) : undefined;
    };
    world.run();
    expect(world.setAside.find(({ id }) => id === 4)).toMatchObject({ attempts: 5 });
    expect(world.setAside.map(({ id }) => id)).toContain(15);
    expect(world.link.watermark).toBe(20);
  });

  test("any mix of failures: each change arrives or is set aside for a reason, once, in order", () => {
    let refusing = 0;
    for (let seed = 1; seed <= 300; seed++) {
      const random = seededRandom(seed);
      const chance = (share: number) => random.next() < share;
      const log: number[] = [];
      for (let id = 1; log.length < 5 + random.next() * 200; id += chance(0.2) ? 7 : 1)
        log.push(id);
      const bad = new Set(log.filter(() => chance(0.05)));
      const huge = new Set(log.filter(() => chance(0.02)));
      const limit = chance(0.5) ? 5_000 + random.next() * 50_000 : Number.POSITIVE_INFINITY;
      const flaky = random.next() * 0.5;
      const world = new World(log, random, 64);
      world.answer = (batch, _through, bytes) => {
        if (chance(flaky)) {
          const cutOff = chance(0.5);
          return failed(ONE, { cutOff, retryAfterMs: chance(0.1) ? 9_000 : 0 });
        }
        if (chance(0.02)) return notAdmitted();
        if (bytes > limit || has(batch, huge)) return tooLarge(ONE);
        return has(batch, bad) ? refused(ONE) : undefined;
      };
      world.run();
      const aside = world.setAside.map(({ id }) => id);
      const expected = log.filter((id) => bad.has(id) || huge.has(id));
      // A batch of which nothing can be taken makes the peer refusing, and rightly keeps the rest.
      if (world.link.kind === "refusing") {
        refusing += 1;
        continue;
      }
      expect({ seed, aside }).toEqual({ seed, aside: expected });
      const arrived = [...new Set(world.accepted)].sort((a, b) => a - b);
      expect({ seed, arrived }).toEqual({
        seed,
        arrived: log.filter((id) => !expected.includes(id)),
      });
      expect(world.link.watermark).toBe(log.at(-1)!);
    }
    expect(refusing).toBeLessThan(30);
  });
});
