// Engines beside the page's own, such as of a model that writes down what is said: each in a worker, so that the page
// stays responsive.

import type { LoadProgress } from "../src/index.js";
import type { WorkerEngine } from "../src/worker/client.js";
import { connectEngine } from "../src/worker/client.js";

/** The folder of the bundle that this parameter of the page's address names; null without it. */
export function folderOfAddress(parameter: string): string | null {
  const bundle = new URLSearchParams(location.search).get(parameter);
  return bundle === null || bundle.endsWith("/") ? bundle : `${bundle}/`;
}

/** Throws what `connectEngine` throws. */
export async function openWorkerEngine(
  bundle: string,
  onProgress?: (progress: LoadProgress) => void,
): Promise<WorkerEngine> {
  const worker = new Worker("engine_worker.js", { type: "module" });
  return connectEngine(worker, bundle, onProgress === undefined ? {} : { onProgress });
}
