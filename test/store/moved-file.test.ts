/** A file that is taken away from under a running node: nothing that is answered goes where nobody sees it. */
import { expect, test } from "bun:test";
import { copyFileSync, renameSync, rmSync } from "node:fs";

import { StoreFile } from "../support/open-store.ts";

async function look(file: StoreFile): Promise<void> {
  file.clock.ms += 1_000;
  await file.store.runDue();
}

const write = (file: StoreFile) => file.store.queue.run("local", () => "written");

const remove = (path: string) => renameSync(path, `${path}.away`);
const replace = (path: string) => {
  remove(path);
  copyFileSync(`${path}.away`, path);
};

test.each([
  ["removed", "", remove],
  ["replaced by another file", "", replace],
  ["-wal was removed", "-wal", remove],
  ["-wal was replaced", "-wal", replace],
])("while it is %s, writes are refused; put back, they are taken", async (what, suffix, take) => {
  await using file = new StoreFile();
  file.open();
  await look(file);
  expect(await write(file)).toBe("written");
  const path = `${file.path}${suffix}`;
  take(path);
  await look(file);
  const error = await write(file).catch((error) => error);
  expect([error.code, error.message]).toEqual(["file-moved", expect.stringContaining(what)]);
  // What the node does by itself goes on, so that its log can be shipped.
  expect(await file.store.queue.run("apply", () => "done")).toBe("done");
  rmSync(path, { force: true });
  renameSync(`${path}.away`, path);
  await look(file);
  expect(await write(file)).toBe("written");
});
