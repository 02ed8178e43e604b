// OpenAI's shapes, as types: what chat.completions.create and completions.create take and give. Names and meanings are those of OpenAI's API
// reference; what is nearfar's own is marked as an extension. test/api/openai_types.test.ts holds them against the openai package's types.

import type { LogitProcessor } from "../engine/request.js";
import type { ThinkingParams } from "../text/thinking.js";

/** Both kinds of completions take these. A parameter that is null counts as not given. */
export interface CommonParams {
  /** One engine has one model, so any name is taken; the answer bears the engine's own. */
  readonly model?: string | null | undefined;
  readonly temperature?: number | null | undefined;
  readonly top_p?: number | null | undefined;
  readonly n?: number | null | undefined;
  readonly max_tokens?: number | null | undefined;
  readonly stop?: string | readonly string[] | null | undefined;
  readonly seed?: number | null | undefined;
  readonly frequency_penalty?: number | null | undefined;
  readonly presence_penalty?: number | null | undefined;
  readonly logit_bias?: Readonly<Record<string, number>> | null | undefined;
  readonly stream_options?:
    | { readonly include_usage?: boolean | undefined; readonly include_obfuscation?: boolean | undefined }
    | null
    | undefined;
  readonly user?: string | undefined;
  /** Extension: only this many of the likeliest tokens; -1 or 0 for all. */
  readonly top_k?: number | null | undefined;
  /** Extension: only tokens at least this probable as against the likeliest. */
  readonly min_p?: number | null | undefined;
  /** Extension: Keskar et al. 2019; 1 for none. */
  readonly repetition_penalty?: number | null | undefined;
  /** Extension: higher goes first where several requests wait; 0 by default. */
  readonly priority?: number | null | undefined;
  /** Extension: as in the second argument. */
  readonly signal?: AbortSignal | null | undefined;
}

export interface RequestOptions {
  /** Ends the request with the signal's reason. */
  readonly signal?: AbortSignal | null | undefined;
  /** Extension: ends the answers where they are, as if the model had stopped there; what they cost is still told. */
  readonly interrupt?: AbortSignal | null | undefined;
  /** Extension, of chats: told the log-probabilities of the prompt's last tokens before the first token. Not told by engines that cannot. */
  readonly promptLogprobs?: PromptLogprobsOption | undefined;
  /** Extension: changes the logits on the host before each token is sampled. The answers of a request share it. Only for engines of the same thread. */
  readonly logitProcessor?: LogitProcessor | undefined;
}

/** ``tokens`` from 0 to 32; ``tell`` gets the log-probabilities in nats, in the prompt's order. See `TokenRequest.onPromptLogprobs`. */
export interface PromptLogprobsOption {
  readonly tokens: number;
  readonly tell: (logprobs: readonly number[]) => void;
}

export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Not there where the answer was cut short, by a stop string or an interrupt, so that nobody counted. */
  prompt_tokens_details?: { cached_tokens: number };
  /** For models that reason: the tokens up to the end of the reasoning, with its markers. */
  completion_tokens_details?: { reasoning_tokens: number };
  /** Extension of `nearfar serve`: how long the answer waited for the device. Not there where nobody told. */
  queue_ms?: number;
}

/** Extension. tokens_per_second counts from the first token on; null where there was only one. */
export interface CompletionTimings {
  time_to_first_token_ms: number;
  total_ms: number;
  tokens_per_second: number | null;
}

export interface ChatCompletionContentPart {
  readonly type: string;
  readonly text?: string;
}

export interface ChatCompletionMessageParam {
  readonly role: "system" | "developer" | "user" | "assistant" | "tool" | "function";
  /** Text, or parts of which only those of type "text" are supported. */
  readonly content?: string | readonly ChatCompletionContentPart[] | null | undefined;
  readonly name?: string | undefined;
  readonly tool_call_id?: string | undefined;
  readonly tool_calls?: readonly ChatCompletionMessageToolCallParam[] | undefined;
  /** Extension, of an assistant's message: its reasoning, as an answer has it. vLLM calls it reasoning. */
  readonly reasoning_content?: string | null | undefined;
  readonly reasoning?: string | null | undefined;
}

export interface ChatCompletionMessageToolCallParam {
  readonly id: string;
  readonly type: string;
  readonly function?: { readonly name: string; readonly arguments: string };
}

export interface ChatCompletionMessageToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export interface ChatCompletionTool {
  readonly type: string;
  readonly function?: {
    readonly name: string;
    readonly description?: string | undefined;
    readonly parameters?: Readonly<Record<string, unknown>> | undefined;
    readonly strict?: boolean | null | undefined;
  };
}

/** A tool that is a function: the only kind that there is here. */
export type FunctionTool = Required<ChatCompletionTool> & { readonly type: "function" };

export type ChatCompletionToolChoiceOption =
  "none" | "auto" | "required" | { readonly type: string; readonly function?: { readonly name: string } };

/** The last two are extensions: a regular expression, and a grammar in EBNF, from its rule root. */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | {
      readonly type: "json_schema";
      readonly json_schema: {
        readonly name?: string;
        readonly description?: string | undefined;
        readonly schema?: Readonly<Record<string, unknown>> | undefined;
        readonly strict?: boolean | null | undefined;
      };
    }
  | { readonly type: "regex"; readonly pattern: string }
  | { readonly type: "grammar"; readonly grammar: string };

export interface ChatCompletionCreateParamsBase extends CommonParams, ThinkingParams {
  readonly messages: readonly ChatCompletionMessageParam[];
  readonly max_completion_tokens?: number | null | undefined;
  readonly logprobs?: boolean | null | undefined;
  readonly top_logprobs?: number | null | undefined;
  readonly response_format?: ResponseFormat | undefined;
  readonly tools?: readonly ChatCompletionTool[] | undefined;
  readonly tool_choice?: ChatCompletionToolChoiceOption | undefined;
  readonly parallel_tool_calls?: boolean | undefined;
  /** Extension: the last message is the start of the answer, which goes on from it. */
  readonly continue_final_message?: boolean | null | undefined;
  readonly metadata?: Readonly<Record<string, string>> | null | undefined;
  readonly store?: boolean | null | undefined;
  readonly service_tier?: string | null | undefined;
  readonly safety_identifier?: string | null | undefined;
  readonly prompt_cache_key?: string | null | undefined;
  readonly prompt_cache_retention?: string | null | undefined;
  readonly prediction?: object | null | undefined;
  readonly modalities?: readonly string[] | null | undefined;
}

export interface ChatCompletionCreateParamsNonStreaming extends ChatCompletionCreateParamsBase {
  readonly stream?: false | null | undefined;
}

export interface ChatCompletionCreateParamsStreaming extends ChatCompletionCreateParamsBase {
  readonly stream: true;
}

export type ChatCompletionCreateParams = ChatCompletionCreateParamsNonStreaming | ChatCompletionCreateParamsStreaming;

export interface TopLogprob {
  token: string;
  bytes: number[] | null;
  logprob: number;
}

export interface ChatCompletionTokenLogprob extends TopLogprob {
  /** Extension: the token's id in the model's vocabulary. */
  token_id?: number;
  top_logprobs: TopLogprob[];
}

export interface ChatCompletionLogprobs {
  content: ChatCompletionTokenLogprob[] | null;
  refusal: null;
}

export type ChatFinishReason = "stop" | "length" | "tool_calls" | "content_filter";

export interface ChatCompletionMessage {
  role: "assistant";
  content: string | null;
  /** Extension: what the model thought before its answer, without the markers. */
  reasoning_content?: string;
  refusal: null;
  tool_calls?: ChatCompletionMessageToolCall[];
}

export interface ChatCompletionChoice {
  index: number;
  message: ChatCompletionMessage;
  logprobs: ChatCompletionLogprobs | null;
  finish_reason: ChatFinishReason;
}

/**
 * Extension, of answers that two sides could give: which one wrote the end of it, why, and what the decision weighed (null where it is not known).
 * switched_at is null, or the number of characters (code points) that stand before the last switch: 0 where what came before is withdrawn.
 */
export interface Route {
  side: "near" | "far";
  reason: string;
  scores: Record<string, number | null>;
  switched_at: number | null;
}

export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: ChatCompletionChoice[];
  usage: CompletionUsage;
  timings: CompletionTimings;
  route?: Route;
}

export interface ChatCompletionToolCallDelta {
  index: number;
  id?: string;
  type?: "function";
  function?: { name?: string; arguments?: string };
}

export interface ChatCompletionDelta {
  role?: "assistant";
  content?: string;
  /** Extension. */
  reasoning_content?: string;
  tool_calls?: ChatCompletionToolCallDelta[];
}

export interface ChatCompletionChunkChoice {
  index: number;
  delta: ChatCompletionDelta;
  logprobs: ChatCompletionLogprobs | null;
  finish_reason: ChatFinishReason | null;
}

/**
 * With stream_options.include_usage, ``usage`` is null but in the last chunk, which has no choices. The last chunk has the timings. The first chunk, the
 * first after a switch and the last have the route, where there is one.
 */
export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: ChatCompletionChunkChoice[];
  usage?: CompletionUsage | null;
  timings?: CompletionTimings;
  route?: Route;
}

export interface CompletionCreateParamsBase extends CommonParams {
  /** Texts or token ids; of several, each gets ``n`` answers. */
  readonly prompt: string | readonly string[] | readonly number[] | readonly (readonly number[])[] | null;
  /** How many alternatives are reported for each token. */
  readonly logprobs?: number | null | undefined;
  /** Whether the answer starts with the prompt. */
  readonly echo?: boolean | null | undefined;
  /** False: control tokens that a prompt spells out become single tokens; only for prompts that your own code writes. Else they are split. */
  readonly split_special_tokens?: boolean | null | undefined;
}

export interface CompletionCreateParamsNonStreaming extends CompletionCreateParamsBase {
  readonly stream?: false | null | undefined;
}

export interface CompletionCreateParamsStreaming extends CompletionCreateParamsBase {
  readonly stream: true;
}

export type CompletionCreateParams = CompletionCreateParamsNonStreaming | CompletionCreateParamsStreaming;

export interface CompletionLogprobs {
  tokens: string[];
  token_logprobs: number[];
  top_logprobs: Record<string, number>[];
  text_offset: number[];
}

export interface CompletionChoice<Reason = "stop" | "length"> {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: Reason;
}

export interface Completion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: CompletionChoice[];
  usage: CompletionUsage;
  timings: CompletionTimings;
}

/** A part of a streamed Completion; a choice's finish_reason is null until its end. */
export interface CompletionChunk extends Omit<Completion, "choices" | "usage" | "timings"> {
  choices: CompletionChoice<"stop" | "length" | null>[];
  usage?: CompletionUsage | null;
  timings?: CompletionTimings;
}

export interface EmbeddingCreateParams {
  /** Texts or token ids. Texts get the special tokens that the tokenizer adds; token ids are taken as they are. */
  readonly input: string | readonly string[] | readonly number[] | readonly (readonly number[])[];
  /** As numbers, or as the base64 of their float32 bytes, the lowest first. */
  readonly encoding_format?: "float" | "base64" | null | undefined;
  /** The first so many numbers of each vector, for models that were trained to be cut so (Matryoshka). */
  readonly dimensions?: number | null | undefined;
  readonly model?: string | null | undefined;
  readonly user?: string | null | undefined;
  readonly signal?: AbortSignal | null | undefined;
}

export interface Embedding<Vector = number[]> {
  object: "embedding";
  index: number;
  embedding: Vector;
}

export interface CreateEmbeddingResponse<Vector = number[]> {
  object: "list";
  data: Embedding<Vector>[];
  model: string;
  usage: { prompt_tokens: number; total_tokens: number };
}
