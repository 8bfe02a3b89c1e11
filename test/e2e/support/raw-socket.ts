/** HTTP by hand: requests that no well-behaved client would send. */
import { connect, type Socket } from "node:net";

export class RawSocket implements Disposable {
  readonly #socket: Socket;
  #received = "";
  #isClosed = false;

  constructor(port: number) {
    this.#socket = connect(port, "127.0.0.1");
    this.#socket.on("data", (chunk) => {
      this.#received += chunk.toString("latin1");
    });
    // A reset by the node is one of the answers that are looked for.
    this.#socket.on("error", () => {});
    this.#socket.on("close", () => {
      this.#isClosed = true;
    });
  }

  get received(): string {
    return this.#received;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Status of the last answer that has come. */
  get status(): number | undefined {
    const found = [...this.#received.matchAll(/^HTTP\/1\.1 (\d{3})/gm)].at(-1);
    return found && Number(found[1]);
  }

  write(text: string | Uint8Array): void {
    if (!this.#isClosed) this.#socket.write(text);
  }

  [Symbol.dispose](): void {
    this.#socket.destroy();
  }
}
