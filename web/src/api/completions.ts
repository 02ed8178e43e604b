// completions.create, OpenAI's older API: continues texts or token ids without the chat template.

import { MOST_ALTERNATIVES } from "../engine/check_request.js";
import type { TokenRequest } from "../engine/request.js";
import { RequestError } from "../errors.js";
import { answerAll, foldHead, promptFields } from "./answers.js";
import type { AnswerText, AnswerToken } from "./choice.js";
import type { Model, TextCodec } from "./model.js";
import { named } from "./model.js";
import { isA } from "../shared/declared.js";
import { COMMON } from "./chat_params.js";
import { completion } from "./parameters.json";
import type { Checks } from "./params.js";
import { check, readParams, refuseId } from "./params.js";
import { echoLogprobs, nameOf, namedLogprobs, promptLogprobs } from "./prompt_tokens.js";
import { answerText, continued, identity, requestsOf, textsOf } from "./requests.js";
import { answerFormat, constrained, constrainer } from "./response_format.js";
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

const COMPLETION_PARAMS: Checks = {
  ...completion,
  ...COMMON,
  prompt: check(
    "a string, strings, token ids, or lists of token ids",
    (value) => isA(completion.prompt, value) && !(Array.isArray(value) && value.length === 0),
  ),
  suffix: "=",
};

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
    refuseId(options);
    const { stream = false, ...request } = readParams(params, COMPLETION_PARAMS);
    const model = named(this.model, request.model);
    const { prompt, logprobs, echo = false, n = 1, stream_options: streamOptions } = request;
    const { prompt_logprobs: promptAlternatives, return_token_ids: listsIds = false } = request;
    if (prompt === undefined)
      throw new RequestError("prompt is missing; pass a text or token ids", { param: "prompt" });
    if ((request.best_of ?? n) !== n)
      throw new RequestError("best_of is not supported; leave it out, or set it to n", { param: "best_of" });
    const listsPrompt = (echo && logprobs !== undefined) || promptAlternatives !== undefined;
    // A rank needs all that the device lists.
    const alternatives = promptAlternatives === undefined ? (logprobs ?? 0) : MOST_ALTERNATIVES;
    const prompts = textsOf(model.text, prompt, request.split_special_tokens);
    const planned = prompts.flatMap(({ ids }) =>
      requestsOf(ids, request, {
        logprobs,
        logitProcessor: options.logitProcessor,
        ...(listsPrompt && { promptLogprobs: ids.length, promptAlternatives: alternatives }),
      }),
    );
    const { grammar } = answerFormat(model, { response_format: request.response_format });
    const constrain = constrainer(model, grammar);
    if (planned[0] !== undefined) (await constrain(planned[0]))?.dispose();
    const echoes = echo ? prompts.flatMap(({ text }) => new Array<string>(n).fill(text)) : [];
    const form = { ...answerText(request), listsEnd: echo && logprobs !== undefined };
    const interrupt = options.interrupt ?? undefined;
    async function* chunks(
      cancelled: AbortSignal,
      withUsage: boolean,
    ): AsyncGenerator<CompletionChunk, void, undefined> {
      const signal = anySignal(options.signal, request.signal, cancelled);
      const requests = await constrained(continued(planned, options), constrain);
      const rest = { logprobs, promptAlternatives, listsIds, signal, interrupt, withUsage };
      yield* completionChunks(model, requests, { n, form, echoes, ...rest });
    }
    return stream
      ? new Stream((cancelled) => chunks(cancelled, streamOptions?.include_usage === true))
      : foldCompletion(chunks(new AbortController().signal, true));
  }
}

interface ChunkOptions {
  readonly n: number;
  readonly form: AnswerText;
  /** The text that each answer starts with; empty without ``echo``. */
  readonly echoes: readonly string[];
  readonly logprobs: number | undefined;
  readonly promptAlternatives: number | undefined;
  readonly listsIds: boolean;
  readonly signal: AbortSignal;
  readonly interrupt: AbortSignal | undefined;
  readonly withUsage: boolean;
}

async function* completionChunks(
  model: Model,
  requests: readonly TokenRequest[],
  options: ChunkOptions,
): AsyncGenerator<CompletionChunk, void, undefined> {
  const { n, form, echoes, logprobs: most, promptAlternatives, listsIds, signal, interrupt, withUsage } = options;
  const head = {
    ...identity("cmpl", model.name),
    object: "text_completion" as const,
    ...(withUsage ? { usage: null } : {}),
  };
  const choice = (
    index: number,
    text: string,
    rest: Partial<CompletionChunk["choices"][number]> = {},
  ): CompletionChunk => {
    return { ...head, choices: [{ index, text, logprobs: null, finish_reason: null, ...rest }] };
  };
  const codec = model.text;
  // An echo waits for its log-probabilities.
  const echoesTokens = echoes.length > 0 && most !== undefined;
  for (const [index, { promptIds }] of requests.entries()) {
    const text = echoesTokens ? "" : (echoes[index] ?? "");
    if (text !== "" || listsIds) yield choice(index, text, listsIds ? { prompt_token_ids: [...promptIds] } : {});
  }
  for await (const event of answerAll(model, requests, { n, form, signal, interrupt })) {
    const { index } = event;
    if (event.type === "piece") {
      const { text, tokens, ids, prompt } = event.piece;
      const echo = echoes[index] ?? "";
      if (prompt !== undefined) {
        const promptIds = requests[index]?.promptIds ?? [];
        yield choice(index, echoesTokens ? echo : "", {
          ...(echoesTokens && { logprobs: echoLogprobs(codec, promptIds, prompt, echo, most) }),
          ...(promptAlternatives !== undefined && {
            prompt_logprobs: promptLogprobs(codec, prompt, promptAlternatives),
          }),
        });
      }
      const logprobs =
        most !== undefined && tokens.length > 0 ? logprobsOf(codec, tokens, most, Array.from(echo).length) : null;
      const listed = listsIds && ids.length > 0 ? { token_ids: [...ids] } : {};
      if (text !== "" || logprobs !== null || "token_ids" in listed) yield choice(index, text, { logprobs, ...listed });
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
    for (const { index, text, logprobs, finish_reason: finishReason, token_ids: ids, ...rest } of chunk.choices) {
      const choice = (choices[index] ??= { index, text: "", logprobs: null, finish_reason: "stop" });
      choice.text += text;
      if (ids !== undefined) choice.token_ids = [...(choice.token_ids ?? []), ...ids];
      Object.assign(choice, promptFields(rest));
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

/** ``start``: the length of the echo. */
function logprobsOf(codec: TextCodec, tokens: readonly AnswerToken[], most: number, start: number): CompletionLogprobs {
  return {
    tokens: tokens.map((token) => writtenName(codec, token)),
    token_logprobs: tokens.map(({ logprob }) => logprob ?? 0),
    top_logprobs: tokens.map((token) => namedLogprobs(codec, token, most, writtenName(codec, token))),
    text_offset: tokens.map(({ offset }) => start + offset),
  };
}

/** The token as text; of a token that a stop string cuts, the part before it, so that names join to the text. */
function writtenName(codec: TextCodec, { tokenId, content }: AnswerToken): string {
  const whole = codec.tokenBytes(tokenId) ?? new Uint8Array();
  const isCut = content.length > 0 && content.every((byte, index) => byte === whole[index]);
  return isCut ? new TextDecoder().decode(content) : nameOf(codec, tokenId);
}
