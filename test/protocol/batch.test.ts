import { Database } from "bun:sqlite";
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import {
  BatchError,
  isObject,
  type JsonValue,
  member,
  parseBatch,
  parseChange,
} from "../../lib/protocol/batch.ts";
import { JSON_DEPTH_MAX } from "../../lib/protocol/limits.ts";
import { damage } from "../support/damage.ts";
import { forSeeds, type Seeded } from "../support/seeded.ts";

// Generous: the machine may be busy with other tests.
setDefaultTimeout(60_000);

const utf8 = new TextEncoder();
const parse = (body: string) => parseBatch(utf8.encode(body));
const one = (change: string) => parse(`{"batch_id":1,"changes":[${change}]}`).changes[0]!;

describe("the envelope", () => {
  test("a batch is its id and its changes", () => {
    const batch = parse('{"batch_id":42,"changes":[{"op":"INSERT"},{"op":"DELETE"}]}');
    expect(batch.batchId).toBe(42);
    expect(batch.changes.map((change) => change.value)).toEqual([
      { op: "INSERT" },
      { op: "DELETE" },
    ]);
  });

  test.each([
    ["an empty array", '{"batch_id":1,"changes":[]}'],
    ["null, a nil slice from Go", '{"batch_id":1,"changes":null}'],
    [
      "null, and an array in a member that only looks like it",
      '{"changes":null,"Changes":[1],"batch_id":1}',
    ],
  ])("no changes: %s", (_, body) => {
    expect(parse(body)).toEqual({ batchId: 1, changes: [] });
  });

  test.each([
    ['{"changes":[{"a":1}],"batch_id":7}', 7, 1],
    ['{"batch_id":1,"batch_id":2,"changes":[1],"changes":[1,2]}', 2, 2],
    ['{"changes":[1,2],"changes":null,"batch_id":1}', 1, 0],
    ['{"x":{"changes":[1,2,3]},"changes":[4],"y":[[5]],"batch_id":-3}', -3, 1],
    ['{"ch\\u0061nges":[1,2],"batch_id":4.0}', 4, 2],
    [' \t\r\n{ "batch_id" : 1e3 ,\n"changes" : [ 1 , 2 ] } \n', 1000, 2],
  ])("members in any order, unknown and repeated ones: %s", (body, batchId, count) => {
    const batch = parse(body);
    expect([batch.batchId, batch.changes.length]).toEqual([batchId, count]);
  });

  test.each([
    ["", "empty"],
    ["null", "not a JSON object"],
    ["[]", "not a JSON object"],
    ["1", "not a JSON object"],
    ['"x"', "not a JSON object"],
    ["{}", "batch_id is missing"],
    ['{"changes":[]}', "batch_id is missing"],
    ['{"batch_id":"1","changes":[]}', "batch_id is not an integer"],
    ['{"batch_id":null,"changes":[]}', "batch_id is not an integer"],
    ['{"batch_id":1.5,"changes":[]}', "batch_id is not an integer"],
    ['{"batch_id":9007199254740993,"changes":[]}', "batch_id is not an integer"],
    ['{"batch_id":1}', "changes is missing"],
    ['{"batch_id":1,"changes":{}}', "changes is not an array"],
    ['{"batch_id":1,"changes":"[]"}', "changes is not an array"],
    ['{"batch_id":1,"changes":[1],"changes":{}}', "changes is not an array"],
    ["{bad", "not JSON"],
    ['{"batch_id":1,"changes":[', "not JSON"],
    ['{"batch_id":1,"changes":[]}x', "not JSON"],
    ['{"batch_id":1,"changes":[]},', "not JSON"],
    ['\ufeff{"batch_id":1,"changes":[]}', "not JSON"],
    ["{'batch_id':1,'changes':[]}", "not JSON"],
    ['{"batch_id":01,"changes":[]}', "not JSON"],
    ['{"batch_id":1,"changes":[NaN]}', "not JSON"],
    ['{"batch_id":1,"changes":[{"a":1,}]}', "not JSON"],
    ['{"batch_id":1,"changes":["\u0001"]}', "not JSON"],
  ])("%s is refused, with the place", (body, reason) => {
    expect(() => parse(body)).toThrow(BatchError);
    expect(() => parse(body)).toThrow(reason);
  });

  test("bytes that are not UTF-8 are refused, wherever they stand", () => {
    const body = utf8.encode('{"batch_id":1,"changes":[{"op":"?"}]}');
    body[body.indexOf("?".charCodeAt(0))] = 0xff;
    expect(() => parseBatch(body)).toThrow("UTF-8");
  });
});

describe("nested bombs", () => {
  const levels = (depth: number) => `${"[".repeat(depth)}${"]".repeat(depth)}`;

  test.each([
    ["in the envelope", (inner: string) => inner, 0],
    ["in an unknown member", (inner: string) => `{"batch_id":1,"x":${inner},"changes":[]}`, 1],
    ["as a change", (inner: string) => `{"batch_id":1,"changes":[${inner}]}`, 2],
    ["in a change", (inner: string) => `{"batch_id":1,"changes":[{"x":${inner}}]}`, 3],
    ["in a row", (inner: string) => `{"batch_id":1,"changes":[{"row":{"x":${inner}}}]}`, 4],
  ])("%s: as deep as allowed passes the scan, one deeper is refused", (_, around, outside) => {
    const refusal = `nested deeper than ${JSON_DEPTH_MAX} levels`;
    let message = "";
    try {
      parse(around(levels(JSON_DEPTH_MAX - outside)));
    } catch (error) {
      message = (error as Error).message;
    }
    expect(message).not.toContain(refusal);
    expect(() => parse(around(levels(JSON_DEPTH_MAX - outside + 1)))).toThrow(refusal);
  });

  test("ten million brackets, closed or not, balanced or mixed, end as a refusal", () => {
    for (const bomb of ["[".repeat(1e7), '{"a":'.repeat(1e6), "[{".repeat(1e6), "]".repeat(1e6)]) {
      expect(() => parse(bomb)).toThrow(BatchError);
      expect(() => parse(`{"batch_id":1,"changes":[${bomb}`)).toThrow(BatchError);
    }
  });
});

describe("what is remembered of a change", () => {
  test.each([
    ['{"op":"INSERT","op":"DELETE"}', true],
    ['{"row":{"a":1,"a":2}}', true],
    ['{"row":{"a":1,"\\u0061":2}}', true],
    ['{"row":{"a":1},"row":{"a":1}}', true],
    ['{"row":{"a":1,"a":2},"row":null}', true],
    ['{"row":{"__proto__":1,"constructor":2}}', false],
    ['{"row":{"__proto__":1,"__proto__":2}}', true],
    ['{"row":{"a":1,"A":2}}', false],
    ['{"row":{"a":{"b":1,"b":2}}}', false],
    ['{"x":{"row":{"a":1,"a":1}},"row":{"a":1}}', false],
    ['{"row":{"":1},"":2}', false],
    ["[1,1]", false],
    ["null", false],
  ])("%s repeats a member: %p", (change, repeats) => {
    expect(one(change).repeatsMember).toBe(repeats);
  });

  test.each([
    ["1", false],
    ["-1", false],
    ["123456789012345", false],
    ["-123456789012345", false],
    ["1234567890123456", true],
    ["9223372036854775807", true],
    ["1.0", true],
    ["1e2", true],
    ["1E2", true],
    ["-0", true],
    ["0", false],
    ["-0.0", true],
    ["null", false],
    ['"1.5"', false],
    ["true", false],
  ])("the number %s must be read from its text: %p", (value, delicate) => {
    expect(one(`{"row":{"a":1,"v":${value},"b":2}}`).delicate).toBe(delicate);
  });

  test("a delicate number outside the row is nobody's value", () => {
    expect(one('{"seq":1.5,"row":{"a":1},"x":[1.5]}').delicate).toBe(false);
  });

  test.each([
    ['{"row":{"v":"\\ud800"}}', true],
    ['{"row":{"v":"\\uDFFF x"}}', true],
    ['{"row":{"\\ud83d\\ude00":1}}', true],
    ['{"table":"\\ud83d"}', true],
    ['{"row":{"v":"\\uD900"}}', true],
    ['{"row":{"v":"\\udbff"}}', true],
    ['{"row":{"v":"\\\\ud800"}}', false],
    ['{"row":{"v":"\\u00d8\\ud7ff\\ue000"}}', false],
    ['{"row":{"v":"😀"}}', false],
  ])("%s may hold half a surrogate pair: %p", (change, surrogates) => {
    expect(one(change).surrogates).toBe(surrogates);
  });

  test("nothing found in one change is held against the next", () => {
    const [, next] = parse(
      '{"batch_id":1,"changes":[{"row":{"v":"\\ud800","w":1.5}},{"op":"x"}]}',
    ).changes;
    expect([next!.surrogates, next!.delicate, next!.rowSource()]).toEqual([
      false,
      false,
      undefined,
    ]);
  });

  test("its text and that of its row stay as they came", () => {
    const row = '{ "a" : 1.50 , "b":"\\u0041}{\\"" }';
    const change = `{ "op":"INSERT", "row" : ${row},\n"x":[ {} ] }`;
    const read = parse(`{"batch_id":1,"changes":[ 1 , ${change} ,"x"]}`).changes;
    expect(read.map((each) => each.source())).toEqual(["1", change, '"x"']);
    expect(read.map((each) => each.rowSource())).toEqual([undefined, row, undefined]);
    expect([...read[1]!.rowTokens()]).toEqual([["a", "1.50"]]);
    expect(parseChange(change).source()).toBe(change);
  });

  test("of repeated rows the last counts, as for JSON.parse", () => {
    const read = one('{"row":{"a":1.5},"row":{"b":2}}');
    expect([read.value, read.rowSource(), read.delicate]).toEqual([
      { row: { b: 2 } },
      '{"b":2}',
      false,
    ]);
    expect(one('{"row":{"a":1.5},"row":null}').rowSource()).toBeUndefined();
  });
});

// ── Random bodies, built so that every answer is known ────────────────────────────────────────────

interface Written {
  readonly text: string;
  readonly rowText: string | undefined;
  readonly tokens: Map<string, string>;
  readonly repeats: boolean;
  readonly delicate: boolean;
}

const SPACES = ["", "", "", " ", "\n", "\t\r\n  "];
const NAMES = [
  "id",
  "name",
  "updated_at",
  "row",
  "op",
  "changes",
  'we"ird',
  "it's",
  "日本",
  "😀",
  "",
  "\\",
  "__proto__",
  "1",
];
const STRINGS = [
  "",
  "x",
  '"',
  "\\",
  "\\x00ff",
  "}{][,:",
  "\u2028",
  "😀",
  "\u0000",
  "line\n",
  "日本語",
  "\ufeff",
];
const NUMBERS = [
  "0",
  "-0",
  "7",
  "-12",
  "1.0",
  "1.5e10",
  "9007199254740993",
  "9223372036854775808",
  "-9223372036854775808",
  "1E400",
  "-1e-400",
  "123456789012345",
  "1234567890123456",
  "0.1",
];

/** As some writer somewhere might: plain, or with any character as an escape. */
function writeString(random: Seeded, text: string): string {
  if (random.chance(0.7)) return JSON.stringify(text);
  let escaped = "";
  for (let i = 0; i < text.length; i++) {
    escaped += `\\u${text.charCodeAt(i).toString(16).padStart(4, "0")}`;
  }
  return `"${random.chance(0.5) ? escaped : escaped.toUpperCase().replaceAll("\\U", "\\u")}"`;
}

function writeValue(random: Seeded, depth = 0): string {
  const s = () => random.pick(SPACES);
  switch (random.below(depth < 3 ? 6 : 4)) {
    case 0:
      return random.pick(["null", "true", "false"]);
    case 1:
      return random.pick(NUMBERS);
    case 2:
    case 3:
      return writeString(random, random.pick(STRINGS));
    case 4:
      return `[${s()}${Array.from({ length: random.below(3) }, () => writeValue(random, depth + 1)).join(`${s()},${s()}`)}${s()}]`;
    default:
      return `{${s()}${Array.from({ length: random.below(3) }, () => `${writeString(random, random.pick(NAMES))}${s()}:${s()}${writeValue(random, depth + 1)}`).join(`${s()},${s()}`)}${s()}}`;
  }
}

interface Member {
  readonly name: string;
  readonly text: string;
}

function writeObject(random: Seeded, members: readonly Member[]): string {
  const s = () => random.pick(SPACES);
  const texts = members.map(({ name, text }) => `${writeString(random, name)}${s()}:${s()}${text}`);
  return `{${s()}${texts.join(`${s()},${s()}`)}${s()}}`;
}

function hasRepeats(members: readonly Member[]): boolean {
  return new Set(members.map(({ name }) => name)).size !== members.length;
}

function isDelicate(token: string): boolean {
  return !/^(0|-?[1-9][0-9]{0,14})$/.test(token);
}

function writeChange(random: Seeded): Written {
  if (random.chance(0.1)) {
    return {
      text: writeValue(random),
      rowText: undefined,
      tokens: new Map(),
      repeats: false,
      delicate: false,
    };
  }
  const columns = Array.from({ length: random.below(6) }, () => ({
    name: random.pick(NAMES),
    text: writeValue(random),
  }));
  const numbers = columns.filter(({ text }) => /^[-0-9]/.test(text));
  const rowText = writeObject(random, columns);
  const hasRow = random.chance(0.9);
  const others = Array.from({ length: random.below(4) }, () => ({
    name: random.pick(NAMES.filter((name) => name !== "row")),
    text: writeValue(random),
  }));
  const members = random.shuffled([...others, ...(hasRow ? [{ name: "row", text: rowText }] : [])]);
  return {
    text: writeObject(random, members),
    rowText: hasRow ? rowText : undefined,
    tokens: new Map(numbers.map(({ name, text }) => [name, text])),
    repeats: hasRepeats(members) || (hasRow && hasRepeats(columns)),
    delicate: hasRow && numbers.some(({ text }) => isDelicate(text)),
  };
}

function writeBatch(random: Seeded): { body: string; changes: Written[] } {
  const changes = Array.from({ length: random.below(8) }, () => writeChange(random));
  const s = () => random.pick(SPACES);
  const list = `[${s()}${changes.map(({ text }) => text).join(`${s()},${s()}`)}${s()}]`;
  const extra = { name: random.pick(["x", "Changes", "", "row"]), text: writeValue(random) };
  const members = random.shuffled([
    { name: "batch_id", text: "12" },
    { name: "changes", text: list },
    ...(random.chance(0.3) ? [extra] : []),
  ]);
  return { body: s() + writeObject(random, members) + s(), changes };
}

test("spans, members, row texts and number tokens are exact in any spelling of a batch", async () => {
  await forSeeds(1_500, (random) => {
    const { body, changes } = writeBatch(random);
    const read = parse(body);
    expect(read.changes.map((change) => change.value)).toEqual(JSON.parse(body).changes);
    expect(read.changes.map((change) => change.source())).toEqual(changes.map(({ text }) => text));
    for (const [i, change] of read.changes.entries()) {
      const written = changes[i]!;
      // A value that happens to be an object without a row has none of what follows.
      if (written.tokens.size === 0 && written.rowText === undefined) continue;
      expect(change.rowSource()).toBe(written.rowText);
      expect(change.repeatsMember).toBe(written.repeats);
      expect(change.delicate).toBe(written.delicate);
      if (written.rowText !== undefined && !written.repeats) {
        expect(new Map(change.rowTokens())).toEqual(written.tokens);
      }
    }
  });
});

test("SQLite finds the same changes and rows at the same places", async () => {
  const db = new Database(":memory:");
  const at = db.query<{ change: string; row: string | null }, [string, string, string]>(
    "SELECT json_extract(?1, ?2) AS change, json_extract(?1, ?3) AS row",
  );
  const normal = db.query<{ json: string }, [string]>("SELECT json(?) AS json");
  await forSeeds(150, (random) => {
    const { body, changes } = writeBatch(random);
    for (const [i, change] of parse(body).changes.entries()) {
      if (changes[i]!.repeats || changes[i]!.rowText === undefined) continue;
      const found = at.get(body, `$.changes[${i}]`, `$.changes[${i}].row`)!;
      expect(normal.get(change.source())!.json).toBe(found.change);
      expect(normal.get(change.rowSource()!)!.json).toBe(found.row!);
    }
  });
  db.close();
});

function rowOf(change: JsonValue): { readonly [member: string]: JsonValue } | undefined {
  const row = isObject(change) ? member(change, "row") : undefined;
  return isObject(row) ? row : undefined;
}

test("any body is a batch, exactly as JSON.parse reads it, or a BatchError", async () => {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let batches = 0;
  await forSeeds(6_000, (random) => {
    let body: Uint8Array = utf8.encode(writeBatch(random).body);
    for (let i = random.below(4); i > 0; i--) body = damage(body, random);
    let expected: { batch_id?: unknown; changes?: JsonValue[] | null } | undefined;
    try {
      expected = JSON.parse(strict.decode(body));
    } catch {
      expected = undefined;
    }
    const isBatch =
      typeof expected === "object" &&
      expected !== null &&
      Number.isSafeInteger(expected.batch_id) &&
      (Array.isArray(expected.changes) || expected.changes === null);
    if (!isBatch) {
      expect(() => parseBatch(body)).toThrow(BatchError);
      return;
    }
    batches++;
    const read = parseBatch(body);
    expect(read.changes.map((change) => change.value)).toEqual(expected!.changes ?? []);
    for (const change of read.changes) {
      expect(JSON.parse(change.source())).toEqual(change.value);
      const row = rowOf(change.value);
      const text = change.rowSource();
      expect(text === undefined ? undefined : JSON.parse(text)).toEqual(row);
      const numbers = Object.entries(row ?? {}).filter(([, value]) => typeof value === "number");
      const tokens = [...change.rowTokens()].map(([name, token]) => [name, Number(token)]);
      if (!change.repeatsMember)
        expect(Object.fromEntries(tokens)).toEqual(Object.fromEntries(numbers));
    }
  });
  expect(batches).toBeGreaterThan(1_000);
});

test("time grows with the body and no faster, whatever it is made of", () => {
  const row = '{"op":"INSERT","table":"items","row":{"id":"a","v":1},"old_id":null}';
  const shapes: ((bytes: number) => string)[] = [
    (bytes) => `{"batch_id":1,"changes":[${`${row},`.repeat(bytes / 68)}1]}`,
    (bytes) => `{"batch_id":1,"changes":[${"1,".repeat(bytes / 2)}1]}`,
    (bytes) => `{"batch_id":1,"changes":["${'\\"'.repeat(bytes / 2)}"]}`,
    (bytes) => `{"batch_id":1,"changes":[{"row":{${'"a":1,'.repeat(bytes / 6)}"a":1}}]}`,
    (bytes) => `{${'"changes":[1],'.repeat(bytes / 14)}"batch_id":1}`,
    (bytes) => `{"batch_id":1,"changes":[{${'"r\\u006fw":{},'.repeat(bytes / 14)}"a":1}]}`,
    (bytes) => `{"batch_id":1,"changes":[${" ".repeat(bytes)}]}`,
    (bytes) => `{"batch_id":1,"changes":["${"x".repeat(bytes)}`,
  ];
  const cpuMs = (body: Uint8Array, tries: number) => {
    let best = Number.POSITIVE_INFINITY;
    for (let i = 0; i < tries; i++) {
      const before = process.cpuUsage();
      try {
        parseBatch(body);
      } catch (error) {
        expect(error).toBeInstanceOf(BatchError);
      }
      const { user, system } = process.cpuUsage(before);
      best = Math.min(best, (user + system) / 1_000);
    }
    return best;
  };
  for (const shape of shapes) {
    const small = cpuMs(utf8.encode(shape(400_000)), 5);
    const large = cpuMs(utf8.encode(shape(8_000_000)), 2);
    // 20 times the bytes; 400 times the work if anything were quadratic.
    expect(large).toBeLessThan(150 * Math.max(small, 0.2));
  }
});
