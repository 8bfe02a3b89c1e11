/**
 * Calls to another node's HTTP face that are not shipping: joining a mesh, and the command line asking
 * a running node. Beside transport.ts the only place that opens connections.
 */

export interface NodeCall {
  /** Base URL of the node. */
  readonly node: string;
  readonly method: "GET" | "POST" | "DELETE";
  readonly path: string;
  readonly body?: unknown;
  /** Sent as `Authorization: Bearer`. */
  readonly token?: string | undefined;
  readonly timeoutMs?: number;
}

export type NodeAnswer =
  | { readonly kind: "answered"; readonly status: number; readonly json: unknown }
  /** `reason` for people. */
  | { readonly kind: "failed"; readonly reason: string };

const TIMEOUT_MS = 10_000;

/** One request; redirects are not followed. */
export async function callNode(call: NodeCall): Promise<NodeAnswer> {
  const { node, method, path, body, token, timeoutMs = TIMEOUT_MS } = call;
  try {
    const response = await fetch(node + path, {
      method,
      redirect: "manual",
      signal: AbortSignal.timeout(timeoutMs),
      headers: {
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    let json: unknown;
    try {
      json = JSON.parse(text);
    } catch {
      json = undefined;
    }
    return { kind: "answered", status: response.status, json };
  } catch (error) {
    return { kind: "failed", reason: error instanceof Error ? error.message : String(error) };
  }
}

/** What an answer that is not the wanted one says, for people. */
export function complaint(answer: NodeAnswer): string {
  if (answer.kind === "failed") return answer.reason;
  const { json, status } = answer;
  const said =
    typeof json === "object" && json !== null && "error" in json ? String(json.error) : "";
  return said === "" ? `it answered ${status}` : said;
}
