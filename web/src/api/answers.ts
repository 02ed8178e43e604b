// Generates several answers at once: yields their pieces as they are generated, and at the last end their cost.

import type { TokenRequest } from "../engine/request.js";
import type { AnswerText, ChoiceEnd, Piece } from "./choice.js";
import { answerChoice } from "./choice.js";
import type { Model } from "./model.js";
import { anySignal } from "./stream.js";
import type {
  ChatCompletionChunk,
  CompletionChunk,
  CompletionTimings,
  CompletionUsage,
  PromptLogprobs,
} from "./types.js";

/** ``cost`` is that of all answers; null until the last of them ends. */
export type AnswerEvent =
  | { readonly type: "piece"; readonly index: number; readonly piece: Piece }
  | {
      readonly type: "end";
      readonly index: number;
      readonly finishReason: ChoiceEnd["finishReason"];
      readonly cost: Cost | null;
    };

interface Cost {
  readonly usage: CompletionUsage;
  readonly timings: CompletionTimings;
}

/**
 * Each prompt has ``n`` consecutive requests. All answers end when the consumer leaves, when one of them fails, or when
 * a signal aborts.
 */
export async function* answerAll(
  model: Model,
  requests: readonly TokenRequest[],
  options: {
    readonly n: number;
    readonly form: AnswerText;
    readonly signal: AbortSignal;
    readonly interrupt: AbortSignal | undefined;
  },
): AsyncGenerator<AnswerEvent, void, undefined> {
  const cancelled = new AbortController();
  const { form, interrupt } = options;
  const signal = anySignal(options.signal, interrupt, cancelled.signal);
  const choices = requests.map((request) =>
    answerChoice(model.tokens, model.text, { ...request, signal }, form, interrupt),
  );
  const next = (choice: (typeof choices)[number], index: number) => {
    const promise = choice.next().then((result) => ({ choice, index, result }));
    // The promise is awaited, but it may reject before that.
    promise.catch(() => undefined);
    return promise;
  };
  const pending = new Map(choices.map((choice, index) => [index, next(choice, index)]));
  const ends: (ChoiceEnd | undefined)[] = [];
  const start = performance.now();
  let first: number | null = null;
  try {
    while (pending.size > 0) {
      const { choice, index, result } = await Promise.race(pending.values());
      first ??= performance.now();
      pending.delete(index);
      if (result.done === true) {
        ends[index] = result.value;
        const cost = pending.size > 0 ? null : costOf(requests, ends, options.n, start, first);
        yield { type: "end", index, finishReason: result.value.finishReason, cost };
      } else {
        // An entry that is set again moves to the end, so that the other answers are served first.
        pending.set(index, next(choice, index));
        yield { type: "piece", index, piece: result.value };
      }
    }
  } finally {
    cancelled.abort();
    await Promise.allSettled([...pending.values(), ...choices.map((choice) => choice.return(undefined as never))]);
  }
}

/** ``head`` with the fields that a chunk and its answer share. */
export function foldHead<T extends object>(
  head: Partial<T>,
  { usage, timings, id, created, model }: ChatCompletionChunk | CompletionChunk,
): Partial<T> {
  return { ...head, id, created, model, ...(timings && { timings }), ...(usage && { usage }) };
}

/** The fields of a chunk or choice that report something of the prompt. */
export function promptFields<T extends { prompt_token_ids?: number[]; prompt_logprobs?: PromptLogprobs }>({
  prompt_token_ids: ids,
  prompt_logprobs: logprobs,
}: T): Pick<T, "prompt_token_ids" | "prompt_logprobs"> {
  return { ...(ids && { prompt_token_ids: ids }), ...(logprobs && { prompt_logprobs: logprobs }) };
}

/** ``start`` and ``first``: the time in ms at which the answers began, and that of their first token. */
function costOf(
  requests: readonly TokenRequest[],
  ends: readonly (ChoiceEnd | undefined)[],
  n: number,
  start: number,
  first: number,
): Cost {
  const completionTokens = ends.reduce((sum, end) => sum + (end?.completionTokens ?? 0), 0);
  // Answers to the same prompt share its tokens, so only the first of them counts.
  const prompts = requests.flatMap(({ promptIds }, index) =>
    index % n === 0 ? [{ tokens: promptIds.length, cached: ends[index]?.cachedTokens ?? null }] : [],
  );
  const promptTokens = prompts.reduce((sum, { tokens }) => sum + tokens, 0);
  const cachedTokens = prompts.reduce<number | null>(
    (sum, { cached }) => (sum === null || cached === null ? null : sum + cached),
    0,
  );
  const usage = {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    ...(cachedTokens === null ? {} : { prompt_tokens_details: { cached_tokens: cachedTokens } }),
    ...detailsOf(ends),
  };
  return { usage, timings: timingsOf(start, first, performance.now(), completionTokens) };
}

/** Nothing if no answer reasons, and no drafts were checked. */
function detailsOf(ends: readonly (ChoiceEnd | undefined)[]): Pick<CompletionUsage, "completion_tokens_details"> {
  const total = (name: "reasoningTokens" | "draftedTokens" | "acceptedTokens" | "passes"): number =>
    ends.reduce((sum, end) => sum + (end?.[name] ?? 0), 0);
  const passes = total("passes");
  const sampled = ends.map((end) => (end?.passes ? end.completionTokens + Number(end.endToken !== undefined) : 0));
  const drafted = total("draftedTokens");
  const accepted = total("acceptedTokens");
  if (ends[0]?.reasoningTokens == null && drafted === 0) return {};
  return {
    completion_tokens_details: {
      reasoning_tokens: total("reasoningTokens"),
      ...(drafted > 0 && {
        accepted_prediction_tokens: accepted,
        rejected_prediction_tokens: drafted - accepted,
        ...(passes > 0 && {
          tokens_per_pass: Number((sampled.reduce((sum, count) => sum + count) / passes).toFixed(3)),
        }),
      }),
    },
  };
}

function timingsOf(start: number, first: number, end: number, tokens: number): CompletionTimings {
  const speed = tokens > 1 && end > first ? ((tokens - 1) * 1000) / (end - first) : null;
  return { time_to_first_token_ms: first - start, total_ms: end - start, tokens_per_second: speed };
}
