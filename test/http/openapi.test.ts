import { afterAll, expect, test } from "bun:test";
import { openApi } from "../../lib/http/openapi.ts";
import { StoreFixture } from "../support/store-fixture.ts";

const store = new StoreFixture(`
  CREATE TABLE items(
    id TEXT PRIMARY KEY, name TEXT NOT NULL, size INTEGER NOT NULL DEFAULT 1, price REAL, photo BLOB,
    flag BOOLEAN, at DATETIME, x, twice AS (size * 2), created_at INTEGER, updated_at INTEGER, node_id TEXT);
  CREATE TABLE "a b"(id TEXT PRIMARY KEY, "__proto__" TEXT, updated_at INTEGER);
  CREATE TABLE "a_b"(id TEXT PRIMARY KEY, updated_at INTEGER);
  CREATE TABLE "curly{x}/"(id TEXT PRIMARY KEY, updated_at INTEGER)`);
// biome-ignore lint/suspicious/noExplicitAny: a document is looked into member by member.
const document: any = JSON.parse(JSON.stringify(openApi(store.tables(), "1.2.3")));
const schemas = document.components.schemas;

afterAll(() => store.close());

test("every table has its paths, escaped", () => {
  expect(
    Object.keys(document.paths)
      .filter((path) => path.startsWith("/api/"))
      .sort(),
  ).toEqual(
    ["a%20b", "a_b", "curly%7Bx%7D%2F", "items"]
      .flatMap((table) => [`/api/${table}`, `/api/${table}/batch`, `/api/${table}/{id}`])
      .sort(),
  );
});

test("columns have the forms in which they travel", () => {
  expect(schemas["row.items"].properties).toMatchObject({
    id: { type: ["string"], readOnly: true },
    name: { type: ["string"] },
    size: { type: ["integer"], format: "int64" },
    price: { type: ["number", "null"] },
    flag: { type: ["boolean", "number", "string", "null"] },
    photo: { type: ["string", "null"], pattern: "^\\\\x([0-9a-fA-F]{2})*$" },
    x: { type: ["number", "string", "null"] },
    created_at: { readOnly: true },
    updated_at: { readOnly: true },
    node_id: { readOnly: true },
  });
  expect(schemas["row.items"].properties.twice).toBeUndefined();
});

test("what may be sent has no columns that the server makes, and says what must be given", () => {
  const fresh = schemas["row.items.new"];
  expect(Object.keys(fresh.properties)).toEqual([
    "id",
    "name",
    "size",
    "price",
    "photo",
    "flag",
    "at",
    "x",
  ]);
  expect(fresh.required).toEqual(["name"]);
  expect(schemas["row.items.change"].required).toBeUndefined();
});

test("null may be neither sent nor expected where a column is NOT NULL", () => {
  for (const name of ["row.items", "row.items.new", "row.items.change"]) {
    const { properties } = schemas[name];
    expect(properties.name.type).toEqual(["string"]);
    expect(properties.size.type).toEqual(["integer"]);
    expect(properties.price.type).toEqual(["number", "null"]);
  }
});

test("names of schemas and operations are well-formed and unique", () => {
  const names = Object.keys(schemas);
  expect(names.filter((name) => !/^[A-Za-z0-9._-]+$/.test(name))).toEqual([]);
  expect(names.filter((name) => /^row\.a_b(-\d+)?$/.test(name)).length).toBe(2);
  const operations = JSON.stringify(document).match(/"operationId":"[^"]*"/g)!;
  expect(new Set(operations).size).toBe(operations.length);
});

test("every reference leads somewhere", () => {
  const references = JSON.stringify(document).match(/#\/components\/schemas\/[^"]*/g)!;
  for (const reference of new Set(references)) {
    expect(schemas[reference.slice("#/components/schemas/".length)]).toBeDefined();
  }
});

test("a column named __proto__ is described like any other", () => {
  const name = Object.keys(schemas).find(
    (key) => schemas[key].properties && Object.hasOwn(schemas[key].properties, "__proto__"),
  );
  expect(name).toStartWith("row.a_b");
});
