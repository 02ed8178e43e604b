// The model of the pages that writes down what is said: an engine in a worker, so that the page stays responsive.

import { httpSource } from "../src/index.js";
import type { LoadProgress } from "../src/index.js";
import { openBundle } from "../src/runtime/index.js";
import type { WorkerEngine } from "../src/worker/client.js";
import { connectEngine } from "../src/worker/client.js";

/** The folder of the bundle that ?transcriber= names; null without it. */
export function transcriberOfAddress(): string | null {
  const bundle = new URLSearchParams(location.search).get("transcriber");
  return bundle === null || bundle.endsWith("/") ? bundle : `${bundle}/`;
}

/** Throws what `connectEngine` throws. */
export async function openTranscriber(
  bundle: string,
  onProgress?: (progress: LoadProgress) => void,
): Promise<WorkerEngine> {
  const worker = new Worker("engine_worker.js", { type: "module" });
  return connectEngine(worker, bundle, onProgress === undefined ? {} : { onProgress });
}

/** What a model of sound can do. */
export interface SpeechAbilities {
  /** The codes of its languages, such as "en"; empty for a model of one language. */
  readonly languages: readonly string[];
  readonly translates: boolean;
}

/** Throws BundleError. */
export async function speechAbilities(bundle: string): Promise<SpeechAbilities> {
  const { manifest } = await openBundle(httpSource(bundle), new AbortController().signal);
  const { languages = [], translate = null } = manifest.speech ?? {};
  return { languages: languages.map(({ code }) => code), translates: translate !== null };
}

/** "de" -> "German". */
export function languageName(code: string): string {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code) ?? code;
  } catch {
    // Whisper's codes are not all known.
    return code;
  }
}
