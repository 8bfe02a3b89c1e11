/**
 * What the main thread and the thread that reads whole tables say to each other. Each question has a
 * number, and its answer bears it.
 */
import type { KeyRange, KeyState } from "../protocol/digest.ts";
import type { DigestTable } from "../store/digest.ts";
import type { RangeBuckets, RangeKeys, TableSummary } from "../store/digester.ts";

/** What can be asked, with what comes back. */
export interface DigestQuestions {
  /** Reads whole tables; the snapshot is kept under this name. */
  readonly read: {
    readonly ask: {
      readonly snapshot: string;
      readonly tables: readonly DigestTable[];
      readonly isSlow: boolean;
    };
    readonly answer: readonly TableSummary[];
  };
  readonly buckets: {
    readonly ask: {
      readonly snapshot: string;
      readonly tableKey: string;
      readonly ranges: readonly KeyRange[];
      readonly most: number;
    };
    readonly answer: readonly RangeBuckets[];
  };
  readonly keysIn: {
    readonly ask: {
      readonly snapshot: string;
      readonly tableKey: string;
      readonly ranges: readonly KeyRange[];
    };
    readonly answer: readonly RangeKeys[];
  };
  readonly keysOf: {
    readonly ask: { readonly table: DigestTable; readonly ids: readonly string[] };
    readonly answer: readonly KeyState[];
  };
  /** Rows as a batch; see row-batch.ts. */
  readonly rows: {
    readonly ask: {
      readonly table: DigestTable;
      readonly ids: readonly string[];
      readonly bytesMax: number;
    };
    readonly answer: string;
  };
  /** A copy of the whole file at this path. */
  readonly copy: { readonly ask: { readonly path: string }; readonly answer: null };
}

/** Names what is asked, and by that the types of the question and its answer. */
export type QuestionKind = keyof DigestQuestions;

/** One of the questions with its own arguments, never with another's. */
export type Question = {
  readonly [K in QuestionKind]: { readonly kind: K; readonly ask: DigestQuestions[K]["ask"] };
}[QuestionKind];

/** `start` comes first and once; `stop` is the last thing said. */
export type ToDigester =
  | { readonly kind: "start"; readonly dbPath: string }
  | { readonly kind: "ask"; readonly number: number; readonly question: Question }
  | { readonly kind: "stop" };

/** Answers come in any order, each with the number of its question. */
export type FromDigester =
  | { readonly kind: "answer"; readonly number: number; readonly answer: unknown }
  | { readonly kind: "failed"; readonly number: number; readonly failure: Failure }
  | { readonly kind: "stopped" };

/** An error, as far as another thread can have it. */
export interface Failure {
  readonly message: string;
  /** Of a RequestError. */
  readonly status: number | undefined;
  /** SQLite's. */
  readonly code: string | undefined;
}
