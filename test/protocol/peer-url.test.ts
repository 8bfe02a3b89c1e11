import { expect, test } from "bun:test";
import { parsePeerUrl, withoutCredentials } from "../../lib/protocol/peer-url.ts";

test.each([
  ["http://host:9002", "http://host:9002"],
  ["http://host:9002/", "http://host:9002"],
  ["http://host:9002//", "http://host:9002"],
  [" http://host:9002\n", "http://host:9002"],
  ["HTTP://HOST:9002", "http://host:9002"],
  ["http://host:80", "http://host"],
  ["http://host", "http://host"],
  ["https://host:443/", "https://host"],
  ["https://host:80/", "https://host:80"],
  ["http://host:09002", "http://host:9002"],
  ["http://host/nodes/a/", "http://host/nodes/a"],
  ["http://host/Nodes/./x/../A", "http://host/Nodes/A"],
  ["http://[::1]:9002/", "http://[::1]:9002"],
  ["http://[0:0:0:0:0:0:0:1]:9002/", "http://[::1]:9002"],
  ["http://127.1:9002", "http://127.0.0.1:9002"],
  ["http://bücher.example:9002", "http://xn--bcher-kva.example:9002"],
])("%p is %p", (text, url) => {
  expect(parsePeerUrl(text)).toEqual({ url });
  expect(parsePeerUrl(url)).toEqual({ url });
});

test.each([
  ["", "such as"],
  ["not a url", "http:// or https://"],
  ["host:9002", "http://host:9002"],
  ["localhost:9002", "http://localhost:9002"],
  ["127.0.0.1:9002", "http://127.0.0.1:9002"],
  ["//host:9002", "http:// or https://"],
  ["ftp://host:9002", "not ftp://"],
  ["ws://host:9002", "not ws://"],
  ["http://", "such as"],
  ["http://host:99999", "such as"],
  ["http://ho st:9002", "such as"],
  ["http://host:0", "not 0"],
  ["http://host:9002/?a=1", "query"],
  ["http://host:9002?", "query"],
  ["http://host:9002/#x", "fragment"],
  ["http://host:9002#", "fragment"],
  [`http://host/${"x".repeat(3_000)}`, "2048 characters"],
])("%p is refused, with what would be right", (text, right) => {
  const parsed = parsePeerUrl(text);
  expect("wrong" in parsed ? parsed.wrong : parsed.url).toContain(right);
  expect("wrong" in parsed).toBe(true);
});

test.each([
  ["http://user:hunter2@host:9002"],
  ["http://hunter2@host:9002"],
  ["user:hunter2@host:9002"],
])("a password is refused and not repeated: %p", (text) => {
  const parsed = parsePeerUrl(text);
  expect("wrong" in parsed).toBe(true);
  expect(JSON.stringify(parsed)).not.toContain("hunter2");
});

test("an address is shown without its password even where it does not parse", () => {
  expect(withoutCredentials("http://u:hunter2@host:9002/x")).toBe("http://…@host:9002/x");
  expect(withoutCredentials("http://u:hun#te/r2@h@ost")).toBe("http://…@ost");
  expect(withoutCredentials("u:hunter2@host:9002")).toBe("…@host:9002");
  expect(withoutCredentials("http://host:9002")).toBe("http://host:9002");
});
