// chat.completions.create: answers a chat with OpenAI's parameters, in chunks or as one answer.

import { MOST_ALTERNATIVES } from "../engine/check_request.js";
import type { TokenRequest } from "../engine/request.js";
import { RequestError } from "../errors.js";
import { answerAll, foldHead, promptFields } from "./answers.js";
import { encodeChat } from "./chat_prompt.js";
import { asTools } from "./functions.js";
import type { AnswerText, AnswerToken } from "./choice.js";
import type { Model, TextCodec, ToolCallParser } from "./model.js";
import { named } from "./model.js";
import { readThinking } from "../text/thinking.js";
import { KeptText } from "../text/token_bytes.js";
import type { ToolCallEvent } from "../text/tool_call_stream.js";
import type { Given } from "./params.js";
import { CHAT_PARAMS } from "./chat_params.js";
import { readParams, refuseId } from "./params.js";
import { nameOf, promptLogprobs } from "./prompt_tokens.js";
import { answerText, continued, identity, requestsOf } from "./requests.js";
import { answerFormat, constrained, constrainer } from "./response_format.js";
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
    refuseId(options);
    const { stream = false, ...given } = readParams(params, CHAT_PARAMS);
    const { params: request, answered } = asTools(given);
    const answer = await this.#prepare(request, options);
    const chunksOf: typeof answer = async function* (cancelled, withUsage) {
      for await (const chunk of answer(cancelled, withUsage)) yield answered(chunk);
    };
    return stream
      ? new Stream((signal) => chunksOf(signal, request.stream_options?.include_usage === true))
      : foldChat(chunksOf(new AbortController().signal, true));
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
    const until = anySignal(options.signal, request.signal);
    const chat = { tools: calls?.tools, continueFinalMessage: request.continue_final_message, variables };
    const { ids: promptIds, prefix, state, images: placed, report } = await encodeChat(model, messages, chat, until);
    const starts = reasoning === null || state === "content" ? undefined : { reasoning, state, budget };
    const constrain = constrainer(model, grammar, starts);
    const logprobs = request.logprobs === true ? (request.top_logprobs ?? 0) : undefined;
    const [first, ...others] = requestsOf(
      promptIds,
      { ...request, max_tokens: maxTokens },
      {
        logprobs,
        logitProcessor: options.logitProcessor,
        images: await placed(until),
        prefix: options.private ? undefined : prefix,
      },
    );
    if (first === undefined) throw new Error("a chat has at least one answer");
    // This first constraint only checks that the grammar can be compiled.
    (await constrain(first))?.dispose();
    const { prompt_logprobs: promptAlternatives } = request;
    // All answers have the same prompt, so only the first of them reports its log-probabilities.
    const planned = [{ ...first, ...promptParams(promptIds, promptAlternatives, options) }, ...others];
    const form = {
      ...answerText(request),
      begins: { state, reasoning },
      listsPrompt: promptAlternatives !== undefined,
    };

    return async function* (cancelled, withUsage) {
      const signal = anySignal(options.signal, request.signal, cancelled);
      const requests = await constrained(continued(planned, options), constrain);
      yield* report(
        chatChunks(model, requests, {
          form,
          parsers: requests.map(() => calls?.format.parser(calls.tools)),
          oneCall: request.parallel_tool_calls === false,
          promptAlternatives,
          listsIds: request.return_token_ids === true,
          signal,
          interrupt: options.interrupt ?? undefined,
          withUsage,
        }),
      );
    };
  }
}

/** What is requested of the prompt's log-probabilities, for the answer or, of its last tokens, by an option. */
function promptParams(
  promptIds: readonly number[],
  alternatives: number | undefined,
  { promptLogprobs: observed }: RequestOptions,
): Pick<TokenRequest, "promptLogprobs" | "promptAlternatives" | "onPromptLogprobs"> {
  // A rank needs all that the device lists.
  const listed = alternatives === undefined ? {} : { promptAlternatives: MOST_ALTERNATIVES };
  if (observed === undefined) return alternatives === undefined ? {} : { promptLogprobs: promptIds.length, ...listed };
  return {
    promptLogprobs: alternatives === undefined ? observed.tokens : promptIds.length,
    ...listed,
    onPromptLogprobs: (tokens) => {
      const last = tokens.slice(Math.max(0, tokens.length - observed.tokens));
      observed.onLogprobs(last.map(({ logprob }) => logprob ?? 0));
    },
  };
}

interface ChunkOptions {
  readonly form: AnswerText;
  readonly parsers: readonly (ToolCallParser | undefined)[];
  readonly oneCall: boolean;
  readonly promptAlternatives: number | undefined;
  readonly listsIds: boolean;
  readonly signal: AbortSignal;
  readonly interrupt: AbortSignal | undefined;
  readonly withUsage: boolean;
}

async function* chatChunks(
  model: Model,
  requests: readonly TokenRequest[],
  options: ChunkOptions,
): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  const { form, parsers, oneCall, promptAlternatives, listsIds, signal, interrupt, withUsage } = options;
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
    ids: readonly number[] = [],
  ): Generator<ChatCompletionChunk> {
    if (!started.has(index)) yield choice(index, { role: "assistant", content: "" });
    started.add(index);
    const content = tokens.map((token) => tokenLogprob(model.text, token));
    const logprobs = withLogprobs && content.length > 0 ? { content, refusal: null } : null;
    const shown = events
      .filter((event) => (event.type === "text" ? event.text !== "" : !oneCall || event.index === 0))
      .map(deltaOf);
    if (reasoning !== "") shown.unshift({ reasoning_content: reasoning });
    const rest = { logprobs, ...(listsIds && ids.length > 0 && { token_ids: [...ids] }) };
    if (shown.length === 0 && (logprobs !== null || "token_ids" in rest)) yield choice(index, { content: "" }, rest);
    for (const [position, delta] of shown.entries()) {
      yield choice(index, delta, position === 0 ? rest : {});
    }
  }

  const n = requests.length;
  const contents = parsers.map((parser) => new ContentTokens(withLogprobs ? parser : undefined));
  for await (const event of answerAll(model, requests, { n, form, signal, interrupt })) {
    const { index } = event;
    const parser = parsers[index];
    const own = contents[index];
    if (event.type === "piece") {
      const { reasoning, text, tokens, ids, prompt } = event.piece;
      if (!started.has(index) && index === 0 && (listsIds || prompt !== undefined)) {
        started.add(index);
        yield {
          ...choice(index, { role: "assistant", content: "" }),
          ...(listsIds && { prompt_token_ids: [...(requests[0]?.promptIds ?? [])] }),
          ...(prompt && { prompt_logprobs: promptLogprobs(model.text, prompt, promptAlternatives ?? 0) }),
        };
      }
      const events = parser?.feed(text) ?? [{ type: "text", text }];
      yield* deltas(index, reasoning, events, own?.of(events, tokens) ?? tokens, ids);
      continue;
    }
    const { finishReason, cost } = event;
    const events = parser?.finish() ?? [];
    yield* deltas(index, "", events, own?.of(events, []) ?? []);
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

/**
 * ``bytes`` are the token's part of the content, so that those of all tokens join to it: nothing for a token of reasoning
 * or of a call, and for text from a stop string on.
 */
function tokenLogprob(codec: TextCodec, token: AnswerToken): ChatCompletionTokenLogprob {
  return {
    token_id: token.tokenId,
    ...topLogprob(codec, token.tokenId, token.logprob ?? 0),
    bytes: [...token.content],
    top_logprobs: token.alternatives.map(({ tokenId, logprob }) => topLogprob(codec, tokenId, logprob)),
  };
}

function topLogprob(codec: TextCodec, tokenId: number, logprob: number): TopLogprob {
  const bytes = codec.tokenBytes(tokenId);
  return { token: nameOf(codec, tokenId), bytes: bytes === null ? null : [...bytes], logprob };
}

/** The tokens of an answer, each as soon as it is known which part of it is content. With a parser, calls are not. */
class ContentTokens {
  #tokens: AnswerToken[] = [];
  readonly #kept = new KeptText();

  constructor(private readonly parser: ToolCallParser | undefined) {}

  of(events: readonly ToolCallEvent[], tokens: readonly AnswerToken[]): readonly AnswerToken[] {
    if (this.parser === undefined) return tokens;
    this.#tokens.push(...tokens);
    this.#kept.feed(tokens.map(({ content }) => content));
    const texts = events.flatMap((event) => (event.type === "text" ? [event.text] : []));
    const parts = this.#kept.take(texts, this.parser.undecided);
    const decided = this.#tokens.splice(0, parts.length);
    return decided.map((token, index) => ({ ...token, content: parts[index] ?? token.content }));
  }
}

/** Combines the chunks of a stream with usage into one answer. */
export async function foldChat(
  chunks: AsyncIterable<ChatCompletionChunk> | Iterable<ChatCompletionChunk>,
): Promise<ChatCompletion> {
  const choices: ChatCompletionChoice[] = [];
  let head: Partial<ChatCompletion> = {};
  for await (const chunk of chunks) {
    head = foldHead(head, chunk);
    Object.assign(head, promptFields(chunk));
    if (chunk.transcripts) head.transcripts = chunk.transcripts;
    for (const { index, delta, logprobs, finish_reason: finishReason, token_ids: ids } of chunk.choices) {
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
      if (ids !== undefined) choice.token_ids = [...(choice.token_ids ?? []), ...ids];
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
      if (delta.function_call !== undefined) {
        const { name = "", arguments: text = "" } = delta.function_call;
        const called = (choice.message.function_call ??= { name, arguments: "" });
        called.arguments += text;
      }
    }
  }
  for (const { message } of choices)
    if (
      message.content === "" &&
      (message.tool_calls ?? message.function_call ?? message.reasoning_content) !== undefined
    )
      message.content = null;
  return { ...(head as ChatCompletion), object: "chat.completion", choices };
}
