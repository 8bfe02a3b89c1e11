/** Rows written to one node of a pair until both are equal. */
import { type BenchNode, batchBody, type Make, type NodeOptions, startPair } from "./nodes.ts";

const ROWS_PER_REQUEST = 10_000;
/** A pair that is not equal by then never will be. */
const EQUAL_MS_MAX = 600_000;
const LOOK_MS = 5;

export interface BulkResult {
  readonly rowsPerSecond: number;
  /** While writing, what the writer alone was answered. */
  readonly writtenPerSecond: number;
  /** The higher of the two. */
  readonly peakRssMb: number;
  readonly cpuSecondsPerMillion: number;
}

/** A fresh pair, both idle before. One client writes batches of 10,000, one after the other. */
export async function bulk(
  dir: string,
  make: Make,
  rows: number,
  options: NodeOptions = {},
): Promise<BulkResult> {
  const [a, b] = await startPair(dir, make, options);
  await using _a = a;
  await using _b = b;
  // Code is compiled and connections are open before it counts.
  const warmRows = Math.min(50_000, rows / 10);
  await write(a, warmRows);
  await equal(b, warmRows);
  const cpuBefore = a.cpuSeconds + b.cpuSeconds;
  const beganMs = performance.now();
  await write(a, rows);
  const writtenMs = performance.now() - beganMs;
  await equal(b, warmRows + rows);
  const equalMs = performance.now() - beganMs;
  const cpu = a.cpuSeconds + b.cpuSeconds - cpuBefore;
  if (a.fingerprint() !== b.fingerprint()) {
    throw new Error(`${make}: the nodes differ: ${a.fingerprint()} and ${b.fingerprint()}`);
  }
  return {
    rowsPerSecond: (rows / equalMs) * 1_000,
    writtenPerSecond: (rows / writtenMs) * 1_000,
    peakRssMb: Math.max(a.peakRssMb, b.peakRssMb),
    cpuSecondsPerMillion: (cpu / rows) * 1e6,
  };
}

export async function write(node: BenchNode, rows: number): Promise<void> {
  const full = batchBody(ROWS_PER_REQUEST);
  for (let left = rows; left > 0; left -= ROWS_PER_REQUEST) {
    await node.createMany(left >= ROWS_PER_REQUEST ? full : batchBody(left));
  }
}

export async function equal(node: BenchNode, rows: number): Promise<void> {
  const untilMs = performance.now() + EQUAL_MS_MAX;
  for (;;) {
    const there = node.rowsInserted();
    if (there >= rows) return;
    if (performance.now() > untilMs) throw new Error(`${there} of ${rows} rows arrived`);
    await Bun.sleep(LOOK_MS);
  }
}
