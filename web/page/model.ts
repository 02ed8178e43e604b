// The pages' one way to the engine. A bundle's address flows in; what is known of the model, its answers and its tokens flow out.

import type { EngineInfo, FinishReason, LoadOptions, LoadProgress, Message, Source } from "../src/index.js";
import { BundleError, Engine, httpSource } from "../src/index.js";

export type { EngineInfo, LoadProgress, Message, SelfTestInfo } from "../src/index.js";

export interface Settings {
  readonly temperature: number;
  /** Null for as many as the context holds. */
  readonly maxTokens: number | null;
  /** Null for a random one. */
  readonly seed: number | null;
}

/** ``cachedTokens`` of the prompt's were there already. ``tokensPerSecond`` counts from the first token on. */
export interface AnswerEnd {
  readonly finishReason: FinishReason;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
  readonly timeToFirstTokenMs: number;
  readonly tokensPerSecond: number | null;
}

export interface Model {
  readonly engine: Engine;
  readonly info: EngineInfo;
  /** Yields text as it comes. Throws RequestError, DeviceError, or the signal's reason. */
  answer(messages: readonly Message[], settings: Settings, signal: AbortSignal): AsyncGenerator<string, AnswerEnd, undefined>;
  /** Continues token ids greedily. Yields new ids; fewer than ``maxTokens`` where the model ends its answer. */
  continueTokens(promptIds: readonly number[], maxTokens: number, signal: AbortSignal): AsyncGenerator<number, unknown, undefined>;
  close(): void;
}

export const PHASES: Readonly<Record<LoadProgress["phase"], string>> = {
  manifest: "Reading the manifest",
  download: "Downloading weights",
  upload: "Reading weights from this device",
  "self-test": "Checking that this device computes right",
  ready: "Ready",
};

/** Throws BundleError, DeviceError, or the signal's reason. */
export async function openModel(bundle: string | Source, options: LoadOptions = {}): Promise<Model> {
  const engine = await Engine.load(bundle, options);
  return {
    engine,
    info: engine.info,
    async *answer(messages, { temperature, maxTokens, seed }, signal) {
      const given = { maxTokens: maxTokens ?? undefined, seed: seed ?? undefined };
      for await (const event of engine.generate(messages, { temperature, ...given, signal })) {
        yield event.text;
        if (event.type === "done") return { finishReason: event.finishReason, ...event.timings };
      }
      throw new Error("an answer ended without its last event");
    },
    async *continueTokens(promptIds, maxTokens, signal) {
      for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens, signal })) yield tokenId;
    },
    close: () => {
      engine.destroy();
    },
  };
}

/** A bundle as a device sees it that never had it: every file comes over the network. */
export function freshSource(bundle: string): Source {
  const { location } = httpSource(bundle);
  return {
    location,
    async open(file, signal) {
      const response = await fetch(new URL(file, location), { cache: "reload", signal });
      if (!response.ok) throw new BundleError(`${file}: ${response.url} answers ${response.status} ${response.statusText}; check that the bundle is there`);
      return response.body ?? new Blob().stream();
    },
  };
}
