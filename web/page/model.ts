// The only module of the pages that calls an engine of text: it opens a bundle, and returns answers and tokens of its
// model.

import type { MessageContent } from "./attachments.js";
import type { EngineInfo, GenerationEvent, LoadOptions, LoadProgress, Source } from "../src/index.js";
import type { Journals } from "../src/journal/index.js";
import { journalled } from "../src/journal/index.js";
import type { Route } from "../src/router/index.js";
import { BundleError, Engine, RequestError, httpSource } from "../src/index.js";
import type { Kept } from "./kept_answer.js";
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
   * continues it. With ``kept``, a later page can go on with it. Throws RequestError, DeviceError, or the signal's reason.
   */
  answer(
    messages: readonly ChatMessage[],
    settings: Settings,
    signal: AbortSignal,
    kept?: Kept | null,
  ): AsyncGenerator<Piece, AnswerEnd, undefined>;
}

/** Its answers with ``kept`` are among the journals. */
export interface KeepingAnswerer extends Answerer {
  readonly journals: Journals;
}

export interface Model extends KeepingAnswerer {
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
  // Conversations with private messages are stored on this device as well.
  const answering = journalled(engine, { keepPrivate: true });
  return {
    engine,
    journals: answering.journals,
    get info() {
      return engine.info;
    },
    async *answer(messages, { temperature, maxTokens: longest, seed }, signal, kept = null) {
      const start = performance.now();
      if (kept?.resumes === true) {
        const resumed = await answering.journals.resume(kept.id, { signal });
        if (resumed.api === "generate") return yield* pieces(resumed.answer, start);
      }
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
      const rest = { temperature, ...limits, signal, ...(kept && { id: kept.id }) };
      return yield* pieces(answering.generate(plain(fitted), rest), start);
    },
    async *continueTokens(promptIds, maxTokens, signal) {
      for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens, signal })) yield tokenId;
    },
    close: () => {
      engine.destroy();
    },
  };
}

/** ``start`` in milliseconds: when the answer was requested. */
async function* pieces(
  events: AsyncIterable<GenerationEvent>,
  start: number,
): AsyncGenerator<Piece, AnswerEnd, undefined> {
  let end: AnswerEnd | null = null;
  // The last event is read to the end, after which the answer is kept as complete.
  for await (const event of events) {
    yield { type: "text", text: event.text };
    if (event.type === "done")
      end = { finishReason: event.finishReason, totalMs: performance.now() - start, ...event.timings };
  }
  if (end === null) throw new Error("an answer ended without its last event");
  return end;
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
