// The progress of a load before anything has happened.

import type { LoadProgress } from "./load.js";

export const LOAD_START: LoadProgress = {
  phase: "manifest",
  loadedBytes: 0,
  storedBytes: 0,
  totalBytes: 0,
  compiledKernels: 0,
  totalKernels: 0,
};
