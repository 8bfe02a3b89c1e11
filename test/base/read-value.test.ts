import { expect, test } from "bun:test";
import { readCount, readOneOf, readSize, readSwitch } from "../../lib/base/read-value.ts";

const count = readCount("seconds", 1, 60);
const size = readSize(1, 1_000_000);

test.each([
  [count("1"), { value: 1 }],
  [count("60"), { value: 60 }],
  [size("1000"), { value: 1_000 }],
  [size("1kB"), { value: 1_000 }],
  [size("1 KiB"), { value: 1_024 }],
  [size("1MB"), { value: 1_000_000 }],
  [readOneOf("full", "normal")("FULL"), { value: "full" }],
  [readSwitch("True"), { value: true }],
  [readSwitch("0"), { value: false }],
] as const)("reading %#", (read, expected) => {
  expect(read).toEqual(expected as never);
});

test.each(["", "0", "61", "-1", "1.5", "1e1", "0x10", " 5", "5s", "9".repeat(20)])(
  "%p is no count from 1 to 60",
  (text) => {
    expect(count(text)).toEqual({ right: "expected a whole number of seconds from 1 to 60" });
  },
);

test.each(["", "MiB", "1.5MiB", "-1", "1M", "1 toString"])("%p is no size", (text) => {
  expect(size(text)).toEqual({
    right: "expected a number of bytes, such as 134217728 or 128MiB",
  });
});

test("a size out of its range says the range", () => {
  expect(size("1MiB")).toEqual({ right: "expected from 1 to 1000000 bytes" });
  expect(size("0")).toEqual({ right: "expected from 1 to 1000000 bytes" });
});

test.each(["", "yes", "2", "truefalse"])("%p is no switch", (text) => {
  expect(readSwitch(text)).toEqual({ right: "expected true or false" });
});
