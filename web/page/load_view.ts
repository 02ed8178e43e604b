// The page while a model loads, and when it did not load. Progress and errors flow in.

import type { BundleFacts } from "./bundle_facts.js";
import { element, fill } from "./elements.js";
import { errorKind, explain } from "./explain.js";
import { formatBytes, formatParameters } from "./format.js";
import type { LoadProgress } from "./model.js";
import { loadState } from "./load_words.js";
import { NearfarError } from "../src/index.js";

export class LoadView {
  readonly #start = performance.now();

  /** What is known before the model is there. */
  expect({ model, parameters, downloadBytes }: BundleFacts): void {
    element("loading-title", HTMLElement).textContent = `Loading ${model}`;
    element("loading-facts", HTMLElement).textContent =
      `${formatParameters(parameters)} parameters, ${formatBytes(downloadBytes)}`;
  }

  progress(progress: LoadProgress): void {
    const { loadedBytes, totalBytes, compiledKernels, totalKernels } = progress;
    const { words, unit } = loadState(progress);
    fill("download-track", loadedBytes, totalBytes);
    fill("kernel-track", compiledKernels, totalKernels);
    element("phase", HTMLElement).textContent = words;
    const rest = unit === "bytes" ? this.rest(loadedBytes, totalBytes) : "";
    element("amount", HTMLElement).textContent =
      totalBytes === 0 ? "" : `${formatBytes(loadedBytes)} of ${formatBytes(totalBytes)}${rest}`;
    element("kernels", HTMLElement).textContent = totalKernels === 0 ? "" : `${compiledKernels} of ${totalKernels}`;
    element("loading", HTMLElement).dataset.waits = unit;
  }

  /** The model did not load; whether somebody else answers is not known yet, which takes a while where a server says nothing. */
  askServer(): void {
    element("loading-title", HTMLElement).textContent = "The model did not load";
    element("phase", HTMLElement).textContent = "Asking the server";
    element("amount", HTMLElement).textContent = "";
  }

  /** The model did not load, and nobody else answers. */
  fail(error: unknown, bundle: string): void {
    document.body.dataset.state = "error";
    element("failure-kind", HTMLElement).textContent = errorKind(error);
    element("failure", HTMLElement).dataset.code = error instanceof NearfarError ? error.code : "unknown";
    explain(error, element("failure-message", HTMLElement));
    element("other-bundle", HTMLInputElement).value = bundle;
    element("loading", HTMLElement).hidden = true;
    element("failure", HTMLElement).hidden = false;
    element("retry", HTMLButtonElement).addEventListener("click", () => {
      location.reload();
    });
  }

  /** How long the download still takes at its speed so far, where it takes long. */
  private rest(loaded: number, total: number): string {
    const seconds = ((performance.now() - this.#start) / 1000) * (total / loaded - 1);
    if (!(seconds > 3 && seconds < 36_000)) return "";
    return seconds < 90 ? `, ${Math.ceil(seconds)} s left` : `, ${Math.ceil(seconds / 60)} min left`;
  }
}
