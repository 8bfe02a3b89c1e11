/**
 * Load on one address, made by a process of its own so that making it takes nothing from the thread
 * that measures. Its ceiling is part of every result: `perCpuSecond` is what one core of generator
 * could do, and a bench that comes near it measures the generator.
 */
import { join } from "node:path";
import { spawnOwn } from "./processes.ts";

export interface LoadOptions {
  /** Base URL of the node. */
  readonly url: string;
  readonly path: string;
  readonly method?: string;
  readonly connections: number;
  /** Ends after this time, not counting half a second to warm up, or after so many requests. */
  readonly seconds?: number;
  readonly requests?: number;
  /** False: the first request counts, for bodies that can be sent only once. */
  readonly warm?: boolean;
  readonly body?: string;
  /** Sent one after the other, beginning again at the end; instead of `body`. */
  readonly bodyFiles?: readonly string[];
  readonly headers?: Readonly<Record<string, string>>;
}

export interface LoadResult {
  readonly requests: number;
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly maxMs: number;
  /** Answers that were not 2xx, and connections that broke. */
  readonly errors: number;
  readonly perCpuSecond: number;
}

/** Throws where a single request failed: such a measurement means nothing. */
export async function load(options: LoadOptions): Promise<LoadResult> {
  const script = join(import.meta.dir, "load-process.ts");
  const child = spawnOwn([process.execPath, script, JSON.stringify(options)], "pipe");
  const [text, code] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  if (code !== 0) throw new Error(`the load generator ended with ${code}`);
  const result: LoadResult = JSON.parse(text);
  if (result.errors > 0 || result.requests === 0) {
    throw new Error(
      `${options.url}${options.path}: ${result.errors} of ${result.requests} requests failed`,
    );
  }
  return result;
}

/** One row as every make of node takes it. */
export const ITEM = JSON.stringify({ name: "a name of some length", value: 4711 });

/** Single inserts, as in the table. */
export function postItems(url: string, connections: number, seconds: number): Promise<LoadResult> {
  return load({ url, path: "/api/items", connections, seconds, body: ITEM });
}
