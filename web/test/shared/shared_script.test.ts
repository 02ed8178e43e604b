import { readFile } from "node:fs/promises";

import { expect, test } from "vitest";

import { SHARED_SCRIPT, sharedScript } from "../../shared_script.mjs";

test("the script that Python evaluates is the build of src/shared; run `node shared_script.mjs`", async () => {
  expect((await readFile(SHARED_SCRIPT, "utf8")) === (await sharedScript())).toBe(true);
});
