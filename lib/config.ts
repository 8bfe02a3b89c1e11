/**
 * What a person asked for, made into one frozen Config: flags over environment over file over
 * defaults. Everything is parsed here, once, and all mistakes are reported together, before a port
 * is opened or the database is touched; past this point nothing checks a setting again.
 *
 * Nothing here looks at the world: arguments, environment and a reader of files come in.
 */
import {
  type FlagSpec,
  type Mistake,
  nearest,
  quote,
  readFlags,
  unknownName,
} from "./base/flags.ts";
import type { LogLevel } from "./base/log.ts";
import {
  KIB,
  MIB,
  type Read,
  readCount,
  readOneOf,
  readSize,
  readSwitch,
} from "./base/read-value.ts";
import { tokenize } from "./base/sql-text.ts";
import {
  BATCH_BYTES_MAX,
  BATCH_CHANGES_MAX,
  BATCH_MS,
  BODY_BYTES_MAX,
  CDC_BYTES_MAX,
  CDC_KEEP_MS,
  HEALTH_MS,
  IDLE_TIMEOUT_MS,
  LOG_BYTES_MAX,
  PARKED_BYTES_MAX,
  PEERS_MAX,
  REQUEST_TIMEOUT_MS,
  TOMBSTONE_RETENTION_MS,
  VERIFY_MS,
} from "./protocol/limits.ts";
import { isOwnAddress } from "./protocol/own-address.ts";
import { parsePeerUrl, withoutCredentials } from "./protocol/peer-url.ts";

/** One running node, as asked for. */
export interface Config {
  /** Name of this node: the X-Node-Id it sends and the `node_id` of the rows it makes. Required. */
  readonly id: string;
  /** The SQLite file, relative to the working directory. Required. */
  readonly dbPath: string;
  readonly listen: Listen;
  /** Addresses to ship to, in their one spelling (protocol/peer-url.ts). Default: none. */
  readonly peers: readonly string[];
  /** Milliseconds that a change made by another program stays unnoticed at most. Default 50. */
  readonly batchMs: number;
  /** Changes in one batch at most. Default 10,000, which is also the most the protocol allows. */
  readonly batchChangesMax: number;
  /** Bytes of one batch's body at most, unless a single change is larger. Default 8 MiB. */
  readonly batchBytesMax: number;
  /** SQL run before anything else when the file is opened. Default: none. */
  readonly schema: { readonly path: string; readonly sql: string } | undefined;
  /** Tables to sync: those named, or `*` for all that qualify. Default: what the file says itself. */
  readonly tables: readonly string[] | "*" | undefined;
  /** Whether a commit waits for the disk. Default `full`. */
  readonly synchronous: "full" | "normal";
  /** Form of the log lines. Default `text`. */
  readonly logFormat: "text" | "json";
  /** The least important level that is still written. Default `info`. */
  readonly logLevel: LogLevel;
  /** This node's address as its peers see it, sent as X-Node-Url. Default: not sent. */
  readonly nodeUrl: string | undefined;
  /** Whether HTTP_PROXY and the like are used to reach peers. Default false. */
  readonly useProxy: boolean;
  /** Bytes of a request body at most; more is answered 413. Default 128 MiB. */
  readonly bodyBytesMax: number;
  /** Milliseconds a peer has to answer a request. Default 30,000. */
  readonly requestTimeoutMs: number;
  /** Milliseconds a deleted row is remembered after every peer knew of it. Default 30 days. */
  readonly tombstoneRetentionMs: number;
  /** Whether a file that was not open for longer than the retention may start. Default false. */
  readonly acceptOldFile: boolean;
  /** Bytes of parked changes kept at most; above it batches are answered 507. Default 1 GiB. */
  readonly parkedBytesMax: number;
  /** Bytes of the change log at most; beyond it the slowest peer is cut off. Default 4 GiB. */
  readonly logBytesMax: number;
  /** Lets others than this machine change the peers, with this token. Default: nobody else. */
  readonly adminToken: string | undefined;
  /** Milliseconds between two looks at how every peer is. Default 60,000. */
  readonly healthMs: number;
  /** Milliseconds between two comparisons with the neighbours; 0: none. Default 24 hours. */
  readonly verifyMs: number;
  /** A node of the mesh to join at start, with everyone it knows. Default: none. */
  readonly join: string | undefined;
  /** Whether followers may follow this node's file, for which a log of all tables is kept. Default false. */
  readonly cdc: boolean;
  /** Milliseconds and bytes of that log at most; a follower beyond it takes a new copy. */
  readonly cdcKeepMs: number;
  readonly cdcBytesMax: number;
}

/** Where to listen. */
export interface Listen {
  /** A name or an address without brackets; undefined for every address of this machine. */
  readonly hostname: string | undefined;
  /** 0 lets the system choose. */
  readonly port: number;
}

/** The world as far as a configuration depends on it. */
export interface ConfigInput {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Reads a text file; throws the system's error (with a `code`) where it cannot. */
  readonly readText: (path: string) => string;
  /** Names and addresses of this machine, by which a node may find itself among its peers. */
  readonly ownHosts?: readonly string[];
}

/** A whole configuration or every mistake in it, never a part of one. */
export type ConfigResult =
  /** `warnings` are what looks like a mistake and may be none. */
  | { readonly config: Config; readonly warnings: readonly string[] }
  | { readonly mistakes: readonly Mistake[] };

/** One setting: a flag, a variable and a key of the file by the same name. */
export interface Setting extends FlagSpec {
  /** What the file may hold: a string, a whole number (or a string), true or false, a list. */
  readonly kind: "text" | "number" | "switch" | "list";
  /** For the usage and for README, in a few words; the default is said where there is one. */
  readonly help: string;
}

const ENV_PREFIX = "HOOK_SYNC_";
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** Every setting there is, in the order of the usage. */
export const SETTINGS = [
  {
    name: "id",
    value: "NAME",
    kind: "text",
    help: "name of this node, unlike any other's (required)",
  },
  {
    name: "db",
    value: "FILE",
    kind: "text",
    help: "SQLite file; made if it is not there (required)",
  },
  {
    name: "listen",
    value: "ADDR",
    kind: "text",
    help: "where to listen: :9001 (the default), 127.0.0.1:9001, [::1]:9001, :0",
  },
  {
    name: "peer",
    value: "URL",
    kind: "list",
    repeats: true,
    help: "a node to sync with, such as http://host:9002; give it once for each",
  },
  {
    name: "tables",
    value: "A,B",
    kind: "list",
    repeats: true,
    help: "tables to sync, or '*' for all that qualify",
  },
  { name: "schema", value: "FILE", kind: "text", help: "SQL file run when the database is opened" },
  {
    name: "synchronous",
    value: "MODE",
    kind: "text",
    help: "full (the default: nothing answered is lost with the power) or normal",
  },
  {
    name: "url",
    value: "URL",
    kind: "text",
    help: "this node's address as its peers see it; relay hubs need it",
  },
  {
    name: "batch-ms",
    value: "MS",
    kind: "number",
    help: `how often other programs' writes are looked for (${BATCH_MS})`,
  },
  {
    name: "batch-size",
    value: "N",
    kind: "number",
    help: `changes in one batch at most (${BATCH_CHANGES_MAX})`,
  },
  {
    name: "batch-bytes",
    value: "SIZE",
    kind: "number",
    help: `bytes of one batch at most (${BATCH_BYTES_MAX / MIB}MiB)`,
  },
  {
    name: "body-limit",
    value: "SIZE",
    kind: "number",
    help: `bytes of a request taken at most (${BODY_BYTES_MAX / MIB}MiB)`,
  },
  {
    name: "request-timeout-ms",
    value: "MS",
    kind: "number",
    help: `how long a peer may take to answer (${REQUEST_TIMEOUT_MS})`,
  },
  {
    name: "tombstone-retention",
    value: "DAYS",
    kind: "number",
    help: `how long deletes are remembered after every peer knew (${TOMBSTONE_RETENTION_MS / DAY_MS})`,
  },
  {
    name: "accept-old-file",
    value: undefined,
    kind: "switch",
    help: "start with a file that was away for longer than that",
  },
  {
    name: "parked-limit",
    value: "SIZE",
    kind: "number",
    help: `bytes of changes kept that could not be applied (${PARKED_BYTES_MAX / 1024 / MIB}GiB)`,
  },
  {
    name: "log-max",
    value: "SIZE",
    kind: "number",
    help: `bytes of the change log; beyond it the slowest peer is cut off (${LOG_BYTES_MAX / 1024 / MIB}GiB)`,
  },
  {
    name: "join",
    value: "URL",
    kind: "text",
    help: "join the mesh of this node: everyone there adds us (needs --url)",
  },
  {
    name: "admin-token",
    value: "TEXT",
    kind: "text",
    help: "lets other machines change the peers and copy the file",
  },
  {
    name: "health-ms",
    value: "MS",
    kind: "number",
    help: `how often every peer is asked how it is (${HEALTH_MS})`,
  },
  {
    name: "verify-every",
    value: "HOURS",
    kind: "number",
    help: `how often neighbours are compared and repaired; 0: never (${VERIFY_MS / HOUR_MS})`,
  },
  {
    name: "cdc",
    value: undefined,
    kind: "switch",
    help: "keep a log of all tables that followers can follow (hook-sync follow)",
  },
  {
    name: "cdc-keep",
    value: "HOURS",
    kind: "number",
    help: `hours of that log kept for followers at most (${CDC_KEEP_MS / HOUR_MS})`,
  },
  {
    name: "cdc-max",
    value: "SIZE",
    kind: "number",
    help: `bytes of that log kept at most (${CDC_BYTES_MAX / 1024 / MIB}GiB)`,
  },
  {
    name: "use-proxy",
    value: undefined,
    kind: "switch",
    help: "reach peers through HTTP_PROXY and the like",
  },
  { name: "log", value: "FORM", kind: "text", help: "log lines as text (the default) or json" },
  {
    name: "log-level",
    value: "LEVEL",
    kind: "text",
    help: "debug, info (the default), warn or error",
  },
  {
    name: "config",
    value: "FILE",
    kind: "text",
    help: "TOML file with the settings above as its keys",
  },
] as const satisfies readonly Setting[];

type SettingName = (typeof SETTINGS)[number]["name"];

/** A poll more seldom than this would make other programs' writes look lost. */
const BATCH_MS_MAX = 60_000;
/** A batch must have room for the usual row, or every change is one too large. */
const BATCH_BYTES_MIN = 64 * KIB;
/** A body is held in memory as one string while it is applied. */
const BODY_BYTES_LIMIT = 1024 * MIB;
/** Less would cut off peers on a slow line in the middle of a batch. */
const REQUEST_TIMEOUT_MS_MIN = 100;
/** A delete forgotten in less than a day comes back with a peer that was off for the night. */
const TOMBSTONE_DAYS_MIN = 1;
const TOMBSTONE_DAYS_MAX = 36_500;

/** More often would be all that a node with many peers does. */
const HEALTH_MS_MIN = 100;
const VERIFY_HOURS_MAX = 24 * 365;

/** A token that can be guessed lets strangers take the mesh over. */
const TOKEN_LENGTH_MIN = 16;
/** Beyond ASCII programs differ in the bytes they put into a header, and some have none for it. */
const TOKEN_CHARACTERS = /^[!-~]+$/;

function readToken(text: string): Read<string> {
  const token = text.trim();
  if (token.length >= TOKEN_LENGTH_MIN && TOKEN_CHARACTERS.test(token)) return { value: token };
  return {
    right: `expected at least ${TOKEN_LENGTH_MIN} letters, digits and signs of ASCII, without blanks`,
  };
}

/** Throws nothing: a file that cannot be read is a mistake like a wrong flag. */
export function loadConfig(input: ConfigInput): ConfigResult {
  const mistakes: Mistake[] = [];
  const given = gather(input, mistakes);
  const isFileUnread = mistakes.some(({ where }) => where === given.get("config")?.texts[0]);

  /** The value of a setting, read; undefined where it is not given or wrong (and then noted). */
  function take<T>(name: SettingName, read: (text: string) => Read<T>): T | undefined {
    const found = given.get(name);
    if (found === undefined) return undefined;
    const result = read(found.texts[0]!);
    if ("value" in result) return result.value;
    const shown: Partial<Record<SettingName, (text: string) => string>> = {
      url: withoutCredentials,
      join: withoutCredentials,
      "admin-token": () => "…",
    };
    const value = (shown[name] ?? String)(found.texts[0]!);
    mistakes.push({ where: found.where, value, right: result.right });
    return undefined;
  }
  function required(name: SettingName, right: string): void {
    if (given.has(name)) return;
    // Given without its value: that has been said already. A file that is no TOML may have it.
    if (mistakes.some((mistake) => mistake.where.replace(/^-+/, "") === name)) return;
    if (isFileUnread) return;
    mistakes.push({ where: `--${name}`, value: undefined, right });
  }

  const id = take("id", readNodeId);
  required("id", "missing; expected a name for this node: --id node1");
  const dbPath = take("db", readDbPath);
  required("db", "missing; expected the SQLite file: --db node1.db");
  const listen = take("listen", readListen) ?? LISTEN_DEFAULT;
  const nodeUrl = take("url", readUrl);
  const join = take("join", readUrl);
  if (join !== undefined && nodeUrl === undefined) {
    const right = "missing with --join; expected this node's address as the others see it";
    mistakes.push({ where: "--url", value: undefined, right });
  }
  const own = { ...listen, hosts: input.ownHosts ?? [] };
  const isSelf = (url: string) => url === nodeUrl || isOwnAddress(url, own);
  const peers = takePeers(given.get("peer"), isSelf, mistakes);
  const tables = takeTables(given.get("tables"), mistakes);
  const schema = take("schema", (path) => {
    const file = readFile(path, input.readText);
    if ("right" in file) return file;
    const hasStatement = tokenize(file.value).some(({ value }) => value !== ";");
    if (!hasStatement) return { right: "expected SQL; there is no statement in this file" };
    return { value: Object.freeze({ path, sql: file.value }) };
  });

  const config = {
    listen,
    peers,
    batchMs: take("batch-ms", readCount("milliseconds", 1, BATCH_MS_MAX)) ?? BATCH_MS,
    batchChangesMax:
      take("batch-size", readCount("changes", 1, BATCH_CHANGES_MAX)) ?? BATCH_CHANGES_MAX,
    batchBytesMax:
      take("batch-bytes", readSize(BATCH_BYTES_MIN, BODY_BYTES_MAX)) ?? BATCH_BYTES_MAX,
    schema,
    tables,
    synchronous: take("synchronous", readOneOf("full", "normal")) ?? "full",
    logFormat: take("log", readOneOf("text", "json")) ?? "text",
    logLevel: take("log-level", readOneOf("debug", "info", "warn", "error")) ?? "info",
    nodeUrl,
    useProxy: take("use-proxy", readSwitch) ?? false,
    bodyBytesMax: take("body-limit", readSize(BATCH_BYTES_MIN, BODY_BYTES_LIMIT)) ?? BODY_BYTES_MAX,
    requestTimeoutMs:
      // Below the time after which a node closes a quiet socket (limits.ts).
      take(
        "request-timeout-ms",
        readCount("milliseconds", REQUEST_TIMEOUT_MS_MIN, IDLE_TIMEOUT_MS - 1),
      ) ?? REQUEST_TIMEOUT_MS,
    tombstoneRetentionMs:
      days(
        take("tombstone-retention", readCount("days", TOMBSTONE_DAYS_MIN, TOMBSTONE_DAYS_MAX)),
      ) ?? TOMBSTONE_RETENTION_MS,
    acceptOldFile: take("accept-old-file", readSwitch) ?? false,
    parkedBytesMax:
      take("parked-limit", readSize(MIB, Number.MAX_SAFE_INTEGER)) ?? PARKED_BYTES_MAX,
    logBytesMax: take("log-max", readSize(MIB, Number.MAX_SAFE_INTEGER)) ?? LOG_BYTES_MAX,
    adminToken: take("admin-token", readToken),
    healthMs: take("health-ms", readCount("milliseconds", HEALTH_MS_MIN, DAY_MS)) ?? HEALTH_MS,
    verifyMs: hours(take("verify-every", readCount("hours", 0, VERIFY_HOURS_MAX))) ?? VERIFY_MS,
    join,
    cdc: take("cdc", readSwitch) ?? false,
    cdcKeepMs: hours(take("cdc-keep", readCount("hours", 1, VERIFY_HOURS_MAX))) ?? CDC_KEEP_MS,
    cdcBytesMax: take("cdc-max", readSize(MIB, Number.MAX_SAFE_INTEGER)) ?? CDC_BYTES_MAX,
  } satisfies Omit<Config, "id" | "dbPath">;

  if (mistakes.length > 0 || id === undefined || dbPath === undefined) return { mistakes };
  return { config: Object.freeze({ id, dbPath, ...config }), warnings: envWarnings(input.env) };
}

// --- where values come from -------------------------------------------------------------------

interface Given {
  /** The place, for messages. */
  readonly where: string;
  /** Never empty, except for a list that was given empty. */
  readonly texts: readonly string[];
}

/** The value of each setting from the first source that has one. */
function gather(input: ConfigInput, mistakes: Mistake[]): Map<SettingName, Given> {
  const flags = readFlags(input.argv, SETTINGS);
  mistakes.push(...flags.mistakes);
  for (const word of flags.words) {
    const where = quote(withoutCredentials(word));
    mistakes.push({ where, value: undefined, right: "expected only flags here" });
  }

  const given = new Map<SettingName, Given>();
  for (const setting of SETTINGS) {
    const typed = flags.values.get(setting.name);
    if (typed !== undefined) given.set(setting.name, { where: `--${setting.name}`, texts: typed });
    else {
      // Set to nothing counts as not set: compose files write PEER=${PEERS:-}.
      const variable = envName(setting.name);
      const text = input.env[variable];
      if (text !== undefined && text !== "")
        given.set(setting.name, { where: variable, texts: [text] });
    }
    const found = given.get(setting.name);
    if (setting.kind === "list" && found !== undefined) {
      const texts = found.texts.flatMap((text) => text.split(",").map((part) => part.trim()));
      given.set(setting.name, { where: found.where, texts });
    }
  }

  const file = given.get("config");
  if (file !== undefined) {
    for (const [name, found] of readConfigFile(file, input.readText, mistakes)) {
      if (!given.has(name)) given.set(name, found);
    }
  }
  return given;
}

function envName(name: string): string {
  return ENV_PREFIX + name.toUpperCase().replaceAll("-", "_");
}

/**
 * Variables that look like a misspelt setting. Only a warning: an orchestrator makes variables with
 * our prefix of its own (`HOOK_SYNC_PORT`, `HOOK_SYNC_SERVICE_HOST` for a service of our name).
 */
function envWarnings(env: ConfigInput["env"]): string[] {
  const known = SETTINGS.map((setting) => setting.name);
  const warnings: string[] = [];
  for (const variable of Object.keys(env).sort()) {
    if (!variable.startsWith(ENV_PREFIX)) continue;
    const name = variable.slice(ENV_PREFIX.length).toLowerCase().replaceAll("_", "-");
    if (known.some((setting) => setting === name)) continue;
    const near = nearest(name, known);
    if (near !== undefined)
      warnings.push(`${variable} is not read; did you mean ${envName(near)}?`);
  }
  return warnings;
}

function readConfigFile(
  file: Given,
  readText: ConfigInput["readText"],
  mistakes: Mistake[],
): Map<SettingName, Given> {
  const path = file.texts[0]!;
  const found = new Map<SettingName, Given>();
  const text = readFile(path, readText);
  if ("right" in text) {
    mistakes.push({ where: file.where, value: path, right: text.right });
    return found;
  }
  let table: object;
  try {
    table = Bun.TOML.parse(text.value);
  } catch (error) {
    const line = lineOfTomlError(text.value);
    mistakes.push({
      where: path,
      value: undefined,
      right: `expected TOML, line ${line}: ${tomlError(error)}`,
    });
    return found;
  }
  const settings = new Map<string, Setting>(SETTINGS.map((setting) => [setting.name, setting]));
  settings.delete("config");
  for (const [key, value] of Object.entries(table)) {
    const where = `${path}: ${key}`;
    const setting = settings.get(key);
    if (setting === undefined) {
      const right = unknownName(key, "setting", key, settings);
      mistakes.push({ where, value: undefined, right });
      continue;
    }
    const texts = readTomlValue(setting.kind, value);
    if (texts === undefined) {
      mistakes.push({ where, value: showToml(value), right: TOML_EXPECTED[setting.kind] });
    } else found.set(setting.name as SettingName, { where, texts });
  }
  return found;
}

/** What the parser said; it does not say where. */
function tomlError(error: unknown): string {
  return error instanceof Error ? error.message.replace(/^TOML Parse error: /, "") : "";
}

/** The first line with which the text is wrong in the way that it is as a whole. */
function lineOfTomlError(text: string): number {
  const lines = text.split("\n");
  const errorIn = (count: number) => {
    try {
      Bun.TOML.parse(`${lines.slice(0, count).join("\n")}\n`);
      return undefined;
    } catch (error) {
      return tomlError(error);
    }
  };
  const whole = errorIn(lines.length);
  for (let count = 1; count < lines.length; count++) if (errorIn(count) === whole) return count;
  return lines.length;
}

const TOML_EXPECTED: Record<Setting["kind"], string> = {
  text: 'expected a "string"',
  number: 'expected a whole number or a "string"',
  switch: "expected true or false",
  list: 'expected ["a", "list"] of strings',
};

/** The texts of a TOML value; undefined where it is of another kind than the setting. */
function readTomlValue(kind: Setting["kind"], value: unknown): readonly string[] | undefined {
  switch (kind) {
    case "text":
      return typeof value === "string" ? [value] : undefined;
    case "number":
      if (typeof value === "string") return [value];
      return Number.isInteger(value) ? [String(value)] : undefined;
    case "switch":
      return typeof value === "boolean" ? [String(value)] : undefined;
    case "list":
      if (typeof value === "string") return [value];
      if (!Array.isArray(value)) return undefined;
      return value.every((part) => typeof part === "string") ? value : undefined;
  }
}

function showToml(value: unknown): string {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// --- how values are read ----------------------------------------------------------------------

/** Goes into a header, a column and log lines: visible, without separators of any of them. */
const NODE_ID_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}$/;

function readNodeId(text: string): Read<string> {
  if (NODE_ID_PATTERN.test(text)) return { value: text };
  return {
    right: "expected 1 to 64 letters, digits or . _ : @ -, the first a letter or digit: node1",
  };
}

function readDbPath(text: string): Read<string> {
  if (text === "" || text.includes("\0")) return { right: "expected the path of a file: node1.db" };
  // The shipper reads through a connection of its own, which would see another database.
  if (text === ":memory:")
    return { right: "expected a file; a database in memory cannot be shipped" };
  if (/^file:/i.test(text)) return { right: "expected a plain path, not a file: address" };
  return { value: text };
}

const LISTEN_DEFAULT: Listen = Object.freeze({ hostname: undefined, port: 9001 });
const LISTEN_RIGHT = "expected :PORT or HOST:PORT, such as :9001, 127.0.0.1:9001 or [::1]:9001";

function readListen(text: string): Read<Listen> {
  if (/^\d+$/.test(text)) return { right: `expected a colon before the port: :${text}` };
  const parts = /^(?:\[([0-9A-Fa-f:.]+)(%[\w.-]+)?\]|([A-Za-z0-9._-]*)):(\d{1,5})$/.exec(text);
  if (parts === null) return { right: LISTEN_RIGHT };
  const [, address6, zone = "", host = "", digits] = parts;
  const literal = address6 === undefined ? host : `[${address6}]`;
  if (literal !== "" && URL.parse(`http://${literal}`) === null) return { right: LISTEN_RIGHT };
  const port = Number(digits);
  if (port > 65_535) return { right: "expected a port from 0 to 65535" };
  const hostname = address6 === undefined ? host.toLowerCase() : address6 + zone;
  return { value: Object.freeze({ hostname: hostname === "" ? undefined : hostname, port }) };
}

function readUrl(text: string): Read<string> {
  const parsed = parsePeerUrl(text);
  return "url" in parsed ? { value: parsed.url } : { right: parsed.wrong };
}

function readFile(path: string, readText: ConfigInput["readText"]): Read<string> {
  try {
    return { value: readText(path) };
  } catch (error) {
    const code = error instanceof Error && "code" in error ? String(error.code) : "";
    const why: Record<string, string> = {
      ENOENT: "there is no such file",
      EISDIR: "that is a folder",
      EACCES: "it may not be read",
    };
    return { right: `expected a file that can be read; ${why[code] ?? String(error)}` };
  }
}

function hours(count: number | undefined): number | undefined {
  return count === undefined ? undefined : count * HOUR_MS;
}

function days(count: number | undefined): number | undefined {
  return count === undefined ? undefined : count * DAY_MS;
}

// --- peers and tables -------------------------------------------------------------------------

function takePeers(
  given: Given | undefined,
  isSelf: (url: string) => boolean,
  mistakes: Mistake[],
): readonly string[] {
  const peers = new Set<string>();
  for (const text of given?.texts ?? []) {
    const parsed = parsePeerUrl(text);
    const wrong =
      "wrong" in parsed
        ? parsed.wrong
        : isSelf(parsed.url)
          ? "that is this node itself; expected only the others"
          : undefined;
    if (wrong !== undefined) {
      mistakes.push({ where: given!.where, value: withoutCredentials(text), right: wrong });
    } else if ("url" in parsed) peers.add(parsed.url);
  }
  if (peers.size > PEERS_MAX) {
    mistakes.push({
      where: given!.where,
      value: `${peers.size} peers`,
      right: `expected at most ${PEERS_MAX}`,
    });
  }
  return Object.freeze([...peers]);
}

function takeTables(given: Given | undefined, mistakes: Mistake[]): Config["tables"] {
  if (given === undefined) return undefined;
  const tables = new Map<string, string>();
  for (const name of given.texts) {
    // SQLite takes the names of tables without regard to (ASCII) case.
    const key = name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
    if (!tables.has(key)) tables.set(key, name);
  }
  const right = "expected names of tables, such as --tables a,b, or '*' alone for all that qualify";
  const wrong = tables.has("") || tables.size === 0 || (tables.has("*") && tables.size > 1);
  if (wrong) mistakes.push({ where: given.where, value: given.texts.join(","), right });
  return tables.has("*") ? "*" : Object.freeze([...tables.values()]);
}
