// completions.create, OpenAI's older API: continues texts or token ids without the chat template.

import type { TokenRequest } from "../engine/request.js";
import { RequestError } from "../errors.js";
import { answerAll, foldHead } from "./answers.js";
import type { AnswerToken } from "./choice.js";
import type { Model } from "./model.js";
import { named } from "./model.js";
import { COMPLETION_PARAMS, readParams } from "./params.js";
import { identity, requestsOf, stopsOf, textsOf } from "./requests.js";
import { Stream, anySignal } from "./stream.js";
import type {
  Completion,
  CompletionChoice,
  CompletionChunk,
  CompletionCreateParams,
  CompletionCreateParamsNonStreaming,
  CompletionCreateParamsStreaming,
  CompletionLogprobs,
  RequestOptions,
} from "./types.js";

export class Completions {
  constructor(private readonly model: Model) {}

  /**
   * Continues one or more prompts, as ChatCompletions.create answers chats. Choice ``p * n + i`` is answer ``i`` to
   * prompt ``p``.
   */
  create(params: CompletionCreateParamsNonStreaming, options?: RequestOptions): Promise<Completion>;
  create(params: CompletionCreateParamsStreaming, options?: RequestOptions): Promise<Stream<CompletionChunk>>;
  create(params: CompletionCreateParams, options?: RequestOptions): Promise<Completion | Stream<CompletionChunk>>;
  async create(
    params: CompletionCreateParams,
    options: RequestOptions = {},
  ): Promise<Completion | Stream<CompletionChunk>> {
    const { stream = false, ...request } = readParams(params, COMPLETION_PARAMS);
    const model = named(this.model, request.model);
    const { prompt, logprobs, echo = false, n = 1, stream_options: streamOptions } = request;
    if (prompt === undefined)
      throw new RequestError("prompt is missing; pass a text or token ids", { param: "prompt" });
    if (echo && logprobs !== undefined)
      throw new RequestError("echo cannot be given together with logprobs: a prompt has none", { param: "echo" });
    const prompts = textsOf(model.text, prompt, request.split_special_tokens);
    const requests = prompts.flatMap(({ ids }) =>
      requestsOf(ids, request, { logprobs, logitProcessor: options.logitProcessor }),
    );
    const echoes = echo ? prompts.flatMap(({ text }) => new Array<string>(n).fill(text)) : [];
    const interrupt = options.interrupt ?? undefined;
    const chunks = (cancelled: AbortSignal, withUsage: boolean): AsyncGenerator<CompletionChunk, void, undefined> => {
      const signal = anySignal(options.signal, request.signal, cancelled);
      return completionChunks(model, requests, { n, stops: stopsOf(request), echoes, signal, interrupt, withUsage });
    };
    return stream
      ? new Stream((cancelled) => chunks(cancelled, streamOptions?.include_usage === true))
      : foldCompletion(chunks(new AbortController().signal, true));
  }
}

interface ChunkOptions {
  readonly n: number;
  readonly stops: readonly string[];
  /** The text that each answer starts with; empty without ``echo``. */
  readonly echoes: readonly string[];
  readonly signal: AbortSignal;
  readonly interrupt: AbortSignal | undefined;
  readonly withUsage: boolean;
}

async function* completionChunks(
  model: Model,
  requests: readonly TokenRequest[],
  options: ChunkOptions,
): AsyncGenerator<CompletionChunk, void, undefined> {
  const { n, stops, echoes, signal, interrupt, withUsage } = options;
  const head = {
    ...identity("cmpl", model.name),
    object: "text_completion" as const,
    ...(withUsage ? { usage: null } : {}),
  };
  const withLogprobs = requests[0]?.logprobs !== undefined;
  const choice = (
    index: number,
    text: string,
    rest: Partial<CompletionChunk["choices"][number]> = {},
  ): CompletionChunk => {
    return { ...head, choices: [{ index, text, logprobs: null, finish_reason: null, ...rest }] };
  };
  for (const [index, text] of echoes.entries()) yield choice(index, text);
  for await (const event of answerAll(model, requests, { n, stops, signal, interrupt })) {
    const { index } = event;
    if (event.type === "piece") {
      const { text, tokens } = event.piece;
      const logprobs = withLogprobs && tokens.length > 0 ? logprobsOf(model, tokens) : null;
      if (text !== "" || logprobs !== null) yield choice(index, text, { logprobs });
      continue;
    }
    const { finishReason, cost } = event;
    const last = choice(index, "", { finish_reason: finishReason });
    yield cost === null ? last : { ...last, timings: cost.timings };
    if (withUsage && cost !== null) yield { ...head, choices: [], usage: cost.usage };
  }
}

/** Combines the chunks of a stream with usage into one answer. */
export async function foldCompletion(chunks: AsyncIterable<CompletionChunk>): Promise<Completion> {
  const choices: CompletionChoice[] = [];
  let head: Partial<Completion> = {};
  for await (const chunk of chunks) {
    head = foldHead(head, chunk);
    for (const { index, text, logprobs, finish_reason: finishReason } of chunk.choices) {
      const choice = (choices[index] ??= { index, text: "", logprobs: null, finish_reason: "stop" });
      choice.text += text;
      if (finishReason !== null) choice.finish_reason = finishReason;
      if (logprobs !== null) choice.logprobs = choice.logprobs === null ? logprobs : joined(choice.logprobs, logprobs);
    }
  }
  return { ...(head as Completion), object: "text_completion", choices };
}

function joined(left: CompletionLogprobs, right: CompletionLogprobs): CompletionLogprobs {
  return {
    tokens: [...left.tokens, ...right.tokens],
    token_logprobs: [...left.token_logprobs, ...right.token_logprobs],
    top_logprobs: [...left.top_logprobs, ...right.top_logprobs],
    text_offset: [...left.text_offset, ...right.text_offset],
  };
}

function logprobsOf({ text }: Model, tokens: readonly AnswerToken[]): CompletionLogprobs {
  const name = (id: number): string => new TextDecoder().decode(text.tokenBytes(id) ?? new Uint8Array());
  return {
    tokens: tokens.map(({ tokenId }) => name(tokenId)),
    token_logprobs: tokens.map(({ logprob }) => logprob ?? 0),
    top_logprobs: tokens.map(({ alternatives }) =>
      Object.fromEntries(alternatives.map(({ tokenId, logprob }) => [name(tokenId), logprob])),
    ),
    text_offset: tokens.map(({ start }) => start),
  };
}
