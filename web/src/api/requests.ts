// Turns parameters of the API into requests of the engine: the parts that chats, completions and embeddings share.

import type { SamplingOptions, TokenRequest } from "../engine/request.js";
import type { AnswerText } from "./choice.js";
import type { TextCodec } from "./model.js";
import type { Given } from "./params.js";
import type { CommonParams } from "./types.js";

/** One or several inputs, each a text or token ids. */
export type TextInput = string | readonly string[] | readonly number[] | readonly (readonly number[])[];

/**
 * The ids and the text of each input. Texts get the tokenizer's special tokens. If ``split`` is set, control tokens
 * that a text spells out are split.
 */
export function textsOf(
  codec: TextCodec,
  input: TextInput,
  split = true,
): readonly { readonly ids: readonly number[]; readonly text: string }[] {
  const encoded = (part: string | readonly number[]) =>
    typeof part === "string"
      ? { ids: codec.encode(part, true, split), text: part }
      : { ids: part, text: codec.decode(part) };
  if (typeof input === "string") return [encoded(input)];
  return input.every((part) => typeof part === "number") ? [encoded(input)] : input.map(encoded);
}

/** One request for each of the ``n`` answers to a prompt. The seed increases by 1 from answer to answer. */
export function requestsOf(
  promptIds: readonly number[],
  params: Given<CommonParams>,
  rest: Partial<TokenRequest>,
): readonly TokenRequest[] {
  const { n = 1, seed, max_tokens: maxTokens, priority } = params;
  return Array.from({ length: n }, (_, index) => ({
    promptIds,
    maxTokens,
    priority,
    sampling: samplingOf(params, seed === undefined ? undefined : (seed + index) >>> 0),
    ...rest,
  }));
}

function samplingOf(params: Given<CommonParams>, seed: number | undefined): SamplingOptions {
  const { temperature = 1, logit_bias } = params;
  return {
    temperature,
    topK: Math.max(0, params.top_k ?? 0),
    topP: params.top_p,
    minP: params.min_p,
    repetitionPenalty: params.repetition_penalty,
    frequencyPenalty: params.frequency_penalty,
    presencePenalty: params.presence_penalty,
    logitBias:
      logit_bias === undefined
        ? undefined
        : new Map(Object.entries(logit_bias).map(([id, bias]) => [Number(id), bias])),
    seed,
  };
}

/** How the tokens of the answers become text. */
export function answerText(params: Given<CommonParams>): AnswerText {
  const { stop = [], include_stop_str_in_output: includeStop = false, skip_special_tokens: skips = true } = params;
  return {
    stops: typeof stop === "string" ? [stop] : stop,
    includeStop,
    skipSpecialTokens: skips,
    listsPrompt: true,
  };
}

/** The fields that an answer and all its chunks share. */
export function identity(prefix: string, model: string): { id: string; created: number; model: string } {
  return { id: `${prefix}-${crypto.randomUUID()}`, created: Math.floor(Date.now() / 1000), model };
}
