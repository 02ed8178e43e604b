import { expect, test } from "vitest";

import { loadState } from "../../page/load_words.js";

test("after the download, the words and the bar show the kernels", () => {
  const progress = {
    phase: "download",
    loadedBytes: 50,
    totalBytes: 100,
    storedBytes: 0,
    compiledKernels: 3,
    totalKernels: 12,
  } as const;
  expect(loadState(progress)).toEqual({ words: "Downloading weights", done: 50, total: 100, unit: "bytes" });
  const waits = { words: "Compiling kernels …", done: 3, total: 12, unit: "kernels" };
  expect(loadState({ ...progress, loadedBytes: 100 })).toEqual(waits);
  expect(loadState({ ...progress, phase: "upload", loadedBytes: 100 })).toEqual(waits);
  expect(loadState({ ...progress, loadedBytes: 100, compiledKernels: 12 }).unit).toBe("bytes");
  expect(loadState({ ...progress, phase: "self-test", loadedBytes: 100 }).words).toBe(
    "Checking that this device computes correctly",
  );
});
