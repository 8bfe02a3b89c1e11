/**
 * Where log lines leave the process. A node must not stop, and must not fill its memory, because
 * whatever reads its log has stalled or died: lines wait up to a bound, are dropped beyond it, and
 * how many were dropped is said when the reader goes on.
 */

/** What a line stream must be able to do; `process.stderr` is one. */
export interface LineStream {
  /** False where the text had to be kept for later. */
  write(text: string): boolean;
  on(event: "drain", then: () => void): unknown;
  on(event: "error", then: (error: Error) => void): unknown;
}

/** Some minutes of an ordinary log. */
const WAITING_BYTES_MAX = 1024 * 1024;

/** `onFailure` hears of what cannot be written. */
export function logSink(
  stream: LineStream,
  onFailure: (error: Error) => void = () => {},
): (line: string) => void {
  let waitingBytes = 0;
  let dropped = 0;
  stream.on("drain", () => {
    waitingBytes = 0;
    if (dropped === 0) return;
    const text = `${dropped} log lines were dropped: nobody read them\n`;
    dropped = 0;
    if (!stream.write(text)) waitingBytes = text.length;
  });
  // A reader that has gone (EPIPE) or a full disk is no reason to end; later lines fail in the same way.
  stream.on("error", onFailure);

  return (line) => {
    if (waitingBytes > WAITING_BYTES_MAX) {
      dropped++;
      return;
    }
    const text = `${line}\n`;
    if (!stream.write(text)) waitingBytes += text.length;
  };
}
