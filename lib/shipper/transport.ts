/**
 * Sending to a peer over HTTP, and what its answer means.
 *
 * Anything may be at a peer's address: a portal that answers 200 to everything, a proxy without a
 * backend, a server that cuts the connection, one that never answers. Only a reply that names our
 * batch clears it from the queue; everything else is sorted into the classes of PROTOCOL.md's
 * failure table by `judgeReply`, which is a plain function.
 *
 * Invariants (test/shipper/transport.test.ts):
 *   T1  A call never rejects and always ends: in an outcome, within the time-out.
 *   T2  No reply is held in memory beyond its cap, and none is left unread on a kept connection.
 *   T3  No redirect is followed: a batch goes to the configured address or nowhere.
 */
import {
  formatIdentity,
  IDENTITY_HEADER,
  type Identity,
  NODE_ID_HEADER,
  NODE_URL_HEADER,
  parseIdentity,
} from "../protocol/identity.ts";
import { REPLY_BYTES_MAX } from "../protocol/limits.ts";
import type { PeerHealth } from "./messages.ts";
import { lossy } from "./wire-row.ts";

/** A node of ours names all of its tables and peers in /health: 500 and 256 are a few 100 KiB. */
const HEALTH_BYTES_MAX = 1024 * 1024;
/** Nothing waits for it, and a peer that is slow to say how it is need not be waited for. */
const HEALTH_TIMEOUT_MS = 10_000;
/** As much of a reply as a person needs to see what is at that address. */
const QUOTED_CHARACTERS_MAX = 200;

/** One POST /sync as it leaves; the body is ready to be sent. */
export interface SyncRequest {
  /** The peer's base URL. */
  readonly peer: string;
  readonly batchId: number;
  readonly body: Uint8Array<ArrayBuffer>;
  readonly identity: Identity;
}

/** What any reply tells about the peer, whatever its status. */
export interface Reply {
  readonly identity: Identity | undefined;
  /** The peer's clock, ms since 1970, cut to whole seconds. */
  readonly serverTimeMs: number | undefined;
}

/** The classes of PROTOCOL.md's failure table. */
export type Verdict =
  | { readonly kind: "acked"; readonly applied: number }
  | { readonly kind: "mismatched"; readonly reason: string }
  | { readonly kind: "refused"; readonly reason: string }
  | { readonly kind: "too-large"; readonly reason: string }
  | { readonly kind: "not-admitted"; readonly reason: string; readonly retryAfterMs: number }
  | {
      readonly kind: "failed";
      readonly reason: string;
      readonly retryAfterMs: number;
      /** The peer was reached and the exchange broke off, perhaps over the size of the body. */
      readonly cutOff: boolean;
    };

/** A verdict with the reply it came from; without one where nothing like HTTP came back. */
export type Outcome = Verdict & { readonly reply: Reply | undefined };

/** What reading a peer's /health came to; never a rejection. */
export type HealthOutcome =
  | { readonly kind: "health"; readonly health: PeerHealth; readonly reply: Reply }
  /** Something answers there, but has no /health of ours or of an existing node's kind. */
  | { readonly kind: "no-health"; readonly reason: string; readonly reply: Reply }
  | { readonly kind: "failed"; readonly reason: string };

/** The network as an argument: the simulator has its own. */
export interface Transport {
  send(request: SyncRequest, signal: AbortSignal): Promise<Outcome>;
  readHealth(peer: string, signal: AbortSignal): Promise<HealthOutcome>;
}

/** What `judgeReply` looks at. `text` is undefined where the reply was longer than its cap. */
export interface RawReply {
  readonly status: number;
  readonly text: string | undefined;
  readonly location: string | undefined;
  readonly retryAfterMs: number;
}

/** What servers say that break, and proxies that lose patience, over a large body; 503 is "later". */
const BROKE_OFF = new Set([408, 500, 502, 504]);

/** Which row of the failure table a reply to a batch is. */
export function judgeReply(raw: RawReply, batchId: number): Verdict {
  const { status, retryAfterMs } = raw;
  if (status === 200) return judgeOk(raw, batchId);
  if (status >= 300 && status < 400) {
    const target = raw.location ?? "nowhere";
    const reason = `${status}: redirects to ${target}, which is not followed; is the address right?`;
    return { kind: "failed", reason, retryAfterMs, cutOff: false };
  }
  const reason = `${status}${quoted(raw)}`;
  switch (status) {
    case 400:
    case 409:
    case 422:
      return { kind: "refused", reason };
    case 401:
    case 403:
      return { kind: "not-admitted", reason, retryAfterMs };
    case 413:
      return { kind: "too-large", reason };
    default:
      return { kind: "failed", reason, retryAfterMs, cutOff: BROKE_OFF.has(status) };
  }
}

function judgeOk(raw: RawReply, batchId: number): Verdict {
  const ack = parseAck(raw.text);
  if (ack === undefined) {
    const reason = `200, but not a peer's acknowledgement${quoted(raw)}`;
    return { kind: "failed", reason, retryAfterMs: raw.retryAfterMs, cutOff: false };
  }
  if (ack.ack === batchId) return { kind: "acked", applied: ack.applied };
  return { kind: "mismatched", reason: `acknowledged ${ack.ack} instead of ${batchId}` };
}

/**
 * `{applied, ack}` if that is what it is. Batch ids are below 2^53, where every integer is exact: an
 * ack above it is rounded here and, rounded or not, no batch of ours.
 */
function parseAck(text: string | undefined): { applied: number; ack: number } | undefined {
  const reply = parseObject(text);
  if (reply === undefined) return undefined;
  const { applied, ack } = reply;
  if (typeof applied !== "number" || !Number.isInteger(applied)) return undefined;
  if (typeof ack !== "number" || !Number.isInteger(ack)) return undefined;
  return { applied, ack };
}

/** Members that this product reads out of a reply, none of them believed yet. */
interface LooseReply {
  readonly applied?: unknown;
  readonly ack?: unknown;
  readonly node_id?: unknown;
  readonly item_count?: unknown;
  readonly pending_changes?: unknown;
  readonly hub?: unknown;
}

function parseObject(text: string | undefined): LooseReply | undefined {
  if (text === undefined) return undefined;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** What a peer's /health says, or undefined where the reply is not one. */
export function parseHealth(
  peer: string,
  text: string | undefined,
  identity: Identity | undefined,
): PeerHealth | undefined {
  const reply = parseObject(text);
  const hub = reply?.hub === true;
  const nodeId = typeof reply?.node_id === "string" ? reply.node_id : undefined;
  if (reply === undefined || (nodeId === undefined && !hub && identity === undefined)) {
    return undefined;
  }
  return {
    url: peer,
    identity,
    nodeId,
    itemCount: readCount(reply.item_count),
    pendingChanges: readCount(reply.pending_changes),
    hub,
  };
}

function readCount(value: unknown): number | undefined {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

function quoted(raw: RawReply): string {
  const text = raw.text?.trim().replaceAll(/\s+/g, " ");
  if (text === undefined) return ": a reply of more than is read";
  if (text === "") return "";
  return `: ${text.slice(0, QUOTED_CHARACTERS_MAX)}`;
}

/** `Retry-After` in either form, as a pause. */
export function parseRetryAfter(header: string | null, nowMs: number): number {
  if (header === null) return 0;
  if (/^\s*\d{1,9}\s*$/.test(header)) return Number(header) * 1_000;
  const at = Date.parse(header);
  return Number.isNaN(at) ? 0 : Math.max(0, at - nowMs);
}

/** What every request says of this node, and how long one may take. */
export interface FetchTransportOptions {
  readonly nodeId: string;
  readonly nodeUrl: string | undefined;
  /** Of this node's file: a peer of ours answers with the mark it has for it. */
  readonly dbId?: string;
  readonly requestTimeoutMs: number;
  /** Wall clock, for a `Retry-After` that is a date. */
  readonly nowMs: () => number;
}

/** Environment variables that make `fetch` use a proxy; `proxy: ""` does not turn them off. */
const PROXY_VARIABLES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] as const;

/**
 * Peers are reached directly unless asked otherwise: a proxy for the web knows nothing of them. In a
 * worker this changes the worker's own environment only.
 */
export function forgetProxies(environment: Record<string, string | undefined>): void {
  for (const name of PROXY_VARIABLES) {
    delete environment[name];
    delete environment[name.toLowerCase()];
  }
}

/** HTTP by `fetch`. */
export class FetchTransport implements Transport {
  readonly #options: FetchTransportOptions;
  readonly #headers: Readonly<Record<string, string>>;

  constructor(options: FetchTransportOptions) {
    this.#options = options;
    this.#headers = {
      // Replies are short, and one that is not compressed cannot blow up when it is read.
      "Accept-Encoding": "identity",
      [NODE_ID_HEADER]: options.nodeId,
      ...(options.nodeUrl === undefined ? {} : { [NODE_URL_HEADER]: options.nodeUrl }),
    };
  }

  async send(request: SyncRequest, signal: AbortSignal): Promise<Outcome> {
    const exchange = await this.#exchange(
      `${request.peer}/sync`,
      {
        method: "POST",
        headers: {
          ...this.#headers,
          "Content-Type": "application/json",
          [IDENTITY_HEADER]: formatIdentity(request.identity),
        },
        body: request.body,
      },
      { bytes: REPLY_BYTES_MAX, timeoutMs: this.#options.requestTimeoutMs },
      signal,
    );
    if (exchange.kind === "failed") {
      const { reason, cutOff } = exchange;
      return { kind: "failed", reason, cutOff, retryAfterMs: 0, reply: undefined };
    }
    return { ...judgeReply(exchange.raw, request.batchId), reply: exchange.reply };
  }

  async readHealth(peer: string, signal: AbortSignal): Promise<HealthOutcome> {
    const { dbId } = this.#options;
    const identity = dbId === undefined ? {} : { [IDENTITY_HEADER]: formatIdentity({ db: dbId }) };
    const init = { method: "GET", headers: { ...this.#headers, ...identity } };
    const timeoutMs = Math.min(this.#options.requestTimeoutMs, HEALTH_TIMEOUT_MS);
    const bounds = { bytes: HEALTH_BYTES_MAX, timeoutMs };
    const exchange = await this.#exchange(`${peer}/health`, init, bounds, signal);
    if (exchange.kind === "failed") return exchange;
    const { raw, reply } = exchange;
    // A node of ours that is not healthy says so with another status and the same members.
    const health = parseHealth(peer, raw.text, reply.identity);
    if (health !== undefined) return { kind: "health", health, reply };
    const reason = `${raw.status}${quoted(raw)}`;
    // A node that is starting, or a proxy whose node is away: who is there is not known yet.
    return raw.status >= 500 ? { kind: "failed", reason } : { kind: "no-health", reason, reply };
  }

  async #exchange(
    url: string,
    init: RequestInit,
    max: { readonly bytes: number; readonly timeoutMs: number },
    stopped: AbortSignal,
  ): Promise<
    | { readonly kind: "replied"; readonly raw: RawReply; readonly reply: Reply }
    | { readonly kind: "failed"; readonly reason: string; readonly cutOff: boolean }
  > {
    const abort = new AbortController();
    const onStop = () => abort.abort(new DOMException("stopping", "AbortError"));
    const timer = setTimeout(() => {
      abort.abort(new DOMException(`no answer within ${max.timeoutMs} ms`, "TimeoutError"));
    }, max.timeoutMs);
    stopped.addEventListener("abort", onStop);
    try {
      if (stopped.aborted) onStop();
      const response = await fetch(url, {
        ...init,
        redirect: "manual",
        decompress: false,
        signal: abort.signal,
      });
      const text = await readText(response, max.bytes);
      const { headers, status } = response;
      return {
        kind: "replied",
        raw: {
          status,
          text,
          location: headers.get("Location") ?? undefined,
          retryAfterMs: parseRetryAfter(headers.get("Retry-After"), this.#options.nowMs()),
        },
        reply: {
          identity: parseIdentity(headers.get(IDENTITY_HEADER)),
          serverTimeMs: parseDate(headers.get("Date")),
        },
      };
    } catch (error) {
      return { kind: "failed", ...describeFailure(error) };
    } finally {
      clearTimeout(timer);
      stopped.removeEventListener("abort", onStop);
    }
  }
}

/** The reply's text, or undefined when it is longer than the cap; strict, so that a BOM stays one. */
export async function readText(response: Response, bytesMax: number): Promise<string | undefined> {
  const declared = Number(response.headers.get("Content-Length") ?? Number.NaN);
  if (declared > bytesMax) {
    await response.body?.cancel();
    return undefined;
  }
  if (declared >= 0) return lossy(await response.bytes());
  if (response.body === null) return "";
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of response.body) {
    length += chunk.length;
    // Leaving the loop cancels the rest.
    if (length > bytesMax) return undefined;
    chunks.push(chunk);
  }
  return lossy(Buffer.concat(chunks));
}

function parseDate(header: string | null): number | undefined {
  const at = Date.parse(header ?? "");
  return Number.isNaN(at) ? undefined : at;
}

/** Codes of failures in which the peer never heard of the request. */
const UNREACHED = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
]);

/** Why a fetch failed, for people, and whether somebody had been reached. */
export function describeFailure(error: unknown): { reason: string; cutOff: boolean } {
  if (!(error instanceof Error)) return { reason: String(error), cutOff: false };
  const code = "code" in error && typeof error.code === "string" ? error.code : undefined;
  // Bun adds advice for callers of fetch after the first sentence.
  const message = error.message.split(/[.?] /)[0] ?? error.message;
  const reason = code === undefined || message.includes(code) ? message : `${code}: ${message}`;
  const cutOff = error.name === "TimeoutError" || (code !== undefined && !UNREACHED.has(code));
  return { reason, cutOff };
}
