// Written by server_fallback/schema/typescript.py from the classes of that folder: edit those files.

import type { ChatCompletionFunction, ChatCompletionMessageParam, ChatCompletionTool, ChatCompletionToolChoiceOption, ResponseFormat, StreamOptions } from "./types.js";

/** The parameters of both. Null is the same as leaving a parameter out. */
export interface CommonParams {
  readonly temperature?: number | null | undefined;
  readonly top_p?: number | null | undefined;
  /** Extension: samples from the ``top_k`` likeliest tokens only; -1 or 0 for all. */
  readonly top_k?: number | null | undefined;
  /** Extension: samples only from tokens with at least this probability relative to the likeliest token. */
  readonly min_p?: number | null | undefined;
  readonly seed?: number | null | undefined;
  /** The name of a model, or of a loaded LoRA adapter. */
  readonly model?: string | null | undefined;
  readonly stream_options?: StreamOptions | null | undefined;
  readonly n?: number | null | undefined;
  readonly stop?: string | readonly string[] | null | undefined;
  readonly frequency_penalty?: number | null | undefined;
  readonly presence_penalty?: number | null | undefined;
  readonly logit_bias?: Readonly<Record<string, number>> | null | undefined;
  readonly user?: string | null | undefined;
  /** Extension: the penalty of Keskar et al. 2019; 1 for none. */
  readonly repetition_penalty?: number | null | undefined;
  /** Extension: if several requests wait, the highest priority runs first; 0 by default. */
  readonly priority?: number | null | undefined;
  /** Extension, as in vLLM: how many alternatives are listed for each token of the prompt. */
  readonly prompt_logprobs?: number | null | undefined;
  /** Extension, as in vLLM: the ids of prompt and answer, with the token that ended it. */
  readonly return_token_ids?: boolean | null | undefined;
  readonly skip_special_tokens?: boolean | null | undefined;
  readonly include_stop_str_in_output?: boolean | null | undefined;
  readonly max_tokens?: number | null | undefined;
}

/** The other parameters of chats. */
export interface ChatParams {
  readonly messages: readonly ChatCompletionMessageParam[];
  readonly max_completion_tokens?: number | null | undefined;
  readonly logprobs?: boolean | null | undefined;
  readonly top_logprobs?: number | null | undefined;
  readonly response_format?: ResponseFormat | null | undefined;
  readonly tools?: readonly ChatCompletionTool[] | null | undefined;
  readonly tool_choice?: ChatCompletionToolChoiceOption | null | undefined;
  readonly parallel_tool_calls?: boolean | null | undefined;
  /** The older form of ``tools``: answers have at most one call, as ``function_call``. */
  readonly functions?: readonly ChatCompletionFunction[] | null | undefined;
  /** The older form of ``tool_choice``. */
  readonly function_call?: "none" | "auto" | { readonly name: string } | null | undefined;
  readonly metadata?: Readonly<Record<string, string>> | null | undefined;
  readonly store?: boolean | null | undefined;
  readonly service_tier?: string | null | undefined;
  readonly safety_identifier?: string | null | undefined;
  readonly prompt_cache_key?: string | null | undefined;
  readonly prompt_cache_retention?: string | null | undefined;
  readonly prediction?: object | null | undefined;
  readonly modalities?: readonly string[] | null | undefined;
  /** Switches the reasoning off ("none", "minimal") or bounds it; the chat template gets it as a variable. */
  readonly reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max" | null | undefined;
  /** Extension of vLLM's: variables of the chat template. */
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>> | null | undefined;
  /** Extension of vLLM's: the most tokens of reasoning. */
  readonly thinking_token_budget?: number | null | undefined;
  /** Extension: the chat template's variable of this name. */
  readonly enable_thinking?: boolean | null | undefined;
  /** Extension: the last message is the start of the answer, and the model continues it. */
  readonly continue_final_message?: boolean | null | undefined;
}

/** The other parameters of texts. */
export interface CompletionParams {
  /** One or several texts or lists of token ids; each prompt gets ``n`` answers. */
  readonly prompt: string | readonly string[] | readonly number[] | readonly (readonly number[])[] | null;
  /** The number of alternatives that are reported for each token. */
  readonly logprobs?: number | null | undefined;
  /** Whether the answer starts with the prompt. With ``logprobs``, the prompt's tokens are listed before those of the answer, and the token that ended the answer after them, as in vLLM. */
  readonly echo?: boolean | null | undefined;
  /** Only the value of ``n``: there is no choice among more answers. */
  readonly best_of?: number | null | undefined;
  /** The text after the gap that the answer fills, for models with tokens for this; an empty one has no effect. */
  readonly suffix?: string | null | undefined;
  /** Extension, as in vLLM. */
  readonly response_format?: ResponseFormat | null | undefined;
  /** Extension: if false, control tokens that a prompt spells out become single tokens. Use this only for prompts that your own code writes. By default they are split. */
  readonly split_special_tokens?: boolean | null | undefined;
}
