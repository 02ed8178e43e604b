// Measures a loaded model: the times of prompts and answers, and the calls of a token. Node runs it as well as a page.

import type { CallCounter, CallCounts } from "./count_calls.js";
import { median, medianCounts } from "./count_calls.js";

/** Continues token ids greedily: yields fewer than ``maxTokens`` if the model ends its answer. */
export interface TokenModel {
  continueTokens(
    promptIds: readonly number[],
    maxTokens: number,
    signal: AbortSignal,
  ): AsyncGenerator<number, unknown, undefined>;
}

/** The time to read ``prompt_tokens``: ``time_to_first_token_ms`` is the median over several runs. */
export interface PrefillRow {
  readonly prompt_tokens: number;
  readonly time_to_first_token_ms: number;
  readonly tokens_per_second: number;
}

/** The tokens written after a prompt of ``prompt_tokens``, with the milliseconds from each token to the next. */
export interface DecodeRow {
  readonly prompt_tokens: number;
  readonly tokens: number;
  readonly tokens_per_second: number;
  readonly milliseconds: readonly number[];
}

/** The median time to read ``texts`` of ``tokens`` each. */
export interface EncodeRow {
  readonly texts: number;
  readonly tokens: number;
  readonly milliseconds: number;
}

/** Reads token ids. */
export interface VectorModel {
  create(params: { readonly input: readonly (readonly number[])[] }): Promise<unknown>;
}

export interface Sizes {
  readonly vocabSize: number;
  readonly context: number;
}

// A model may end its answers at once. After this number of prompts, the measurement gives up.
const MOST_PROMPTS = 12;

/** Measure each of ``lengths`` that fits the context, ``runs`` times. ``first``: the number of the first run. */
export async function measurePrefill(
  model: TokenModel,
  sizes: Sizes,
  lengths: readonly number[],
  runs: number,
  signal: AbortSignal,
  first = 0,
): Promise<PrefillRow[]> {
  const rows: PrefillRow[] = [];
  for (const length of lengths.filter((tokens) => tokens <= sizes.context)) {
    const times: number[] = [];
    for (let run = first; run < first + runs; run++) {
      const start = performance.now();
      const [token = performance.now()] = await arrivals(model, promptOf(length, sizes.vocabSize, run), 1, signal);
      times.push(token - start);
    }
    const ms = median(times);
    rows.push({ prompt_tokens: length, time_to_first_token_ms: ms, tokens_per_second: (1000 * length) / ms });
  }
  return rows;
}

/** Measure about ``tokens`` new tokens after a prompt of each of ``lengths``, cut to fit the context. */
export async function measureDecode(
  model: TokenModel,
  sizes: Sizes,
  lengths: readonly number[],
  tokens: number,
  signal: AbortSignal,
): Promise<DecodeRow[]> {
  const rows: DecodeRow[] = [];
  const fitting = new Set(lengths.map((length) => Math.max(1, Math.min(length, sizes.context - tokens))));
  for (const length of fitting) {
    const milliseconds: number[] = [];
    for (let run = 0; run < MOST_PROMPTS && milliseconds.length < tokens - 1; run++) {
      const times = await arrivals(model, promptOf(length, sizes.vocabSize, run), tokens - milliseconds.length, signal);
      milliseconds.push(...differences(times));
    }
    if (milliseconds.length === 0) continue;
    const total = milliseconds.reduce((sum, ms) => sum + ms, 0);
    rows.push({
      prompt_tokens: length,
      tokens: milliseconds.length,
      tokens_per_second: (1000 * milliseconds.length) / total,
      milliseconds,
    });
  }
  return rows;
}

/** Measure each of ``batches``, ``runs`` times. */
export async function measureEncode(
  model: VectorModel,
  vocabSize: number,
  batches: readonly Pick<EncodeRow, "texts" | "tokens">[],
  runs: number,
): Promise<EncodeRow[]> {
  const rows: EncodeRow[] = [];
  for (const { texts, tokens } of batches) {
    const times: number[] = [];
    for (let run = 0; run < runs; run++) {
      const input = Array.from({ length: texts }, (_, text) => promptOf(tokens, vocabSize, run * texts + text));
      const start = performance.now();
      await model.create({ input });
      times.push(performance.now() - start);
    }
    rows.push({ texts, tokens, milliseconds: median(times) });
  }
  return rows;
}

/** The median calls of a token after the first; null if the model never writes two tokens. */
export async function measureCounts(
  model: TokenModel,
  sizes: Sizes,
  counter: CallCounter,
  tokens: number,
  signal: AbortSignal,
): Promise<CallCounts | null> {
  const steps: CallCounts[] = [];
  for (let run = 0; run < MOST_PROMPTS && steps.length < tokens - 1; run++) {
    let before: CallCounts | null = null;
    const ids = model.continueTokens(promptOf(8, sizes.vocabSize, run), tokens - steps.length, signal);
    while ((await ids.next()).done !== true) {
      const now = counter.read();
      if (before !== null) steps.push(subtract(now, before));
      before = now;
    }
  }
  return medianCounts(steps);
}

/** Arbitrary ids, different for each ``run`` and length, so that no prompt hits the prefix cache of an earlier one. */
export function promptOf(length: number, vocabSize: number, run: number): number[] {
  return Array.from(
    { length },
    (_, index) => (7 * index * index + 11 * index + 3 + (131 * run + 17 * length) * (index + 1)) % vocabSize,
  );
}

/** The time at which each new token arrived. */
async function arrivals(
  model: TokenModel,
  promptIds: readonly number[],
  maxTokens: number,
  signal: AbortSignal,
): Promise<number[]> {
  const times: number[] = [];
  const ids = model.continueTokens(promptIds, maxTokens, signal);
  while ((await ids.next()).done !== true) times.push(performance.now());
  return times;
}

function differences(times: readonly number[]): number[] {
  return times.slice(1).map((time, index) => time - (times[index] ?? time));
}

function subtract(now: CallCounts, before: CallCounts): CallCounts {
  const keys = Object.keys(now) as (keyof CallCounts)[];
  return Object.fromEntries(keys.map((key) => [key, now[key] - before[key]])) as unknown as CallCounts;
}
