/**
 * The processes of a bench, and what the system says of them. Every process is remembered by its id
 * and ended by it, also when the bench fails or is interrupted; nothing is looked up by name.
 */
import { readFileSync } from "node:fs";

const running = new Set<Bun.Subprocess>();

process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});
for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => process.exit(130));

/** Ours reads its flags from the environment, too, and must not take this one's for them. */
const environment = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !name.startsWith("HOOK_SYNC_")),
);

export function spawnOwn(
  command: readonly string[],
  stdout: "pipe" | "ignore",
  log?: string,
): Bun.Subprocess<"ignore", "pipe", "inherit"> {
  const child = Bun.spawn([...command], {
    env: environment,
    stdin: "ignore",
    stdout: stdout as "pipe",
    stderr: (log === undefined ? "inherit" : Bun.file(log)) as "inherit",
  });
  running.add(child);
  void child.exited.then(() => running.delete(child));
  return child;
}

/** Time for a clean end; a node of ours drains for up to 2 s. */
const STOP_MS_MAX = 5_000;

export async function end(child: Bun.Subprocess): Promise<void> {
  child.kill("SIGTERM");
  const kill = setTimeout(() => child.kill("SIGKILL"), STOP_MS_MAX);
  await child.exited;
  clearTimeout(kill);
}

/** The most memory the process ever had, in MB (10^6 bytes). */
export function peakRssMb(pid: number): number {
  return statusKib(pid, "VmHWM") * 1.024e-3;
}

export function rssMb(pid: number): number {
  return statusKib(pid, "VmRSS") * 1.024e-3;
}

function statusKib(pid: number, field: string): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(status)![1]);
}

/** Ticks are hundredths of a second on Linux, whatever the kernel's own rate is. */
const TICKS_PER_SECOND = 100;

/** Seconds that all threads of the process have computed so far. */
export function cpuSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  // The name in parentheses may contain anything.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
}
