import { expect, test } from "bun:test";
import { isOwnAddress } from "../../lib/protocol/own-address.ts";

const HOSTS = ["MyHost", "10.0.0.5", "fd00::5"];

test.each([
  [undefined, 9001, "http://localhost:9001"],
  [undefined, 9001, "http://LOCALHOST.:9001"],
  [undefined, 9001, "http://127.0.0.1:9001/"],
  [undefined, 9001, "http://127.1.2.3:9001"],
  [undefined, 9001, "http://[::1]:9001"],
  [undefined, 9001, "http://0.0.0.0:9001"],
  [undefined, 9001, "http://[::]:9001"],
  [undefined, 9001, "http://[::ffff:127.0.0.1]:9001"],
  [undefined, 9001, "https://a.localhost:9001"],
  [undefined, 80, "http://localhost"],
  ["0.0.0.0", 9001, "http://localhost:9001"],
  ["::", 9001, "http://127.0.0.1:9001"],
  ["0:0:0:0:0:0:0:0", 9001, "http://127.0.0.1:9001"],
  ["127.0.0.1", 9001, "http://localhost:9001"],
  ["127.0.0.1", 9001, "http://0.0.0.0:9001"],
  ["::1", 9001, "http://localhost:9001"],
  ["localhost", 9001, "http://127.0.0.1:9001"],
  ["localhost", 9001, "http://[::1]:9001"],
  ["10.0.0.5", 9001, "http://10.0.0.5:9001"],
  ["myhost", 9001, "http://MYHOST:9001"],
  [undefined, 9001, "http://10.0.0.5:9001"],
  [undefined, 9001, "http://myhost:9001"],
  [undefined, 9001, "http://[fd00::5]:9001"],
] as [string | undefined, number, string][])(
  "listening on %p, port %p, %p is the node itself",
  (hostname, port, url) => {
    expect(isOwnAddress(url, { hostname, port, hosts: HOSTS })).toBe(true);
  },
);

test.each([
  [undefined, 9001, "http://localhost:9002"],
  [undefined, 0, "http://localhost:9001"],
  [undefined, 9001, "http://10.0.0.6:9001"],
  [undefined, 9001, "http://localhost"],
  [undefined, 9001, "http://localhost.example:9001"],
  ["127.0.0.1", 9001, "http://[::1]:9001"],
  ["127.0.0.1", 9001, "http://127.0.0.2:9001"],
  ["127.0.0.2", 9001, "http://127.0.0.1:9001"],
  ["10.0.0.5", 9001, "http://localhost:9001"],
  ["10.0.0.6", 9001, "http://10.0.0.5:9001"],
] as [string | undefined, number, string][])(
  "listening on %p, port %p, %p is another node",
  (hostname, port, url) => {
    expect(isOwnAddress(url, { hostname, port, hosts: HOSTS })).toBe(false);
  },
);
