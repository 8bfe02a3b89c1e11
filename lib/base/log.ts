/**
 * Log lines: a level, a sentence, and fields. Readable text for a terminal, one JSON object per line
 * for machines. Where lines go and what time it is come in as arguments.
 *
 * What peers and clients send ends up in fields, so a line is always one line (nothing can forge a
 * second), never longer than a bound, and never shows a password or a token.
 */
import type { Clock } from "./clock.ts";

/** From the least to the gravest; a logger writes its own level and everything graver. */
export type LogLevel = "debug" | "info" | "warn" | "error";

/** Secrets are hidden by the names of their fields; long texts are cut when the line is made. */
export type LogFields = Readonly<Record<string, unknown>>;

/** What the parts of a node write to; none of them knows where the lines go. */
export interface Logger {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
  /** For a level that is known only at run time, such as that of a worker's line. */
  log(level: LogLevel, message: string, fields?: LogFields): void;
  /** Whether a line of this level would be written: for fields that cost something to make. */
  isOn(level: LogLevel): boolean;
}

/** What a logger needs of the world: a wall clock and a place for its lines. */
export interface LogOptions {
  readonly level: LogLevel;
  readonly format: "text" | "json";
  readonly clock: Pick<Clock, "nowMs">;
  /** Takes one line, without its newline. */
  readonly write: (line: string) => void;
}

const RANK: Readonly<Record<LogLevel, number>> = { debug: 0, info: 1, warn: 2, error: 3 };

/** A longer text is cut: a peer's HTML page in an error helps nobody. */
const TEXT_LENGTH_MAX = 2_000;

/** Holds nothing back: `write` has had the line when a call returns. */
export function createLogger(options: LogOptions): Logger {
  const { level: least, format, clock, write } = options;
  const isOn = (level: LogLevel) => RANK[level] >= RANK[least];
  function log(level: LogLevel, message: string, fields: LogFields = {}): void {
    if (!isOn(level)) return;
    const time = new Date(clock.nowMs()).toISOString();
    const line = format === "json" ? jsonLine : textLine;
    write(line(time, level, message, fields));
  }
  return {
    debug: (message, fields) => log("debug", message, fields),
    info: (message, fields) => log("info", message, fields),
    warn: (message, fields) => log("warn", message, fields),
    error: (message, fields) => log("error", message, fields),
    log,
    isOn,
  };
}

/** `{"time":…,"level":…,"message":…, fields}`; a field of one of those three names gives way. */
function jsonLine(time: string, level: LogLevel, message: string, fields: LogFields): string {
  const line: Record<string, unknown> = { time, level, message: shorten(hideSecrets(message)) };
  for (const [name, value] of Object.entries(fields)) {
    const shown = present(name, value);
    if (shown !== undefined && !Object.hasOwn(line, name)) line[name] = shown;
  }
  return JSON.stringify(line);
}

/** `2026-01-02T03:04:05.678Z warn  peer is down peer=http://b:9001 reason="connection refused"` */
function textLine(time: string, level: LogLevel, message: string, fields: LogFields): string {
  let line = `${time} ${level.padEnd(5)} ${shorten(hideSecrets(message))}`;
  for (const [name, value] of Object.entries(fields)) {
    const shown = present(name, value);
    if (shown === undefined) continue;
    const bare = typeof shown === "string" && !needsQuotes(shown);
    line += ` ${name}=${bare ? shown : JSON.stringify(shown)}`;
  }
  return escapeControls(line);
}

const SECRET_NAME = /token|secret|password|authorization|cookie/i;

/** A field's value as plain JSON; undefined where there is nothing to show. */
function present(name: string, value: unknown): unknown {
  if (value === undefined) return undefined;
  if (SECRET_NAME.test(name)) return "[hidden]";
  switch (typeof value) {
    case "string":
      return shorten(hideSecrets(value));
    case "number":
      return Number.isFinite(value) ? value : String(value);
    case "boolean":
      return value;
    case "object":
      if (value === null) return null;
      if (value instanceof Error) return shorten(hideSecrets(errorText(value)));
      return presentObject(value);
    default:
      return shorten(String(value));
  }
}

function presentObject(value: object): unknown {
  const text = JSON.stringify(value, (name, inner: unknown) => {
    if (SECRET_NAME.test(name)) return "[hidden]";
    return typeof inner === "bigint" ? inner.toString() : inner;
  });
  const safe = hideSecrets(text ?? "null");
  return safe.length > TEXT_LENGTH_MAX ? shorten(safe) : JSON.parse(safe);
}

/** What happened and what caused it: `cannot open node1.db: unable to open database file`. */
function errorText(error: Error): string {
  const parts = [error.message || error.name];
  let cause = error.cause;
  // A handful: a cycle of causes must not hang the log.
  for (let depth = 0; depth < 4 && cause instanceof Error; depth++) {
    if (cause.message !== "" && !parts.includes(cause.message)) parts.push(cause.message);
    cause = cause.cause;
  }
  return parts.join(": ");
}

/** User and password of an address, and whatever follows `Bearer`. */
function hideSecrets(text: string): string {
  return text
    .replace(/:\/\/[^/?#\s"]*@/g, "://[hidden]@")
    .replace(/\b(bearer|basic)\s+[\w.~+/=-]{8,}/gi, "$1 [hidden]");
}

function shorten(text: string): string {
  if (text.length <= TEXT_LENGTH_MAX) return text;
  return `${text.slice(0, TEXT_LENGTH_MAX)}… (${text.length} characters)`;
}

function needsQuotes(text: string): boolean {
  return text === "" || /[\s"=\p{Cc}\u2028\u2029]/u.test(text);
}

function escapeControls(text: string): string {
  return text.replace(
    /[\p{Cc}\u2028\u2029]/gu,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

// --- the same thing many times -----------------------------------------------------------------

/** Counts what happens often; its owner calls `flush` from time to time, and at the end. */
export interface Repeats {
  /** Something happened, `count` times. Nothing is written yet. */
  add(level: LogLevel, message: string, fields: LogFields, count?: number): void;
  /** Writes a line with the count for each kind that is due; for all of them at the end. */
  flush(all?: boolean): void;
}

/** Pauses are measured by the monotonic clock, in ms. */
export interface RepeatsOptions {
  readonly log: Pick<Logger, "log">;
  readonly clock: Pick<Clock, "monotonicMs">;
  /** At most one line of a kind in this time. */
  readonly everyMs?: number;
}

/** Often enough to see that it goes on, seldom enough to read past. */
const REPEATS_EVERY_MS = 60_000;
/** Kinds of lines remembered at once; beyond it the oldest is written, if it must be, and forgotten. */
const REPEATS_KINDS_MAX = 1_000;

/**
 * One line per level, message and fields, with a count: ten thousand refused rows are not ten
 * thousand lines. The first line of a kind comes with the next flush, so that it has the count of a
 * whole batch.
 */
export function countRepeats({ log, clock, everyMs = REPEATS_EVERY_MS }: RepeatsOptions): Repeats {
  interface Kind {
    readonly level: LogLevel;
    readonly message: string;
    readonly fields: LogFields;
    count: number;
    writtenMs: number | undefined;
  }
  // In the order of the first time, so that the oldest is the first.
  const kinds = new Map<string, Kind>();

  function write(kind: Kind): void {
    log.log(kind.level, kind.message, { ...kind.fields, count: kind.count });
    kind.count = 0;
    kind.writtenMs = clock.monotonicMs();
  }

  return {
    add(level, message, fields, count = 1) {
      const key = JSON.stringify([level, message, fields]);
      let kind = kinds.get(key);
      if (kind === undefined) {
        kind = { level, message, fields, count: 0, writtenMs: undefined };
        kinds.set(key, kind);
      }
      kind.count += count;
      if (kinds.size <= REPEATS_KINDS_MAX) return;
      const [oldestKey, oldest] = kinds.entries().next().value!;
      if (oldest.count > 0) write(oldest);
      kinds.delete(oldestKey);
    },
    flush(all = false) {
      const nowMs = clock.monotonicMs();
      for (const [key, kind] of [...kinds]) {
        const isDue = kind.writtenMs === undefined || nowMs - kind.writtenMs >= everyMs;
        if (!all && !isDue) continue;
        if (kind.count > 0) write(kind);
        else kinds.delete(key);
      }
    },
  };
}
