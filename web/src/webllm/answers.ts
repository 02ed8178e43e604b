// Converts our answers to WebLLM's types: with its usage figures, "abort" as a finish reason, and the id of the model.

import type * as ours from "../api/types.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionFinishReason,
  CompletionUsage,
  Logprobs,
} from "./chat_types.js";
import type { Completion, CompletionChoice } from "./completion_types.js";

/** The values that the conversion needs in addition to the answer. */
export interface AnswerContext {
  readonly modelId: string;
  /** Whether interruptGenerate ended the answer. */
  readonly interrupted: () => boolean;
}

export function chatCompletion(
  { usage, timings, choices, ...rest }: ours.ChatCompletion,
  context: AnswerContext,
): ChatCompletion {
  return {
    ...rest,
    model: context.modelId,
    choices: choices.map((choice) => ({ ...choice, finish_reason: reason(choice.finish_reason, context) })),
    usage: withExtra(usage, timings),
  };
}

/** ``timings`` come from the last chunk with a choice. The chunk with the usage follows it. */
export function chatChunk(
  { usage, choices, ...chunk }: ours.ChatCompletionChunk,
  timings: ours.CompletionTimings | undefined,
  context: AnswerContext,
): ChatCompletionChunk {
  return {
    ...chunk,
    model: context.modelId,
    choices: choices.map((choice) => ({
      ...choice,
      finish_reason: choice.finish_reason === null ? null : reason(choice.finish_reason, context),
    })),
    ...usageOf(usage, timings),
  };
}

/** Converts a complete text or a chunk of one. */
export function completion(
  { usage, choices, ...rest }: ours.Completion | ours.CompletionChunk,
  timings: ours.CompletionTimings | undefined,
  context: AnswerContext,
): Completion {
  return {
    ...rest,
    model: context.modelId,
    choices: choices.map((choice): CompletionChoice => ({
      ...choice,
      logprobs: choice.logprobs === null ? null : logprobs(choice.logprobs),
      finish_reason: choice.finish_reason === null ? null : reason(choice.finish_reason, context),
    })),
    ...usageOf(usage, timings),
  };
}

export function withExtra(usage: ours.CompletionUsage, timings: ours.CompletionTimings): CompletionUsage {
  const firstTokenSeconds = timings.time_to_first_token_ms / 1000;
  const speed = timings.tokens_per_second ?? 0;
  return {
    ...usage,
    extra: {
      e2e_latency_s: timings.total_ms / 1000,
      time_to_first_token_s: firstTokenSeconds,
      prefill_tokens_per_s: firstTokenSeconds > 0 ? usage.prompt_tokens / firstTokenSeconds : 0,
      decode_tokens_per_s: speed,
      time_per_output_token_s: speed > 0 ? 1 / speed : 0,
    },
  };
}

function usageOf(
  usage: ours.CompletionUsage | null | undefined,
  timings: ours.CompletionTimings | undefined,
): { usage?: CompletionUsage } {
  return usage === null || usage === undefined || timings === undefined ? {} : { usage: withExtra(usage, timings) };
}

function reason(finishReason: ours.ChatFinishReason, { interrupted }: AnswerContext): ChatCompletionFinishReason {
  if (finishReason === "content_filter") return "stop";
  // WebLLM's requests have no functions.
  if (finishReason === "function_call") return "tool_calls";
  return finishReason === "stop" && interrupted() ? "abort" : finishReason;
}

/** Converts to the type that chats use. The bytes of a token are null if it is only a part of a character. */
function logprobs({ tokens, token_logprobs: values, top_logprobs: alternatives }: ours.CompletionLogprobs): Logprobs {
  const entry = (token: string, logprob: number) => ({
    token,
    bytes: token.includes("\ufffd") ? null : [...new TextEncoder().encode(token)],
    logprob,
  });
  return {
    content: tokens.map((token, index) => ({
      ...entry(token, values[index] ?? 0),
      top_logprobs: Object.entries(alternatives[index] ?? {}).map(([other, logprob]) => entry(other, logprob)),
    })),
  };
}
