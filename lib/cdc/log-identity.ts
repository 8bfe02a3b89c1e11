/**
 * Which log it is. Change ids begin anew when a log is made again, so a watermark without a name for
 * its log would be taken for a place in another one. The name is random and kept in the source's file.
 */
import type { Random } from "../base/random.ts";
import { type CdcConnection, selectAll } from "./connection.ts";
import { CdcError } from "./error.ts";

/** The name of a log. */
export interface LogIdentity {
  readonly log: string;
  /** Whether the log began in a database without tables, so that it alone gives everything. */
  readonly complete: boolean;
}

const CREATE_SQL = `
  CREATE TABLE IF NOT EXISTS _cdc_log (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    log TEXT NOT NULL,
    complete INTEGER NOT NULL
  )`;

const SELECT_SQL = "SELECT log, complete FROM _cdc_log";

/** The identity of a log, or a CdcError where there is none. */
export async function readLogIdentity(connection: CdcConnection): Promise<LogIdentity> {
  const found = await findLogIdentity(connection);
  if (found === undefined) {
    const remedy = "a node makes one with --cdc, another program with enableCdc";
    throw new CdcError("source-unfit", `this database keeps no change log: ${remedy}`);
  }
  return found;
}

/** The identity of a log, if there is one. */
export async function findLogIdentity(connection: CdcConnection): Promise<LogIdentity | undefined> {
  let rows: { log: string; complete: number }[];
  try {
    rows = await selectAll(connection, SELECT_SQL);
  } catch (error) {
    // Drivers tell a missing table by their messages only.
    const [table] = await selectAll(
      connection,
      "SELECT 1 AS one FROM sqlite_schema WHERE name = '_cdc_log'",
    );
    if (table === undefined) return undefined;
    throw error;
  }
  const [row] = rows;
  return row && { log: row.log, complete: Number(row.complete) === 1 };
}

/** Gives a log its name. Within the caller's write transaction. */
export async function makeLogIdentity(
  connection: CdcConnection,
  complete: boolean,
  random: Random,
): Promise<LogIdentity> {
  const log = random.hex(16);
  await connection.exec(CREATE_SQL);
  await connection.exec("DELETE FROM _cdc_log WHERE one = 1");
  await connection.exec(`INSERT INTO _cdc_log VALUES (1, '${log}', ${complete ? 1 : 0})`);
  return { log, complete };
}
