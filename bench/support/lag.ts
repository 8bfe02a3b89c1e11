/** How long a row takes from the answer to its writer until another node's file shows it. */
import { Client, waitMicroseconds } from "./client.ts";
import { ITEM } from "./load.ts";
import type { BenchNode } from "./nodes.ts";

export interface LagSample {
  /** From sending the request to its answer. */
  readonly writeMs: number;
  /** From the answer until the row is visible on the other node. */
  readonly lagMs: number;
}

/**
 * Looking is itself work on a shared machine: the other node's file is read directly, with pauses,
 * rather than asked over HTTP in a loop. What is measured is late by up to one pause.
 */
const LOOK_PAUSE_US = 50;
const LAG_MS_MAX = 10_000;

/** `count` single rows, each written when the one before is visible and a pause is over. */
export async function measureLag(
  from: BenchNode,
  to: BenchNode,
  count: number,
  pauseMs: number,
): Promise<LagSample[]> {
  const client = new Client(from.url, ITEM);
  const look = to.reader.query<unknown, [string]>("SELECT 1 FROM items WHERE id = ?");
  const samples: LagSample[] = [];
  for (let i = 0; i < count; i++) {
    const { id, answer } = await client.createItem();
    while (look.get(id) === null) {
      if (performance.now() - answer.answeredMs > LAG_MS_MAX) throw new Error("it never arrived");
      waitMicroseconds(LOOK_PAUSE_US);
    }
    samples.push({
      writeMs: answer.answeredMs - answer.sentMs,
      lagMs: performance.now() - answer.answeredMs,
    });
    await Bun.sleep(pauseMs);
  }
  return samples;
}

export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}
