import { expect, test } from "bun:test";
import { readShape } from "../../lib/store/row-input.ts";
import { RowStatements } from "../../lib/store/row-statements.ts";
import { StoreFixture } from "../support/store-fixture.ts";

/** SQLite's default; the build in Bun takes more, the system's on macOS does not. */
const PARAMETERS_OF_SQLITE = 32_766;

test("an INSERT of many rows stays within the parameters that every SQLite takes", () => {
  const names = Array.from({ length: 490 }, (_, i) => `c${i}`);
  const store = new StoreFixture(
    `CREATE TABLE wide(id TEXT PRIMARY KEY, ${names.map((name) => `${name} INTEGER`).join(", ")}, updated_at INTEGER)`,
  );
  const table = store.table("wide");
  const statements = new RowStatements(store.db, table);
  const { shape } = statements.reader.newRow(Object.fromEntries(names.map((name) => [name, 1])));
  expect(readShape(table, shape).length).toBe(490);
  const parameters = statements.rowsPerInsert(shape, 1_000) * (names.length + 2);
  expect(parameters).toBeGreaterThan(names.length + 2);
  expect(parameters).toBeLessThanOrEqual(PARAMETERS_OF_SQLITE);
  expect(statements.rowsPerInsert(statements.reader.newRow({ c0: 1 }).shape, 1_000)).toBe(100);
  statements.finalize();
  store.close();
});
