// Turns parameters of the API into requests of the engine: the parts that chats, completions and embeddings share.

import type { TokenRequest } from "../engine/request.js";
import type { SamplingOptions } from "../shared/sampling.js";
import { SAMPLING } from "../shared/sampling.js";
import type { AnswerText } from "./choice.js";
import type { TextCodec } from "./model.js";
import type { Given } from "./params.js";
import type { CommonParams } from "./parameters.js";
import type { RequestOptions } from "./types.js";

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

/** The requests after what an earlier run has generated of each, observed as the options want it. */
export function continued(
  requests: readonly TokenRequest[],
  { begun, onGenerated }: RequestOptions,
): readonly TokenRequest[] {
  return requests.map((request, index) => ({
    ...request,
    begun: begun?.[index],
    onGenerated: onGenerated?.bind(null, index),
  }));
}

function samplingOf(params: Given<CommonParams>, seed: number | undefined): SamplingOptions {
  const numbers = Object.entries(SAMPLING).map(([name, { parameter }]) => [name, params[parameter]] as const);
  const { top_k: topK = 0, logit_bias: bias } = params;
  return {
    temperature: 1,
    ...Object.fromEntries(numbers.filter(([, value]) => value !== undefined)),
    topK: Math.max(0, topK),
    logitBias: bias && new Map(Object.entries(bias).map(([id, value]) => [Number(id), value])),
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
