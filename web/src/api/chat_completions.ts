// chat.completions.create: answers a chat with OpenAI's parameters, in chunks or as one answer.

import type { Constraint, TokenRequest } from "../engine/request.js";
import { RequestError } from "../errors.js";
import { answerAll, foldHead } from "./answers.js";
import { encodeChat } from "./chat_prompt.js";
import type { AnswerStart, AnswerToken } from "./choice.js";
import type { Model, ToolCallParser } from "./model.js";
import { named } from "./model.js";
import { readThinking } from "../text/thinking.js";
import type { ToolCallEvent } from "../text/tool_call_stream.js";
import type { Given } from "./params.js";
import { CHAT_PARAMS, readParams } from "./params.js";
import { identity, requestsOf, stopsOf } from "./requests.js";
import { answerFormat } from "./response_format.js";
import { Stream, anySignal } from "./stream.js";
import type {
  ChatCompletion,
  ChatCompletionChoice,
  ChatCompletionChunk,
  ChatCompletionChunkChoice,
  ChatCompletionCreateParams,
  ChatCompletionCreateParamsBase,
  ChatCompletionCreateParamsNonStreaming,
  ChatCompletionCreateParamsStreaming,
  ChatCompletionDelta,
  ChatCompletionTokenLogprob,
  RequestOptions,
  TopLogprob,
} from "./types.js";

export class ChatCompletions {
  constructor(private readonly model: Model) {}

  /**
   * Answers a chat. Returns the complete answer, or with ``stream: true`` a Stream of chunks, which generates while it
   * is read. Throws RequestError, DeviceError, or the signal's reason.
   */
  create(params: ChatCompletionCreateParamsNonStreaming, options?: RequestOptions): Promise<ChatCompletion>;
  create(params: ChatCompletionCreateParamsStreaming, options?: RequestOptions): Promise<Stream<ChatCompletionChunk>>;
  create(
    params: ChatCompletionCreateParams,
    options?: RequestOptions,
  ): Promise<ChatCompletion | Stream<ChatCompletionChunk>>;
  async create(
    params: ChatCompletionCreateParams,
    options: RequestOptions = {},
  ): Promise<ChatCompletion | Stream<ChatCompletionChunk>> {
    const { stream = false, ...request } = readParams(params, CHAT_PARAMS);
    const answer = await this.#prepare(request, options);
    return stream
      ? new Stream((signal) => answer(signal, request.stream_options?.include_usage === true))
      : foldChat(answer(new AbortController().signal, true));
  }

  /** Checks the complete request before anything is generated. */
  async #prepare(
    request: Given<ChatCompletionCreateParamsBase>,
    options: RequestOptions,
  ): Promise<(cancelled: AbortSignal, withUsage: boolean) => AsyncGenerator<ChatCompletionChunk, void, undefined>> {
    const model = named(this.model, request.model);
    const {
      messages = [],
      max_completion_tokens: maxCompletionTokens,
      max_tokens: maxTokens = maxCompletionTokens,
    } = request;
    if (maxCompletionTokens !== undefined && request.max_tokens !== undefined) {
      throw new RequestError("max_tokens and max_completion_tokens mean the same; use one of them", {
        param: "max_tokens",
      });
    }
    if (request.top_logprobs !== undefined && request.logprobs !== true)
      throw new RequestError("top_logprobs needs logprobs: true", { param: "top_logprobs" });
    const { grammar, calls } = answerFormat(model, request);
    const { reasoning } = model.text.thinking;
    const { variables, budget } = readThinking(request, model.text.thinking);
    const prompt = encodeChat(model.text, messages, {
      tools: calls?.tools,
      continueFinalMessage: request.continue_final_message,
      variables,
    });
    const { ids: promptIds, state } = prompt;
    // Each answer needs a constraint of its own. This first one only checks that the grammar can be compiled.
    const room = Math.max(1, model.context - promptIds.length + 1);
    const most = Math.min(maxTokens ?? room, room);
    const starts = reasoning === null || state === "content" ? undefined : { reasoning, state, budget };
    const constrain = async (): Promise<Constraint | undefined> =>
      (grammar ?? starts?.budget) === undefined ? undefined : model.grammar?.constraint(grammar, most, starts);
    (await constrain())?.dispose();
    const logprobs = request.logprobs === true ? (request.top_logprobs ?? 0) : undefined;
    const planned = requestsOf(
      promptIds,
      { ...request, max_tokens: maxTokens },
      { logprobs, logitProcessor: options.logitProcessor },
    );
    const { promptLogprobs } = options;

    return async function* (cancelled, withUsage) {
      const signal = anySignal(options.signal, request.signal, cancelled);
      const requests: TokenRequest[] = [];
      try {
        for (const tokenRequest of planned) {
          // All answers have the same prompt, so only the first of them reports its log-probabilities.
          const promptParams =
            requests.length === 0
              ? { promptLogprobs: promptLogprobs?.tokens, onPromptLogprobs: promptLogprobs?.onLogprobs }
              : {};
          requests.push({ ...tokenRequest, ...promptParams, constraint: await constrain() });
        }
      } catch (error) {
        for (const { constraint } of requests) constraint?.dispose();
        throw error;
      }
      const interrupt = options.interrupt ?? undefined;
      const parsers = requests.map(() => calls?.format.parser(calls.tools));
      yield* chatChunks(model, requests, {
        stops: stopsOf(request),
        parsers,
        oneCall: request.parallel_tool_calls === false,
        begins: { state, reasoning },
        signal,
        interrupt,
        withUsage,
      });
    };
  }
}

interface ChunkOptions {
  readonly stops: readonly string[];
  readonly parsers: readonly (ToolCallParser | undefined)[];
  readonly oneCall: boolean;
  readonly begins: AnswerStart;
  readonly signal: AbortSignal;
  readonly interrupt: AbortSignal | undefined;
  readonly withUsage: boolean;
}

async function* chatChunks(
  model: Model,
  requests: readonly TokenRequest[],
  options: ChunkOptions,
): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  const { stops, parsers, oneCall, begins, signal, interrupt, withUsage } = options;
  const head = {
    ...identity("chatcmpl", model.name),
    object: "chat.completion.chunk" as const,
    ...(withUsage ? { usage: null } : {}),
  };
  const withLogprobs = requests[0]?.logprobs !== undefined;
  const started = new Set<number>();
  const choice = (
    index: number,
    delta: ChatCompletionDelta,
    rest: Partial<ChatCompletionChunkChoice> = {},
  ): ChatCompletionChunk => {
    return { ...head, choices: [{ index, delta, logprobs: null, finish_reason: null, ...rest }] };
  };
  function* deltas(
    index: number,
    reasoning: string,
    events: readonly ToolCallEvent[],
    tokens: readonly AnswerToken[],
  ): Generator<ChatCompletionChunk> {
    if (!started.has(index)) yield choice(index, { role: "assistant", content: "" });
    started.add(index);
    const content = tokens.map((token) => tokenLogprob(model, token));
    const logprobs = withLogprobs && content.length > 0 ? { content, refusal: null } : null;
    const shown = events
      .filter((event) => (event.type === "text" ? event.text !== "" : !oneCall || event.index === 0))
      .map(deltaOf);
    if (reasoning !== "") shown.unshift({ reasoning_content: reasoning });
    if (shown.length === 0 && logprobs !== null) yield choice(index, { content: "" }, { logprobs });
    for (const [position, delta] of shown.entries()) {
      yield choice(index, delta, position === 0 ? { logprobs } : {});
    }
  }

  const n = requests.length;
  for await (const event of answerAll(model, requests, { n, stops, signal, interrupt, begins })) {
    const { index } = event;
    const parser = parsers[index];
    if (event.type === "piece") {
      const { reasoning, text, tokens } = event.piece;
      yield* deltas(index, reasoning, parser?.feed(text) ?? [{ type: "text", text }], tokens);
      continue;
    }
    const { finishReason, cost } = event;
    yield* deltas(index, "", parser?.finish() ?? [], []);
    // An answer that max_tokens ends right after a complete call is not truncated.
    const called = parser?.[finishReason === "stop" ? "called" : "complete"] === true;
    const last = choice(index, {}, { finish_reason: called ? "tool_calls" : finishReason });
    yield cost === null ? last : { ...last, timings: cost.timings };
    if (withUsage && cost !== null) yield { ...head, choices: [], usage: cost.usage };
  }
}

function deltaOf(event: ToolCallEvent): ChatCompletionDelta {
  switch (event.type) {
    case "text":
      return { content: event.text };
    case "tool_call":
      return {
        tool_calls: [
          { index: event.index, id: event.id, type: "function", function: { name: event.name, arguments: "" } },
        ],
      };
    case "arguments":
      return { tool_calls: [{ index: event.index, function: { arguments: event.text } }] };
  }
}

function tokenLogprob(model: Model, { tokenId, logprob, alternatives }: AnswerToken): ChatCompletionTokenLogprob {
  return {
    ...topLogprob(model, tokenId, logprob ?? 0),
    token_id: tokenId,
    top_logprobs: alternatives.map((other) => topLogprob(model, other.tokenId, other.logprob)),
  };
}

function topLogprob({ text }: Model, tokenId: number, logprob: number): TopLogprob {
  const bytes = text.tokenBytes(tokenId);
  return {
    token: new TextDecoder().decode(bytes ?? new Uint8Array()),
    bytes: bytes === null ? null : [...bytes],
    logprob,
  };
}

/** Combines the chunks of a stream with usage into one answer. */
export async function foldChat(
  chunks: AsyncIterable<ChatCompletionChunk> | Iterable<ChatCompletionChunk>,
): Promise<ChatCompletion> {
  const choices: ChatCompletionChoice[] = [];
  let head: Partial<ChatCompletion> = {};
  for await (const chunk of chunks) {
    head = foldHead(head, chunk);
    for (const { index, delta, logprobs, finish_reason: finishReason } of chunk.choices) {
      const choice = (choices[index] ??= {
        index,
        message: { role: "assistant", content: "", refusal: null },
        logprobs: null,
        finish_reason: "stop",
      });
      choice.message.content = `${choice.message.content ?? ""}${delta.content ?? ""}`;
      if (delta.reasoning_content !== undefined)
        choice.message.reasoning_content = (choice.message.reasoning_content ?? "") + delta.reasoning_content;
      if (finishReason !== null) choice.finish_reason = finishReason;
      if (logprobs !== null)
        choice.logprobs = {
          content: [...(choice.logprobs?.content ?? []), ...(logprobs.content ?? [])],
          refusal: null,
        };
      for (const { index: callIndex, id: callId = "", function: described } of delta.tool_calls ?? []) {
        const calls = (choice.message.tool_calls ??= []);
        const call = (calls[callIndex] ??= {
          id: callId,
          type: "function",
          function: { name: described?.name ?? "", arguments: "" },
        });
        call.function.arguments += described?.arguments ?? "";
      }
    }
  }
  for (const { message } of choices)
    if (message.content === "" && (message.tool_calls ?? message.reasoning_content) !== undefined)
      message.content = null;
  return { ...(head as ChatCompletion), object: "chat.completion", choices };
}
