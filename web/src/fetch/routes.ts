// OpenAI's routes, and the engine's method for each.

import type { ChatSource, EmbeddingSource } from "../api/chat_source.js";
import { appendOnly, modelName } from "../api/chat_source.js";
import type { EngineApi, EngineWithSessions } from "../api/engine_api.js";
import type {
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  CompletionCreateParams,
  EmbeddingCreateParams,
} from "../api/types.js";
import { RequestError } from "../errors.js";

export interface Route {
  readonly method: "GET" | "POST";
  readonly path: RegExp;
  /**
   * The complete answer, its chunks, or null if there is no such model. Throws what the engine throws. ``id`` is the
   * model's id in the last route.
   */
  answer(
    source: ChatSource,
    body: object,
    request: { readonly signal: AbortSignal; readonly id: string },
  ): PromiseLike<object | AsyncIterable<object> | null>;
}

export const ROUTES: readonly Route[] = [
  {
    method: "POST",
    path: /\/chat\/completions\/?$/,
    async answer({ chat }, body, { signal }) {
      if (!isStreamed(body)) return chat.completions.create(body as ChatCompletionCreateParamsNonStreaming, { signal });
      return appendOnly(await chat.completions.create(body as ChatCompletionCreateParamsStreaming, { signal }));
    },
  },
  {
    method: "POST",
    path: /\/completions\/?$/,
    answer: (source, body, { signal }) =>
      required<Pick<EngineApi, "completions">>(source, "completions").create(body as CompletionCreateParams, {
        signal,
      }),
  },
  {
    method: "POST",
    path: /\/embeddings\/?$/,
    answer: (source, body, { signal }) =>
      required<EmbeddingSource>(source, "embeddings").create(body as EmbeddingCreateParams, { signal }),
  },
  {
    method: "GET",
    path: /\/models\/?$/,
    answer: async (source) => ({ object: "list", data: (await modelNames(source)).map(model) }),
  },
  {
    method: "GET",
    path: /\/models\/(.+)$/,
    answer: async (source, _, { id }) => ((await modelNames(source)).includes(id) ? model(id) : null),
  },
];

function isStreamed(body: object): boolean {
  return "stream" in body && body.stream === true;
}

function model(id: string): object {
  return { id, object: "model", created: 0, owned_by: "nearfar" };
}

/** The model and its loaded LoRA adapters. */
async function modelNames(source: object): Promise<readonly string[]> {
  const { listAdapters } = source as Partial<EngineWithSessions>;
  return [modelName(source), ...((await listAdapters?.call(source)) ?? [])];
}

function required<T>(source: object, name: string & keyof T): T[typeof name] {
  if (!(name in source)) throw new RequestError(`This source has no ${name}; pass createFetch an engine, not a Hybrid`);
  return (source as T)[name];
}
