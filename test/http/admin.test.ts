import { expect, test } from "bun:test";
import { RequestError } from "../../lib/base/errors.ts";
import { requireAdmin } from "../../lib/http/admin.ts";

const TOKEN = "0123456789abcdefgh";

function isAdmitted(
  remoteAddress: string | undefined,
  headers: Record<string, string> = {},
  token: string | undefined = TOKEN,
): boolean {
  try {
    requireAdmin({ headers: new Headers(headers), remoteAddress, token });
    return true;
  } catch (error) {
    expect(error).toBeInstanceOf(RequestError);
    expect(error).toMatchObject({ status: 403 });
    // What is asked for is not told.
    expect((error as Error).message).not.toContain(TOKEN);
    return false;
  }
}

test.each([
  ["127.0.0.1", true],
  ["127.9.9.9", true],
  ["::1", true],
  ["::ffff:127.0.0.1", true],
  ["::FFFF:127.0.0.1", true],
  ["10.0.0.1", false],
  ["::ffff:10.0.0.1", false],
  ["127.0.0.1.example.com", false],
  ["::ffff:127.0.0.1.example.com", false],
  ["", false],
  [undefined, false],
])("a program at %p is of this machine: %p", (address, expected) => {
  expect(isAdmitted(address)).toBe(expected);
  expect(isAdmitted(address, {}, undefined)).toBe(expected);
});

test.each(["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"])(
  "what comes through a proxy on this machine does not, whatever %s says",
  (header) => {
    expect(isAdmitted("127.0.0.1", { [header]: "127.0.0.1" })).toBe(false);
    expect(isAdmitted("10.0.0.1", { [header]: "127.0.0.1" })).toBe(false);
  },
);

test.each([
  [`Bearer ${TOKEN}`, true],
  [`bearer ${TOKEN}`, true],
  [`BEARER   ${TOKEN} `, true],
  [`Bearer ${TOKEN}x`, false],
  [`Bearer ${TOKEN.slice(1)}`, false],
  [`Bearer ${TOKEN}, Bearer ${TOKEN}`, false],
  [`Basic ${TOKEN}`, false],
  ["Bearer", false],
  ["Bearer ", false],
  [TOKEN, false],
])("Authorization: %s admits from anywhere: %p", (authorization, expected) => {
  expect(isAdmitted("10.0.0.1", { authorization })).toBe(expected);
});

test("no token is no key: neither an empty one nor none that was given", () => {
  for (const token of ["", undefined]) {
    for (const authorization of ["Bearer ", "Bearer", "Bearer undefined"]) {
      expect(isAdmitted("10.0.0.1", { authorization }, token)).toBe(false);
    }
  }
});

test("a wrong token is refused on this machine, too: somebody means another node", () => {
  expect(isAdmitted("127.0.0.1", { authorization: "Bearer wrong" })).toBe(false);
});
