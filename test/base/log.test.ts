import { expect, test } from "bun:test";
import { countRepeats, createLogger, type LogFields, type LogLevel } from "../../lib/base/log.ts";

const TIME_MS = Date.UTC(2026, 0, 2, 3, 4, 5, 678);

function logged(format: "text" | "json", level: LogLevel, message: string, fields?: LogFields) {
  const lines: string[] = [];
  const log = createLogger({
    level: "debug",
    format,
    clock: { nowMs: () => TIME_MS },
    write: (line) => lines.push(line),
  });
  log.log(level, message, fields);
  expect(lines).toHaveLength(1);
  return lines[0]!;
}

test("a line for people has time, level, message and fields", () => {
  const line = logged("text", "warn", "peer is down", { peer: "http://b:9001", tries: 5 });
  expect(line).toBe("2026-01-02T03:04:05.678Z warn  peer is down peer=http://b:9001 tries=5");
});

test("a line for machines is one JSON object", () => {
  const line = logged("json", "info", "listening", {
    port: 9001,
    ids: ["a", "b"],
    none: undefined,
  });
  expect(JSON.parse(line)).toEqual({
    time: "2026-01-02T03:04:05.678Z",
    level: "info",
    message: "listening",
    port: 9001,
    ids: ["a", "b"],
  });
});

test("a field named as one of the line's own members does not replace it", () => {
  const line = JSON.parse(logged("json", "info", "mine", { message: "theirs", level: "error" }));
  expect([line.message, line.level]).toEqual(["mine", "info"]);
});

test.each([
  ["a space", "two words", 'said="two words"'],
  ["nothing", "", 'said=""'],
  ["an equals sign", "a=b", 'said="a=b"'],
  ["a forged second line", "x\n2026 error boom", 'said="x\\n2026 error boom"'],
  ["an escape sequence", "\u001b[31mred", 'said="\\u001b[31mred"'],
  ["a C1 control and a line separator", "a\u0085b\u2028c", 'said="a\\u0085b\\u2028c"'],
])("a text with %s stays one field of one line", (_, said, expected) => {
  expect(logged("text", "info", "m", { said })).toEndWith(` m ${expected}`);
});

test("a message cannot forge a line either", () => {
  expect(logged("text", "info", "one\ntwo")).toEndWith(" one\\u000atwo");
  expect(logged("json", "info", "one\ntwo").split("\n")).toHaveLength(1);
});

test.each(["text", "json"] as const)("%s: no secret is shown, wherever it stands", (format) => {
  const line = logged(format, "error", "GET http://user:hunter2@host/ failed", {
    token: "hunter2",
    error: new Error("proxy said no", { cause: new Error("Authorization: Bearer hunter2hunter2") }),
    headers: { Authorization: "Basic hunter2hunter2", accept: "http://u:hunter2@h/" },
  });
  expect(line).not.toContain("hunter2");
  expect(line).toContain("proxy said no");
  expect(line).toContain("host/");
});

test("an address with an @ in its path is left as it is", () => {
  const line = logged("text", "info", "m", { url: "http://host/users/a@b" });
  expect(line).toEndWith("url=http://host/users/a@b");
});

test("an error is shown with what caused it, each text once", () => {
  const cause = new Error("unable to open database file");
  const line = logged("text", "error", "start failed", {
    error: new Error("cannot open node1.db", { cause: new Error(cause.message, { cause }) }),
  });
  expect(line).toEndWith('error="cannot open node1.db: unable to open database file"');
});

test("a cycle of causes ends", () => {
  const error = new Error("a");
  error.cause = new Error("b", { cause: error });
  expect(logged("text", "error", "m", { error })).toEndWith('error="a: b"');
});

test("a long text is cut and its length told", () => {
  const line = logged("text", "info", "m", { body: "x".repeat(1_000_000) });
  expect(line.length).toBeLessThan(2_200);
  expect(line).toContain("(1000000 characters)");
});

test("integers beyond 2^53 and numbers that are none keep their value", () => {
  const line = JSON.parse(logged("json", "info", "m", { id: 2n ** 63n, ratio: Number.NaN }));
  expect([line.id, line.ratio]).toEqual(["9223372036854775808", "NaN"]);
});

test("lines below the level are not written", () => {
  const lines: string[] = [];
  const log = createLogger({
    level: "warn",
    format: "text",
    clock: { nowMs: () => TIME_MS },
    write: (line) => lines.push(line),
  });
  log.debug("no");
  log.info("no");
  log.warn("yes");
  log.error("yes");
  expect(lines).toHaveLength(2);
  expect([log.isOn("info"), log.isOn("warn")]).toEqual([false, true]);
});

function repeating(everyMs = 60_000) {
  const seen: [LogLevel, string, LogFields | undefined][] = [];
  const clock = { ms: 0, monotonicMs: () => clock.ms };
  const log = {
    log: (level: LogLevel, message: string, fields?: LogFields) => {
      seen.push([level, message, fields]);
    },
  };
  return { seen, clock, repeats: countRepeats({ log, clock, everyMs }) };
}

const counts = (seen: readonly [LogLevel, string, LogFields | undefined][]) =>
  seen.map(([, , fields]) => fields?.["count"]);

test("ten thousand rows refused for one reason are one line with their count", () => {
  const { seen, clock, repeats } = repeating();
  const fields = { peer: "b", table: "items", reason: "no such table" };
  for (let row = 0; row < 10_000; row++) repeats.add("warn", "parked", fields);
  repeats.flush();
  expect(seen).toEqual([["warn", "parked", { ...fields, count: 10_000 }]]);
  clock.ms = 60_000;
  repeats.flush();
  expect(seen).toHaveLength(1);
});

test("what goes on is told once a minute", () => {
  const { seen, clock, repeats } = repeating();
  for (let second = 0; second <= 120; second++) {
    clock.ms = second * 1_000;
    repeats.add("warn", "parked", { table: "a" });
    repeats.flush();
  }
  expect(counts(seen)).toEqual([1, 60, 60]);
});

test("the first after a quiet minute is told at the next flush", () => {
  const { seen, clock, repeats } = repeating();
  repeats.add("warn", "parked", { table: "a" });
  repeats.flush();
  clock.ms = 60_000;
  repeats.flush();
  clock.ms = 61_000;
  repeats.add("warn", "parked", { table: "a" }, 3);
  repeats.flush();
  expect(counts(seen)).toEqual([1, 3]);
});

test("other peers, tables, reasons and levels have lines of their own", () => {
  const { seen, repeats } = repeating();
  repeats.add("warn", "parked", { peer: "a", table: "t" });
  repeats.add("warn", "parked", { peer: "b", table: "t" });
  repeats.add("info", "parked", { peer: "b", table: "t" });
  repeats.flush();
  expect(seen).toHaveLength(3);
});

test("at the end every count is told, also within the minute", () => {
  const { seen, repeats } = repeating();
  repeats.add("warn", "parked", { table: "a" }, 4);
  repeats.flush();
  repeats.add("warn", "parked", { table: "a" }, 6);
  repeats.flush();
  expect(counts(seen)).toEqual([4]);
  repeats.flush(true);
  expect(counts(seen)).toEqual([4, 6]);
});

test("kinds without end do not grow without end, and no count is lost", () => {
  const { seen, repeats } = repeating();
  for (let kind = 0; kind < 3_000; kind++) repeats.add("warn", "parked", { reason: `r${kind}` }, 2);
  // What is beyond the bound was written when it was pushed out.
  expect(counts(seen)).toEqual(Array.from({ length: 2_000 }, () => 2));
  repeats.flush();
  expect(seen).toHaveLength(3_000);
});
