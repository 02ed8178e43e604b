// The page while the model loads, and after a failed load.

import type { LoadProgress } from "@nearfar/web";

import { element } from "./elements.js";

const PHASES: Readonly<Record<LoadProgress["phase"], string>> = {
  manifest: "Opening the model",
  download: "Reading the weights",
  upload: "Reading the weights",
  "self-test": "Checking this phone's answers",
  ready: "Ready",
};

export function showProgress({ phase, loadedBytes, totalBytes, compiledKernels, totalKernels }: LoadProgress): void {
  const part = (done: number, all: number): number => (all === 0 ? 0 : done / all);
  // Files are read while kernels compile, and on a phone both take equally long.
  const percent = Math.round(50 * (part(loadedBytes, totalBytes) + part(compiledKernels, totalKernels)));
  element("phase", HTMLElement).textContent = PHASES[phase];
  element("amount", HTMLElement).textContent =
    totalBytes === 0 ? "" : `${(loadedBytes / 1e6).toFixed(1)} of ${(totalBytes / 1e6).toFixed(1)} MB`;
  element("progress", HTMLProgressElement).value = percent;
}

/** Shows the problem, and, from the text after the last semicolon, what to do. */
export function showFailure(error: unknown): void {
  const message = error instanceof Error ? error.message : String(error);
  const cut = message.lastIndexOf("; ");
  element("what", HTMLElement).textContent = cut < 0 ? message : message.slice(0, cut);
  element("fix", HTMLElement).textContent = cut < 0 ? "" : message.slice(cut + 2);
  element("place", HTMLElement).textContent = "Not loaded";
  document.body.dataset.state = "error";
}
