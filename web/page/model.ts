// The only module of the pages that calls an engine of text: it opens a bundle, and returns answers and tokens of its
// model.

import type { MessageContent } from "./attachments.js";
import type { EngineInfo, LoadOptions, LoadProgress, Source } from "../src/index.js";
import type { Route } from "../src/router/index.js";
import { BundleError, Engine, RequestError, httpSource } from "../src/index.js";
import { answerRoom, continues, fitMessages, plain, promptTokens, remainingTokens, textOf } from "./fit_messages.js";

export type { Route } from "../src/router/index.js";
export type { EngineInfo, LoadProgress, SelfTestInfo } from "../src/index.js";

export type Side = Route["side"];

export interface Settings {
  readonly temperature: number;
  /** Null if only the context limits the answer. */
  readonly maxTokens: number | null;
  /** Null for a random one. */
  readonly seed: number | null;
}

/** A message as the page stores it. Only this device answers a private message. */
export interface ChatMessage {
  readonly role: "system" | "user" | "assistant";
  readonly content: MessageContent;
  readonly private: boolean;
}

/**
 * A part of an answer: text, the route of the text that follows, or the number of the oldest turns that have been
 * dropped
 * for this answer in all.
 */
export type Piece =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "route"; readonly route: Route }
  | { readonly type: "dropped"; readonly turns: number };

/**
 * ``cachedTokens`` of the prompt's tokens were in the cache. ``tokensPerSecond`` counts from the first token. A value
 * is
 * null if the server did not report it.
 */
export interface AnswerEnd {
  /**
   * "context": the model's context is full. "server": the server stopped before the longest answer that was requested.
   */
  readonly finishReason: string;
  readonly promptTokens: number | null;
  readonly cachedTokens: number;
  readonly completionTokens: number | null;
  readonly timeToFirstTokenMs: number;
  readonly totalMs: number;
  readonly tokensPerSecond: number | null;
}

/** Answers a chat: the engine alone, or both sides. */
export interface Answerer {
  /**
   * Yields text as it arrives, and routes if there are two sides. If the last message is the assistant's, the answer
   * continues it. Throws RequestError, DeviceError, or the signal's
   * reason.
   */
  answer(
    messages: readonly ChatMessage[],
    settings: Settings,
    signal: AbortSignal,
  ): AsyncGenerator<Piece, AnswerEnd, undefined>;
}

export interface Model extends Answerer {
  readonly engine: Engine;
  readonly info: EngineInfo;
  /** Continues token ids greedily. Yields new ids: fewer than ``maxTokens`` if the model ends its answer. */
  continueTokens(
    promptIds: readonly number[],
    maxTokens: number,
    signal: AbortSignal,
  ): AsyncGenerator<number, unknown, undefined>;
  close(): void;
}

export const PHASES: Readonly<Record<LoadProgress["phase"], string>> = {
  manifest: "Reading the manifest",
  download: "Downloading weights",
  upload: "Reading weights from this device",
  "self-test": "Checking that this device computes correctly",
  ready: "Ready",
};

/** Throws BundleError, DeviceError, or the signal's reason. */
export async function openModel(bundle: string | Source, options: LoadOptions = {}): Promise<Model> {
  const engine = await Engine.load(bundle, options);
  return {
    engine,
    get info() {
      return engine.info;
    },
    async *answer(messages, { temperature, maxTokens: longest, seed }, signal) {
      const start = performance.now();
      const { context } = engine.info;
      const countTokens = promptTokens(engine);
      const maxTokens = await remainingTokens(messages, longest, countTokens);
      const room = answerRoom(context, maxTokens);
      const { messages: fitted, dropped } = await fitMessages(messages, context, room, countTokens);
      if (dropped > 0) yield { type: "dropped", turns: dropped };
      const limits = {
        maxTokens: maxTokens ?? context,
        // Pictures cannot be dropped in part.
        ...(fitted.some(({ content }) => typeof content !== "string")
          ? {}
          : { whenFull: { keep: await tokensToKeep(engine, fitted) } }),
        seed: seed ?? undefined,
        continueFinalMessage: continues(fitted),
      };
      // An answer that fills the context continues. A prompt that does not fit is an error, because the model would
      // silently lose its beginning.
      const count = await countTokens(fitted);
      if (count > context)
        throw new RequestError("The message is longer than the model's context; shorten it", {
          param: "messages",
          tokens: count,
          context,
        });
      for await (const event of engine.generate(plain(fitted), { temperature, ...limits, signal })) {
        yield { type: "text", text: event.text };
        if (event.type === "done")
          return { finishReason: event.finishReason, totalMs: performance.now() - start, ...event.timings };
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

/** The tokens of the system prompt and of the template around it, at most half of the context. */
async function tokensToKeep(engine: Engine, messages: readonly ChatMessage[]): Promise<number> {
  const system = messages.find(({ role }) => role === "system");
  return system === undefined
    ? 0
    : Math.min((await engine.countTokens(textOf(system.content))) + 16, engine.info.context >> 1);
}

/** A bundle whose files all come over the network, as on a device that has never loaded it. */
export function freshSource(bundle: string): Source {
  const { location } = httpSource(bundle);
  return {
    location,
    async open(file, signal) {
      const response = await fetch(new URL(file, location), { cache: "reload", signal });
      if (!response.ok)
        throw new BundleError(
          `${file}: ${response.url} answers ${response.status} ${response.statusText}; check that the bundle is there`,
        );
      return response.body ?? new Blob().stream();
    },
  };
}
