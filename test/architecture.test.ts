/**
 * What keeps the parts apart: who may import whom, where the outside world may be touched, and that
 * nothing lies about unused. Each rule fails with the file that breaks it.
 */
import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import manifest from "../package.json" with { type: "json" };
import lock from "../package-lock.json" with { type: "json" };

const ROOT = join(import.meta.dir, "..");

/** A file of lib with its folder (`base`) or, for those directly in lib, its name (`node.ts`). */
interface Source {
  readonly path: string;
  readonly part: string;
  readonly text: string;
}

const SOURCES: readonly Source[] = [...new Bun.Glob("**/*.ts").scanSync(join(ROOT, "lib"))]
  .sort()
  .map((path) => {
    const text = readFileSync(join(ROOT, "lib", path), "utf8");
    return { path: `lib/${path}`, part: path.split("/")[0]!, text };
  });

/** Who may import whom, lowest first; every part may import itself. */
const ALLOWED: Readonly<Record<string, readonly string[]>> = {
  base: [],
  protocol: ["base"],
  cdc: ["protocol", "base"],
  "config.ts": ["protocol", "base"],
  store: ["protocol", "base"],
  shipper: ["store", "protocol", "base"],
  http: ["shipper", "store", "protocol", "base"],
  "mesh.ts": ["http", "shipper", "store", "config.ts", "protocol", "base"],
  "verifier.ts": ["http", "shipper", "store", "protocol", "base"],
  "bridge.ts": ["http", "shipper", "store", "cdc", "protocol", "base"],
  "node.ts": [
    "bridge.ts",
    "mesh.ts",
    "verifier.ts",
    "http",
    "shipper",
    "store",
    "cdc",
    "config.ts",
    "protocol",
    "base",
  ],
  cli: ["node.ts", "bridge.ts", "http", "shipper", "store", "cdc", "config.ts", "protocol", "base"],
};

/** Static and dynamic, of values and of types. */
function imported(text: string): string[] {
  return [...text.matchAll(/\b(?:from|import)\s*\(?\s*"(\.[^"]+)"/g)].map(([, target]) => target!);
}

/** `lib/store/apply.ts` for `./apply.ts` in lib/store. */
function resolveFrom(path: string, target: string): string {
  return new URL(target, `file:///${path}`).pathname.slice(1);
}

test("imports go one way", () => {
  const wrong: string[] = [];
  for (const { path, part, text } of SOURCES) {
    const allowed = ALLOWED[part];
    if (allowed === undefined) wrong.push(`${path}: no rule for ${part}`);
    for (const target of imported(text)) {
      const resolved = resolveFrom(path, target);
      const [top, other] = resolved.split("/");
      if (top !== "lib" || (other !== part && !allowed?.includes(other!))) {
        wrong.push(`${path} imports ${resolved}`);
      }
    }
  }
  expect(wrong).toEqual([]);
});

test("the entry imports the command line and nothing else of ours", () => {
  const text = readFileSync(join(ROOT, "server.ts"), "utf8");
  const outside = imported(text).filter((target) => !target.startsWith("./lib/cli/"));
  expect(outside).toEqual(["./package.json"]);
});

test("every file of lib is reached from the entry or from what programs embed", () => {
  const texts = new Map(SOURCES.map(({ path, text }) => [path, text]));
  texts.set("server.ts", readFileSync(join(ROOT, "server.ts"), "utf8"));
  const reached = new Set<string>();
  const embedded = Object.values(manifest.exports).map((path) => path.slice(2));
  const next = ["server.ts", ...embedded];
  for (let path = next.pop(); path !== undefined; path = next.pop()) {
    if (reached.has(path)) continue;
    reached.add(path);
    const text = texts.get(path);
    if (text === undefined) continue;
    const workers = [...text.matchAll(/new URL\("(\.[^"]+)"/g)].map(([, target]) => target!);
    for (const target of [...imported(text), ...workers]) next.push(resolveFrom(path, target));
  }
  const unused = SOURCES.map(({ path }) => path).filter((path) => !reached.has(path));
  expect(unused).toEqual([]);
});

/** What may stand only where the argument of that name is made real. */
const PLACES: readonly [what: string, pattern: RegExp, where: RegExp][] = [
  ["the clock", /\bDate\.now\(|\bnew Date\b(?!\((?!\)))|\bperformance\.now\(/, /^lib\/base\//],
  ["chance", /\bMath\.random\(|\brandomUUID(v7)?\(|\bgetRandomValues\(/, /^lib\/base\//],
  [
    "timers",
    /(?<![.\w])(setTimeout|setInterval|setImmediate)\(|\bBun\.sleep\(/,
    /^lib\/(base\/|shipper\/transport\.ts$)/,
  ],
  // A method by that name (`fetch(request) {`) serves; only a call asks.
  [
    "the network",
    /(?<![.\w])(globalThis\.)?fetch\((?![^()]*\)\s*\{)/,
    /^lib\/shipper\/(transport|node-client)\.ts$/,
  ],
  ["SQLite", /from "bun:sqlite"/, /^lib\/(store|shipper|cdc)\//],
  ["the framework", /from "hono/, /^lib\/http\//],
  ["the console", /\bconsole\./, /^lib\/cli\//],
  [
    "the process",
    /\bprocess\.(exit|on|env|argv)\b|\bBun\.(env|argv)\b/,
    // The worker forgets the proxy variables, which would otherwise apply to peers.
    /^lib\/(cli\/|shipper\/worker\.ts$)/,
  ],
];

/** Without comments and types: what is said about the clock is not the clock. */
const transpiler = new Bun.Transpiler({ loader: "ts" });

describe.each(PLACES)("%s", (_, pattern, where) => {
  test(`is touched only in ${where.source.replaceAll("\\", "")}`, () => {
    const elsewhere = SOURCES.filter(({ path }) => !where.test(path));
    const wrong = elsewhere.filter(({ text }) => pattern.test(transpiler.transformSync(text)));
    expect(wrong.map(({ path }) => path)).toEqual([]);
  });
});

test("nothing is typed any, and nothing is left for later", () => {
  const wrong = SOURCES.filter(({ text }) =>
    /: any\b|\bas any\b|<any>|\bany\[\]|\bTODO\b|\bFIXME\b|@ts-(ignore|nocheck)/.test(text),
  );
  expect(wrong.map(({ path }) => path)).toEqual([]);
});

/** Re-exports (`export {…}`, `export type {…}`) have their comment where the thing is made. */
const EXPORTED =
  /^export (?:default )?(?:async )?(?:abstract )?(?:function|class|interface|type|const|let|enum)\b(?! \{)/;
const DOC_COMMENT_END = /^(?:\/\*\* .*| (?:\*.*)?)\*\/$/;

test("what is exported says in a doc comment right above it what its name and types do not", () => {
  const wrong: string[] = [];
  for (const { path, text } of SOURCES) {
    const lines = text.split("\n");
    for (const [index, line] of lines.entries()) {
      const isDocumented = DOC_COMMENT_END.test(lines[index - 1] ?? "");
      if (EXPORTED.test(line) && !isDocumented) wrong.push(`${path}:${index + 1}`);
    }
  }
  expect(wrong).toEqual([]);
});

test("what belongs to Turso is loaded by those who embed it, never by the program", () => {
  const wrong = SOURCES.filter(({ text }) => /from "@|import\(\s*"@/.test(text));
  expect(wrong.map(({ path }) => path)).toEqual([]);
});

test("no test is switched off or alone", () => {
  const off = new RegExp(["\\.skip\\(", "\\.only\\(", "\\.todo\\("].join("|"));
  const paths = [...new Bun.Glob("**/*.test.ts").scanSync(join(ROOT, "test"))].filter(
    (path) => !path.includes("node_modules"),
  );
  expect(paths.length).toBeGreaterThan(0);
  const wrong = paths.filter((path) => off.test(readFileSync(join(ROOT, "test", path), "utf8")));
  expect(wrong).toEqual([]);
});

test("the top level holds nothing but what stands here: new things go below", () => {
  const expected = new Set([
    ".ci",
    ".gitignore",
    ".npmrc",
    "LICENSE",
    "README.md",
    "bench",
    "biome.json",
    "bunfig.toml",
    "lib",
    "package-lock.json",
    "package.json",
    "server.ts",
    "test",
    "tsconfig.json",
  ]);
  // What running and building leaves; .gitignore has the same.
  const left = /^(\.git|node_modules|dist|.*\.db(-wal|-shm)?|.*\.hook-sync-lock)$/;
  const more = readdirSync(ROOT).filter((name) => !left.test(name) && !expected.has(name));
  expect(more).toEqual([]);
});

test("the lock file names no registry, so that a mirror works as it is", () => {
  const named = Object.entries(lock.packages).filter(([, entry]) => "resolved" in entry);
  expect(named).toEqual([]);
});
