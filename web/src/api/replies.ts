// Written by server_fallback/schema/typescript.py from the classes of that folder: edit those files.

import type { TextDocument } from "./encoder_types.js";
import type { ChatCompletionAnnotation, CompletionTimings } from "./types.js";

export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** Missing if a stop string or an interrupt ended the answer, because the engine then does not report the count. */
  prompt_tokens_details?: { cached_tokens: number };
  /** Missing if the model does not reason and no drafts were checked. */
  completion_tokens_details?: { reasoning_tokens: number; accepted_prediction_tokens?: number; rejected_prediction_tokens?: number; tokens_per_pass?: number };
  /** Extension of `nearfar serve`: how long the answer waited until its first tokens were passed to the device, the longest wait of several answers. Missing if unknown. */
  queue_ms?: number;
}

export interface TopLogprob {
  token: string;
  bytes: number[] | null;
  logprob: number;
}

/** The page adds ``token_id``, the token's id in the model's vocabulary (extension). */
export interface ChatCompletionTokenLogprob {
  token: string;
  bytes: number[] | null;
  logprob: number;
  top_logprobs: TopLogprob[];
  token_id?: number;
}

export interface ChatCompletionLogprobs {
  content: ChatCompletionTokenLogprob[] | null;
  refusal: null;
}

/** The ``text`` that stands for a picture or sound, whose place in the request is ``path``, such as "messages[0].content[1]". */
export interface Description {
  path: string;
  kind: "picture" | "video" | "sound" | "file";
  text: string;
}

/** A text with placeholders such as [PERSON_1] in place of private texts. ``path`` is that of the request's own text, such as "messages[0].content"; that of near's text is "answer.text" or "answer.reasoning". */
export interface MaskedText {
  path: string;
  text: string;
}

/** ``side`` wrote the end of the answer, for ``reason``. ``scores`` are the values that the decision compared, null if unknown. ``switched_at`` is null, or the number of characters (code points) of the answer before the last switch: 0 if the earlier text is withdrawn. In a stream the first chunk has a route, the first after a switch, and the last. */
export interface Route {
  side: "near" | "far";
  reason: string;
  scores: Record<string, number | null>;
  switched_at: number | null;
  /** What far receives of the request's media, word for word, if the policy lets only such texts leave. */
  described?: Description[];
  /** What was sent to far in place of texts with something private, word for word, if the policy masks them. */
  masked?: MaskedText[];
}

/** The sampling parameters of the request with their defaults. A logit bias is a part of the request only. */
export interface ReceiptSampling {
  temperature: number;
  top_k: number;
  top_p: number;
  min_p: number;
  repetition_penalty: number;
  frequency_penalty: number;
  presence_penalty: number;
}

/** One answer. ``prompt`` and ``answer`` are the hashes of their token ids; the answer's include the token that ended it. ``token_ids`` are those of the answer, null unless the request has ``return_token_ids``. ``finish_reason`` is null for an answer that was broken off. */
export interface ReceiptChoice {
  index: number;
  seed: number;
  prompt: string;
  prompt_tokens: number;
  answer: string;
  answer_tokens: number;
  finish_reason: string | null;
  token_ids: number[] | null;
}

/** ``runtime`` is the program and its version, ``time`` the end of the answer in seconds since 1970, ``bundle`` the id of the bundle (see `bundleText`), and ``request`` the hash of the request without what only says how its answer is delivered. ``adapter`` is the hash of a LoRA adapter's files (`peft.adapter_id`). */
export interface Receipt {
  version: 1;
  side: "near" | "far";
  runtime: string;
  time: number;
  model: string;
  bundle: string;
  adapter?: string;
  request: string;
  device: { name: string; target: string; activation: string | null; self_test: { state: "passed" | "passed-with-switched-off" | "untested"; largest_deviation: number | null; switched_off: string[] } };
  sampling: ReceiptSampling;
  choices: ReceiptChoice[];
}

/** ``public_key`` is a SubjectPublicKeyInfo in DER, and ``value`` 64 bytes (RFC 8032, or r and s of FIPS 186), both in base64. */
export interface ReceiptSignature {
  algorithm: "ed25519" | "ecdsa-p256";
  public_key: string;
  value: string;
}

export interface SignedReceipt {
  receipt: Receipt;
  signature: ReceiptSignature;
}

/** What one side wrote of an answer of two sides: the text from character ``start`` (code points) up to the next part. ``receipt`` is the index in ``receipts`` of the side's own; None if the side was broken off before it signed. ``request`` is what the side received, which its receipt covers: it ends with the text before the part. ``changed``: the side received placeholders in place of private texts, or descriptions in place of media. */
export interface AnswerPart {
  side: "near" | "far";
  start: number;
  receipt: number | null;
  request: Record<string, unknown> | null;
  changed?: ("masked" | "described")[];
}

export interface ChatCompletionMessageToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export interface ChatCompletionMessage {
  role: "assistant";
  content: string | null;
  /** Extension: the model's reasoning before its answer, without the markers. */
  reasoning_content?: string;
  refusal: null;
  tool_calls?: ChatCompletionMessageToolCall[];
  /** The call, if the request has ``functions``. */
  function_call?: { name: string; arguments: string };
  /** Citations of a far server that searches the web, as it writes them. */
  annotations?: ChatCompletionAnnotation[];
}

export interface ChatCompletionChoice {
  index: number;
  message: ChatCompletionMessage;
  logprobs: ChatCompletionLogprobs | null;
  finish_reason: "stop" | "length" | "tool_calls" | "content_filter" | "function_call";
  /** Extension, if requested. */
  token_ids?: number[];
}

/** What a transcriber wrote down of a recording: ``param`` is the part that has it, ``seconds`` its length, and ``language`` null for transcribers of one language. */
export interface SoundTranscript {
  param: string;
  text: string;
  language: string | null;
  seconds: number;
}

export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: ChatCompletionChoice[];
  usage: CompletionUsage;
  /** Extension, if requested. */
  prompt_token_ids?: number[];
  /** Extension, if requested: by token id, for each token of the prompt; the first has none. */
  prompt_logprobs?: (Record<string, { logprob: number; rank: number | null; decoded_token: string | null }> | null)[];
  /** Extension: the texts that took the places of the prompt's recordings. */
  transcripts?: SoundTranscript[];
  /** Extension, for answers that either of two sides could write. */
  route?: Route;
  receipts?: SignedReceipt[];
  /** Extension, if requested: of each side that wrote a part of the answer. */
  parts?: AnswerPart[];
  timings: CompletionTimings;
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
  /** Extension: the model's reasoning before its answer, without the markers. vLLM calls it ``reasoning``. */
  reasoning_content?: string;
  tool_calls?: ChatCompletionToolCallDelta[];
  /** The call, if the request has ``functions``. */
  function_call?: { name?: string; arguments?: string };
  /** Citations of a far server that searches the web, as it writes them. */
  annotations?: ChatCompletionAnnotation[];
}

export interface ChatCompletionChunkChoice {
  index: number;
  delta: ChatCompletionDelta;
  logprobs: ChatCompletionLogprobs | null;
  finish_reason: "stop" | "length" | "tool_calls" | "content_filter" | "function_call" | null;
  /** Extension, if requested. */
  token_ids?: number[];
}

/** With stream_options.include_usage, ``usage`` is null except in the last chunk, which has no choices. The answer of a pair of sides has the route in its first chunk, the first after a switch, and the last. */
export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: ChatCompletionChunkChoice[];
  usage?: CompletionUsage | null;
  /** Extension, if requested. */
  prompt_token_ids?: number[];
  /** Extension, if requested. */
  prompt_logprobs?: (Record<string, { logprob: number; rank: number | null; decoded_token: string | null }> | null)[];
  /** Extension: the texts that took the places of the prompt's recordings. */
  transcripts?: SoundTranscript[];
  /** Extension, for answers that either of two sides could write. */
  route?: Route;
  receipts?: SignedReceipt[];
  /** Extension, if requested: of each side that wrote a part of the answer. */
  parts?: AnswerPart[];
  timings?: CompletionTimings;
}

export interface CompletionLogprobs {
  tokens: string[];
  /** The first token of an echoed prompt has none. */
  token_logprobs: (number | null)[];
  top_logprobs: (Record<string, number> | null)[];
  text_offset: number[];
}

export interface CompletionChoice {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: "stop" | "length";
  /** Extension of vLLM's, if requested. */
  token_ids?: number[];
  /** Extension of vLLM's, if requested. */
  prompt_token_ids?: number[];
  /** Extension of vLLM's, if requested. */
  prompt_logprobs?: (Record<string, { logprob: number; rank: number | null; decoded_token: string | null }> | null)[];
}

export interface Completion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: CompletionChoice[];
  usage: CompletionUsage;
  receipts?: SignedReceipt[];
  /** Extension, if requested: of each side that wrote a part of the answer. */
  parts?: AnswerPart[];
  timings: CompletionTimings;
}

export interface CompletionChunkChoice {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: "stop" | "length" | null;
  /** Extension of vLLM's, if requested. */
  token_ids?: number[];
  /** Extension of vLLM's, if requested. */
  prompt_token_ids?: number[];
  /** Extension of vLLM's, if requested. */
  prompt_logprobs?: (Record<string, { logprob: number; rank: number | null; decoded_token: string | null }> | null)[];
}

/** A part of a streamed completion; ``finish_reason`` is null until the end of a choice. */
export interface CompletionChunk {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: CompletionChunkChoice[];
  usage?: CompletionUsage | null;
  receipts?: SignedReceipt[];
  /** Extension, if requested: of each side that wrote a part of the answer. */
  parts?: AnswerPart[];
  timings?: CompletionTimings;
}

export interface EncodingUsage {
  prompt_tokens: number;
  total_tokens: number;
}

export interface RerankResult {
  /** The document's index in the request. */
  index: number;
  relevance_score: number;
  /** If requested. */
  document?: TextDocument;
}

/** ``results``: the most relevant first. ``meta`` is Cohere's. */
export interface RerankResponse {
  id: string;
  object: "list";
  model: string;
  results: RerankResult[];
  usage: EncodingUsage;
}

export interface ScoreResponse {
  id: string;
  object: "list";
  created: number;
  model: string;
  data: { index: number; object: "score"; score: number }[];
  usage: EncodingUsage;
}

/** ``start`` and ``end`` are the characters of the token in its text, in the page as indexes that `slice` takes; missing for tokens without characters, and if the input is token ids. */
export interface TokenClass {
  token_id: number;
  start?: number;
  end?: number;
  label: string;
  probs: number[];
}

/** A part of a text with its label. ``start`` and ``end`` are its characters, without white space at its ends, as in TokenClass. ``score`` is the mean probability of the labels of its tokens. */
export interface SpanClass {
  label: string;
  start: number;
  end: number;
  score: number;
}

/** ``label`` is the most likely one, and ``probs`` has the probability of each label. A model that labels tokens has ``tokens`` instead, and ``spans`` has the spans that its labels form in a text; they are missing if the input is token ids, or if no label ("O") is outside of spans. */
export interface Classification {
  index: number;
  label?: string;
  probs?: number[];
  num_classes: number;
  tokens?: TokenClass[];
  spans?: SpanClass[];
}

export interface ClassifyResponse {
  id: string;
  object: "list";
  created: number;
  model: string;
  data: Classification[];
  usage: EncodingUsage;
}

export interface ErrorObject {
  message: string;
  type: string;
  param: string | null;
  code: string | null;
  /** Of the code "confirmation_required": the value of X-Nearfar-Confirm that agrees to ``masked``. */
  confirm?: string;
  /** All texts that would leave the machine, if its policy asks. */
  masked?: MaskedText[];
}

/** ``max_drafts``: further drafts of a message are not checked. ``context``: the most tokens of the prompt and the answer together. */
export interface VerifyOpened {
  type: "opened";
  version: number;
  context: number;
  max_drafts: number;
}

/** ``tokens`` are the next ones of the answer. ``cached_tokens``: the number of earlier tokens that were not computed again. */
export interface VerifyAccepted {
  type: "accepted";
  tokens: number[];
  finish_reason?: "stop" | "length";
  cached_tokens: number;
}

export interface VerifyError {
  type: "error";
  error: ErrorObject;
}
