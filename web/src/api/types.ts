// The types of OpenAI's API: the parameters and answers of chat.completions.create and completions.create. Names and
// meanings are those of OpenAI's API reference; nearfar's own fields are marked as extensions.
// test/api/openai_client.test.ts compares them with the types of the openai package.

import type { LogitProcessor } from "../engine/request.js";
import type { InputType, TruncationParams } from "./encoder_types.js";
import type { ChatParams, CommonParams, CompletionParams } from "./parameters.js";

export interface StreamOptions {
  readonly include_usage?: boolean | undefined;
  readonly include_obfuscation?: boolean | undefined;
}

interface Abortable {
  /** Extension: as in the second argument. */
  readonly signal?: AbortSignal | null | undefined;
}

export interface RequestOptions {
  /** Ends the request, which throws the signal's reason. */
  readonly signal?: AbortSignal | null | undefined;
  /** Extension: ends the answers at this point, as if the model had stopped there; usage and timings are reported. */
  readonly interrupt?: AbortSignal | null | undefined;
  /**
   * Extension, for chats: reports the log-probabilities of the prompt's last tokens before the first token. Engines
   * that cannot compute them do not report them.
   */
  readonly promptLogprobs?: PromptLogprobsOption | undefined;
  /**
   * Extension: changes the logits on the host before each token is sampled. The answers of a request share it. Works
   * only with engines on the same thread.
   */
  readonly logitProcessor?: LogitProcessor | undefined;
}

/**
 * ``tokens`` is from 0 to 32. ``onLogprobs`` receives the log-probabilities in nats, in the prompt's order. See
 * `TokenRequest.onPromptLogprobs`.
 */
export interface PromptLogprobsOption {
  readonly tokens: number;
  readonly onLogprobs: (logprobs: readonly number[]) => void;
}

export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Missing if a stop string or an interrupt ended the answer, because the engine then does not report the count. */
  prompt_tokens_details?: { cached_tokens: number };
  /** For models that reason: the tokens up to the end of the reasoning, including its markers. */
  completion_tokens_details?: { reasoning_tokens: number };
  /** Extension of `nearfar serve`: how long the answer waited for the device. Missing if it was not reported. */
  queue_ms?: number;
}

/**
 * Extension, vLLM's: by token id, for each token of the prompt; the first has none. ``rank`` counts from 1; null if
 * unknown.
 */
export type PromptLogprobs = (Record<
  string,
  { logprob: number; rank: number | null; decoded_token: string | null }
> | null)[];

/** Extension. tokens_per_second is measured from the first token on; null if there was only one. */
export interface CompletionTimings {
  time_to_first_token_ms: number;
  total_ms: number;
  tokens_per_second: number | null;
}

export interface ChatCompletionContentPart {
  readonly type: string;
  readonly text?: string;
  /** Of a part of the type "refusal" in an assistant's message, which only a far side may accept. */
  readonly refusal?: string;
}

export interface ChatCompletionMessageParam {
  readonly role: "system" | "developer" | "user" | "assistant" | "tool" | "function";
  /** A text, or a list of parts. Only parts of the type "text" are supported. */
  readonly content?: string | readonly ChatCompletionContentPart[] | null | undefined;
  readonly name?: string | undefined;
  readonly tool_call_id?: string | undefined;
  readonly tool_calls?: readonly ChatCompletionMessageToolCallParam[] | undefined;
  /** Extension, for an assistant's message: its reasoning, as in an answer. vLLM calls it reasoning. */
  readonly reasoning_content?: string | null | undefined;
  readonly reasoning?: string | null | undefined;
  /** The older form of ``tool_calls``. */
  readonly function_call?: { readonly name: string; readonly arguments: string } | null | undefined;
}

/** A function in the older form of tools. */
export interface ChatCompletionFunction {
  readonly name: string;
  readonly description?: string | undefined;
  readonly parameters?: Readonly<Record<string, unknown>> | undefined;
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

/** A tool that is a function, the only supported kind. */
export type FunctionTool = Required<ChatCompletionTool> & { readonly type: "function" };

export type ChatCompletionToolChoiceOption =
  | "none"
  | "auto"
  | "required"
  | { readonly type: string; readonly function?: { readonly name: string } };

/** The last two are extensions: a regular expression, and a grammar in EBNF that starts from its rule root. */
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

export interface ChatCompletionCreateParamsBase extends CommonParams, ChatParams, Abortable {}

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

export type ChatFinishReason = "stop" | "length" | "tool_calls" | "content_filter" | "function_call";

export interface ChatCompletionMessage {
  role: "assistant";
  content: string | null;
  /** Extension: the model's reasoning before its answer, without the markers. */
  reasoning_content?: string;
  refusal: null;
  tool_calls?: ChatCompletionMessageToolCall[];
  /** The call, if the request has ``functions``. */
  function_call?: { name: string; arguments: string };
}

export interface ChatCompletionChoice {
  index: number;
  message: ChatCompletionMessage;
  logprobs: ChatCompletionLogprobs | null;
  finish_reason: ChatFinishReason;
  /** Extension, if requested. */
  token_ids?: number[];
}

/**
 * Extension, for answers that either of two sides could write: the side that wrote the end, the reason, and the scores
 * of the decision (null if unknown). switched_at is null, or the number of characters (code points) before the last
 * switch; 0 means that the text before the switch is withdrawn.
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
  /** Extensions, if requested. */
  prompt_token_ids?: number[];
  prompt_logprobs?: PromptLogprobs;
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
  function_call?: { name?: string; arguments?: string };
}

export interface ChatCompletionChunkChoice {
  index: number;
  delta: ChatCompletionDelta;
  logprobs: ChatCompletionLogprobs | null;
  finish_reason: ChatFinishReason | null;
  /** Extension, if requested. */
  token_ids?: number[];
}

/**
 * With stream_options.include_usage, ``usage`` is null except in the last chunk, which has no choices. The last chunk
 * with choices has the timings. For a Hybrid, the first chunk, the first after a switch, and the last have the route.
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
  /** Extensions, if requested. */
  prompt_token_ids?: number[];
  prompt_logprobs?: PromptLogprobs;
}

export interface CompletionCreateParamsBase extends CommonParams, CompletionParams, Abortable {}

export interface CompletionCreateParamsNonStreaming extends CompletionCreateParamsBase {
  readonly stream?: false | null | undefined;
}

export interface CompletionCreateParamsStreaming extends CompletionCreateParamsBase {
  readonly stream: true;
}

export type CompletionCreateParams = CompletionCreateParamsNonStreaming | CompletionCreateParamsStreaming;

export interface CompletionLogprobs {
  tokens: string[];
  /** The first token of an echoed prompt has none. */
  token_logprobs: (number | null)[];
  top_logprobs: (Record<string, number> | null)[];
  text_offset: number[];
}

export interface CompletionChoice<Reason = "stop" | "length"> {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: Reason;
  /** Extensions, if requested. */
  token_ids?: number[];
  prompt_token_ids?: number[];
  prompt_logprobs?: PromptLogprobs;
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

export interface EmbeddingCreateParams extends TruncationParams {
  /** Texts or token ids. Texts get the special tokens that the tokenizer adds; token ids are used unchanged. */
  readonly input: string | readonly string[] | readonly number[] | readonly (readonly number[])[];
  /** As numbers, or as the base64 of their little-endian float32 bytes. */
  readonly encoding_format?: "float" | "base64" | null | undefined;
  /** Keeps the first ``dimensions`` numbers of each vector: a length that the model names (Matryoshka). */
  readonly dimensions?: number | null | undefined;
  /** Extension: one of the model's prompts, which precedes each text; by default, the model's default prompt does. */
  readonly prompt_name?: string | null | undefined;
  /** Extension: selects the prompt for a kind of text, if the model has one. */
  readonly input_type?: InputType | null | undefined;
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
