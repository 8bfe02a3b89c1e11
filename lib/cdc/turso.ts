/**
 * A Turso database as a source: capture switched on, and held to what this library was built upon.
 * The log's form has changed before and its faults are worked around here, so a version that behaves
 * in another way is refused at start instead of being misread later.
 *
 * Capture belongs to a connection: every connection that writes needs `enableCdc`. Each write is best
 * wrapped by `writeCdc`: outside of BEGIN … COMMIT a statement that changes no row ends the process
 * while capture is on, and some statements leave no COMMIT in the log.
 */
import { type Random, systemRandom } from "../base/random.ts";
import { type CdcConnection, inSnapshot, selectAll } from "./connection.ts";
import { CdcError } from "./error.ts";
import { isCopiedTable, LOG_COLUMNS, type LogRow } from "./log-entry.ts";
import { findLogIdentity, makeLogIdentity, readLogIdentity } from "./log-identity.ts";
import { decodeRecord } from "./record.ts";
import { isFollowed } from "./schema-digest.ts";
import { readSourceSchema, refuseUnfit } from "./source-schema.ts";

const LOG_SQL = `
  SELECT ${LOG_COLUMNS}
  FROM turso_cdc
  WHERE change_id > CAST(? AS INTEGER)
  ORDER BY turso_cdc.change_id`;

/**
 * Switches capture on for a connection and names the log if it has no name yet. Throws "source-unfit"
 * where the schema or this version of Turso cannot be followed exactly; capture is off again then.
 */
export async function enableCdc(
  connection: CdcConnection,
  random: Random = systemRandom,
): Promise<{ readonly log: string }> {
  await refuseTemp(connection);
  const schema = await inSnapshot(connection, async () => {
    const read = await readSourceSchema(connection);
    await refuseUnfit(connection, read);
    return read;
  });
  if ((await findLogIdentity(connection)) === undefined) {
    const fresh = !schema.objects.some(
      (object) => isFollowed(object) || object.name === "turso_cdc",
    );
    await writeCdc(connection, () => makeLogIdentity(connection, fresh, random));
  }
  await capture(connection, "full");
  try {
    await checkVersion(connection);
    await selfTest(connection);
    return { log: (await readLogIdentity(connection)).log };
  } catch (error) {
    await capture(connection, "off");
    throw error;
  }
}

/** Runs `write` in BEGIN IMMEDIATE … COMMIT; a throw rolls back. */
export async function writeCdc<T>(
  connection: CdcConnection,
  write: () => T | Promise<T>,
): Promise<T> {
  await connection.exec("BEGIN IMMEDIATE");
  let result: T;
  try {
    result = await write();
  } catch (error) {
    await connection.exec("ROLLBACK");
    throw error;
  }
  await connection.exec("COMMIT");
  return result;
}

/**
 * Deletes what every follower has: all rows before the position `through` but the one that its mark
 * is made of. Change ids begin anew in an empty log, so the last COMMIT always stays; a position
 * behind it is taken for it.
 */
export async function pruneCdc(connection: CdcConnection, through: bigint): Promise<void> {
  await writeCdc(connection, async () => {
    const rows = await selectAll<{ id: string }>(
      connection,
      `SELECT CAST(change_id AS TEXT) AS id
       FROM turso_cdc
       WHERE change_id <= CAST(? AS INTEGER) AND change_id <= (
         SELECT change_id FROM turso_cdc WHERE change_type = 2
         ORDER BY turso_cdc.change_id DESC LIMIT 1)
       ORDER BY turso_cdc.change_id DESC
       LIMIT 2`,
      through.toString(),
    );
    const keep = rows.at(-1);
    if (rows.length < 2 || keep === undefined) return;
    await connection.exec(`DELETE FROM turso_cdc WHERE change_id < ${BigInt(keep.id)}`);
  });
}

async function capture(connection: CdcConnection, mode: "full" | "off"): Promise<void> {
  await selectAll(connection, `PRAGMA capture_data_changes_conn('${mode}')`);
}

/** Their rows would be taken for those of a table with the same name. */
async function refuseTemp(connection: CdcConnection): Promise<void> {
  const tables = await selectAll<{ schema: string; name: string }>(connection, "PRAGMA table_list");
  const temp = tables.find(({ schema, name }) => schema === "temp" && !/^sqlite_/.test(name));
  if (temp === undefined) return;
  throw unfit(`the rows of the TEMP table ${temp.name} would be in the log`);
}

function unfit(why: string): CdcError {
  return new CdcError("source-unfit", `this database cannot be followed: ${why}`);
}

async function checkVersion(connection: CdcConnection): Promise<void> {
  const [row] = await selectAll<{ version: string }>(
    connection,
    "SELECT version FROM turso_cdc_version WHERE table_name = 'turso_cdc'",
  );
  if (row?.version === "v2") return;
  throw unfit(`its change log is of version ${row?.version ?? "none"}; v2 is known`);
}

/** Rolled back, so that nothing of it is ever in the log. */
const SELF_TEST_SQL = `
  CREATE TABLE _cdc_self_test (k INTEGER PRIMARY KEY, v);
  INSERT INTO _cdc_self_test VALUES (1, 'a'), (2, 1.0);
  UPDATE _cdc_self_test SET v = 'b' WHERE k = 1;
  UPDATE _cdc_self_test SET k = 3 WHERE k = 2;
  DELETE FROM _cdc_self_test WHERE k = 1;
  ALTER TABLE _cdc_self_test ADD COLUMN w;
  CREATE TABLE _cdc_self_copy AS SELECT 1 AS one`;

async function selfTest(connection: CdcConnection): Promise<void> {
  const before = await newestId(connection);
  await connection.exec("BEGIN IMMEDIATE");
  let rows: LogRow[];
  try {
    await connection.exec(SELF_TEST_SQL);
    rows = await selectAll<LogRow>(connection, LOG_SQL, before.toString());
  } finally {
    await connection.exec("ROLLBACK");
  }
  const wrong = whatIsWrong(rows, before);
  if (wrong !== undefined) throw unfit(`its change log is not as expected: ${wrong}`);
  if ((await newestId(connection)) !== before) {
    throw unfit("its change log keeps what was rolled back");
  }
}

async function newestId(connection: CdcConnection): Promise<bigint> {
  const [row] = await selectAll<{ id: string | null }>(
    connection,
    "SELECT CAST(max(change_id) AS TEXT) AS id FROM turso_cdc",
  );
  return BigInt(row?.id ?? "0");
}

/** [change_type, id of a row, its image], as the statements of the self-test must be logged. */
const EXPECTED: readonly (readonly [number, string, unknown])[] = [
  [1, "1", [1n, "a"]],
  [1, "2", [2n, 1]],
  [0, "1", [1n, "b"]],
  [-1, "2", undefined],
  [1, "3", [3n, 1]],
  [-1, "1", undefined],
];

function whatIsWrong(rows: readonly LogRow[], before: bigint): string | undefined {
  if (rows.some((row, i) => BigInt(row.change_id) !== before + BigInt(i) + 1n)) {
    return "its ids have gaps";
  }
  const written = rows.filter((row) => row.table_name === "_cdc_self_test");
  for (const [i, [type, id, image]] of EXPECTED.entries()) {
    const row = written[i];
    if (row?.change_type !== type || row.id !== id) return `change ${i + 1} of a test is missing`;
    const bytes = row.after ?? row.before;
    if (image !== undefined && (bytes === null || !Bun.deepEquals(decodeRecord(bytes), image))) {
      return `change ${i + 1} of a test has another image`;
    }
  }
  const schema = rows.filter((row) => row.table_name === "sqlite_schema");
  const [made, altered, copied] = schema;
  const sqlOf = (row: LogRow | undefined) => String(row?.after ? decodeRecord(row.after)[4] : "");
  if (schema.length !== 3 || isCopiedTable(sqlOf(made)) || !isCopiedTable(sqlOf(copied))) {
    return "CREATE TABLE … AS SELECT cannot be told from CREATE TABLE";
  }
  const statement = altered?.updates ? decodeRecord(altered.updates).at(-1) : undefined;
  if (!String(statement).trimStart().startsWith("ALTER")) return "ALTER is without its statement";
  return undefined;
}
