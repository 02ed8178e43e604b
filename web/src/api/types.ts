// The types of OpenAI's API: the parameters of chat.completions.create and completions.create with what they contain,
// and the answers (replies.ts). Names and meanings are those of OpenAI's API reference; nearfar's own fields are marked
// as extensions. test/api/openai_client.test.ts compares them with the types of the openai package.

import type { SoundSource } from "../audio/index.js";
import type { AnswerEnd, BegunAnswer, GeneratedToken, LogitProcessor } from "../engine/request.js";
import type { ImageSource } from "../images/index.js";
import type { InputType, TruncationParams } from "./encoder_types.js";
import type { ChatParams, CommonParams, CompletionParams } from "./parameters.js";
import type { ChatCompletion, ChatCompletionChoice, EncodingUsage, SignedReceipt } from "./replies.js";

export type * from "./replies.js";

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
  /** Extension, for chats: true stores nothing of the prompt on this device; see `LoadOptions.prefixes`. */
  readonly private?: boolean | undefined;
  /** Extension: what an earlier run of the same request, with its seed, has generated of each choice. */
  readonly begun?: readonly BegunAnswer[] | undefined;
  /** Extension: receives what is generated of each choice; see `TokenRequest.onGenerated`. */
  readonly onGenerated?: ((choice: number, generated: GeneratedToken | AnswerEnd) => void) | undefined;
  /** Extension, for engines of `receipted`: receives the receipt of an answer that was broken off. */
  readonly onReceipt?: ((receipt: SignedReceipt) => void) | undefined;
}

/**
 * ``tokens`` is from 0 to 32. ``onLogprobs`` receives the log-probabilities in nats, in the prompt's order. See
 * `TokenRequest.onPromptLogprobs`.
 */
export interface PromptLogprobsOption {
  readonly tokens: number;
  readonly onLogprobs: (logprobs: readonly number[]) => void;
}

/** A citation of a far server that searches the web. Its indices count the code points of the answer. */
export interface ChatCompletionAnnotation {
  type: "url_citation";
  url_citation: { start_index: number; end_index: number; title: string; url: string };
}

/** Extension. tokens_per_second is measured from the first token on; null if there was only one. */
export interface CompletionTimings {
  time_to_first_token_ms: number;
  total_ms: number;
  tokens_per_second: number | null;
}

/**
 * A part of a message: "text", or for a model that sees pictures "image_url", with an address of a picture, also of
 * `data:` or `blob:`. Extension: "image" with an ``image`` that the page has. For a model that reads videos "video_url",
 * and "video" with a file that the page has, or with frames.
 */
export interface ChatCompletionContentPart {
  readonly type: string;
  readonly text?: string;
  readonly image_url?: { readonly url: string; readonly detail?: string | undefined };
  readonly image?: Exclude<ImageSource, string | URL>;
  readonly video_url?: { readonly url: string };
  /** Extension, of a part of the type "video": a file that the page has. */
  readonly video?: Blob;
  /** Instead of ``video``: its frames in order, of which a second has ``fps``. */
  readonly frames?: readonly ImageSource[];
  readonly fps?: number;
  /** Of a part of the type "input_audio": a recording in base64, of which a transcriber writes down what is said. */
  readonly input_audio?: { readonly data: string; readonly format: "wav" | "mp3" };
  /** Extension, of a part of the type "audio": a recording that the page has. */
  readonly audio?: Exclude<SoundSource, string | URL>;
  /** Of a part of the type "file": text, Markdown, JSON or CSV as an address of `data:`, or as base64. */
  readonly file?: {
    readonly filename?: string | undefined;
    readonly file_data?: string | undefined;
    readonly file_id?: string | undefined;
  };
  /** Of a part of the type "refusal" in an assistant's message, which only a far side may accept. */
  readonly refusal?: string;
}

export interface ChatCompletionMessageParam {
  readonly role: "system" | "developer" | "user" | "assistant" | "tool" | "function";
  /** A text, or a list of parts. */
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

export type ChatFinishReason = ChatCompletionChoice["finish_reason"];
export type PromptLogprobs = NonNullable<ChatCompletion["prompt_logprobs"]>;

export interface CompletionCreateParamsBase extends CommonParams, CompletionParams, Abortable {}

export interface CompletionCreateParamsNonStreaming extends CompletionCreateParamsBase {
  readonly stream?: false | null | undefined;
}

export interface CompletionCreateParamsStreaming extends CompletionCreateParamsBase {
  readonly stream: true;
}

export type CompletionCreateParams = CompletionCreateParamsNonStreaming | CompletionCreateParamsStreaming;

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
  usage: EncodingUsage;
}
