// Our answers in WebLLM's shapes: usage with its figures, "abort" as a reason, and the id of the model.

import type * as ours from "../api/types.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionFinishReason,
  CompletionUsage,
  Logprobs,
} from "./chat_types.js";
import type { Completion, CompletionChoice } from "./completion_types.js";

/** What an answer's shape depends on beside itself. */
export interface AnswerContext {
  readonly modelId: string;
  /** Whether interruptGenerate ended the answer. */
  readonly interrupted: () => boolean;
}

export function chatCompletion(
  { usage, timings, choices, ...whole }: ours.ChatCompletion,
  context: AnswerContext,
): ChatCompletion {
  return {
    ...whole,
    model: context.modelId,
    choices: choices.map((choice) => ({ ...choice, finish_reason: reason(choice.finish_reason, context) })),
    usage: withExtra(usage, timings),
  };
}

/** ``timings`` are those of the last chunk with a choice, which the chunk with the usage follows. */
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

/** A whole text or a chunk of one. */
export function completion(
  { usage, choices, ...whole }: ours.Completion | ours.CompletionChunk,
  timings: ours.CompletionTimings | undefined,
  context: AnswerContext,
): Completion {
  return {
    ...whole,
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

function reason(found: ours.ChatFinishReason, { interrupted }: AnswerContext): ChatCompletionFinishReason {
  if (found === "content_filter") return "stop";
  return found === "stop" && interrupted() ? "abort" : found;
}

/** In the shape of chats. A token that is a part of a character has no bytes here. */
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
