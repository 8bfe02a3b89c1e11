/** A file that is taken away from under a running node: nothing that is answered goes where nobody sees it. */
import { expect, test } from "bun:test";
import { copyFileSync, renameSync, rmSync } from "node:fs";

import { StoreFile } from "../support/open-store.ts";

async function look(file: StoreFile): Promise<void> {
  file.clock.ms += 1_000;
  await file.store.runDue();
}

const write = (file: StoreFile) => file.store.queue.run("local", () => "written");

test.each([
  ["removed", (path: string) => renameSync(path, `${path}.away`)],
  [
    "replaced by another file",
    (path: string) => {
      renameSync(path, `${path}.away`);
      copyFileSync(`${path}.away`, path);
    },
  ],
])("while it is %s, writes are refused; put back, they are taken", async (what, take) => {
  await using file = new StoreFile();
  file.open();
  await look(file);
  expect(await write(file)).toBe("written");
  take(file.path);
  await look(file);
  const error = await write(file).catch((error) => error);
  expect([error.code, error.message]).toEqual(["file-moved", expect.stringContaining(what)]);
  // What the node does by itself goes on, so that its log can be shipped.
  expect(await file.store.queue.run("apply", () => "done")).toBe("done");
  rmSync(file.path, { force: true });
  renameSync(`${file.path}.away`, file.path);
  await look(file);
  expect(await write(file)).toBe("written");
});
