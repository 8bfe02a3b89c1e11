import { expect, test } from "bun:test";
import type { Mistake } from "../lib/base/flags.ts";
import { type Config, type ConfigInput, loadConfig, SETTINGS } from "../lib/config.ts";

const BASE = ["--id", "a", "--db", "a.db"];

interface World {
  env?: Record<string, string>;
  files?: Record<string, string>;
  ownHosts?: string[];
}

function load(argv: readonly string[], { env = {}, files = {}, ownHosts = [] }: World = {}) {
  const input: ConfigInput = {
    argv,
    env,
    ownHosts,
    readText: (path) => {
      const text = files[path];
      if (text === undefined) throw Object.assign(new Error("no"), { code: "ENOENT" });
      return text;
    },
  };
  return loadConfig(input);
}

function config(argv: readonly string[], world?: World): Config {
  const result = load(argv, world);
  if ("mistakes" in result) throw new Error(JSON.stringify(result.mistakes));
  return result.config;
}

function mistakes(argv: readonly string[], world?: World): readonly Mistake[] {
  const result = load(argv, world);
  return "mistakes" in result ? result.mistakes : [];
}

/** The one mistake in these flags, as `where value: right`. */
function mistake(argv: readonly string[], world?: World): string {
  const found = mistakes([...BASE, ...argv], world);
  expect(found).toHaveLength(1);
  const { where, value, right } = found[0]!;
  return `${where} ${value}: ${right}`;
}

test("name and file are enough; everything else has its default", () => {
  expect(config(BASE)).toEqual({
    id: "a",
    dbPath: "a.db",
    listen: { hostname: undefined, port: 9001 },
    peers: [],
    batchMs: 50,
    batchChangesMax: 10_000,
    batchBytesMax: 8 * 1024 * 1024,
    schema: undefined,
    tables: undefined,
    synchronous: "full",
    logFormat: "text",
    logLevel: "info",
    nodeUrl: undefined,
    useProxy: false,
    bodyBytesMax: 128 * 1024 * 1024,
    requestTimeoutMs: 30_000,
    tombstoneRetentionMs: 30 * 24 * 3_600_000,
    acceptOldFile: false,
    parkedBytesMax: 1024 * 1024 * 1024,
    logBytesMax: 4 * 1024 * 1024 * 1024,
    adminToken: undefined,
    healthMs: 60_000,
    verifyMs: 24 * 3_600_000,
    join: undefined,
    cdc: false,
    cdcKeepMs: 24 * 3_600_000,
    cdcBytesMax: 1024 * 1024 * 1024,
  });
});

const EVERY_FLAG: readonly [setting: string, text: string, expected: Partial<Config>][] = [
  ["id", "node1", { id: "node1" }],
  ["db", "/data/x.db", { dbPath: "/data/x.db" }],
  ["listen", "127.0.0.1:1", { listen: { hostname: "127.0.0.1", port: 1 } }],
  ["peer", "http://b:9001/", { peers: ["http://b:9001"] }],
  ["tables", "notes", { tables: ["notes"] }],
  ["schema", "s.sql", { schema: { path: "s.sql", sql: "CREATE TABLE t(id)" } }],
  ["synchronous", "normal", { synchronous: "normal" }],
  ["url", "http://me:9001/", { nodeUrl: "http://me:9001" }],
  ["batch-ms", "7", { batchMs: 7 }],
  ["batch-size", "8", { batchChangesMax: 8 }],
  ["batch-bytes", "1MiB", { batchBytesMax: 1_048_576 }],
  ["body-limit", "65536", { bodyBytesMax: 65_536 }],
  ["request-timeout-ms", "100", { requestTimeoutMs: 100 }],
  ["tombstone-retention", "2", { tombstoneRetentionMs: 172_800_000 }],
  ["accept-old-file", "true", { acceptOldFile: true }],
  ["parked-limit", "2GB", { parkedBytesMax: 2_000_000_000 }],
  ["log-max", "5MiB", { logBytesMax: 5 * 1_048_576 }],
  ["join", "http://b:9001/", { join: "http://b:9001" }],
  ["admin-token", "0123456789abcdef", { adminToken: "0123456789abcdef" }],
  ["health-ms", "500", { healthMs: 500 }],
  ["verify-every", "0", { verifyMs: 0 }],
  ["cdc", "true", { cdc: true }],
  ["cdc-keep", "2", { cdcKeepMs: 2 * 3_600_000 }],
  ["cdc-max", "2MiB", { cdcBytesMax: 2 * 1024 * 1024 }],
  ["use-proxy", "true", { useProxy: true }],
  ["log", "json", { logFormat: "json" }],
  ["log-level", "debug", { logLevel: "debug" }],
];
const FILES = { "s.sql": "CREATE TABLE t(id)" };

test("every setting but --config itself is in the table above", () => {
  const named = new Set(EVERY_FLAG.map(([setting]) => setting));
  expect(SETTINGS.map((s) => s.name as string).filter((name) => !named.has(name))).toEqual([
    "config",
  ]);
});

for (const [setting, text, expected] of EVERY_FLAG) {
  const rest = [
    ...(setting === "id" ? [] : ["--id", "a"]),
    ...(setting === "db" ? [] : ["--db", "a.db"]),
    ...(setting === "join" ? ["--url", "http://me:9001"] : []),
  ];
  test(`${setting} is taken from a flag, the environment and the file, in that order`, () => {
    const variable = `HOOK_SYNC_${setting.toUpperCase().replaceAll("-", "_")}`;
    const key = text === "true" ? `${setting} = true` : `${setting} = "${text}"`;
    const other = { id: "o", db: "o.db", peer: "http://o", tables: "o" }[setting] ?? "wrong!";

    expect(config([...rest, `--${setting}=${text}`], { files: FILES })).toMatchObject(expected);
    expect(config(rest, { env: { [variable]: text }, files: FILES })).toMatchObject(expected);
    const files = { ...FILES, "c.toml": key };
    expect(config([...rest, "--config", "c.toml"], { files })).toMatchObject(expected);
    expect(config(rest, { env: { HOOK_SYNC_CONFIG: "c.toml" }, files })).toMatchObject(expected);

    // What is overridden is not even looked at.
    expect(
      config([...rest, `--${setting}=${text}`], { env: { [variable]: other }, files }),
    ).toMatchObject(expected);
    const shadowed = { ...FILES, "c.toml": setting === "db" ? 'db = "o.db"' : "" };
    expect(
      config([...rest, "--config=c.toml"], { env: { [variable]: text }, files: shadowed }),
    ).toMatchObject(expected);
  });
}

test("the result is frozen through and through", () => {
  const made = config([...BASE, "--peer", "http://b", "--tables", "t", "--schema", "s.sql"], {
    files: FILES,
  });
  for (const part of [made, made.listen, made.peers, made.tables, made.schema]) {
    expect(Object.isFrozen(part)).toBe(true);
  }
});

test("all mistakes are reported at once, each with its place, value and what is right", () => {
  const found = mistakes(
    [
      "--listen=9001",
      "-peer",
      "not a url",
      "--bacth-ms=5",
      "--batch-size",
      "0",
      "--schema=none.sql",
      "stray",
    ],
    {
      env: { HOOK_SYNC_BATCH_MS: "fast", HOOK_SYNC_LOG: "xml" },
      files: { "c.toml": "" },
    },
  );
  expect(found.map(({ where, value }) => [where, value])).toEqual([
    ["--bacth-ms", undefined],
    ['"stray"', undefined],
    ["--id", undefined],
    ["--db", undefined],
    ["--listen", "9001"],
    ["--peer", "not a url"],
    ["--schema", "none.sql"],
    ["HOOK_SYNC_BATCH_MS", "fast"],
    ["--batch-size", "0"],
    ["HOOK_SYNC_LOG", "xml"],
  ]);
  for (const { right } of found) expect(right).not.toBe("");
});

test("a flag without its value is one mistake, not also a missing one", () => {
  expect(mistakes(["--db", "a.db", "--id"]).map(({ right }) => right)).toEqual([
    "expected a value: --id NAME",
  ]);
});

test.each([
  [":9001", undefined, 9001],
  [":0", undefined, 0],
  ["0.0.0.0:80", "0.0.0.0", 80],
  ["127.0.0.1:65535", "127.0.0.1", 65_535],
  ["Localhost:9001", "localhost", 9001],
  ["[::1]:9001", "::1", 9001],
  ["[::]:9001", "::", 9001],
  ["[fe80::1%eth0]:9001", "fe80::1%eth0", 9001],
  ["my-host.example:9001", "my-host.example", 9001],
])("--listen %s", (text, hostname, port) => {
  expect(config([...BASE, "--listen", text]).listen).toEqual({ hostname, port });
});

test.each([
  ["9001", ":9001"],
  ["", ":9001"],
  [":", "HOST:PORT"],
  [":99999", "0 to 65535"],
  [":-1", "HOST:PORT"],
  ["host", "HOST:PORT"],
  ["::1:9001", "[::1]:9001"],
  ["[::1]", "HOST:PORT"],
  ["[1::2::3]:9001", "HOST:PORT"],
  ["999.0.0.1:9001", "HOST:PORT"],
  ["http://host:9001", "HOST:PORT"],
  ["host:9001/x", "HOST:PORT"],
  [":9001 ", "HOST:PORT"],
])("--listen %p is refused", (text, right) => {
  expect(mistake([`--listen=${text}`])).toStartWith(`--listen ${text}: expected`);
  expect(mistake([`--listen=${text}`])).toContain(right);
});

test.each([["node1"], ["1"], ["eu.west-1_a:b@c"], ["x".repeat(64)]])("--id %s", (id) => {
  expect(config(["--db", "a.db", "--id", id]).id).toBe(id);
});

test.each([[""], [" "], ["a b"], ["-a"], ["ä"], ["a\nb"], ["a/b"], ["x".repeat(65)]])(
  "--id %p is refused",
  (id) => {
    const [found] = mistakes(["--db", "a.db", `--id=${id}`]);
    expect(found?.right).toContain("1 to 64");
  },
);

test.each([[""], [":memory:"], ["file:a.db?mode=ro"]])("--db %p is refused", (path) => {
  expect(mistakes(["--id", "a", `--db=${path}`])[0]?.right).toMatch(/^expected (the path of )?a /);
});

test.each([
  ["batch-ms", ["0", "-1", "1.5", "1e3", "abc", "", "60001", " 5"], "1 to 60000"],
  ["batch-size", ["0", "10001", "ten"], "1 to 10000"],
  ["request-timeout-ms", ["99", "120000"], "100 to 119999"],
  ["tombstone-retention", ["0", "30d"], "days from 1"],
  ["body-limit", ["1", "2GiB"], "65536 to 1073741824"],
  [
    "admin-token",
    ["", "short", "a b".repeat(9), "é".repeat(16), "x\u0007".repeat(9)],
    "16 letters",
  ],
  ["body-limit", ["12XB", "MiB", "1.5MiB", "-1"], "128MiB"],
  ["parked-limit", ["1KiB"], "at least 1048576"],
  ["synchronous", ["off", ""], "full or normal"],
  ["log", ["yaml"], "text or json"],
  ["log-level", ["trace"], "debug or info or warn or error"],
  ["use-proxy", ["maybe"], "true or false"],
])("--%s out of its range says the range", (setting, texts, right) => {
  for (const text of texts) expect(mistake([`--${setting}=${text}`])).toContain(right);
});

test.each([
  ["131072", 131_072],
  ["131072B", 131_072],
  ["128KiB", 131_072],
  ["128 kib", 131_072],
  ["128kB", 128_000],
  ["1MB", 1_000_000],
  ["1GiB", 1_073_741_824],
])("a size of %s", (text, bytes) => {
  expect(config([...BASE, "--body-limit", text]).bodyBytesMax).toBe(bytes);
});

test("a peer given twice, in any spelling and from a list, counts once", () => {
  const argv = ["--peer=http://B:80/", "--peer", "http://b", "-peer=http://b//,http://c:9001"];
  expect(config([...BASE, ...argv]).peers).toEqual(["http://b", "http://c:9001"]);
  const env = { HOOK_SYNC_PEER: "http://b:9001, http://c:9001/,http://B:9001" };
  expect(config(BASE, { env }).peers).toEqual(["http://b:9001", "http://c:9001"]);
});

test("every wrong peer is named, and no password is shown", () => {
  const found = mistakes([...BASE, "--peer", "b:9001", "--peer", "http://u:hunter2@c", "-peer=x?"]);
  expect(found.map(({ value }) => value)).toEqual(["b:9001", "http://…@c", "x?"]);
  expect(JSON.stringify(found)).not.toContain("hunter2");
  expect(mistake(["--url", "http://u:hunter2@me"])).not.toContain("hunter2");
  expect(mistake(["http://u:hunter2@me"])).not.toContain("hunter2");
});

test("more peers than a mesh may have are refused", () => {
  const peers = (count: number) =>
    Array.from({ length: count }, (_, at) => `http://h${at}`).join(",");
  expect(config([...BASE, "--peer", peers(256)]).peers).toHaveLength(256);
  expect(mistake(["--peer", peers(257)])).toContain("at most 256");
});

test("the node itself is no peer of its own, whatever this machine is called", () => {
  const world = { ownHosts: ["myhost"] };
  for (const peer of ["http://localhost:9001/", "http://MyHost:9001"]) {
    expect(mistake(["--peer", peer], world)).toContain("this node itself");
    expect(config([...BASE, "--peer", peer, "--listen", ":9002"], world).peers).toHaveLength(1);
  }
});

test.each(["", "\n", "-- nothing yet\n/* here */ ;", "/* CREATE TABLE t(id)"])(
  "a schema file without a statement is a mistake: %j",
  (text) => {
    const files = { "s.sql": text };
    expect(mistake(["--schema", "s.sql"], { files })).toBe(
      "--schema s.sql: expected SQL; there is no statement in this file",
    );
  },
);

test("a peer that is this node's own --url, in any spelling, is the node itself", () => {
  const argv = ["--url", "https://Me.example/", "--peer", "https://me.example:443"];
  expect(mistake(argv)).toContain("this node itself");
});

test.each([
  [
    ["--tables", "a,b"],
    ["a", "b"],
  ],
  [
    ["--tables", " a , my table "],
    ["a", "my table"],
  ],
  [
    ["--tables", "a", "--tables", "b,A"],
    ["a", "b"],
  ],
  [["--tables", "*"], "*"],
] as const)("%p", (argv, tables) => {
  expect(config([...BASE, ...argv]).tables).toEqual(tables);
});

test.each([[""], ["a,,b"], ["a,"], ["*,a"]])("--tables %p is refused", (text) => {
  expect(mistake([`--tables=${text}`])).toContain("'*' alone");
});

test("a variable set to nothing counts as not set", () => {
  const env = { HOOK_SYNC_PEER: "", HOOK_SYNC_BATCH_MS: "", HOOK_SYNC_CONFIG: "" };
  expect(config(BASE, { env })).toMatchObject({ peers: [], batchMs: 50 });
});

test("a variable that looks misspelt is a warning; those of orchestrators are none", () => {
  const result = load(BASE, {
    env: {
      HOOK_SYNC_PEERS: "http://b",
      HOOK_SYNC_PORT: "tcp://10.0.0.1:9001",
      HOOK_SYNC_PORT_9001_TCP_ADDR: "10.0.0.1",
      HOOK_SYNC_SERVICE_HOST: "10.0.0.1",
      HOOK_SYNC_LISTEN: ":1",
      PEER: "x",
    },
  });
  expect("warnings" in result && result.warnings).toEqual([
    "HOOK_SYNC_PEERS is not read; did you mean HOOK_SYNC_PEER?",
  ]);
});

const toml = (text: string) => ({ files: { "c.toml": text } });

test("a file that is no TOML may hold the name and the database: only that is said", () => {
  const found = mistakes(["--config", "c.toml"], toml("id = "));
  expect(found.map(({ where }) => where)).toEqual(["c.toml"]);
});

test("the file holds lists, numbers and switches as TOML has them", () => {
  const text = `
    id = "from-file"            # flags win
    peer = ["http://b:9001", "http://c:9001/"]
    tables = ["a,b", "*x"]      # in a list, names stand as they are
    batch-ms = 20
    body-limit = "1MiB"
    use-proxy = false
  `;
  expect(config([...BASE, "--config", "c.toml"], toml(text))).toMatchObject({
    id: "a",
    peers: ["http://b:9001", "http://c:9001"],
    tables: ["a,b", "*x"],
    batchMs: 20,
    bodyBytesMax: 1_048_576,
    useProxy: false,
  });
});

test.each([
  ["bacth-ms = 5", "c.toml: bacth-ms", "did you mean batch-ms?"],
  ["zzz = 5", "c.toml: zzz", "no such setting"],
  ['config = "d.toml"', "c.toml: config", "no such setting"],
  ["id = 5", "c.toml: id", '"string"'],
  ["batch-ms = 1.5", "c.toml: batch-ms", "whole number"],
  ["batch-ms = 0", "c.toml: batch-ms", "1 to 60000"],
  ['use-proxy = "yes"', "c.toml: use-proxy", "true or false"],
  ["peer = [1]", "c.toml: peer", "of strings"],
  ["[log]\nlevel = 1", "c.toml: log", '"string"'],
  ["toString = 1", "c.toml: toString", "no such setting"],
  ["id = ", "c.toml", "expected TOML, line 1: "],
  [
    'id = "a"\npeer = [\n  "x",\n]\nlisten = :9001\nlog = "json"',
    "c.toml",
    "expected TOML, line 5: ",
  ],
])("the file %p: the place and what is right", (text, where, right) => {
  const found = mistake(["--config", "c.toml"], toml(text));
  expect(found).toStartWith(`${where} `);
  expect(found).toContain(right);
});

test("a configuration file that is not there is a mistake among the others", () => {
  const found = mistakes(["--config=none.toml"]);
  expect(found.map(({ where }) => where)).toEqual(["--config", "--id", "--db"]);
  expect(found[0]?.right).toContain("no such file");
});
