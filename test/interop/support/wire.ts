/**
 * The network between two nodes, as far as a test wants to bend it. Nodes are separate programs, so
 * the only place where a reply can be lost or a link be cut is between their sockets:
 *
 *   Wire      a TCP link to a node that can be cut, silenced, or lose replies on the way back;
 *   Tap       an HTTP link to a node that keeps what passed, to look at the wire itself;
 *   Recorder  no node at all: keeps what is sent to it and answers as the test says.
 */
import { connect, createServer, type Server, type Socket } from "node:net";

/** What a Wire does with traffic. `lose-replies` lets every request through and no answer back. */
export type WireMode = "pass" | "down" | "lose-replies" | "hang";

/** A TCP link to a port of this machine. Changing the mode ends the connections that stand. */
export class Wire {
  /** Replies that were thrown away so far. */
  repliesLost = 0;
  #mode: WireMode = "pass";
  readonly #sockets = new Set<Socket>();
  readonly #unused = new Set<Socket>();
  readonly #server: Server;
  readonly #targetPort: number;
  readonly port: number;

  private constructor(port: number, targetPort: number) {
    this.port = port;
    this.#targetPort = targetPort;
    this.#server = createServer((client) => this.#accept(client));
  }

  static async open(port: number, targetPort: number): Promise<Wire> {
    const wire = new Wire(port, targetPort);
    await new Promise<void>((resolve, reject) => {
      wire.#server.once("error", reject);
      wire.#server.listen(port, "127.0.0.1", resolve);
    });
    return wire;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  set(mode: WireMode): void {
    this.#mode = mode;
    for (const socket of this.#sockets) this.#end(socket);
  }

  close(): void {
    this.#mode = "down";
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }

  #accept(client: Socket): void {
    this.#keep(client);
    this.#unused.add(client);
    client.once("data", () => this.#unused.delete(client));
    if (this.#mode === "hang") return;
    if (this.#mode === "down") {
      this.#end(client);
      return;
    }
    const upstream = connect(this.#targetPort, "127.0.0.1");
    this.#keep(upstream);
    client.on("data", (bytes) => upstream.write(bytes));
    upstream.on("data", (bytes) => {
      if (this.#mode === "lose-replies") {
        this.repliesLost += 1;
        client.destroy();
        upstream.destroy();
      } else {
        client.write(bytes);
      }
    });
    // HTTP needs no half-open connections: one side's end is the end of both.
    for (const event of ["end", "close"] as const) {
      client.on(event, () => upstream.destroy());
      upstream.on(event, () => this.#end(client));
    }
  }

  /**
   * Ends a connection, but one over which nothing has come yet only when something comes: the fetch of
   * Node 20 waits for ever when its fresh connection is closed before it could write to it.
   */
  #end(socket: Socket): void {
    if (this.#unused.has(socket)) socket.once("data", () => socket.destroy());
    else socket.destroy();
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on("close", () => {
      this.#sockets.delete(socket);
      this.#unused.delete(socket);
    });
    // A reset is what these links are for; the nodes are asked what they made of it, not the link.
    socket.on("error", () => socket.destroy());
  }
}

/** One change as it stands in a body. */
export interface WireChange {
  op: string;
  table: string;
  row: Record<string, unknown> | null;
  old_id: string | null;
}

/** One POST /sync as it came over the wire. */
export interface SyncRequest {
  batchId: number;
  changes: WireChange[];
  headers: Record<string, string>;
  raw: string;
}

async function readSync(request: Request): Promise<SyncRequest> {
  const raw = await request.text();
  const body = JSON.parse(raw) as { batch_id: number; changes: WireChange[] | null };
  return {
    batchId: body.batch_id,
    changes: body.changes ?? [],
    headers: Object.fromEntries(request.headers),
    raw,
  };
}

function isSync(request: Request): boolean {
  return request.method === "POST" && new URL(request.url).pathname === "/sync";
}

/** Larger than any node of the suite sends. */
const BODY_BYTES_MAX = 256 * 1024 * 1024;

/** An HTTP link that keeps every POST /sync it passes on. */
export class Tap {
  readonly requests: SyncRequest[] = [];
  readonly port: number;
  readonly #server: Bun.Server<undefined>;

  constructor(port: number, target: string) {
    this.port = port;
    this.#server = Bun.serve({
      port,
      hostname: "127.0.0.1",
      maxRequestBodySize: BODY_BYTES_MAX,
      fetch: async (request) => {
        const { pathname } = new URL(request.url);
        const headers = new Headers(request.headers);
        headers.delete("host");
        const init: RequestInit = { method: request.method, headers };
        if (isSync(request)) {
          const seen = await readSync(request);
          this.requests.push(seen);
          init.body = seen.raw;
        } else if (request.body !== null) {
          init.body = await request.text();
        }
        const answer = await fetch(target + pathname, init).catch(() => undefined);
        if (answer === undefined) return new Response("no answer behind the tap", { status: 502 });
        const replyHeaders = new Headers(answer.headers);
        for (const name of ["content-encoding", "content-length", "transfer-encoding"]) {
          replyHeaders.delete(name);
        }
        return new Response(await answer.text(), { status: answer.status, headers: replyHeaders });
      },
    });
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get changes(): WireChange[] {
    return this.requests.flatMap((request) => request.changes);
  }

  async close(): Promise<void> {
    await this.#server.stop(true);
  }
}

/** A peer that the test plays itself. Acknowledges everything unless told otherwise. */
export class Recorder {
  readonly requests: SyncRequest[] = [];
  respond: (request: SyncRequest) => Response = (request) =>
    Response.json({ applied: request.changes.length, ack: request.batchId });
  readonly port: number;
  readonly #server: Bun.Server<undefined>;

  constructor(port: number) {
    this.port = port;
    this.#server = Bun.serve({
      port,
      hostname: "127.0.0.1",
      maxRequestBodySize: BODY_BYTES_MAX,
      fetch: async (request) => {
        if (!isSync(request)) return Response.json({ error: "not found" }, { status: 404 });
        const seen = await readSync(request);
        this.requests.push(seen);
        return this.respond(seen);
      },
    });
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  get changes(): WireChange[] {
    return this.requests.flatMap((request) => request.changes);
  }

  async close(): Promise<void> {
    await this.#server.stop(true);
  }
}
