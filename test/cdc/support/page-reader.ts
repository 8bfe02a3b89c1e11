/**
 * Reads the rows of a table out of the pages of an SQLite file, overflow pages too: the records as
 * SQLite wrote them, for the decoder to be held against.
 */
import { Database } from "bun:sqlite";
import { readFileSync } from "node:fs";

const INTERIOR_TABLE = 0x05;
const LEAF_TABLE = 0x0d;

/** Records by rowid, in order. The file must not have a journal beside it. */
export function readRecords(path: string, table: string): Map<bigint, Uint8Array> {
  using db = new Database(path, { readonly: true });
  const { rootpage } = db
    .query<{ rootpage: number }, [string]>("SELECT rootpage FROM sqlite_schema WHERE name = ?")
    .get(table)!;
  const { page_size } = db.query<{ page_size: number }, []>("PRAGMA page_size").get()!;
  const file = readFileSync(path);
  const records = new Map<bigint, Uint8Array>();
  readPage(new Pages(file, page_size), rootpage, records);
  return records;
}

class Pages {
  readonly #file: Buffer;
  readonly size: number;
  constructor(file: Buffer, size: number) {
    this.#file = file;
    this.size = size;
  }
  page(number: number): Buffer {
    return this.#file.subarray((number - 1) * this.size, number * this.size);
  }
}

function readPage(pages: Pages, number: number, records: Map<bigint, Uint8Array>): void {
  const page = pages.page(number);
  const header = number === 1 ? 100 : 0;
  const type = page[header];
  const cells = page.readUInt16BE(header + 3);
  const pointers = header + (type === INTERIOR_TABLE ? 12 : 8);
  for (let i = 0; i < cells; i++) {
    const cell = page.readUInt16BE(pointers + 2 * i);
    if (type === INTERIOR_TABLE) readPage(pages, page.readUInt32BE(cell), records);
    else if (type === LEAF_TABLE) readCell(pages, page, cell, records);
    else throw new Error(`page ${number} is of type ${type}`);
  }
  if (type === INTERIOR_TABLE) readPage(pages, page.readUInt32BE(header + 8), records);
}

/** How much of a payload lies in the cell itself is a formula of the file format. */
function readCell(
  pages: Pages,
  page: Buffer,
  cell: number,
  records: Map<bigint, Uint8Array>,
): void {
  const [length, afterLength] = varint(page, cell);
  const [rowid, start] = varint(page, afterLength);
  const total = Number(length);
  const usable = pages.size;
  const most = usable - 35;
  const least = Math.floor(((usable - 12) * 32) / 255) - 23;
  const fits = least + ((total - least) % (usable - 4));
  const local = total <= most ? total : fits <= most ? fits : least;
  const parts = [page.subarray(start, start + local)];
  let left = total - local;
  let next = left > 0 ? page.readUInt32BE(start + local) : 0;
  while (left > 0) {
    const overflow = pages.page(next);
    const part = overflow.subarray(4, 4 + Math.min(left, usable - 4));
    parts.push(part);
    left -= part.length;
    next = overflow.readUInt32BE(0);
  }
  records.set(BigInt.asIntN(64, rowid), new Uint8Array(Buffer.concat(parts)));
}

function varint(bytes: Buffer, start: number): [bigint, number] {
  let value = 0n;
  for (let i = 0; i < 8; i++) {
    const byte = bytes[start + i]!;
    value = (value << 7n) | BigInt(byte & 0x7f);
    if (byte < 0x80) return [value, start + i + 1];
  }
  return [(value << 8n) | BigInt(bytes[start + 8]!), start + 9];
}
