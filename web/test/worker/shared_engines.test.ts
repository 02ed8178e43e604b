import { expect, test } from "vitest";

import type { LoadProgress } from "../../src/load_options.js";
import { SharedEngines } from "../../src/worker/shared_engines.js";

const FIRST: LoadProgress = {
  phase: "manifest",
  loadedBytes: 0,
  storedBytes: 0,
  totalBytes: 0,
  compiledKernels: 0,
  totalKernels: 0,
};

test("the caller that starts a load receives its first progress", async () => {
  const engines = new SharedEngines((_, { onProgress }) => {
    onProgress?.(FIRST);
    return Promise.reject(new Error("no bundle here"));
  });
  const heard: LoadProgress[] = [];
  await expect(engines.borrow(["/a/"], { onProgress: (progress) => heard.push(progress) })).rejects.toThrow(
    "no bundle here",
  );
  expect(heard).toEqual([FIRST]);
});
