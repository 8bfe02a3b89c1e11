/** Who may change the mesh: each way in, and each way past it that must not be one. */
import { expect, spyOn, test } from "bun:test";
import * as crypto from "node:crypto";
import { RequestError } from "../../lib/base/errors.ts";
import { type AdminCheck, requireAdmin } from "../../lib/http/admin.ts";

const TOKEN = "0123456789abcdefgh";

/** Undefined: it may; else the answer's status and text. */
function refusal(check: {
  from?: string | undefined;
  headers?: Record<string, string>;
  token?: string | undefined;
}): [number, string] | undefined {
  const full: AdminCheck = {
    headers: new Headers(check.headers),
    remoteAddress: "from" in check ? check.from : "127.0.0.1",
    token: check.token,
  };
  try {
    requireAdmin(full);
    return undefined;
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    return [error.status, error.message];
  }
}

test.each(["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::FFFF:127.0.0.1"])(
  "%s is this machine",
  (from) => expect(refusal({ from })).toBeUndefined(),
);

test.each(["10.0.0.1", "::ffff:10.0.0.1", "1127.0.0.1", "127.0.0.1.example", "::", "", undefined])(
  "%s is not: refused, with how it would be allowed",
  (from) => {
    const how = "start the node with --admin-token";
    expect(refusal({ from })).toEqual([403, expect.stringContaining(how)]);
    const how2 = "Authorization: Bearer and the admin token";
    expect(refusal({ from, token: TOKEN })).toEqual([403, expect.stringContaining(how2)]);
  },
);

test.each(["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"])(
  "what came through a proxy on this machine (%s) did not come from it",
  (name) => {
    const headers = { [name]: "" };
    expect(refusal({ headers })?.[0]).toBe(403);
    expect(refusal({ headers: { [name]: "127.0.0.1" }, token: TOKEN })?.[0]).toBe(403);
    const authorised = { [name]: "10.0.0.1", Authorization: `Bearer ${TOKEN}` };
    expect(refusal({ headers: authorised, token: TOKEN })).toBeUndefined();
  },
);

test.each([`Bearer ${TOKEN}`, `bearer ${TOKEN}`, `BEARER  ${TOKEN} `])(
  "%j is the token, from anywhere",
  (Authorization) =>
    expect(refusal({ from: "10.0.0.1", headers: { Authorization }, token: TOKEN })).toBeUndefined(),
);

test.each([
  `Bearer ${TOKEN.slice(0, -1)}`,
  `Bearer ${TOKEN}x`,
  `Bearer ${TOKEN.toUpperCase()}`,
  `Basic ${TOKEN}`,
  TOKEN,
  "Bearer ",
  "Bearer",
])("%j is not, from elsewhere", (Authorization) => {
  expect(refusal({ from: "10.0.0.1", headers: { Authorization }, token: TOKEN })?.[0]).toBe(403);
});

test("whoever shows a wrong token is refused on this machine, too", () => {
  const headers = { Authorization: "Bearer wrong" };
  expect(refusal({ headers, token: TOKEN })?.[0]).toBe(403);
  expect(refusal({ headers })?.[0]).toBe(403);
});

test("a node without a token has none that fits, not even an empty one", () => {
  for (const token of [undefined, ""]) {
    for (const Authorization of ["Bearer ", "Bearer undefined", `Bearer ${TOKEN}`])
      expect(refusal({ from: "10.0.0.1", headers: { Authorization }, token })?.[0]).toBe(403);
  }
});

test("tokens are compared in constant time, whatever their length", () => {
  const compare = spyOn(crypto, "timingSafeEqual");
  try {
    for (const given of [TOKEN, `${TOKEN}x`, "x", `x${TOKEN.slice(1)}`]) {
      const headers = { Authorization: `Bearer ${given}` };
      refusal({ from: "10.0.0.1", headers, token: TOKEN });
    }
    const lengths = compare.mock.calls.map(([left, right]) => [left.byteLength, right.byteLength]);
    expect(lengths).toEqual(new Array(4).fill([32, 32]));
  } finally {
    compare.mockRestore();
  }
});

test("whoever sent a token reads what is wrong with it, not that only this machine may", () => {
  const headers = { Authorization: "Bearer another" };
  expect(refusal({ headers, token: TOKEN })?.[1]).toBe(
    "the admin token that was sent is not the one of this node",
  );
  expect(refusal({ headers })?.[1]).toStartWith(
    "an admin token was sent, but this node has none: ",
  );
});
