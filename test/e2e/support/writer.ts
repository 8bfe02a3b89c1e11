/**
 * A client that writes to one node all the time, and remembers what was answered: what was, must be on
 * every node in the end; what was not (the node was down) may be or not. It changes and removes only rows
 * that it made, a while ago, so that no other's rule about ties can undo an answered write.
 */
import type { Member } from "../../interop/support/fleet.ts";

export interface WriterOptions {
  /** Between a write's answer and the next write. */
  readonly pauseMs: number;
}

/** Rows younger than so many writes are left alone: foreign nodes stamp two writes of one millisecond alike. */
const YOUNG_ROWS = 40;
/** A node that is away is tried again after this. */
const AWAY_MS = 50;

export class Writer {
  readonly node: Member;
  /** How long each answered write took, in order. */
  readonly latenciesMs: number[] = [];
  readonly #options: WriterOptions;
  /** By id: the value that was answered last; undefined: its removal was. */
  readonly #answered = new Map<string, number | undefined>();
  /** A write of it had no answer: whatever is there is fine from then on. */
  readonly #unsure = new Set<string>();
  readonly #ids: string[] = [];
  #writes = 0;
  #isOver = false;
  #running: Promise<void> | undefined;

  constructor(node: Member, options: WriterOptions) {
    this.node = node;
    this.#options = options;
  }

  static start(node: Member, options: WriterOptions): Writer {
    const writer = new Writer(node, options);
    writer.#running = writer.#run();
    return writer;
  }

  /** Writes that were answered. */
  get count(): number {
    return this.latenciesMs.length;
  }

  async stop(): Promise<void> {
    this.#isOver = true;
    await this.#running;
  }

  /** Answered writes that these rows (id and value) do not show, a line each. */
  lostFrom(rows: ReadonlyMap<string, number>): string[] {
    return [...this.#answered]
      .filter(([id, value]) => !this.#unsure.has(id) && rows.get(id) !== value)
      .map(([id, value]) => `${this.node.id}: ${id} is ${rows.get(id)}, answered was ${value}`);
  }

  async #run(): Promise<void> {
    while (!this.#isOver) {
      await Bun.sleep((await this.#write()) ? this.#options.pauseMs : AWAY_MS);
    }
  }

  async #write(): Promise<boolean> {
    const at = this.#writes++;
    const old = this.#ids[this.#ids.length - YOUNG_ROWS - (at % 7)];
    const id = at % 4 === 3 && this.#answered.get(old ?? "") !== undefined ? old : undefined;
    const beganMs = performance.now();
    try {
      if (id === undefined) {
        const made = await this.node.create(`by ${this.node.id}`, at);
        this.#answered.set(made, at);
        this.#ids.push(made);
      } else if (at % 8 === 3) {
        await this.node.update(id, `changed by ${this.node.id}`, at);
        this.#answered.set(id, at);
      } else {
        await this.node.remove(id);
        this.#answered.set(id, undefined);
      }
    } catch {
      if (id !== undefined) this.#unsure.add(id);
      return false;
    }
    this.latenciesMs.push(performance.now() - beganMs);
    return true;
  }
}

/** Ids and values of a node's items, as its file has them. */
export function valuesOf(node: Member): Map<string, number> {
  const rows = node.sql<{ id: string; value: number }>("SELECT id, value FROM items");
  return new Map(rows.map(({ id, value }) => [id, value]));
}

/** The 99th of a hundred, and the longest. */
export function p99(latenciesMs: readonly number[]): string {
  const sorted = [...latenciesMs].sort((left, right) => left - right);
  const at = (share: number) =>
    (sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0).toFixed(1);
  return `p50 ${at(0.5)} ms, p99 ${at(0.99)} ms, longest ${at(1)} ms of ${sorted.length}`;
}
