/**
 * The load generator's process: keeps a number of connections busy with one request each, over raw
 * sockets, so that it costs less than what it measures. Started by load.ts, which documents the
 * options; answers one line of JSON when the time is over.
 */
import { readFileSync } from "node:fs";
import type { LoadOptions, LoadResult } from "./load.ts";

/** Connections are open, files are mapped and code is compiled before anything is counted. */
const WARM_MS = 500;
const HEAD_END = Buffer.from("\r\n\r\n");
const LAST_CHUNK = Buffer.from("0\r\n\r\n");

interface Connection {
  sentMs: number;
  /** Of the answer being read: bytes still to come, or why that is not known yet. */
  left: number | "head incomplete" | "chunked";
  ok: boolean;
  /** What came before the end of the head, or the end of a chunked body. */
  kept: Buffer | undefined;
}

const options: LoadOptions = JSON.parse(process.argv[2]!);
const { hostname, port, host } = new URL(options.url);
const requests = (options.bodyFiles ?? [undefined]).map((file) => {
  const body = file === undefined ? Buffer.from(options.body ?? "") : readFileSync(file);
  const headers = Object.entries({ "Content-Type": "application/json", ...options.headers });
  const head = [
    `${options.method ?? "POST"} ${options.path} HTTP/1.1`,
    `Host: ${host}`,
    ...headers.map(([name, value]) => `${name}: ${value}`),
    `Content-Length: ${body.length}`,
  ];
  return Buffer.concat([Buffer.from(`${head.join("\r\n")}\r\n\r\n`), body]);
});

const startMs = performance.now();
const countFromMs = startMs + (options.warm === false ? 0 : WARM_MS);
const endMs = options.seconds === undefined ? Infinity : countFromMs + options.seconds * 1_000;
const requestsMax = options.requests ?? Infinity;
const latenciesMs: number[] = [];
let sent = 0;
let errors = 0;
let lastMs = countFromMs;
let cpuBefore: NodeJS.CpuUsage | undefined;

/** What the socket did not take yet, by connection: large bodies go out in parts. */
const unsent = new Map<Bun.Socket<Connection>, Buffer>();

function send(socket: Bun.Socket<Connection>): void {
  const { data } = socket;
  data.left = "head incomplete";
  data.kept = undefined;
  const request = requests[sent % requests.length]!;
  sent++;
  data.sentMs = performance.now();
  const written = socket.write(request);
  if (written < request.length) unsent.set(socket, request.subarray(Math.max(written, 0)));
}

function drain(socket: Bun.Socket<Connection>): void {
  const rest = unsent.get(socket);
  if (rest === undefined) return;
  const written = Math.max(socket.write(rest), 0);
  if (written < rest.length) unsent.set(socket, rest.subarray(written));
  else unsent.delete(socket);
}

function read(socket: Bun.Socket<Connection>, chunk: Buffer): void {
  const { data } = socket;
  if (typeof data.left === "number") {
    data.left -= chunk.length;
  } else if (data.left === "chunked") {
    data.kept = Buffer.concat([data.kept!, chunk]).subarray(-LAST_CHUNK.length);
    if (data.kept.equals(LAST_CHUNK)) data.left = 0;
  } else {
    const seen = data.kept === undefined ? chunk : Buffer.concat([data.kept, chunk]);
    const headEnd = seen.indexOf(HEAD_END);
    if (headEnd < 0) {
      data.kept = seen;
      return;
    }
    const head = seen.toString("latin1", 0, headEnd);
    data.ok = head.startsWith("HTTP/1.1 2");
    const length = /content-length: (\d+)/i.exec(head)?.[1];
    const body = headEnd + HEAD_END.length;
    if (length !== undefined) {
      data.left = Number(length) - (seen.length - body);
    } else {
      data.kept = seen.subarray(-LAST_CHUNK.length);
      data.left = data.kept.equals(LAST_CHUNK) ? 0 : "chunked";
    }
  }
  if (data.left === 0) finished(socket);
}

function finished(socket: Bun.Socket<Connection>): void {
  const nowMs = performance.now();
  const { data } = socket;
  if (nowMs >= countFromMs && nowMs < endMs) {
    cpuBefore ??= process.cpuUsage();
    latenciesMs.push(nowMs - data.sentMs);
    lastMs = nowMs;
    if (!data.ok) errors++;
  }
  if (nowMs < endMs && sent < requestsMax) send(socket);
  else socket.end();
}

let open = options.connections;
await new Promise<void>((resolve) => {
  const closed = () => {
    if (--open === 0) resolve();
  };
  for (let i = 0; i < options.connections; i++) {
    Bun.connect<Connection>({
      hostname,
      port: Number(port),
      socket: {
        open: send,
        data: read,
        drain,
        close(socket) {
          if (socket.data.left !== 0) errors++;
          closed();
        },
      },
      data: { sentMs: 0, left: "head incomplete", ok: false, kept: undefined },
    }).catch(() => {
      errors++;
      closed();
    });
  }
});

const cpu = process.cpuUsage(cpuBefore);
const done = latenciesMs.length;
const seconds = options.seconds ?? (lastMs - countFromMs) / 1_000;
latenciesMs.sort((a, b) => a - b);
const at = (share: number) => latenciesMs[Math.min(done - 1, Math.floor(done * share))] ?? 0;
const result: LoadResult = {
  requests: done,
  perSecond: done / seconds,
  p50Ms: at(0.5),
  p99Ms: at(0.99),
  maxMs: latenciesMs.at(-1) ?? 0,
  errors,
  perCpuSecond: done / ((cpu.user + cpu.system) / 1e6),
};
console.log(JSON.stringify(result));
