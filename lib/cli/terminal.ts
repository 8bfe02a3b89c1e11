/**
 * Writing to standard output and error. Where nobody reads any more (`hook-sync help | head -1`)
 * that is no failure; and what was written has arrived before the process ends, which
 * `process.stdout.write` before an exit does not promise for a pipe.
 */
export interface Terminal {
  /** What was asked for. */
  out(text: string): Promise<void>;
  /** What went wrong. */
  err(text: string): Promise<void>;
}

/** The process's own two streams. */
export const systemTerminal: Terminal = {
  out: (text) => write(Bun.stdout, text),
  // Not even that it failed can be told: the exit code says what went wrong.
  err: (text) => write(Bun.stderr, text).catch(() => {}),
};

async function write(file: Bun.BunFile, text: string): Promise<void> {
  try {
    await Bun.write(file, text);
  } catch (error) {
    // The reader has gone, or there never was one: nobody is left to tell.
    const code = error instanceof Error && "code" in error ? error.code : undefined;
    if (code !== "EPIPE" && code !== "EBADF") throw error;
  }
}
