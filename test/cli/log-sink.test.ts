import { expect, test } from "bun:test";
import { logSink } from "../../lib/cli/log-sink.ts";

/** A stream whose reader stalls and goes on when told. */
function stallable() {
  const written: string[] = [];
  const stream = {
    stalled: false,
    drained: () => {},
    write(text: string) {
      written.push(text);
      return !stream.stalled;
    },
    on(event: "drain" | "error", then: (() => void) | ((error: Error) => void)) {
      if (event === "drain") stream.drained = then as () => void;
    },
  };
  return { stream, written };
}

test("lines go out one by one", () => {
  const { stream, written } = stallable();
  const sink = logSink(stream);
  sink("a");
  sink("b");
  expect(written).toEqual(["a\n", "b\n"]);
});

test("a stalled reader costs a bounded amount, and is told what it missed", () => {
  const { stream, written } = stallable();
  const sink = logSink(stream);
  stream.stalled = true;
  for (let line = 0; line < 100_000; line++) sink("x".repeat(999));
  const kept = written.length;
  expect(kept).toBeGreaterThan(1_000);
  expect(kept * 1_000).toBeLessThan(1_100_000);

  stream.stalled = false;
  stream.drained();
  expect(written.at(-1)).toBe(`${100_000 - kept} log lines were dropped: nobody read them\n`);
  sink("on again");
  expect(written.at(-1)).toBe("on again\n");
  stream.drained();
  expect(written.at(-1)).toBe("on again\n");
});

test("a reader that has gone does not end the process", async () => {
  const script = `
    import { logSink } from "./lib/cli/log-sink.ts";
    const sink = logSink(process.stderr);
    for (let line = 0; line < 50; line++) { sink("line " + line); await Bun.sleep(1); }
    process.exit(7);
  `;
  const child = Bun.spawn([process.execPath, "-e", script], {
    cwd: `${import.meta.dir}/../..`,
    stdout: "ignore",
    stderr: "pipe",
    timeout: 4_000,
  });
  await child.stderr.cancel();
  expect(await child.exited).toBe(7);
});
