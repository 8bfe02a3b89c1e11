/**
 * The body of a request, checked before anything is made of it: its kind, its size, its encoding.
 * Browsers send other kinds than application/json across sites without asking, so the check of the
 * kind is also what keeps web pages from writing to a node.
 */
import { RequestError } from "../base/errors.ts";
import { parseJson } from "../store/row-input.ts";

/** Integers beyond 2^53 come as BigInt (`parseJson`). Throws a RequestError: 400, 413 or 415. */
export async function readJson(request: Request, bytesMax: number): Promise<unknown> {
  checkHead(request.headers, bytesMax);
  const body = await receive(request, bytesMax);
  return parseJson(decode(body));
}

/** The bytes of a body that says it is JSON. */
export async function readBody(request: Request, bytesMax: number): Promise<Uint8Array> {
  checkHead(request.headers, bytesMax);
  const body = await receive(request, bytesMax);
  return body;
}

function checkHead(headers: Headers, bytesMax: number): void {
  const type = headers.get("content-type");
  if (type !== "application/json" && !isJson(type)) throw unsupportedType(type);
  const encoding = headers.get("content-encoding");
  if (encoding !== null && encoding.toLowerCase() !== "identity") {
    throw new RequestError(
      415,
      `Content-Encoding ${encoding} is not understood; send the body as it is`,
      {
        "accept-encoding": "identity",
      },
    );
  }
  if (Number(headers.get("content-length")) > bytesMax) throw tooLarge(bytesMax);
}

/** No async function: each costs a request a turn more. A length that was said has been checked. */
function receive(request: Request, bytesMax: number): Promise<Uint8Array> {
  const isLengthKnown = request.headers.has("content-length");
  const body = isLengthKnown ? request.bytes() : receiveChunks(request, bytesMax);
  return body.catch((error) => {
    if (error instanceof RequestError) throw error;
    // The sender went away.
    throw new RequestError(400, "the body ended early");
  });
}

async function receiveChunks(request: Request, bytesMax: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of request.body ?? []) {
    bytes += chunk.length;
    // Leaving the loop cancels the rest.
    if (bytes > bytesMax) throw tooLarge(bytesMax);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

const utf8 = new TextDecoder("utf-8", { fatal: true });

function decode(body: Uint8Array): string {
  try {
    return utf8.decode(body);
  } catch {
    throw new RequestError(400, "the body is not valid UTF-8");
  }
}

/** `application/json`, perhaps with `charset=utf-8` and other parameters. */
function isJson(type: string | null): boolean {
  const [kind, ...parameters] = (type ?? "")
    .toLowerCase()
    .split(";")
    .map((part) => part.trim());
  if (kind !== "application/json") return false;
  const charset = parameters.find((parameter) => parameter.startsWith("charset="));
  return charset === undefined || /^charset="?utf-?8"?$/.test(charset);
}

function unsupportedType(type: string | null): RequestError {
  const found = type === null ? "no Content-Type" : `Content-Type ${type.slice(0, 100)}`;
  return new RequestError(
    415,
    `expected JSON in UTF-8, found ${found}; send the header "Content-Type: application/json"`,
  );
}

function tooLarge(bytesMax: number): RequestError {
  return new RequestError(413, `the body is larger than ${bytesMax} bytes`);
}
