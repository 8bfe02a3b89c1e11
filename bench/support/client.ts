/** One connection over which one request at a time is made, with the moment each answer was complete. */

export interface Answer {
  readonly status: number;
  readonly body: string;
  readonly sentMs: number;
  readonly answeredMs: number;
}

/** Single inserts one after the other, as a client with light work would make them. */
export class Client {
  readonly #url: string;
  readonly #body: string;

  constructor(url: string, body: string) {
    this.#url = url;
    this.#body = body;
  }

  /** The id of the row that was made. */
  async createItem(): Promise<{ readonly id: string; readonly answer: Answer }> {
    const sentMs = performance.now();
    const response = await fetch(`${this.#url}/api/items`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: this.#body,
    });
    const body = await response.text();
    const answer = { status: response.status, body, sentMs, answeredMs: performance.now() };
    if (!response.ok) throw new Error(`POST /api/items: ${response.status} ${body}`);
    return { id: (JSON.parse(body) as { id: string }).id, answer };
  }
}

const pause = new Int32Array(new SharedArrayBuffer(4));

/** Waits without giving up the thread: a timer of the event loop is too coarse for less than 1 ms. */
export function waitMicroseconds(microseconds: number): void {
  Atomics.wait(pause, 0, 0, microseconds / 1_000);
}
