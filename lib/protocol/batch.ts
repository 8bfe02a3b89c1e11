/**
 * The body of POST /sync, read once at the edge (PROTOCOL.md, "POST /sync").
 *
 * Only a body that is no batch at all is refused (BatchError, a 400): a 400 for one bad change would
 * block a foreign sender for ever. What is wrong inside a change is found later and parked, with
 * the change as it came: scan-batch.ts remembers its text, which JSON.parse forgets.
 */
import { isUtf8 } from "node:buffer";
import { assert } from "../base/assert.ts";
import { type ChangeSpan, DepthError, numberTokens, scanBatch } from "./scan-batch.ts";

/** The body is not a batch. `message` names the place. */
export class BatchError extends Error {
  override name = "BatchError";
}

/** What JSON.parse makes; numbers have lost their digits by then. */
export type JsonValue =
  | null
  | boolean
  | number
  | string
  | readonly JsonValue[]
  | { readonly [member: string]: JsonValue };

/** The envelope is checked, the changes in it are not. */
export interface ReceivedBatch {
  readonly batchId: number;
  readonly changes: readonly ReceivedChange[];
}

/** One element of `changes`, whatever it is. */
export interface ReceivedChange {
  readonly value: JsonValue;
  /** A member stands twice, in the change or in its row: readers would disagree about it. */
  readonly repeatsMember: boolean;
  /** A number of the row must be read from its text: 16 digits or more, a point, an exponent, -0. */
  readonly delicate: boolean;
  /** A string holds an escaped half of a surrogate pair, perhaps without its other half. */
  readonly surrogates: boolean;
  /** The JSON text of the change as it came. */
  source(): string;
  /** The JSON text of its row as it came; undefined where it has none. */
  rowSource(): string | undefined;
  /** The number tokens of the row's members, by member name. Call only where `delicate`. */
  rowTokens(): ReadonlyMap<string, string>;
}

/** Throws a BatchError. `"changes": null` is an empty batch: so Go writes a nil slice. */
export function parseBatch(body: Uint8Array): ReceivedBatch {
  if (body.length === 0) throw new BatchError("the body is empty; a batch is a JSON object");
  if (!isUtf8(body)) throw new BatchError("the body is not valid UTF-8");
  const spans = scan(body);
  let envelope: JsonValue;
  try {
    envelope = JSON.parse(utf8.decode(body));
  } catch (error) {
    throw new BatchError(`the body is not JSON: ${(error as Error).message}`);
  }
  if (!isObject(envelope)) throw new BatchError("the body is not a JSON object");
  const batchId = member(envelope, "batch_id");
  if (!isSafeInteger(batchId)) {
    throw new BatchError(
      `batch_id is ${batchId === undefined ? "missing" : "not an integer"}; expected the largest change id of the batch`,
    );
  }
  const changes = member(envelope, "changes");
  if (changes === undefined) throw new BatchError("changes is missing; expected an array");
  if (changes === null) return { batchId, changes: [] };
  if (!Array.isArray(changes)) throw new BatchError("changes is not an array");
  assert(spans.length === changes.length, "the scan and JSON.parse found different changes");
  return { batchId, changes: changes.map((value, i) => new ScannedChange(body, value, spans[i]!)) };
}

function scan(body: Uint8Array): ChangeSpan[] {
  try {
    return scanBatch(body);
  } catch (error) {
    if (error instanceof DepthError) throw new BatchError(`the body is ${error.message}`);
    throw error;
  }
}

/** One change that was kept as text, as `parked` changes are. */
export function parseChange(source: string): ReceivedChange {
  return parseBatch(new TextEncoder().encode(`{"batch_id":0,"changes":[${source}]}`)).changes[0]!;
}

/** Not for arrays and null, which `typeof` calls objects, too. */
export function isObject(
  value: JsonValue | undefined,
): value is { readonly [member: string]: JsonValue } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An own member, never one of the prototype. */
export function member(
  object: { readonly [member: string]: JsonValue },
  name: string,
): JsonValue | undefined {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** A BOM is no part of JSON: it stays, and JSON.parse refuses it. */
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });

function isSafeInteger(value: JsonValue | undefined): value is number {
  return Number.isSafeInteger(value);
}

class ScannedChange implements ReceivedChange {
  readonly value: JsonValue;
  readonly #body: Uint8Array;
  readonly #span: ChangeSpan;

  constructor(body: Uint8Array, value: JsonValue, span: ChangeSpan) {
    this.value = value;
    this.#body = body;
    this.#span = span;
  }

  /** JSON.parse keeps one of repeated members, the scan counted them all. */
  get repeatsMember(): boolean {
    const { value } = this;
    if (!isObject(value)) return false;
    if (memberCount(value) !== this.#span.members) return true;
    const row = member(value, "row");
    return isObject(row) && memberCount(row) !== this.#span.rowMembers;
  }

  get delicate(): boolean {
    return this.#span.isDelicate;
  }

  get surrogates(): boolean {
    return this.#span.hasSurrogates;
  }

  source(): string {
    return utf8.decode(this.#body.subarray(this.#span.start, this.#span.end));
  }

  rowSource(): string | undefined {
    const { rowStart, rowEnd } = this.#span;
    return rowEnd === 0 ? undefined : utf8.decode(this.#body.subarray(rowStart, rowEnd));
  }

  rowTokens(): ReadonlyMap<string, string> {
    return numberTokens(this.#body, this.#span.rowStart, this.#span.rowEnd);
  }
}

/** Of what JSON.parse made, whose prototype has nothing that a loop would meet. Object.keys makes an array. */
function memberCount(object: { readonly [member: string]: JsonValue }): number {
  let count = 0;
  for (const _ in object) count++;
  return count;
}
