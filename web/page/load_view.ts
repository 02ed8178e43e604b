// Shows the progress of a load, and the error if the model did not load.

import type { BundleFacts } from "./bundle_facts.js";
import { element, fill } from "./elements.js";
import { errorKind, explain } from "./explain.js";
import { formatBytes } from "../src/format_bytes.js";
import { formatParameters } from "./format.js";
import type { LoadProgress } from "./model.js";
import { loadState } from "./load_words.js";
import type { StoredModels } from "./stored_models.js";
import { NearfarError, StorageError } from "../src/index.js";

export class LoadView {
  readonly #start = performance.now();

  /** Show the facts that are known before the model has loaded. */
  expect({ model, parameters, downloadBytes }: BundleFacts): void {
    element("loading-title", HTMLElement).textContent = `Loading ${model}`;
    element("loading-facts", HTMLElement).textContent =
      `${formatParameters(parameters)} parameters, ${formatBytes(downloadBytes)}`;
  }

  progress(progress: LoadProgress): void {
    const { loadedBytes, totalBytes, compiledKernels, totalKernels } = progress;
    const state = loadState(progress);
    const rest = state.unit === "bytes" ? this.rest(loadedBytes, totalBytes) : "";
    // Kernels have a bar of their own, so the first one stays full.
    const full = { amount: formatBytes(totalBytes), done: totalBytes, total: totalBytes };
    const { amount, done, total } = state.unit === "kernels" ? full : state;
    element("phase", HTMLElement).textContent = state.words;
    element("amount", HTMLElement).textContent = `${amount}${rest}`;
    fill("download-track", done, total);
    element("kernels", HTMLElement).textContent = totalKernels === 0 ? "" : `${compiledKernels} of ${totalKernels}`;
    fill("kernel-track", compiledKernels, totalKernels);
  }

  /**
   * Show that the model did not load, while the page waits for the server. This takes a while if the server is silent.
   */
  askServer(): void {
    element("loading-title", HTMLElement).textContent = "The model did not load";
    element("phase", HTMLElement).textContent = "Connecting to the server";
    element("amount", HTMLElement).textContent = "";
  }

  /** Show that the model did not load and that no server answers. */
  fail(error: unknown, bundle: string, stored: StoredModels): void {
    if (error instanceof StorageError) stored.moveTo("failure-stored");
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

  /** The remaining time of the download at its average speed; "" if it is short. */
  private rest(loaded: number, total: number): string {
    const seconds = ((performance.now() - this.#start) / 1000) * (total / loaded - 1);
    if (!(seconds > 3 && seconds < 36_000)) return "";
    return seconds < 90 ? `, ${Math.ceil(seconds)} s left` : `, ${Math.ceil(seconds / 60)} min left`;
  }
}
