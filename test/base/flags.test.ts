import { expect, test } from "bun:test";
import { type FlagSpec, nearest, quote, readFlags } from "../../lib/base/flags.ts";

const SPECS: readonly FlagSpec[] = [
  { name: "id", value: "NAME" },
  { name: "batch-ms", value: "MS" },
  { name: "peer", value: "URL", repeats: true },
  { name: "use-proxy", value: undefined },
];

const read = (...argv: string[]) => readFlags(argv, SPECS);

test.each([[["--id", "x"]], [["-id", "x"]], [["--id=x"]], [["-id=x"]]])("%p is id x", (argv) => {
  const { values, words, mistakes } = read(...argv);
  expect([...values]).toEqual([["id", ["x"]]]);
  expect([words, mistakes]).toEqual([[], []]);
});

test("a value may contain =, be empty, and begin with a dash when it is attached", () => {
  expect(read("--id=a=b").values.get("id")).toEqual(["a=b"]);
  expect(read("--id=").values.get("id")).toEqual([""]);
  expect(read("--id", "").values.get("id")).toEqual([""]);
  expect(read("--id=-x").values.get("id")).toEqual(["-x"]);
  expect(read("--batch-ms", "-5").values.get("batch-ms")).toEqual(["-5"]);
});

test("a repeated flag keeps its values in order", () => {
  expect(read("--peer", "b", "-peer=a").values.get("peer")).toEqual(["b", "a"]);
});

test("a switch takes no word", () => {
  const { values, words } = read("--use-proxy", "--id", "x");
  expect([values.get("use-proxy"), values.get("id"), words]).toEqual([["true"], ["x"], []]);
  expect(read("--use-proxy=false").values.get("use-proxy")).toEqual(["false"]);
});

test("words, and everything after --, are no flags", () => {
  expect(read("a", "--id", "x", "--", "--id", "y").words).toEqual(["a", "--id", "y"]);
  expect(read("-").words).toEqual(["-"]);
});

test("a forgotten value does not eat the next flag", () => {
  const { values, mistakes } = read("--id", "--batch-ms", "5", "--peer");
  expect(values.get("batch-ms")).toEqual(["5"]);
  expect(mistakes).toEqual([
    { where: "--id", value: undefined, right: "expected a value: --id NAME" },
    { where: "--peer", value: undefined, right: "expected a value: --peer URL" },
  ]);
});

test("a flag given twice is fine only with the same value", () => {
  expect(read("--id", "a", "--id", "a").mistakes).toEqual([]);
  const [mistake] = read("--id", "a", "-id=b").mistakes;
  expect(mistake).toEqual({ where: "-id", value: "b", right: 'given before as "a": keep one' });
});

test("an unknown flag is named with the nearest known one, and takes its value along", () => {
  const { mistakes, words } = read("--bacth-ms", "5", "-peers=x", "--colour", "--id", "a");
  expect(words).toEqual([]);
  expect(mistakes.map((mistake) => `${mistake.where}: ${mistake.right}`)).toEqual([
    "--bacth-ms: no such flag; did you mean --batch-ms?",
    "-peers: no such flag; did you mean -peer?",
    "--colour: no such flag",
  ]);
});

test.each([
  ["batchms", "batch-ms"],
  ["batch_ms", "batch-ms"],
  ["BATCH-MS", "batch-ms"],
  ["peers", "peer"],
  ["di", "id"],
  ["zzz", undefined],
  ["toString", undefined],
])("nearest to %s is %p", (typed, expected) => {
  expect(
    nearest(
      typed,
      SPECS.map((spec) => spec.name),
    ),
  ).toBe(expected);
});

test("a shown value is quoted, on one line and of bounded length", () => {
  expect(quote('a"b\nc')).toBe('"a\\"b\\nc"');
  expect(quote("x".repeat(1_000))).toHaveLength(203);
});
