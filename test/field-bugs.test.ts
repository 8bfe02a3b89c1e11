/** FIELD-BUGS.md is held to the tests: every case is in it once, and every test that it names exists. */
import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

const TEXT = readFileSync(join(import.meta.dir, "FIELD-BUGS.md"), "utf8");

/** Every case, by area; there are none of the numbers between. */
const CASES: Readonly<Record<string, string>> = {
  DT: "01 02 03 04 05 06 07 10 11 12 13 15",
  SC: "01 02 03 04 05 06 08 09 10 11 12 13 14 16 17 18 19 20 21 23 24 25 26 27 28 30 31",
  CK: "01 03 04 05 06 07 08",
  DL: "01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 20 21 22 23 25 26 27 28 29 31 32 33 34 35 36 37",
  SV: "01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 21 22 23",
  BL: "01 03 04",
};

const IDS = Object.entries(CASES).flatMap(([area, numbers]) =>
  numbers.split(" ").map((number) => `${area}${number}`),
);

interface Entry {
  readonly id: string;
  /** `file › describe › test › row` */
  readonly tests: readonly string[];
}

const ENTRIES: readonly Entry[] = TEXT.split(/^(?=\*\*[A-Z]{2}\d\d\*\* )/m)
  .slice(1)
  .map((section) => ({
    id: section.slice(2, 6),
    tests: [...section.matchAll(/^- ([\w/.-]+\.test\.ts › .*)$/gm)].map(([, path]) => path!),
  }));

test("every case is listed once, in order", () => {
  expect(ENTRIES.map(({ id }) => id)).toEqual(IDS);
});

test("every case names a test", () => {
  expect(ENTRIES.filter(({ tests }) => tests.length === 0).map(({ id }) => id)).toEqual([]);
});

/** A name as it may stand in a source: between quotes of any kind. */
function isIn(source: string, name: string): boolean {
  return ['"', "`", "'"].some((quote) => {
    const written = quote === '"' ? JSON.stringify(name) : quote + name + quote;
    return source.includes(written);
  });
}

test("every test that is named is in its file", () => {
  const missing: string[] = [];
  for (const { id, tests } of ENTRIES) {
    for (const path of tests) {
      const [file, ...names] = path.split(" › ");
      const full = join(import.meta.dir, file!);
      const source = existsSync(full) ? readFileSync(full, "utf8") : "";
      for (const name of names) if (!isIn(source, name)) missing.push(`${id}: ${file} › ${name}`);
    }
  }
  expect(missing).toEqual([]);
});

test("nothing that is meant as the name of a test is passed over", () => {
  const meant = [...TEXT.matchAll(/^.*\.test\.ts.*›.*$/gm)].map(([line]) => line);
  const read = ENTRIES.flatMap(({ tests }) => tests.map((path) => `- ${path}`));
  expect(meant.filter((line) => !read.includes(line))).toEqual([]);
});
