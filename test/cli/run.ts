/** Runs the command line as a process of its own, and is sure that it ends. */
import { join } from "node:path";

const ROOT = join(import.meta.dir, "..", "..");
export const SERVER = join(ROOT, "server.ts");

/** Above what any of these takes on a busy machine, below bun:test's own limit. */
const RUN_MS_MAX = 4_500;

export interface Started {
  readonly pid: number;
  readonly exited: Promise<number>;
  kill(signal: NodeJS.Signals): void;
  /** Resolves once this text was printed; rejects when the process ends without. */
  printed(stream: "out" | "err", text: string): Promise<string>;
  /** Everything printed until the end. */
  ended(): Promise<Ended>;
}

export interface Ended {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

export interface RunOptions {
  readonly env?: Record<string, string>;
  readonly cwd?: string;
  readonly entry?: string;
  /** Where a stream goes instead of being read. */
  readonly out?: Bun.BunFile;
  readonly err?: Bun.BunFile;
  /** When it is ended at the latest, for a test that takes longer than most. */
  readonly msMax?: number;
}

export function start(argv: readonly string[], options: RunOptions = {}): Started {
  const { env = {}, cwd = ROOT, entry = SERVER, msMax = RUN_MS_MAX, out, err } = options;
  const child = Bun.spawn([process.execPath, entry, ...argv], {
    cwd,
    env: { ...cleanEnv(), ...env },
    stdin: "ignore",
    stdout: out ?? "pipe",
    stderr: err ?? "pipe",
    timeout: msMax,
    killSignal: "SIGKILL",
  });
  const text = { out: "", err: "" };
  const waiting = new Set<() => void>();
  type Output = ReadableStream<Uint8Array> | number | undefined;
  async function read(stream: Output, name: "out" | "err"): Promise<void> {
    if (!(stream instanceof ReadableStream)) return;
    const decoder = new TextDecoder();
    for await (const chunk of stream) {
      text[name] += decoder.decode(chunk, { stream: true });
      for (const look of [...waiting]) look();
    }
  }
  const allRead = Promise.all([read(child.stdout, "out"), read(child.stderr, "err")]);
  return {
    pid: child.pid,
    exited: child.exited,
    kill: (signal) => child.kill(signal),
    printed(stream, wanted) {
      return new Promise((resolve, reject) => {
        const look = () => {
          if (!text[stream].includes(wanted)) return;
          waiting.delete(look);
          resolve(text[stream]);
        };
        waiting.add(look);
        look();
        void allRead.then(() => reject(new Error(`ended without ${wanted}:\n${text.err}`)));
      });
    },
    async ended() {
      const [code] = await Promise.all([child.exited, allRead]);
      return { code, ...text };
    },
  };
}

export function run(argv: readonly string[], options: RunOptions = {}): Promise<Ended> {
  return start(argv, options).ended();
}

/** Without settings that the caller's shell may hold. */
function cleanEnv(): Record<string, string | undefined> {
  const entries = Object.entries(process.env).filter(([name]) => !name.startsWith("HOOK_SYNC_"));
  return Object.fromEntries(entries);
}
