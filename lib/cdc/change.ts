/**
 * What a log says, apart from how it is stored or sent: changes, the transactions they come in, and
 * the position up to which a follower has them.
 */

/** A TEXT whose bytes are not UTF-8, so that no string can hold it. */
export class BrokenText {
  readonly bytes: Uint8Array;
  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }
}

/** One of SQLite's values: a bigint is INTEGER, a number is REAL (also 1), bytes are a BLOB. */
export type CdcValue = null | bigint | number | string | Uint8Array | BrokenText;

/** One change of one transaction, in the order in which it was made. */
export type CdcChange =
  /** The row as it is afterwards, its values in column order. */
  | {
      readonly kind: "insert" | "update";
      readonly table: string;
      readonly rowid: bigint;
      readonly values: readonly CdcValue[];
    }
  | { readonly kind: "delete"; readonly table: string; readonly rowid: bigint }
  /** The row is there, like this, whether or not it was; without a rowid in a table that has none. */
  | {
      readonly kind: "put";
      readonly table: string;
      readonly rowid: bigint | null;
      readonly values: readonly CdcValue[];
    }
  /** The row is not there, whether or not it was; found by its key in a table WITHOUT ROWID. */
  | {
      readonly kind: "remove";
      readonly table: string;
      readonly rowid: bigint | null;
      readonly key: readonly CdcValue[];
    }
  /** One CREATE, ALTER or DROP. */
  | { readonly kind: "schema"; readonly sql: string };

/** How far a follower is: a position means something only in the log with this identity. */
export interface Watermark {
  /** The random identity of the log. */
  readonly log: string;
  /** The change id of the last row of the log that the follower has. */
  readonly commit: bigint;
  /** A hash of that row and the one before it: tells a log that was rewound and went on. */
  readonly mark: string;
}

/** A transaction of the source, or (`copy`) all it holds, to replace what the follower has. */
export interface Batch extends Watermark {
  readonly kind: "transaction" | "copy";
  /** The position this one follows; 0 for a copy. */
  readonly after: bigint;
  /** When it was committed, milliseconds since 1970 by the source's clock. */
  readonly timeMs: number;
  /** The digest of the schema afterwards; null where the log had already gone on to another one. */
  readonly schema: string | null;
  /** Can be gone through more than once, until `close`. */
  readonly changes: Iterable<CdcChange>;
  /** Gives back what holds a large transaction; the changes are gone afterwards. */
  close(): void;
}
