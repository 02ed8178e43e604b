// The model of the pages that writes down what is said: an engine in a worker, so that the page stays responsive.

import { httpSource } from "../src/index.js";
import type { Transcribe, Transcript } from "../src/audio/index.js";
import { openBundle } from "../src/runtime/index.js";
import type { WorkerEngine } from "../src/worker/client.js";
import { loadState } from "./load_words.js";
import { openWorkerEngine } from "./worker_engine.js";

/** What a transcriber wrote down of a recording in a message. */
export interface WrittenDown extends Pick<Transcript, "text" | "language"> {
  readonly model: string;
  /** The time that it took, without that of loading the model. */
  readonly ms: number;
}

/** The transcriber of the chat page, for dictation and for recordings in messages. It is loaded with the first of them. */
export class ChatTranscriber {
  /** Of the recordings in messages, in the order in which they were written down. */
  readonly written: WrittenDown[] = [];
  /** Receives what it is doing for a message, and "" at the end. */
  onState: (words: string) => void = () => undefined;
  #engine: Promise<WorkerEngine> | null = null;
  #onLoad: (words: string) => void = () => undefined;

  constructor(private readonly bundle: string) {}

  /** ``onLoad`` receives how far the load is. A failed load is tried again. Throws what `connectEngine` throws. */
  async open(onLoad: (words: string) => void): Promise<WorkerEngine> {
    this.#onLoad = onLoad;
    this.#engine ??= openWorkerEngine(this.bundle, (progress) => {
      const { words, amount } = loadState(progress);
      this.#onLoad(words.endsWith("…") || amount === "" ? `${words} ${amount}` : `${words}: ${amount}`);
    });
    this.#engine.catch(() => (this.#engine = null));
    return this.#engine;
  }

  /** As `Engine.transcribe`, for engines and routers, which want no segments. */
  readonly transcribe = (async (...[audio, options]: Parameters<Transcribe>): Promise<Transcript> => {
    try {
      this.onState("Loading the model that writes recordings down");
      const engine = await this.open(this.onState);
      this.onState("Transcribing a recording");
      const begun = performance.now();
      const made = await engine.transcribe(audio, { ...options, stream: false });
      const { text, language } = made;
      this.written.push({ text, language, model: engine.info.model, ms: performance.now() - begun });
      return made;
    } finally {
      this.onState("");
    }
  }) as Transcribe;
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
