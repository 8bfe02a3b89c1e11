/** POST /sync: the way in for peers (PROTOCOL.md). What is in a batch is for the store to judge. */
import { Hono } from "hono";
import { Garbage, giveBack } from "../base/garbage.ts";
import {
  formatIdentity,
  IDENTITY_HEADER,
  type Identity,
  NODE_ID_HEADER,
  NODE_URL_HEADER,
  parseIdentity,
} from "../protocol/identity.ts";
import type { BodyReader } from "./body.ts";
import { JSON_TYPE } from "./errors.ts";

/** A batch as it came, with what the headers say of its sender. */
export interface SyncRequest {
  readonly body: Uint8Array;
  readonly nodeId: string | undefined;
  readonly nodeUrl: string | undefined;
  readonly identity: Identity | undefined;
}

/** PROTOCOL.md's answer; `identity` goes into the header, not into the JSON. */
export interface SyncReply {
  readonly applied: number;
  readonly ack: number;
  readonly identity: Identity;
}

/** Resolves after the commit that ends the batch; a RequestError or HookSyncError otherwise. */
export interface SyncReceiver {
  apply(request: SyncRequest): Promise<SyncReply>;
}

/** Two or three full batches. They are read in place, and leave less than a client's rows. */
const BODY_BYTES_COLLECTED = 4 * 1024 * 1024;

/** A body that is too large is a 413, which makes the sender cut its batch. */
export function syncRoutes(sync: SyncReceiver, bodies: BodyReader): Hono {
  const garbage = new Garbage(BODY_BYTES_COLLECTED);
  return new Hono().post("/sync", async (c) => {
    const { headers } = c.req.raw;
    const body = await bodies.bytes(c.req.raw);
    const { applied, ack, identity } = await sync.apply({
      body,
      nodeId: headers.get(NODE_ID_HEADER) ?? undefined,
      nodeUrl: headers.get(NODE_URL_HEADER) ?? undefined,
      identity: parseIdentity(headers.get(IDENTITY_HEADER)),
    });
    garbage.left(body.length);
    giveBack(body);
    return new Response(JSON.stringify({ applied, ack }), {
      headers: { ...JSON_TYPE, [IDENTITY_HEADER]: formatIdentity(identity) },
    });
  });
}
