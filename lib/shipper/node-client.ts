/**
 * Calls to another node's HTTP face that are not shipping: joining a mesh, and the command line asking
 * a running node. Beside transport.ts the only place that opens connections.
 */
import { IDENTITY_HEADER, type Identity, parseIdentity } from "../protocol/identity.ts";
import { describeFailure, readText } from "./transport.ts";

/** One request; an answer that takes longer than `timeoutMs` has failed. */
export interface NodeCall {
  /** Base URL of the node. */
  readonly node: string;
  readonly method: "GET" | "POST" | "DELETE";
  readonly path: string;
  readonly body?: unknown;
  /** A body that is JSON already, instead of `body`: parsing it would lose digits. */
  readonly json?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent as `Authorization: Bearer`. */
  readonly token?: string | undefined;
  readonly timeoutMs?: number;
}

/** Any status counts as an answer; only what got none has failed. */
export type NodeAnswer =
  | {
      readonly kind: "answered";
      readonly status: number;
      /** Undefined where the answer is no JSON. */
      readonly json: unknown;
      readonly text: string;
      /** Of a node of ours. */
      readonly identity?: Identity | undefined;
    }
  /** `reason` for people. */
  | { readonly kind: "failed"; readonly reason: string };

const TIMEOUT_MS = 10_000;
/** Twice the largest that a node sends, a batch of one huge row; whatever sends more is no node. */
const ANSWER_BYTES_MAX = 256 * 1024 * 1024;

/** One request; redirects are not followed. */
export async function callNode(call: NodeCall): Promise<NodeAnswer> {
  const { node, method, path, token, timeoutMs = TIMEOUT_MS } = call;
  const body = call.json ?? (call.body === undefined ? undefined : JSON.stringify(call.body));
  try {
    const response = await fetch(node + path, {
      method,
      redirect: "manual",
      signal: AbortSignal.timeout(timeoutMs),
      headers: {
        ...call.headers,
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }),
      },
      ...(body === undefined ? {} : { body }),
    });
    const text = await readText(response, ANSWER_BYTES_MAX);
    if (text === undefined) return { kind: "failed", reason: "its answer has no end" };
    const identity = parseIdentity(response.headers.get(IDENTITY_HEADER));
    return { kind: "answered", status: response.status, json: parse(text), text, identity };
  } catch (error) {
    return { kind: "failed", reason: describeFailure(error).reason };
  }
}

/** What an answer that is not the wanted one says, for people. */
export function complaint(answer: NodeAnswer): string {
  if (answer.kind === "failed") return answer.reason;
  const { json, status } = answer;
  const said =
    typeof json === "object" && json !== null && "error" in json ? String(json.error) : "";
  if (said !== "") return said;
  const isDone = status >= 200 && status < 300;
  return `it answered ${status}${isDone ? ", but not as a node does; is the address right?" : ""}`;
}

/**
 * A member of what a node answered; undefined where it did not do what was asked. Anything may answer 200
 * at an address: a portal, a proxy, another program.
 */
export function answered(answer: NodeAnswer, member: string): unknown {
  if (answer.kind === "failed" || answer.status >= 300) return undefined;
  const { json } = answer;
  if (typeof json !== "object" || json === null || !Object.hasOwn(json, member)) return undefined;
  return (json as Record<string, unknown>)[member];
}

/** One of the peers that a node of ours lists at /peers. */
export interface ListedPeer {
  readonly url: string;
  readonly node_id?: string | null;
  readonly make?: string | null;
  readonly configured?: boolean;
}

/** Undefined where that is not what was answered. */
export function listedPeers(answer: NodeAnswer): readonly ListedPeer[] | undefined {
  const peers = answered(answer, "peers");
  return Array.isArray(peers) && peers.every(isListedPeer) ? peers : undefined;
}

function isListedPeer(value: unknown): value is ListedPeer {
  return (
    typeof value === "object" && value !== null && "url" in value && typeof value.url === "string"
  );
}

/** A request whose answer may not fit into memory; there is no time limit. */
export interface Download {
  /** Base URL of the node. */
  readonly node: string;
  readonly path: string;
  readonly token: string | undefined;
  /** Where it goes; what was there is overwritten. */
  readonly file: string;
}

/** Writes a long answer to a file as it comes. Returns what went wrong, for people, or undefined. */
export async function downloadFrom(download: Download): Promise<string | undefined> {
  const { node, path, token, file } = download;
  try {
    const response = await fetch(node + path, {
      redirect: "manual",
      headers: token === undefined ? {} : { Authorization: `Bearer ${token}` },
      // The first byte comes when the copy is made, which takes minutes where the file is large.
      timeout: false,
    } as RequestInit);
    if (!response.ok || response.body === null) {
      const text = await response.text();
      return complaint({ kind: "answered", status: response.status, json: parse(text), text });
    }
    const sink = Bun.file(file).writer();
    let length = 0;
    for await (const chunk of response.body) {
      length += chunk.length;
      sink.write(chunk);
      await sink.flush();
    }
    await sink.end();
    const declared = Number(response.headers.get("content-length") ?? length);
    return declared === length ? undefined : `it ended after ${length} of ${declared} bytes`;
  } catch (error) {
    return describeFailure(error).reason;
  }
}

/** A request that only `signal`, or the node, ends. */
export interface Stream {
  /** Base URL of the node. */
  readonly node: string;
  readonly path: string;
  readonly token: string | undefined;
  readonly signal: AbortSignal;
}

/** An answer without an end, as it comes. Throws what went wrong, for people. */
export async function streamFrom(stream: Stream): Promise<AsyncIterable<Uint8Array>> {
  const { node, path, token, signal } = stream;
  const response = await fetch(node + path, {
    redirect: "manual",
    headers: token === undefined ? {} : { Authorization: `Bearer ${token}` },
    signal,
    // Whoever reads watches for silence; a copy takes long to be made.
    timeout: false,
  } as RequestInit);
  // What a source of another program calls its stream is its own affair, but it is no page.
  const isPage = /^(text\/|application\/json)/.test(response.headers.get("content-type") ?? "");
  if (response.ok && response.body !== null && !isPage) return response.body;
  const text = await response.text();
  throw new Error(
    complaint({ kind: "answered", status: response.status, json: parse(text), text }),
  );
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
