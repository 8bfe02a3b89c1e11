/**
 * Bodies of POST /sync as hostile, broken and merely odd senders write them: batches of valid changes among
 * which some are not, then damage to their structure, their tokens and their bytes.
 */
import { formatValue } from "../../lib/protocol/values.ts";
import { damage } from "../support/damage.ts";
import { randomValue } from "../support/random-values.ts";
import { T } from "../support/receive-fixture.ts";
import type { Seeded } from "../support/seeded.ts";
import { array, type Json, type Member, object, spelled, text, token } from "./json-tree.ts";
import { type FuzzTable, REFUSED_NAME, ROLLED_BACK_NAME, TABLES } from "./tables.ts";

const encoder = new TextEncoder();

/** What differs between the lives of nodes, so that each kind of trouble is met often and alone. */
export interface Style {
  readonly ids: readonly string[];
  readonly versions: number;
  readonly deletes: number;
  /** How often a value is of the usual kind: many such rows go into the file at once. */
  readonly plainness: number;
  /** How often a change has something odd about it. */
  readonly oddities: number;
  readonly damages: number;
  readonly changesMax: number;
  readonly tables: readonly FuzzTable[];
}

export function randomStyle(random: Seeded): Style {
  const count = random.pick([2, 15, 60, 300]);
  const plainIds = Array.from({ length: count }, (_, i) => `row ${i}`);
  return {
    ids: random.chance(0.5) ? plainIds : [...plainIds, ...IDS],
    versions: random.pick([1, 2, 5, 1_000]),
    deletes: random.pick([0, 0.1, 0.5]),
    plainness: random.pick([0, 0.8, 0.98, 1]),
    oddities: random.pick([0, 0.05, 0.2, 0.4]),
    damages: random.pick([0, 0, 0, 0.3, 1]),
    changesMax: random.pick([3, 60, 200, 300]),
    tables: random.pick([TABLES, TABLES.slice(0, 2), [TABLES[0]!], [random.pick(TABLES)]]),
  };
}

const IDS = [
  "a\0b",
  "a\0c",
  "",
  "\u{1f600}",
  "é",
  "e\u0301",
  "'",
  '"',
  "%00",
  "__proto__",
  " ",
  "1",
];
const TEXTS = [
  "",
  "a",
  "A",
  "abc",
  "bad",
  REFUSED_NAME,
  ROLLED_BACK_NAME,
  "a\0b",
  "\u2028</script>&<",
  "👨‍👩‍👧‍👦",
  "\\x00ff",
  "\\x0",
  "\\xZZ",
  "1e5",
  "12",
  " 12 ",
  "9223372036854775808",
  "\ufeff",
];
const NUMBERS = [
  "0",
  "-0",
  "1",
  "1.0",
  "-1.5",
  "1e2",
  "1E+2",
  "123456789012345",
  "1234567890123456",
  "9007199254740991",
  "9007199254740992",
  "9007199254740993",
  "9223372036854775807",
  "-9223372036854775808",
  "9223372036854775808",
  "18446744073709551617",
  "1e21",
  "1e300",
  "1e400",
  "-1e400",
  "1e-400",
  "-1e-400",
  "0.1",
  "0.30000000000000004",
  "5e-324",
  `1${"0".repeat(400)}`,
  `0.${"3".repeat(60)}`,
];
/** Texts no column can hold. */
const BROKEN_TEXTS = ["\ud800", "a\udfff", "\ud83d\ud83d", "x\ud800\0"];

// ── Changes ─────────────────────────────────────────────────────────────────────────────────────

function cell(random: Seeded): Json {
  const kind = random.below(10);
  if (kind < 2) return token("null");
  if (kind < 5) return token(random.pick(NUMBERS));
  if (kind < 8) return text(random.pick(TEXTS));
  if (kind === 8) return token(random.pick(["true", "false"]));
  const value = randomValue(random);
  return value.kind === "blob" || value.kind === "broken-text"
    ? text(`\\x${value.hex}`)
    : readScalar(formatValue(value));
}

function readScalar(source: string): Json {
  return source.startsWith('"') ? text(JSON.parse(source)) : token(source);
}

/** What a sender of good will writes. */
export function validChange(random: Seeded, style: Style): Json {
  const table = random.pick(style.tables);
  const id = random.pick(style.ids);
  const members: [string, Json][] = [[table.id, text(id)]];
  const isPartial = random.chance(0.05);
  const named: string[] = [];
  for (const column of table.columns) {
    if (isPartial && random.chance(0.5)) continue;
    const value = cellOf(table, column, random, style);
    if (random.chance(0.5) && value.kind === "string" && /^\\x([0-9a-f]{2})*$/.test(value.value)) {
      named.push(column);
    }
    members.push([column, value]);
  }
  for (const column of table.generated) if (random.chance(0.5)) members.push([column, token("5")]);
  members.push(["updated_at", token(String(T - 500 + random.below(style.versions)))]);
  const isDelete = random.chance(style.deletes);
  const row = isDelete && random.chance(0.1) ? token("null") : object(members);
  const oldId = isDelete
    ? random.chance(0.9)
      ? text(id)
      : token("null")
    : random.pick([token("null"), text("")]);
  const change: [string, Json][] = [
    ["op", text(isDelete ? "DELETE" : random.pick(["INSERT", "UPDATE"]))],
    ["table", text(table.name)],
    ["row", row],
    ["old_id", oldId],
  ];
  if (named.length > 0) change.push(["blobs", array(named.map(text))]);
  return object(change);
}

/** Mostly what the column is for: a strict table would refuse nearly everything else. */
function cellOf(table: FuzzTable, column: string, random: Seeded, style: Style): Json {
  if (table.name !== "strict" && random.chance(style.plainness)) {
    return random.pick([token("null"), text("plain"), token(String(random.below(1_000)))]);
  }
  if (table.name === "strict" && random.chance(Math.max(0.9, style.plainness))) {
    if (column === "n") return token(String(random.below(5)));
    if (column === "r") return token(random.pick(["1.5", "2", "1e300"]));
    if (column === "t") return text(random.pick(["good", "\0", ""]));
    if (column === "z") return random.pick([token("null"), text("\\x00ff")]);
  }
  if (table.name === "guarded" && random.chance(0.7)) return text(random.pick(["a", "b"]));
  return cell(random);
}

// ── Oddities: one thing wrong, or merely unusual, with one change ───────────────────────────────

type Edit = (change: Json, random: Seeded) => Json;

const ODDITIES: readonly Edit[] = [
  (change, random) => setMember(change, "op", oddValue(random)),
  (change, random) => setMember(change, "op", text(random.pick(["insert", "REPLACE", ""]))),
  (change, random) => setMember(change, "table", oddValue(random)),
  (change, random) =>
    setMember(
      change,
      "table",
      text(
        random.pick([
          "nosuch",
          "_meta",
          "_CHANGES",
          "_peer_state",
          "_hooksync_settings",
          "sqlite_master",
          "secrets",
          "main.items",
          'items"; DROP TABLE items; --',
          "pragma_table_info",
          "toString",
          "__proto__",
          "ITEMS",
          "oTHER tHINGS",
          "\ud800",
        ]),
      ),
    ),
  (change, random) => setMember(change, "row", oddValue(random)),
  (change, random) => setMember(change, "old_id", oddValue(random)),
  (change, random) => setMember(change, "old_id", text(random.pick(["row 0", "row 1", "\ud801"]))),
  (change, random) => setMember(change, random.pick(["blobs", "texts"]), oddValue(random)),
  (change, random) => {
    const names = ["id", "ID", "name", "x", "b", "z", "a b", "nosuch"].filter(() =>
      random.chance(0.4),
    );
    return setMember(change, random.pick(["blobs", "texts"]), array(names.map(text)));
  },
  (change, random) => setMember(change, random.pick(["seq", "", "__proto__"]), oddValue(random)),
  inRow((row, random) => setMember(row, random.pick(["id", "ID"]), oddValue(random))),
  inRow((row, random) => setMember(row, "id", text(random.pick([...BROKEN_TEXTS, ...IDS])))),
  inRow((row, random) => setMember(row, "updated_at", oddValue(random))),
  inRow((row, random) => setMember(row, "updated_at", token(random.pick(NUMBERS)))),
  inRow((row, random) => {
    const aheadMs = random.pick([60_000, 3_600_000, 3_600_001, 1e10]);
    return setMember(row, "updated_at", token(String(T + aheadMs)));
  }),
  inRow((row, random) => setMember(row, pickName(row, random), oddValue(random))),
  inRow((row, random) => setMember(row, pickName(row, random), text(random.pick(BROKEN_TEXTS)))),
  inRow((row, random) => setMember(row, pickName(row, random), cell(random))),
  inRow((row, random) => dropMember(row, pickName(row, random))),
  inRow((row, random) =>
    setMember(row, random.pick(["extra", "Extra", "", "\0", "\ud800", "\ud801"]), cell(random)),
  ),
  inRow((row, random) => ({
    kind: "object",
    members: (row.kind === "object" ? row.members : []).map(({ name, value }) => ({
      name: random.chance(0.5) ? name.toUpperCase() : name,
      value,
    })),
  })),
  inRow((row, random) => addMember(row, pickName(row, random), cell(random))),
  inRow((row, random) => addMember(row, pickName(row, random).toUpperCase(), cell(random))),
  inRow((row, random) =>
    row.kind === "object" ? { kind: "object", members: random.shuffled(row.members) } : row,
  ),
  inRow((row, random) => {
    let wide = row;
    const count = random.chance(0.05) ? 2_100 : random.pick([1, 70]);
    for (let i = 0; i < count; i++) wide = addMember(wide, `wide ${i}`, token("1"));
    return wide;
  }),
  (change, random) => addMember(change, pickName(change, random), oddValue(random)),
  (change, random) => dropMember(change, pickName(change, random)),
  (_, random) => oddValue(random),
];

function oddValue(random: Seeded): Json {
  return random.pick<() => Json>([
    () => token("null"),
    () => token("true"),
    () => token(random.pick(NUMBERS)),
    () => text(random.pick(TEXTS)),
    () => text(random.pick(BROKEN_TEXTS)),
    () => array([]),
    () => array([token("6")]),
    () => object([]),
    () => object([["id", text("row 0")]]),
    () =>
      nested(random.chance(0.02) ? random.pick([61, 64, 200]) : random.pick([3, 59, 60]), random),
  ])();
}

function nested(depth: number, random: Seeded): Json {
  let json: Json = token("1");
  for (let i = 0; i < depth; i++) {
    json = random.chance(0.5) ? array([json]) : object([["a", json]]);
  }
  return json;
}

function inRow(edit: Edit): Edit {
  return (change, random) => {
    if (change.kind !== "object") return change;
    return {
      kind: "object",
      members: change.members.map((member) =>
        member.name === "row" ? { ...member, value: edit(member.value, random) } : member,
      ),
    };
  };
}

function pickName(json: Json, random: Seeded): string {
  if (json.kind !== "object" || json.members.length === 0) return "name";
  return random.pick(json.members).name;
}

function setMember(json: Json, name: string, value: Json): Json {
  if (json.kind !== "object") return json;
  const others = json.members.filter((member) => member.name !== name);
  return { kind: "object", members: [...others, { name, value }] };
}

function addMember(json: Json, name: string, value: Json): Json {
  if (json.kind !== "object") return json;
  return { kind: "object", members: [...json.members, { name, value }] };
}

function dropMember(json: Json, name: string): Json {
  if (json.kind !== "object") return json;
  return { kind: "object", members: json.members.filter((member) => member.name !== name) };
}

// ── Bodies ──────────────────────────────────────────────────────────────────────────────────────

export function randomBody(random: Seeded, style: Style, batchId: number): Uint8Array {
  const changes: Json[] = [];
  for (let i = 1 + random.below(style.changesMax); i > 0; i--) {
    let change = validChange(random, style);
    while (random.chance(style.oddities)) change = random.pick(ODDITIES)(change, random);
    changes.push(change);
    if (random.chance(0.03)) changes.push(random.pick(changes));
  }
  let envelope: Json = object([
    ["batch_id", token(String(batchId))],
    ["changes", array(changes)],
  ]);
  if (random.chance(0.1)) envelope = addMember(envelope, "more", oddValue(random));
  let isDamaged = random.chance(style.damages);
  if (isDamaged && random.chance(0.2)) {
    envelope = random.pick<() => Json>([
      () => addMember(envelope, random.pick(["changes", "batch_id"]), oddValue(random)),
      () => dropMember(envelope, random.pick(["changes", "batch_id"])),
      () => setMember(envelope, random.pick(["changes", "batch_id"]), oddValue(random)),
      () => oddValue(random),
    ])();
    isDamaged = random.chance(0.3);
  }
  while (isDamaged && random.chance(0.5)) envelope = mutate(envelope, random);
  let body: Uint8Array = encoder.encode(spelled(envelope, random));
  while (isDamaged && random.chance(0.5)) body = damage(body, random);
  return body;
}

/** Somewhere in the tree something is taken out, doubled, exchanged or put around. */
function mutate(json: Json, random: Seeded): Json {
  if (json.kind === "array" && json.items.length > 0 && random.chance(0.9)) {
    const at = random.below(json.items.length);
    const items = json.items.flatMap((item, i) => (i === at ? edited(item, random) : [item]));
    return array(items);
  }
  if (json.kind === "object" && json.members.length > 0 && random.chance(0.9)) {
    const at = random.below(json.members.length);
    const members = json.members.flatMap((member, i): Member[] => {
      if (i !== at) return [member];
      if (random.chance(0.1)) return [{ ...member, name: random.pick(json.members).name }];
      return edited(member.value, random).map((value) => ({ ...member, value }));
    });
    return { kind: "object", members };
  }
  return oddValue(random);
}

function edited(json: Json, random: Seeded): Json[] {
  const kind = random.below(10);
  if (kind === 0) return [];
  if (kind === 1) return [json, json];
  if (kind === 2) return [array([json])];
  if (kind === 3) return [oddValue(random)];
  return [mutate(json, random)];
}
