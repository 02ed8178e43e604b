// journalled(engine): an engine or a Hybrid whose answers survive the page. A request with an id is recorded on this
// device, and a later page continues it.

import type { EngineApi } from "../api/engine_api.js";
import type { Stream } from "../api/stream.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  Completion,
  CompletionChunk,
  CompletionCreateParamsNonStreaming,
  CompletionCreateParamsStreaming,
  RequestOptions,
} from "../api/types.js";
import { withMethods } from "../api/with_methods.js";
import type { AnswerEnd, GeneratedToken, TokenRequest } from "../engine/request.js";
import type { ChatMessage, GenerateOptions, GenerationEvent } from "../generation.js";
import type { Hybrid } from "../router/hybrid.js";
import type { HybridParamsNonStreaming, HybridParamsStreaming } from "../router/request.js";
import type { JournalOptions, Source } from "./journals.js";
import { Journals } from "./journals.js";

/** Without an id, a request is answered as without a journal. */
interface WithId {
  /**
   * Keeps the answer on this device under this name. If an answer of this id is kept, the request continues it, or
   * repeats it if it is complete; it must be the same request.
   */
  readonly id?: string | undefined;
}

interface Create<N, S, Options, Answer, Chunk> {
  create(params: N, options?: Options & WithId): Promise<Answer>;
  create(params: S, options?: Options & WithId): Promise<Stream<Chunk>>;
  create(params: N | S, options?: Options & WithId): Promise<Answer | Stream<Chunk>>;
}

export interface JournalledMethods {
  readonly journals: Journals;
  readonly chat: {
    readonly completions: Create<
      ChatCompletionCreateParamsNonStreaming,
      ChatCompletionCreateParamsStreaming,
      RequestOptions,
      ChatCompletion,
      ChatCompletionChunk
    >;
  };
  readonly completions: Create<
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
    RequestOptions,
    Completion,
    CompletionChunk
  >;
  generate(
    prompt: string | readonly ChatMessage[],
    options?: GenerateOptions & WithId,
  ): AsyncGenerator<GenerationEvent, void, undefined>;
  generateTokens(request: TokenRequest, options?: WithId): AsyncGenerator<GeneratedToken, AnswerEnd, undefined>;
}

/** An engine with the same methods, of which four take an id. */
export type Journalled<E> = Omit<E, keyof JournalledMethods> & JournalledMethods;

export interface JournalledHybrid extends Omit<Hybrid, "chat"> {
  readonly journals: Journals;
  readonly chat: {
    readonly completions: Create<
      HybridParamsNonStreaming,
      HybridParamsStreaming,
      Pick<RequestOptions, "signal">,
      ChatCompletion,
      ChatCompletionChunk
    >;
  };
}

/**
 * An engine, an engine in a worker, or a Hybrid, whose answers continue on a later page: after a reload, a crash, or the
 * end of a worker. Nothing is opened or stored before the first request with an id.
 */
export function journalled(hybrid: Hybrid, options?: JournalOptions): JournalledHybrid;
export function journalled<E extends EngineApi>(engine: E, options?: JournalOptions): Journalled<E>;
export function journalled(engine: Hybrid | EngineApi, options: JournalOptions = {}): unknown {
  const source = engine as Source;
  const journals = new Journals(source, options);
  const byId =
    (kept: (id: string, ...args: readonly never[]) => unknown, plain: (...args: readonly never[]) => unknown) =>
    (first: never, second: WithId = {}): unknown => {
      const { id, ...rest } = second;
      return id === undefined ? plain(first, rest as never) : kept(id, first, rest as never);
    };
  const completions = <C extends { create(...args: never[]): unknown }>(plain: C, kept: "chat" | "completions"): C => ({
    ...plain,
    create: byId(journals[kept].bind(journals) as never, (...args: never[]) => plain.create(...args)),
  });
  const own: Readonly<Record<string, unknown>> = {
    journals,
    chat: { ...source.chat, completions: completions(source.chat.completions, "chat") },
    ...(source.completions && { completions: completions(source.completions as never, "completions") }),
    ...(source.generate && {
      generate: byId(journals.generate.bind(journals) as never, (...args: [never]) => source.generate?.(...args)),
    }),
    ...(source.generateTokens && {
      generateTokens: byId(journals.generateTokens.bind(journals) as never, (...args: [never]) =>
        source.generateTokens?.(...args),
      ),
    }),
  };
  return withMethods(engine, own);
}
