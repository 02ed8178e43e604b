import { expect, test } from "vitest";

import { loadState } from "../../page/load_words.js";

const progress = {
  phase: "download",
  loadedBytes: 50,
  totalBytes: 100,
  storedBytes: 0,
  compiledKernels: 3,
  totalKernels: 12,
} as const;

test("after the download, the words and the bar show the kernels", () => {
  expect(loadState(progress)).toEqual({
    words: "Downloading weights",
    amount: "50 B of 100 B",
    done: 50,
    total: 100,
    unit: "bytes",
  });
  const waits = { words: "Compiling kernels …", amount: "3 of 12", done: 3, total: 12, unit: "kernels" };
  expect(loadState({ ...progress, loadedBytes: 100 })).toEqual(waits);
  expect(loadState({ ...progress, phase: "upload", loadedBytes: 100 })).toEqual(waits);
  expect(loadState({ ...progress, loadedBytes: 100, compiledKernels: 12 }).unit).toBe("bytes");
});

test("the self-test counts its runs, and its bar has no end", () => {
  const test = { ...progress, phase: "self-test", loadedBytes: 100, compiledKernels: 12 } as const;
  const words = "Checking that this device computes correctly";
  const first = { words, amount: "run 1", done: 1, total: null, unit: "runs" };
  expect(loadState({ ...test, selfTestRuns: 0 })).toEqual(first);
  expect(loadState({ ...test, selfTestRuns: 6 })).toEqual({ ...first, amount: "run 7", done: 7 });
  // The search compiles the kernels of other variants while it runs.
  expect(loadState({ ...test, selfTestRuns: 6, compiledKernels: 3 }).amount).toBe("run 7");
});
