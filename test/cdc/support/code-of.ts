/** How something ends: the code of the CdcError it throws, or that nothing was wrong. */
import { CdcError } from "../../../lib/cdc/error.ts";

const NOTHING = "nothing wrong";

function codeIn(error: unknown): string {
  if (error instanceof CdcError) return error.code;
  throw error;
}

export function codeOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    return codeIn(error);
  }
  return NOTHING;
}

export async function laterCodeOf(run: () => Promise<unknown>): Promise<string> {
  try {
    await run();
  } catch (error) {
    return codeIn(error);
  }
  return NOTHING;
}
