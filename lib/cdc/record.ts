/**
 * SQLite's record format, as table rows are stored in a file and as Turso's change log keeps its
 * images: a header of serial types, then the values. Bytes come from files and networks, so whatever
 * they hold ends in values or in one CdcError: nothing past the end is read, and a header that claims
 * more than there is costs nothing.
 */
import { BrokenText, type CdcValue } from "./change.ts";
import { CdcError } from "./error.ts";

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes of a TEXT as SQLite means them: a string, or the bytes where they are not UTF-8. */
export function textFrom(bytes: Uint8Array): string | BrokenText {
  try {
    return utf8.decode(bytes);
  } catch {
    return new BrokenText(bytes.slice());
  }
}

/** The values of a record, exactly. Throws a CdcError for bytes that are not one whole record. */
export function decodeRecord(bytes: Uint8Array): CdcValue[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const header = readVarint(bytes, 0, bytes.length);
  if (header.value < BigInt(header.end) || header.value > BigInt(bytes.length)) {
    throw malformed(`a header of ${header.value} bytes in ${bytes.length}`);
  }
  const headerEnd = Number(header.value);
  const values: CdcValue[] = [];
  let at = header.end;
  let valueAt = headerEnd;
  while (at < headerEnd) {
    const type = readVarint(bytes, at, headerEnd);
    at = type.end;
    const size = sizeOf(type.value);
    if (size > BigInt(bytes.length - valueAt)) {
      throw malformed(`a value of ${size} bytes where ${bytes.length - valueAt} are left`);
    }
    values.push(readValue(bytes, view, Number(type.value), valueAt, Number(size)));
    valueAt += Number(size);
  }
  if (valueAt !== bytes.length) throw malformed(`${bytes.length - valueAt} bytes too many`);
  return values;
}

function malformed(what: string): CdcError {
  return new CdcError("malformed", `not an SQLite record: ${what}`);
}

/** Up to nine bytes, seven bits each, all eight of the ninth. */
function readVarint(
  bytes: Uint8Array,
  start: number,
  limit: number,
): { readonly value: bigint; readonly end: number } {
  // Nearly all are short; bigint arithmetic would make them the cost of decoding.
  let short = 0;
  for (let i = 0; i < 4; i++) {
    if (start + i >= limit) throw malformed("it ends inside a number");
    const byte = bytes[start + i]!;
    short = short * 128 + (byte & 0x7f);
    if (byte < 0x80) return { value: BigInt(short), end: start + i + 1 };
  }
  let value = BigInt(short);
  for (let i = 4; i < 9; i++) {
    if (start + i >= limit) throw malformed("it ends inside a number");
    const byte = bytes[start + i]!;
    if (i === 8) return { value: (value << 8n) | BigInt(byte), end: start + 9 };
    value = (value << 7n) | BigInt(byte & 0x7f);
    if (byte < 0x80) return { value, end: start + i + 1 };
  }
  throw malformed("a number without an end");
}

/** By serial type, for those below 12. */
const SIZES = [0n, 1n, 2n, 3n, 4n, 6n, 8n, 8n, 0n, 0n];

function sizeOf(type: bigint): bigint {
  if (type >= 12n) return (type - 12n) >> 1n;
  const size = SIZES[Number(type)];
  if (size === undefined) throw malformed(`a serial type ${type}`);
  return size;
}

function readValue(
  bytes: Uint8Array,
  view: DataView,
  type: number,
  at: number,
  size: number,
): CdcValue {
  switch (type) {
    case 0:
      return null;
    case 1:
      return BigInt(view.getInt8(at));
    case 2:
      return BigInt(view.getInt16(at));
    case 3:
      return BigInt(view.getInt8(at) * 0x1_0000 + view.getUint16(at + 1));
    case 4:
      return BigInt(view.getInt32(at));
    case 5:
      return BigInt(view.getInt16(at) * 0x1_0000_0000 + view.getUint32(at + 2));
    case 6:
      return view.getBigInt64(at);
    case 7:
      return view.getFloat64(at);
    case 8:
      return 0n;
    case 9:
      return 1n;
    default: {
      const part = bytes.subarray(at, at + size);
      return type % 2 === 0 ? part.slice() : textFrom(part);
    }
  }
}
