/** What people and programs do to a fleet: writes of every kind, on few rows, so that they meet. */
import type { Database } from "bun:sqlite";
import type { Chance } from "./chance.ts";
import { LegacyNode } from "./legacy-node.ts";
import type { OurNode } from "./our-node.ts";
import type { Plan } from "./plan.ts";

const NAMES = ["a", "b", "c", "Ä", "", "z 'quoted'"] as const;
const EMAILS = ["e1@x", "e2@x", "e3@x"] as const;
const BIG_INTEGERS = ["9007199254740993", "9223372036854775807", "-9223372036854775808"] as const;
/** SQL of values for a column without a type. */
const EXTRAS = [
  "1",
  "1.0",
  "0.1 + 0.2",
  "'1'",
  "NULL",
  "x'00ff'",
  "x''",
  "1e21",
  "1000000",
  "-0.5",
] as const;
const OURS_ONLY_EXTRAS = ["9e999", "-9e999", "CAST(x'61ff62' AS TEXT)", "'a' || char(0) || 'b'"];

export class Workload {
  readonly #plan: Plan;
  readonly #chance: Chance;

  constructor(plan: Plan, chance: Chance) {
    this.#plan = plan;
    this.#chance = chance;
  }

  /** One write on this node, if it is up. */
  act(node: OurNode | LegacyNode): void {
    if (node instanceof LegacyNode) this.#writeLegacy(node);
    else if (this.#chance.hits(this.#plan.workload.program)) this.writeProgram(node);
    // Other programs go on while the node is down.
    else if (node.isUp) this.#writeRest(node);
  }

  #table(): string {
    const names = this.#plan.schema.tables.map(({ name }) => name);
    return this.#chance.hits(0.6) ? names[0]! : this.#chance.pick(names);
  }

  /** A row that is there, or one that everybody knows of. */
  #target(db: Database, table: string): string {
    const ids = db
      .query<{ id: string }, []>(`SELECT id FROM ${table} ORDER BY id LIMIT 30`)
      .all()
      .map((row) => row.id);
    const isThere = ids.length > 0 && this.#chance.hits(0.75);
    return isThere ? this.#chance.pick(ids) : this.#hot();
  }

  #hot(): string {
    return `h${this.#chance.below(this.#plan.workload.hotRows)}`;
  }

  #name(): string {
    const { longTexts } = this.#plan.workload;
    if (longTexts && this.#chance.hits(0.2)) return "x".repeat(this.#chance.spread(50, 2_000));
    return this.#chance.pick(NAMES);
  }

  // ── REST ────────────────────────────────────────────────────────────────────────────────────

  #writeRest(node: OurNode): void {
    const chance = this.#chance;
    const { workload } = this.#plan;
    const table = this.#table();
    const id = this.#target(node.running!.store.db, table);
    if (chance.hits(workload.deletes)) {
      node.remove(table, id);
    } else if (workload.batches && chance.hits(0.2)) {
      // Runs of ten and more take another path through apply.
      const rows = Array.from({ length: chance.between(2, 24) }, () => this.#restRow(table));
      node.createMany(table, rows);
    } else if (chance.hits(0.35)) {
      node.create(table, this.#restRow(table));
    } else {
      node.update(table, id, this.#restRow(table));
    }
  }

  #restRow(table: string): Record<string, unknown> {
    const chance = this.#chance;
    switch (table) {
      case "accounts":
        return { email: chance.pick(EMAILS), n: chance.below(3) };
      case "notes":
        return chance.hits(0.5)
          ? { body: this.#name(), price: chance.pick([1, 0.5, -2, 1e21]) }
          : { photo: chance.pick(["\\x00ff", "\\x", null]), extra: chance.pick([1, "t", 0.25]) };
      default: {
        const big = this.#plan.workload.oddValues && chance.hits(0.2);
        const value = big ? BigInt(chance.pick(BIG_INTEGERS)) : chance.below(4);
        return chance.hits(0.7) ? { name: this.#name(), value } : { name: this.#name() };
      }
    }
  }

  // ── Another program ─────────────────────────────────────────────────────────────────────────

  writeProgram(node: OurNode): void {
    const table = this.#table();
    const id = this.#target(node.program, table);
    const statements = this.#statements(node, table, id);
    node.runProgram([`${table}/${id}`], statements);
  }

  /** SQL of a stamp, or undefined where the program does not care. */
  #stamp(nowMs: number): string | undefined {
    const chance = this.#chance;
    const { forgetsStamps, oddStamps } = this.#plan.workload;
    if (forgetsStamps && chance.hits(0.5)) return undefined;
    if (oddStamps && chance.hits(0.4)) {
      return chance.pick([
        "NULL",
        "0",
        "-5",
        "'soon'",
        "1.5",
        `${nowMs - 100_000}`,
        `${nowMs + 2 * 3_600_000}`,
        `${nowMs + 864_000_000}`,
        "9007199254740993",
        `${nowMs + 50 * 60_000}`,
      ]);
    }
    return String(nowMs);
  }

  #statements(node: OurNode, table: string, id: string): string[] {
    const chance = this.#chance;
    const { workload } = this.#plan;
    const stamp = this.#stamp(node.clock.peekMs());
    const sets = (extra: readonly string[] = []) =>
      [...this.#sets(node, table), ...extra, ...(stamp ? [`updated_at = ${stamp}`] : [])].join(
        ", ",
      );
    const insert = (verb: string, ownId: string, tail = "") => {
      const cells = this.#cells(node, table);
      const names = ["id", ...Object.keys(cells), ...(stamp ? ["updated_at"] : [])];
      const values = [`'${ownId}'`, ...Object.values(cells), ...(stamp ? [stamp] : [])];
      return `${verb} INTO ${table}(${names.join(", ")}) VALUES (${values.join(", ")})${tail}`;
    };
    const update = () => `UPDATE ${table} SET ${sets()} WHERE id = '${id}'`;
    const remove = `DELETE FROM ${table} WHERE id = '${id}'`;
    const choices: (readonly [number, () => string[]])[] = [
      [10, () => [update()]],
      [6, () => [insert("INSERT OR IGNORE", chance.hits(0.5) ? id : this.#hot())]],
      [3, () => [insert("INSERT", id, ` ON CONFLICT(id) DO UPDATE SET ${sets()}`)]],
      [2, () => [`UPDATE ${table} SET ${sets()}`]],
      [2, () => [update(), update()]],
    ];
    if (chance.hits(workload.deletes)) {
      choices.push(
        [10, () => [remove]],
        [5, () => [remove, insert("INSERT", id)]],
        [3, () => [insert("INSERT OR IGNORE", id), remove]],
        [2, () => [update(), remove]],
        [1, () => [`DELETE FROM ${table}`]],
      );
    }
    if (workload.replaces) {
      choices.push(
        [10, () => [insert("INSERT OR REPLACE", id)]],
        [2, () => [update(), insert("REPLACE", id)]],
        [2, () => [insert("INSERT OR REPLACE", id), remove]],
      );
    }
    if (workload.changesIds) {
      const other = chance.hits(0.5) ? this.#hot() : `m${chance.below(4)}`;
      choices.push(
        [6, () => [`UPDATE OR IGNORE ${table} SET id = '${other}' WHERE id = '${id}'`]],
        [
          3,
          () => [`UPDATE OR REPLACE ${table} SET ${sets([`id = '${other}'`])} WHERE id = '${id}'`],
        ],
        [
          2,
          () => [
            `UPDATE OR IGNORE ${table} SET id = 'moving' WHERE id = '${id}'`,
            `UPDATE OR IGNORE ${table} SET id = '${id}' WHERE id = '${other}'`,
            `UPDATE OR IGNORE ${table} SET id = '${other}' WHERE id = 'moving'`,
          ],
        ],
      );
    }
    if (table === "accounts") {
      const email = chance.pick(EMAILS);
      const other = this.#target(node.program, table);
      choices.push(
        [8, () => [`UPDATE OR REPLACE accounts SET email = '${email}' WHERE id = '${id}'`]],
        [8, () => [insert("INSERT OR REPLACE", `n${chance.below(5)}`)]],
        [
          8,
          () => [
            `UPDATE accounts SET n = n + 1, email = NULL WHERE id = '${id}'`,
            `UPDATE OR IGNORE accounts SET email = '${email}' WHERE id = '${other}'`,
            `UPDATE OR IGNORE accounts SET email = '${chance.pick(EMAILS)}' WHERE id = '${id}'`,
          ],
        ],
      );
    }
    return chance.weighted(choices)();
  }

  #sets(node: OurNode, table: string): string[] {
    const cells = Object.entries(this.#cells(node, table)).filter(([name]) => name !== "node_id");
    const count = this.#chance.between(1, cells.length);
    return cells.slice(0, count).map(([name, value]) => `${name} = ${value}`);
  }

  /** SQL values of some columns, the important ones first. */
  #cells(node: OurNode, table: string): Record<string, string> {
    const chance = this.#chance;
    const { oddValues, oursOnlyValues } = this.#plan.workload;
    const odd = (share: number) => oddValues && chance.hits(share);
    const text = quote(this.#name());
    if (table === "accounts") {
      const email = chance.hits(0.85) ? quote(chance.pick(EMAILS)) : "NULL";
      return { email, n: String(chance.below(3)) };
    }
    if (table === "notes") {
      const extras = oursOnlyValues ? [...EXTRAS, ...OURS_ONLY_EXTRAS] : EXTRAS;
      const body = oursOnlyValues && chance.hits(0.2) ? "CAST(x'61ff' AS TEXT)" : text;
      return {
        extra: chance.pick(extras),
        body,
        photo: chance.pick(["NULL", "x'00ff'", "x''", "x'ab'"]),
        price: chance.pick(oursOnlyValues ? ["1", "0.1", "9e999"] : ["1", "0.1", "NULL", "-1e-7"]),
      };
    }
    const value = odd(0.2) ? chance.pick(BIG_INTEGERS) : String(chance.below(4));
    const cells: Record<string, string> = { name: text, value, node_id: quote(node.url) };
    for (const { table: of, column } of this.#plan.schema.later) {
      if (of !== table || !hasColumn(node.program, table, column)) continue;
      cells[column] = column === "size" ? String(chance.below(3)) : quote(chance.pick(NAMES));
    }
    return cells;
  }

  // ── Nodes of other makes ────────────────────────────────────────────────────────────────────

  #writeLegacy(node: LegacyNode): void {
    const chance = this.#chance;
    const { workload } = this.#plan;
    const table = this.#table();
    const id = this.#target(node.db, table);
    const nowMs = node.clock.peekMs();
    const cells: Record<string, string> =
      table === "notes"
        ? { body: quote(this.#name()), price: chance.pick(["1", "0.1", "NULL"]) }
        : { name: quote(this.#name()), value: String(chance.below(4)) };
    const insert = (verb: string, ownId: string) => {
      const own = table === "notes" ? {} : { created_at: String(nowMs), node_id: quote(node.url) };
      const all = { id: quote(ownId), ...cells, ...own, updated_at: String(nowMs) };
      return `${verb} INTO ${table}(${Object.keys(all).join(", ")}) VALUES (${Object.values(all).join(", ")})`;
    };
    const key = `${table}/${id}`;
    if (chance.hits(workload.deletes)) {
      node.write(`DELETE FROM ${table} WHERE id = '${id}'`, key);
      if (chance.hits(0.3)) node.write(insert("INSERT", id), key);
      return;
    }
    const sets = Object.entries(cells).map(([name, value]) => `${name} = ${value}`);
    if (!workload.legacyKeepsStamps || chance.hits(0.6)) sets.push(`updated_at = ${nowMs}`);
    const other = chance.hits(0.5) ? this.#hot() : chance.uuid();
    const sql = chance.weighted<() => string>([
      [10, () => `UPDATE ${table} SET ${sets.join(", ")} WHERE id = '${id}'`],
      [5, () => insert("INSERT OR IGNORE", other)],
      [workload.replaces ? 5 : 0, () => insert("INSERT OR REPLACE", id)],
    ])();
    node.write(sql, key);
  }
}

export function hasColumn(db: Database, table: string, column: string): boolean {
  return db.query("SELECT 1 FROM pragma_table_info(?) WHERE name = ?").get(table, column) !== null;
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}
