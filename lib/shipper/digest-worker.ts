/**
 * The entry of the thread that reads whole tables: digests for other nodes, rows to repair them, and
 * copies of the file. Beside the shipper's and not in it, so that neither shipping nor a write ever
 * waits for a table of millions; started when somebody asks, and ended when nobody does any more.
 */
import type { Database } from "bun:sqlite";
import { assert } from "../base/assert.ts";
import { systemClock, systemTimers } from "../base/clock.ts";
import { RequestError } from "../base/errors.ts";
import { ColumnNotes } from "../store/column-notes.ts";
import { Digester } from "../store/digester.ts";
import { copyInto } from "../store/snapshot.ts";
import type { Failure, FromDigester, Question, ToDigester } from "./digest-messages.ts";
import { rowBatch } from "./row-batch.ts";

declare const self: Worker;

interface Running {
  readonly path: string;
  readonly digester: Digester;
  notes: { readonly db: Database; readonly notes: ColumnNotes } | undefined;
}

listen();

function listen(): void {
  let running: Running | undefined;
  self.onmessage = (event: MessageEvent<ToDigester>) => {
    const message = event.data;
    if (message.kind === "start") {
      assert(running === undefined, "a worker is started once");
      const path = message.dbPath;
      const digester = new Digester({ path, clock: systemClock, timers: systemTimers });
      running = { path, digester, notes: undefined };
      return;
    }
    assert(running !== undefined, `"${message.kind}" came before "start"`);
    if (message.kind === "ask") void answer(running, message.number, message.question);
    else void stop(running);
  };
}

async function answer(running: Running, number: number, question: Question): Promise<void> {
  try {
    post({ kind: "answer", number, answer: await answerTo(running, question) });
  } catch (error) {
    post({ kind: "failed", number, failure: failureOf(error) });
  }
}

function answerTo(running: Running, { kind, ask }: Question): unknown {
  const { digester, path } = running;
  switch (kind) {
    case "read":
      return digester.read(ask.snapshot, ask.tables, ask.isSlow);
    case "buckets":
      return digester.buckets(ask.snapshot, ask.tableKey, ask.ranges, ask.most);
    case "keysIn":
      return digester.keysIn(ask.snapshot, ask.tableKey, ask.ranges);
    case "keysOf":
      return digester.keysOf(ask.table, ask.ids);
    case "rows": {
      const db = digester.reader;
      running.notes ??= { db, notes: new ColumnNotes(db) };
      return rowBatch(db, running.notes.notes, ask.table, ask.ids, ask.bytesMax).body;
    }
    case "copy":
      copyInto(path, ask.path);
      return null;
  }
}

/** The file is closed before the main thread hears of it: its own connection must be the last. */
async function stop({ digester }: Running): Promise<void> {
  await digester.close();
  post({ kind: "stopped" });
}

function failureOf(error: unknown): Failure {
  const message = error instanceof Error ? error.message : String(error);
  const code = error instanceof Error && "code" in error ? String(error.code) : undefined;
  return { message, code, status: error instanceof RequestError ? error.status : undefined };
}

function post(message: FromDigester): void {
  self.postMessage(message);
}
