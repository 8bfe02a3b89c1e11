/** README is held to the program: every flag there is, and none there is not. */
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { COMMANDS } from "../lib/cli/main.ts";
import { SETTINGS } from "../lib/config.ts";
import manifest from "../package.json" with { type: "json" };

const README = readFileSync(join(import.meta.dir, "..", "README.md"), "utf8");

test("the table of flags has every flag, in the order of the usage", () => {
  const rows = [...README.matchAll(/^\| `--([a-z-]+)/gm)].map(([, name]) => name!);
  expect(rows).toEqual(SETTINGS.map(({ name }) => name as string));
});

test("no flag is mentioned that is not there", () => {
  const ofCommands = COMMANDS.flatMap(({ usage }) => [...usage.matchAll(/^ {2}--([a-z-]+)/gm)]);
  const known = new Set<string>([
    ...SETTINGS.map(({ name }) => name as string),
    ...ofCommands.map(([, name]) => name!),
    "help",
    "version",
  ]);
  const ours = README.match(/(?:hook-sync|npm start --)[^\n]*/g)!.join("\n");
  const mentioned = [...ours.matchAll(/(?<![\w-])--([a-z][a-z-]*)/g)].map(([, name]) => name!);
  expect(mentioned.length).toBeGreaterThan(5);
  expect(mentioned.filter((name) => !known.has(name))).toEqual([]);
});

test("every command is told of, and none that is not there", () => {
  const told = README.matchAll(/(?:`|^ {4}(?:\$ )?)hook-sync ([a-z]+)\b/gm);
  const names = new Set([...told].map(([, name]) => name!));
  const known = COMMANDS.map(({ name }) => name);
  expect([...names].filter((name) => !known.includes(name))).toEqual([]);
  const untold = known.filter((name) => !names.has(name) && name !== "serve");
  expect(untold).toEqual([]);
});

test("the scripts it tells of are there", () => {
  const told = [...README.matchAll(/npm (?:run )?(start|test|[a-z]+:[a-z]+|(?<=run )[a-z]+)\b/g)];
  const missing = told.map(([, name]) => name!).filter((name) => !(name in manifest.scripts));
  expect(told.length).toBeGreaterThan(3);
  expect(missing).toEqual([]);
});

test("the map names every file of lib, and none that is gone", () => {
  const lib = join(import.meta.dir, "..", "lib");
  const named = readFileSync(join(lib, "README.md"), "utf8")
    .match(/^\| .*/gm)!
    .join("\n");
  const files = [...new Bun.Glob("**/*.ts").scanSync(lib)].map((path) => basename(path));
  const mapped = [...named.matchAll(/`(?:[a-z]+\/)?([a-z-]+\.ts)`/g)].map(([, name]) => name!);
  expect([...new Set(mapped)].sort()).toEqual([...new Set(files)].sort());
});
